//! Keys as the names of objects and of files.
//!
//! A name is the key with all but letters, digits, `-`, `_` and `.` written as `=`
//! and two hexadecimal digits of each byte. No name has a slash or is `..`, so that
//! it is one segment of a path, and none has a `%`, which some proxies decode once
//! too often. A dot that begins it is written with digits as well, so a name that
//! begins with one, or with `=` and no digits, is free for other things.
//!
//! The name of a long key is the beginning of that, and a hash of the key: file
//! systems take 255 bytes in a segment. What bears such a name has to hold the key.

use sha2::{Digest as _, Sha256};

use super::Key;

/// A key that takes more is hashed.
const PLAIN_MAX: usize = 180;
/// How much of a hashed key can be read in its name, and listed by.
const HEAD: usize = 100;
/// What is between the head and the hash. A byte is never written so.
const HASHED: &str = "=-";

/// What a name stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Named {
    /// The register of this key.
    Register(Key),
    /// The register of a long key, which it holds.
    Hashed,
    /// None of ours.
    Foreign,
}

fn encode(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'.' if at > 0 => name.push('.'),
            b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => name.push(byte.into()),
            _ => name.push_str(&format!("={byte:02X}")),
        }
    }
    name
}

fn decode(name: &str) -> Option<Key> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'=' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    Key::new(std::str::from_utf8(&bytes).ok()?).ok()
}

/// The first bytes; the text is ASCII.
fn head(encoded: &str) -> &str {
    encoded.get(..HEAD).unwrap_or(encoded)
}

/// Whether what bears the name of this key has to say which key it is.
#[cfg(any(feature = "azure", feature = "gcs", feature = "s3"))]
pub(super) fn is_hashed(key: &Key) -> bool {
    encode(key.as_str()).len() > PLAIN_MAX
}

/// The name of a key.
pub(super) fn name(key: &Key) -> String {
    let mut name = encode(key.as_str());
    if name.len() > PLAIN_MAX {
        name.truncate(HEAD);
        name.push_str(HASHED);
        for byte in Sha256::digest(key.as_str().as_bytes()) {
            name.push_str(&format!("{byte:02x}"));
        }
    }
    name
}

/// What the names of all keys begin with that begin so; others may.
pub(super) fn beginning(prefix: &str) -> String {
    head(&encode(prefix)).to_owned()
}

/// What a name stands for.
pub(super) fn named(name: &str) -> Named {
    if let Some((_, hash)) = name.split_once(HASHED) {
        let is_hash = hash.len() == 64 && hash.bytes().all(|it| it.is_ascii_hexdigit());
        return if is_hash {
            Named::Hashed
        } else {
            Named::Foreign
        };
    }
    match decode(name) {
        // One key has one name.
        Some(key) if self::name(&key) == name => Named::Register(key),
        _ => Named::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).expect("a key")
    }

    #[test]
    fn names_are_plain_and_tell_the_key() {
        for (text, name) in [
            ("elections/payroll", "elections=2Fpayroll"),
            ("/", "=2F"),
            ("//x", "=2F=2Fx"),
            ("..", "=2E."),
            ("../x", "=2E.=2Fx"),
            ("web.example", "web.example"),
            ("%2F=", "=252F=3D"),
            ("ä b", "=C3=A4=20b"),
        ] {
            assert_eq!(super::name(&key(text)), name);
            assert_eq!(named(name), Named::Register(key(text)));
            for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                let beginning = beginning(&text[..end]);
                assert!(name.starts_with(&beginning), "{beginning} of {name}");
            }
        }
    }

    #[test]
    fn long_keys_are_hashed_and_stay_within_limits() {
        let mut names = std::collections::BTreeSet::new();
        for text in [
            "k".repeat(512),
            "/".repeat(512),
            "ä".repeat(256),
            "/".repeat(61),
            "k".repeat(181),
            "k".repeat(180) + "/",
        ] {
            let name = name(&key(&text));
            assert!(name.len() <= 200, "{name}");
            assert_eq!(named(&name), Named::Hashed);
            for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                assert!(name.starts_with(&beginning(&text[..end])));
            }
            assert!(names.insert(name));
        }
        assert_eq!(
            named(&name(&key(&"k".repeat(180)))),
            Named::Register(key(&"k".repeat(180)))
        );
    }

    #[test]
    fn what_others_put_there_is_no_register() {
        for name in [
            "", ".", ".hidden", "a/b", "=2f", "=61", "a%2Fb", "=probe", "=store", "=new", "=",
            "a=-b", "=FF", "=+1", "a=0A",
        ] {
            assert_eq!(named(name), Named::Foreign, "{name}");
        }
    }
}
