//! The part of Rust's lexical grammar that distinguishes code from comments and strings.

/// A Rust file in which comments and the contents of literals are blank; lines and columns stay the
/// same.
pub struct Code {
    /// As many bytes as the original.
    pub text: String,
}

/// Replaces comments and the contents of string and character literals by blanks.
pub fn strip(source: &str) -> Code {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => find(bytes, at, b"\n"),
            b'/' if bytes.get(at + 1) == Some(&b'*') => block_comment(bytes, at),
            b'r' if !word_before(bytes, at) || bytes[at.saturating_sub(1)] == b'b' => {
                match raw_string(bytes, at) {
                    Some(end) => end,
                    None => {
                        at += 1;
                        continue;
                    }
                }
            }
            b'"' => quoted(bytes, at, b'"'),
            b'\'' => match char_literal(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    Code { text: String::from_utf8_lossy(&out).into_owned() }
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    bytes[from..].windows(what.len()).position(|window| window == what).map_or(bytes.len(), |at| from + at)
}

fn block_comment(bytes: &[u8], from: usize) -> usize {
    let (mut depth, mut at) = (0, from);
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'/', Some(b'*')) => (depth, at) = (depth + 1, at + 2),
            (b'*', Some(b'/')) => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn word_before(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

/// End of `r"…"` or `r#"…"#` at `from`.
fn raw_string(bytes: &[u8], from: usize) -> Option<usize> {
    let hashes = bytes[from + 1..].iter().take_while(|byte| **byte == b'#').count();
    let open = from + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    Some((find(bytes, open + 1, &close) + close.len()).min(bytes.len()))
}

fn quoted(bytes: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// End of a character literal, or `None` if the quote begins a lifetime.
fn char_literal(bytes: &[u8], from: usize) -> Option<usize> {
    let next = *bytes.get(from + 1)?;
    if next == b'\\' {
        return Some(quoted(bytes, from, b'\''));
    }
    // A character is at most four bytes long; a lifetime has no closing quote.
    let width = match next {
        0..=0x7f => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    (bytes.get(from + 1 + width) == Some(&b'\'')).then_some(from + 2 + width)
}

/// Position after the `}` that closes the first `{` at or after `from`; `None` if a `;` comes first.
pub fn block_end(code: &str, from: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let (mut braces, mut others) = (0_i32, 0_i32);
    for (index, byte) in bytes.iter().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => others += 1,
            b')' | b']' => others -= 1,
            b';' if braces == 0 && others == 0 => return None,
            b'{' => braces += 1,
            b'}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(index + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let source = "let a = \"Instant::now\"; // thread::sleep\nlet b = r#\"unsafe \"x\" {\"#; /* a /* b */ c */ let c = '{'; let d: &'static str;";
        let code = strip(source).text;
        assert_eq!(code.len(), source.len());
        assert!(!code.contains("Instant") && !code.contains("sleep") && !code.contains("unsafe"));
        assert!(!code.contains('{'), "{code}");
        assert!(code.contains("&'static str"));
        assert_eq!(code.lines().count(), 2);
    }

    #[test]
    fn an_unterminated_literal_ends_with_the_file() {
        for source in ["\"abc", "r##\"abc\"#", "/* x", "'\\", "b'"] {
            assert_eq!(strip(source).text.len(), source.len());
        }
    }

    #[test]
    fn blocks_are_matched() {
        let code = "fn a(b: [u8; 3]) -> T { if x { y } } fn c();";
        assert_eq!(block_end(code, 0), Some(code.find(" fn c").unwrap()));
        assert_eq!(block_end(code, code.find("fn c").unwrap()), None);
    }
}
