//! Rules for Rust files: module docs, `unsafe`, clocks and sockets, lengths.

use std::path::Path;

use super::Finding;
use super::lexer::{self, Code};

/// Most lines of a file without tests. A longer file holds more than one thing.
const FILE_LINES_MAX: usize = 1000;
/// Most lines of code of a function, without comments and blank lines.
const FUNCTION_LINES_MAX: usize = 100;

/// The crates that may contain `unsafe` code, each block with its reason.
const UNSAFE_CRATES: &[&str] = &[
    "transport/net",
    "transport/shm",
    "dataplane/pktio",
    "dataplane/rcu",
    "dataplane/xdp",
    "dataplane/classifier",
];

/// A call that only some crates may make.
struct Banned {
    call: &'static str,
    /// The crates that may make it.
    owners: &'static [&'static str],
    instead: &'static str,
}

/// `cotcp` can be used without the other crates, so its driver has its own clock and sockets. Its core
/// has neither.
const COTCP_DRIVER: &str = "transport/cotcp/src/driver";

/// The file with functions compiled for instructions that not every processor has.
const CPU: &str = "dataplane/classifier/src/cpu.rs";
const ONE_LIST: &str =
    "`classifier::cpu`: one list is both what the processor is asked for and what is compiled for";

const BANNED: &[Banned] = &[
    Banned {
        call: "Instant::now",
        owners: &["transport/net", COTCP_DRIVER],
        instead: "`net::time::now()`: only `net` reads the clock, so that simulation and paused tests control it",
    },
    Banned {
        call: "SystemTime::now",
        owners: &["transport/net"],
        instead: "`net::time::wall_clock()`: only `net` reads the clock",
    },
    Banned {
        call: "thread::sleep",
        owners: &["transport/net"],
        instead: "`net::time::sleep(..).await`: a blocked worker stalls every UE on it",
    },
    Banned {
        call: "tokio::time::",
        owners: &["transport/net", COTCP_DRIVER],
        instead: "the same function of `net::time`, so that timers can be simulated",
    },
    Banned {
        call: "tokio::net::",
        owners: &["transport/net", COTCP_DRIVER],
        instead: "`net::{udp, tcp, uds, sctp}`: only `net` opens sockets",
    },
    Banned {
        call: "std::os::unix::net",
        owners: &["transport/net"],
        instead: "`net::uds`: only `net` opens sockets",
    },
    Banned { call: "UdpSocket::bind", owners: &["transport/net", "dataplane/pktio"], instead: "`net::udp`" },
    Banned { call: "TcpListener::bind", owners: &["transport/net", COTCP_DRIVER], instead: "`net::tcp`" },
    Banned { call: "TcpStream::connect", owners: &["transport/net", COTCP_DRIVER], instead: "`net::tcp`" },
    Banned { call: "target_feature(", owners: &[CPU], instead: ONE_LIST },
    Banned { call: "is_x86_feature_detected", owners: &[CPU], instead: ONE_LIST },
    Banned {
        call: "std::process::exit",
        owners: &[],
        instead: "return an `ExitCode` from main, so that destructors run and namespaces are removed",
    },
];

/// Also banned in wire crates: a codec depends only on its input.
const BANNED_IN_WIRE: &[&str] = &["std::fs", "std::thread", "std::env", "std::process", "std::sync::Mutex"];

/// Checks one Rust file.
pub fn check(file: &Path, text: &str, findings: &mut Vec<Finding>) {
    let code = lexer::strip(text);
    let tests = TestLines::of(file, text, &code);
    module_docs(file, text, findings);
    forbid_unsafe(file, text, &code, findings);
    banned_calls(file, text, &code, &tests, findings);
    if !tests.whole_file {
        lengths(file, text, &code, &tests, findings);
    }
}

/// Whether the line (0-based) or one just above it has `tidy-allow: <rule>: reason`.
pub fn allowed(text: &str, line: usize, rule: &str) -> bool {
    let marker = format!("tidy-allow: {rule}: ");
    text.lines().skip(line.saturating_sub(3)).take(line.min(3) + 1).any(|line| line.contains(&marker))
}

/// Lines of test code, to which rules about production code do not apply.
struct TestLines {
    whole_file: bool,
    /// Ranges of 0-based lines, without the end.
    ranges: Vec<(usize, usize)>,
}

impl TestLines {
    fn of(file: &Path, text: &str, code: &Code) -> Self {
        let test_folder =
            file.iter().any(|part| ["tests", "fuzz", "examples", "benches"].iter().any(|t| part == *t));
        let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if test_folder || stem == "tests" || stem.ends_with("_tests") {
            return TestLines { whole_file: true, ranges: Vec::new() };
        }
        let mut ranges = Vec::new();
        for (at, attribute) in code.text.match_indices("#[cfg(test)]") {
            // An item without a body (`mod tests;`, `use x;`) ends with its line.
            let end = lexer::block_end(&code.text, at + attribute.len()).unwrap_or(at + attribute.len());
            ranges.push((line_of(text, at), line_of(text, end) + 1));
        }
        TestLines { whole_file: false, ranges }
    }

    fn contains(&self, line: usize) -> bool {
        self.whole_file || self.ranges.iter().any(|(start, end)| (*start..*end).contains(&line))
    }
}

/// 0-based line of a byte position.
fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// The crate of a file, as `group/name` or `name`.
fn is_in(file: &Path, crates: &[&str]) -> bool {
    crates.iter().any(|folder| file.starts_with(folder))
}

fn module_docs(file: &Path, text: &str, findings: &mut Vec<Finding>) {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("#!["));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        let message =
            "start the file with `//!`: what it is for, how it flows, what holds always, what to read first.";
        findings.push(Finding::new(file, 1, "module-docs", message));
    }
}

fn forbid_unsafe(file: &Path, text: &str, code: &Code, findings: &mut Vec<Finding>) {
    let root_of_crate = file.ends_with("src/lib.rs") || file.ends_with("src/main.rs");
    let may = is_in(file, UNSAFE_CRATES) || file.starts_with("fuzz");
    if root_of_crate && !may && !code.text.contains("#![forbid(unsafe_code)]") {
        let message = "add `#![forbid(unsafe_code)]`: unsafe code lives in net, shm, pktio, rcu, xdp and classifier only.";
        findings.push(Finding::new(file, 1, "unsafe", message));
    }
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in code.text.lines().enumerate() {
        let Some(at) = line.find("unsafe") else { continue };
        let after = line[at + "unsafe".len()..].trim_start();
        if !(after.starts_with('{') || after.starts_with("impl") || after.starts_with("fn")) {
            continue;
        }
        let above = &lines[index.saturating_sub(8)..=index];
        if !above.iter().any(|line| line.contains("SAFETY") || line.contains("# Safety")) {
            let message = "write `// SAFETY:` above it: why it is needed, and why it is sound.";
            findings.push(Finding::new(file, index + 1, "unsafe", message));
        }
    }
}

fn banned_calls(file: &Path, text: &str, code: &Code, tests: &TestLines, findings: &mut Vec<Finding>) {
    let wire = file.starts_with("wire");
    for (index, line) in code.text.lines().enumerate() {
        if tests.contains(index) {
            continue;
        }
        for banned in BANNED {
            let owner = is_in(file, banned.owners) || file.starts_with("xtask");
            // A pipe to a child process is in tokio::net, but is no socket.
            let found = line.contains(banned.call) && !line.contains("tokio::net::unix::pipe");
            if found && !owner && !allowed(text, index, "calls") {
                let message = format!("`{}` does not belong here; use {}.", banned.call, banned.instead);
                findings.push(Finding::new(file, index + 1, "calls", message));
            }
        }
        for call in BANNED_IN_WIRE.iter().filter(|call| wire && line.contains(**call)) {
            let message = format!("`{call}` in a wire crate: a codec is a function of its bytes alone.");
            findings.push(Finding::new(file, index + 1, "calls", message));
        }
    }
}

fn lengths(file: &Path, text: &str, code: &Code, tests: &TestLines, findings: &mut Vec<Finding>) {
    let total = text.lines().count();
    let production = (0..total).filter(|line| !tests.contains(*line)).count();
    if production > FILE_LINES_MAX && !text.contains("tidy-allow: file-length: ") {
        let message = format!(
            "{production} lines without tests, {FILE_LINES_MAX} at most: split it by what it holds, and name each file after that."
        );
        findings.push(Finding::new(file, 0, "file-length", message));
    }
    for (at, keyword) in code.text.match_indices("fn ") {
        let before = code.text[..at].bytes().next_back();
        let name = code.text[at + keyword.len()..].bytes().next();
        let word = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
        if word(before) || !word(name) {
            continue;
        }
        let (start, Some(end)) = (line_of(text, at), lexer::block_end(&code.text, at)) else { continue };
        if tests.contains(start) || allowed(text, start, "function-length") {
            continue;
        }
        let lines = code.text[at..end].lines().filter(|line| !line.trim().is_empty()).count();
        if lines > FUNCTION_LINES_MAX {
            let name: String =
                code.text[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let message = format!(
                "`{name}` has {lines} lines of code, {FUNCTION_LINES_MAX} at most: keep the branches here and move straight-line work into helpers."
            );
            findings.push(Finding::new(file, start + 1, "function-length", message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(file: &str, text: &str) -> Vec<(usize, &'static str)> {
        let mut findings = Vec::new();
        check(Path::new(file), text, &mut findings);
        findings.into_iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    #[test]
    fn docs_and_forbid_are_asked_for() {
        assert_eq!(rules("wire/pfcp/src/lib.rs", "fn a() {}\n"), [(1, "module-docs"), (1, "unsafe")]);
        assert_eq!(rules("wire/pfcp/src/lib.rs", "//! Doc.\n#![forbid(unsafe_code)]\n"), []);
        assert_eq!(rules("transport/net/src/lib.rs", "//! Doc.\n"), []);
        assert_eq!(
            rules("transport/net/src/raw.rs", "//! Doc.\nfn a() { unsafe { b() } }\n"),
            [(2, "unsafe")]
        );
    }

    #[test]
    fn clocks_belong_to_net_and_tests_are_exempt() {
        let call = "//! Doc.\nfn a() {\n    let t = Instant::now();\n}\n";
        assert_eq!(rules("ran/src/ue.rs", call), [(3, "calls")]);
        assert_eq!(rules("transport/net/src/time.rs", call), []);
        assert_eq!(
            rules("ran/src/ue.rs", "//! Doc.\n// Instant::now\nconst A: &str = \"Instant::now\";\n"),
            []
        );
        assert_eq!(
            rules(
                "ran/src/ue.rs",
                "//! Doc.\n#[cfg(test)]\nmod tests {\n    fn a() { Instant::now(); }\n}\n"
            ),
            []
        );
        let excused = "//! Doc.\n// tidy-allow: calls: the reason\nfn a() { Instant::now(); }\n";
        assert_eq!(rules("ran/src/ue.rs", excused), []);
    }

    #[test]
    fn instructions_are_named_in_one_place() {
        let compiled = "//! Doc.\n#[target_feature(enable = \"avx2\")]\nfn a() {}\n";
        assert_eq!(rules("dataplane/classifier/src/session/mod.rs", compiled), [(2, "calls")]);
        assert_eq!(rules("dataplane/classifier/src/cpu.rs", compiled), []);
        let asked = "//! Doc.\nfn a() -> bool { is_x86_feature_detected!(\"avx2\") }\n";
        assert_eq!(rules("dataplane/upf/src/worker.rs", asked), [(2, "calls")]);
    }

    #[test]
    fn lengths_count_code_that_is_not_a_test() {
        let body = "    a();\n".repeat(FUNCTION_LINES_MAX);
        assert_eq!(
            rules("ran/src/ue.rs", &format!("//! Doc.\nfn a() {{\n{body}}}\n")),
            [(2, "function-length")]
        );
        assert_eq!(
            rules("ran/src/ue.rs", &format!("//! Doc.\n#[cfg(test)]\nmod t {{\nfn a() {{\n{body}}}\n}}\n")),
            []
        );
        let comments = "    // why\n".repeat(FUNCTION_LINES_MAX);
        assert_eq!(rules("ran/src/ue.rs", &format!("//! Doc.\nfn a() {{\n{comments}}}\n")), []);
        let lines = "const A: u8 = 1;\n".repeat(FILE_LINES_MAX);
        assert_eq!(rules("ran/src/ue.rs", &format!("//! Doc.\n{lines}")), [(0, "file-length")]);
    }
}
