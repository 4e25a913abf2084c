//! A supervisor process under the control of a test, and what to watch it by.
//!
//! The supervisor is this test binary started once more, so that it can be
//! killed and stopped like a real one. It is told what to do over a socket,
//! a line an order, and answers with a line an event, with its time.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tenure::clock;
use tenure::core::time::Instant;

use crate::guard::{Guardian, SignalRequest, SignalRequests, StartOrder};
use crate::pressure::Pressure;

/// Separates the words of a line.
const WORD: char = '\u{1f}';
const SOCKET: &str = "GUARD_TEST_SOCKET";
/// Set in CMD's environment, and so in that of all it starts.
const MARK: &str = "GUARD_TEST_MARK";
/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How late an end may be on a machine that keeps nobody waiting.
pub(crate) const TOLERANCE: Duration = Duration::from_millis(700);

thread_local! {
    /// How long the machine has kept somebody waiting since the scene of this
    /// thread's test began: that much later an end may be.
    static PRESSURE: RefCell<Pressure> = RefCell::new(Pressure::begin());
}

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Not a test: the supervisor's process of all the others.
#[test]
fn supervisor() {
    let Some(path) = std::env::var_os(SOCKET) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let socket = UnixStream::connect(path).expect("the test listens");
    runtime.expect("a runtime").block_on(supervise(&socket));
}

async fn supervise(mut socket: &UnixStream) {
    let mut signals = SignalRequests::install().expect("signals");
    let mut guardian = Guardian::stand_by_as(env!("CARGO_BIN_EXE_tenure").as_ref()).expect("one");
    let (send, mut lines) = tokio::sync::mpsc::channel(16);
    let input = BufReader::new(socket.try_clone().expect("a clone"));
    std::thread::spawn(move || {
        for line in input.lines().map_while(Result::ok) {
            let _ = send.blocking_send(line);
        }
    });
    let mut over = false;
    loop {
        let said = tokio::select! {
            line = lines.recv() => match line {
                Some(line) if line == "drop" => return,
                Some(line) => obey(&guardian, &line),
                None => return,
            },
            signal = signals.next() => {
                match signal {
                    SignalRequest::Stop => guardian.stop(ms(60_000)),
                    SignalRequest::Kill => guardian.kill(),
                    SignalRequest::Forward(number) => guardian.signal(number),
                }
                format!("{signal:?}")
            }
            event = guardian.event(), if !over => {
                over = event.is_last();
                format!("{event:?}")
            }
        };
        let _ = writeln!(socket, "{} {said}", clock::boot().as_nanos());
    }
}

fn obey(guardian: &Guardian, line: &str) -> String {
    let mut words = line.split(WORD);
    let name = words.next().unwrap_or_default().to_owned();
    let mut number = || {
        words
            .next()
            .and_then(|word| word.parse::<u64>().ok())
            .expect("a number")
    };
    let at = clock::boot();
    match name.as_str() {
        "start" => {
            let (drain_at, kill_at) = (number(), number());
            let mark = words.next().expect("a mark");
            guardian.start(StartOrder {
                drain_at: Instant::from_nanos(drain_at),
                kill_at: Instant::from_nanos(kill_at),
                argv: words.map(OsString::from).collect(),
                env: vec![(MARK.into(), mark.into())],
            });
        }
        "extend" => {
            let (drain_at, kill_at) = (number(), number());
            guardian.extend(Instant::from_nanos(drain_at), Instant::from_nanos(kill_at));
        }
        "stop" => guardian.stop(ms(number())),
        "kill" => guardian.kill(),
        other => panic!("no such order: {other}"),
    }
    format!("did {name} {}", at.as_nanos())
}

/// One supervisor and what belongs to it.
pub(crate) struct Scene {
    pub(crate) supervisor: Child,
    pub(crate) stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    control: BufReader<UnixStream>,
    mark: String,
    path: PathBuf,
}

impl Scene {
    /// A supervisor whose guardian stands by.
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(env: &[(&str, &str)]) -> Self {
        PRESSURE.replace(Pressure::begin());
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("guard-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(&mark);
        let listener = UnixListener::bind(&path).expect("a socket");
        // With a descriptor that is left open on purpose: CMD must not get it.
        let mut supervisor = Command::new("sh")
            .args(["-c", "exec 7</dev/null; exec \"$@\"", "sh"])
            .arg(std::env::current_exe().expect("this binary"))
            .args(["scene::supervisor", "--exact", "--nocapture", "-q"])
            .env(SOCKET, &path)
            .env_remove(MARK)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a supervisor");
        let (control, _) = listener.accept().expect("it connects");
        control.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut scene = Self {
            stdin: supervisor.stdin.take(),
            stdout: BufReader::new(supervisor.stdout.take().expect("piped")),
            supervisor,
            control: BufReader::new(control),
            mark,
            path,
        };
        scene.expect("Ready");
        scene
    }

    /// Gives the go-ahead; the times count from now and are returned.
    pub(crate) fn start(&mut self, drain: Duration, kill: Duration, argv: &[&str]) -> Times {
        let times = self.go_ahead(drain, kill, argv);
        self.expect("did start");
        times
    }

    fn go_ahead(&mut self, drain: Duration, kill: Duration, argv: &[&str]) -> Times {
        let now = clock::boot();
        let (drain, kill) = (now.after(drain), now.after(kill));
        let mut words = vec![drain.as_nanos().to_string(), kill.as_nanos().to_string()];
        words.push(self.mark.clone());
        words.extend(argv.iter().map(|word| (*word).to_owned()));
        self.say("start", &words);
        Times { drain, kill }
    }

    /// Runs a shell script, until it has said "up" and its process number.
    pub(crate) fn script(&mut self, drain: Duration, kill: Duration, script: &str) -> Cmd {
        let script = format!("{script}\necho up $$ $PPID $deep; exec sleep 1000");
        let script = script.trim_start();
        let times = self.go_ahead(drain, kill, &["sh", "-c", script]);
        // Its start is an event too: a CMD that ended before it was up would
        // make a misleading failure.
        self.expect("Started");
        let line = self.line("up ");
        let mut words = line
            .split(' ')
            .skip(1)
            .map(|word| word.parse().expect("a number"));
        Cmd {
            pid: words.next().expect("its own"),
            guardian: words.next().expect("its parent's"),
            deep: words.next(),
            times,
        }
    }

    pub(crate) fn say(&mut self, order: &str, words: &[String]) {
        let mut line = order.to_owned();
        for word in words {
            line.push(WORD);
            // The socket speaks in lines, scripts need not.
            line.push_str(&word.replace('\n', ";"));
        }
        writeln!(self.control.get_mut(), "{line}").expect("the supervisor listens");
    }

    /// Waits for an event that begins like this; its time and text.
    pub(crate) fn expect(&mut self, event: &str) -> (Instant, String) {
        loop {
            let (at, said) = self.next().unwrap_or_else(|| panic!("no {event}"));
            if said.starts_with(event) || event == "Gone" && is_late(&said) {
                return (at, said);
            }
            let last = said.starts_with("Gone") || said.starts_with("Lost");
            assert!(!last, "{said} instead of {event}");
        }
    }

    pub(crate) fn next(&mut self) -> Option<(Instant, String)> {
        let mut line = String::new();
        self.control.read_line(&mut line).expect("in time");
        let (at, said) = line.trim_end().split_once(' ')?;
        Some((
            Instant::from_nanos(at.parse().expect("a time")),
            said.to_owned(),
        ))
    }

    /// Waits for the last event, whichever of the two it is: on a very slow
    /// machine the watchdog takes over from a guardian that does its best.
    pub(crate) fn expect_last(&mut self) {
        loop {
            let (_, said) = self.next().expect("a last event");
            if said.starts_with("Gone") || said.starts_with("Lost") {
                return;
            }
        }
    }

    /// The next line of CMD's output that begins like this.
    pub(crate) fn line(&mut self, start: &str) -> String {
        loop {
            if self.stdout.buffer().is_empty() {
                ready(self.stdout.get_ref(), "output");
            }
            let mut line = String::new();
            let count = self.stdout.read_line(&mut line).expect("output");
            assert!(count > 0, "no line {start:?}");
            if line.starts_with(start) {
                return line.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn stderr(&mut self) -> String {
        let mut text = String::new();
        let mut stderr = self.supervisor.stderr.take().expect("piped");
        stderr.read_to_string(&mut text).expect("output");
        text
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.supervisor.id()).expect("a process number")
    }

    /// Nothing of CMD is left anywhere, and no zombie with the supervisor.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.marked(), Vec::<i32>::new(), "still running");
        assert_eq!(children(self.pid()), "", "the supervisor's children");
    }

    /// Every process of the machine that inherited this scene's mark.
    pub(crate) fn marked(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.mark).into_bytes();
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|entry| entry == mark)
        })
        .collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// When CMD is to be asked to end, and when it is to be ended.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) drain: Instant,
    pub(crate) kill: Instant,
}

/// A running CMD.
pub(crate) struct Cmd {
    pub(crate) pid: i32,
    pub(crate) guardian: i32,
    /// What the script has put into `$deep`: a process it has detached.
    pub(crate) deep: Option<i32>,
    pub(crate) times: Times,
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a number"), signal).expect("sent");
}

/// The children of a process, as the kernel lists them.
pub(crate) fn children(of: i32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{of}/task"))
        .expect("it lives")
        .flatten();
    let list = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    tasks
        .filter_map(|task| list(task).ok())
        .collect::<String>()
        .trim()
        .to_owned()
}

/// Waits for the end of a process; when that was noticed.
pub(crate) fn end_of(pid: i32) -> Instant {
    if let Some(pidfd) = hold(pid) {
        ended(&pidfd);
    }
    clock::boot()
}

/// A process that cannot be mistaken for another; `None` if it is gone.
pub(crate) fn hold(pid: i32) -> Option<std::os::fd::OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

pub(crate) fn ended(pidfd: &std::os::fd::OwnedFd) {
    ready(pidfd, "the end of a process");
}

/// Waits until there is something to read.
fn ready(fd: impl std::os::fd::AsFd, what: &str) {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let patience = Timespec {
        tv_sec: i64::try_from(PATIENCE.as_secs()).expect("small"),
        tv_nsec: 0,
    };
    assert_ne!(poll(&mut fds, Some(&patience)), Ok(0), "no {what} in time");
}

/// Whether the watchdog has taken over from a guardian that was kept waiting for
/// longer than the watchdog waits for it: on such a machine that is no mistake.
fn is_late(said: &str) -> bool {
    let waited = PRESSURE.with_borrow(Pressure::waited);
    said.starts_with("Lost { why: \"the guardian did not answer in time") && waited > 0.1
}

/// `at` is not before `from`, and not much after `until`.
#[track_caller]
pub(crate) fn assert_between(at: Instant, from: Instant, until: Instant) {
    assert!(at >= from, "too early by {:?}", from.since(at));
    let late = at.since(until);
    let waited = PRESSURE.with_borrow(Pressure::waited);
    let most = TOLERANCE + Duration::from_secs_f64(waited);
    assert!(late <= most, "too late by {late:?}, and may be by {most:?}");
}
