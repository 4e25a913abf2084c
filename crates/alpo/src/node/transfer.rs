//! Leadership transfer: the leader lets proposals wait, brings the
//! transferee up to date, and sends it timeout-now. Beyond a timeout the
//! transfer is given up.

use super::super::bug::Bug;
use super::super::ids::ServerId;
use super::super::message::Request;
use super::leader::Leader;
use super::server::Server;
use super::types::{Answer, Refusal};
use super::under_way::Transfer;

impl Leader {
    /// Lets proposals wait and brings another up to date, to lead.
    pub(super) fn begin_transfer(
        &mut self,
        server: &mut Server,
        token: Option<u64>,
        to: Option<ServerId>,
    ) {
        let members = server.members.now();
        let can = |id: &ServerId| members.is_voter(*id) && *id != server.id();
        let best = || {
            let transferees = self.peers.iter().filter(|(id, _)| can(id));
            let best = transferees.max_by_key(|(_, peer)| (peer.round, peer.matched));
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
        let until = server.now.after(server.config.election_timeout);
        self.transfer = Some(Transfer {
            to,
            until,
            timeout_now_sent: false,
            token,
        });
    }

    /// Tells the transferee to stand as soon as it has everything.
    pub(super) fn send_timeout_now(&mut self, server: &mut Server) {
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        let caught_up = self
            .peers
            .get(&transfer.to)
            .is_some_and(|peer| peer.matched == server.log.last().id);
        if caught_up && !transfer.timeout_now_sent {
            transfer.timeout_now_sent = true;
            // From here on the transferee may be elected although voters hear
            // this leader. So it counts on no lease any more in this term.
            self.lease_given_up = !server.planted(Bug::LeaseKept);
            server.send_request(transfer.to, Request::TimeoutNow);
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
        self.admit_in_turn(server);
        self.admit_backlog(server);
    }
}
