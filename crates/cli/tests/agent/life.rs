//! Agents that are killed, stopped, drained and restarted.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;

use super::common::poll_until;
use super::pressure::Pressure;
use super::stamps::{self, now};
use super::town::{PATIENCE, Town};

/// For restarts, which a busy machine must make in time.
const LONG: [&str; 2] = ["--lease", "8s"];

/// Three agents, four workloads and one that is not HA; one agent is killed.
fn one_of_three_is_killed(town: &Town) {
    let flags = ["--quorum", "2"];
    let [mut one, two, three] = ["one", "two", "three"].map(|name| town.node(name, &flags));
    for (name, node) in [("a", "one"), ("b", "one"), ("c", "two"), ("d", "three")] {
        town.deploy(name, &["--node", node, "--instances", "2"]);
    }
    town.deploy("own", &["--node", "one", "--no-ha"]);
    let all = ["a", "b", "c", "d"];
    town.all_run(&all, |_| true);
    let before = ["c", "d"].map(|name| town.stamps.last(name).expect("it runs"));
    let (killed, pressure) = (now(), Pressure::begin());
    one.kill();
    town.all_run(&all, |node| node != "one");
    let late = pressure.allows();
    let after = ["c", "d"].map(|name| town.stamps.last(name).expect("it runs"));
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.pid, after.pid, "what was elsewhere is not disturbed");
    }
    for name in ["a", "b"] {
        let shown = town.shows(name, |it| it["state"] == "running" && it["from"] == "one");
        assert_eq!(shown["from_how"], "died");
        assert_eq!(shown["instances"], 2);
        let run = town.stamps.last(name).expect("it runs");
        let took = run.first - killed;
        // The heir lives, so nobody waits for a jitter.
        assert!(
            took < town.lease() * 1.01 + late,
            "{name} took {took} s, and may be {late} s late"
        );
        // The other instance moved along.
        let other = format!("{name}/1");
        let runs = town.stamps.runs();
        let other = runs.iter().rfind(|it| it.workload == other);
        assert_eq!(other.map(|it| &it.node), Some(&run.node));
    }
    assert_eq!(
        town.workload("own"),
        None,
        "what is not HA dies with its node"
    );
    assert_eq!(town.member("one"), None);
    drop((two, three));
    town.stamps.runs();
}

#[test]
fn three_agents_and_one_is_killed_on_sqlite() {
    one_of_three_is_killed(&Town::sqlite());
}

#[test]
fn three_agents_and_one_is_killed_on_postgres() {
    one_of_three_is_killed(&Town::postgres());
}

#[test]
fn three_agents_and_one_is_killed_on_a_cluster() {
    one_of_three_is_killed(&Town::cluster());
}

#[test]
fn a_drained_node_hands_everything_on_and_leaves() {
    let town = Town::sqlite();
    let (mut one, mut two) = (town.node("one", &[]), town.node("two", &[]));
    for name in ["a", "b", "c"] {
        town.deploy(name, &["--node", "one"]);
    }
    town.deploy("own", &["--node", "one", "--no-ha"]);
    let said = town.done(&["drain", "one", "--via", "two"]);
    assert!(said.contains("one has handed on"), "{said}");
    assert_eq!(one.ends(), 0);
    town.all_run(&["a", "b", "c"], |node| node == "two");
    for name in ["a", "b", "c"] {
        let shown = town.shows(name, |it| it["state"] == "running");
        assert_eq!(
            (&shown["from"], &shown["from_how"]),
            (&"one".into(), &"moved".into())
        );
    }
    assert_eq!(town.workload("own"), None);
    assert!(
        !two.said().contains("has died"),
        "a clean leave is no death"
    );
    // The last one keeps its work for a node that comes later.
    two.signal(Signal::TERM);
    assert_eq!(two.ends(), 0);
    let shown = town.workload("a").expect("it is kept");
    assert_eq!(shown["state"], "waiting for a node");
    let _three = town.node("three", &[]);
    town.all_run(&["a", "b", "c"], |node| node == "three");
}

#[test]
fn a_stopped_agent_loses_its_work_before_the_heir_starts_it() {
    let town = Town::sqlite();
    let (one, two) = (town.node("one", &[]), town.node("two", &[]));
    town.deploy_as("a", &["--node", "one"], &town.stamps.stubborn());
    town.deploy("alone", &["--node", "one", "--no-ha"]);
    let id = one.id();
    one.stop();
    // The checker sees two at once, should the first one live too long.
    town.all_run(&["a"], |node| node == "two");
    // For longer than the first one would be silent by chance.
    let settled = || {
        let run = town.stamps.last("a").filter(|run| run.node == "two")?;
        (run.last - run.first > 0.3).then_some(())
    };
    poll_until(PATIENCE, settled).expect("it runs on");
    one.signal(Signal::CONT);
    one.says("everything is ended");
    let joined = || (one.id() != id).then_some(());
    poll_until(PATIENCE, joined).expect("it joins again, under another id");
    for agent in [&one, &two] {
        agent.says("deployed with --no-ha: alone;");
    }
    let said = one.said();
    assert!(!said.contains("another node has this name"), "{said}");
    // It came after the other, and is shown where its name is.
    let nodes = town.ps().into_iter().filter(|it| it["type"] == "node");
    let nodes: Vec<_> = nodes.map(|it| it["node"].to_string()).collect();
    assert!(nodes.is_sorted(), "{nodes:?}");
    town.deploy("b", &["--node", "one"]);
    town.all_run(&["a", "b"], |_| true);
    assert_eq!(town.stamps.last("a").expect("it runs").node, "two");
}

/// The same with guardians that are told to wait too long: the checker is to
/// see it, or it would see nothing.
#[test]
fn a_planted_mistake_is_seen() {
    let town = Town::sqlite();
    let late = ["env", "TENURE_TEST_LATE_MS=12000"];
    let one = town.start_in(&late, "one", &[]);
    one.says("joined as");
    let _two = town.node("two", &[]);
    town.deploy_as("a", &["--node", "one"], &town.stamps.stubborn());
    one.stop();
    let wrong = poll_until(PATIENCE, || {
        let wrong = stamps::wrong(&town.stamps.all());
        wrong.into_iter().next()
    });
    let wrong = wrong.expect("two at once");
    assert!(wrong.contains("two at once"), "{wrong}");
}

#[test]
fn an_agent_that_is_restarted_in_time_goes_on() {
    let town = Town::sqlite();
    let (mut one, two) = (town.node("one", &LONG), town.node("two", &LONG));
    town.deploy("a", &["--node", "one", "--instances", "2"]);
    let before = town.stamps.last("a").expect("it runs");
    let restarts = |it: &serde_json::Value| it["restarts"].as_u64() == Some(0);
    for _ in 0..3 {
        one.kill();
        one = town.start("one", &LONG);
        one.says("going on as");
        town.all_run(&["a"], |node| node == "one");
    }
    let until = now() + 9.0;
    poll_until(PATIENCE, || (now() > until).then_some(()));
    town.all_run(&["a"], |node| node == "one");
    let after = town.stamps.last("a").expect("it runs");
    assert_eq!((before.pid, before.fence), (after.pid, after.fence));
    assert!(!two.said().contains("has died"), "{}", two.said());
    // The next life knows of it, and can do with it what the first could.
    town.shows("a", |it| {
        it["state"] == "running" && restarts(it) && it["fence"] == after.fence
    });
    town.done(&["undeploy", "a"]);
    assert_eq!(
        town.stamps
            .runs_on("a")
            .filter(|_| town.workload("a").is_some()),
        None
    );
    drop(one);
}

/// What becomes ready while no agent is there to hear it is shown as what it
/// is by the next one.
#[test]
fn a_workload_that_became_ready_between_two_lives_is_shown_as_running() {
    let town = Town::sqlite();
    let mut one = town.node("one", &LONG);
    town.deploy("a", &["--ready", "1s", "--no-wait"]);
    town.all_run(&["a"], |_| true);
    one.kill();
    let ready = town.stamps.last("a").expect("it runs").first + 1.5;
    poll_until(PATIENCE, || (now() > ready).then_some(()));
    let one = town.start("one", &LONG);
    one.says("going on as");
    let shown = town.shows("a", |it| it["state"] == "running");
    let run = town.stamps.last("a").expect("it runs");
    assert_eq!(shown["fence"], run.fence);
    assert_eq!(shown["restarts"].as_u64(), Some(0));
    assert_eq!(town.stamps.runs().len(), 1, "it was not disturbed");
}

#[test]
fn an_agent_that_comes_back_with_other_settings_ends_what_it_had() {
    let town = Town::sqlite();
    let (mut one, two) = (town.node("one", &LONG), town.node("two", &LONG));
    let id = one.id();
    town.deploy("a", &["--node", "one"]);
    one.kill();
    // The log goes on: wait for what is said once more.
    let again = town.start("one", &["--lease", "8s", "--label", "zone=b"]);
    again.says("ending 1 workload of a former life");
    let joined = || (again.id() != id).then_some(());
    poll_until(PATIENCE, joined).expect("it joins under another id");
    // Nobody needs to wait for the silence of the old one.
    two.says("has died");
    town.all_run(&["a"], |_| true);
    let shown = town.member("one").expect("it is there");
    assert_eq!(shown["labels"][0], "zone=b");
    town.stamps.runs();
    drop(one);
}

#[test]
fn a_steward_that_is_killed_or_hangs_is_replaced() {
    let town = Town::sqlite();
    let one = town.node("one", &[]);
    town.deploy_as("a", &[], &town.stamps.stubborn());
    for signal in [Signal::KILL, Signal::STOP] {
        town.shows("a", |it| it["state"] == "running");
        let before = town.writes("a").pid;
        kill_process(one.below("__steward"), signal).expect("it runs");
        let again = || town.stamps.last("a").filter(|run| run.pid != before);
        poll_until(PATIENCE, again)
            .unwrap_or_else(|| panic!("it is not started again: {signal:?}"));
        town.all_run(&["a"], |node| node == "one");
    }
    assert!(
        !one.said().contains("everything is ended"),
        "the node lives on"
    );
    town.shows("a", |it| it["restarts"].as_u64() >= Some(2));
}

/// Whatever a hung steward keeps an agent from: to begin, to end what a former
/// life has left, or to end.
#[test]
fn a_steward_that_hangs_does_not_keep_its_agent_out() {
    let town = Town::sqlite();
    let mut one = town.node("one", &[]);
    town.deploy_as("a", &[], &town.stamps.stubborn());
    let before = town.writes("a").pid;
    let steward = one.below("__steward");
    // The end of its agent would wake it.
    one.kill();
    kill_process(steward, Signal::STOP).expect("it runs");
    let mut again = town.node("one", &[]);
    again.says("the steward of this node does not answer");
    let other = || town.stamps.last("a").filter(|run| run.pid != before);
    poll_until(PATIENCE, other).expect("it is started again, by another steward");
    town.all_run(&["a"], |node| node == "one");
    // Asked twice, it ends everything at once; its steward hangs, and hears
    // of nothing.
    kill_process(again.below("__steward"), Signal::STOP).expect("it runs");
    again.signal(Signal::TERM);
    again.says("asked to stop");
    let echo = clock::boot().after(Duration::from_millis(700));
    poll_until(PATIENCE, || (clock::boot() >= echo).then_some(()));
    again.signal(Signal::TERM);
    again.ends();
    town.stamps.runs();
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

/// The kernel wakes the steward when the agent is killed, and that one kills a
/// guardian that is still stopped.
#[test]
fn an_agent_that_is_killed_beside_stopped_processes_leaves_nothing_behind() {
    let town = Town::sqlite();
    let (mut one, two) = (town.node("one", &[]), town.node("two", &[]));
    town.deploy_as("a", &["--node", "one"], &town.stamps.stubborn());
    let before = town.writes("a").pid;
    let cmd = i32::try_from(before).ok().and_then(Pid::from_raw);
    let held = ["__guardian a ", "__steward"].map(|word| one.below(word));
    let _killed = Killed(held.into_iter().chain(cmd).collect());
    for process in held {
        kill_process(process, Signal::STOP).expect("it runs");
    }
    one.kill();
    // The checker sees two at once, should the first one live too long.
    town.all_run(&["a"], |node| node == "two");
    let settled = || {
        let run = town.stamps.last("a").filter(|run| run.node == "two")?;
        (run.last - run.first > 0.3).then_some(())
    };
    poll_until(PATIENCE, settled).expect("it runs on");
    assert!(
        !fs::exists(format!("/proc/{before}")).expect("/proc"),
        "it runs on"
    );
    town.stamps.runs();
    drop(two);
}

/// The agent itself kills a steward that hangs, and the kernel wakes its
/// guardian.
#[test]
fn a_steward_and_a_guardian_that_hang_are_replaced() {
    let town = Town::sqlite();
    let one = town.node("one", &[]);
    town.deploy_as("a", &[], &town.stamps.stubborn());
    let before = town.writes("a").pid;
    let held = ["__guardian a ", "__steward"].map(|word| one.below(word));
    let _killed = Killed(held.to_vec());
    for process in held {
        kill_process(process, Signal::STOP).expect("it runs");
    }
    let again = || {
        let run = town.stamps.last("a").filter(|run| run.pid != before)?;
        (run.last - run.first > 0.3).then_some(())
    };
    poll_until(PATIENCE, again).expect("it is started again, and runs on");
    town.stamps.runs();
}

#[test]
fn a_guardian_that_is_killed_takes_its_workload_along_and_it_is_started_again() {
    let town = Town::sqlite();
    let one = town.node("one", &[]);
    town.deploy("a", &[]);
    let before = town.stamps.last("a").expect("it runs").pid;
    kill_process(one.below("__guardian a "), Signal::KILL).expect("it runs");
    let again = || town.stamps.last("a").filter(|run| run.pid != before);
    poll_until(PATIENCE, again).expect("it is started again");
    one.says("a failed (1 in a row): the guardian ended by signal 9");
    town.stamps.runs();
}

/// A second is enough to see that they are silent; `TENURE_PAUSE_SECONDS=120`
/// is the long form.
#[test]
fn a_store_that_is_gone_fences_the_nodes_and_all_is_well_when_it_is_back() {
    let town = Town::cluster();
    let (one, two) = (town.node("one", &[]), town.node("two", &[]));
    let names = ["a", "b"];
    for (name, node) in names.iter().zip(["one", "two"]) {
        town.deploy(name, &["--node", node]);
    }
    let servers = town.servers();
    let (gone, pressure) = (now(), Pressure::begin());
    for server in &servers {
        kill_process(*server, Signal::STOP).expect("it runs");
    }
    for agent in [&one, &two] {
        agent.says("everything is ended");
    }
    let (took, late) = (now() - gone, pressure.allows());
    assert!(
        took < town.lease() + late,
        "they knew by themselves, in {took} s, and may be {late} s late"
    );
    let pause = std::env::var("TENURE_PAUSE_SECONDS");
    let pause: f64 = pause.map_or(1.0, |text| text.parse().expect("seconds"));
    let until = now() + pause;
    let patience = Duration::from_secs_f64(pause + 1.0);
    poll_until(patience, || (now() > until).then_some(()));
    let last = names.map(|name| town.stamps.last(name).expect("it ran").last - gone);
    assert!(
        last.iter().all(|it| *it < town.lease()),
        "they ran for {last:?} s"
    );
    for server in &servers {
        kill_process(*server, Signal::CONT).expect("it runs");
    }
    town.all_run(&names, |_| true);
}
