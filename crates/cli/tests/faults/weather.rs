//! What can go wrong, drawn from a seed.
//!
//! Kinds are dealt from a deck, which has each of them once or a few times and
//! is shuffled again when it is used up: so a storm of some length has all of
//! them, in an order that nobody chose.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tenure::core::rng::Rng;

use crate::network::{CLIENTS, Edge, Edges};

/// Of a server that flaps: how long it is cut off, and then is not.
const FLAP: Duration = Duration::from_millis(180);

/// Something wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// SIGKILL, and started again later.
    Kill(u64),
    /// All at once.
    KillAll,
    /// SIGSTOP, and SIGCONT later.
    Pause(u64),
    /// SIGTERM, and started again at once.
    Restart(u64),
    /// That, one server after the other.
    Rolling,
    /// No server hears it, and it hears none; clients still reach it.
    Isolated(u64),
    /// The same, and clients do not reach it either.
    Gone(u64),
    /// It hears nothing of the others.
    Deaf(u64),
    /// The others hear nothing of it.
    Mute(u64),
    /// One does not hear one other.
    OneWay(u64, u64),
    /// Cut off, and not, and cut off.
    Flapping(u64),
    /// Of a hundred packets, so many are lost, everywhere.
    Loss(u32),
    /// What this server says arrives so many milliseconds later.
    Slow(u64, u64),
    /// The others' words reach this server at so many bytes in a second.
    Narrow(u64, u64),
    /// All connections between servers are reset.
    Reset,
    /// The leader is told to hand over.
    HandOver,
    /// All the room on this server's disk is taken, and given back later.
    FullDisk(u64),
    /// Each sync of this server takes so many milliseconds longer.
    SlowDisk(u64, u64),
    /// The next sync of this server is answered with an error.
    FailedSync(u64),
    /// SIGKILL, and started again with an empty directory.
    Wiped(u64),
    /// SIGKILL, and started again with a clock that is so many seconds ahead.
    Clock(u64, u64),
    /// This server's calendar is set to so many days from now.
    Calendar(u64, i64),
}

/// What a kind of fault takes that is not there everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    Nothing,
    /// A network that loses packets, and can cut clients off.
    Packets,
    /// A network that sees streams.
    Streams,
    /// Leave to mount file systems.
    Mounts,
    /// `strace`, and leave to trace.
    Traces,
    /// Namespaces of time.
    Clocks,
    /// A build whose calendar a test can step.
    Calendars,
}

/// Each kind, how many cards of it are in a deck, and what it takes.
const KINDS: [(&str, usize, Needs); 22] = [
    ("killed", 3, Needs::Nothing),
    ("all killed", 1, Needs::Nothing),
    ("paused", 2, Needs::Nothing),
    ("restarted", 1, Needs::Nothing),
    ("rolling restart", 1, Needs::Nothing),
    ("hand-over", 1, Needs::Nothing),
    ("isolated", 3, Needs::Nothing),
    ("deaf", 1, Needs::Nothing),
    ("mute", 1, Needs::Nothing),
    ("one way", 1, Needs::Nothing),
    ("flapping", 3, Needs::Nothing),
    ("packet loss", 1, Needs::Packets),
    ("gone", 1, Needs::Packets),
    ("slow", 1, Needs::Streams),
    ("narrow", 1, Needs::Streams),
    ("reset", 2, Needs::Streams),
    ("full disk", 2, Needs::Mounts),
    ("slow disk", 2, Needs::Traces),
    ("failed sync", 1, Needs::Traces),
    ("wiped", 2, Needs::Nothing),
    ("clock ahead", 2, Needs::Clocks),
    ("calendar set", 2, Needs::Calendars),
];

/// The kinds there are where there is this, once for each card.
fn cards(means: &[Needs]) -> Vec<&'static str> {
    let there = KINDS.iter().filter(|(.., needs)| means.contains(needs));
    there
        .flat_map(|(kind, times, _)| std::iter::repeat_n(*kind, *times))
        .collect()
}

/// What kinds of faults come next.
pub(crate) struct Deck {
    means: Vec<Needs>,
    left: Vec<&'static str>,
}

impl Deck {
    pub(crate) const fn new(means: Vec<Needs>) -> Self {
        let left = Vec::new();
        Self { means, left }
    }

    /// All kinds that it has.
    pub(crate) fn kinds(&self) -> BTreeSet<&'static str> {
        cards(&self.means).into_iter().collect()
    }

    fn deal(&mut self, rng: &mut Rng) -> &'static str {
        if self.left.is_empty() {
            self.left = cards(&self.means);
        }
        let at = rng.below(self.left.len() as u64);
        self.left
            .swap_remove(usize::try_from(at).expect("it is small"))
    }
}

impl Fault {
    /// What it is called in reports.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Kill(_) => "killed",
            Self::KillAll => "all killed",
            Self::Pause(_) => "paused",
            Self::Restart(_) => "restarted",
            Self::Rolling => "rolling restart",
            Self::Isolated(_) => "isolated",
            Self::Gone(_) => "gone",
            Self::Deaf(_) => "deaf",
            Self::Mute(_) => "mute",
            Self::OneWay(..) => "one way",
            Self::Flapping(_) => "flapping",
            Self::Loss(_) => "packet loss",
            Self::Slow(..) => "slow",
            Self::Narrow(..) => "narrow",
            Self::Reset => "reset",
            Self::HandOver => "hand-over",
            Self::FullDisk(_) => "full disk",
            Self::SlowDisk(..) => "slow disk",
            Self::FailedSync(_) => "failed sync",
            Self::Wiped(_) => "wiped",
            Self::Clock(..) => "clock ahead",
            Self::Calendar(..) => "calendar set",
        }
    }

    /// Draws one for servers 1 to `count`, of which `leader` leads. Who leads
    /// is hit about every other time.
    pub(crate) fn draw(rng: &mut Rng, deck: &mut Deck, count: u64, leader: Option<u64>) -> Self {
        let anybody = rng.between(1, count);
        let who = match leader {
            Some(leader) if rng.chance(45) => leader,
            _ => anybody,
        };
        let other = (who + rng.between(0, count - 2)) % count + 1;
        match deck.deal(rng) {
            "killed" => Self::Kill(who),
            "all killed" => Self::KillAll,
            "paused" => Self::Pause(who),
            "restarted" => Self::Restart(who),
            "rolling restart" => Self::Rolling,
            "hand-over" => Self::HandOver,
            "isolated" => Self::Isolated(who),
            "gone" => Self::Gone(who),
            "deaf" => Self::Deaf(who),
            "mute" => Self::Mute(who),
            "one way" if rng.chance(50) => Self::OneWay(who, other),
            "one way" => Self::OneWay(other, who),
            "flapping" => Self::Flapping(who),
            "packet loss" => Self::Loss(u32::try_from(rng.between(3, 30)).expect("small")),
            "slow" => Self::Slow(who, rng.between(5, 400)),
            "narrow" => Self::Narrow(who, rng.between(2_000, 200_000)),
            "reset" => Self::Reset,
            "full disk" => Self::FullDisk(if who == count { other } else { who }),
            "slow disk" => Self::SlowDisk(who, rng.between(5, 400)),
            "failed sync" => Self::FailedSync(who),
            "wiped" => Self::Wiped(who),
            // An hour at least, and up to a year.
            "clock ahead" => Self::Clock(who, rng.between(3_600, 31_000_000)),
            "calendar set" => Self::Calendar(who, rng.between(0, 1_600).cast_signed() - 800),
            other => unreachable!("no kind is called {other}"),
        }
    }

    /// Whether it counts only when it has been seen to do something.
    pub(crate) const fn is_to_be_seen(self) -> bool {
        matches!(
            self,
            Self::FullDisk(_)
                | Self::SlowDisk(..)
                | Self::FailedSync(_)
                | Self::Wiped(_)
                | Self::Clock(..)
                | Self::Calendar(..)
        )
    }

    /// How long it lasts.
    pub(crate) fn lasts(self, rng: &mut Rng) -> Duration {
        let most = match self {
            Self::Kill(_) | Self::KillAll => 1_500,
            Self::Restart(_) | Self::Rolling | Self::Reset | Self::HandOver => 0,
            // A wiped one is mended for as long as that takes.
            Self::Wiped(_) | Self::Clock(..) | Self::Calendar(..) => 0,
            // It must have asked for room.
            Self::FullDisk(_) => return Duration::from_millis(rng.between(1_000, 4_000)),
            // Longer than a session of some clients.
            _ if rng.chance(10) => 6_000,
            _ => 2_500,
        };
        Duration::from_millis(rng.between(most / 10, most))
    }

    /// What it does to the network of servers 1 to `count`.
    pub(crate) fn put(self, edges: &mut Edges, count: u64, since: Instant) {
        let mut cut = |from: u64, to: u64| {
            if from != to {
                edges.entry((from, to)).or_default().cut = true;
            }
        };
        match self {
            Self::Flapping(_) if since.elapsed().div_duration_f64(FLAP) as u64 % 2 == 1 => {}
            Self::Isolated(who) | Self::Flapping(who) => (1..=count).for_each(|other| {
                cut(who, other);
                cut(other, who);
            }),
            Self::Gone(who) => (CLIENTS..=count).for_each(|other| {
                cut(who, other);
                cut(other, who);
            }),
            Self::Deaf(who) => (1..=count).for_each(|other| cut(other, who)),
            Self::Mute(who) => (1..=count).for_each(|other| cut(who, other)),
            Self::OneWay(from, to) => cut(from, to),
            Self::Loss(percent) => each(edges, CLIENTS, count, |_, _, edge| edge.loss = percent),
            Self::Slow(who, delay) => each(edges, 1, count, |from, _, edge| {
                if from == who {
                    edge.delay_ms = edge.delay_ms.max(delay);
                }
            }),
            Self::Narrow(who, rate) => each(edges, 1, count, |_, to, edge| {
                if to == who {
                    edge.rate = rate;
                }
            }),
            Self::Kill(_)
            | Self::KillAll
            | Self::Pause(_)
            | Self::Restart(_)
            | Self::Rolling
            | Self::Reset
            | Self::HandOver
            | Self::FullDisk(_)
            | Self::SlowDisk(..)
            | Self::FailedSync(_)
            | Self::Wiped(_)
            | Self::Clock(..)
            | Self::Calendar(..) => {}
        }
    }
}

fn each(edges: &mut Edges, first: u64, last: u64, with: impl Fn(u64, u64, &mut Edge)) {
    for from in first..=last {
        for to in (first..=last).filter(|to| *to != from) {
            with(from, to, edges.entry((from, to)).or_default());
        }
    }
    edges.retain(|_, edge| *edge != Edge::default());
}

#[test]
fn a_deck_has_every_kind_by_the_name_that_reports_give_it() {
    let means = KINDS.map(|(.., needs)| needs).to_vec();
    let (mut deck, mut rng) = (Deck::new(means), Rng::from_seed(3));
    let mut drawn = BTreeSet::new();
    for _ in 0..cards(&deck.means).len() {
        drawn.insert(Fault::draw(&mut rng, &mut deck, 3, Some(1)).kind());
    }
    assert_eq!(drawn, deck.kinds());
    assert_eq!(drawn.len(), KINDS.len());
}
