//! A simulated agent, with what it runs and what it reads of clocks.

use std::collections::{BTreeMap, VecDeque};

use tenure_core::ids::{Key, Name};
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant};
use tenure_election::Grant;
use tenure_group::{Config, Input, Keys, Node, NodeId, Order, Run};

use super::checkers::Floors;
use crate::clock::TrueTime;

/// A workload that runs, as its guardian sees it.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) order: Order,
    /// The id under which it was started.
    pub(super) id: NodeId,
    pub(super) up: bool,
    pub(super) stopping: bool,
    /// Which start this is, of all in the world.
    pub(super) number: u64,
}

/// An agent, over all its lives.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) config: Config,
    pub(super) machine: Option<Node>,
    pub(super) life: u32,
    pub(super) up: bool,
    pub(super) paused: bool,
    /// It was told to leave, and has; or it does not come back.
    pub(super) gone: bool,
    pub(super) inbox: VecDeque<Input>,
    pub(super) timer: (TrueTime, u64),
    pub(super) spins: u32,
    pub(super) works: BTreeMap<Run, Work>,
    /// Until when its workloads may run, and which timer counts.
    pub(super) run_deadline: (Instant, u64),
    /// What it wrote to its file.
    pub(super) file: Option<NotedClock>,
    /// Where its present life lives, and what is read there of clocks: by it,
    /// and by the guardian, which may be of an earlier life.
    pub(super) clock_view: ClockView,
    pub(super) reads: ClockReading,
    pub(super) shim: ClockReading,
    /// Until when its machine is suspended.
    pub(super) sleeps_until: TrueTime,
    /// Its present life goes on from an earlier one.
    pub(super) resumed: bool,
    pub(super) floors: Floors,
    /// The view has just fallen: from and to which epoch, and what was lost.
    pub(super) fell: Option<(u64, u64, Vec<Name>)>,
    /// Every id it has had.
    pub(super) ids: Vec<NodeId>,
    /// As it was told: it has given up its id.
    pub(super) fenced: bool,
    /// It was told to leave cleanly.
    pub(super) leaving: bool,
}

impl Agent {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            machine: None,
            life: 0,
            up: false,
            paused: false,
            gone: false,
            inbox: VecDeque::new(),
            timer: (TrueTime::MAX, 0),
            spins: 0,
            works: BTreeMap::new(),
            run_deadline: (Instant::ZERO, 0),
            file: None,
            clock_view: ClockView::default(),
            reads: ClockReading::default(),
            shim: ClockReading::default(),
            sleeps_until: 0,
            resumed: false,
            floors: Floors::default(),
            fell: None,
            ids: Vec::new(),
            fenced: false,
            leaving: false,
        }
    }

    pub(super) fn follows(&self, key: &Key) -> bool {
        let keys = Keys::of(self.config.group.clone());
        *key == keys.view() || keys.node(key).is_some()
    }

    pub(super) const fn runs(&self) -> bool {
        self.up && !self.paused
    }

    /// Its machine, while it lives.
    pub(super) fn node(&self) -> Option<&Node> {
        self.machine.as_ref().filter(|_| self.up)
    }

    pub(super) fn work(&mut self, run: Run, number: u64) -> Option<&mut Work> {
        self.works
            .get_mut(&run)
            .filter(|work| work.number == number)
    }
}

/// Where a life of an agent lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum ClockView {
    /// On the machine itself.
    #[default]
    Machine,
    /// Where another boot id is shown, and the clock is the machine's.
    Foreign,
    /// Where the clock is ahead by so many spans.
    Ahead(u64),
    /// Where no boot id can be read, and the clock is ahead by so many spans.
    Hidden(u64),
}

/// How much one clock is ahead of the next, in leases.
const SPAN: u64 = 33;

impl ClockView {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        match rng.below(10) {
            0..=2 => Self::Machine,
            3..=4 => Self::Foreign,
            5..=6 => Self::Ahead(rng.between(1, 2)),
            _ => Self::Hidden(rng.below(3)),
        }
    }
}

/// What is read of a clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ClockReading {
    /// Which clock it says to be.
    pub(super) id: Option<ClockId>,
    /// Which it is: of this boot, and so far ahead.
    pub(super) boot: u64,
    pub(super) ahead: u64,
}

impl ClockReading {
    pub(super) const fn of(clock_view: ClockView, boot: u64, lease: u64) -> Self {
        let (foreign, namespace, id) = match clock_view {
            ClockView::Machine => (0, 0, true),
            ClockView::Foreign => (1 << 40, 0, true),
            ClockView::Ahead(spans) => (0, spans, true),
            ClockView::Hidden(spans) => (0, spans, false),
        };
        let id = if id {
            Some(ClockId {
                boot: boot + foreign,
                namespace,
            })
        } else {
            None
        };
        Self {
            id,
            boot,
            ahead: namespace * SPAN * lease,
        }
    }

    /// Whether the two really are one clock.
    pub(super) const fn is_one(&self, other: &Self) -> bool {
        self.boot == other.boot && self.ahead == other.ahead
    }
}

/// What an agent has noted of a life.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotedClock {
    pub(super) reads: ClockReading,
    pub(super) id: NodeId,
    pub(super) grant: Grant,
}
