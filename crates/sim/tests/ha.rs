//! The scenarios of `docs/design/groups.md`, each by its name, told step by step in the
//! simulator; and the promises of the simulator itself.
#![expect(
    clippy::print_stdout,
    reason = "the seed of a fresh sweep must be seen"
)]

use std::time::{SystemTime, UNIX_EPOCH};

use tenure_core::cas::Register;
use tenure_group::{Command, Config, Place, Request};
use tenure_sim::ha::{Options, Scene, run, sweep, trace};

/// Nodes without a quorum or anything special.
fn plain(agents: usize) -> Scene {
    Scene::new(1, agents, true, |_, _| {})
}

fn with_quorum(agents: usize, quorum: u32) -> Scene {
    Scene::new(1, agents, true, move |_, config| config.quorum = quorum)
}

/// The bound on a failover: lease x (1 + drift) + jitter, notices and starts,
/// counted from the last beat; in milliseconds, for a lease of 10 s.
const BOUND: u64 = 12_000;

fn settle(scene: &mut Scene) {
    scene.pass(1_000);
    assert_eq!(scene.is_well(), Ok(()));
}

#[test]
fn simple_failover() {
    for watch in [true, false] {
        let mut scene = Scene::new(1, 3, watch, |_, _| {});
        scene.deploy(0, "pay", true);
        scene.pass(3_000);
        let before = scene.view().workloads.clone();
        scene.kill(0);
        let took = scene.until(BOUND + 5_000, |scene| scene.runs_on("pay").is_some());
        let bound = if watch { BOUND } else { BOUND + 4_400 };
        assert!(took < bound, "{took} ms");
        scene.pass(3_000);
        let heir = scene.runs_on("pay").expect("it runs");
        assert_ne!(heir, 0);
        assert_eq!(scene.is_well(), Ok(()));
        let after = &scene.view().workloads;
        for (name, it) in &before {
            assert_eq!(
                (&it.digest, 3),
                (&after[name].digest, after[name].instances)
            );
        }
        assert_eq!(scene.stats().completed, 1);
    }
}

#[test]
fn quorum_awaited() {
    let mut scene = with_quorum(3, 3);
    scene.kill(2);
    scene.pass(15_000);
    scene.deploy(0, "pay", true);
    scene.deploy(0, "local", false);
    scene.pass(5_000);
    assert_eq!(scene.runs_on("pay"), None);
    assert_eq!(scene.runs_on("local"), Some(0));
    scene.restart(2);
    scene.until(1_000, |scene| scene.runs_on("pay") == Some(0));
    settle(&mut scene);
}

#[test]
fn quorum_lost_then_regained() {
    let mut scene = with_quorum(3, 3);
    scene.deploy(0, "pay", true);
    scene.until(100, |scene| scene.runs_on("pay") == Some(0));
    scene.kill(1);
    scene.until(BOUND, |scene| scene.runs_on("pay").is_none());
    scene.pass(5_000);
    assert_eq!(scene.running().len(), 0);
    scene.restart(1);
    scene.until(1_000, |scene| scene.runs_on("pay") == Some(0));
    assert_eq!(scene.view().workloads.len(), 1);
    settle(&mut scene);
}

#[test]
fn clean_close_no_failover() {
    let mut scene = plain(3);
    scene.deploy(0, "pay", true);
    scene.deploy(1, "post", true);
    scene.pass(100);
    scene.command(0, Command::Leave);
    scene.pass(30_000);
    assert_eq!(scene.running().keys().collect::<Vec<_>>(), ["post"]);
    assert_eq!(scene.view().workloads.len(), 1);
    assert_eq!(scene.stats().takeovers, 0);
    settle(&mut scene);
}

#[test]
fn failure_in_failover_then_success() {
    let mut scene = plain(2);
    scene.deploy(0, "pay", true);
    scene.pass(100);
    scene.fail_starts(true);
    scene.kill(0);
    scene.until(BOUND, |scene| scene.stats().failed > 0);
    assert_eq!(scene.running().len(), 0);
    scene.fail_starts(false);
    scene.until(2_000, |scene| scene.runs_on("pay") == Some(1));
    settle(&mut scene);
}

#[test]
fn groups_kept_apart() {
    let options = Options {
        groups: Some(2),
        agents: Some(3),
        ..Options::default()
    };
    let report = sweep(1, 50, &options, |_| true);
    assert!(report.violation.is_none(), "{:?}", report.violation);
    assert!(report.stats.takeovers > 50, "{}", report.stats);
}

#[test]
fn no_failover_to_a_non_ha_node() {
    let mut scene = Scene::new(1, 3, true, |p, config| config.ha = p == 0);
    scene.deploy(0, "pay", true);
    scene.pass(100);
    scene.kill(0);
    scene.pass(30_000);
    // It waits for somebody who may.
    assert_eq!(scene.running().len(), 0);
    assert_eq!(scene.view().workloads.len(), 1);
    scene.restart(0);
    scene.until(2_000, |scene| scene.runs_on("pay") == Some(0));
    settle(&mut scene);
}

#[test]
fn non_ha_workload_not_failed_over() {
    let mut scene = plain(3);
    scene.deploy(0, "local", false);
    scene.pass(100);
    assert_eq!(scene.runs_on("local"), Some(0));
    scene.kill(0);
    scene.until(BOUND, |scene| scene.view().workloads.is_empty());
    scene.pass(5_000);
    assert_eq!(scene.running().len(), 0);
}

#[test]
fn a_closed_node_takes_no_part() {
    let mut scene = plain(3);
    scene.deploy(0, "pay", true);
    scene.pass(100);
    scene.command(1, Command::Leave);
    scene.pass(1_000);
    scene.kill(0);
    scene.until(BOUND, |scene| scene.runs_on("pay") == Some(2));
    settle(&mut scene);
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
    assert!(report.violation.is_none(), "{:?}", report.violation);
    assert!(report.stats.quorum_lost > 10, "{}", report.stats);
}

#[test]
fn a_node_that_is_not_ha_does_not_count() {
    let mut scene = Scene::new(1, 3, true, |p, config| {
        (config.quorum, config.ha) = (3, p != 2);
    });
    scene.deploy(0, "pay", true);
    scene.pass(5_000);
    assert_eq!(scene.view().members.len(), 3);
    assert_eq!(scene.running().len(), 0);
}

#[test]
fn node_info_that_arrives_late_still_attains_quorum() {
    let mut scene = with_quorum(2, 2);
    scene.kill(1);
    scene.pass(15_000);
    scene.deploy(0, "pay", true);
    // It starts, and is cut off before it can write itself into the view.
    scene.restart(1);
    scene.cut(1, 4_000);
    scene.pass(3_000);
    assert_eq!(scene.running().len(), 0);
    scene.until(8_000, |scene| scene.runs_on("pay") == Some(0));
    settle(&mut scene);
}

#[test]
fn random_storm() {
    let options = Options {
        groups: Some(1),
        agents: Some(8),
        ..Options::default()
    };
    let report = sweep(1, 60, &options, |_| true);
    assert!(report.violation.is_none(), "{:?}", report.violation);
    let storm = |seed: u64| {
        let mut scene = plain(8);
        for index in 0..160 {
            scene.deploy(index % 8, &format!("w{index}"), true);
            if (index as u64 + seed).is_multiple_of(7) {
                scene.pass(20);
            }
        }
        scene.pass(500);
        for round in 0..7 {
            let ask = Request::Undeploy(Config::new(named("g"), named("n")).group);
            // Nobody has that; it is refused and changes nothing.
            scene.ask(7, ask);
            scene.kill((round + seed as usize) % 7);
            scene.pass(300);
        }
        scene.until(60_000, |scene| scene.running().len() == 160);
        assert_eq!(scene.is_well(), Ok(()));
        assert!(scene.running().values().all(|p| *p == 7));
    };
    storm(1);
    storm(4);
}

fn named(text: &str) -> tenure_core::ids::Name {
    tenure_core::ids::Name::new(text).expect("a name")
}

#[test]
fn heir_dies_in_mid_take_over() {
    let mut scene = plain(4);
    for index in 0..6 {
        scene.deploy(0, &format!("w{index}"), true);
    }
    scene.pass(100);
    scene.kill(0);
    scene.until(BOUND, |scene| !scene.running().is_empty());
    let heir = scene.running().values().next().copied();
    let heir = heir.expect("somebody has begun");
    scene.deploy(heir, "own", true);
    scene.pass(2);
    scene.kill(heir);
    scene.until(BOUND, |scene| scene.running().len() == 7);
    settle(&mut scene);
}

#[test]
fn partitioned_node_stops_its_work_before_the_heir_starts_it() {
    let mut scene = plain(3);
    scene.deploy(0, "pay", true);
    scene.pass(2_500);
    scene.cut(0, 40_000);
    scene.until(10_000, |scene| scene.runs_on("pay").is_none());
    let gap = scene.until(BOUND, |scene| scene.runs_on("pay").is_some_and(|p| p != 0));
    assert!(gap > 100, "only {gap} ms apart");
    scene.pass(40_000);
    settle(&mut scene);
}

#[test]
fn two_observers_write_the_same_death() {
    // Both wait for no turn of each other: neither is the heir's.
    for seed in 1..30 {
        let mut scene = Scene::new(seed, 4, false, |_, _| {});
        scene.deploy(0, "pay", true);
        scene.pass(2_500);
        scene.kill(0);
        scene.until(BOUND + 5_000, |scene| scene.runs_on("pay").is_some());
        scene.pass(5_000);
        assert_eq!(scene.is_well(), Ok(()));
        assert_eq!(scene.stats().takeovers, 1);
    }
}

#[test]
fn verdict_from_a_stale_watch_does_not_stand() {
    let mut scene = plain(3);
    scene.deploy(0, "pay", true);
    scene.pass(2_500);
    let start = scene.start_of("pay");
    for p in 0..3 {
        scene.silence_watch(p);
    }
    scene.pass(60_000);
    assert_eq!(scene.start_of("pay"), start);
    assert_eq!(scene.stats().deaths, 0);
    settle(&mut scene);
}

#[test]
fn a_late_beat_cancels_a_verdict() {
    // Node 0 sends a beat and is cut off; the beat is most of a lease late.
    let beats_late = |late: Option<u64>| {
        let mut scene = plain(3);
        scene.pass(1_990);
        let id = scene.id(0);
        match late {
            Some(late) => scene.late_beat(0, late),
            None => scene.cut(0, 30_000),
        }
        scene.pass(13_000);
        let stays = scene.view().member(id).is_some();
        scene.pass(40_000);
        assert_eq!(scene.is_well(), Ok(()));
        assert!(scene.view().member(id).is_none());
        stays
    };
    assert!(!beats_late(None));
    assert!(!beats_late(Some(12_500)));
    assert!(beats_late(Some(7_000)));
}

#[test]
fn drain_never_runs_a_workload_twice() {
    let mut scene = plain(3);
    for index in 0..10 {
        scene.deploy(0, &format!("w{index}"), true);
    }
    scene.pass(1_000);
    let id = scene.id(0);
    scene.ask(1, Request::Drain(id));
    let took = scene.until(1_000, |scene| {
        scene.running().len() == 10 && scene.running().values().all(|p| *p != 0)
    });
    assert!(took < 200, "{took} ms");
    settle(&mut scene);
    assert_eq!(scene.view().members.len(), 2);
    assert_eq!(scene.stats().takeovers, 0);
}

#[test]
fn restarted_node_is_a_new_node() {
    let mut scene = plain(2);
    scene.deploy(0, "pay", true);
    scene.pass(2_500);
    let before = scene.id(0);
    scene.kill(0);
    scene.restart_in(0, 11_000);
    scene.pass(13_000);
    assert_ne!(scene.id(0), before);
    assert!(scene.view().member(before).is_none());
    scene.pass(10_000);
    settle(&mut scene);
}

#[test]
fn restarted_agent_resumes_in_time() {
    let mut scene = plain(2);
    scene.deploy(0, "pay", true);
    scene.pass(2_500);
    let (id, start) = (scene.id(0), scene.start_of("pay"));
    scene.crash(0);
    scene.pass(3_000);
    assert_eq!(scene.runs_on("pay"), Some(0));
    scene.restart(0);
    scene.pass(20_000);
    assert_eq!((scene.id(0), scene.start_of("pay")), (id, start));
    settle(&mut scene);
}

/// A life of agent 0 that does not run `pay` lets go of it and crashes, and the
/// swap is half a second on its way. The next life runs `pay`, after a swap of
/// its own. Gives the view that both swaps were drafted from.
fn let_go_by_an_earlier_life(scene: &mut Scene) -> Register {
    scene.fail_starts(true);
    scene.deploy(0, "pay", true);
    scene.pass(100);
    assert_eq!(scene.running().len(), 0);
    let before = scene.kept_view().expect("a view");
    scene.late_write(0, 500);
    scene.command(0, Command::Drain);
    scene.pass(1);
    scene.crash(0);
    scene.fail_starts(false);
    scene.restart(0);
    scene.until(100, |scene| scene.runs_on("pay") == Some(0));
    before
}

#[test]
fn what_an_earlier_life_let_go_of_stays_with_the_one_that_runs_it() {
    let mut scene = plain(2);
    let id = scene.id(0);
    let before = let_go_by_an_earlier_life(&mut scene);
    let (started, conflicts) = (scene.start_of("pay"), scene.stats().conflicts);
    assert_ne!(scene.kept_view(), Some(before), "a swap has landed");
    scene.pass(1_000);
    assert!(scene.stats().conflicts > conflicts, "the late one has not");
    scene.pass(60_000);
    assert_eq!((scene.id(0), scene.start_of("pay")), (id, started));
    settle(&mut scene);
}

/// The store gives out the version once more that an earlier life has drafted
/// from: what that life let go of is taken from the one that runs it. No rule of
/// the machine can prevent it; no checker objects, and it is over soon.
#[test]
fn what_an_earlier_life_let_go_of_moves_if_its_view_comes_back() {
    let mut scene = plain(2);
    let before = let_go_by_an_earlier_life(&mut scene);
    scene.bring_back(before);
    let heir = scene.id(1);
    let given =
        |scene: &Scene| scene.view().workloads[&named("pay")].place == Place::Assigned(heir);
    assert!(!given(&scene));
    scene.until(500, given);
    assert_eq!(
        scene.runs_on("pay"),
        Some(0),
        "it was let go of while it ran"
    );
    // `pass` fails if a checker objects: after four leases all of them do.
    scene.pass(45_000);
    assert_eq!(
        scene.running().into_iter().collect::<Vec<_>>(),
        [("pay".into(), 1)]
    );
}

#[test]
fn a_quorum_that_differs_is_refused() {
    let scene = Scene::new(1, 2, true, |p, config| config.quorum = p as u32 + 1);
    let refusals = scene.trace().join("\n");
    assert_eq!(scene.view().members.len(), 1);
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
    if let Some(violation) = report.violation {
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
