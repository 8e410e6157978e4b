//! YAML as a tree with line numbers.
//!
//! Scalars are kept as text. The type that reads them decides what they mean (see [`super::de`]), so
//! `mnc: 01` keeps its zero. Anchors, aliases and tags are refused: a value has to be written where it
//! is used. Depth and size are bounded, so any input is safe.

use granit_parser::{Event, Parser, ScalarStyle};

use super::Problem;

/// Deeper nesting is a mistake and could overflow the stack.
const DEPTH_MAX: usize = 32;
/// More values are a mistake: the only long list, that of subscribers, is in the store.
const NODES_MAX: usize = 100_000;

/// A value and its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// 1-based line of the file.
    pub line: usize,
    /// The value.
    pub value: Value,
}

/// The value of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text; `plain` when it was written without quotes, so that it may be a number, a boolean or null.
    Scalar {
        /// The text, after unescaping.
        text: String,
        /// Whether it was written without quotes.
        plain: bool,
    },
    /// `[a, b]` or a block of `- ` lines.
    Sequence(Vec<Node>),
    /// Keys in the order of the file; each key once.
    Mapping(Vec<(Key, Node)>),
}

/// A key and its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The text of the key.
    pub name: String,
    /// 1-based line of the file.
    pub line: usize,
}

impl Node {
    /// The value of a key, if this is a mapping that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(k, _)| k.name == key).map(|(_, node)| node)
    }

    /// The entries of a mapping; empty for anything else.
    pub fn entries(&self) -> &[(Key, Node)] {
        match &self.value {
            Value::Mapping(entries) => entries,
            _ => &[],
        }
    }

    /// The line of the value at `path` (keys and list positions joined with dots), or of the deepest
    /// part of the path that exists.
    pub fn line_of(&self, path: &str) -> usize {
        let mut node = self;
        for part in path.split(['.', '[', ']']).filter(|part| !part.is_empty()) {
            let next = match &node.value {
                Value::Sequence(items) => part.parse().ok().and_then(|index: usize| items.get(index)),
                _ => node.get(part),
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.line
    }
}

/// Parses one document.
pub fn parse(text: &str) -> Result<Node, Problem> {
    let mut builder = Builder { open: Vec::new(), root: None, nodes: 0 };
    for next in Parser::new_from_str(text) {
        let (event, span) = next.map_err(|error| {
            let hint = if text.contains('\t') { " (tabs do not indent in YAML; use spaces)" } else { "" };
            Problem::at(error.marker().line(), "", format!("not valid YAML: {}{hint}", error.info()))
        })?;
        builder.event(event, span.start.line())?;
    }
    builder.root.ok_or_else(|| Problem::at(1, "", "the file is empty"))
}

/// A sequence or mapping whose end has not been read yet.
struct Open {
    node: Node,
    /// The key whose value comes next.
    key: Option<Key>,
}

struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, line: usize) -> Result<(), Problem> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                refuse(line, anchor, tag.is_some())?;
                let plain = style == ScalarStyle::Plain;
                self.add(Node { line, value: Value::Scalar { text: text.into_owned(), plain } })
            }
            Event::SequenceStart(_, anchor, tag) => {
                refuse(line, anchor, tag.is_some())?;
                self.open(Node { line, value: Value::Sequence(Vec::new()) })
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse(line, anchor, tag.is_some())?;
                self.open(Node { line, value: Value::Mapping(Vec::new()) })
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.add(open.node),
                None => Ok(()),
            },
            Event::Alias(_) => {
                Err(Problem::at(line, "", "aliases (`*name`) are not used here; repeat the value"))
            }
            Event::DocumentStart(..) if self.root.is_some() => {
                Err(Problem::at(line, "", "a second document; the configuration is one"))
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, node: Node) -> Result<(), Problem> {
        if self.open.len() >= DEPTH_MAX {
            return Err(Problem::at(node.line, "", format!("nested more than {DEPTH_MAX} levels deep")));
        }
        self.open.push(Open { node, key: None });
        Ok(())
    }

    fn add(&mut self, node: Node) -> Result<(), Problem> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(Problem::at(node.line, "", format!("more than {NODES_MAX} values")));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.node.value {
            Value::Sequence(items) => items.push(node),
            Value::Mapping(entries) => match open.key.take() {
                Some(key) => entries.push((key, node)),
                None => open.key = Some(key_of(node, entries)?),
            },
            Value::Scalar { .. } => {}
        }
        Ok(())
    }
}

fn key_of(node: Node, entries: &[(Key, Node)]) -> Result<Key, Problem> {
    let Value::Scalar { text: name, .. } = node.value else {
        return Err(Problem::at(node.line, "", "a key must be a word, not a list or mapping"));
    };
    if let Some((first, _)) = entries.iter().find(|(key, _)| key.name == name) {
        return Err(Problem::at(
            node.line,
            &name,
            format!("given twice; the first is on line {}", first.line),
        ));
    }
    Ok(Key { name, line: node.line })
}

fn refuse(line: usize, anchor: usize, tagged: bool) -> Result<(), Problem> {
    if anchor != 0 {
        return Err(Problem::at(line, "", "anchors (`&name`) are not used here; repeat the value"));
    }
    if tagged {
        return Err(Problem::at(line, "", "tags (`!name`) are not used here"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_order_are_kept() {
        let node = parse("# comment\nplmn:\n  mcc: \"999\"\n  mnc: 01\ntac: [1, 2]\n").unwrap();
        assert_eq!(node.get("plmn").unwrap().get("mnc").unwrap().line, 4);
        assert_eq!(node.line_of("tac.1"), 5);
        assert_eq!(node.line_of("plmn.nothing"), 3);
        let mnc = &node.get("plmn").unwrap().get("mnc").unwrap().value;
        assert_eq!(*mnc, Value::Scalar { text: "01".into(), plain: true });
    }

    #[test]
    fn what_a_configuration_has_no_use_for_is_refused() {
        for (text, line, word) in [
            ("a: 1\nb: &x 2\n", 2, "anchors"),
            ("a: &x 1\nb: *x\n", 1, "anchors"),
            ("a: !t 1\n", 1, "tags"),
            ("a: 1\na: 2\n", 2, "given twice"),
            ("a: 1\n---\nb: 1\n", 2, "second document"),
            ("a: 1\nb: [1\n", 2, "not valid YAML"),
            ("", 1, "empty"),
            ("? [a]\n: b\n", 1, "a key must be a word"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.message.contains(word), "{text:?}: {problem:?}");
            assert_eq!(problem.line, line, "{text:?}");
        }
    }

    #[test]
    fn depth_and_size_are_bounded() {
        assert!(parse(&"[".repeat(10_000)).is_err());
        assert!(parse(&format!("[{}]", "1,".repeat(NODES_MAX + 1))).unwrap_err().message.contains("values"));
    }
}
