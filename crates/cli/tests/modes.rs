//! What a server and a backup write is for their owner alone.

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use common::TENURE;
use common::servers::{Cluster, Heard, ready, tenure};

fn mode(path: &Path) -> u32 {
    let found = std::fs::metadata(path).expect("it is there");
    found.permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    let wanted = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, wanted).expect("it is ours");
}

#[test]
fn data_and_backups_are_for_their_owner_alone() {
    let mut cluster = Cluster::start();
    for id in 1..=3 {
        let data = cluster.directory.path().join(id.to_string());
        assert_eq!(mode(&data), 0o700, "{data:?}");
        let files: Vec<_> = std::fs::read_dir(&data).expect("its files").collect();
        assert!(files.len() > 3, "{files:?}");
        for file in files {
            let path = file.expect("a file").path();
            assert_eq!(mode(&path), 0o600, "{path:?}");
        }
    }
    let backup = cluster.directory.path().join("backup");
    let out = backup.to_str().expect("a path");
    let made = tenure(&["backup", out, "--store", &cluster.url()]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(mode(&backup), 0o600);

    // What others may read already goes on, and is warned of.
    cluster.kill(1);
    let data = cluster.directory.path().join("1");
    set_mode(&data, 0o755);
    let server = Heard::start(cluster.loud(TENURE, 1));
    server.says(
        1,
        &["WARN", "expected a directory that only its owner", "0755"],
    );
    ready(&cluster.clients[0]);
    assert_eq!(mode(&data), 0o755);
}
