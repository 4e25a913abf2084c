//! Which object a key is, and which objects a prefix of keys may be.
//!
//! Keys below `elections/` are Leases, all others ConfigMaps. An election whose name
//! is a legal name of an object has it, so that the Lease `NAME` of a fleet in Go is
//! the election `NAME`. Any other key has a name made of a hash, and stands whole in
//! the annotation `tenure/key`. A legal name that looks like such a hash is hashed as
//! well, so no two keys have one name.
//!
//! A ConfigMap has a label for each of its first [`LEVELS`] folders, with a hash of
//! the folder, so that a server finds what a prefix selects.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::store::Key;

/// The annotation with the whole key.
pub(super) const KEY: &str = "tenure/key";
/// The label that all ConfigMaps of ours have.
const REGISTER: &str = "tenure/register";
/// What the labels of folders begin with.
const BELOW: &str = "tenure/below-";
/// How many folders of a key have a label.
const LEVELS: usize = 4;
/// What names begin with that are hashes.
const HASHED_ELECTION: &str = "tenure.election.";
const HASHED_REGISTER: &str = "tenure.register.";

/// What kind of object a key is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    Lease,
    ConfigMap,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Lease, Self::ConfigMap];

    pub(super) fn of(key: &Key) -> Self {
        match key.as_str().starts_with(Key::ELECTIONS) {
            true => Self::Lease,
            false => Self::ConfigMap,
        }
    }

    /// Whether a key that begins so may be of this kind.
    pub(super) fn may_begin(self, prefix: &str) -> bool {
        match self {
            Self::Lease => prefix.starts_with(Key::ELECTIONS) || Key::ELECTIONS.starts_with(prefix),
            Self::ConfigMap => !prefix.starts_with(Key::ELECTIONS),
        }
    }

    /// The name of such objects in a path.
    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Lease => "leases",
            Self::ConfigMap => "configmaps",
        }
    }

    /// Their group and version, and the name of one.
    pub(super) const fn type_meta(self) -> (&'static str, &'static str) {
        match self {
            Self::Lease => ("coordination.k8s.io/v1", "Lease"),
            Self::ConfigMap => ("v1", "ConfigMap"),
        }
    }

    /// The path of all in a namespace.
    pub(super) fn path(self, namespace: &str) -> String {
        let plural = self.plural();
        match self {
            Self::Lease => format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/{plural}"),
            Self::ConfigMap => format!("/api/v1/namespaces/{namespace}/{plural}"),
        }
    }
}

/// A hash of some text, as 40 hexadecimal digits.
fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut hash = String::with_capacity(40);
    for byte in digest.iter().take(20) {
        // Writing to a string cannot fail.
        let _ = write!(hash, "{byte:02x}");
    }
    hash
}

/// Whether this is a label of a domain name (RFC 1123), as a namespace is.
pub(super) fn is_label(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| fits(*byte) || *byte == b'-')
        && ends.iter().all(|end| end.is_some_and(|byte| fits(*byte)))
}

/// Whether an object may have this name: a domain name of labels, with a length that
/// only the whole has.
fn is_legal(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let segment = |part: &str| {
        let bytes = part.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        bytes.iter().all(|byte| fits(*byte) || *byte == b'-')
            && ends.iter().all(|end| end.is_some_and(|byte| fits(*byte)))
    };
    (1..=253).contains(&name.len()) && name.split('.').all(segment)
}

/// The name of a key's object.
pub(super) fn name(key: &Key) -> String {
    let Some(election) = key.as_str().strip_prefix(Key::ELECTIONS) else {
        return HASHED_REGISTER.to_owned() + &hash(key.as_str());
    };
    if is_legal(election) && !election.starts_with(HASHED_ELECTION) {
        return election.to_owned();
    }
    HASHED_ELECTION.to_owned() + &hash(key.as_str())
}

/// The key of an object with this name and, perhaps, this annotation; `None` if it is
/// not ours.
pub(super) fn key(kind: Kind, name: &str, annotation: Option<&str>) -> Option<Key> {
    let is_plain = kind == Kind::Lease && !name.starts_with(HASHED_ELECTION);
    let key = match annotation {
        _ if is_plain => Key::new(&(Key::ELECTIONS.to_owned() + name)).ok()?,
        Some(whole) => Key::new(whole).ok()?,
        None => return None,
    };
    (Kind::of(&key) == kind && self::name(&key) == name).then_some(key)
}

/// The folders of a key, or the whole ones of a prefix: `a/` and `a/b/` of `a/b/c`.
fn folders(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.match_indices('/').map(|(at, _)| at + 1);
    ends.take(LEVELS).filter_map(|end| text.get(..end))
}

/// The labels of a key's ConfigMap.
pub(super) fn labels(key: &Key) -> Vec<(String, String)> {
    let mut labels = vec![(REGISTER.to_owned(), "yes".to_owned())];
    for (level, folder) in folders(key.as_str()).enumerate() {
        labels.push((format!("{BELOW}{}", level + 1), hash(folder)));
    }
    labels
}

/// The selector of labels that all objects of this kind have whose keys begin so. It
/// selects others as well.
pub(super) fn selector(kind: Kind, prefix: &str) -> Option<String> {
    if kind == Kind::Lease {
        return None;
    }
    let last = folders(prefix).enumerate().last();
    Some(match last {
        None => REGISTER.to_owned(),
        Some((level, folder)) => format!("{BELOW}{}={}", level + 1, hash(folder)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(text: &str) -> Key {
        Key::new(text).expect("a key")
    }

    #[test]
    fn elections_with_legal_names_have_them() {
        for legal in ["payroll", "a", "a.b-c.9", "kube-scheduler"] {
            assert_eq!(name(&key_of(&format!("elections/{legal}"))), legal);
        }
        let long = "x".repeat(254);
        let hashed = HASHED_ELECTION.to_owned() + &"0".repeat(40);
        for other in [
            "Payroll", "a/b", "a_b", "-a", "a-", "a..b", ".a", "ä", "", "a b", &long, &hashed,
        ] {
            let key = key_of(&format!("elections/{other}"));
            let named = name(&key);
            assert!(
                named.starts_with(HASHED_ELECTION) && is_legal(&named),
                "{named}"
            );
            assert_ne!(named, hashed);
            let found = self::key(Kind::Lease, &named, Some(key.as_str()));
            assert_eq!(found.as_ref(), Some(&key));
            assert_eq!(self::key(Kind::Lease, &named, None), None);
            assert_eq!(self::key(Kind::Lease, &named, Some("elections/x")), None);
        }
    }

    #[test]
    fn an_object_has_one_key() {
        let annotated = key(Kind::Lease, "payroll", Some("elections/other"));
        assert_eq!(annotated, Some(key_of("elections/payroll")));
        let whole = key_of("groups/g/nodes/1");
        let named = name(&whole);
        assert!(is_legal(&named), "{named}");
        let found = key(Kind::ConfigMap, &named, Some(whole.as_str()));
        assert_eq!(found.as_ref(), Some(&whole));
        for nobodys in [
            None,
            Some("groups/g/nodes/2"),
            Some("elections/x"),
            Some(""),
        ] {
            assert_eq!(key(Kind::ConfigMap, &named, nobodys), None);
        }
        assert_eq!(key(Kind::ConfigMap, "other", Some(whole.as_str())), None);
    }

    #[test]
    fn a_prefix_selects_the_keys_that_begin_so() {
        let keys = ["a", "a/b", "a/b/c", "a/b/c/d/e/f", "/", "ab/c", "x//y"];
        for text in keys {
            let labels = labels(&key_of(text));
            for prefix in [
                "",
                "a",
                "a/",
                "a/b",
                "a/b/",
                "a/b/c/d/e/",
                "/",
                "x//",
                "zz/",
            ] {
                let wanted = selector(Kind::ConfigMap, prefix).expect("a selector");
                let selects = match wanted.split_once('=') {
                    None => labels.iter().any(|(name, _)| *name == wanted),
                    Some((name, value)) => {
                        labels.iter().any(|(one, of)| one == name && of == value)
                    }
                };
                assert!(
                    selects || !text.starts_with(prefix),
                    "{text:?} and {prefix:?}"
                );
                if prefix == "zz/" {
                    assert!(!selects, "{text}");
                }
            }
        }
    }

    #[test]
    fn a_prefix_says_which_kinds_it_may_be() {
        for (prefix, lease, map) in [
            ("", true, true),
            ("e", true, true),
            ("elections", true, true),
            ("elections/", true, false),
            ("elections/pay", true, false),
            ("groups/", false, true),
            ("elections-", false, true),
        ] {
            assert_eq!(Kind::Lease.may_begin(prefix), lease, "{prefix:?}");
            assert_eq!(Kind::ConfigMap.may_begin(prefix), map, "{prefix:?}");
        }
    }
}
