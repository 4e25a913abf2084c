//! YAML as kubeconfigs are written in it.
//!
//! All text is text, a number or a truth too: a token may look like either. What
//! programs do not write (anchors, tags, a second document) is refused.

use serde_json::{Map, Value};
use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::scanner::{ScanError, TScalarStyle};

/// How deep mappings and lists stand in each other.
const DEPTH_MAX: usize = 32;

/// Reads a document; or in which line what was found that cannot be read.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut events = Events {
        parser: Parser::new_from_str(text),
        line: 0,
    };
    let document = match events.next_in_document()? {
        Event::StreamEnd => return Ok(Value::Null),
        first => events.value(first, 0)?,
    };
    match events.next_in_document()? {
        Event::StreamEnd => Ok(document),
        _ => Err(events.wrong("more than one document")),
    }
}

struct Events<'a> {
    parser: Parser<std::str::Chars<'a>>,
    /// Where the last one stands.
    line: usize,
}

impl Events<'_> {
    // What stands there may be a secret.
    fn wrong(&self, found: &str) -> String {
        format!("line {}: {found}", self.line)
    }

    fn next(&mut self) -> Result<Event, String> {
        let (event, marker) = self.parser.next_token().map_err(|error: ScanError| {
            self.line = error.marker().line();
            self.wrong(error.info())
        })?;
        self.line = marker.line();
        Ok(event)
    }

    /// The next that is not about where documents begin and end.
    fn next_in_document(&mut self) -> Result<Event, String> {
        loop {
            match self.next()? {
                Event::StreamStart | Event::DocumentStart | Event::DocumentEnd | Event::Nothing => {
                }
                event => return Ok(event),
            }
        }
    }

    /// The value that begins with `first`.
    fn value(&mut self, first: Event, depth: usize) -> Result<Value, String> {
        if depth > DEPTH_MAX {
            return Err(self.wrong("too many levels"));
        }
        match first {
            Event::Scalar(text, style, 0, None) => Ok(scalar(text, style)),
            Event::SequenceStart(0, None) => self.list(depth),
            Event::MappingStart(0, None) => self.mapping(depth),
            _ => Err(self.wrong("an anchor, an alias or a tag")),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, String> {
        let mut all = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Value::Array(all)),
                first => all.push(self.value(first, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, String> {
        let mut all = Map::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => return Ok(Value::Object(all)),
                Event::Scalar(key, _, 0, None) => key,
                _ => return Err(self.wrong("a key that is no text")),
            };
            let first = self.next()?;
            let value = self.value(first, depth + 1)?;
            if all.insert(key, value).is_some() {
                return Err(self.wrong("a key that was there before"));
            }
        }
    }
}

fn scalar(text: String, style: TScalarStyle) -> Value {
    let is_null = style == TScalarStyle::Plain && matches!(&*text, "" | "~" | "null");
    if is_null {
        return Value::Null;
    }
    Value::String(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_programs_write_is_read() {
        let text = "---\n# a comment\napiVersion: v1\nclusters:\n- cluster:\n    server: \
                    https://127.0.0.1:6443 # here\n    x-data: aGVsbG8=\n  name: \"kind\\u0021\"\n\
                    - name: 'it''s'\n\npreferences: {}\nempty:\nusers:\n  - name: u\n    user:\n      \
                    args: [\"a\", \"b\"]\n      items:\n      - one\n      -   two\n      pem: |\n        \
                    BEGIN\n\n        END\n      \"quoted\": true\n";
        let read = parse(text).expect("YAML");
        assert_eq!(
            read,
            json!({
                "apiVersion": "v1",
                "clusters": [
                    {"cluster": {"server": "https://127.0.0.1:6443", "x-data": "aGVsbG8="},
                     "name": "kind!"},
                    {"name": "it's"},
                ],
                "preferences": {},
                "empty": null,
                "users": [{"name": "u", "user": {
                    "args": ["a", "b"], "items": ["one", "two"], "pem": "BEGIN\n\nEND\n",
                    "quoted": "true",
                }}],
            })
        );
        assert_eq!(parse(&read.to_string()), Ok(read));
        assert_eq!(parse("# nothing\n"), Ok(Value::Null));
        let longer = "a: y\n  z\nb: 0123\nc: >-\n  yes\n  no\nd: {e: [f]}\n";
        let longer = parse(longer).expect("YAML");
        let told = json!({"a": "y z", "b": "0123", "c": "yes no", "d": {"e": ["f"]}});
        assert_eq!(longer, told);
    }

    #[test]
    fn what_programs_do_not_write_is_refused() {
        let deep = (0..40).fold(String::new(), |text, level| {
            text + &" ".repeat(level) + "a:\n"
        });
        for wrong in [
            "a: &x y",
            "a: *x",
            "a: !!str y",
            "a: [y",
            "a: \"y",
            "a: 'y",
            "a: 'y' z",
            "a: b\n---\nc: d",
            "a: 1\na: 2",
            " a: b\nc: d",
            &deep,
        ] {
            let refused = parse(wrong);
            assert!(
                refused.as_ref().is_err_and(|it| !it.is_empty()),
                "{wrong:?}: {refused:?}"
            );
        }
    }
}
