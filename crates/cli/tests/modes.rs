//! What servers, backups and SQLite stores write is for their owner alone, and
//! what others have written is not believed. What is in a file that was named
//! by mistake is not said.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::servers::{Cluster, Heard, answer, call_with, ready, tenure};
use crate::common::{TENURE, poll_until};

fn mode(path: &Path) -> u32 {
    let found = fs::metadata(path).expect("it is there");
    found.permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    let wanted = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, wanted).expect("it is ours");
}

#[test]
fn data_and_backups_are_for_their_owner_alone() {
    let mut cluster = Cluster::start();
    for id in 1..=3 {
        let data = cluster.directory.path().join(id.to_string());
        assert_eq!(mode(&data), 0o700, "{data:?}");
        let files: Vec<_> = fs::read_dir(&data).expect("its files").collect();
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
fn under(umask: &str, args: &[&str]) -> Output {
    let script = format!("umask {umask}; exec \"$@\"");
    Command::new("sh")
        .args(["-c", &script, "sh", TENURE])
        .args(args)
        .output()
        .expect("tenure runs")
}

fn once(url: &str, umask: &str) -> Output {
    under(umask, &["run", "x", "--once", "--store", url, "--", "true"])
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

/// The same as a user who has no rights but those that modes give. Root has such.
fn without_overrides(args: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    if is_root() {
        let without = "-dac_override,-dac_read_search";
        command.args(["--bounding-set", without, "--inh-caps", without]);
    }
    command
        .arg(TENURE)
        .args(args)
        .output()
        .expect("setpriv, of util-linux")
}

/// A database that a candidate has used, and its journal.
fn used() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let [path, journal] = ["t.db", "t.db-journal"].map(|name| directory.path().join(name));
    let url = format!("sqlite://{}", path.display());
    assert!(once(&url, "022").status.success());
    (directory, path, journal)
}

#[test]
fn who_may_read_a_database_and_not_its_journal_is_told_so() {
    let (_directory, path, journal) = used();
    let url = format!("sqlite://{}", path.display());
    set_mode(&path, 0o444);
    set_mode(&journal, 0o000);
    let look = ["leader", "x", "--store", &url, "--timeout", "5s"];
    let refused = without_overrides(&look);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let told = said(&refused);
    let (file, found) = (
        format!("expected {} to be a file that this", journal.display()),
        format!(
            "found mode 0000 of user {}",
            rustix::process::geteuid().as_raw()
        ),
    );
    let remedy = format!("chmod 0444 {}", journal.display());
    for words in [&file, &found, &remedy, "?mode=0640"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    set_mode(&journal, 0o444);
    // Nothing leads any more: it could be read.
    assert_eq!(without_overrides(&look).status.code(), Some(3));
}

#[test]
fn who_may_write_a_database_and_not_its_journal_is_told_so() {
    let (_directory, path, journal) = used();
    let url = format!("sqlite://{}", path.display());
    set_mode(&journal, 0o444);
    let words = ["repair", "x", "--term-above", "7", "--store", &url];
    let refused = without_overrides(&words);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let told = said(&refused);
    let remedy = format!("chmod 0600 {}", journal.display());
    for words in ["a file that this user may write", &remedy] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

/// The database got another mode and group after its journal was made.
#[test]
fn a_journal_follows_its_database_as_far_as_the_url_says() {
    for (database, option, wanted) in [
        (0o640, "", 0o600),
        (0o640, "?mode=0640", 0o640),
        (0o640, "?mode=0660", 0o640),
        (0o664, "?mode=0640", 0o640),
        (0o660, "?mode=0660", 0o660),
        (0o600, "?mode=0660", 0o600),
    ] {
        let (_directory, path, journal) = used();
        let url = format!("sqlite://{}", path.display());
        set_mode(&path, database);
        if is_root() {
            chown(&path, None, Some(NOBODY)).expect("given to a group");
        }
        let ran = once(&format!("{url}{option}"), "077");
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(mode(&journal), wanted, "{database:o} {option}");
        let group = |path: &Path| fs::metadata(path).expect("it is there").gid();
        if wanted != 0o600 {
            assert_eq!(group(&journal), group(&path), "{option}");
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Who may give files away.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

const NOBODY: u32 = 65_534;

/// Puts something there.
type Plant = fn(&Path);

/// What somebody else may have put beside a database, and what is said of it.
/// Only root can make a file of another user; anybody can make the others.
fn planted() -> Vec<(&'static str, Plant)> {
    fn file(path: &Path, mode: u32) {
        fs::write(path, "").expect("a file");
        set_mode(path, mode);
    }
    let mut planted: Vec<(_, Plant)> = vec![
        ("with mode 0666", |path| file(path, 0o666)),
        ("found a symbolic link", |path| {
            symlink("/dev/null", path).expect("a link");
        }),
        ("found a directory", |path| {
            fs::create_dir(path).expect("a directory");
        }),
    ];
    if is_root() {
        planted.push(("found a file of user 65534", |path| {
            file(path, 0o600);
            chown(path, Some(NOBODY), None).expect("given away");
        }));
    }
    planted
}

fn remove(path: &Path) {
    let removed = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
    removed.expect("it goes");
}

#[test]
fn what_others_put_beside_a_database_is_not_believed() {
    for (words, plant) in planted() {
        for end in ["-journal", "-wal", "-shm"] {
            let directory = tempfile::tempdir().expect("a directory");
            let database = directory.path().join("t.db");
            let beside = directory.path().join(format!("t.db{end}"));
            let url = format!("sqlite://{}", database.display());
            let refused = || {
                let told = once(&url, "022");
                assert_eq!(told.status.code(), Some(2), "{words}: {told:?}");
                let told = said(&told);
                let name = format!("expected {} to be", beside.display());
                for word in [&name, words, "remove it", "a directory of your own"] {
                    assert!(told.contains(word), "{end}: {word}: {told}");
                }
            };
            // Before the database is there, and when it is.
            plant(&beside);
            refused();
            assert!(!database.exists(), "{words}");
            remove(&beside);
            assert_eq!(once(&url, "022").status.code(), Some(0), "{words}");
            let _ = fs::remove_file(&beside);
            plant(&beside);
            refused();
            remove(&beside);
            assert_eq!(once(&url, "022").status.code(), Some(0), "{words}");
            let seen = tenure(&["leader", "x", "--json", "--store", &url]);
            let shown = String::from_utf8_lossy(&seen.stdout).into_owned();
            assert!(shown.contains("\"term\":2"), "{shown}");
        }
    }
}

#[test]
fn a_place_that_others_may_change_is_warned_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("t.db");
    let url = format!("sqlite://{}", path.display());
    let words = "expected a directory in which only user";
    let quiet = once(&url, "022");
    assert!(quiet.status.success(), "{quiet:?}");
    assert!(!said(&quiet).contains("WARN"), "{}", said(&quiet));
    set_mode(directory.path(), 0o1777);
    let warned = said(&once(&url, "022"));
    assert!(warned.contains(words), "{warned}");
    assert!(warned.contains("with mode 1777"), "{warned}");
    set_mode(directory.path(), 0o700);
    // Left by a release that made its files wider.
    set_mode(&directory.path().join("t.db-journal"), 0o644);
    let warned = said(&once(&url, "022"));
    assert!(
        warned.contains("expected mode 0600, found 0644"),
        "{warned}"
    );
    set_mode(&directory.path().join("t.db-journal"), 0o600);
    if is_root() {
        for file in ["t.db", "t.db-journal"] {
            chown(directory.path().join(file), Some(NOBODY), None).expect("given away");
        }
        let theirs = once(&url, "022");
        assert!(theirs.status.success(), "{theirs:?}");
        let told = said(&theirs);
        let words = "expected a file of root, found one of user 65534";
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn a_secret_in_a_file_that_was_named_by_mistake_is_not_said() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    let named = file.to_str().expect("a path");
    let data = directory.path().join("data");
    let data = data.to_str().expect("a path");
    let serve = [
        "serve",
        "--insecure",
        "--id",
        "1",
        "--peers",
        "1=127.0.0.1:1",
        "--data",
        data,
        "--listen",
        "127.0.0.1:0",
    ];
    let tokens = [&serve[..], &["--tokens", named]].concat();
    let settings = [&serve[..], &["--config", named]].concat();
    let add = ["token", "x", "--admin", "--tokens", named];
    let deploy = ["deploy", "--group", "g", "--file", named];
    // A token as it is, a password of a script, and values of the wrong kind.
    for (text, place, commands) in [
        (
            "5ecre7\n",
            "line 1, column",
            &[&tokens[..], &settings, &add, &deploy][..],
        ),
        (
            "# a\nPASSWORD=5ecre7\n",
            "line 2, column",
            &[&tokens, &settings, &add, &deploy],
        ),
        (
            "\ntokens = \"5ecre7\"\n",
            "line 2, column 10",
            &[&tokens, &add],
        ),
        (
            "[serve]\nid = \"5ecre7\"\n",
            "line 2, column 6",
            &[&settings],
        ),
        ("workload = \"5ecre7\"\n", "line 1, column 12", &[&deploy]),
        (
            "[tokens.a]\nsha256 = \"5ecre7\"\n",
            "found 6 characters",
            &[&tokens, &add],
        ),
    ] {
        fs::write(&file, text).expect("a file");
        for command in commands {
            let refused = tenure(command);
            assert_eq!(refused.status.code(), Some(2), "{refused:?}");
            let told = said(&refused);
            assert!(told.contains(place), "{text}: {told}");
            assert!(told.contains("expected"), "{text}: {told}");
            assert!(!told.contains("5ecre7"), "{text}: {told}");
        }
    }
}

#[test]
fn a_file_of_tokens_is_its_owners_to_write() {
    let mut cluster = Cluster::start();
    let path = |name: &str| cluster.directory.path().join(name);
    let (tokens, out) = (path("tokens.toml"), path("x.token"));
    let [tokens_named, out_named] = [&tokens, &out].map(|it| it.to_str().expect("a path"));
    let made = [
        "token",
        "x",
        "--admin",
        "--tokens",
        tokens_named,
        "--out",
        out_named,
    ];
    // A star stands for the rest of a name, and for nothing else.
    for star in ["we*b", "*b", "**"] {
        let made = tenure(&["token", "x", "--operate", star, "--tokens", tokens_named]);
        let said = String::from_utf8_lossy(&made.stderr);
        assert_eq!(made.status.code(), Some(2), "{star}: {said}");
        assert!(said.contains("a star at the end"), "{said}");
        assert!(!tokens.exists());
    }
    let made = under("000", &made);
    assert!(made.status.success(), "{made:?}");
    assert_eq!((mode(&tokens), mode(&out)), (0o600, 0o600));
    cluster.kill(1);
    let words = ["WARN", "expected that only root or this user may write it"];
    // One that a group reads, as it is installed for a service, is all right.
    for (wanted, warned) in [(0o640, false), (0o620, true), (0o602, true)] {
        set_mode(&tokens, wanted);
        let mut serve = cluster.loud(TENURE, 1);
        serve.args(["--tokens", tokens_named]);
        let server = Heard::start(serve);
        ready(&cluster.clients[0]);
        if warned {
            let found = format!("found mode {wanted:04o}");
            server.says(1, &[&words[..], &[&found]].concat());
        }
        assert_eq!(server.count(&words), usize::from(warned), "{wanted:o}");
    }
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // One of another user, who may write it as well.
    set_mode(&tokens, 0o600);
    let nobody = Some(rustix::process::Uid::from_raw(65_534));
    rustix::fs::chown(&tokens, nobody, None).expect("root may");
    let made = tenure(&["token", "y", "--admin", "--tokens", tokens_named]);
    let said = String::from_utf8_lossy(&made.stderr);
    let found = [&words[..], &["its owner to be user 65534"]].concat();
    assert!(found.iter().all(|word| said.contains(word)), "{said}");
    let mut serve = cluster.loud(TENURE, 1);
    serve.args(["--tokens", tokens_named]);
    let server = Heard::start(serve);
    server.says(1, &found);

    let certs = cluster.directory.path().join("certs");
    fs::create_dir(&certs).expect("a directory");
    rustix::fs::chown(&certs, nobody, None).expect("root may");
    let made = tenure(&["certs", certs.to_str().expect("a path")]);
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(said.contains("its owner to be user 65534"), "{said}");
}

/// Who writes a group's registers runs commands on its machines, and `write`
/// stops to include that: an operator who relies on it is told at each reading.
#[test]
fn a_token_that_writes_groups_by_its_right_write_is_named() {
    let mut cluster = Cluster::start();
    cluster.kill(1);
    let path = |name: &str| cluster.directory.path().join(name);
    let tokens = path("tokens.toml");
    let named = tokens.to_str().expect("a path");
    let sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let old = format!("[tokens.old]\nsha256 = \"{sha256}\"\nwrite = [\"ha/web/\"]\n");
    fs::write(&tokens, &old).expect("written");
    // What the command adds is of this release, and so not named.
    let add = |name, more: &[&str]| {
        let made = [&["token", name, "--tokens", named][..], more].concat();
        let made = tenure(&made);
        assert!(made.status.success(), "{made:?}");
    };
    add("writer", &["--write", ""]);
    add("agent", &["--operate", "web", "--write", "state/"]);
    let text = fs::read_to_string(&tokens).expect("the tokens");
    for line in ["operate = []", "operate = [\"web\"]"] {
        assert_eq!(text.matches(line).count(), 1, "{text}");
    }
    set_mode(&tokens, 0o600);
    let mut serve = cluster.loud(TENURE, 1);
    serve.args(["--tokens", named]);
    let server = Heard::start(serve);
    let words = [
        "WARN",
        "the token old may write the registers of groups",
        "add operate = [\"web\"] to [tokens.old]",
    ];
    server.says(1, &words);
    // They are looked at when somebody calls.
    let address = &cluster.clients[0];
    ready(address);
    fs::write(&tokens, text + "\n# again\n").expect("written");
    let again = poll_until(Duration::from_secs(30), || {
        let head = "GET /v1/cluster/status";
        answer(call_with(address, head, "Authorization: Bearer x\r\n", ""));
        (server.count(&words) == 2).then_some(())
    });
    again.expect("it is said again");
    // With that line it is said no more.
    fs::write(&tokens, old + "operate = [\"web\"]\n").expect("written");
    let renewed = || (server.count(&["INFO", "tokens were renewed"]) == 2).then_some(());
    let renewed = poll_until(Duration::from_secs(30), || {
        let head = "GET /v1/cluster/status";
        answer(call_with(address, head, "Authorization: Bearer x\r\n", ""));
        renewed()
    });
    renewed.expect("they are read");
    assert_eq!(server.count(&words), 2);
    assert_eq!(server.count(&["WARN", "the registers of groups"]), 2);
}

/// Nor is what was asked for in vain: a log is read by more people than the
/// registers.
#[test]
fn what_strangers_ask_for_is_not_in_the_log() {
    let mut cluster = Cluster::start();
    cluster.kill(1);
    let tokens = cluster.directory.path().join("tokens.toml");
    let named = tokens.to_str().expect("a path");
    let out = cluster.directory.path().join("5ecre7-name.token");
    let made = ["token", "5ecre7-name", "--tokens", named, "--out"];
    let made = tenure(&[&made[..], &[out.to_str().expect("a path")]].concat());
    assert!(made.status.success(), "{made:?}");
    let known = fs::read_to_string(&out).expect("a token");
    let mut serve = cluster.loud(TENURE, 1);
    serve.args(["--tokens", named]);
    let server = Heard::start(serve);
    ready(&cluster.clients[0]);
    for (token, status) in [(known.trim(), "403"), ("tenure_5ecre7", "401")] {
        for call in ["registers/read", "registers/watch", "registers/5ecre7"] {
            let head = format!("POST /v1/{call}");
            let token = format!("Authorization: Bearer {token}\r\n");
            let body = r#"{"key": "elections/5ecre7"}"#;
            let said = answer(call_with(&cluster.clients[0], &head, &token, body));
            let status = if call.ends_with('7') && status == "403" {
                "404"
            } else {
                status
            };
            assert!(said.contains(status), "{call}: {said}");
        }
    }
    // What was to be said is said before this.
    let text = fs::read_to_string(&tokens).expect("the tokens");
    fs::write(&tokens, text + "\n# again\n").expect("written");
    let renewed = poll_until(Duration::from_secs(30), || {
        answer(call_with(
            &cluster.clients[0],
            "GET /v1/x",
            "Authorization: Bearer x\r\n",
            "",
        ));
        (server.count(&["INFO", "tokens were renewed"]) == 1).then_some(())
    });
    renewed.expect("they are read");
    assert_eq!(server.count(&["5ecre7"]), 0);
    assert_eq!(server.count(&[known.trim()]), 0);
}

/// Otherwise the file would list a token that no client has.
#[test]
fn a_token_that_cannot_be_printed_gets_no_rights() {
    let directory = tempfile::tempdir().expect("a directory");
    let tokens = directory.path().join("tokens.toml");
    let add = format!("--tokens {}", tokens.display());
    for (add, is_full) in [("", true), (&*add, true), (&*add, false)] {
        let stdout: Stdio = if is_full {
            let full = fs::File::options().write(true).open("/dev/full");
            full.expect("a device").into()
        } else {
            // The reader has closed the pipe.
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            writer.into()
        };
        let args = format!("token a --read x/ {add}");
        let ran = Command::new(TENURE)
            .args(args.split_whitespace())
            .stdout(stdout)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{args}: {said}");
        assert!(said.contains("standard output: "), "{args}: {said}");
        assert!(!tokens.exists(), "{args}");
    }
}

/// A disk that is full: the file that could not be written is named, what was there
/// stays as it was, and nothing stands in the way of the next attempt.
#[test]
fn on_a_full_disk_files_are_named_and_left_as_they_were() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (out, tokens, certs) = (path("out"), path("tokens.toml"), path("certs"));
    let new = path("new.toml");
    // 500 bytes of 512, so that the next table would be cut in two.
    let before = format!("{:499}\n", "# nobody yet");
    fs::write(&tokens, &before).expect("written");
    let add = format!("token a --read x/ --tokens {tokens}");
    for (blocks, command, named) in [
        (0, format!("token a --read x/ --out {out}"), &out),
        (1, add.clone(), &tokens),
        (0, format!("token a --read x/ --tokens {new}"), &new),
        (1, format!("{add} --out {out}"), &tokens),
        (0, format!("certs {certs}"), &certs),
        // There is room for the key, and none for the certificate.
        (1, format!("certs {certs}"), &certs),
    ] {
        // Files of more blocks of 512 bytes are refused, as by a full disk. The signal
        // that comes with it would end a process which does not handle it.
        let script = format!("ulimit -f {blocks}; exec {TENURE} {command}");
        let ran = Command::new("sh").args(["-c", &script]).output();
        let ran = ran.expect("it runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains(named), "{command}: {said}");
        assert!(said.contains("File too large"), "{command}: {said}");
        assert_eq!(fs::read_to_string(&tokens).expect("read"), before);
        assert!(!Path::new(&out).exists(), "{command}");
        assert!(!Path::new(&new).exists(), "{command}");
    }
    let left: Vec<_> = fs::read_dir(&certs).expect("made").collect();
    assert!(left.is_empty(), "{left:?}");
    for command in [format!("{add} --out {out}"), format!("certs {certs}")] {
        let args: Vec<_> = command.split(' ').collect();
        let made = tenure(&args);
        assert!(made.status.success(), "{made:?}");
    }
}
