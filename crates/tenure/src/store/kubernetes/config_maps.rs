//! Registers that are no elections: one ConfigMap each, which is ours alone.
//!
//! The value is `binaryData.value`. What a person has written as text (`data.value`)
//! is read as its bytes.
//!
//! The server takes a write that changes nothing for none, and gives no new version.
//! So each one changes an annotation: the version that it replaces.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::names;
use super::object::{self, State};
use crate::error::StoreError;
use crate::store::{Key, Register};

/// The annotation with the version that was replaced.
const AFTER: &str = "tenure/after";
const VALUE: &str = "value";

/// The ConfigMap that holds this value.
pub(super) fn encode(key: &Key, namespace: &str, value: &[u8], replaced: Option<&State>) -> Value {
    let mut map = object::empty(key, namespace, replaced);
    let after = replaced.map_or(0, |state| state.number);
    object::annotate(&mut map, AFTER, Some(after.to_string()));
    if let Some(metadata) = map.get_mut("metadata")
        && let Some(labels) = object::part(metadata, "labels")
    {
        let all = names::labels(key).into_iter();
        labels.extend(all.map(|(name, value)| (name, value.into())));
    }
    if let Some(map) = map.as_object_mut() {
        map.insert(
            "binaryData".into(),
            json!({ VALUE: STANDARD.encode(value) }),
        );
    }
    map
}

/// The register that a ConfigMap holds.
pub(super) fn decode(map: &Value) -> Result<Register, StoreError> {
    let held = |part: &str| map.get(part)?.get(VALUE)?.as_str();
    let value = match held("binaryData") {
        Some(text) => STANDARD.decode(text).map_err(StoreError::broken)?,
        None => held("data").unwrap_or_default().as_bytes().to_vec(),
    };
    Ok(Register {
        value: value.into(),
        version: object::state(map)?.version(),
        stamp: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_and_no_two_writes_are_equal() {
        let key = Key::new("groups/a/b").expect("a key");
        let states = [1, 2].map(|number| State {
            number,
            uid: "u".into(),
        });
        let maps = [None, Some(&states[0]), Some(&states[1])];
        let maps = maps.map(|state| encode(&key, "n", b"\0\xffx", state));
        let after: Vec<_> = maps
            .iter()
            .map(|map| object::annotation(map, AFTER))
            .collect();
        assert_eq!(after, [Some("0"), Some("1"), Some("2")]);
        let read = decode(&maps[2]).expect("a register");
        assert_eq!(
            (&*read.value, read.version),
            (&b"\0\xffx"[..], states[1].version())
        );
        let mut by_hand = maps[2].clone();
        by_hand["binaryData"] = Value::Null;
        by_hand["data"] = json!({ "value": "text" });
        assert_eq!(&*decode(&by_hand).expect("a register").value, b"text");
        by_hand["data"] = Value::Null;
        assert_eq!(&*decode(&by_hand).expect("a register").value, b"");
        by_hand["binaryData"] = json!({ "value": "!" });
        assert!(decode(&by_hand).is_err());
    }
}
