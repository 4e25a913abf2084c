//! File systems of FUSE, by bindfs: a second view of a directory, whose locks do not
//! reach those who use the first one.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::common::TENURE;

/// A directory, and where bindfs shows it.
struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    /// Nothing where this machine lets a test mount no such thing.
    #[expect(clippy::print_stderr, reason = "what was not tried must be seen")]
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let scene = Self { directory };
        for name in ["real", "view"] {
            fs::create_dir(scene.path(name)).expect("made");
        }
        let probe = scene.mounted("fuse", &["true".into()]);
        if probe.status.success() {
            return Some(scene);
        }
        eprintln!(
            "\n*** {}: NO FUSE OR NO BINDFS HERE, nothing was tried.\n",
            file!()
        );
        None
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a command while the directory is shown by a file system of this type.
    fn mounted(&self, kind: &str, command: &[String]) -> Output {
        let root = rustix::process::geteuid().is_root();
        let namespace = if root { None } else { Some("--map-root-user") };
        let subtype = kind.strip_prefix("fuse.").unwrap_or_default();
        // In a mount namespace of its own. bindfs lives as long as its mount.
        let script = "bindfs ${1:+-o subtype=$1} \"$2\" \"$3\" && code=0; view=$3; shift 3; \
                      \"$@\" || code=$?; umount \"$view\"; exit $code";
        Command::new("unshare")
            .arg("--mount")
            .args(namespace)
            .args(["sh", "-c", script, "sh", subtype])
            .args([self.path("real"), self.path("view")])
            .args(command)
            .output()
            .expect("unshare, of util-linux")
    }

    /// `tenure` with these words, where `@` is the view.
    fn tenure(&self, kind: &str, words: &str) -> Output {
        let view = self.path("view").display().to_string();
        let words = words.replace('@', &view);
        let start = ["timeout", "60", TENURE].map(str::to_owned);
        let command: Vec<_> = start
            .into_iter()
            .chain(words.split(' ').map(str::to_owned))
            .collect();
        self.mounted(kind, &command)
    }
}

const RUN: &str = "run x --once --store sqlite://@/t.db -- true";
const FENCE: &str = "fence --mark @/mark --term 3 -- true";

#[test]
fn what_locks_files_refuses_a_file_system_that_is_not_known_to_be_local() {
    let Some(scene) = Scene::new() else { return };
    let serve = "serve --insecure --id 1 --peers 1=127.0.0.1:1 --listen 127.0.0.1:0 --data @/a/b";
    let mut commands = vec![RUN, FENCE];
    if cfg!(feature = "file") {
        commands.push("run x --once --store file://@/d -- true");
    }
    if cfg!(feature = "tenure") {
        commands.push(serve);
    }
    for words in commands {
        for kind in ["fuse", "fuse.seaweedfs"] {
            let refused = scene.tenure(kind, words);
            let said = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{words}: {said}");
            let found = format!(
                "on a local disk, found it on {kind}, of which it is not known that all who use \
                 its files share locks"
            );
            assert!(said.contains(&found), "{words}: {said}");
        }
        let left = fs::read_dir(scene.path("real")).expect("a directory");
        assert_eq!(left.count(), 0, "{words}: nothing was made");
    }
}

#[test]
fn what_locks_files_takes_one_that_is_known_to_be_local() {
    let Some(scene) = Scene::new() else { return };
    for words in [RUN, FENCE] {
        let ran = scene.tenure("fuse.gocryptfs", words);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(0), "{words}: {said}");
    }
}
