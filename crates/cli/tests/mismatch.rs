//! Servers that find something else than their flags say, and say so.

mod common;

use std::process::Command;

use common::TENURE;
use common::servers::{Heard, free, led};

#[test]
fn peers_that_a_cluster_does_not_have_are_warned_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data").display().to_string();
    let [one, two, listen] = free::<3>();
    let serve = |peers: &str| {
        let mut serve = Command::new(TENURE);
        serve.args(["serve", "--id", "1", "--data", &data, "--peers", peers]);
        serve.args(["--listen", &listen]);
        Heard::start(serve)
    };
    let url = format!("tenure://{listen}");
    let alone = serve(&format!("1={one}"));
    led(&url);
    assert_eq!(alone.count(&["--peers"]), 0);
    drop(alone);

    // As if flags could make it grow.
    let more = serve(&format!("1={one},2={two}"));
    led(&url);
    let wanted = [
        "found that server 2 is none",
        &data,
        "is of server 1",
        "tenure member add 2 --storage",
        "tenure member promote 2",
    ];
    more.says(1, &wanted);
    assert_eq!(more.count(&["--peers"]), 1);
}
