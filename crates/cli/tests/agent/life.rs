//! Agents that are killed, stopped, drained and restarted.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;

use super::common::poll_until;
use super::fixture::{Fixture, PATIENCE};
use super::pressure::Pressure;
use super::stamps::{self, now};

/// For restarts, which a busy machine must make in time.
const LONG: [&str; 2] = ["--lease", "8s"];

/// Three agents, four workloads and one that is not HA; one agent is killed.
fn one_of_three_is_killed(fixture: &Fixture) {
    let flags = ["--quorum", "2"];
    let [mut one, two, three] = ["one", "two", "three"].map(|name| fixture.node(name, &flags));
    for (name, node) in [("a", "one"), ("b", "one"), ("c", "two"), ("d", "three")] {
        fixture.deploy(name, &["--node", node, "--instances", "2"]);
    }
    fixture.deploy("own", &["--node", "one", "--no-ha"]);
    let all = ["a", "b", "c", "d"];
    fixture.all_run(&all, |_| true);
    let before = ["c", "d"].map(|name| fixture.stamps.last(name).expect("it runs"));
    let (killed, pressure) = (now(), Pressure::begin());
    one.kill();
    fixture.all_run(&all, |node| node != "one");
    let late = pressure.allows();
    let after = ["c", "d"].map(|name| fixture.stamps.last(name).expect("it runs"));
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.pid, after.pid, "what was elsewhere is not disturbed");
    }
    for name in ["a", "b"] {
        let shown = fixture.shows(name, |it| it["state"] == "running" && it["from"] == "one");
        assert_eq!(shown["from_how"], "died");
        assert_eq!(shown["instances"], 2);
        let run = fixture.stamps.last(name).expect("it runs");
        let took = run.first - killed;
        // The successor lives, so no node waits for a jitter.
        assert!(
            took < fixture.lease() * 1.01 + late,
            "{name} took {took} s, and may be {late} s late"
        );
        // The other instance moved along.
        let other = format!("{name}/1");
        let runs = fixture.stamps.runs();
        let other = runs.iter().rfind(|it| it.workload == other);
        assert_eq!(other.map(|it| &it.node), Some(&run.node));
    }
    assert_eq!(
        fixture.workload("own"),
        None,
        "what is not HA dies with its node"
    );
    assert_eq!(fixture.member("one"), None);
    drop((two, three));
    fixture.stamps.runs();
}

#[test]
fn three_agents_and_one_is_killed_on_sqlite() {
    one_of_three_is_killed(&Fixture::sqlite());
}

#[test]
fn three_agents_and_one_is_killed_on_postgres() {
    one_of_three_is_killed(&Fixture::postgres());
}

#[test]
fn three_agents_and_one_is_killed_on_a_cluster() {
    one_of_three_is_killed(&Fixture::cluster());
}

#[test]
fn a_drained_node_hands_everything_on_and_leaves() {
    let fixture = Fixture::sqlite();
    let (mut one, mut two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    for name in ["a", "b", "c"] {
        fixture.deploy(name, &["--node", "one"]);
    }
    fixture.deploy("own", &["--node", "one", "--no-ha"]);
    let said = fixture.done(&["drain", "one", "--via", "two"]);
    assert!(said.contains("one has handed on"), "{said}");
    assert_eq!(one.wait_for_exit(), 0);
    fixture.all_run(&["a", "b", "c"], |node| node == "two");
    for name in ["a", "b", "c"] {
        let shown = fixture.shows(name, |it| it["state"] == "running");
        assert_eq!(
            (&shown["from"], &shown["from_how"]),
            (&"one".into(), &"moved".into())
        );
    }
    assert_eq!(fixture.workload("own"), None);
    assert!(
        !two.log_text().contains("has died"),
        "a clean leave is no death"
    );
    // The last one keeps its work for a node that comes later.
    two.signal(Signal::TERM);
    assert_eq!(two.wait_for_exit(), 0);
    let shown = fixture.workload("a").expect("it is kept");
    assert_eq!(shown["state"], "waiting for a node");
    let _three = fixture.node("three", &[]);
    fixture.all_run(&["a", "b", "c"], |node| node == "three");
}

#[test]
fn a_stopped_agent_loses_its_work_before_the_successor_starts_it() {
    let fixture = Fixture::sqlite();
    let (one, two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    fixture.deploy_as("a", &["--node", "one"], &fixture.stamps.stubborn());
    fixture.deploy("alone", &["--node", "one", "--no-ha"]);
    let id = one.id();
    one.stop();
    // The checker sees two at once, should the first one live too long.
    fixture.all_run(&["a"], |node| node == "two");
    // For longer than the first one would be silent by chance.
    let settled = || {
        let run = fixture.stamps.last("a").filter(|run| run.node == "two")?;
        (run.last - run.first > 0.3).then_some(())
    };
    poll_until(PATIENCE, settled).expect("it runs on");
    one.signal(Signal::CONT);
    one.wait_for_log("everything is ended");
    let joined = || (one.id() != id).then_some(());
    poll_until(PATIENCE, joined).expect("it joins again, under another id");
    for agent in [&one, &two] {
        agent.wait_for_log("deployed with --no-ha: alone;");
    }
    let said = one.log_text();
    assert!(!said.contains("another node has this name"), "{said}");
    // It came after the other, and is shown where its name is.
    let nodes = fixture.ps().into_iter().filter(|it| it["type"] == "node");
    let nodes: Vec<_> = nodes.map(|it| it["node"].to_string()).collect();
    assert!(nodes.is_sorted(), "{nodes:?}");
    fixture.deploy("b", &["--node", "one"]);
    fixture.all_run(&["a", "b"], |_| true);
    assert_eq!(fixture.stamps.last("a").expect("it runs").node, "two");
}

/// The same with guardians that are told to wait too long: the checker is to
/// see it, or it would see nothing.
#[test]
fn a_planted_mistake_is_seen() {
    let fixture = Fixture::sqlite();
    let late = ["env", "TENURE_TEST_LATE_MS=12000"];
    let one = fixture.start_in(&late, "one", &[]);
    one.wait_for_log("joined as");
    let _two = fixture.node("two", &[]);
    fixture.deploy_as("a", &["--node", "one"], &fixture.stamps.stubborn());
    one.stop();
    let wrong = poll_until(PATIENCE, || {
        let wrong = stamps::wrong(&fixture.stamps.all());
        wrong.into_iter().next()
    });
    let wrong = wrong.expect("two at once");
    assert!(wrong.contains("two at once"), "{wrong}");
}

#[test]
fn an_agent_that_is_restarted_in_time_goes_on() {
    let fixture = Fixture::sqlite();
    let (mut one, two) = (fixture.node("one", &LONG), fixture.node("two", &LONG));
    fixture.deploy("a", &["--node", "one", "--instances", "2"]);
    let before = fixture.stamps.last("a").expect("it runs");
    let restarts = |it: &serde_json::Value| it["restarts"].as_u64() == Some(0);
    for _ in 0..3 {
        one.kill();
        one = fixture.start("one", &LONG);
        one.wait_for_log("going on as");
        fixture.all_run(&["a"], |node| node == "one");
    }
    let until = now() + 9.0;
    poll_until(PATIENCE, || (now() > until).then_some(()));
    fixture.all_run(&["a"], |node| node == "one");
    let after = fixture.stamps.last("a").expect("it runs");
    assert_eq!((before.pid, before.fence), (after.pid, after.fence));
    assert!(!two.log_text().contains("has died"), "{}", two.log_text());
    // The next life knows of it, and can do with it what the first could.
    fixture.shows("a", |it| {
        it["state"] == "running" && restarts(it) && it["fence"] == after.fence
    });
    fixture.done(&["undeploy", "a"]);
    assert_eq!(
        fixture
            .stamps
            .runs_on("a")
            .filter(|_| fixture.workload("a").is_some()),
        None
    );
    drop(one);
}

/// What becomes ready while no agent is there to hear it is shown as what it
/// is by the next one.
#[test]
fn a_workload_that_became_ready_between_two_lives_is_shown_as_running() {
    let fixture = Fixture::sqlite();
    let mut one = fixture.node("one", &LONG);
    fixture.deploy("a", &["--ready", "1s", "--no-wait"]);
    fixture.all_run(&["a"], |_| true);
    one.kill();
    let ready = fixture.stamps.last("a").expect("it runs").first + 1.5;
    poll_until(PATIENCE, || (now() > ready).then_some(()));
    let one = fixture.start("one", &LONG);
    one.wait_for_log("going on as");
    let shown = fixture.shows("a", |it| it["state"] == "running");
    let run = fixture.stamps.last("a").expect("it runs");
    assert_eq!(shown["fence"], run.fence);
    assert_eq!(shown["restarts"].as_u64(), Some(0));
    assert_eq!(fixture.stamps.runs().len(), 1, "it was not disturbed");
}

#[test]
fn an_agent_that_comes_back_with_other_settings_ends_what_it_had() {
    let fixture = Fixture::sqlite();
    let (mut one, two) = (fixture.node("one", &LONG), fixture.node("two", &LONG));
    let id = one.id();
    fixture.deploy("a", &["--node", "one"]);
    one.kill();
    // The log goes on: wait for what is said once more.
    let again = fixture.start("one", &["--lease", "8s", "--label", "zone=b"]);
    again.wait_for_log("ending 1 workload of an earlier incarnation");
    let joined = || (again.id() != id).then_some(());
    poll_until(PATIENCE, joined).expect("it joins under another id");
    // Nobody needs to wait for the silence of the old one.
    two.wait_for_log("has died");
    fixture.all_run(&["a"], |_| true);
    let shown = fixture.member("one").expect("it is there");
    assert_eq!(shown["labels"][0], "zone=b");
    fixture.stamps.runs();
    drop(one);
}

#[test]
fn a_shim_that_is_killed_or_hangs_is_replaced() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &[]);
    fixture.deploy_as("a", &[], &fixture.stamps.stubborn());
    for signal in [Signal::KILL, Signal::STOP] {
        fixture.shows("a", |it| it["state"] == "running");
        let before = fixture.writes("a").pid;
        kill_process(one.below("__steward"), signal).expect("it runs");
        let again = || fixture.stamps.last("a").filter(|run| run.pid != before);
        poll_until(PATIENCE, again)
            .unwrap_or_else(|| panic!("it is not started again: {signal:?}"));
        fixture.all_run(&["a"], |node| node == "one");
    }
    assert!(
        !one.log_text().contains("everything is ended"),
        "the node lives on"
    );
    fixture.shows("a", |it| it["restarts"].as_u64() >= Some(2));
}

/// Whatever a hung shim keeps an agent from: to begin, to end what a former
/// life has left, or to end.
#[test]
fn a_shim_that_hangs_does_not_keep_its_agent_out() {
    let fixture = Fixture::sqlite();
    let mut one = fixture.node("one", &[]);
    fixture.deploy_as("a", &[], &fixture.stamps.stubborn());
    let before = fixture.writes("a").pid;
    let shim = one.below("__steward");
    // The end of its agent would wake it.
    one.kill();
    kill_process(shim, Signal::STOP).expect("it runs");
    let mut again = fixture.node("one", &[]);
    again.wait_for_log("the steward (shim) of this node does not answer");
    let other = || fixture.stamps.last("a").filter(|run| run.pid != before);
    poll_until(PATIENCE, other).expect("it is started again, by another steward");
    fixture.all_run(&["a"], |node| node == "one");
    // Asked twice, it ends everything at once; its shim hangs, and hears
    // of nothing.
    kill_process(again.below("__steward"), Signal::STOP).expect("it runs");
    again.signal(Signal::TERM);
    again.wait_for_log("asked to stop");
    let echo = clock::boot().after(Duration::from_millis(700));
    poll_until(PATIENCE, || (clock::boot() >= echo).then_some(()));
    again.signal(Signal::TERM);
    again.wait_for_exit();
    fixture.stamps.runs();
}

/// Processes that are killed in the end, whatever became of the test.
struct Killed(Vec<Pid>);

impl Drop for Killed {
    fn drop(&mut self) {
        for pid in &self.0 {
            // Most have ended; their numbers are not given anew so soon.
            let _ = kill_process(*pid, Signal::KILL);
        }
    }
}

/// The kernel wakes the shim when the agent is killed, and that one kills a
/// guardian that is still stopped.
#[test]
fn an_agent_that_is_killed_beside_stopped_processes_leaves_nothing_behind() {
    let fixture = Fixture::sqlite();
    let (mut one, two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    fixture.deploy_as("a", &["--node", "one"], &fixture.stamps.stubborn());
    let before = fixture.writes("a").pid;
    let cmd = i32::try_from(before).ok().and_then(Pid::from_raw);
    let held = ["__guardian a ", "__steward"].map(|word| one.below(word));
    let _killed = Killed(held.into_iter().chain(cmd).collect());
    for process in held {
        kill_process(process, Signal::STOP).expect("it runs");
    }
    one.kill();
    // The checker sees two at once, should the first one live too long.
    fixture.all_run(&["a"], |node| node == "two");
    let settled = || {
        let run = fixture.stamps.last("a").filter(|run| run.node == "two")?;
        (run.last - run.first > 0.3).then_some(())
    };
    poll_until(PATIENCE, settled).expect("it runs on");
    assert!(
        !fs::exists(format!("/proc/{before}")).expect("/proc"),
        "it runs on"
    );
    fixture.stamps.runs();
    drop(two);
}

/// The agent itself kills a shim that hangs, and the kernel wakes its
/// guardian.
#[test]
fn a_shim_and_a_guardian_that_hang_are_replaced() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &[]);
    fixture.deploy_as("a", &[], &fixture.stamps.stubborn());
    let before = fixture.writes("a").pid;
    let held = ["__guardian a ", "__steward"].map(|word| one.below(word));
    let _killed = Killed(held.to_vec());
    for process in held {
        kill_process(process, Signal::STOP).expect("it runs");
    }
    let again = || {
        let run = fixture.stamps.last("a").filter(|run| run.pid != before)?;
        (run.last - run.first > 0.3).then_some(())
    };
    poll_until(PATIENCE, again).expect("it is started again, and runs on");
    fixture.stamps.runs();
}

#[test]
fn a_guardian_that_is_killed_takes_its_workload_along_and_it_is_started_again() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &[]);
    fixture.deploy("a", &[]);
    let before = fixture.stamps.last("a").expect("it runs").pid;
    kill_process(one.below("__guardian a "), Signal::KILL).expect("it runs");
    let again = || fixture.stamps.last("a").filter(|run| run.pid != before);
    poll_until(PATIENCE, again).expect("it is started again");
    one.wait_for_log("a failed (1 in a row): the guardian ended by signal 9");
    fixture.stamps.runs();
}

/// A second is enough to see that they are silent; `TENURE_PAUSE_SECONDS=120`
/// is the long form.
#[test]
fn a_store_that_is_gone_fences_the_nodes_and_all_is_well_when_it_is_back() {
    let fixture = Fixture::cluster();
    let (one, two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    let names = ["a", "b"];
    for (name, node) in names.iter().zip(["one", "two"]) {
        fixture.deploy(name, &["--node", node]);
    }
    let servers = fixture.servers();
    let (gone, pressure) = (now(), Pressure::begin());
    for server in &servers {
        kill_process(*server, Signal::STOP).expect("it runs");
    }
    for agent in [&one, &two] {
        agent.wait_for_log("everything is ended");
    }
    let (took, late) = (now() - gone, pressure.allows());
    assert!(
        took < fixture.lease() + late,
        "they knew by themselves, in {took} s, and may be {late} s late"
    );
    let pause = std::env::var("TENURE_PAUSE_SECONDS");
    let pause: f64 = pause.map_or(1.0, |text| text.parse().expect("seconds"));
    let until = now() + pause;
    let patience = Duration::from_secs_f64(pause + 1.0);
    poll_until(patience, || (now() > until).then_some(()));
    let last = names.map(|name| fixture.stamps.last(name).expect("it ran").last - gone);
    assert!(
        last.iter().all(|it| *it < fixture.lease()),
        "they ran for {last:?} s"
    );
    for server in &servers {
        kill_process(*server, Signal::CONT).expect("it runs");
    }
    fixture.all_run(&names, |_| true);
}
