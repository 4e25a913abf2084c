//! Schedules written by hand, as places to begin from.
//!
//! Some mistakes need a past that is too long to be found by trying
//! everything. Then the past is told, and everything is tried from there.
//!
//! [`figure_eight`] is the beginning of the schedule by which Raft's authors
//! explain why an entry of an earlier term must not be committed by being
//! counted (H2), with the no-ops of leaders for entries:
//!
//! ```text
//!          s1       s2       s3       s4       s5
//! term 1   leads    1@1
//!          1@1
//! term 2                     votes    votes    leads
//!                                              1@2
//! term 3   leads    votes    votes
//!          2@3
//! then     s1 may bring 1@1 to s3, so that a majority has it; and still s5
//!          may lead in term 4 and replace it by 1@2
//! ```
//!
//! [`established`] is a cluster in its everyday state: somebody leads in
//! term 1, all have its no-op, and nothing is on its way.

use stateright::Model;
use tenure_alpo::Status;

use super::action::Action;
use super::model::{Cluster, World};

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// This server times out.
    Stands(usize),
    /// All that is on its way from the first to the second arrives.
    Hears(usize, usize),
    /// This leader is heard of.
    Beats(usize),
    /// This leader is asked for the next change.
    Changes(usize),
}

use Step::{Beats, Changes, Hears, Stands};

/// A founded cluster with as many candidacies as a script needs.
fn unbounded(cluster: &Cluster) -> World {
    let mut world = cluster.bootstrapped(None);
    world.left.stands = u8::MAX;
    world.left.passes = u8::MAX;
    world.left.beats = u8::MAX;
    world.left.changes = u8::MAX;
    world
}

fn play(cluster: &Cluster, world: World, steps: &[Step]) -> World {
    let mut world = world;
    for step in steps {
        world = match *step {
            Stands(server) => next(cluster, &world, Action::TimeOut(server)),
            Hears(from, to) => hear(cluster, world, from, to),
            Beats(server) => next(cluster, &world, Action::Beat(server)),
            Changes(server) => next(cluster, &world, Action::Change(server)),
        };
    }
    world
}

fn next(cluster: &Cluster, world: &World, action: Action) -> World {
    let next = cluster.next_state(world, action);
    next.unwrap_or_else(|| panic!("the script cannot go on with {}", action.describe(world)))
}

fn hear(cluster: &Cluster, mut world: World, from: usize, to: usize) -> World {
    let is_it = |world: &World, message: &usize| {
        let sent = world.wire.get(*message);
        sent.from == from && sent.to == to
    };
    while let Some(message) = (0..world.wire.len()).find(|message| is_it(&world, message)) {
        match cluster.next_state(&world, Action::Deliver(message)) {
            Some(next) => world = next,
            None => world.wire.take(message),
        }
    }
    world
}

/// The figure up to the moment at which s1 leads in term 3, with its own
/// no-op 2@3 to come after 1@1. What was under way before is lost.
pub(crate) fn figure_eight(cluster: &Cluster) -> World {
    let left = cluster.bootstrapped(None).left;
    let [s1, s2, s3, s4, s5] = [0, 1, 2, 3, 4];
    let mut world = play(
        cluster,
        unbounded(cluster),
        &[
            Stands(s1),
            Hears(s1, s2),
            Hears(s1, s3),
            // It knows of the term, no matter which server has its vote.
            Hears(s1, s5),
            Hears(s2, s1),
            Hears(s3, s1),
            Hears(s1, s2),
        ],
    );
    assert_eq!(world.hosts[s1].node.status(), Status::Leader);
    world.wire.lose(|_| true);
    let steps = [
        Stands(s5),
        // Refused, but now it knows of the term.
        Hears(s5, s1),
        Hears(s5, s3),
        Hears(s5, s4),
        Hears(s3, s5),
        Hears(s4, s5),
    ];
    world = play(cluster, world, &steps);
    assert_eq!(world.hosts[s5].node.status(), Status::Leader);
    let ends = [s1, s2, s3, s4].map(|server| world.hosts[server].node.log().last().term.get());
    assert_eq!(ends, [1, 1, 0, 0]);
    world.wire.lose(|_| true);
    let steps = [
        Stands(s1),
        Hears(s1, s2),
        Hears(s1, s3),
        // Refused, but it knows of the term.
        Hears(s1, s5),
        Hears(s2, s1),
        Hears(s3, s1),
    ];
    world = play(cluster, world, &steps);
    assert_eq!(world.hosts[s1].node.status(), Status::Leader);
    assert_eq!(world.past.committed(), 0);
    // As in the figure, s1 reaches s2 and s3 alone.
    world.wire.lose(|sent| sent.to >= s4);
    world.left = left;
    world
}

/// `leader` leads in term 1 and everybody has all it has.
pub(crate) fn established(cluster: &Cluster, leader: usize, victim: Option<usize>) -> World {
    let mut world = unbounded(cluster);
    let left = cluster.bootstrapped(None).left;
    let others: Vec<_> = (0..cluster.bounds.servers)
        .filter(|o| *o != leader)
        .collect();
    if cluster.bounds.lease.is_some() {
        // Patience is over, and a silence that is owed.
        world = next(cluster, &world, Action::Pass);
    }
    world = play(cluster, world, &[Stands(leader)]);
    for _round in 0..2 {
        for other in &others {
            let steps = [Hears(leader, *other), Hears(*other, leader)];
            world = play(cluster, world, &steps);
        }
    }
    assert!(world.hosts[leader].node.is_ready());
    // A blank server is not known to anybody yet.
    world.wire.lose(|sent| sent.to >= cluster.bounds.servers);
    assert_eq!(world.wire.len(), 0);
    world.left = left;
    world.victim = victim;
    world
}

/// The stages of an orderly replacement of the last of three servers, s1
/// leading: before it, and with each of the three changes appended, heard of by
/// a majority, and on all of its members' disks. The old disk lives on from
/// then on without a word of it.
pub(crate) fn replacement(cluster: &Cluster, victim: Option<usize>) -> Vec<World> {
    let [s1, s2, old, new] = [0, 1, 2, 3];
    let left = cluster.bootstrapped(None).left;
    let mut world = established(cluster, s1, None);
    world.left = unbounded(cluster).left;
    let all = [Hears(s1, s2), Hears(s1, old), Hears(s2, s1), Hears(old, s1)];
    // The version rises, so that votes name disks.
    world = play(cluster, world, &[Beats(s1)]);
    world = play(cluster, world, &all);
    world = play(cluster, world, &[Beats(s1)]);
    for _round in 0..2 {
        world = play(cluster, world, &all);
    }
    world.wire.lose(|sent| sent.to == new);
    let mut stages = vec![world.clone()];
    for changes_voters in [true, false, true] {
        // It is asked for and, where a round has to judge it, judged.
        let judged = [Changes(s1), Hears(s1, s2), Hears(s2, s1)];
        world = play(cluster, world, &judged);
        world = play(cluster, world, &[Hears(s1, new), Hears(new, s1)]);
        if changes_voters {
            // It waits until their disks have an entry that is appended then.
            world = play(cluster, world, &[Hears(s1, new)]);
            world = play(cluster, world, &[Hears(s1, s2), Hears(s2, s1)]);
        }
        world.wire.lose(|sent| sent.to == old || sent.from == new);
        stages.push(world.clone());
        world = play(cluster, world, &[Beats(s1)]);
        for _round in 0..3 {
            let rest = [Hears(s1, s2), Hears(s2, s1), Hears(s1, new), Hears(new, s1)];
            world = play(cluster, world, &rest);
        }
        stages.push(world.clone());
    }
    let ends = |index: usize| world.hosts[index].node.log().last().id;
    assert_eq!([s1, s2, old, new].map(ends), [7, 7, 2, 7]);
    assert!(world.hosts[new].is_voter() && world.hosts[old].is_voter());
    assert_eq!(world.hosts[s1].node.commit(), 7);
    for stage in &mut stages {
        stage.left = left;
        stage.victim = victim;
    }
    stages
}

/// From there s2 is elected, and its connection for the last number ends at the
/// disk that was removed; nobody else hears of its term.
pub(crate) fn astray(cluster: &Cluster, world: &World) -> World {
    let [s2, old, new] = [1, 2, 3];
    let mut world = next(cluster, world, Action::Pass);
    let elected = [Stands(s2), Hears(s2, new), Hears(new, s2)];
    world = play(cluster, world, &elected);
    assert_eq!(world.hosts[s2].node.status(), Status::Leader);
    for _round in 0..3 {
        world.wire.lose(|sent| sent.from == s2 && sent.to != old);
        world = play(cluster, world, &[Hears(s2, old), Hears(old, s2)]);
    }
    world.wire.lose(|_| true);
    world
}
