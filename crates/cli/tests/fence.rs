//! `tenure fence` with real processes: commands that are stopped and killed, and
//! what a later leader's command finds.

#![allow(clippy::print_stdout, reason = "what was measured, and transcripts")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::common::stopped::await_stopped;
use crate::common::{TENURE, poll_until};

const SOON: Duration = Duration::from_secs(20);

/// A mark, and the file that commands write to.
struct Scene {
    directory: tempfile::TempDir,
}

/// A `tenure fence` whose command has started. The command waits for a line of input.
struct Holder {
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    /// The process ids of `tenure fence` and of its CMD.
    fence: Pid,
    command: Pid,
}

fn pid(number: u32) -> Pid {
    let number = i32::try_from(number).ok().and_then(Pid::from_raw);
    number.expect("a process id")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

impl Scene {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn mark(&self) -> String {
        fs::read_to_string(self.path("mark")).unwrap_or_default()
    }

    fn ledger(&self) -> String {
        fs::read_to_string(self.path("ledger")).unwrap_or_default()
    }

    /// `tenure fence` of a script, not started yet.
    fn command(&self, term: u64, flags: &[&str], script: &str) -> Command {
        let mut command = Command::new(TENURE);
        command
            .args(["fence", "--mark"])
            .arg(self.path("mark"))
            .args(["--term", &term.to_string()])
            .args(flags)
            .args(["--", "sh", "-c", script])
            .env("LEDGER", self.path("ledger"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, term: u64, flags: &[&str], script: &str) -> Output {
        let mut command = self.command(term, flags, script);
        command.output().expect("it runs")
    }

    /// One that writes its term.
    fn write(&self, term: u64, flags: &[&str]) -> Output {
        self.run(term, flags, &format!("echo {term} >> $LEDGER"))
    }

    /// Starts a command that writes its term when it gets a line of input.
    fn hold(&self, term: u64, flags: &[&str]) -> Holder {
        let script = format!("echo $$; read go; echo {term} >> $LEDGER; echo written");
        let mut command = self.command(term, flags, &script);
        // At a terminal it would stay in the group of the test.
        let command = command.stderr(Stdio::null());
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it runs");
        let to = process.stdin.take();
        let mut from = BufReader::new(process.stdout.take().expect("its output"));
        let mut line = String::new();
        from.read_line(&mut line).expect("it says who it is");
        let command = line.trim().parse().expect("a process id");
        Holder {
            to,
            from,
            fence: pid(process.id()),
            command: pid(command),
            process,
        }
    }
}

impl Holder {
    /// Stops it and its command.
    fn stop(&self) {
        for process in [self.fence, self.command] {
            kill_process(process, Signal::STOP).expect("it runs");
            await_stopped(process);
        }
    }

    fn resume(&self) {
        for process in [self.fence, self.command] {
            kill_process(process, Signal::CONT).expect("it runs");
        }
    }

    /// Tells it to go on, and waits for its end.
    fn finish(&mut self) -> Option<i32> {
        let mut to = self.to.take().expect("it was not told yet");
        // Its reader may have been killed.
        let _ = writeln!(to, "go");
        drop(to);
        self.process.wait().expect("it ends").code()
    }

    /// Waits until its command has written.
    fn await_written(&mut self) {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it says so");
        assert_eq!(line, "written\n");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = kill_process(self.command, Signal::KILL);
    }
}

/// A process has closed its files before it has ended.
fn await_gone(process: Pid) {
    let gone = poll_until(SOON, || is_gone(process).then_some(()));
    gone.unwrap_or_else(|| panic!("{process} lives"));
}

fn is_gone(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    test_kill_process(process).is_err() || state.is_none_or(|it| it.starts_with('Z'))
}

#[test]
fn lower_terms_are_refused_and_equal_ones_are_not() {
    let scene = Scene::new();
    for (term, wanted) in [(7, 0), (6, 1), (7, 0), (9, 0), (8, 1), (7, 1), (9, 0)] {
        let ran = scene.write(term, &[]);
        assert_eq!(code(&ran), Some(wanted), "{term}: {}", said(&ran));
        if wanted == 1 {
            assert_eq!(
                said(&ran).matches("a leader of term").count(),
                1,
                "{}",
                said(&ran)
            );
        }
    }
    assert_eq!(scene.ledger(), "7\n7\n9\n9\n");
    assert_eq!(scene.mark(), "term 9\n");
}

#[test]
fn the_code_of_the_command_is_passed_on() {
    let scene = Scene::new();
    assert_eq!(code(&scene.run(1, &[], "exit 42")), Some(42));
    assert_eq!(code(&scene.run(1, &[], "kill -TERM $$")), Some(128 + 15));
    // As a shell has it; the mark is as it was.
    for (command, expected) in [
        ("no-such-command", 127),
        ("/nonexistent/x", 127),
        ("/etc/passwd", 126),
    ] {
        let mut unusable = Command::new(TENURE);
        let unusable = unusable.args(["fence", "--term", "9", "--mark"]);
        let unusable = unusable.arg(scene.path("mark")).args(["--", command]);
        assert_eq!(code(&unusable.output().expect("it runs")), Some(expected));
        assert_eq!(scene.mark(), "term 1\n");
    }
    // The term of `tenure run` is taken from its environment.
    let mut by_environment = Command::new(TENURE);
    let by_environment = by_environment
        .args(["fence", "--mark"])
        .arg(scene.path("mark"));
    let by_environment = by_environment.env("TENURE_TERM", "5").args(["--", "true"]);
    assert_eq!(code(&by_environment.output().expect("it runs")), Some(0));
    assert_eq!(scene.mark(), "term 5\n");
}

#[test]
fn files_are_for_their_user_alone() {
    let scene = Scene::new();
    let mark = scene.path("mark");
    let script = format!(
        "umask 0; exec {TENURE} fence --mark {} --term 3 -- true",
        mark.display()
    );
    let ran = Command::new("sh").args(["-c", &script]).output();
    assert_eq!(code(&ran.expect("it runs")), Some(0));
    for name in ["mark", "mark.lock"] {
        let mode = fs::metadata(scene.path(name))
            .expect(name)
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

/// The leader of term 7 is stopped in mid command. Its successor has no turn,
/// and the old leader begins nothing new.
#[test]
fn a_successor_waits_for_a_stopped_command() {
    let scene = Scene::new();
    let mut old = scene.hold(7, &[]);
    old.stop();
    let new = scene.write(8, &["--wait", "300ms"]);
    assert_eq!(code(&new), Some(1), "{}", said(&new));
    let told = said(&new);
    assert!(told.contains("held in term 7"), "{told}");
    assert!(told.contains(&format!("{} (sh)", old.command)), "{told}");
    assert_eq!(scene.ledger(), "", "it was not run");
    // Its term counts all the same.
    assert_eq!(scene.mark(), "term 8\n");
    let again = scene.write(7, &[]);
    assert_eq!(code(&again), Some(1), "{}", said(&again));
    assert!(
        said(&again).contains("a leader of term 8"),
        "{}",
        said(&again)
    );
    // The one that was stopped goes on before the successor begins.
    old.resume();
    assert_eq!(old.finish(), Some(0));
    assert_eq!(code(&scene.write(8, &[])), Some(0));
    assert_eq!(scene.ledger(), "7\n8\n");
}

#[test]
fn a_successor_begins_as_soon_as_the_command_has_ended() {
    let scene = Scene::new();
    let mut old = scene.hold(7, &[]);
    old.stop();
    let script = "echo 8 >> $LEDGER";
    let mut new = scene.command(8, &["--wait", "60s"], script);
    let mut new = new.spawn().expect("it runs");
    let recorded = poll_until(SOON, || (scene.mark() == "term 8\n").then_some(()));
    recorded.expect("it records its term while it waits");
    assert_eq!(scene.ledger(), "");
    old.resume();
    assert_eq!(old.finish(), Some(0));
    assert_eq!(new.wait().expect("it ends").code(), Some(0));
    assert_eq!(scene.ledger(), "7\n8\n");
}

/// The same with `--kill`: the old leader's command never writes.
#[test]
fn a_stopped_command_is_killed() {
    let scene = Scene::new();
    let mut old = scene.hold(7, &[]);
    old.stop();
    let new = scene.write(8, &["--wait", "200ms", "--kill"]);
    assert_eq!(code(&new), Some(0), "{}", said(&new));
    assert!(said(&new).contains("killing process"), "{}", said(&new));
    await_gone(old.command);
    assert_eq!(old.finish(), None, "by a signal");
    assert_eq!(scene.ledger(), "8\n");
}

#[test]
fn a_command_of_the_same_term_is_not_killed() {
    let scene = Scene::new();
    let mut first = scene.hold(7, &[]);
    let second = scene.write(7, &["--wait", "200ms", "--kill"]);
    assert_eq!(code(&second), Some(1), "{}", said(&second));
    assert!(
        said(&second).contains("lower terms alone"),
        "{}",
        said(&second)
    );
    assert_eq!(first.finish(), Some(0));
    assert_eq!(code(&scene.write(7, &[])), Some(0));
    assert_eq!(scene.ledger(), "7\n7\n");
}

/// A higher term that comes while one waits is found when the wait is over.
#[test]
fn who_waited_is_refused_if_a_higher_term_has_come_meanwhile() {
    let scene = Scene::new();
    let mut old = scene.hold(7, &[]);
    let mut next = scene.command(8, &["--wait", "60s"], "echo 8 >> $LEDGER");
    let next = next.stderr(Stdio::piped()).spawn().expect("it runs");
    poll_until(SOON, || (scene.mark() == "term 8\n").then_some(())).expect("it is recorded");
    let last = scene.write(9, &["--wait", "100ms"]);
    assert_eq!(code(&last), Some(1), "{}", said(&last));
    assert_eq!(old.finish(), Some(0));
    let next = next.wait_with_output().expect("it ends");
    assert_eq!(code(&next), Some(1), "{}", said(&next));
    assert!(
        said(&next).contains("a leader of term 9"),
        "{}",
        said(&next)
    );
    assert_eq!(scene.ledger(), "7\n");
}

/// `tenure fence` is killed, and what it has started goes on: it holds the lock.
#[test]
fn a_command_whose_fence_was_killed_holds_the_lock() {
    let scene = Scene::new();
    let mut old = scene.hold(7, &[]);
    kill_process(old.fence, Signal::KILL).expect("it runs");
    old.process.wait().expect("it ends");
    let new = scene.write(8, &["--wait", "200ms"]);
    assert_eq!(code(&new), Some(1), "{}", said(&new));
    let mut to = old.to.take().expect("its input");
    writeln!(to, "go").expect("it reads");
    old.await_written();
    assert_eq!(code(&scene.write(8, &[])), Some(0));
    assert_eq!(scene.ledger(), "7\n8\n");
}

/// Scripts lock files of their own as descriptor 9. That must not let the lock go.
#[test]
fn a_script_with_descriptors_of_its_own_holds_the_lock() {
    let scene = Scene::new();
    let own: String = (3..10).map(|it| format!("exec {it}>own.{it}; ")).collect();
    let script = format!(
        "cd {}; {own}echo $$; read go",
        scene.directory.path().display()
    );
    let mut command = scene.command(5, &[], &script);
    let command = command.stderr(Stdio::null()).stdin(Stdio::piped());
    let mut holder = command.stdout(Stdio::piped()).spawn().expect("it runs");
    // To wait for a process closes its input.
    let to = holder.stdin.take();
    let mut line = String::new();
    let from = holder.stdout.take().expect("its output");
    BufReader::new(from)
        .read_line(&mut line)
        .expect("it says who it is");
    holder.kill().expect("killed");
    holder.wait().expect("it has ended");
    let refused = scene.write(6, &["--wait", "300ms"]);
    assert_eq!(code(&refused), Some(1), "{}", said(&refused));
    assert_eq!(scene.ledger(), "");
    drop(to);
    assert_eq!(code(&scene.write(6, &["--wait", "20s"])), Some(0));
}

/// Whose turn it is to raise the mark is named: the term is not known, so
/// `--kill` does not end it.
#[test]
fn who_raises_the_mark_and_does_not_go_on_is_named() {
    let scene = Scene::new();
    let mut raising = Command::new("flock")
        .arg(scene.path("mark.new"))
        .args(["sh", "-c", "echo locked; read go"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("flock, of util-linux");
    let mut line = String::new();
    let from = raising.stdout.take().expect("its output");
    BufReader::new(from)
        .read_line(&mut line)
        .expect("it says so");
    let refused = scene.write(6, &["--wait", "200ms", "--kill"]);
    assert_eq!(code(&refused), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("(flock)"), "{}", said(&refused));
    drop(raising.stdin.take());
    raising.wait().expect("it ends");
    assert_eq!(code(&scene.write(6, &[])), Some(0));
}

/// `unshare` is in another pid namespace than its child, whose process group is that of
/// `unshare`: the child cannot see it.
#[test]
fn a_process_group_that_cannot_be_seen_is_left() {
    let scene = Scene::new();
    let inner = scene.command(
        3,
        &[],
        "echo 3 >> $LEDGER; cut -d ' ' -f 5 /proc/$PPID/stat",
    );
    let done = Command::new("unshare")
        .args(as_root_of_a_namespace())
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("LEDGER", scene.path("ledger"))
        .stdin(Stdio::null())
        .output()
        .expect("unshare, of util-linux");
    assert_eq!(code(&done), Some(0), "{}", said(&done));
    assert_eq!(scene.ledger(), "3\n");
    // `tenure fence` leads a group of its own, which it can see.
    assert_eq!(String::from_utf8_lossy(&done.stdout), "1\n");
}

/// What `unshare` needs where the test has no rights of its own.
fn as_root_of_a_namespace() -> &'static [&'static str] {
    match rustix::process::geteuid().is_root() {
        true => &[],
        false => &["--user", "--map-root-user"],
    }
}

/// A rename does not reach a mount, so the two would go on apart.
#[test]
fn a_mark_that_is_mounted_by_itself_is_refused() {
    let scene = Scene::new();
    assert_eq!(code(&scene.write(5, &[])), Some(0));
    let other = scene.path("other");
    fs::write(&other, "").expect("written");
    let mount = "mount --bind \"$1\" \"$2\" && exec \"$3\" fence --mark \"$2\" --term 6 -- true";
    let refused = Command::new("unshare")
        .args(as_root_of_a_namespace())
        .args(["--mount", "sh", "-ec", mount, "sh"])
        .args([&scene.path("mark"), &other])
        .arg(TENURE)
        .output()
        .expect("unshare, of util-linux");
    assert_eq!(code(&refused), Some(2), "{}", said(&refused));
    assert!(
        said(&refused).contains("mount its directory"),
        "{}",
        said(&refused)
    );
    assert_eq!(scene.mark(), "term 5\n");
}

/// A command that closes what it inherits, as `sudo` does: its `tenure fence`
/// holds the lock.
#[test]
fn a_command_that_closes_its_descriptors_is_waited_for() {
    let scene = Scene::new();
    // dash closes descriptors below ten alone.
    let script = "exec bash -c 'for fd in /proc/self/fd/*; do fd=${fd##*/}; \
                  [ $fd -le 2 ] || exec {fd}>&-; done; \
                  echo $$; read go; echo 7 >> $LEDGER'";
    let mut command = scene.command(7, &[], script);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut old = command.spawn().expect("it runs");
    let mut from = BufReader::new(old.stdout.take().expect("its output"));
    let mut line = String::new();
    from.read_line(&mut line).expect("it says who it is");
    let child: u32 = line.trim().parse().expect("a process id");
    let open = fs::read_dir(format!("/proc/{child}/fd")).expect("its files");
    let locks = open
        .flatten()
        .filter_map(|it| fs::read_link(it.path()).ok());
    let locks = locks.filter(|it| *it == scene.path("mark.lock")).count();
    assert_eq!(locks, 0, "it has closed the lock");
    let new = scene.write(8, &["--wait", "200ms"]);
    assert_eq!(code(&new), Some(1), "{}", said(&new));
    drop(old.stdin.take());
    assert!(old.wait().expect("it ends").success());
    assert_eq!(code(&scene.write(8, &[])), Some(0));
    assert_eq!(scene.ledger(), "7\n8\n");
}

/// What a command leaves behind can still write, so it is waited for, or killed.
#[test]
fn what_a_command_leaves_behind_holds_the_lock() {
    let scene = Scene::new();
    let script = "sleep 600 >/dev/null 2>&1 & echo $!";
    let ran = scene.run(7, &[], script);
    assert_eq!(code(&ran), Some(0), "{}", said(&ran));
    let left = String::from_utf8_lossy(&ran.stdout).trim().parse();
    let left = pid(left.expect("a process id"));
    let same = scene.write(7, &["--wait", "100ms", "--kill"]);
    assert_eq!(code(&same), Some(1), "{}", said(&same));
    let new = scene.write(8, &["--wait", "100ms"]);
    assert_eq!(code(&new), Some(1), "{}", said(&new));
    assert!(said(&new).contains("(sleep)"), "{}", said(&new));
    let new = scene.write(8, &["--wait", "100ms", "--kill"]);
    assert_eq!(code(&new), Some(0), "{}", said(&new));
    await_gone(left);
    assert_eq!(scene.ledger(), "8\n");
}

#[test]
fn signals_reach_the_command() {
    let scene = Scene::new();
    let script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = scene.command(7, &[], script);
    let mut process = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut from = BufReader::new(process.stdout.take().expect("its output"));
    let mut line = String::new();
    from.read_line(&mut line).expect("it begins");
    kill_process(pid(process.id()), Signal::TERM).expect("it runs");
    from.read_line(&mut line).expect("it goes on");
    assert_eq!(line, "ready\ncaught\n");
    assert_eq!(process.wait().expect("it ends").code(), Some(3));
}

#[test]
fn a_damaged_mark_refuses_every_term() {
    let scene = Scene::new();
    assert_eq!(code(&scene.write(7, &[])), Some(0));
    for text in [
        "",
        "term 7",
        "seven\n",
        "\0\0\0\0\0\0\0",
        "term 7\nterm 8\n",
    ] {
        fs::write(scene.path("mark"), text).expect("written");
        let ran = scene.write(900, &["--kill"]);
        assert_eq!(code(&ran), Some(2), "{text:?}: {}", said(&ran));
        assert!(
            said(&ran).contains("expected the mark of a fence"),
            "{}",
            said(&ran)
        );
        assert_eq!(scene.mark(), text, "it stays for a person to look at");
    }
    // One that was removed is noticed by what stays beside it.
    fs::remove_file(scene.path("mark")).expect("removed");
    let ran = scene.write(900, &[]);
    assert_eq!(code(&ran), Some(2), "{}", said(&ran));
    assert!(said(&ran).contains("found none"), "{}", said(&ran));
    assert_eq!(scene.ledger(), "7\n");
}

/// A disk that takes nothing more: nothing is run, and the mark is whole.
#[test]
fn a_mark_that_cannot_be_written_runs_nothing() {
    let scene = Scene::new();
    assert_eq!(code(&scene.write(7, &[])), Some(0));
    let mark = scene.path("mark");
    // A file of more than no bytes is refused, as by a full disk.
    let script = format!(
        "trap '' XFSZ; ulimit -f 0; exec {TENURE} fence --mark {} --term 8 -- echo ran",
        mark.display()
    );
    let ran = Command::new("sh").args(["-c", &script]).output();
    let ran = ran.expect("it runs");
    assert_eq!(code(&ran), Some(1), "{}", said(&ran));
    assert!(
        said(&ran).contains("expected to raise the mark"),
        "{}",
        said(&ran)
    );
    assert!(ran.stdout.is_empty(), "{ran:?}");
    assert_eq!(scene.mark(), "term 7\n");
    assert!(!scene.path("mark.new").exists());
    assert_eq!(code(&scene.write(8, &[])), Some(0));
}

/// Exit code 1 says that a higher term was seen.
#[test]
fn a_mark_that_this_user_may_not_use_is_told_with_what_to_do() {
    let scene = Scene::new();
    assert_eq!(code(&scene.write(5, &[])), Some(0));
    let (directory, mark) = (scene.directory.path(), scene.path("mark"));
    let fence = "exec \"$1\" fence --mark \"$2\" --term 6 -- true";
    let is_root = rustix::process::geteuid().is_root();
    let modes = |directory_mode, mark_mode| {
        for (path, mode) in [(&mark, mark_mode), (&directory.to_owned(), directory_mode)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        }
    };
    // Root writes everywhere but for these rights.
    let without = "-dac_override,-dac_read_search";
    let without = ["--bounding-set", without, "--inh-caps", without];
    for (directory_mode, mark_mode) in [(0o500, 0o600), (0o700, 0o000)] {
        fs::remove_file(scene.path("mark.lock")).expect("the lock");
        modes(directory_mode, mark_mode);
        let refused = Command::new("setpriv")
            .args(without.iter().filter(|_| is_root))
            .args(["sh", "-ec", fence, "sh", TENURE])
            .arg(&mark)
            .output()
            .expect("setpriv, of util-linux");
        modes(0o700, 0o600);
        assert_eq!(code(&refused), Some(2), "{}", said(&refused));
        for words in [
            "ermission denied",
            "belong to the user that runs this",
            "--mark",
        ] {
            assert!(said(&refused).contains(words), "{}", said(&refused));
        }
        assert_eq!(scene.mark(), "term 5\n");
        assert_eq!(code(&scene.write(5, &[])), Some(0));
    }
    let mount = format!("mount --bind \"$3\" \"$3\"; mount -o remount,bind,ro \"$3\"; {fence}");
    let refused = Command::new("unshare")
        .args(as_root_of_a_namespace())
        .args(["--mount", "sh", "-ec", &mount, "sh", TENURE])
        .arg(&mark)
        .arg(directory)
        .output()
        .expect("unshare, of util-linux");
    assert_eq!(code(&refused), Some(2), "{}", said(&refused));
    for words in ["Read-only file system", "mount it for writing", "--mark"] {
        assert!(said(&refused).contains(words), "{}", said(&refused));
    }
}

#[test]
fn wrong_usage_is_told_and_records_nothing() {
    let scene = Scene::new();
    for (term, flags, wanted) in [
        ("0", &[][..], "0 is not in"),
        ("9223372036854775808", &[], "is not in"),
        ("-1", &[], "--term"),
        ("x", &[], "invalid digit"),
        ("1", &["--wait", "-1s"], "time does not run backwards"),
        ("1", &["--wait", "0s"], "expected more than nothing"),
    ] {
        let mut command = Command::new(TENURE);
        let command = command.args(["fence", "--term", term, "--mark"]);
        let command = command
            .arg(scene.path("mark"))
            .args(flags)
            .args(["--", "true"]);
        let ran = command.output().expect("it runs");
        assert_eq!(code(&ran), Some(2), "{term} {flags:?}: {}", said(&ran));
        assert!(said(&ran).contains(wanted), "{}", said(&ran));
    }
    let ran = Command::new(TENURE)
        .args(["fence", "--term", "1", "--mark"])
        .arg(scene.path("mark"))
        .args(["--", "no-such-command"])
        .output()
        .expect("it runs");
    assert_eq!(code(&ran), Some(127), "{}", said(&ran));
    assert_eq!(
        fs::read_dir(scene.directory.path()).expect("names").count(),
        0
    );
}

/// The calls of the system, in their order: the mark is on disk before the
/// command begins.
#[test]
fn the_mark_is_on_disk_before_the_command_begins() {
    let scene = Scene::new();
    let trace = scene.path("trace");
    let ran = Command::new("strace")
        .args([
            "-f",
            "-y",
            "-e",
            "trace=fsync,fdatasync,rename,renameat,renameat2,execve",
            "-o",
        ])
        .arg(&trace)
        .args([TENURE, "fence", "--term", "4", "--mark"])
        .arg(scene.path("mark"))
        .args(["--", "true"])
        .output();
    let ran = ran.expect("strace runs");
    assert!(ran.status.success(), "{}", said(&ran));
    let trace = fs::read_to_string(trace).expect("the calls");
    let directory = scene.directory.path().display().to_string();
    let at = |what: &str, of: &str| {
        let is = |line: &&str| line.contains(what) && line.contains(of) && line.contains(" = 0");
        let found = trace.lines().position(|line| is(&line));
        found.unwrap_or_else(|| panic!("{what} of {of}:\n{trace}"))
    };
    let order = [
        at("sync(", "mark.new"),
        at("rename", "mark.new"),
        at("sync(", &format!("<{directory}>")),
        at("execve(", "/true\""),
    ];
    assert!(order.is_sorted_by(|a, b| a < b), "{order:?}\n{trace}");
}

/// Commands of many terms at once: what they write never goes back to a lower
/// term, and no two overlap.
#[test]
fn commands_of_many_terms_are_in_order() {
    let scene = Scene::new();
    let script =
        |term: u64| format!("echo begin {term} >> $LEDGER; sleep 0.01; echo end {term} >> $LEDGER");
    // Not in order: 1, 8, 15, …
    let terms: Vec<u64> = (0..24).map(|it| it * 7 % 24 + 1).collect();
    let start = |term: &u64| {
        let mut command = scene.command(*term, &["--wait", "60s"], &script(*term));
        let command = command.stderr(Stdio::null());
        (*term, command.spawn().expect("it runs"))
    };
    let started: Vec<_> = terms.iter().map(start).collect();
    let mut ran = Vec::new();
    for (term, mut process) in started {
        match process.wait().expect("it ends").code() {
            Some(0) => ran.push(term),
            code => assert_eq!(code, Some(1), "{term}"),
        }
    }
    ran.sort_unstable();
    let wanted: String = ran
        .iter()
        .map(|it| format!("begin {it}\nend {it}\n"))
        .collect();
    assert_eq!(scene.ledger(), wanted);
    assert_eq!(ran.last(), Some(&24), "the highest is never refused");
    assert_eq!(scene.mark(), "term 24\n");
}

/// What the documents show.
#[test]
fn the_example_for_shells_refuses_a_deposed_writer() {
    let example = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/fences/shell.sh"
    );
    let ran = Command::new(example).env("TENURE_BINARY", TENURE).output();
    let ran = ran.expect("bash runs");
    println!("{}", String::from_utf8_lossy(&ran.stdout));
    assert!(ran.status.success(), "{}", said(&ran));
}
