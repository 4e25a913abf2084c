//! A place of its own for a test: namespaces of network, mounts and
//! processes, where this machine allows them.
//!
//! A test calls [`within`] with its own name. The test runs itself again under
//! `unshare`, as the first process of its own namespace of processes: what it
//! starts dies with it, however it ends, and what it does to networks and
//! mounts nobody else sees. Where that is not allowed it says so loudly and
//! goes on without: partitions are then made by the proxy, and what needs a
//! small disk or another clock is left out, by name.

use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Set within a room.
const INSIDE: &str = "TENURE_FAULTS_INSIDE";
/// Set by people who want to see what happens without rooms.
const PLAIN: &str = "TENURE_FAULTS_PLAIN";

const UNSHARE: [&str; 6] = [
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount",
    "--mount-proc",
];

/// Everything that a room is used for, tried once.
const PROBE: &str = "\
    ip link set lo up && ip link add b0 type bridge && ip link add v0 type veth peer name v1 && \
    nft add table inet probe && mount -t tmpfs -o size=1m probe /mnt";

/// What a test may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// What it likes: nobody else is here.
    Own,
    /// No more than anybody.
    Shared,
}

/// One test at a time: each of them fills the machine.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `body` in a room of its own if that can be made. `test` is the name
/// of the test that calls this, with its module.
pub(crate) fn within(test: &str, body: impl AsyncFnOnce(Room)) {
    if std::env::var_os(INSIDE).is_some() {
        return run(body(Room::Own));
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(why) = possible() {
        eprintln!(
            "\n*** {test}: NO NAMESPACES HERE, goes on with less.\n*** expected leave to unshare \
             networks, mounts and processes, and nft: {why}\n"
        );
        return run(body(Room::Shared));
    }
    let own = std::env::current_exe().expect("this program");
    let status = Command::new("unshare")
        .args(UNSHARE)
        .arg(own)
        .args([test, "--exact", "--nocapture", "--test-threads", "1"])
        .env(INSIDE, "1")
        .status()
        .expect("unshare runs");
    assert!(status.success(), "{test} failed in its room, see above");
}

fn run(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(body);
}

/// Whether there can be rooms, and if not, why.
fn possible() -> &'static Result<(), String> {
    static POSSIBLE: OnceLock<Result<(), String>> = OnceLock::new();
    POSSIBLE.get_or_init(|| {
        if std::env::var_os(PLAIN).is_some() {
            return Err(format!("${PLAIN} is set"));
        }
        let probe = Command::new("timeout")
            .args(["20", "unshare"])
            .args(UNSHARE)
            .args(["sh", "-c", PROBE])
            .output();
        match probe {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
}

/// Runs a command of the shell that must succeed.
pub(crate) fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output();
    let output = output.expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The same for one that may fail.
pub(crate) fn try_sh(script: &str) -> Option<String> {
    let output = Command::new("sh").args(["-ec", script]).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(said)
}

/// Whether a command of the shell succeeds.
pub(crate) fn can(script: &str) -> bool {
    try_sh(script).is_some()
}
