//! How far one peer is, as the leader sees it (`nextIndex` and `matchIndex` of
//! Raft), and whether appends to it are pipelined (etcd: `StateProbe`,
//! `StateReplicate`, `StateSnapshot`).
//!
//! ```text
//!              mismatch, or a request was lost
//!        ┌────────────────────────────────────┐
//!        ▼               appended             │
//!     Probing ───────────────────────────► Streaming
//!        │                                    │
//!        │ the entry it needs is compacted    │
//!        └──────────► Installing ◄────────────┘
//!                        │  snapshot durable at the peer
//!                        └──► Streaming
//! ```
//!
//! Probing sends one request at a time until the peer's log and the leader's
//! meet; streaming keeps a window of them under way and does not wait.

use alloc::collections::VecDeque;
use core::hash::{Hash, Hasher};

use tenure_core::time::Instant;

use super::super::config::Config;
use super::super::entry::ClusterVersion;
use super::super::ids::{LogId, Position, StorageId};
use super::super::log::Log;
use super::super::message::Reply;
use super::super::state::StateChecksum;
use super::pacing::Pacing;

#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// The disk that all of this is about: the one that the members have
    /// under the peer's number. When they have another, it begins anew.
    pub(super) storage: StorageId,
    /// Up to here the peer's log is durably the leader's.
    pub(super) matched: LogId,
    /// The next entry to send; above `matched`.
    pub(super) next: LogId,
    /// The latest round of confirmation that the peer answered.
    pub(super) round: u64,
    /// When it last answered this leader since it became a peer.
    pub(super) heard_at: Option<Instant>,
    /// The newest kinds of entries that the peer understands, if it has said so
    /// in this term.
    pub(super) version: Option<ClusterVersion>,
    /// What its state was marked with where it was asked for last.
    pub(super) state_checksum: Option<StateChecksum>,
    pub(super) mode: Mode,
    /// It is brought up to date: it was sent a snapshot, and has not had all
    /// that a newer one covers since; see `sending.rs`.
    pub(super) catches_up: bool,
    /// How much may be on its way to it.
    pub(super) pacing: Pacing,
    /// Refusals of requests up to this number tell nothing any more.
    ignore_refusals_upto: u64,
    /// The last heartbeat that the peer answered.
    last_heartbeat_answered: u64,
    /// The last request that had been sent when it was known that the peer
    /// has everything up to `matched`.
    settled_by: u64,
    /// It lacks what it has acknowledged in this term: its disk was set back.
    /// It has forgotten its promises and counts for nothing, until it is
    /// admitted anew and all of this begins anew.
    pub(super) set_back: bool,
    /// Requests up to this number were sent before this peer was one. It may
    /// have been one earlier, with another disk: what that disk accepted says
    /// nothing about this one.
    requests_before: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Mode {
    Probing {
        /// One request is under way, since the last heartbeat.
        asked: bool,
    },
    Streaming {
        /// Requests under way: their number and the last entry in them.
        window: VecDeque<(u64, LogId)>,
    },
    Installing {
        /// The snapshot that is being sent.
        last: Position,
        /// The next byte the peer wants.
        offset: u64,
        /// The first request that brought it that byte.
        first: Option<u64>,
        /// The last one, if no other is to be sent yet.
        asked: Option<u64>,
    },
}

impl Progress {
    /// At the start of a leadership, or of a membership: hope that the peer has
    /// everything. `newest` is the number of the last request that was sent.
    pub(super) const fn optimistic(
        storage: StorageId,
        last: LogId,
        newest: u64,
        config: &Config,
    ) -> Self {
        Self {
            storage,
            matched: 0,
            next: last + 1,
            round: 0,
            heard_at: None,
            version: None,
            state_checksum: None,
            mode: Mode::Probing { asked: false },
            catches_up: false,
            pacing: Pacing::new(config),
            settled_by: newest,
            set_back: false,
            ignore_refusals_upto: newest,
            last_heartbeat_answered: newest,
            requests_before: newest,
        }
    }

    /// Whether request `number` was sent to this peer, and not to an earlier one of its id.
    pub(super) const fn was_asked(&self, number: u64) -> bool {
        number > self.requests_before
    }

    /// Whether the peer has lost what it has acknowledged, if its log ends at
    /// `last` by its answer to request `number`.
    ///
    /// It has promised that all up to `matched` is on its disk, and nothing
    /// in this term takes that away. So only a disk that was set back ends
    /// before, if the answer is to a request that was sent after the promise
    /// had come; an answer to an earlier one may itself be older than that.
    pub(super) const fn has_lost(&self, number: u64, last: Position) -> bool {
        number > self.settled_by && last.id < self.matched
    }

    /// Takes the peer's disk for one that was set back: what it has acknowledged counts no
    /// more, and neither does what it will.
    pub(super) const fn mark_set_back(&mut self) {
        self.set_back = true;
        self.matched = 0;
        self.round = 0;
        self.heard_at = None;
        self.version = None;
        self.state_checksum = None;
    }

    /// It is known that the peer has more than before: `newest` is the number
    /// of the last request that was sent.
    const fn settle(&mut self, before: LogId, newest: u64) {
        if self.matched > before {
            self.settled_by = newest;
        }
    }

    /// What the peer says of its log in an answer to request `number`, and the
    /// round that it confirms; `None` of an answer that says neither. `newest` is
    /// the number of the last request that was sent to anybody. What is on the
    /// peer's disk is believed if that `matches` the disk of a member.
    pub(super) fn replied(
        &mut self,
        number: u64,
        newest: u64,
        reply: Reply,
        log: &Log,
        matches: bool,
    ) -> Option<u64> {
        let before = self.matched;
        // A peer cannot match more than there is; one that says so is not
        // believed.
        let believed = |matched: &LogId| *matched <= log.last().id && matches;
        let round = match reply {
            Reply::Appended { matched, round } => {
                if believed(&matched) {
                    self.appended(matched);
                }
                round
            }
            Reply::Mismatch {
                last,
                conflict,
                round,
            } => {
                self.mismatched(number, newest, log, (last, conflict));
                round
            }
            Reply::Heard {
                matched,
                last,
                round,
                version,
                state_checksum,
            } => {
                self.heartbeat_answered(number);
                (self.version, self.state_checksum) = (Some(version), state_checksum);
                match matched {
                    Some(matched) if believed(&matched) => self.appended(matched),
                    Some(_) => {}
                    None => self.heard_short(number, newest, last, log),
                }
                round
            }
            Reply::Installed {
                last,
                offset,
                done,
                round,
            } => {
                self.installed(number, last, offset, done && matches);
                round
            }
            _ => return None,
        };
        self.settle(before, newest);
        Some(round)
    }

    /// The peer has the leader's log up to `matched`.
    pub(super) fn appended(&mut self, matched: LogId) {
        self.matched = self.matched.max(matched);
        self.next = self.next.max(self.matched + 1);
        let reached = self.matched;
        match &mut self.mode {
            Mode::Streaming { window } => {
                while window.pop_front_if(|(_, last)| *last <= reached).is_some() {}
            }
            Mode::Probing { .. } => self.stream(),
            Mode::Installing { last, .. } if last.id <= reached => self.stream(),
            Mode::Installing { .. } => {}
        }
    }

    fn stream(&mut self) {
        self.next = self.matched + 1;
        self.mode = Mode::Streaming {
            window: VecDeque::new(),
        };
    }

    /// The peer refused request `number`, whose `prev` was not in its log:
    /// goes back by a whole term, so that a long stale tail costs a round
    /// trip for each term in it and not for each entry. `newest` is the
    /// number of the last request that was sent to anybody.
    fn mismatched(
        &mut self,
        number: u64,
        newest: u64,
        log: &Log,
        peer: (Position, Option<Position>),
    ) {
        if number <= self.ignore_refusals_upto || matches!(self.mode, Mode::Installing { .. }) {
            return;
        }
        let (last, conflict) = peer;
        let back = match conflict {
            // It has other entries there, of a term that begins at `first`
            // in its log and ends at `ours` in the leader's. If the leader
            // has entries of that term from there on, they are the same.
            Some(first) => {
                let ours = log.last_up_to_term(first.term);
                if ours >= first.id && log.term_at(ours) == Some(first.term) {
                    ours
                } else {
                    ours.min(first.id.saturating_sub(1))
                }
            }
            // Its log ends before.
            None => last.id.min(log.last_up_to_term(last.term)),
        };
        let most = self.next.saturating_sub(1).max(1);
        self.next = (back + 1).min(most).max(self.matched + 1);
        self.probe(newest);
    }

    /// A heartbeat numbered `number` found the peer's log ending at `last`,
    /// which is not where the leader's ended. If it should have been given
    /// more by then, a request was lost; if it was given it longer ago than a
    /// whole heartbeat and has not said so, an answer was (or its disk is
    /// slow, and asking it once more does no harm).
    fn heard_short(&mut self, number: u64, newest: u64, last: Position, log: &Log) {
        let before = self.last_heartbeat_answered;
        self.last_heartbeat_answered = before.max(number);
        if number <= self.ignore_refusals_upto {
            return;
        }
        let lost = match &self.mode {
            Mode::Streaming { window } => window
                .iter()
                .any(|(sent, end)| *sent < before || (*sent < number && *end > last.id)),
            Mode::Probing { .. } => last.id + 1 < self.next,
            Mode::Installing { .. } => false,
        };
        if lost {
            let meet = last.id.min(log.last().id);
            self.next = (meet + 1).max(self.matched + 1).min(self.next);
            self.probe(newest);
        }
    }

    fn probe(&mut self, newest: u64) {
        self.ignore_refusals_upto = newest;
        self.mode = Mode::Probing { asked: false };
    }

    /// A heartbeat passed: what was asked before may be asked again.
    pub(super) const fn retry(&mut self) {
        if let Mode::Probing { asked } = &mut self.mode {
            *asked = false;
        }
    }

    /// The peer has answered heartbeat `number`. If a chunk was sent before
    /// it, the chunk or its reply is lost, or the chunk was of no use. Time alone
    /// does not tell: over a slow link, chunks that are sent again and again
    /// would crowd out the replies that they wait for.
    fn heartbeat_answered(&mut self, number: u64) {
        if let Mode::Installing { asked, .. } = &mut self.mode {
            asked.take_if(|sent| *sent < number);
        }
    }

    /// Requests up to this number were sent before this server was a peer with this disk.
    pub(super) const fn requests_before(&self) -> u64 {
        self.requests_before
    }

    /// The numbers answers are compared with; see
    /// [`Node::numbers_to`](super::Node::numbers_to).
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        let window = match &self.mode {
            Mode::Streaming { window } => Some(window),
            Mode::Probing { .. } | Mode::Installing { .. } => None,
        };
        let window = window.into_iter().flatten().map(|(number, _)| *number);
        [self.ignore_refusals_upto, self.last_heartbeat_answered]
            .into_iter()
            .chain(window)
    }

    /// For [`Node::digest`](super::Node::digest).
    pub(super) fn digest(&self, into: &mut impl Hasher) {
        let Self {
            storage,
            matched,
            next,
            mode,
            catches_up,
            // What is sent sooner or later is the explorer's choice.
            pacing: _,
            // Rounds decide about reads and leases, and about whether a leader
            // gives up, which is the explorer's choice.
            round: _,
            // When it spoke decides about changes of members alone.
            heard_at: _,
            // Which entries there may be is not explored, nor what becomes of
            // states that differ.
            version: _,
            state_checksum: _,
            settled_by: _,
            set_back,
            ignore_refusals_upto: _,
            last_heartbeat_answered: _,
            requests_before: _,
        } = self;
        (storage, matched, next, set_back, catches_up).hash(into);
        core::mem::discriminant(mode).hash(into);
        match mode {
            Mode::Probing { asked } => asked.hash(into),
            Mode::Streaming { window } => {
                let ends = window.iter().map(|(_, last)| last);
                ends.for_each(|last| last.hash(into));
                window.len().hash(into);
            }
            Mode::Installing {
                last,
                offset,
                first: _,
                asked,
            } => (last, offset, asked.is_some()).hash(into),
        }
    }

    /// The snapshot that ends at `last` is sent from its first byte.
    pub(super) fn install(&mut self, last: Position) {
        self.catches_up = true;
        self.mode = Mode::Installing {
            last,
            offset: 0,
            first: None,
            asked: None,
        };
    }

    /// Whether the peer has a part of the snapshot that ends at `of`, or the
    /// first part of it is on its way.
    pub(super) fn is_sent(&self, of: Position) -> bool {
        let Mode::Installing {
            last,
            offset,
            asked,
            ..
        } = &self.mode
        else {
            return false;
        };
        *last == of && (*offset > 0 || asked.is_some())
    }

    /// The entry after which the peer needs the log, now or when its snapshot
    /// is in use.
    pub(super) const fn needs_after(&self) -> LogId {
        match &self.mode {
            Mode::Installing { last, .. } => last.id,
            Mode::Probing { .. } | Mode::Streaming { .. } => self.matched,
        }
    }

    /// The peer has said to request `number` that it wants byte `wanted` of
    /// the snapshot next, or has all of it.
    fn installed(&mut self, number: u64, of: Position, wanted: u64, done: bool) {
        if done {
            return self.appended(of.id);
        }
        let Mode::Installing {
            last,
            offset,
            first,
            asked,
        } = &mut self.mode
        else {
            return;
        };
        // An answer to what was sent twice must not make the next chunk be
        // sent twice: that would go on to the end of the snapshot, and be
        // three times after the next such answer.
        if *last != of || first.is_none_or(|first| number < first) {
            return;
        }
        if wanted > *offset {
            *asked = None;
        }
        if wanted != *offset {
            (*offset, *first) = (wanted, None);
        }
    }
}
