//! Floors: a fence does not fall while a candidate remembers it (§4.14).
//!
//! A register can be lost, or an older copy of it can come back, against what a
//! store promises: a file that was deleted, a table that was dropped, a
//! restored backup. Then a candidate is elected in a term that was used before,
//! and outside resources refuse the new leader, or do not refuse the old one.
//!
//! The highest term that a process has seen is its *floor*. A candidate races
//! above its floor (`racing.rs`), and that is enough where the election is
//! vacant. Where a candidate leads below the floor, it asks that leader to hand
//! over to itself, by the request that exists already (§4.7.4), and races above
//! its floor when the election has been vacated.
//!
//! # Why is that safe?
//!
//! * *No leader is deposed.* The request moves neither leader, nor term, nor
//!   `renewal`. The leader drains and vacates as for an operator's request, so
//!   its work has ended before anybody else leads. No term changes inside a
//!   leadership, and no judge sees another grant.
//! * *It is written over what was read.* The compare-and-swap names the
//!   version of the read that showed the lower term. Where that answer was old
//!   or wrong, the version is gone and nothing is written.
//! * *It ends.* The next leader is this candidate, above its floor; or another
//!   one. In the second case it asks again, a lease later at the earliest:
//!   at most one request per lease and candidate, so that a register under
//!   two names, or candidates with floors of their own, cost at most that.
//! * *A mistake does not spread.* No leader is asked for a floor above 2^62.
//!
//! It asks only if it may stand now: a candidate whose affinity does not hold,
//! that holds itself back or that is about to stop would send a leader away
//! and not replace it.
//!
//! How long? A leader finds a request within an interval, drains, and the
//! candidate sees the vacancy by its watch, or with its next look: a drain and
//! two intervals.

use tenure_core::cas::{Stamp, Write};

use super::{Bug, Context, Event, Expect, Instant, LeaseState, Output, Pending};
use crate::{Occupancy, Record, Request, TermRegression};

impl Context {
    /// Tells that the register has fallen, once for each floor and each term
    /// shown under it. The next time it falls the floor is a higher one.
    pub(super) fn tell_regression(&mut self) {
        let regression = self.judge.regression();
        if let Some(news) = regression.filter(|_| self.floor.reported != regression) {
            self.floor.reported = regression;
            self.event(Event::TermFell(news));
        }
    }

    /// What to write to whom, if somebody leads below the floor who has not
    /// been asked to leave.
    fn leader_request(&self) -> Option<(Expect, Record)> {
        let regression = self.judge.regression()?;
        let held = matches!(self.judge.lease_state(), LeaseState::Held { .. });
        let bounded = regression.floor.get() <= TermRegression::ASKED_MAX;
        if !held || !bounded || !self.may_stand() {
            return None;
        }
        let mut record = self.judge.record()?.clone();
        let version = self.judge.version()?.clone();
        let Occupancy::Held(holder) = &mut record.occupancy else {
            return None;
        };
        if holder.request.is_some() {
            return None;
        }
        // A namesake would take a transfer for one to itself and, freed of the
        // duty to hold back, be elected again below this floor.
        holder.request = Some(if holder.name == self.config.name {
            Request::Resign
        } else {
            Request::Transfer(self.config.name.clone())
        });
        record.sequence = self.next_sequence(record.sequence)?;
        Some((Expect::Version(version), record))
    }

    /// When to ask the leader to go, if that is called for.
    pub(super) fn leader_request_at(&self) -> Option<Instant> {
        self.leader_request().map(|_| self.floor.not_before)
    }

    /// Asks the leader to go.
    pub(super) fn send_leader_request(&mut self) -> Option<Pending> {
        let (expect, record) = self.leader_request()?;
        if !self.config.planted(Bug::FloorRepeated) {
            // Counted from now, whether it lands or not.
            let lease = record.lease.max(self.config.lease);
            self.floor.not_before = self.now.boot.after(lease);
        }
        let within = self.config.interval;
        let pending = self.calls.begin(self.now.boot, within);
        let write = Write {
            key: self.key.clone(),
            expect,
            value: record.encode(),
            // Not the holder's keep-alive.
            stamp: Stamp::Keep,
        };
        self.outputs.push_back(Output::Write {
            call: pending.call,
            write,
            bind: None,
            within,
        });
        Some(pending)
    }

    /// The last request has certainly not been written: another one may be,
    /// after an interval.
    pub(super) fn leader_request_failed(&mut self) {
        self.floor.not_before = self.now.boot.after(self.config.interval);
    }
}
