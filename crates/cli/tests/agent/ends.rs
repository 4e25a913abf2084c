//! Workloads that are done for good (`--restart never`) while their agent is
//! away: at least once is promised, and not more than that is.

use std::path::Path;

use rustix::process::{Signal, kill_process};

use super::common::poll_until;
use super::fixture::{Fixture, PATIENCE};

/// Outlasts everything here.
const LONG: [&str; 2] = ["--lease", "8s"];

/// Deploys a workload on one that ends when the file is there.
fn deploy_a_job(fixture: &Fixture, flags: &[&str]) {
    let go = fixture.directory.path().join("go").display().to_string();
    let ends = format!("( until [ -e {go} ]; do sleep 0.02; done; kill -9 $$ ) &");
    let command = ["bash", "-c", &fixture.stamps.script(&ends)].map(str::to_owned);
    let once = ["--node", "one", "--restart", "never", "--ready", "10ms"];
    fixture.deploy_as("job", &[&once, flags].concat(), &command);
    poll_until(PATIENCE, || fixture.stamps.last("job")).expect("it runs");
}

/// Lets it end, and waits until it has.
fn ends(fixture: &Fixture) {
    let run = fixture.stamps.last("job").expect("it runs");
    let go = fixture.directory.path().join("go");
    std::fs::write(&go, "").expect("a file");
    let process = format!("/proc/{}", run.pid);
    let ended = || (!Path::new(&process).exists()).then_some(());
    poll_until(PATIENCE, ended).expect("it ends");
    // The next run of it, if there is one, goes on until it is told.
    std::fs::remove_file(&go).expect("it is there");
}

fn is_undeployed(fixture: &Fixture) {
    let gone = || {
        // A store that comes back may not answer yet.
        let shown = fixture.run(&["ps", "--json"]);
        let all = String::from_utf8_lossy(&shown.stdout).into_owned();
        (shown.status.success() && !all.contains("\"workload\":\"job\"")).then_some(())
    };
    poll_until(PATIENCE, gone).unwrap_or_else(|| panic!("{:?}", fixture.workload("job")));
}

/// Its shim knows, whichever settings the next life has.
#[test]
fn what_was_done_while_its_agent_was_away_is_not_done_again() {
    for other in [false, true] {
        let fixture = Fixture::sqlite();
        let (mut one, _two) = (fixture.node("one", &LONG), fixture.node("two", &LONG));
        deploy_a_job(&fixture, &[]);
        one.kill();
        ends(&fixture);
        let label: &[&str] = if other { &["--label", "zone=b"] } else { &[] };
        let again = fixture.start("one", &[&LONG, label].concat());
        let word = if other {
            "of an earlier incarnation"
        } else {
            "going on as"
        };
        again.wait_for_log(word);
        is_undeployed(&fixture);
        let runs = fixture.stamps.runs();
        assert_eq!(runs.len(), 1, "other settings: {other}; {runs:?}");
    }
}

/// Its agent knows, and says so under its next id before anybody judges the
/// former one.
#[test]
fn what_was_done_while_the_store_was_away_is_not_done_again() {
    let fixture = Fixture::cluster();
    let (one, two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    deploy_a_job(&fixture, &[]);
    let servers = fixture.servers();
    for server in &servers {
        kill_process(*server, Signal::STOP).expect("it runs");
    }
    ends(&fixture);
    for agent in [&one, &two] {
        agent.wait_for_log("everything is ended");
    }
    for server in &servers {
        kill_process(*server, Signal::CONT).expect("it runs");
    }
    is_undeployed(&fixture);
    let runs = fixture.stamps.runs();
    assert_eq!(runs.len(), 1, "{runs:?}");
}

/// What only a node knows that has died (here: is stopped) is known to nobody
/// else: its successor does the work once more, and then it is done.
#[test]
fn what_was_done_on_a_node_that_died_is_done_once_more_by_its_successor() {
    let fixture = Fixture::sqlite();
    let (one, _two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    deploy_a_job(&fixture, &[]);
    one.stop();
    ends(&fixture);
    fixture.all_run(&["job"], |node| node == "two");
    ends(&fixture);
    is_undeployed(&fixture);
    let runs = fixture.stamps.runs();
    let nodes: Vec<&str> = runs.iter().map(|run| run.node.as_str()).collect();
    assert_eq!(nodes, ["one", "two"]);
    assert!(runs[0].fence < runs[1].fence, "{runs:?}");
}

/// Who wants it at most once has it die with its node.
#[test]
fn what_is_to_be_done_at_most_once_is_not_ha() {
    let fixture = Fixture::sqlite();
    let (one, two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    deploy_a_job(&fixture, &["--no-ha"]);
    one.stop();
    ends(&fixture);
    two.wait_for_log("has died");
    is_undeployed(&fixture);
    assert_eq!(fixture.stamps.runs().len(), 1);
}
