//! Which object holds which key.
//!
//! An object's name is the store's prefix and, behind a slash, the name of the key
//! (`store/names.rs`). No name has an empty segment, a `..` or a further slash, so
//! that servers which keep objects as files take it.

use object_store::path::Path;

use crate::store::Key;
use crate::store::names;
pub(super) use crate::store::names::{Named, is_hashed};

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
        self.at(&names::name(key))
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
        format!("{}{}", self.0, names::beginning(prefix))
    }

    /// What an object is.
    pub(super) fn named(&self, object: &Path) -> Named {
        let local = object.as_ref().strip_prefix(self.0.as_str());
        local.map_or(Named::Foreign, names::named)
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
