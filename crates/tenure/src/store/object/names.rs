//! Which object holds which key.
//!
//! An object's name is the store's prefix and, behind a slash, the key with all
//! but letters, digits, `-`, `_` and `.` written as `=` and two hexadecimal digits
//! of each byte. No name has an empty segment, a `..` or a further slash, so that
//! servers which keep objects as files take it, and no `%`, which some proxies
//! decode once too often.
//!
//! The name of a long key is the beginning of that, and a hash of the key: servers
//! on file systems take 255 bytes in a segment. The key itself is in the object.

use object_store::path::Path;
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};

use crate::store::Key;

/// A key that takes more is hashed.
const PLAIN_MAX: usize = 180;
/// How much of a hashed key can be read in its name, and listed by.
const HEAD: usize = 100;
/// What is between the head and the hash. A byte is never written so.
const HASHED: &str = "=-";

/// What an object is, by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Named {
    /// The register of this key.
    Register(Key),
    /// The register of a long key, which is in the object.
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

/// The first bytes; the text is ASCII.
fn head(encoded: &str) -> &str {
    encoded.get(..HEAD).unwrap_or(encoded)
}

/// Whether the object of this key has to say which key it is.
pub(super) fn is_hashed(key: &Key) -> bool {
    encode(key.as_str()).len() > PLAIN_MAX
}

/// The name below the prefix.
fn local(key: &str) -> String {
    let mut name = encode(key);
    if name.len() > PLAIN_MAX {
        name.truncate(HEAD);
        name.push_str(HASHED);
        for byte in Sha256::digest(key.as_bytes()) {
            name.push_str(&format!("{byte:02x}"));
        }
    }
    name
}

/// Where objects are: below the prefix of the URL, which may be empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Folder(String);

impl Folder {
    pub(super) fn new(prefix: &Path) -> Self {
        Self(match prefix.as_ref() {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        })
    }

    /// The object of a key.
    pub(super) fn object(&self, key: &Key) -> Path {
        self.at(&local(key.as_str()))
    }

    /// An object that is no register's.
    pub(super) fn probe(&self) -> Path {
        self.at("=probe")
    }

    fn at(&self, local: &str) -> Path {
        // Nothing in it is to be escaped.
        Path::from(format!("{}{local}", self.0))
    }

    /// What the names of all objects begin with whose keys begin so; others may.
    pub(super) fn beginning(&self, prefix: &str) -> String {
        format!("{}{}", self.0, head(&encode(prefix)))
    }

    /// What an object is.
    pub(super) fn named(&self, object: &Path) -> Named {
        let Some(name) = object.as_ref().strip_prefix(self.0.as_str()) else {
            return Named::Foreign;
        };
        if let Some((_, hash)) = name.split_once(HASHED) {
            let is_hash = hash.len() == 64 && hash.bytes().all(|it| it.is_ascii_hexdigit());
            return if is_hash {
                Named::Hashed
            } else {
                Named::Foreign
            };
        }
        let text = name.replace('=', "%");
        let text = percent_decode_str(&text).decode_utf8();
        let key = text.ok().and_then(|text| Key::new(&text).ok());
        // One key has one name.
        match key {
            Some(key) if local(key.as_str()) == name => Named::Register(key),
            _ => Named::Foreign,
        }
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
        let folder = Folder::new(&Path::from("a/b"));
        for (text, name) in [
            ("elections/payroll", "a/b/elections=2Fpayroll"),
            ("/", "a/b/=2F"),
            ("//x", "a/b/=2F=2Fx"),
            ("..", "a/b/=2E."),
            ("../x", "a/b/=2E.=2Fx"),
            ("web.example", "a/b/web.example"),
            ("%2F=", "a/b/=252F=3D"),
            ("ä b", "a/b/=C3=A4=20b"),
        ] {
            let object = folder.object(&key(text));
            assert_eq!(object.as_ref(), name);
            assert_eq!(folder.named(&object), Named::Register(key(text)));
            for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                let beginning = folder.beginning(&text[..end]);
                assert!(name.starts_with(&beginning), "{beginning} of {name}");
            }
        }
        let root = Folder::new(&Path::from(""));
        assert_eq!(root.object(&key("a/b")).as_ref(), "a=2Fb");
    }

    #[test]
    fn long_keys_are_hashed_and_stay_within_limits() {
        let folder = Folder::new(&Path::from("p"));
        let mut names = std::collections::BTreeSet::new();
        for text in [
            "k".repeat(512),
            "/".repeat(512),
            "ä".repeat(256),
            "/".repeat(61),
            "k".repeat(181),
            "k".repeat(180) + "/",
        ] {
            let object = folder.object(&key(&text));
            assert!(is_hashed(&key(&text)), "{object}");
            assert!(object.as_ref().len() <= 255, "{object}");
            assert_eq!(folder.named(&object), Named::Hashed);
            for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                assert!(object.as_ref().starts_with(&folder.beginning(&text[..end])));
            }
            assert!(names.insert(object));
        }
        assert!(!is_hashed(&key(&"k".repeat(180))));
    }

    #[test]
    fn what_others_put_there_is_no_register() {
        let folder = Folder::new(&Path::from("p"));
        for name in [
            "p/a/b", "p/=2f", "p/=61", "p/a%2Fb", "p/=probe", "p/=", "p/a=-b", "p/=FF", "q/a", "p",
        ] {
            let object = Path::parse(name).expect("a path");
            assert_eq!(folder.named(&object), Named::Foreign, "{name}");
        }
        assert_eq!(folder.named(&folder.probe()), Named::Foreign);
    }
}
