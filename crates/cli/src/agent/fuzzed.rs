//! What an agent reads that others have written (`crate::fuzzed`).

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::book::Status;
use super::control::{Answer, Request};
use super::spec::{CONFIG_MAX, File, INSTANCES_MAX, Process};
use super::wire::{News, Order};
use crate::config;
use crate::fuzzed::is_short;

/// `bytes` as a file of workloads, as a workload as it lies in the store, as
/// what a node says of itself in a heartbeat, and as a line between agent,
/// steward and command.
pub(crate) fn workloads(bytes: &[u8]) {
    same::<Process>(bytes);
    same::<Status>(bytes);
    same::<Order>(bytes);
    same::<News>(bytes);
    same::<Request>(bytes);
    same::<Answer>(bytes);
    // What is of another version says nothing.
    let _ = Status::parse(bytes);
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let file: File = match config::parse(text) {
        Ok(file) => file,
        Err(said) => return is_short(&said),
    };
    for workload in file.workload {
        if workload.deployment().is_ok() {
            assert!((1..=INSTANCES_MAX).contains(&workload.instances));
            let config = workload.config.map(|it| it.to_string());
            assert!(config.is_none_or(|it| it.len() <= CONFIG_MAX));
        }
    }
}

/// What can be read and is written again, reads and is written the same.
fn same<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(bytes) else {
        return;
    };
    let written = serde_json::to_vec(&value).expect("JSON");
    let again = serde_json::from_slice::<T>(&written).expect("what was written can be read");
    // Numbers with a point may lose their last digit once.
    if !written.contains(&b'.') {
        let again = serde_json::to_vec(&again).expect("JSON");
        assert_eq!(again, written);
    }
}
