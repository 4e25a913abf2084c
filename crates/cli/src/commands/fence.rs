//! `tenure fence`: a command that a later leader's command never overlaps.
//!
//! ```text
//! 1 raise the mark to our term, on disk     refused if it is higher
//! 2 take the mark's lock                    at most --wait, then perhaps KILL
//! 3 look at the mark again                  refused if it is higher
//! 4 run CMD, which inherits the lock        until all that inherited it has ended
//! ```
//!
//! Why a command of term t never runs beside or after one of a higher term: the
//! latter begins with the lock held (2) and the mark at its own term (1). The
//! mark never falls, so a command of term t that takes the lock later is
//! refused (3); and one that took it earlier, and all that it has started, has
//! ended, or the lock would not be free.
//!
//! The mark is raised before the lock is taken, and not under it, so that a
//! leader that is too late begins nothing new while its successor waits, and
//! none of its short commands takes the lock before the successor again and
//! again.
//!
//! Both this process and CMD hold the lock. CMD goes on holding it if this
//! process is killed; and where CMD closes what it inherits (`sudo` does), this
//! process holds it.
//!
//! This process leads a process group of its own, so that whom it keeps waiting
//! can kill it with CMD and nothing else. At a terminal it stays in the group
//! of the job: another one would get no Ctrl-C. Signals that are sent to it go
//! on to CMD.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setpgid};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tenure::clock;
use tenure::core::time::Instant;
use tenure::error::plain;
use tenure_fence::lock::{self, Holder, LockRequest, MarkLock};
use tenure_fence::mark::{Mark, MarkError};
use tenure_fence::{Deposed, Term};
use tenure_runtime::filesystem;

use crate::failure::{Failure, usage};
use crate::{args, config, program};

/// How long what was killed may take to end: the kernel ends it at its next
/// step, unless it waits for a disk.
const KILLED_WITHIN: Duration = Duration::from_secs(10);
/// How many holders an error names.
const HOLDERS_SHOWN: usize = 8;

pub(crate) fn fence(args: &args::Fence) -> Result<ExitCode, Failure> {
    let wait = config::duration("--wait", &args.wait)?;
    let (program, rest) = args
        .command
        .split_first()
        .ok_or_else(|| usage("expected a command after --"))?;
    if program == "--" {
        return Err(usage(
            "expected one -- before the command, found two; leave one out",
        ));
    }
    if let Err(found) = program::find(program) {
        return Ok(not_started(&found.why, found.is_missing));
    }
    let term = Term::new(args.term).ok_or_else(|| usage("expected a term below 2^63"))?;
    let mark = Mark::at(&args.mark);
    refuse_fuse(&mark)?;
    let is_at_terminal = leave_group()?;
    let turn = Turn {
        mark: &mark,
        term,
        until: clock::boot().after(wait),
        wait,
    };
    turn.record()?;
    let held = turn.lock(args.kill)?;
    turn.check()?;
    let noted = held.note_term(term);
    noted.map_err(|error| broken(&mark, "to note the term in the lock of", error))?;
    // CMD inherits the lock; nothing else is started in this process.
    let inherited = held.inherited()?;
    let signals = Signals::new(forwarded(is_at_terminal))?;
    let child = match Command::new(program).args(rest).spawn() {
        Ok(child) => child,
        Err(error) => {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(not_started(&error, is_missing));
        }
    };
    let code = supervise(child, signals)?;
    drop((held, inherited));
    Ok(ExitCode::from(code))
}

/// Refuses a mark on a file system of FUSE whose locks may not reach all commands. What
/// locks on a file system that machines share reach is for its user to know.
fn refuse_fuse(mark: &Mark) -> Result<(), Failure> {
    match filesystem::shared_at(mark.path()) {
        Some(shared) if shared.is_fuse => Err(usage(format!(
            "{}: expected a mark on a local disk, found it on {}: commands of two terms could run \
             at once; name a mark on a disk of this machine without FUSE with --mark",
            mark.path().display(),
            shared.found()
        ))),
        _ => Ok(()),
    }
}

/// Leads a process group of its own, unless this is the job in front of a
/// terminal. Whether it is.
fn leave_group() -> io::Result<bool> {
    let group = lock::process_group(Path::new("/proc/self"));
    let in_front = [tcgetpgrp(io::stdin()), tcgetpgrp(io::stderr())];
    let is_at_terminal = in_front.into_iter().flatten().any(|it| Some(it) == group);
    // The leader of a session has one already, and may not make another.
    if !is_at_terminal && group != Some(rustix::process::getpid()) {
        setpgid(None, None)?;
    }
    Ok(is_at_terminal)
}

/// Which signals CMD gets that are sent to this process. The terminal sends
/// its own to all of the job, CMD too.
fn forwarded(is_at_terminal: bool) -> &'static [i32] {
    const ALL: &[i32] = &[SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGINT, SIGQUIT];
    if is_at_terminal { &ALL[..3] } else { ALL }
}

/// One command's turn at a mark.
struct Turn<'a> {
    mark: &'a Mark,
    term: Term,
    until: Instant,
    wait: Duration,
}

impl Turn<'_> {
    fn left(&self) -> Duration {
        self.until.since(clock::boot())
    }

    /// Raises the mark. This waits for a process that is raising it, which may
    /// be stopped, so a thread does it.
    fn record(&self) -> Result<(), Failure> {
        // In this order: the lock is made after the mark.
        let was_used = MarkLock::path(self.mark).exists();
        if was_used && self.mark.read().map_err(told)?.is_none() {
            let mark = self.mark.path().display();
            return Err(usage(format!(
                "{mark}: expected the mark of a fence, found none, though {mark}.lock says that \
                 there was one: which terms it had seen is not known; write the highest term that \
                 has led as `term N` and a newline, or remove {mark}.lock too if none has"
            )));
        }
        let (send, done) = std::sync::mpsc::channel();
        let (mark, term) = (self.mark.clone(), self.term);
        let raise = move || drop(send.send(mark.raise(term)));
        let thread = std::thread::Builder::new().name("tenure-fence-mark".into());
        thread.spawn(raise)?;
        match done.recv_timeout(self.left()) {
            Ok(raised) => raised.map_err(told),
            Err(_) => Err(self.not_raised()),
        }
    }

    /// Whose turn it is to raise the mark is not known to be of a lower term,
    /// so `--kill` does not end it.
    fn not_raised(&self) -> Failure {
        let found = match lock::raising(self.mark) {
            Ok(holders) if !holders.is_empty() => format!(
                "that {} is raising it and does not go on; end it: the mark stays whole",
                shown(&holders)
            ),
            _ => "that another process is raising it and does not go on, or that the file \
                  system hangs"
                .to_owned(),
        };
        Failure::Other(anyhow::anyhow!(
            "{}: expected to raise the mark within {:?}, found {found}",
            self.mark.path().display(),
            self.wait
        ))
    }

    /// Takes the lock. Past the time, and with `kill`, what holds it in a lower
    /// term is killed.
    fn lock(&self, kill: bool) -> Result<MarkLock, Failure> {
        let request = MarkLock::request(self.mark)?;
        if let Some(held) = request.within(self.left()).map_err(told)? {
            return Ok(held);
        }
        // A higher term may wait as well; then it is not for us to kill.
        self.check()?;
        let holders = self.holders()?;
        let held_in = lock::held_in(self.mark);
        let held_in = held_in.map_err(|error| broken(self.mark, "to read the lock of", error))?;
        let is_lower = held_in.is_none_or(|it| it < self.term);
        let advice = match (kill, is_lower) {
            (true, true) => return self.kill(&request, &holders),
            (false, true) => "give a longer --wait, or --kill, which kills them",
            (_, false) => "--kill kills commands of lower terms alone; give a longer --wait",
        };
        Err(Failure::Other(anyhow::anyhow!(
            "{}: expected the lock within {:?}, found it held{} by {}; {advice}",
            self.mark.path().display(),
            self.wait,
            held_in.map_or_else(String::new, |it| format!(" in term {it}")),
            shown(&holders)
        )))
    }

    fn kill(&self, request: &LockRequest, holders: &[Holder]) -> Result<MarkLock, Failure> {
        let path = self.mark.path().display();
        tracing::warn!("{path}: killing {}, of a lower term", shown(holders));
        // It may have ended by itself since the look.
        let killed = lock::kill(holders);
        let patience = if killed.is_ok() {
            KILLED_WITHIN
        } else {
            Duration::ZERO
        };
        if let Some(held) = request.within(patience).map_err(told)? {
            return Ok(held);
        }
        killed.map_err(|error| anyhow::anyhow!("{path}: {error}"))?;
        Err(Failure::Other(anyhow::anyhow!(
            "{path}: expected the lock to be free within {KILLED_WITHIN:?} of killing what held \
             it, found it held by {}",
            shown(&self.holders()?)
        )))
    }

    fn holders(&self) -> Result<Vec<Holder>, Failure> {
        let found = lock::holders(self.mark);
        found.map_err(|error| broken(self.mark, "to see what holds the lock of", error))
    }

    /// Whether the mark is still at our term: a higher one may have been
    /// recorded while this process waited.
    fn check(&self) -> Result<(), Failure> {
        match self.mark.read().map_err(told)? {
            Some(seen) if seen == self.term => Ok(()),
            Some(seen) if seen > self.term => {
                let (term, seen) = (self.term, Some(seen));
                Err(told(Deposed { term, seen }.into()))
            }
            seen => Err(usage(format!(
                "{}: expected the mark to be {} as it was recorded, found {}: it was set back or \
                 removed meanwhile",
                self.mark.path().display(),
                self.term,
                seen.map_or_else(|| "none".to_owned(), |it| it.to_string())
            ))),
        }
    }
}

/// What a mark's error means for the exit code: a person has to look at a mark
/// that is damaged, or that this user may not use.
fn told(error: MarkError) -> Failure {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match error {
        MarkError::Damaged(text) => usage(text),
        MarkError::Io { error: ref why, .. } if why.kind() == PermissionDenied => usage(format!(
            "{error}; have the mark's directory, and the files of the mark in it, belong to the \
             user that runs this, or name a mark elsewhere with --mark"
        )),
        MarkError::Io { error: ref why, .. } if why.kind() == ReadOnlyFilesystem => usage(format!(
            "{error}; mount it for writing, or name a mark elsewhere with --mark"
        )),
        error => Failure::Other(error.into()),
    }
}

fn broken(mark: &Mark, what: &str, error: io::Error) -> Failure {
    let path = mark.path().display();
    Failure::Other(anyhow::anyhow!("expected {what} {path}: {error}"))
}

fn shown(holders: &[Holder]) -> String {
    let name = |it: &Holder| format!("{} ({})", it.pid, plain(&it.name));
    let mut names: Vec<_> = holders.iter().take(HOLDERS_SHOWN).map(name).collect();
    match holders.len() {
        0 => return "processes that /proc does not show".to_owned(),
        all if all > HOLDERS_SHOWN => names.push(format!("{} more", all - HOLDERS_SHOWN)),
        _ => {}
    }
    format!("process {}", names.join(", "))
}

/// Logs why the command was not started, and gives the exit code of a shell for it.
fn not_started(why: &dyn fmt::Display, is_missing: bool) -> ExitCode {
    tracing::error!("the command was not started: {why}");
    ExitCode::from(if is_missing { 127 } else { 126 })
}

/// Waits for the end of CMD, and passes signals on to it. Its code.
fn supervise(mut child: Child, mut signals: Signals) -> Result<u8, Failure> {
    use std::os::unix::process::ExitStatusExt as _;
    // By this no signal reaches a process that has CMD's id after it.
    let target = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let forward = move || {
        for number in signals.forever() {
            if let Some(signal) = Signal::from_named_raw(number) {
                // It has ended: then this process ends, too.
                let _ = pidfd_send_signal(&target, signal);
            }
        }
    };
    let thread = std::thread::Builder::new().name("tenure-fence-signals".into());
    thread.spawn(forward)?;
    let status = child.wait()?;
    let signal = status.signal().map(|it| 128 + it);
    let code = status
        .code()
        .or(signal)
        .and_then(|it| u8::try_from(it).ok());
    Ok(code.unwrap_or(1))
}
