//! What all objects have in common: a name, a version, annotations.
//!
//! A register's version is the object's `resourceVersion` and its `uid`. The former
//! counts the writes of the whole cluster (it is etcd's revision), so it is never used
//! twice, and since Kubernetes 1.35 the documentation says as well that it is a number
//! that grows; a cluster whose versions are no numbers is refused. The `uid` differs
//! for each object that is made, and is sent with each write, for two reasons. **A PUT to a
//! Lease that does not exist creates it if the PUT has no `uid`, whatever version it
//! names.** And etcd gives numbers out again after a restore: a deleted object and its
//! successor may then have the same `resourceVersion`, but not the same `uid`.

use serde_json::{Map, Value, json};
use tenure_core::ids::Version;

use super::names::{KEY, Kind};
use crate::error::StoreError;
use crate::store::Key;

/// The state of an object that a write is to replace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) number: u64,
    pub(super) uid: String,
}

impl State {
    /// The state that a version stands for; `None` if the server cannot have given it.
    pub(super) fn of(version: &Version) -> Option<Self> {
        let text = std::str::from_utf8(version.as_bytes()).ok()?;
        let (number, uid) = text.split_once('.')?;
        let number = number.parse().ok().filter(|number| *number > 0)?;
        let uid = (!uid.is_empty()).then(|| uid.to_owned())?;
        Some(Self { number, uid })
    }

    pub(super) fn version(&self) -> Version {
        Version::from_bytes(format!("{:020}.{}", self.number, self.uid).as_bytes())
    }
}

/// The version that stands for a time rather than for an object: it is above all
/// versions of before.
pub(super) fn version_at(number: u64) -> Version {
    Version::from_bytes(format!("{number:020}").as_bytes())
}

/// The version in the metadata of an object or of a list.
pub(super) fn number(object: &Value) -> Result<u64, StoreError> {
    let said = metadata(object, "resourceVersion").unwrap_or_default();
    said.parse().map_err(|_| {
        StoreError::broken(format!(
            "expected a resourceVersion that is a number, as Kubernetes gives, found {said:?}: is \
             this an API server of Kubernetes?"
        ))
    })
}

/// The state of an object.
pub(super) fn state(object: &Value) -> Result<State, StoreError> {
    let number = number(object)?;
    let uid = metadata(object, "uid").unwrap_or_default().to_owned();
    if uid.is_empty() || number == 0 {
        return Err(StoreError::broken(
            "expected an object with a uid and a resourceVersion, found one without",
        ));
    }
    Ok(State { number, uid })
}

/// A text in an object's metadata.
pub(super) fn metadata<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get("metadata")?.get(name)?.as_str()
}

pub(super) fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object
        .get("metadata")?
        .get("annotations")?
        .get(name)?
        .as_str()
}

/// The key of an object, if it is ours.
pub(super) fn key(kind: Kind, object: &Value) -> Option<Key> {
    let name = metadata(object, "name")?;
    super::names::key(kind, name, annotation(object, KEY))
}

/// An object of this key that holds nothing yet. It is made anew, or replaces what has
/// this state.
pub(super) fn empty(key: &Key, namespace: &str, replaced: Option<&State>) -> Value {
    let kind = Kind::of(key);
    let (api_version, name) = kind.type_meta();
    let mut metadata = json!({
        "name": super::names::name(key),
        "namespace": namespace,
        "annotations": { KEY: key.as_str() },
    });
    if let (Some(state), Some(metadata)) = (replaced, metadata.as_object_mut()) {
        metadata.insert("uid".into(), state.uid.as_str().into());
        metadata.insert("resourceVersion".into(), state.number.to_string().into());
    }
    json!({ "apiVersion": api_version, "kind": name, "metadata": metadata })
}

/// A part of an object that is made if it is missing.
pub(super) fn part<'a>(object: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    let object = object.as_object_mut()?;
    let part = object.entry(name).or_insert_with(|| json!({}));
    if !part.is_object() {
        *part = json!({});
    }
    part.as_object_mut()
}

/// Sets an annotation, or takes it away.
pub(super) fn annotate(object: &mut Value, name: &str, text: Option<String>) {
    let metadata = object.get_mut("metadata");
    let Some(all) = metadata.and_then(|metadata| part(metadata, "annotations")) else {
        return;
    };
    match text {
        Some(text) => drop(all.insert(name.to_owned(), text.into())),
        None => drop(all.remove(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_grow_with_their_numbers() {
        let at = |number, uid: &str| State {
            number,
            uid: uid.into(),
        };
        let versions = [at(9, "zz"), at(10, "aa"), at(u64::MAX, "0")];
        for state in &versions {
            assert_eq!(State::of(&state.version()).as_ref(), Some(state));
        }
        assert!(versions.is_sorted_by(|one, next| one.version() < next.version()));
        assert!(at(9, "zz").version() < version_at(10));
        assert!(version_at(10) < at(10, "a").version());
        for stranger in [&b""[..], b"7", b"7.", b"x.y", b"0.a", b"\xff.a"] {
            assert_eq!(State::of(&Version::from_bytes(stranger)), None);
        }
    }

    #[test]
    fn what_replaces_an_object_names_it() {
        let key = Key::new("elections/payroll").expect("a key");
        let state = State {
            number: 7,
            uid: "u".into(),
        };
        let object = empty(&key, "n", Some(&state));
        assert_eq!(self::state(&object).expect("a state"), state);
        assert_eq!(self::key(Kind::Lease, &object), Some(key.clone()));
        assert_eq!(metadata(&empty(&key, "n", None), "uid"), None);
        for wrong in [
            json!({}),
            json!({"metadata": {"resourceVersion": "x", "uid": "u"}}),
        ] {
            let refused = self::state(&wrong);
            assert!(matches!(refused, Err(StoreError::Broken(_))), "{wrong}");
        }
    }
}
