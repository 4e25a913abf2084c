//! JSON that a server sends, bounded before it is decoded.
//!
//! A value of two bytes of text takes 32 in memory, and an object with a field more than
//! 600. So what a text would take is reckoned first, in a walk over its bytes.

use serde_json::Value;

/// What an object costs beside its fields, where a value costs 1: it has room for eleven
/// fields in any case.
const OBJECT_COST: usize = 16;

/// Decodes a text that costs so much at most.
pub(super) fn parse(text: &[u8], cost_max: usize) -> Result<Value, String> {
    if cost(text) > cost_max {
        return Err(format!(
            "{} bytes of JSON with more than {cost_max} values",
            text.len()
        ));
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// What a text costs at least that is JSON.
fn cost(text: &[u8]) -> usize {
    let mut cost = 1;
    walk(text, |_, _, byte| {
        cost += match byte {
            b'{' => OBJECT_COST,
            b'[' | b',' => 1,
            _ => 0,
        };
        true
    });
    cost
}

/// Shows each byte that has a meaning outside of strings, with its place and how deep it
/// is, for as long as more are wanted.
fn walk(text: &[u8], mut wants_more: impl FnMut(usize, usize, u8) -> bool) {
    let (mut depth, mut is_string, mut is_escaped) = (0_usize, false, false);
    for (at, byte) in text.iter().enumerate() {
        if is_string {
            is_string = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b'"' => is_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => {}
            _ => continue,
        }
        if *byte != b'"' && !wants_more(at, depth, *byte) {
            return;
        }
    }
}

/// The elements of an array one by one, so that no more than one is decoded at a time.
#[cfg(feature = "consul")]
pub(super) struct Elements<'a> {
    rest: Option<&'a [u8]>,
}

#[cfg(feature = "consul")]
impl<'a> Elements<'a> {
    /// `None` if it is no array.
    pub(super) fn of(text: &'a [u8]) -> Option<Self> {
        let inner = text.trim_ascii().strip_prefix(b"[")?.strip_suffix(b"]")?;
        let inner = inner.trim_ascii();
        let rest = (!inner.is_empty()).then_some(inner);
        Some(Self { rest })
    }
}

#[cfg(feature = "consul")]
impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest.take()?;
        let mut end = rest.len();
        walk(rest, |at, depth, byte| {
            let is_inside = depth > 0 || byte != b',';
            if !is_inside {
                end = at;
            }
            is_inside
        });
        let (element, more) = rest.split_at_checked(end)?;
        self.rest = more.strip_prefix(b",");
        Some(element)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_would_take_much_is_not_decoded() {
        let text = br#"{"a": [1, 2, {"b": "[{,\"[{,"}], "c": null}"#;
        assert_eq!(cost(text), 1 + 2 * OBJECT_COST + 1 + 3);
        assert_eq!(
            parse(text, 37).expect("it is within the bound"),
            json!({"a": [1, 2, {"b": "[{,\"[{,"}], "c": null})
        );
        let refused = parse(text, 36).expect_err("it is not");
        assert!(refused.contains("more than 36 values"), "{refused}");
        for element in ["[],", "{},", "0,"] {
            let text = format!("[{}0]", element.repeat(1_000_000));
            assert!(parse(text.as_bytes(), 100_000).is_err(), "{element}");
        }
        assert!(parse(b"[1", 9).is_err());
    }

    #[cfg(feature = "consul")]
    #[test]
    fn elements_come_one_by_one_as_they_are_decoded() {
        let text = br#" [ {"a": "],\\", "b": [1, 2]} , "x,\"y" ,[],7 ] "#;
        let elements: Vec<Value> = Elements::of(text)
            .expect("an array")
            .map(|element| parse(element, 99).expect("a value"))
            .collect();
        let whole: Value = serde_json::from_slice(text).expect("JSON");
        assert_eq!(Some(&elements), whole.as_array());
        for (text, elements) in [
            (&b"[]"[..], Some(0)),
            (b" [ ] ", Some(0)),
            (b"[1]", Some(1)),
            (b"{}", None),
            (b"", None),
            (b"[", None),
        ] {
            assert_eq!(Elements::of(text).map(Iterator::count), elements);
        }
        // What is no JSON is none element by element.
        for wrong in ["[1,]", "[,1]", "[1 2]", "[[1,2]", "[1]]"] {
            let all = Elements::of(wrong.as_bytes()).expect("brackets");
            assert!(
                all.map(|element| parse(element, 99)).any(|it| it.is_err()),
                "{wrong}"
            );
        }
    }
}
