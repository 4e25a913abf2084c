//! Clients and servers talking.

use tenure_alpo::{Answer, ClientRequest, Outcome, Query, Refusal, ServerId};

use super::checkers::Verdict;
use super::client::Pending;
use super::events::Event;
use super::readers::any_query;
use super::world::World;
use crate::clock::{MILLI, SECOND};

impl World {
    /// It is a client's turn, and that of somebody who only reads.
    pub(super) fn client_and_reader(&mut self, client: usize) -> Verdict {
        self.client(client);
        self.read_aside()
    }

    /// A client's turn: it asks again what it waits for, and perhaps for
    /// something new.
    pub(super) fn client(&mut self, client: usize) {
        let mut think = self.swarm.think;
        let reader = self.clients[client].reader;
        if reader {
            think /= 6;
        }
        let again = self.clients[client].rng.between(think / 2, think * 3 / 2);
        self.after(again, Event::Client { client });
        if self.is_silent(client) {
            return;
        }
        self.retry_late(client);
        self.meddle(client);
        let own = &mut self.clients[client];
        if reader {
            if !self.quiet && own.pending.len() < 2 {
                let key = own.key();
                let query = any_query(&mut own.rng, |_| Query::Register(key));
                self.begin(client, ClientRequest::Read(query));
            }
            return;
        }
        if own.session.is_none() {
            if own.pending.is_empty() && !self.quiet {
                let ttl = self.swarm.session_ttl;
                let opening = own.opening(ttl);
                self.begin(client, ClientRequest::Open(opening));
            }
            return;
        }
        let full = own.pending.len() as u64 >= self.swarm.pipeline;
        if self.quiet || full || own.is_closing() {
            return;
        }
        let Some(session) = own.session else {
            return;
        };
        let client_operation = own.client_operation();
        let request = own.numbered(client_operation, session);
        self.begin(client, request);
    }

    /// Whether the client says nothing, now or from now on. It is silent for
    /// about as long as its session lives.
    fn is_silent(&mut self, client: usize) -> bool {
        let own = &mut self.clients[client];
        if self.healed || !own.moody {
            return false;
        }
        if self.now < own.silent_until {
            return true;
        }
        let falls = own.rng.below(60) == 0;
        if falls {
            let ttl = self.swarm.session_ttl;
            own.silent_until = self.now + own.rng.between(ttl * 7 / 10, ttl * 3 / 2);
            self.stats.silences += 1;
        }
        falls
    }

    fn begin(&mut self, client: usize, request: ClientRequest) {
        if let ClientRequest::Command(command, _) = &request {
            self.session_leases.sends(client, command);
        }
        let operation = self.calls.invoke(self.now, client, &request);
        let servers = self.swarm.servers as u64;
        let own = &mut self.clients[client];
        // Clients do not all believe in the same leader.
        if !own.reader && own.rng.chance(15) {
            own.target = own.rng.below(servers) as usize;
        }
        own.next_request += 1;
        let number = own.next_request;
        let pending = Pending {
            request,
            since: self.now,
            known: self.committed.len(),
            tries: 0,
            operation,
        };
        own.pending.insert(number, pending);
        self.send_request(client, number);
    }

    /// Sends a request to the server that the client takes for the leader.
    fn send_request(&mut self, client: usize, number: u64) {
        let server = self.clients[client].target;
        let Some(pending) = self.clients[client].pending.get_mut(&number) else {
            return;
        };
        pending.tries += 1;
        if pending.tries > 1 {
            self.stats.retries += 1;
        }
        let request = pending.request.clone();
        self.next_token += 1;
        let token = self.next_token;
        self.tokens.insert(token, (client, number));
        let lost = self.network.unruly && self.rng.below(1_000) < self.swarm.loss;
        if !lost {
            // One connection: what is asked first arrives first.
            let delay = self.swarm.latency;
            self.after(
                delay,
                Event::ClientRequest {
                    server,
                    token,
                    request,
                },
            );
        }
    }

    /// If something was not answered for long, everything is asked again, in
    /// order, of the next server.
    fn retry_late(&mut self, client: usize) {
        let answer_timeout = 2 * self.timeout();
        let now = self.now;
        let own = &mut self.clients[client];
        let late = |p: &Pending| now > p.since + answer_timeout * p.tries.min(5);
        if own.pending.values().any(late) && now > own.turned + answer_timeout {
            own.turned = now;
            own.turn(self.swarm.servers);
            self.send_all_requests(client);
        }
    }

    fn send_all_requests(&mut self, client: usize) {
        let requests: Vec<_> = self.clients[client].pending.keys().copied().collect();
        for number in requests {
            self.send_request(client, number);
        }
    }

    pub(super) fn answered(&mut self, token: u64, answer: Answer) -> Verdict {
        if let Some(verdict) = self.others_answered(token, &answer) {
            return verdict;
        }
        let Some((client, number)) = self.tokens.remove(&token) else {
            return Ok(());
        };
        if self.network.unruly && self.rng.below(1_000) < self.swarm.loss {
            return Ok(());
        }
        let Some(pending) = self.clients[client].pending.get(&number).cloned() else {
            return Ok(());
        };
        if self.trace.is_on() {
            let what = format!("{:?}: {answer:?}", pending.request);
            self.trace
                .note(self.now, &format!("client {client}"), None, &what);
        }
        match answer {
            Answer::Done(outcome) => self.done(client, number, &pending, &outcome),
            Answer::Read(found) => {
                self.stats.answers += 1;
                self.calls.read(self.now, pending.operation, &found);
                if let ClientRequest::Read(query) = &pending.request {
                    self.stats.read += 1;
                    self.judge_read(pending.known, query, &found)?;
                }
                if let (
                    ClientRequest::Read(query),
                    tenure_alpo::QueryResult::Register(register, ..),
                ) = (&pending.request, &found)
                    && let Query::Register(key) = query
                {
                    let version = register.as_ref().map(|r| r.version.clone());
                    self.clients[client].seen.insert(key.clone(), version);
                }
                self.clients[client].pending.remove(&number);
                Ok(())
            }
            Answer::Refused(Refusal::NotLeader { leader }) => {
                self.redirect(client, number, leader);
                Ok(())
            }
            Answer::Refused(refusal @ (Refusal::NotOwner | Refusal::OtherContent)) => {
                self.refused_its_own(client, refusal)
            }
            // In order, later, or elsewhere: the same request again.
            Answer::Refused(_) | Answer::Interrupted | Answer::HandedOver => Ok(()),
        }
    }

    fn redirect(&mut self, client: usize, number: u64, leader: Option<ServerId>) {
        // Who knows no leader is asked no more until the request is late.
        let Some(leader) = leader else {
            return;
        };
        let target = leader.get() as usize - 1;
        if target == self.clients[client].target {
            self.send_request(client, number);
        } else {
            self.clients[client].target = target;
            self.send_all_requests(client);
        }
    }

    fn done(
        &mut self,
        client: usize,
        number: u64,
        pending: &Pending,
        outcome: &Outcome,
    ) -> Verdict {
        self.stats.answers += 1;
        self.stats.slowest = self.stats.slowest.max(self.now - pending.since);
        self.calls
            .done(self.now, pending.operation, &pending.request, outcome)?;
        self.loss.given_out.note(outcome);
        let own = &mut self.clients[client];
        let until = own.believes_until(pending.since, self.swarm.session_ttl);
        if let ClientRequest::Command(command, _) = &pending.request {
            self.session_leases
                .answered(client, command, outcome, until);
        }
        match outcome {
            Outcome::Opened(session) => {
                own.session = Some(*session);
                own.next_serial = 1;
                self.session_leases.opened(client, *session, until);
            }
            Outcome::SessionExpired | Outcome::Closed => {
                self.stats.expired += u64::from(*outcome == Outcome::SessionExpired);
                own.start_over();
                self.session_leases.over(client);
                return Ok(());
            }
            Outcome::Conflict => own.seen.clear(),
            _ => own.learn(&pending.request, outcome),
        }
        own.pending.remove(&number);
        self.session_leases
            .check(self.now, &self.committed.reference)
    }

    /// An operator asks the leader for something.
    pub(super) fn order(&mut self, request: ClientRequest) {
        let Some(server) = self.leader() else {
            return;
        };
        self.next_token += 1;
        let token = self.next_token;
        self.after(
            MILLI,
            Event::ClientRequest {
                server,
                token,
                request,
            },
        );
    }

    /// Requests that wait longer than is right when all is well.
    pub(super) fn overdue(&self) -> Option<String> {
        let late = |since: u64| self.now - since > 10 * self.timeout() + 2 * SECOND;
        for client in &self.clients {
            for pending in client.pending.values() {
                if late(pending.since) {
                    let seconds = (self.now - pending.since) / SECOND;
                    let tries = pending.tries;
                    let number = client.number;
                    let request = &pending.request;
                    return Some(format!(
                        "client {number} waits for {request:?} since {seconds} s, asked {tries} times"
                    ));
                }
            }
        }
        None
    }
}
