//! Rules for every text file: no paths of one developer's machine, no notes about how a text was
//! written, no dead links, no stray white space.

use std::path::Path;

use super::Finding;

/// Texts about one person's machine or the making of a change, which do not belong in the project.
const FORBIDDEN: &[(&str, &str)] = &[
    ("/work/", "a path of one machine means nothing to a reader; write it from the repository's root"),
    ("/home/", "a path of one machine means nothing to a reader; write it from the repository's root"),
    ("co-authored-by:", "credit belongs to the history"),
    ("generated with", "say what the text says, not how it was made"),
    ("FIXME", "open an issue, or fix it; a note in the code is forgotten"),
    ("XXX:", "open an issue, or fix it; a note in the code is forgotten"),
];

/// Third-party files, and this one, which contains the forbidden texts.
const EXEMPT: &[&str] = &["LICENSE", "Cargo.lock", "xtask/src/tidy/prose.rs"];

/// Folders of fuzz inputs.
const SEEDS: &[&str] = &["fuzz/seeds", "fuzz/regressions"];

/// Checks one text file.
pub fn check(root: &Path, file: &Path, text: &str, findings: &mut Vec<Finding>) {
    // Fuzz inputs are octets, even if they look like text.
    if EXEMPT.iter().any(|exempt| file == Path::new(exempt))
        || SEEDS.iter().any(|seeds| file.starts_with(seeds))
    {
        return;
    }
    let markdown = file.extension().is_some_and(|e| e == "md");
    for (index, line) in text.lines().enumerate() {
        for (word, why) in FORBIDDEN {
            let found = line.contains(word) || line.to_lowercase().contains(&word.to_lowercase());
            if found && !super::source::allowed(text, index, "words") {
                findings.push(Finding::new(file, index + 1, "words", format!("`{word}` found: {why}.")));
            }
        }
        if line.ends_with(' ') || line.ends_with('\t') {
            findings.push(Finding::new(file, index + 1, "spaces", "white space at the end of the line."));
        }
        if markdown {
            links(root, file, index + 1, line, findings);
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(Finding::new(file, 0, "spaces", "the last line has no line end."));
    }
}

/// Relative links of a Markdown line must lead to files of the repository.
fn links(root: &Path, file: &Path, number: usize, line: &str, findings: &mut Vec<Finding>) {
    for part in line.split("](").skip(1) {
        let Some(target) = part.split(')').next() else { continue };
        let target = target.split('#').next().unwrap_or_default();
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let path = root.join(file).parent().map(|folder| folder.join(target));
        if path.is_none_or(|path| !path.exists()) {
            findings.push(Finding::new(file, number, "links", format!("`{target}` does not exist.")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(file: &str, text: &str) -> Vec<&'static str> {
        let mut findings = Vec::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        check(root, Path::new(file), text, &mut findings);
        findings.into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn machine_paths_links_and_spaces_are_found() {
        assert_eq!(rules("a.md", "see /home/me/x\n"), ["words"]);
        assert_eq!(rules("README.md", "[x](no-such-file.md)\n"), ["links"]);
        assert_eq!(
            rules("README.md", "[x](xtask/Cargo.toml#there) [y](https://example.org)\n"),
            [] as [&str; 0]
        );
        assert_eq!(rules("a.md", "end \nno line end"), ["spaces", "spaces"]);
    }
}
