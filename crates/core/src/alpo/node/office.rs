//! What a leader does besides replicating: reads, changes of members, and
//! handing over.

use crate::time::Instant;

use super::super::bug::Bug;
use super::super::entry::Payload;
use super::super::ids::{LogId, Position, ServerId};
use super::super::membership::{Change, Membership};
use super::super::message::Request;
use super::super::quorum;
use super::leader::{Leader, Transfer};
use super::progress::{Mode, Progress};
use super::server::Server;
use super::types::{Answer, Query, Refusal};

/// How many entries a learner may lack when it is promoted.
const PROMOTION_LAG: LogId = 1_000;

impl Leader {
    /// Answers from the applied state as soon as it is certain that nobody
    /// else has led and committed since the question came.
    pub(super) fn read(&mut self, server: &mut Server, token: u64, query: Query) {
        if server.planted(Bug::ReadUnconfirmed) || self.has_lease(server) {
            let found = server.find(query, self.time(server));
            return server.answer(token, Answer::Read(found));
        }
        if self.rounds.waiting() >= server.config.waiting {
            return server.answer(token, Answer::Refused(Refusal::Busy));
        }
        self.rounds.wait(token, query);
    }

    /// Whether nobody else can have been elected: voters that answered the
    /// last confirmed round refuse votes for a timeout from when they heard
    /// of it, which was not before it began, on clocks that are at most
    /// `drift` off.
    fn has_lease(&self, server: &Server) -> bool {
        let span = server.config.drift.shorten(server.config.timeout);
        server.config.lease_reads
            && !self.lease_given_up
            && server.now < self.rounds.confirmed_at().after(span)
    }

    pub(super) fn change(&mut self, server: &mut Server, token: u64, change: Change) {
        // A second change before the first is committed could make two
        // majorities that share nobody.
        let under_way = server.members.last_change().is_some();
        if under_way && !server.planted(Bug::ChangesOverlap) {
            return server.answer(token, Answer::Refused(Refusal::ChangeUnderWay));
        }
        let members = match server.members.now().after(change) {
            Ok(members) => members,
            Err(error) => return server.answer(token, Answer::Refused(Refusal::Change(error))),
        };
        if change == Change::Remove(server.id()) {
            // It hands over first; the new leader is asked again.
            self.hand_over(server, None, None);
            let leader = self.transfer.map(|transfer| transfer.to);
            return server.answer(token, Answer::Refused(Refusal::NotLeader { leader }));
        }
        if let Change::Promote(learner) = change {
            // It must also have the entry that admitted it, on its disk: it
            // votes only when it knows that it was admitted, and voters that
            // do not vote could leave the others without a majority.
            let matched = self.peers.get(&learner).map_or(0, |peer| peer.matched);
            let late = matched + PROMOTION_LAG < server.log.last().id;
            if late || matched < server.members.since() {
                return server.answer(token, Answer::Refused(Refusal::Behind));
            }
        }
        if !self.hears_majority(server, &members) {
            return server.answer(token, Answer::Refused(Refusal::TooFewHeard));
        }
        self.append(server, Payload::Members(members), Some(token));
        self.meet_members(server);
    }

    /// Whether enough of those who would vote after a change could vote now:
    /// they have answered within a timeout, and have the last change before
    /// this one on their disks, as whoever is promoted must. The change counts
    /// as soon as it is appended: taking a server out that is needed, while
    /// another is silent or does not know yet that it votes, would leave those
    /// who stay without a majority for ever, for whoever was taken out cannot
    /// be elected either, once the others' logs are better than its own.
    fn hears_majority(&self, server: &Server, members: &Membership) -> bool {
        if members.voters().eq(server.members.now().voters()) {
            return true;
        }
        let lately = server.now.before(server.config.timeout);
        let knows_members = server.members.since();
        let able = self.peers.iter().filter(|(_, peer)| {
            let heard = peer.heard_at.is_some_and(|at| at >= lately);
            heard && peer.matched >= knows_members
        });
        let able = able.map(|(id, _)| *id);
        quorum::is_majority(members, able.chain([server.id()]))
    }

    /// Peers come and go with the members, as soon as the entry is appended.
    fn meet_members(&mut self, server: &Server) {
        let members = server.members.now();
        self.peers.retain(|id, _| members.get(*id).is_some());
        let (last, newest) = (server.log.last().id, server.number);
        for peer in members.peers(server.id()) {
            self.peers
                .entry(peer)
                .or_insert_with(|| Progress::hopeful(last, newest));
        }
    }

    /// Lets proposals wait and brings another up to date, to lead.
    pub(super) fn hand_over(
        &mut self,
        server: &mut Server,
        token: Option<u64>,
        to: Option<ServerId>,
    ) {
        let members = server.members.now();
        let can = |id: &ServerId| members.is_voter(*id) && *id != server.id();
        let best = || {
            let heirs = self.peers.iter().filter(|(id, _)| can(id));
            let best = heirs.max_by_key(|(_, peer)| (peer.round, peer.matched));
            best.map(|(id, _)| *id)
        };
        let target = match to {
            Some(to) => Some(to).filter(can),
            None => best(),
        };
        let busy = self.transfer.is_some();
        let Some(to) = target.filter(|_| !busy) else {
            if let Some(token) = token {
                let refusal = if busy {
                    Refusal::Busy
                } else {
                    Refusal::NotHandedOver
                };
                server.answer(token, Answer::Refused(refusal));
            }
            return;
        };
        let until = server.now.after(server.config.timeout);
        self.transfer = Some(Transfer {
            to,
            until,
            told: false,
            token,
        });
    }

    /// Tells the heir to stand as soon as it has everything.
    pub(super) fn offer(&mut self, server: &mut Server) {
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        let caught_up = self
            .peers
            .get(&transfer.to)
            .is_some_and(|peer| peer.matched == server.log.last().id);
        if caught_up && !transfer.told {
            transfer.told = true;
            // From here on somebody may be elected although voters hear this
            // leader: it never again counts on a lease in this term.
            self.lease_given_up = !server.planted(Bug::LeaseKept);
            server.ask(transfer.to, Request::TransferNow);
        }
    }

    pub(super) fn give_up_transfer(&mut self, server: &mut Server) {
        let over = |transfer: &mut Transfer| server.now >= transfer.until;
        let Some(transfer) = self.transfer.take_if(over) else {
            return;
        };
        if let Some(token) = transfer.token {
            server.answer(token, Answer::Refused(Refusal::NotHandedOver));
        }
        self.open_doors(server);
    }

    /// When this server steps down unless a majority answers before (H5).
    pub(super) fn leads_until(&self, server: &Server) -> Instant {
        let config = &server.config;
        let silent = self
            .rounds
            .silent_since(config.heartbeat, config.lease_reads);
        match silent {
            Some(since) if !server.planted(Bug::NeverStepsDown) => since.after(config.timeout),
            _ => Instant::MAX,
        }
    }

    /// When something is to be done at the latest.
    pub(super) fn deadline(&self, server: &Server) -> Instant {
        let transfer = self.transfer.map_or(Instant::MAX, |t| t.until);
        let silent = self.leads_until(server);
        self.heartbeat_at.min(silent).min(transfer)
    }
}

impl Progress {
    /// The snapshot that ends at `last` is sent from its first byte.
    pub(super) fn install(&mut self, last: Position) {
        self.mode = Mode::Installing {
            last,
            offset: 0,
            first: None,
            asked: None,
        };
    }

    /// The peer has said to request `number` that it wants byte `wanted` of
    /// the snapshot next, or has all of it.
    pub(super) fn installed(&mut self, number: u64, of: Position, wanted: u64, done: bool) {
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
