//! Two clients on one session.
//!
//! Now and then somebody else uses a client's session. A *stranger* knows its
//! number and nothing more: nothing of it may ever be done. A *copy* has the
//! secret too, as a process has that was forked, or a machine that was resumed
//! from a snapshot: it counts serials for itself and so uses some that the
//! client uses for something else. Of two commands with one serial one is
//! done, whichever comes first, and the other is refused; none is answered as
//! if it had been done. The client that is refused leaves its session.
//!
//! Only sessions that have an owner are tried: one that was opened before the
//! cluster spoke version 2 is anybody's, as all were then.

use tenure_alpo::{Answer, ClientRequest, Command, Operation, Outcome, OwnershipProof, Refusal};

use super::checkers::{Check, Verdict, broken};
use super::events::Event;
use super::intruders::Intruder;
use super::world::World;

/// Of a hundred turns of clients, in how many somebody meddles.
const MEDDLES: u64 = 4;

impl World {
    /// Somebody else uses this client's session, perhaps.
    pub(super) fn meddle(&mut self, client: usize) {
        let own = &self.clients[client];
        let Some(session) = own.session.filter(|_| !self.quiet) else {
            return;
        };
        let state = &self.committed.reference;
        let owned = |it: &tenure_alpo::Session| !it.owner().is_unowned();
        if !state.sessions().get(session).is_some_and(owned) {
            return;
        }
        let shared_sessions = &mut self.shared_sessions;
        if !shared_sessions.rng.chance(MEDDLES) {
            return;
        }
        shared_sessions.made += 1;
        let payload = format!("o{}", shared_sessions.made).into_bytes().into();
        let stranger = shared_sessions.rng.chance(50);
        let back = if stranger {
            0
        } else {
            1 + shared_sessions.rng.below(3)
        };
        let serial = own.next_serial.saturating_sub(back).max(1);
        let operation = match shared_sessions.rng.below(4) {
            0 if stranger => Operation::Close,
            1 if stranger => Operation::KeepAlive,
            _ => Operation::Append(payload),
        };
        let command = Command {
            session,
            serial,
            outstanding: own.outstanding().min(serial),
            operation,
        };
        let (request, meddling) = if stranger {
            let request = ClientRequest::Command(command.clone(), OwnershipProof::NONE);
            (request, Intruder::Stranger(command))
        } else {
            shared_sessions.copied.insert(session);
            let request = ClientRequest::Command(command, OwnershipProof::of_secret(own.secret()));
            let number = self.calls.invoke(self.now, self.clients.len(), &request);
            (request.clone(), Intruder::Copy(request, number))
        };
        self.stats.meddled += 1;
        let server = self.clients[client].target;
        self.next_token += 1;
        let token = self.next_token;
        self.shared_sessions.asked.insert(token, meddling);
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

    /// Somebody else was answered, if it was somebody else who asked.
    pub(super) fn others_answered(&mut self, token: u64, answer: &Answer) -> Option<Verdict> {
        let meddling = self.shared_sessions.asked.remove(&token)?;
        let Answer::Done(outcome) = answer else {
            self.stats.kept_out += u64::from(matches!(
                answer,
                Answer::Refused(Refusal::NotOwner | Refusal::OtherContent)
            ));
            return Some(Ok(()));
        };
        Some(match (meddling, outcome) {
            (_, Outcome::SessionExpired | Outcome::TooOld | Outcome::OtherContent) => Ok(()),
            (Intruder::Stranger(command), outcome) => broken(
                Check::Owned,
                format!("{command:?} of somebody who did not prove anything: {outcome:?}"),
            ),
            (Intruder::Copy(request, number), outcome) => {
                self.calls.done(self.now, number, &request, outcome)
            }
        })
    }

    /// A client was refused its own session.
    pub(super) fn refused_its_own(&mut self, client: usize, refusal: Refusal) -> Verdict {
        let session = self.clients[client].session;
        let copied = session.is_some_and(|it| self.shared_sessions.copied.contains(&it));
        if refusal == Refusal::NotOwner || !copied {
            let detail = format!("client {client}, session {session:?}: {refusal:?}");
            return broken(Check::Owned, detail);
        }
        // Somebody else counts along: no serial of its own is safe any more.
        self.clients[client].start_over();
        self.session_leases.over(client);
        Ok(())
    }
}
