//! Real directories: locks, permissions, paths that lead nowhere.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tenure_alpo::Batch;
use tenure_core::rng::Rng;
use tenure_server::wal::{self, Directory, Options, Wal, WalError};

use super::model::{SMALL, entry, identity, random_calls};

/// Where the child of a test finds its directory.
const DIR: &str = "TENURE_TEST_WAL_DIR";

#[test]
fn batches_come_back_from_a_real_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("made/on/the/way");
    assert_eq!(wal::identity(&dir).expect("nothing there"), None);
    drop(Wal::create(&dir, &identity(), SMALL).expect("a new log"));
    assert_eq!(wal::identity(&dir).expect("a log"), Some(identity()));
    let (calls, models) = random_calls(&mut Rng::from_seed(42), 40);
    for (call, model) in calls.iter().zip(&models) {
        let (mut wal, recovered) = Wal::open(&dir, &identity(), SMALL).expect("a sound log");
        assert_eq!(recovered, model.recovered);
        wal.append(call).expect("a sound disk");
    }
    let disk = Directory::look(&dir).expect("a directory");
    let (report, _) = wal::verify_on(&disk).expect("a sound log");
    assert!(report.torn.is_none() && report.spare_used.is_none());
    let mut records = 0;
    wal::inspect(&dir, |item| {
        records += usize::from(matches!(item, wal::Item::Record { .. }));
    })
    .expect("a sound log");
    assert!(records > 0);
}

#[test]
fn a_segment_has_its_room_from_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut wal = Wal::create(dir.path(), &identity(), Options::default()).expect("a new log");
    let length = |number: u64| {
        let path = dir.path().join(format!("{number:016x}.wal"));
        std::fs::metadata(path).expect("a segment").len()
    };
    assert_eq!(length(1), 1 << 20);
    let batch = |number| Batch {
        number,
        entries: vec![entry(number, 1, &[7; 600 * 1024])],
        ..Batch::default()
    };
    wal.append(&[batch(1)]).expect("room");
    wal.append(&[batch(2)]).expect("a new segment");
    assert_eq!(length(2), 64 << 20);
    drop(wal);
    let spare = dir.path().join("spare");
    assert!(!spare.exists(), "nothing is left of what was not needed");
}

#[test]
fn one_process_at_a_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let wal = Wal::create(dir.path(), &identity(), SMALL).expect("a new log");
    // Not even this process again.
    let error = Wal::open(dir.path(), &identity(), SMALL).expect_err("it is in use");
    let pid = std::process::id();
    assert!(
        matches!(error, WalError::InUse { holder: Some(holder), .. } if holder == pid),
        "{error}"
    );
    // Looking is allowed.
    wal::verify(dir.path()).expect("a sound log");
    drop(wal);
    assert_eq!(wal::holder(dir.path()), None);

    // Another process holds it, until it ends.
    let mut child = Command::new("flock")
        .arg("--no-fork")
        .arg(dir.path().join("lock"))
        .args(["sh", "-c", "echo ready; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("flock (util-linux)");
    let mut ready = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut ready).expect("a line");
    let error = Wal::open(dir.path(), &identity(), SMALL).expect_err("it is in use");
    let text = error.to_string();
    assert!(
        text.contains(&format!("locked by process {}", child.id())),
        "{text}"
    );
    drop(child.stdin.take());
    child.wait().expect("the child ends");
    drop(Wal::open(dir.path(), &identity(), SMALL).expect("it is free"));
}

#[test]
fn a_path_that_leads_nowhere_is_said() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "not a directory").expect("a file");
    for path in [file.clone(), file.join("below")] {
        for error in [
            Wal::create(&path, &identity(), SMALL)
                .map(drop)
                .expect_err("no directory"),
            Wal::open(&path, &identity(), SMALL)
                .map(drop)
                .expect_err("no directory"),
            wal::verify(&path).map(drop).expect_err("no directory"),
            wal::identity(&path).map(drop).expect_err("no directory"),
        ] {
            assert!(matches!(error, WalError::Disk { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(&*file.to_string_lossy()), "{text}");
        }
    }
}

/// Permission binds nobody who is root, so a child that is not tries.
#[test]
fn without_permission_the_file_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let open_to_all = |path: &Path| {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("permission to give permission");
    };
    open_to_all(dir.path());
    let log = dir.path().join("log");
    drop(Wal::create(&log, &identity(), SMALL).expect("a new log"));
    open_to_all(&log);
    let names = ["lock", "identity", "0000000000000001.wal", ""];
    for closed in names {
        let path: PathBuf = if closed.is_empty() {
            log.clone()
        } else {
            log.join(closed)
        };
        let before = std::fs::metadata(&path).expect("it is there").permissions();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("its owner");
        // Everything else may be read and written by anybody.
        for name in names
            .iter()
            .filter(|name| **name != closed && !name.is_empty())
        {
            let mode = std::fs::Permissions::from_mode(0o666);
            let _ = std::fs::set_permissions(log.join(name), mode);
        }
        let said = as_nobody(dir.path(), &log);
        std::fs::set_permissions(&path, before).expect("its owner");
        let blamed = if closed.is_empty() { "log" } else { closed };
        assert!(
            said.contains(blamed) && said.contains("let the user of this process read and write"),
            "{closed:?} closed: {said}"
        );
    }
}

/// What a process without special rights is told when it opens `log`.
fn as_nobody(dir: &Path, log: &Path) -> String {
    let this = std::env::current_exe().expect("this program");
    let mut command = if rustix::process::geteuid().is_root() {
        // Somewhere that everybody can reach.
        let copy = dir.join("this");
        if !copy.exists() {
            std::fs::copy(&this, &copy).expect("room for a copy");
        }
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(copy);
        command
    } else {
        Command::new(this)
    };
    let output = command
        .args(["--exact", "real::child_opens_a_log", "--nocapture"])
        .env(DIR, log)
        .current_dir("/")
        .output()
        .expect("setpriv (util-linux)");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// The other half of the test above; on its own it has nothing to open.
#[allow(clippy::print_stdout, reason = "tells its parent what it was told")]
#[test]
fn child_opens_a_log() {
    if let Some(dir) = std::env::var_os(DIR) {
        match Wal::open(Path::new(&dir), &identity(), SMALL) {
            Ok(_) => println!("opened"),
            Err(error) => println!("{error}"),
        }
    }
}
