//! The register that an object holds, of either kind.

use serde_json::Value;

use super::names::Kind;
use super::{config_maps, leases, object};
use crate::error::StoreError;
use crate::store::{Key, Register};

/// As lists and watches show it.
pub(super) fn decode(key: &Key, object: &Value) -> Result<Register, StoreError> {
    match Kind::of(key) {
        Kind::Lease => leases::decode(key, object),
        Kind::ConfigMap => config_maps::decode(object),
    }
}

/// The register of an object in a list, if its key is meant.
pub(super) fn keep(
    kind: Kind,
    object: &Value,
    is_meant: impl Fn(&Key) -> bool,
) -> Result<Option<(Key, Register)>, StoreError> {
    match object::key(kind, object).filter(is_meant) {
        None => Ok(None),
        Some(key) => decode(&key, object).map(|register| Some((key, register))),
    }
}

/// As it is read by itself: an error says what is wrong with it.
pub(super) fn decode_one(key: &Key, object: &Value) -> Result<Register, StoreError> {
    match Kind::of(key) {
        Kind::Lease => leases::decode_one(key, object),
        Kind::ConfigMap => config_maps::decode(object),
    }
}
