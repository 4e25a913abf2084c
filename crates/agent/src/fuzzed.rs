//! What an agent reads that others have written, as fuzz targets that take any
//! bytes. What `tenure_server::fuzzed` says of its targets holds for these too.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::control::{Answer, RequestEnvelope};
use super::messages::{ShimOrder, ShimReport};
use super::node_status::NodeStatus;
use super::spec::{CONFIG_MAX, INSTANCES_MAX, Process};
use super::workload_file::WorkloadFile;

/// A target: its name, which is also that of its corpus, and what takes the
/// bytes.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of agents.
pub const TARGETS: &[Target] = &[("workloads", workloads)];

/// The longest that is said of a wrong file, in bytes.
const SAID_MAX: usize = 2_000;

/// What is said of a file that cannot be read goes to logs and terminals.
fn assert_short(said: &str) {
    assert!(said.len() <= SAID_MAX, "{} bytes: {said}", said.len());
    assert!(!said.contains(char::is_control), "{said:?}");
}

/// `bytes` as a file of workloads, as a workload as it lies in the store, as
/// what a node says of itself in a heartbeat, and as a line between agent,
/// shim and command.
fn workloads(bytes: &[u8]) {
    assert_round_trip::<Process>(bytes);
    assert_round_trip::<NodeStatus>(bytes);
    assert_round_trip::<ShimOrder>(bytes);
    assert_round_trip::<ShimReport>(bytes);
    assert_round_trip::<RequestEnvelope>(bytes);
    assert_round_trip::<Answer>(bytes);
    // What is of another version says nothing.
    let _ = NodeStatus::parse(bytes);
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let file = match WorkloadFile::parse(text) {
        Ok(file) => file,
        Err(said) => return assert_short(&said),
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
fn assert_round_trip<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
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

#[cfg(test)]
#[path = "../../server/src/fuzzed/replay.rs"]
#[expect(dead_code, reason = "the server's tests use the rest")]
mod replay;

#[cfg(test)]
mod tests {
    use super::{TARGETS, replay};

    #[test]
    fn workloads() {
        replay::replay(TARGETS[0]);
    }
}
