//! Requests of clients at a leader: which commands and sessions it appends to
//! its log, which wait for their turn, and which it refuses; and which sessions
//! it ends by itself.

use alloc::vec::Vec;

use tenure_core::ids::Term;

use super::super::bug::Bug;
use super::super::entry::{Command, Entry, Operation, Payload};
use super::super::session_owner::{OpenSession, OwnershipProof, SessionOwner};
use super::fair_queue::{Flow, Waiting};
use super::leader::Leader;
use super::pending_proposals::Admission;
use super::server::Server;
use super::types::{Answer, ClientRequest, Refusal};

impl Leader {
    /// A request has come from a client.
    pub(super) fn client_request(
        &mut self,
        server: &mut Server,
        token: u64,
        request: ClientRequest,
    ) {
        // Requests, changes of members among them, wait until an entry of this term is
        // committed. They also wait during a transfer: else the transferee might never
        // catch up. The wait ends when it leads, or with the transfer's time.
        let handing_over = self.transfer.is_some() && request.proposes();
        if !self.is_ready(server) || handing_over {
            if !self
                .pending_proposals
                .push_backlog(&server.config, token, request)
            {
                server.answer(token, Answer::Refused(Refusal::Busy));
            }
            return;
        }
        if let Some((flow, weight)) = self.waits_its_turn(server, &request) {
            let waiting = Waiting {
                token,
                request,
                weight,
            };
            if !self.pending_proposals.push_waiting(server, flow, waiting) {
                server.answer(token, Answer::Refused(Refusal::Busy));
            }
            return self.admit_in_turn(server);
        }
        self.admit(server, token, request);
    }

    /// Whether a request has to wait for its turn: the log has no room for it
    /// now, or one of its session waits before it. Answers, and what is in the
    /// log already, wait for nothing.
    ///
    /// What an operator asks for is small, and does not wait.
    fn waits_its_turn(&self, server: &Server, request: &ClientRequest) -> Option<(Flow, usize)> {
        let entry = |payload| Entry {
            id: 0,
            term: Term::ZERO,
            time: 0,
            payload,
        };
        match request {
            ClientRequest::Open(OpenSession { ttl, owner, .. }) => {
                let weight = entry(Payload::Open { ttl: *ttl }).weight();
                let waits = self.pending_proposals.is_crowded(&server.config, weight);
                waits.then(|| (Flow::new(owner.opener, 0), weight))
            }
            ClientRequest::Command(command, proof) => {
                let weight = entry(Payload::NoOp).weight() + command.operation.weight();
                let waits = self.command_waits(server, (command, proof), weight, false);
                waits.then(|| (Self::flow(server, command), weight))
            }
            ClientRequest::RefuseIfNew(it) => {
                let (command, proof, _) = &**it;
                let weight = entry(Payload::NoOp).weight() + command.operation.weight();
                let waits = self.command_waits(server, (command, proof), weight, true);
                waits.then(|| (Self::flow(server, command), weight))
            }
            ClientRequest::End { .. }
            | ClientRequest::Read(_)
            | ClientRequest::Change(_)
            | ClientRequest::ChangeOf { .. }
            | ClientRequest::Transfer(_) => None,
        }
    }

    /// Whether a command has to wait for its turn; `refused`, if it is not
    /// appended when that has come.
    fn command_waits(
        &self,
        server: &Server,
        (command, proof): (&Command, &OwnershipProof),
        weight: usize,
        refused: bool,
    ) -> bool {
        let pending = &self.pending_proposals;
        let behind = pending.queues(command.session);
        if !behind && (refused || !pending.is_crowded(&server.config, weight)) {
            return false;
        }
        match pending.judge(server, command, proof) {
            // What keeps a session alive is small, and late it is in vain: it
            // waits for what its own session has asked for, and for nothing
            // else.
            Admission::Append => behind || command.operation != Operation::KeepAlive,
            // This is known when those before it are in the log.
            Admission::Answer(Answer::Refused(
                Refusal::OutOfOrder { .. } | Refusal::SessionWindowFull,
            )) => behind,
            Admission::Attach(_) | Admission::Answer(_) => false,
        }
    }

    fn flow(server: &Server, command: &Command) -> Flow {
        let session = server.state.sessions().get(command.session);
        match session {
            Some(session) => Flow::new(session.owner().opener, command.session),
            None => Flow::unknown(command.session),
        }
    }

    /// Takes in what has waited, as far as the log has room for it.
    pub(super) fn admit_in_turn(&mut self, server: &mut Server) {
        // During a transfer they wait on, as in `client_request`.
        while self.transfer.is_none()
            && let Some(it) = self.pending_proposals.next_turn(&server.config)
        {
            self.admit(server, it.token, it.request);
        }
    }

    /// Carries a request out now.
    fn admit(&mut self, server: &mut Server, token: u64, request: ClientRequest) {
        match request {
            ClientRequest::Open(opening) => self.open(server, token, &opening),
            ClientRequest::End {
                session,
                holder_is_gone,
            } => match self.pending_proposals.end(server, session, holder_is_gone) {
                Ok(end) => self.propose(server, token, Payload::Command(end)),
                Err(refusal) => server.answer(token, Answer::Refused(refusal)),
            },
            ClientRequest::Command(command, proof) => {
                self.command(server, token, (command, proof), None);
            }
            ClientRequest::RefuseIfNew(it) => {
                let (command, proof, refusal) = *it;
                self.command(server, token, (command, proof), Some(refusal));
            }
            ClientRequest::Read(query) => self.read(server, token, query),
            ClientRequest::Change(change) => self.change(server, token, change, None),
            ClientRequest::ChangeOf { change, storage } => {
                self.change(server, token, change, Some(storage));
            }
            ClientRequest::Transfer(to) => self.begin_transfer(server, Some(token), to),
        }
    }

    /// A command of a session: it is appended, unless there is a `refusal`
    /// for what was not done before.
    fn command(
        &mut self,
        server: &mut Server,
        token: u64,
        (command, proof): (Command, OwnershipProof),
        refusal: Option<Refusal>,
    ) {
        match (
            self.pending_proposals.judge(server, &command, &proof),
            refusal,
        ) {
            (Admission::Append, None) => self.propose(server, token, Payload::Command(command)),
            (Admission::Append, Some(refusal)) => server.answer(token, Answer::Refused(refusal)),
            (Admission::Attach(id), _) => self.pending_proposals.attach(id, token),
            (Admission::Answer(answer), _) => server.answer(token, answer),
        }
    }

    fn open(&mut self, server: &mut Server, token: u64, opening: &OpenSession) {
        let OpenSession { ttl, owner, .. } = *opening;
        let owned = Payload::OpenOwned { ttl, owner };
        let since = owned.since();
        if since > server.state.version() {
            let has_owner = owner != SessionOwner::default();
            if has_owner && self.may_rise(server, since) {
                self.raise(server);
                server.answer(token, Answer::Refused(Refusal::UpgradeUnderWay));
            } else {
                // Not all servers could read whose it is.
                self.propose(server, token, Payload::Open { ttl });
            }
        } else if let Some(refusal) = self.pending_proposals.judge_opening(server, opening) {
            server.answer(token, Answer::Refused(refusal));
        } else {
            self.propose(server, token, owned);
        }
    }

    fn propose(&mut self, server: &mut Server, token: u64, payload: Payload) {
        let probe = Entry {
            id: 0,
            term: Term::ZERO,
            time: 0,
            payload,
        };
        let weight = probe.weight();
        let (needed, cluster) = (probe.payload.since(), server.state.version());
        if needed > cluster {
            let refusal = Refusal::Version { needed, cluster };
            server.answer(token, Answer::Refused(refusal));
        } else if probe.is_too_large() {
            server.answer(token, Answer::Refused(Refusal::TooLarge));
        } else if !self.pending_proposals.has_room(server, weight)
            || self.is_held_up(server)
            || !self.may_end(server, &probe.payload)
        {
            server.answer(token, Answer::Refused(Refusal::Busy));
        } else {
            self.append(server, probe.payload, Some(token));
        }
    }

    /// Whether there is room for `payload`, if that ends a session. Sessions
    /// that have expired come first.
    fn may_end(&self, server: &Server, payload: &Payload) -> bool {
        let session_ends = &self.pending_proposals.session_ends;
        let writes = self.pending_proposals.end_writes(server, payload);
        writes.is_none_or(|writes| !session_ends.held_back && session_ends.has_room(writes))
    }

    /// Proposes the end of sessions that were not heard of for too long, those
    /// that are over for longest first; as many as have room
    /// ([`super::session_ends`]). The others' turn comes when these are applied.
    ///
    /// A session whose requests wait for their turn was heard of. They renew it
    /// when they are in the log. Only its owner's wait, and all of them have
    /// their turn, so nobody else keeps it alive, and they do so no longer than
    /// the queue takes.
    pub(super) fn expire(&mut self, server: &mut Server) {
        // No session is ended before an entry of this term is committed, nor during a
        // transfer.
        let Some(ready_at) = self.ready_at.filter(|_| self.transfer.is_none()) else {
            return;
        };
        let now = self.log_time(server);
        let since_ready = now.saturating_sub(ready_at);
        let hasty = server.planted(Bug::NewLeaderExtendsNoSession);
        let sessions = server.state.sessions();
        let mut over: Vec<_> = sessions
            .iter()
            .filter(|(_, session)| session.expires() <= now)
            .filter(|(_, session)| session.ttl() <= since_ready || hasty)
            .map(|(id, session)| (session.expires(), id))
            .filter(|(_, id)| !self.expiring.contains(id) && !self.pending_proposals.queues(*id))
            .collect();
        over.sort_unstable();
        self.pending_proposals.session_ends.held_back = false;
        for (_, session) in over {
            let payload = Payload::Expire { session };
            if !self.may_end(server, &payload) {
                self.pending_proposals.session_ends.held_back = true;
                return;
            }
            self.expiring.insert(session);
            self.append(server, payload, None);
        }
    }
}
