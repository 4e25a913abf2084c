//! Messages that come very late.
//!
//! A connection holds back what is sent on it for a while, and delivers it
//! seconds later, or when the server that opened the connection begins its next
//! leadership: the moment at which an answer to an earlier leadership does most
//! harm. What is sent afterwards overtakes it, as it does where a server has
//! given one connection up and opened another, and the receiver reads the old
//! one later. A message dies with its connection: when the process at either
//! end ends, or the connection is reset.

use tenure_alpo::Body;

use super::events::Event;
use super::network::InFlightMessage;
use super::network::{DelayRule, DelayedMessage};
use super::world::World;
use crate::clock::SECOND;

impl World {
    /// Some connections of a server, more often than not of the leader, begin
    /// to hold back.
    pub(super) fn hold(&mut self, server: usize) {
        let opener = match self.leader() {
            Some(leader) if self.rng.chance(75) => leader,
            _ => server,
        };
        let (requests, replies) = match self.rng.below(10) {
            0..6 => (false, true),
            6..8 => (true, false),
            _ => (true, true),
        };
        let timeout = self.timeout();
        let until = self.now + self.rng.between(timeout / 4, 2 * timeout);
        // Some are late by less than a lease, and some by several leaderships.
        let late = if self.rng.chance(40) {
            self.rng.between(timeout / 4, timeout * 3 / 2)
        } else {
            self.rng.between(timeout, 6 * SECOND)
        };
        let share = [35, 100][self.rng.below(2) as usize];
        for other in (0..self.swarm.servers).filter(|other| *other != opener) {
            if self.rng.chance(share) {
                self.stats.holds += 1;
                self.delayed_messages.begin(DelayRule {
                    connection: (opener, other),
                    until,
                    requests,
                    replies,
                    late,
                });
            }
        }
        let now = self.now;
        self.delayed_messages.holds.retain(|hold| hold.until > now);
    }

    /// Holds a message back if its connection does; says whether it did.
    pub(super) fn hold_back(&mut self, message: &InFlightMessage) -> bool {
        let envelope = &message.envelope;
        if self.delayed_messages.holds.is_empty() {
            return false;
        }
        let from = envelope.from.get() as usize - 1;
        let to = envelope.to.get() as usize - 1;
        let connection = match envelope.body {
            Body::Request { .. } => (from, to),
            Body::Reply { .. } => (to, from),
        };
        let Some(late) = self
            .delayed_messages
            .holds(self.now, connection, &envelope.body)
        else {
            return false;
        };
        self.stats.held += 1;
        self.delayed_messages.next += 1;
        let number = self.delayed_messages.next;
        self.delayed_messages.held.push(DelayedMessage {
            number,
            connection,
            message: message.clone(),
        });
        self.after(late, Event::Release { number });
        true
    }

    /// A message that was held back comes, if its connection still lives.
    pub(super) fn release(&mut self, number: u64) {
        let at = self
            .delayed_messages
            .held
            .iter()
            .position(|held| held.number == number);
        if let Some(held) = at.map(|at| self.delayed_messages.held.remove(at)) {
            self.stats.released += 1;
            self.after(1, Event::Deliver(held.message));
        }
    }

    /// A leader begins its term: what its connections held back comes now, and
    /// some of what others have asked.
    pub(super) fn release_to(&mut self, leader: usize) {
        let leader = self.place(leader);
        let within = 12 * self.step_time();
        let due = self.delayed_messages.held.iter().map(|held| {
            let own = held.connection.0 == leader;
            // What is answered to another is of use when that one leads.
            let is_request = matches!(held.message.envelope.body, Body::Request { .. });
            (
                held.number,
                if own { 80 } else { 20 * u64::from(is_request) },
            )
        });
        let due: Vec<_> = due.collect();
        for (number, share) in due {
            if self.rng.chance(share) {
                let delay = self.rng.below(within) + 1;
                self.after(delay, Event::Release { number });
            }
        }
    }

    /// All connections of a server are gone, and with them what they held.
    pub(super) fn lose_held(&mut self, server: usize) {
        let server = self.place(server);
        let own = |(a, b): (usize, usize)| a == server || b == server;
        self.stats.lost += self.delayed_messages.breaks(own);
    }

    /// Nothing is held back any more.
    pub(super) fn release_all(&mut self) {
        self.delayed_messages.holds.clear();
        let all: Vec<_> = self
            .delayed_messages
            .held
            .iter()
            .map(|held| held.number)
            .collect();
        for number in all {
            self.release(number);
        }
    }
}
