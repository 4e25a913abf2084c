//! As much of YAML as kubeconfigs are written in: mappings and lists by indentation,
//! plain and quoted text on one line, and blocks of text.
//!
//! All text is text, a number or a truth too. What is beyond that (anchors, tags, text
//! that goes on in the next line, documents after the first) is refused: it would be
//! guessed at. JSON is YAML, and read as such.

use serde_json::{Map, Value};

/// How deep mappings and lists stand in each other.
const DEPTH_MAX: usize = 32;

/// A line that says something.
#[derive(Clone, Debug)]
struct Line {
    number: usize,
    indent: usize,
    text: String,
}

/// Reads a document; or in which line what was found that cannot be read.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let bare = line.trim_start_matches(' ');
        let line = Line {
            number: at + 1,
            indent: line.len() - bare.len(),
            text: bare.trim_end().to_owned(),
        };
        if line.text.starts_with('\t') {
            return Err(line.wrong("a tab"));
        }
        lines.push(line);
    }
    let mut rest = Lines { lines, next: 0 };
    if rest.peek().is_some_and(|line| line.text == "---") {
        rest.next += 1;
    }
    let Some(first) = rest.peek().cloned() else {
        return Ok(Value::Null);
    };
    let document = rest.block(first.indent, 0)?;
    match rest.peek() {
        Some(line) => Err(line.wrong("more than one document, or another indentation")),
        None => Ok(document),
    }
}

impl Line {
    fn wrong(&self, found: &str) -> String {
        // The line itself may be a secret.
        format!("line {}: {found}", self.number)
    }

    fn is_item(&self) -> bool {
        self.text == "-" || self.text.starts_with("- ")
    }

    /// A key and what stands behind it.
    fn entry(&self) -> Option<(String, &str)> {
        if let Some(quote) = self.text.chars().next().filter(|it| "'\"".contains(*it)) {
            let end = self.text.get(1..)?.find(quote)? + 1;
            let rest = self.text.get(end + 1..)?.strip_prefix(':')?;
            return Some((self.text.get(1..end)?.to_owned(), rest.trim_start()));
        }
        if let Some(key) = self.text.strip_suffix(':')
            && !key.contains(": ")
        {
            return Some((key.to_owned(), ""));
        }
        let (key, rest) = self.text.split_once(": ")?;
        Some((key.to_owned(), rest.trim_start()))
    }
}

struct Lines {
    lines: Vec<Line>,
    next: usize,
}

impl Lines {
    /// The next line that says something.
    fn peek(&mut self) -> Option<&Line> {
        let says = |line: &Line| !line.text.is_empty() && !line.text.starts_with('#');
        while !says(self.lines.get(self.next)?) {
            self.next += 1;
        }
        self.lines.get(self.next)
    }

    /// A mapping or a list of this indentation.
    fn block(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        let Some(first) = self.peek().cloned() else {
            return Ok(Value::Null);
        };
        if depth > DEPTH_MAX {
            return Err(first.wrong("too many levels"));
        }
        if first.is_item() {
            return self.list(indent, depth);
        }
        let mut all = Map::new();
        while let Some(line) = self.peek().cloned() {
            if line.indent != indent || line.is_item() {
                break;
            }
            let Some((key, rest)) = line.entry() else {
                return Err(line.wrong("no key with a colon"));
            };
            self.next += 1;
            let value = self.value(&line, rest, depth)?;
            if all.insert(key, value).is_some() {
                return Err(line.wrong("a key that was there before"));
            }
        }
        Ok(Value::Object(all))
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        let mut all = Vec::new();
        while let Some(line) = self.peek().cloned() {
            if line.indent != indent || !line.is_item() {
                break;
            }
            let rest = line.text.get(1..).unwrap_or_default();
            let text = rest.trim_start();
            let inner = Line {
                indent: indent + 1 + rest.len() - text.len(),
                text: text.to_owned(),
                ..line.clone()
            };
            let is_block = inner.is_item() || inner.entry().is_some();
            if is_block && !text.is_empty() {
                // What stands behind the dash is a line of its own, deeper in.
                let within = inner.indent;
                if let Some(line) = self.lines.get_mut(self.next) {
                    *line = inner;
                }
                all.push(self.block(within, depth + 1)?);
            } else {
                self.next += 1;
                all.push(self.value(&line, text, depth)?);
            }
        }
        Ok(Value::Array(all))
    }

    /// What stands behind a key or a dash of this line.
    fn value(&mut self, line: &Line, text: &str, depth: usize) -> Result<Value, String> {
        if text.starts_with(['|', '>']) {
            return Ok(Value::String(self.text_block(line.indent)));
        }
        if !text.is_empty() && !text.starts_with('#') {
            return scalar(text).ok_or_else(|| line.wrong("text that is not read"));
        }
        let Some(next) = self.peek().cloned() else {
            return Ok(Value::Null);
        };
        // The items of a list may stand right below their key.
        let is_below = next.indent == line.indent && next.is_item() && !line.is_item();
        if next.indent > line.indent || is_below {
            return self.block(next.indent, depth + 1);
        }
        Ok(Value::Null)
    }

    /// The lines that stand deeper in, as they are.
    fn text_block(&mut self, indent: usize) -> String {
        let mut text = String::new();
        while let Some(line) = self.lines.get(self.next) {
            if !line.text.is_empty() && line.indent <= indent {
                break;
            }
            text.push_str(&line.text);
            text.push('\n');
            self.next += 1;
        }
        text
    }
}

/// Text on one line, or an empty collection.
fn scalar(text: &str) -> Option<Value> {
    let is_comment = |rest: &str| rest.is_empty() || rest.starts_with('#');
    if text.starts_with(['"', '{', '[']) {
        // As JSON has it, which is what programs write.
        let mut all = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let value = all.next()?.ok()?;
        let rest = text.get(all.byte_offset()..)?;
        return is_comment(rest.trim_start()).then_some(value);
    }
    if let Some(quoted) = text.strip_prefix('\'') {
        let whole = quoted.replace("''", "\0");
        let (value, rest) = whole.split_once('\'')?;
        let value = value.replace('\0', "'");
        return is_comment(rest.trim_start()).then_some(value.into());
    }
    if text.starts_with(['&', '*', '!', '%', '@', '`', '?']) {
        return None;
    }
    let plain = text.split_once(" #").map_or(text, |(plain, _)| plain);
    match plain.trim_end() {
        "~" | "null" => Some(Value::Null),
        plain => Some(plain.into()),
    }
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
    }

    #[test]
    fn what_would_be_guessed_at_is_refused() {
        let deep = (0..40).fold(String::new(), |text, level| {
            text + &" ".repeat(level) + "a:\n"
        });
        for wrong in [
            "a: &x y",
            "a: *x",
            "a: !!str y",
            "a: y\n  z",
            "a: [y",
            "a: \"y",
            "a: 'y",
            "a: 'y' z",
            "a: b\n---\nc: d",
            "a\n",
            "\ta: b",
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
