//! What servers, backups and SQLite stores write is for their owner alone.

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

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

/// Under this umask, as the user of a service may have it.
fn once(url: &str, umask: &str) -> Output {
    let script = format!("umask {umask}; exec \"$@\"");
    Command::new("sh")
        .args(["-c", &script, "sh", TENURE, "run", "x", "--once"])
        .args(["--store", url, "--", "true"])
        .output()
        .expect("tenure runs")
}

#[test]
fn a_sqlite_file_is_for_whom_its_url_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let cases = [
        ("a", "", "000", 0o600),
        ("b", "?mode=0600", "022", 0o600),
        ("c", "?mode=0640", "077", 0o640),
        ("d", "?mode=0660", "077", 0o660),
    ];
    for (name, option, umask, wanted) in cases {
        let url = format!("sqlite://{}{option}", path(name).display());
        let ran = once(&url, umask);
        assert!(ran.status.success(), "{ran:?}");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(!said.contains("WARN"), "{said}");
        for file in [name.to_owned(), format!("{name}-journal")] {
            assert_eq!(mode(&path(&file)), wanted, "{file}");
        }
    }
    let url = format!("sqlite://{}", path("a").display());
    set_mode(&path("a"), 0o644);
    let warned = once(&url, "022");
    assert!(warned.status.success(), "{warned:?}");
    let said = String::from_utf8_lossy(&warned.stderr).into_owned();
    assert!(said.contains("expected mode 0600, found 0644"), "{said}");
    assert_eq!(mode(&path("a")), 0o644);
    let wrong = once(&format!("{url}?mode=0666"), "022");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}
