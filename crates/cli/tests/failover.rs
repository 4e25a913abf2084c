//! Fail-overs of real processes, on SQLite and on a real PostgreSQL: by clean
//! stop, by killing or stopping the supervisor or its guardian, by killing the
//! command. What the commands wrote down must not overlap.
//!
//! `TENURE_TAKEOVERS=20` makes the measured ones run that often; run with
//! `--nocapture` to see the figures.

#![allow(clippy::print_stdout, reason = "figures are printed")]

mod common;
#[path = "agent/pressure.rs"]
mod pressure;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Candidate, Ledger, Shared, TENURE, descendants, guardian_of, median, poll_until};
use pressure::Pressure;
use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;

const LEASE: &str = "2s";
/// So long that nobody waits for its end who is to take over at once, and that
/// a busy machine does not end it.
const LONG: &str = "20s";
const SOON: Duration = Duration::from_secs(30);

struct Pair {
    /// From before the successor was started.
    pressure: Pressure,
    shared: Shared,
    ledger: Ledger,
    leader: Candidate,
    _successor: Candidate,
    term: u64,
}

/// Two candidates, one of which leads.
fn pair(shared: Shared, lease: &str, stubborn: bool) -> Pair {
    let ledger = Ledger::new();
    let url = shared.url();
    let flags = ["--lease", lease];
    let command = ledger.command(stubborn);
    let leader = Candidate::start_with(&url, "first", &ledger, &flags, &command);
    let run = ledger.await_term_above(0, SOON);
    let pressure = Pressure::begin();
    let successor = Candidate::start_with(&url, "second", &ledger, &flags, &command);
    stands(&successor, "first");
    Pair {
        pressure,
        shared,
        ledger,
        leader,
        _successor: successor,
        term: run.term,
    }
}

/// Waits until a candidate sees the leader, and hears of changes.
fn stands(successor: &Candidate, leader: &str) {
    let leads = format!("{leader} leads");
    let seen = || {
        let log = successor.log();
        (log.contains(&leads) && log.contains("the watch is up")).then_some(())
    };
    poll_until(SOON, seen).expect("the successor sees the leader");
}

impl Pair {
    /// Waits for the next command; returns the gap between the two.
    fn take_over(&mut self) -> f64 {
        let next = self.ledger.await_term_above(self.term, SOON);
        let runs = self.ledger.runs();
        let before = runs
            .iter()
            .rev()
            .find(|run| run.term == self.term)
            .expect("the old one");
        self.term = next.term;
        next.first - before.last
    }

    /// How late anything may be that is to be done at once, in seconds; on a
    /// machine that kept nobody waiting, one.
    fn late(&self) -> f64 {
        self.pressure.allows()
    }
}

fn on_both(case: impl Fn(Shared)) {
    case(Shared::sqlite());
    case(Shared::postgres());
}

/// The kernel's letter for what a process does; `None` if it is gone.
fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.trim_start().chars().next()
}

/// Gone, or a zombie that waits for the process that adopted it.
fn is_gone(pid: Pid) -> Option<()> {
    state(pid).is_none_or(|state| state == 'Z').then_some(())
}

#[test]
fn a_clean_stop_hands_over_at_once() {
    on_both(|shared| {
        let mut pair = pair(shared, LONG, false);
        pair.leader.signal(Signal::TERM);
        let gap = pair.take_over();
        assert_eq!(pair.leader.process.wait().expect("it ends").code(), Some(0));
        assert!(gap < pair.late(), "took {gap} s");
    });
}

/// Asks the leader to resign, and waits until it has.
fn resign(url: &str) {
    let seen = Command::new(TENURE)
        .args(["leader", "payroll", "--json", "--store", url])
        .output()
        .expect("tenure runs");
    let seen: serde_json::Value = serde_json::from_slice(&seen.stdout).expect("an object");
    let id = seen["leader_id"].as_str().expect("an id");
    let asked = Command::new(TENURE)
        .args(["resign", "payroll", "--leader-id", id, "--store", url])
        .status();
    assert!(asked.expect("tenure runs").success());
}

#[test]
fn a_stubborn_command_is_killed_after_the_grace_however_long_the_lease_is() {
    for way in ["signal", "resign"] {
        let (shared, ledger) = (Shared::sqlite(), Ledger::new());
        let url = shared.url();
        let flags = ["--lease", "60s", "--grace", "1s", "--once"];
        let command = ledger.command(true);
        let mut leader = Candidate::start_with(&url, "only", &ledger, &flags, &command);
        ledger.await_term_above(0, SOON);
        let (asked, pressure) = (clock::boot(), Pressure::begin());
        if way == "signal" {
            leader.signal(Signal::TERM);
        } else {
            resign(&url);
        }
        leader.process.wait().expect("it ends");
        let took = clock::boot().since(asked);
        assert!(took >= Duration::from_secs(1), "killed after {took:?}");
        let most = Duration::from_secs_f64(4.0 + pressure.allows());
        assert!(took < most, "killed after {took:?}");
    }
}

/// `script` runs it in a terminal of its own; only standard input is that.
#[test]
fn a_terminal_that_hangs_up_stops_it() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let command = ledger.command(false).pop().expect("a script");
    let line = format!(
        "exec \"$TENURE\" run payroll --store \"$URL\" -- sh -c '{command}' >/dev/null 2>&1"
    );
    let mut terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("TENURE", TENURE)
        .env("URL", shared.url())
        .env("CANDIDATE", "hung-up")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("script, of util-linux");
    ledger.await_term_above(0, SOON);
    let all = descendants(terminal.id());
    let supervisor = all.iter().find(|(_, line)| line.contains("tenure run"));
    let (supervisor, _) = supervisor.unwrap_or_else(|| panic!("{all:?}"));
    let supervisor = Pid::from_raw(*supervisor).expect("a process id");
    kill_process(supervisor, Signal::HUP).expect("it runs");
    let stopped = poll_until(SOON, || is_gone(supervisor));
    if stopped.is_none() {
        kill_process(supervisor, Signal::KILL).expect("it runs");
    }
    assert!(stopped.is_some(), "it goes on");
    assert_eq!(terminal.wait().expect("it ends").code(), Some(0));
    assert_eq!(ledger.runs().len(), 1, "the command was started again");
}

#[test]
fn a_killed_supervisor_is_replaced_when_its_lease_is_over() {
    on_both(|shared| {
        let mut pair = pair(shared, LEASE, false);
        let children = descendants(pair.leader.process.id());
        let killed = clock::boot();
        pair.leader.signal(Signal::KILL);
        all_go(&children);
        let took = clock::boot().since(killed).as_secs_f64();
        let late = pair.late();
        assert!(took < late, "they outlive their supervisor for {took} s");
        let gap = pair.take_over();
        let late = pair.late();
        // The last renewal was at most an interval before the kill, unless it
        // was kept waiting.
        assert!(
            gap > 2.5 - late,
            "took over after {gap} s, before the lease allows"
        );
        assert!(
            gap < 2.0 * 1.2 - 0.7 + late,
            "took {gap} s, more than lease + 20 %, and may be {late} s late"
        );
        drop(pair.shared);
    });
}

/// Waits until all of these are gone.
fn all_go(processes: &[(i32, String)]) {
    for (pid, line) in processes {
        let pid = Pid::from_raw(*pid).expect("a process id");
        poll_until(SOON, || is_gone(pid))
            .unwrap_or_else(|| panic!("{line} has outlived its supervisor"));
    }
}

#[test]
fn a_stopped_supervisor_loses_its_command_before_the_successor_starts() {
    on_both(|shared| {
        let mut pair = pair(shared, LEASE, true);
        pair.leader.stop();
        let gap = pair.take_over();
        assert!(gap > 0.0, "overlap of {gap} s");
        pair.leader.signal(Signal::CONT);
        let told = || pair.leader.log().contains("is over for us").then_some(());
        poll_until(SOON, told).expect("it learns that its term is over");
        pair.ledger.runs();
    });
}

#[test]
fn an_ousted_candidate_stands_again_even_if_its_command_is_never_restarted() {
    for stubborn in [false, true] {
        let ledger = Ledger::new();
        let url = Shared::sqlite();
        let flags = ["--lease", LEASE, "--restart", "never"];
        let command = ledger.command(stubborn);
        let mut alone = Candidate::start_with(&url.url(), "alone", &ledger, &flags, &command);
        ledger.await_term_above(0, SOON);
        let guardian = guardian_of(&alone);
        let term = ledger.runs().iter().map(|run| run.term).max();
        let term = term.expect("a run");
        alone.stop();
        // The guardian ends with its command, and the lease soon after it.
        poll_until(SOON, || is_gone(guardian)).expect("it has ended the command");
        alone.signal(Signal::CONT);
        ledger.await_term_above(term, SOON);
        assert!(alone.process.try_wait().expect("its state").is_none());
        assert!(!alone.log().contains("resigned"), "{}", alone.log());
    }
}

#[test]
fn a_killed_command_hands_over_at_once() {
    on_both(|shared| {
        let mut pair = pair(shared, LONG, false);
        let all = descendants(pair.leader.process.id());
        let (shell, _) = all
            .iter()
            .find(|(_, line)| line.starts_with("sh -c"))
            .expect("the shell");
        let shell = Pid::from_raw(*shell).expect("a process id");
        kill_process(shell, Signal::KILL).expect("it runs");
        let gap = pair.take_over();
        assert!(gap < pair.late(), "took {gap} s");
        assert!(
            pair.leader.log().contains("ended by signal 9"),
            "{}",
            pair.leader.log()
        );
    });
}

#[test]
fn a_killed_guardian_takes_its_command_along_and_the_election_is_resigned() {
    on_both(|shared| {
        let mut pair = pair(shared, LONG, true);
        let guardian = guardian_of(&pair.leader);
        kill_process(guardian, Signal::KILL).expect("it runs");
        let gap = pair.take_over();
        assert!(gap < pair.late(), "took {gap} s");
        assert!(
            pair.leader.log().contains("the guardian has died"),
            "{}",
            pair.leader.log()
        );
    });
}

#[test]
fn a_stopped_guardian_is_killed_by_its_supervisor() {
    let mut pair = pair(Shared::sqlite(), LEASE, true);
    let guardian = guardian_of(&pair.leader);
    kill_process(guardian, Signal::STOP).expect("it runs");
    // Told to stop, the guardian does nothing; the supervisor has to.
    pair.leader.signal(Signal::TERM);
    let gap = pair.take_over();
    assert!(gap > 0.0 && gap < 2.0 + pair.late(), "took {gap} s");
    poll_until(SOON, || is_gone(guardian)).expect("it was killed");
}

#[test]
fn a_stopped_guardian_costs_the_leadership_and_another_takes_over() {
    let mut pair = pair(Shared::sqlite(), LEASE, true);
    kill_process(guardian_of(&pair.leader), Signal::STOP).expect("it runs");
    // Nobody asks anything: no renewal is sent that it has not confirmed.
    let gap = pair.take_over();
    assert!(gap > 0.0 && gap < 2.0 + pair.late(), "took {gap} s");
    let log = pair.leader.log();
    assert!(log.contains("the work did not confirm in time"), "{log}");
}

/// The hook is in debug builds only, and so is this test.
#[cfg(debug_assertions)]
#[test]
fn a_supervisor_stopped_between_winning_and_starting_starts_nothing() {
    // The supervisor sends the go-ahead after the stop, when its lease is over.
    // With SQLite it could be stopped while it holds the lock on the file, and
    // would keep all others out.
    let shared = Shared::postgres();
    let ledger = Ledger::new();
    let url = shared.url();
    let flags = ["--lease", LEASE];
    let hook = ("TENURE_TEST_STOP_BEFORE_START", "1");
    let command = ledger.command(false);
    let paused = Candidate::start_in(&url, "paused", &ledger, &flags, &command, &[hook]);
    let stopped = || (state(paused.pid()) == Some('T')).then_some(());
    poll_until(SOON, stopped).expect("it leads, and has stopped itself");
    assert!(ledger.runs().is_empty(), "it had started already");
    let rival = Candidate::start(&url, "rival", &ledger, &flags);
    ledger.await_term_above(1, SOON);
    paused.signal(Signal::CONT);
    let told = || paused.log().contains("is over for us").then_some(());
    poll_until(SOON, told).expect("it learns that its term is over");
    let renewed = ledger.runs().last().map_or(0.0, |run| run.last) + 1.0;
    let goes_on = || (ledger.runs().last()?.last > renewed).then_some(());
    poll_until(SOON, goes_on).expect("the rival goes on");
    let runs = ledger.runs();
    assert!(runs.iter().all(|run| run.candidate == "rival"), "{runs:?}");
    assert!(runs.iter().all(|run| run.term > 1), "{runs:?}");
    drop(rival);
}

/// A command that forks away into a session of its own is ended too.
#[test]
fn a_command_that_daemonises_is_ended() {
    let ledger = Ledger::new();
    let shared = Shared::sqlite();
    let inner = ledger
        .command(true)
        .last()
        .expect("the script")
        .replace('\'', "'\\''");
    let script = format!("setsid sh -c '(setsid sh -c '\\''{inner}'\\'' &)' & sleep 1000");
    let script = script.replace("trap '\\'''\\'' TERM; ", "");
    let command = ["sh", "-c", &script].map(str::to_owned);
    let candidate = Candidate::start_with(
        &shared.url(),
        "daemon",
        &ledger,
        &["--lease", LEASE],
        &command,
    );
    ledger.await_term_above(0, SOON);
    // Between two lines of the ledger one of them is not there.
    let all = || Some(descendants(candidate.process.id())).filter(|all| all.len() >= 4);
    let all = poll_until(SOON, all).expect("guardian, command, and what it left");
    let (killed, pressure) = (clock::boot(), Pressure::begin());
    candidate.signal(Signal::KILL);
    all_go(&all);
    let took = clock::boot().since(killed).as_secs_f64();
    let late = pressure.allows();
    assert!(
        took < 1.0 + late,
        "they outlive their supervisor for {took} s"
    );
}

#[test]
fn take_overs_are_measured() {
    let times = std::env::var("TENURE_TAKEOVERS")
        .ok()
        .and_then(|text| text.parse().ok());
    let times: usize = times.unwrap_or(3);
    for store in [Shared::sqlite(), Shared::postgres()] {
        let url = store.url();
        let ledger = Ledger::new();
        let mut stops = Vec::new();
        let mut crashes = Vec::new();
        let mut kills = Vec::new();
        for round in 0..times {
            stops.push(measured(&url, &ledger, round, |leader| {
                leader.signal(Signal::TERM);
            }));
            crashes.push(measured(&url, &ledger, round, |leader| {
                let all = descendants(leader.process.id());
                let shell = all.iter().find(|(_, line)| line.starts_with("sh -c"));
                let (shell, _) = shell.expect("the shell");
                let shell = Pid::from_raw(*shell).expect("a process id");
                kill_process(shell, Signal::KILL).expect("it runs");
            }));
            kills.push(measured(&url, &ledger, round, |leader| {
                leader.signal(Signal::KILL);
            }));
        }
        let scheme = url.split(':').next().unwrap_or_default();
        for (what, gaps) in [
            ("clean stop", stops),
            ("crash of CMD", crashes),
            ("kill -9", kills),
        ] {
            let (mut gaps, mut own): (Vec<f64>, Vec<f64>) = gaps
                .into_iter()
                .map(|(gap, waited)| (gap, gap - waited))
                .unzip();
            let middle = median(&mut gaps) * 1_000.0;
            let (low, high) = (gaps[0] * 1_000.0, gaps[gaps.len() - 1] * 1_000.0);
            println!(
                "{scheme}: take-over after {what}: median {middle:.0} ms of {times} \
                 (from {low:.0} to {high:.0})"
            );
            let most = if what == "kill -9" {
                2_400.0 + 100.0
            } else {
                500.0
            };
            let own = median(&mut own) * 1_000.0;
            assert!(own < most, "{what} on {scheme}: {middle} ms, {own} its own");
        }
    }
}

/// The gap between the last line of a leader's command and the first of its
/// successor's, and the time that the machine kept tasks waiting meanwhile.
fn measured(url: &str, ledger: &Ledger, round: usize, end: impl FnOnce(&Candidate)) -> (f64, f64) {
    let flags = ["--lease", LEASE];
    let before = ledger.runs().last().map_or(0, |run| run.term);
    let leader = Candidate::start(url, &format!("leader-{round}"), ledger, &flags);
    let first = ledger.await_term_above(before, SOON);
    let successor = Candidate::start(url, &format!("successor-{round}"), ledger, &flags);
    stands(&successor, &format!("leader-{round}"));
    let pressure = Pressure::begin();
    end(&leader);
    let next = ledger.await_term_above(first.term, SOON);
    let waited = pressure.waited();
    let runs = ledger.runs();
    let last = runs
        .iter()
        .rev()
        .find(|run| run.term == first.term)
        .expect("the leader's")
        .last;
    drop(leader);
    successor.signal(Signal::TERM);
    let mut successor = successor;
    successor.process.wait().expect("it ends");
    (next.first - last, waited)
}
