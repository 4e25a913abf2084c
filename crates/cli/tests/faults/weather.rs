//! What can go wrong, drawn from a seed.

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
        }
    }

    /// Draws one for servers 1 to `count`, of which `leader` leads. Who leads
    /// is hit about every other time.
    pub(crate) fn draw(rng: &mut Rng, count: u64, leader: Option<u64>, lossy: bool) -> Self {
        let anybody = rng.between(1, count);
        let who = match leader {
            Some(leader) if rng.chance(45) => leader,
            _ => anybody,
        };
        let other = (who + rng.between(0, count - 2)) % count + 1;
        match rng.below(if lossy { 15 } else { 17 }) {
            0 | 1 => Self::Kill(who),
            2 if rng.chance(40) => Self::KillAll,
            2 | 3 => Self::Pause(who),
            4 => Self::Restart(who),
            5 if rng.chance(30) => Self::Rolling,
            5 => Self::HandOver,
            6 | 7 => Self::Isolated(who),
            8 => Self::Deaf(who),
            9 => Self::Mute(who),
            10 if rng.chance(50) => Self::OneWay(who, other),
            10 => Self::OneWay(other, who),
            11 | 12 => Self::Flapping(who),
            13 if lossy => Self::Loss(u32::try_from(rng.between(3, 30)).expect("small")),
            14 if lossy => Self::Gone(who),
            13 => Self::Slow(who, rng.between(5, 400)),
            14 => Self::Narrow(who, rng.between(2_000, 200_000)),
            _ => Self::Reset,
        }
    }

    /// How long it lasts.
    pub(crate) fn lasts(self, rng: &mut Rng) -> Duration {
        let most = match self {
            Self::Kill(_) | Self::KillAll => 1_500,
            Self::Restart(_) | Self::Rolling | Self::Reset | Self::HandOver => 0,
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
            | Self::HandOver => {}
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
