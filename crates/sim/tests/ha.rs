//! The scenarios of `docs/design/groups.md`, each by its name, told step by step in the
//! simulator; and the promises of the simulator itself.
#![expect(
    clippy::print_stdout,
    reason = "the seed of a fresh sweep must be seen"
)]

use std::time::{SystemTime, UNIX_EPOCH};

use tenure_core::cas::Register;
use tenure_group::{Command, Config, Place, Request};
use tenure_sim::ha::{Options, Scenario, run, sweep, trace};

/// Nodes without a quorum or anything special.
fn plain(agents: usize) -> Scenario {
    Scenario::new(1, agents, true, |_, _| {})
}

fn with_quorum(agents: usize, quorum: u32) -> Scenario {
    Scenario::new(1, agents, true, move |_, config| config.quorum = quorum)
}

/// The bound on a failover: lease x (1 + drift) + jitter, notices and starts,
/// counted from the last beat; in milliseconds, for a lease of 10 s.
const BOUND: u64 = 12_000;

fn settle(scenario: &mut Scenario) {
    scenario.pass(1_000);
    assert_eq!(scenario.is_well(), Ok(()));
}

#[test]
fn simple_failover() {
    for watch in [true, false] {
        let mut scenario = Scenario::new(1, 3, watch, |_, _| {});
        scenario.deploy(0, "pay", true);
        scenario.pass(3_000);
        let before = scenario.view().workloads.clone();
        scenario.kill(0);
        let took = scenario.until(BOUND + 5_000, |scenario| scenario.runs_on("pay").is_some());
        let bound = if watch { BOUND } else { BOUND + 4_400 };
        assert!(took < bound, "{took} ms");
        scenario.pass(3_000);
        let successor = scenario.runs_on("pay").expect("it runs");
        assert_ne!(successor, 0);
        assert_eq!(scenario.is_well(), Ok(()));
        let after = &scenario.view().workloads;
        for (name, it) in &before {
            assert_eq!(
                (&it.digest, 3),
                (&after[name].digest, after[name].instances)
            );
        }
        assert_eq!(scenario.stats().completed, 1);
    }
}

#[test]
fn quorum_awaited() {
    let mut scenario = with_quorum(3, 3);
    scenario.kill(2);
    scenario.pass(15_000);
    scenario.deploy(0, "pay", true);
    scenario.deploy(0, "local", false);
    scenario.pass(5_000);
    assert_eq!(scenario.runs_on("pay"), None);
    assert_eq!(scenario.runs_on("local"), Some(0));
    scenario.restart(2);
    scenario.until(1_000, |scenario| scenario.runs_on("pay") == Some(0));
    settle(&mut scenario);
}

#[test]
fn quorum_lost_then_regained() {
    let mut scenario = with_quorum(3, 3);
    scenario.deploy(0, "pay", true);
    scenario.until(100, |scenario| scenario.runs_on("pay") == Some(0));
    scenario.kill(1);
    scenario.until(BOUND, |scenario| scenario.runs_on("pay").is_none());
    scenario.pass(5_000);
    assert_eq!(scenario.running().len(), 0);
    scenario.restart(1);
    scenario.until(1_000, |scenario| scenario.runs_on("pay") == Some(0));
    assert_eq!(scenario.view().workloads.len(), 1);
    settle(&mut scenario);
}

#[test]
fn clean_close_no_failover() {
    let mut scenario = plain(3);
    scenario.deploy(0, "pay", true);
    scenario.deploy(1, "post", true);
    scenario.pass(100);
    scenario.command(0, Command::Leave);
    scenario.pass(30_000);
    assert_eq!(scenario.running().keys().collect::<Vec<_>>(), ["post"]);
    assert_eq!(scenario.view().workloads.len(), 1);
    assert_eq!(scenario.stats().takeovers, 0);
    settle(&mut scenario);
}

#[test]
fn failure_in_failover_then_success() {
    let mut scenario = plain(2);
    scenario.deploy(0, "pay", true);
    scenario.pass(100);
    scenario.fail_starts(true);
    scenario.kill(0);
    scenario.until(BOUND, |scenario| scenario.stats().failed > 0);
    assert_eq!(scenario.running().len(), 0);
    scenario.fail_starts(false);
    scenario.until(2_000, |scenario| scenario.runs_on("pay") == Some(1));
    settle(&mut scenario);
}

#[test]
fn groups_kept_apart() {
    let options = Options {
        groups: Some(2),
        agents: Some(3),
        ..Options::default()
    };
    let report = sweep(1, 50, &options, |_| true);
    assert!(report.is_clean(), "{:?}", report.violations);
    assert!(report.stats.takeovers > 50, "{}", report.stats);
}

#[test]
fn no_failover_to_a_non_ha_node() {
    let mut scenario = Scenario::new(1, 3, true, |p, config| config.ha = p == 0);
    scenario.deploy(0, "pay", true);
    scenario.pass(100);
    scenario.kill(0);
    scenario.pass(30_000);
    // It waits for somebody who may.
    assert_eq!(scenario.running().len(), 0);
    assert_eq!(scenario.view().workloads.len(), 1);
    scenario.restart(0);
    scenario.until(2_000, |scenario| scenario.runs_on("pay") == Some(0));
    settle(&mut scenario);
}

#[test]
fn non_ha_workload_not_failed_over() {
    let mut scenario = plain(3);
    scenario.deploy(0, "local", false);
    scenario.pass(100);
    assert_eq!(scenario.runs_on("local"), Some(0));
    scenario.kill(0);
    scenario.until(BOUND, |scenario| scenario.view().workloads.is_empty());
    scenario.pass(5_000);
    assert_eq!(scenario.running().len(), 0);
}

#[test]
fn a_closed_node_takes_no_part() {
    let mut scenario = plain(3);
    scenario.deploy(0, "pay", true);
    scenario.pass(100);
    scenario.command(1, Command::Leave);
    scenario.pass(1_000);
    scenario.kill(0);
    scenario.until(BOUND, |scenario| scenario.runs_on("pay") == Some(2));
    settle(&mut scenario);
}

#[test]
fn quorum_counted_per_group() {
    let options = Options {
        groups: Some(2),
        agents: Some(2),
        quorum: Some(2),
        ..Options::default()
    };
    let report = sweep(1, 50, &options, |_| true);
    assert!(report.is_clean(), "{:?}", report.violations);
    assert!(report.stats.quorum_lost > 10, "{}", report.stats);
}

#[test]
fn a_node_that_is_not_ha_does_not_count() {
    let mut scenario = Scenario::new(1, 3, true, |p, config| {
        (config.quorum, config.ha) = (3, p != 2);
    });
    scenario.deploy(0, "pay", true);
    scenario.pass(5_000);
    assert_eq!(scenario.view().members.len(), 3);
    assert_eq!(scenario.running().len(), 0);
}

#[test]
fn node_info_that_arrives_late_still_attains_quorum() {
    let mut scenario = with_quorum(2, 2);
    scenario.kill(1);
    scenario.pass(15_000);
    scenario.deploy(0, "pay", true);
    // It starts, and is cut off before it can write itself into the view.
    scenario.restart(1);
    scenario.cut(1, 4_000);
    scenario.pass(3_000);
    assert_eq!(scenario.running().len(), 0);
    scenario.until(8_000, |scenario| scenario.runs_on("pay") == Some(0));
    settle(&mut scenario);
}

#[test]
fn random_storm() {
    let options = Options {
        groups: Some(1),
        agents: Some(8),
        ..Options::default()
    };
    let report = sweep(1, 60, &options, |_| true);
    assert!(report.is_clean(), "{:?}", report.violations);
    let storm = |seed: u64| {
        let mut scenario = plain(8);
        for index in 0..160 {
            scenario.deploy(index % 8, &format!("w{index}"), true);
            if (index as u64 + seed).is_multiple_of(7) {
                scenario.pass(20);
            }
        }
        scenario.pass(500);
        for round in 0..7 {
            let request = Request::Undeploy(Config::new(named("g"), named("n")).group);
            // Nobody has that; it is refused and changes nothing.
            scenario.request(7, request);
            scenario.kill((round + seed as usize) % 7);
            scenario.pass(300);
        }
        scenario.until(60_000, |scenario| scenario.running().len() == 160);
        assert_eq!(scenario.is_well(), Ok(()));
        assert!(scenario.running().values().all(|p| *p == 7));
    };
    storm(1);
    storm(4);
}

fn named(text: &str) -> tenure_core::ids::Name {
    tenure_core::ids::Name::new(text).expect("a name")
}

#[test]
fn the_chosen_node_dies_in_mid_take_over() {
    let mut scenario = plain(4);
    for index in 0..6 {
        scenario.deploy(0, &format!("w{index}"), true);
    }
    scenario.pass(100);
    scenario.kill(0);
    scenario.until(BOUND, |scenario| !scenario.running().is_empty());
    let successor = scenario.running().values().next().copied();
    let successor = successor.expect("somebody has begun");
    scenario.deploy(successor, "own", true);
    scenario.pass(2);
    scenario.kill(successor);
    scenario.until(BOUND, |scenario| scenario.running().len() == 7);
    settle(&mut scenario);
}

#[test]
fn partitioned_node_stops_its_work_before_the_chosen_node_starts_it() {
    let mut scenario = plain(3);
    scenario.deploy(0, "pay", true);
    scenario.pass(2_500);
    scenario.cut(0, 40_000);
    scenario.until(10_000, |scenario| scenario.runs_on("pay").is_none());
    let gap = scenario.until(BOUND, |scenario| {
        scenario.runs_on("pay").is_some_and(|p| p != 0)
    });
    assert!(gap > 100, "only {gap} ms apart");
    scenario.pass(40_000);
    settle(&mut scenario);
}

#[test]
fn two_observers_write_the_same_death() {
    // Both wait for no turn of each other: neither is the successor's.
    for seed in 1..30 {
        let mut scenario = Scenario::new(seed, 4, false, |_, _| {});
        scenario.deploy(0, "pay", true);
        scenario.pass(2_500);
        scenario.kill(0);
        scenario.until(BOUND + 5_000, |scenario| scenario.runs_on("pay").is_some());
        scenario.pass(5_000);
        assert_eq!(scenario.is_well(), Ok(()));
        assert_eq!(scenario.stats().takeovers, 1);
    }
}

#[test]
fn verdict_from_a_stale_watch_does_not_stand() {
    let mut scenario = plain(3);
    scenario.deploy(0, "pay", true);
    scenario.pass(2_500);
    let start = scenario.start_of("pay");
    for p in 0..3 {
        scenario.silence_watch(p);
    }
    scenario.pass(60_000);
    assert_eq!(scenario.start_of("pay"), start);
    assert_eq!(scenario.stats().deaths, 0);
    settle(&mut scenario);
}

#[test]
fn a_late_heartbeat_cancels_a_verdict() {
    // Node 0 sends a beat and is cut off; the beat is most of a lease late.
    let beats_late = |late: Option<u64>| {
        let mut scenario = plain(3);
        scenario.pass(1_990);
        let id = scenario.id(0);
        match late {
            Some(late) => scenario.late_beat(0, late),
            None => scenario.cut(0, 30_000),
        }
        scenario.pass(13_000);
        let stays = scenario.view().member(id).is_some();
        scenario.pass(40_000);
        assert_eq!(scenario.is_well(), Ok(()));
        assert!(scenario.view().member(id).is_none());
        stays
    };
    assert!(!beats_late(None));
    assert!(!beats_late(Some(12_500)));
    assert!(beats_late(Some(7_000)));
}

#[test]
fn drain_never_runs_a_workload_twice() {
    let mut scenario = plain(3);
    for index in 0..10 {
        scenario.deploy(0, &format!("w{index}"), true);
    }
    scenario.pass(1_000);
    let id = scenario.id(0);
    scenario.request(1, Request::Drain(id));
    let took = scenario.until(1_000, |scenario| {
        scenario.running().len() == 10 && scenario.running().values().all(|p| *p != 0)
    });
    assert!(took < 200, "{took} ms");
    settle(&mut scenario);
    assert_eq!(scenario.view().members.len(), 2);
    assert_eq!(scenario.stats().takeovers, 0);
}

#[test]
fn restarted_node_is_a_new_node() {
    let mut scenario = plain(2);
    scenario.deploy(0, "pay", true);
    scenario.pass(2_500);
    let before = scenario.id(0);
    scenario.kill(0);
    scenario.restart_in(0, 11_000);
    scenario.pass(13_000);
    assert_ne!(scenario.id(0), before);
    assert!(scenario.view().member(before).is_none());
    scenario.pass(10_000);
    settle(&mut scenario);
}

#[test]
fn restarted_agent_resumes_in_time() {
    let mut scenario = plain(2);
    scenario.deploy(0, "pay", true);
    scenario.pass(2_500);
    let (id, start) = (scenario.id(0), scenario.start_of("pay"));
    scenario.crash(0);
    scenario.pass(3_000);
    assert_eq!(scenario.runs_on("pay"), Some(0));
    scenario.restart(0);
    scenario.pass(20_000);
    assert_eq!((scenario.id(0), scenario.start_of("pay")), (id, start));
    settle(&mut scenario);
}

/// A life of agent 0 that does not run `pay` lets go of it and crashes, and the
/// swap is half a second on its way. The next life runs `pay`, after a swap of
/// its own. Gives the view that both swaps were drafted from.
fn let_go_by_an_earlier_life(scenario: &mut Scenario) -> Register {
    scenario.fail_starts(true);
    scenario.deploy(0, "pay", true);
    scenario.pass(100);
    assert_eq!(scenario.running().len(), 0);
    let before = scenario.kept_view().expect("a view");
    scenario.late_write(0, 500);
    scenario.command(0, Command::Drain);
    scenario.pass(1);
    scenario.crash(0);
    scenario.fail_starts(false);
    scenario.restart(0);
    scenario.until(100, |scenario| scenario.runs_on("pay") == Some(0));
    before
}

#[test]
fn what_an_earlier_life_let_go_of_stays_with_the_one_that_runs_it() {
    let mut scenario = plain(2);
    let id = scenario.id(0);
    let before = let_go_by_an_earlier_life(&mut scenario);
    let (started, conflicts) = (scenario.start_of("pay"), scenario.stats().conflicts);
    assert_ne!(scenario.kept_view(), Some(before), "a swap has landed");
    scenario.pass(1_000);
    assert!(
        scenario.stats().conflicts > conflicts,
        "the late one has not"
    );
    scenario.pass(60_000);
    assert_eq!((scenario.id(0), scenario.start_of("pay")), (id, started));
    settle(&mut scenario);
}

/// The store gives out the version once more that an earlier life has drafted
/// from: what that life let go of is taken from the one that runs it. No rule of
/// the machine can prevent it; no checker objects, and it is over soon.
#[test]
fn what_an_earlier_life_let_go_of_moves_if_its_view_comes_back() {
    let mut scenario = plain(2);
    let before = let_go_by_an_earlier_life(&mut scenario);
    scenario.bring_back(before);
    let successor = scenario.id(1);
    let given = |scenario: &Scenario| {
        scenario.view().workloads[&named("pay")].place == Place::Assigned(successor)
    };
    assert!(!given(&scenario));
    scenario.until(500, given);
    assert_eq!(
        scenario.runs_on("pay"),
        Some(0),
        "it was let go of while it ran"
    );
    // `pass` fails if a checker objects: after four leases all of them do.
    scenario.pass(45_000);
    assert_eq!(
        scenario.running().into_iter().collect::<Vec<_>>(),
        [("pay".into(), 1)]
    );
}

#[test]
fn a_quorum_that_differs_is_refused() {
    let scenario = Scenario::new(1, 2, true, |p, config| config.quorum = p as u32 + 1);
    let refusals = scenario.trace().join("\n");
    assert_eq!(scenario.view().members.len(), 1);
    assert!(
        refusals.contains("Excluded { why: Quorum { ours: "),
        "{refusals}"
    );
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "fresh seeds come from the calendar"
)]
fn fresh_seeds_do_not_fail() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = now.map_or(1, |now| now.as_secs());
    println!("a fresh sweep from seed {seed}");
    let report = sweep(seed, 500, &Options::default(), |_| true);
    println!("{}", report.stats);
    if let Some(violation) = report.violations.first() {
        panic!("{violation}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    for seed in 1..=10 {
        let options = Options::default();
        let (one, two) = (trace(seed, &options), trace(seed, &options));
        assert!(one.len() > 100, "found {} lines", one.len());
        assert!(one == two, "seed {seed} went two ways");
    }
    assert_eq!(run(3, &Options::default()), run(3, &Options::default()));
}
