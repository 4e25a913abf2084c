//! What commands say that ask an agent which is kept from its group, and what
//! becomes of what they asked when they do not wait.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use super::common::{TENURE, poll_until};
use super::fixture::{Fixture, PATIENCE};
use super::print;

/// Writes the version of the view's format, as a later release might.
fn rewrite_the_view(url: &str, from: &str, to: &str) {
    use tenure::store::{Expect, Stamp, Write, open};
    let within = Duration::from_secs(5);
    let rewriting = async {
        let store = open(url).await.expect("a store");
        let key = tenure::ha::Keys::of(tenure::Name::new("town").expect("a name")).view();
        let read = store.read(&key, within).await.expect("read");
        let register = read.register.expect("a view");
        let text = String::from_utf8(register.value.to_vec()).expect("text");
        let other = text.replacen(from, to, 1);
        assert_ne!(other, text);
        let write = Write {
            key,
            expect: Expect::Version(register.version),
            value: other.into_bytes().into(),
            stamp: Stamp::Now,
        };
        let wrote = store.compare_and_swap(write, within).await;
        wrote.expect("written");
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(rewriting);
}

/// Deletes the view, as a store that lost a register would.
fn lose_the_view(url: &str) {
    use tenure::store::open;
    let within = Duration::from_secs(5);
    let deleting = async {
        let store = open(url).await.expect("a store");
        let key = tenure::ha::Keys::of(tenure::Name::new("town").expect("a name")).view();
        let read = store.read(&key, within).await.expect("read");
        let version = read.register.expect("a view").version;
        let deleted = store.delete(&key, &version, within).await;
        deleted.expect("deleted");
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(deleting);
}

#[test]
fn a_lost_view_names_what_went_with_it() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &[]);
    fixture.deploy("mail", &[]);
    fixture.deploy("pay", &[]);
    lose_the_view(&fixture.url());
    one.wait_for_log("2 workloads went with it: mail, pay; deploy them again");
    // The group goes on, and takes them again.
    fixture.deploy("pay", &[]);
}

#[test]
fn a_view_of_a_later_version_is_refused_and_left_alone() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &[]);
    fixture.deploy("old", &[]);
    rewrite_the_view(&fixture.url(), " 1\n", " 2\n");
    one.wait_for_log("ha/town/view");
    let (code, said) = fixture.fails(&["ps"]);
    assert!(code == 2 && said.contains("ha/town/view"), "{said}");
    let (code, said) = fixture.fails(&["watch", "--group", "town"]);
    assert!(code == 2 && said.contains("ha/town/view"), "{said}");
    // An agent goes on asking, and says why.
    // (Asking does not end before the time is up, nor need it begin at once.)
    let sleeps = ["deploy", "new", "--timeout", "4s", "--", "sleep", "1000"];
    let asked: [&[&str]; 2] = [&sleeps, &["undeploy", "old", "--timeout", "4s"]];
    for args in asked {
        let (code, said) = fixture.fails(args);
        assert!(
            code == 2 && said.contains("the view of the group, ha/town/view"),
            "{args:?}: {said}"
        );
        assert!(said.contains("within 4s (--timeout)"), "{args:?}: {said}");
        assert!(said.contains("waiting: "), "{args:?}: {said}");
        assert!(said.contains("not taken back"), "{args:?}: {said}");
    }
    // It does what it was asked, although nobody waits.
    rewrite_the_view(&fixture.url(), " 2\n", " 1\n");
    fixture.shows("new", |it| it["state"] == "running");
    poll_until(PATIENCE, || fixture.workload("old").is_none().then_some(())).expect("undeployed");
}

#[test]
fn what_was_asked_while_the_store_was_away_is_done_when_it_is_back() {
    let fixture = Fixture::cluster();
    let _one = fixture.node("one", &["--lease", "8s"]);
    let all = |signal| {
        for server in fixture.servers() {
            kill_process(server, signal).expect("it runs");
        }
    };
    all(Signal::STOP);
    let (code, said) = fixture.fails(&[
        "deploy",
        "late",
        "--timeout",
        "4s",
        "--no-wait",
        "--",
        "sleep",
        "1000",
    ]);
    assert!(code == 1 && said.contains("not taken back"), "{said}");
    assert!(said.contains("waiting: "), "{said}");
    // One that is killed is no other than one that has waited long enough.
    let err = fixture.directory.path().join("err");
    let mut killed = fixture
        .command(&["deploy", "killed", "--", "sleep", "1000"])
        .stderr(fs::File::create(&err).expect("a file"))
        .spawn()
        .expect("it runs");
    let waits = || {
        let said = fs::read_to_string(&err).unwrap_or_default();
        said.contains("waiting: ").then_some(())
    };
    let waits = poll_until(PATIENCE, waits);
    killed.kill().expect("it waits");
    killed.wait().expect("it ends");
    all(Signal::CONT);
    assert!(waits.is_some(), "it does not say why it waits");
    for name in ["late", "killed"] {
        fixture.shows(name, |it| it["state"] == "running");
    }
}

fn mode(path: &Path, mode: u32) {
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).expect("it is ours");
}

/// The binary where another user finds it.
fn binary_for_others(directory: &Path) -> PathBuf {
    let binary = directory.join("tenure");
    mode(directory, 0o711);
    // By another process where it has to be a copy: what is open here to be
    // written no process can run, and a child that is forked meanwhile by
    // another test has it open too.
    let copied = || Command::new("cp").arg(TENURE).arg(&binary).status();
    let made = fs::hard_link(TENURE, &binary).is_ok();
    assert!(made || copied().is_ok_and(|it| it.success()), "a binary");
    binary
}

/// A command of user 65534, which a root may start.
fn as_another_user(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.uid(65_534).gid(65_534).current_dir("/");
    command
}

/// Who may not look does not know that there is no agent.
#[test]
fn another_user_is_told_that_it_may_not_ask() {
    let fixture = Fixture::sqlite();
    let _one = fixture.node("one", &[]);
    fixture.deploy("a", &[]);
    let root = rustix::process::geteuid().is_root();
    // User 65534 may come as far as the binary, and to the door of the state.
    let binary = root.then(|| binary_for_others(fixture.directory.path()));
    let asked: [&[&str]; 3] = [
        &["undeploy", "a"],
        &["logs", "a"],
        &["undeploy", "a", "--via", "one"],
    ];
    for args in asked {
        let mut command = if let Some(binary) = &binary {
            as_another_user(binary)
        } else {
            mode(&fixture.state(), 0o000);
            Command::new(TENURE)
        };
        let output = command
            .args(args)
            .args(["--group", "town", "--state"])
            .arg(fixture.state())
            .env_clear()
            .output();
        mode(&fixture.state(), 0o700);
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        let refused = output.status.code() == Some(2) && said.contains("permission denied");
        assert!(refused, "{args:?}: {said}");
        let owner = rustix::process::geteuid().as_raw();
        assert!(said.contains(&format!("ask as user {owner}")), "{said}");
    }
    assert!(fixture.workload("a").is_some(), "it was asked after all");
}

/// Each place for a command is taken by a connection that sends half a request.
#[test]
fn connections_without_a_request_keep_no_command_away() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &[]);
    let socket = fixture.state().join("town/one/control.sock");
    let connect = |_| {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        stream.write_all(b"{\"ask\": ").expect("sent");
        stream
    };
    let held: Vec<UnixStream> = (0..64).map(connect).collect();
    // A busy agent may take longer than the 3 s for which a command waits.
    let deploy = ["deploy", "a", "--", "sleep", "1000"];
    let deployed = || fixture.run(&deploy).status.success().then_some(());
    poll_until(PATIENCE, deployed).expect("a command gets through");
    one.wait_for_log("closed: expected a whole request within 1s while all 64 places");
    drop(held);
}

/// Directories and sockets that were opened to all under an agent that runs: the
/// kernel says who connects.
#[test]
fn another_user_is_not_heard_where_the_modes_are_open() {
    if !rustix::process::geteuid().is_root() {
        return print("\n*** LEFT OUT: only root can be another user\n");
    }
    let fixture = Fixture::sqlite();
    let long = ["--lease", "10s"];
    let mut one = fixture.node("one", &long);
    fixture.deploy("a", &[]);
    let binary = binary_for_others(fixture.directory.path());
    let node = fixture.state().join("town/one");
    let all = |directories| {
        for directory in [&fixture.state(), &fixture.state().join("town"), &node] {
            mode(directory, directories);
        }
    };
    all(0o755);
    for socket in ["control.sock", "steward.sock"] {
        mode(&node.join(socket), 0o666);
    }
    let asked = as_another_user(binary)
        .args(["undeploy", "a", "--group", "town", "--state"])
        .arg(fixture.state())
        .env_clear()
        .output();
    let asked = asked.expect("it runs");
    let said = String::from_utf8_lossy(&asked.stderr);
    let refused = "expected root, found user 65534";
    assert!(
        said.contains(refused) && said.contains("ask as user 0"),
        "{said}"
    );
    assert_eq!(asked.status.code(), Some(2), "{said}");
    one.wait_for_log(&format!("refused: {refused}"));
    let speak = |socket: &str, line: &str| {
        let path = node.join(socket).display().to_string();
        let script = format!(
            "import socket
s = socket.socket(socket.AF_UNIX); s.connect('{path}')
try: s.sendall(b'{line}\\n')
except OSError: pass
try: print(s.recv(65536).decode())
except OSError: pass"
        );
        let mut python = as_another_user("python3");
        let output = python.args(["-c", &script]).output().expect("python3");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    // A program that waits for no greeting.
    let said = speak("control.sock", r#"{"ask": "undeploy", "name": "a"}"#);
    assert!(said.contains(refused) && !said.contains("hello"), "{said}");
    // While no agent is there, the shim takes the next that connects.
    let before = fixture.writes("a").pid;
    one.kill();
    let said = speak("steward.sock", r#"{"do": "quit"}"#);
    assert_eq!(said.trim(), "", "the shim tells of what it has");
    all(0o700);
    let again = fixture.start("one", &long);
    again.wait_for_log("going on as");
    fixture.all_run(&["a"], |node| node == "one");
    assert_eq!(fixture.writes("a").pid, before, "it was ended");
}

/// A database that is locked for writers is read all the same. That is not
/// the end of the trouble, which is told once and over once.
#[test]
fn a_database_that_is_locked_answers_again_when_it_is_unlocked() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &["--lease", "20s"]);
    let url = fixture.url();
    let path = url.strip_prefix("sqlite://").expect("a file");
    let lock = rusqlite::Connection::open(path).expect("it is there");
    lock.busy_timeout(PATIENCE).expect("set");
    lock.execute_batch("BEGIN IMMEDIATE").expect("locked");
    // The second of that name can only be refused when the first is there.
    for _ in 0..2 {
        let args = ["deploy", "twin", "--timeout", "3s", "--", "sleep", "1000"];
        let (code, said) = fixture.fails(&args);
        assert!(code == 1 && said.contains("not taken back"), "{said}");
    }
    let said = one.wait_for_log("did not answer within");
    assert!(!said.contains("the store answers again"), "{said}");
    lock.execute_batch("COMMIT").expect("unlocked");
    let said = one.wait_for_log("the store answers again");
    // A write and what comes after it fail in different ways for one reason.
    assert_eq!(said.matches("did not answer within").count(), 1, "{said}");
    let said = one.wait_for_log("`tenure deploy twin`, for which nobody waits any more");
    assert!(said.contains("expected a new name"), "{said}");
    assert_eq!(said.matches("the store answers again").count(), 1, "{said}");
}
