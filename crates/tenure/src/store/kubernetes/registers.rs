//! The register that an object holds, of either kind.

use serde_json::Value;

use super::names::Kind;
use super::{config_maps, leases};
use crate::error::StoreError;
use crate::store::{Key, Register};

pub(super) fn decode(key: &Key, object: &Value) -> Result<Register, StoreError> {
    match Kind::of(key) {
        Kind::Lease => leases::decode(key, object),
        Kind::ConfigMap => config_maps::decode(object),
    }
}
