//! The failure detector: how a node judges the others by their heartbeats, and when
//! their workloads are evicted (the node lifecycle controller of Kubernetes, whose
//! grace period is the lease here). A death takes two steps (§3).
//!
//! The register that is judged must be the register that is swapped, and the view
//! is another register. So first the *heartbeat register* is swapped, from the
//! exact version that was silent for the span, to one that says `dead`. A
//! heartbeat that is written first wins, and cancels that. Only then may the view
//! be swapped, by any node that reads `dead`.
//!
//! Lists and watches keep this node's picture of the others up to date. A node is
//! declared dead only after a fresh read of its register. That read was sent when
//! the span had passed, and shows the very heartbeat that was silent.
//!
//! A heartbeat register that is not there (it was deleted) can never come back,
//! because heartbeats do not create it. Its node gets the same span to find out,
//! and then counts as dead.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use tenure_core::call::{Call, Failure, FailureClass, Pending};
use tenure_core::cas::{Expect, Reading, Register};
use tenure_core::ids::{Key, Version};
use tenure_core::time::Instant;

use super::codec::NUMBER_MAX;
use super::context::Context;
use super::heartbeat::Heartbeat;
use super::view::{Member, View};
use super::{Bug, NodeId, Plant};

/// What this node has seen of the others.
#[derive(Clone, Debug)]
pub(super) struct FailureDetector {
    peers: BTreeMap<NodeId, PeerState>,
    /// Ids of this node's own that it has given up and whose work has ended:
    /// no node needs to wait for their silence.
    former: Vec<NodeId>,
    list: Option<Pending>,
    list_at: Instant,
    failures: u32,
}

/// What this node has seen of one other.
#[derive(Clone, Debug)]
struct PeerState {
    beat: HeartbeatState,
    /// When this state was first seen.
    first: Instant,
    /// When it was last confirmed by asking.
    asked: Instant,
    /// How long it may stay.
    span: Duration,
    stage: Stage,
    /// Since when the register was not what a heartbeat is.
    malformed: bool,
    /// A verdict met a conflict, and the register has not been read since.
    conflicted: bool,
    /// How many verdicts in a row did, though the register was as expected.
    refusals: u32,
}

/// What a register was seen to hold.
#[derive(Clone, PartialEq, Eq, Debug)]
enum HeartbeatState {
    Absent,
    Alive { version: Version, record: Heartbeat },
    Dead { version: Version },
}

impl HeartbeatState {
    const fn version(&self) -> Option<&Version> {
        match self {
            Self::Absent => None,
            Self::Alive { version, .. } | Self::Dead { version } => Some(version),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Watching,
    /// Silent for long enough; act then, unless another node has.
    Suspected {
        act_at: Instant,
    },
    Confirming(Pending),
    Declaring(Pending),
    /// The heartbeat register says `dead`. From then on the node may be removed from the
    /// view (evicted).
    MarkedDead {
        remove_at: Instant,
    },
    Deleting(Pending),
}

impl FailureDetector {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            peers: BTreeMap::new(),
            former: Vec::new(),
            list: None,
            list_at: now,
            failures: 0,
        }
    }

    /// An id of this node's own has ended all its work.
    pub(super) fn give_up(&mut self, id: NodeId) {
        if !self.former.contains(&id) {
            self.former.push(id);
        }
    }

    /// Whether this node has given that id up, as far as it still matters.
    pub(super) fn is_former(&self, id: NodeId) -> bool {
        self.former.contains(&id)
    }

    /// Look at all, soon: the watch came or went.
    pub(super) const fn look(&mut self, now: Instant) {
        self.list_at = now;
    }

    /// The members that may be taken out of the view now.
    pub(super) fn declared_dead<'a>(
        &'a self,
        view: &'a View,
        now: Instant,
    ) -> impl Iterator<Item = NodeId> + 'a {
        let ids = view.members.iter().map(|member| member.id);
        ids.filter(move |id| {
            let peer = self.peers.get(id).map(|peer| peer.stage);
            matches!(peer, Some(Stage::MarkedDead { remove_at }) if now >= remove_at)
        })
    }

    /// The watch has seen a heartbeat register.
    pub(super) fn hint(
        &mut self,
        context: &mut Context,
        view: &View,
        id: NodeId,
        shown: Option<&Register>,
    ) {
        // That one is gone is for a read to say.
        if let Some(register) = shown {
            self.note(context, view, id, Some(register), None);
        }
    }

    /// A list has ended.
    pub(super) fn listed(
        &mut self,
        context: &mut Context,
        view: &View,
        call: Call,
        result: &Result<Vec<(Key, Register)>, Failure>,
    ) {
        let Some(pending) = self.list.take_if(|pending| pending.call == call) else {
            return;
        };
        let registers = match result {
            Ok(registers) => registers,
            Err(failure) => return self.failed(context, failure),
        };
        self.failures = 0;
        let gap = if context.watch_up {
            context.config.lease
        } else {
            context.config.interval
        };
        self.list_at = context.after_about(gap);
        let mut shown = BTreeMap::new();
        for (key, register) in registers {
            if let Some(id) = context.keys.node(key) {
                shown.insert(id, register);
            }
        }
        for (id, register) in &shown {
            self.note(context, view, *id, Some(register), Some(pending.asked));
        }
        for member in &view.members {
            if !shown.contains_key(&member.id) {
                self.note(context, view, member.id, None, Some(pending.asked));
            }
        }
        // What is neither there nor a member is not followed any more.
        let known = |id: &NodeId| shown.contains_key(id) || view.member(*id).is_some();
        self.peers.retain(|id, _| known(id));
        self.former.retain(known);
    }

    /// Whether the last look at all failed.
    pub(super) fn fails(&self) -> bool {
        self.failures > 0 || self.peers.values().any(|peer| peer.refusals > 0)
    }

    fn failed(&mut self, context: &mut Context, failure: &Failure) {
        self.failures = self.failures.saturating_add(1);
        let pause = context.trouble(failure, self.failures);
        self.list_at = context.now.after(pause);
    }

    /// Takes note of what a register holds; `asked` says when that was asked,
    /// and is `None` for the news of a watch.
    fn note(
        &mut self,
        context: &mut Context,
        view: &View,
        id: NodeId,
        shown: Option<&Register>,
        asked: Option<Instant>,
    ) {
        if id == context.me {
            return;
        }
        if let (Some(register), Some(peer)) = (shown, self.peers.get_mut(&id))
            && peer.beat.version() == Some(&register.version)
        {
            // As it was, which most looks say.
            peer.asked = asked.unwrap_or(peer.asked).max(peer.asked);
            peer.malformed = false;
            return;
        }
        let member = view.member(id);
        let usual = member.map_or(context.config.lease, |member| member.lease);
        let mut own_verdict = false;
        let beat = match shown.map(|register| (register, Heartbeat::decode(&register.value))) {
            None => HeartbeatState::Absent,
            Some((register, Ok(record))) if record.node == id => {
                let version = register.version.clone();
                match record.dead {
                    Some(detector) => {
                        own_verdict =
                            detector == context.me && !context.config.plant.is(Bug::WaitsTwice);
                        HeartbeatState::Dead { version }
                    }
                    None => HeartbeatState::Alive { version, record },
                }
            }
            // Perhaps only the answer was damaged. A register that stays so
            // is never judged: a person must look.
            Some(_) => {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.malformed = true;
                }
                return;
            }
        };
        let known = self.peers.get(&id);
        let plant = context.config.plant;
        if known.is_some_and(|known| known.is_newer_than(&beat, asked, plant)) {
            return;
        }
        let same = known.is_some_and(|known| known.beat == beat);
        if same {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.asked = asked.unwrap_or(peer.asked).max(peer.asked);
                peer.malformed = false;
            }
            return;
        }
        let lease = match &beat {
            HeartbeatState::Alive { record, .. } => record.lease,
            HeartbeatState::Absent | HeartbeatState::Dead { .. } => usual,
        };
        let stage = match &beat {
            // The watch was faster than the answer to this node's own swap. It
            // has waited for others already, before it judged.
            HeartbeatState::Dead { .. } if own_verdict => Stage::MarkedDead {
                remove_at: context.now,
            },
            HeartbeatState::Dead { .. } => Stage::MarkedDead {
                remove_at: context.now.after(self.turn(context, view, id)),
            },
            HeartbeatState::Alive { .. } | HeartbeatState::Absent => Stage::Watching,
        };
        let peer = PeerState {
            beat,
            first: context.now,
            asked: asked.unwrap_or(context.now),
            span: context.config.drift_bound().lengthen(lease),
            stage,
            malformed: false,
            conflicted: false,
            refusals: 0,
        };
        self.peers.insert(id, peer);
    }

    /// How long to leave it to others: not at all if this node is the one
    /// that will be asked to take over.
    fn turn(&self, context: &mut Context, view: &View, id: NodeId) -> Duration {
        let mut ring: Vec<NodeId> = view
            .members
            .iter()
            .filter(|member| member.ha && member.id != id)
            .map(|member| member.id)
            .collect();
        ring.sort();
        let hash = tenure_core::fnv::fnv1a(id.to_u128().to_be_bytes());
        let first = hash.checked_rem(ring.len() as u64);
        let placement = first.and_then(|first| ring.get(first as usize));
        if placement == Some(&context.me) || self.former.contains(&id) {
            return Duration::ZERO;
        }
        context.jitter()
    }

    /// The answer to a read of one heartbeat register.
    pub(super) fn read(
        &mut self,
        context: &mut Context,
        view: &View,
        call: Call,
        result: &Result<Reading, Failure>,
    ) {
        let Some((id, pending)) = self.awaited(call) else {
            return;
        };
        let confirmed = self.peers.get(&id).map(|peer| peer.beat.clone());
        let reading = match result {
            Ok(reading) => reading,
            Err(failure) => return self.suspect_again(context, id, failure),
        };
        self.set(id, Stage::Watching);
        self.note(
            context,
            view,
            id,
            reading.register.as_ref(),
            Some(pending.asked),
        );
        if self.is_refused(id, confirmed.as_ref()) {
            let failure = Failure::refused(&context.keys.heartbeat(id), reading);
            return self.refused(context, id, &failure);
        }
        let Some(peer) = self.peers.get(&id) else {
            return;
        };
        let stands = Some(&peer.beat) == confirmed.as_ref() && !peer.malformed;
        let anyway = self.former.contains(&id) || context.config.plant.is(Bug::StaleVerdict);
        match peer.beat.clone() {
            HeartbeatState::Alive { version, record } if stands || anyway => {
                if context.config.plant.is(Bug::DeathInOneStep) {
                    return self.declare_dead(context, id);
                }
                let dead = Heartbeat {
                    sequence: record.sequence.saturating_add(1).min(NUMBER_MAX),
                    dead: Some(context.me),
                    ..record
                };
                let key = context.keys.heartbeat(id);
                let pending = context.write(key, Expect::Version(version), dead.encode());
                self.set(id, Stage::Declaring(pending));
            }
            // Gone for the span: nothing can bring it back.
            HeartbeatState::Absent if stands && view.member(id).is_some() => {
                self.declare_dead(context, id);
            }
            HeartbeatState::Alive { .. } | HeartbeatState::Absent | HeartbeatState::Dead { .. } => {
            }
        }
    }

    fn declare_dead(&mut self, context: &Context, id: NodeId) {
        self.set(
            id,
            Stage::MarkedDead {
                remove_at: context.now,
            },
        );
    }

    fn set(&mut self, id: NodeId, stage: Stage) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.stage = stage;
        }
    }

    /// The node whose register that call is about.
    fn awaited(&self, call: Call) -> Option<(NodeId, Pending)> {
        self.peers.iter().find_map(|(id, peer)| match peer.stage {
            Stage::Confirming(pending) | Stage::Declaring(pending) | Stage::Deleting(pending)
                if pending.call == call =>
            {
                Some((*id, pending))
            }
            _ => None,
        })
    }

    fn suspect_again(&mut self, context: &mut Context, id: NodeId, failure: &Failure) {
        let pause = context.trouble(failure, 1);
        let act_at = context.now.after(pause);
        self.set(id, Stage::Suspected { act_at });
    }

    /// Whether the last verdict met a conflict, and the register is as it was
    /// then: no race, for the store refuses this node's verdict.
    fn is_refused(&mut self, id: NodeId, expected: Option<&HeartbeatState>) -> bool {
        let peer = self.peers.get_mut(&id);
        peer.is_some_and(|peer| {
            core::mem::take(&mut peer.conflicted) && Some(&peer.beat) == expected
        })
    }

    /// It is tried less and less often.
    fn refused(&mut self, context: &mut Context, id: NodeId, failure: &Failure) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        peer.refusals = peer.refusals.saturating_add(1);
        let pause = context.trouble(failure, peer.refusals);
        let act_at = context.now.after(pause);
        peer.stage = Stage::Suspected { act_at };
    }

    /// The answer to the swap of a heartbeat register.
    pub(super) fn wrote(
        &mut self,
        context: &mut Context,
        call: Call,
        result: &Result<Version, Failure>,
    ) {
        let Some((id, _)) = self.awaited(call) else {
            return;
        };
        match result {
            Ok(version) => {
                let version = version.clone();
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.beat = HeartbeatState::Dead { version };
                    peer.refusals = 0;
                    peer.first = context.now;
                }
                self.declare_dead(context, id);
            }
            // Another write came first: a late heartbeat, or another node that judges.
            Err(failure) if failure.class == FailureClass::Conflict => {
                let act_at = context.now;
                self.set(id, Stage::Suspected { act_at });
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.conflicted = true;
                }
            }
            Err(failure) => self.suspect_again(context, id, failure),
        }
    }

    /// The answer to the deletion of a heartbeat register.
    pub(super) fn deleted(
        &mut self,
        context: &mut Context,
        call: Call,
        result: &Result<(), Failure>,
    ) {
        let Some((id, _)) = self.awaited(call) else {
            return;
        };
        match result {
            Ok(()) => {
                self.peers.remove(&id);
                self.former.retain(|former| *former != id);
            }
            // It is as it was, or gone; the next list will say.
            Err(_) => {
                self.peers.remove(&id);
                self.list_at = self.list_at.min(context.now.after(context.config.interval));
            }
        }
    }

    /// Does what time has made due.
    pub(super) fn advance(&mut self, context: &mut Context, view: &View) {
        let now = context.now;
        if self.list.is_some_and(|pending| pending.is_given_up(now)) {
            self.list = None;
            self.failed(context, &Failure::no_answer());
        }
        if self.list.is_none() && now >= self.list_at {
            self.list = Some(context.list());
        }
        let ids: Vec<NodeId> = self.peers.keys().copied().collect();
        for id in ids {
            self.advance_one(context, view, id);
        }
    }

    fn advance_one(&mut self, context: &mut Context, view: &View, id: NodeId) {
        let now = context.now;
        let member = view.member(id).is_some();
        let former = self.former.contains(&id);
        let Some(peer) = self.peers.get(&id) else {
            return;
        };
        match (peer.stage, &peer.beat) {
            (Stage::Watching, HeartbeatState::Alive { .. } | HeartbeatState::Absent)
                if now >= peer.over_at(member) || former =>
            {
                if peer.beat == HeartbeatState::Absent && !member {
                    return;
                }
                let act_at = now.after(self.turn(context, view, id));
                self.set(id, Stage::Suspected { act_at });
                self.advance_one(context, view, id);
            }
            (Stage::Suspected { act_at }, _) if now >= act_at => {
                let pending = context.read(context.keys.heartbeat(id));
                self.set(id, Stage::Confirming(pending));
            }
            (Stage::Confirming(pending) | Stage::Declaring(pending), _)
                if pending.is_given_up(now) =>
            {
                self.suspect_again(context, id, &Failure::no_answer());
            }
            (Stage::Deleting(pending), _) if pending.is_given_up(now) => {
                self.peers.remove(&id);
            }
            (Stage::MarkedDead { remove_at }, HeartbeatState::Dead { version })
                if !member && now >= remove_at =>
            {
                let version = version.clone();
                let pending = context.delete(context.keys.heartbeat(id), version);
                self.set(id, Stage::Deleting(pending));
            }
            _ => {}
        }
    }

    pub(super) fn deadline(&self, view: &View, now: Instant) -> Instant {
        let list = self.list.map_or(self.list_at, |pending| pending.give_up_at);
        let peers = self.peers.iter().map(|(id, peer)| match peer.stage {
            Stage::Watching => {
                let member: Option<&Member> = view.member(*id);
                if peer.beat == HeartbeatState::Absent && member.is_none() {
                    return Instant::MAX;
                }
                peer.over_at(member.is_some())
            }
            Stage::Suspected { act_at } => act_at,
            Stage::Confirming(pending) | Stage::Declaring(pending) | Stage::Deleting(pending) => {
                pending.give_up_at
            }
            // Whatever is overdue waits for the view.
            Stage::MarkedDead { remove_at } if remove_at > now => remove_at,
            Stage::MarkedDead { .. } => Instant::MAX,
        });
        peers.fold(list, Ord::min)
    }
}

impl PeerState {
    /// When it has been silent for long enough. A register of a node that is
    /// no member may be one that is about to join: it gets twice as long.
    fn over_at(&self, member: bool) -> Instant {
        let span = if member { self.span } else { self.span * 2 };
        self.first.after(span)
    }

    /// Whether `shown` is older than the known state, and is to be ignored: heartbeats and
    /// verdicts only raise the sequence. But if the read was sent *after* the known
    /// state was seen, the store has gone back to an older copy. Then `shown` is
    /// accepted, and the time of silence begins again, which costs time and no safety.
    /// If it were ignored, every later compare-and-swap would fail (§3.4).
    fn is_newer_than(&self, shown: &HeartbeatState, asked: Option<Instant>, plant: Plant) -> bool {
        let overtaken = asked.is_none_or(|asked| asked <= self.first);
        let old_news = overtaken || plant.is(Bug::FallenHeartbeatIgnored);
        match (&self.beat, shown) {
            (HeartbeatState::Alive { record: known, .. }, HeartbeatState::Alive { record, .. }) => {
                old_news && record.sequence < known.sequence
            }
            (HeartbeatState::Dead { .. }, HeartbeatState::Alive { .. }) => old_news,
            (
                HeartbeatState::Alive { .. } | HeartbeatState::Dead { .. },
                HeartbeatState::Absent,
            ) => overtaken,
            _ => false,
        }
    }
}
