//! Keys as paths, for systems whose names are made of segments: subjects of NATS,
//! keys of Consul.
//!
//! A key is cut at its slashes. In each segment all but letters, digits, `-` and `_`
//! stands as `=` and two hexadecimal digits for each byte, and a segment that is
//! empty as `=` alone. So a name has no empty segment, no dots that a server would
//! resolve (`..`) and nothing that is to be escaped in a URL; two keys never have one
//! name; and what a key begins with can be told from its name.

use super::Key;

/// What stands for a segment that is empty.
const EMPTY: &str = "=";

fn push_segment(name: &mut String, segment: &str) {
    for byte in segment.bytes() {
        match byte {
            b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => name.push(byte.into()),
            _ => name.push_str(&format!("={byte:02X}")),
        }
    }
}

/// The name of a key, with this between its segments.
pub(super) fn name(key: &Key, separator: char) -> String {
    let mut name = String::with_capacity(key.as_str().len());
    for (at, segment) in key.as_str().split('/').enumerate() {
        if at > 0 {
            name.push(separator);
        }
        if segment.is_empty() {
            name.push_str(EMPTY);
        }
        push_segment(&mut name, segment);
    }
    name
}

/// The key of a name, if it is one that a key has.
pub(super) fn key(name: &str, separator: char) -> Option<Key> {
    let mut bytes = Vec::with_capacity(name.len());
    for (at, segment) in name.split(separator).enumerate() {
        if at > 0 {
            bytes.push(b'/');
        }
        if segment == EMPTY {
            continue;
        }
        let mut rest = segment.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'=' {
                bytes.push(byte);
                continue;
            }
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        }
    }
    let key = Key::new(std::str::from_utf8(&bytes).ok()?).ok()?;
    // One key has one name.
    (self::name(&key, separator) == name).then_some(key)
}

/// What the names of all keys begin with that begin so, and of no others.
#[cfg(feature = "consul")]
pub(super) fn beginning(prefix: &str, separator: char) -> String {
    let (above, last) = prefix
        .rsplit_once('/')
        .map_or((None, prefix), |(above, last)| (Some(above), last));
    let mut name = above.map_or_else(String::new, |above| folder_name(above, separator));
    push_segment(&mut name, last);
    name
}

/// The whole segments of a prefix, with the separator after each, if it has any.
#[cfg(feature = "nats")]
pub(super) fn folder(prefix: &str, separator: char) -> Option<String> {
    let (above, _) = prefix.rsplit_once('/')?;
    Some(folder_name(above, separator))
}

fn folder_name(above: &str, separator: char) -> String {
    let mut name = String::with_capacity(above.len());
    for segment in above.split('/') {
        if segment.is_empty() {
            name.push_str(EMPTY);
        }
        push_segment(&mut name, segment);
        name.push(separator);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 12] = [
        "elections/payroll",
        "a",
        "/",
        "a/",
        "/a",
        "a//b",
        "../x",
        "a.b",
        "a=b/=",
        "%_'\\\" *>",
        "ä/🗝",
        "a/b/c/",
    ];

    #[test]
    fn a_key_has_one_name_which_is_no_others() {
        for separator in ['/', '.'] {
            for text in KEYS {
                let whole = Key::new(text).expect("a key");
                let named = name(&whole, separator);
                assert_eq!(key(&named, separator).as_ref(), Some(&whole), "{named}");
                let mut segments = named.split(separator);
                assert!(segments.all(|it| !it.is_empty()), "{named}");
                let fits = |it: char| it.is_ascii_alphanumeric() || "-_=".contains(it);
                assert!(
                    named.chars().all(|it| fits(it) || it == separator),
                    "{named}"
                );
            }
        }
        let plain = Key::new("elections/payroll").expect("a key");
        assert_eq!(name(&plain, '.'), "elections.payroll");
    }

    #[test]
    fn names_that_no_key_has_are_nobodys() {
        for text in [
            "", ".", "a..b", "a.", "=6", "=61", "=zz", "=+1", "a=0A", "=ff", "x y",
        ] {
            assert_eq!(key(text, '.'), None, "{text}");
        }
    }

    #[cfg(feature = "consul")]
    #[test]
    fn names_begin_as_their_keys_do() {
        for text in KEYS {
            let whole = Key::new(text).expect("a key");
            let named = name(&whole, '/');
            for prefix in [
                "",
                "a",
                "a/",
                "/",
                "a/b",
                "a//",
                "ä",
                "elections/",
                "..",
                "a.",
            ] {
                let begins = named.starts_with(&beginning(prefix, '/'));
                assert_eq!(begins, text.starts_with(prefix), "{text:?} and {prefix:?}");
            }
        }
    }

    #[cfg(feature = "nats")]
    #[test]
    fn a_folder_has_whole_segments() {
        assert_eq!(folder("elections/pay", '.').as_deref(), Some("elections."));
        assert_eq!(folder("a//b", '.').as_deref(), Some("a.=."));
        assert_eq!(folder("/", '.').as_deref(), Some("=."));
        assert_eq!(folder("pay", '.'), None);
    }
}
