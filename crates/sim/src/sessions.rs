//! Sessions of the simulated store, and the registers that are bound to them.
//!
//! They are what a cluster offers (`tenure_alpo`), seen from outside: a session
//! lives for its time to live after each keep-alive, on the store's clock, and
//! when it ends its registers get their on-expiry values at once. While the
//! store is down nothing ends, and after that, as after every change of a
//! cluster's leader, everybody has a full new time to live.
//!
//! A process has other elections than the one that is looked at, and keeps its
//! session alive for those as well; so a campaign is often answered with a
//! keep-alive that was sent before it asked, and an election that nobody goes
//! by any more is not vacated by silence.
//!
//! Left out: that the commands of one session take effect in order (here they
//! arrive as they like, which is worse), and how a register is released by the
//! process that keeps the session: here the whole session ends.

use tenure_core::time::Instant;
use tenure_election::{Failure, FailureClass, Record};

use crate::clock::{MILLI, TrueTime};
use crate::events::SimEvent;
use crate::simulated_store::{Op, SessionState, StoreCall};
use crate::world::World;

impl World {
    fn store_clock(&self) -> u64 {
        self.store.curve.at(self.now) + self.store.stepped
    }

    /// A command has arrived under `session`: it counts as a keep-alive, unless
    /// the session is over.
    pub(crate) fn hear(&mut self, session: usize, opens: bool) -> Result<(), Failure> {
        let over = |class| Failure::new(class, "the session is over");
        let now = self.store_clock();
        let known = &mut self.store.sessions.all[session];
        match known.life {
            SessionState::Over if opens => return Err(over(FailureClass::Unavailable)),
            SessionState::Over => return Err(over(FailureClass::Conflict)),
            SessionState::Unopened if !opens => return Err(over(FailureClass::Conflict)),
            SessionState::Unopened | SessionState::Open { .. } => {
                known.life = SessionState::Open { heard: now }
            }
        }
        let at = self.store.curve.when(now + known.ttl);
        self.queue
            .push(at.max(self.now), SimEvent::SessionDue { session });
        Ok(())
    }

    /// A keep-alive has arrived that was sent at `start`.
    pub(crate) fn confirm(&mut self, session: usize, start: Instant) -> Result<Instant, Failure> {
        self.hear(session, false)?;
        self.stats.confirmations += 1;
        for key in self.store.sessions.held(session) {
            let election = self.election_of(&key);
            self.terms[election].confirmed(self.now);
        }
        Ok(start)
    }

    /// The time to live of a session may have passed.
    pub(crate) fn session_due(&mut self, session: usize) {
        let now = self.store_clock();
        let known = self.store.sessions.all[session];
        let SessionState::Open { heard } = known.life else {
            return;
        };
        if now < heard + known.ttl {
            return;
        }
        if let Some((until, _)) = self.store.outage
            && self.now < until
        {
            // The next leader of the cluster gives it a new time to live.
            let back = self.store.curve.at(until) + self.store.stepped;
            self.store.sessions.all[session].life = SessionState::Open { heard: back };
            let at = self.store.curve.when(back + known.ttl);
            return self.queue.push(at, SimEvent::SessionDue { session });
        }
        self.stats.sessions_ended += 1;
        self.end_session(session);
    }

    /// All faults end: the leader of the cluster gives all sessions a new time
    /// to live.
    pub(crate) fn refresh_sessions(&mut self) {
        for session in 0..self.store.sessions.all.len() {
            if matches!(
                self.store.sessions.all[session].life,
                SessionState::Open { .. }
            ) {
                // It lives, so it can be heard.
                let _ = self.hear(session, false);
            }
        }
    }

    /// The registers of a session get their on-expiry values.
    fn end_session(&mut self, session: usize) {
        self.store.sessions.all[session].life = SessionState::Over;
        for key in self.store.sessions.held(session) {
            let Some((_, last)) = self.store.sessions.bound.remove(&key) else {
                continue;
            };
            let stamp = self.store_time(0);
            let Some(version) = self.force(&key, last.clone(), stamp) else {
                continue;
            };
            if let Ok(record) = Record::decode(&last) {
                let election = self.election_of(&key);
                self.written(0, election, &record, &version);
                self.spread(election);
            }
        }
    }

    /// `p` disowns what it has bound. This is seen to by a part of its process
    /// that does not give up while the process runs.
    pub(crate) fn release(&mut self, p: usize) {
        if let Some(session) = self.processes[p].session.take() {
            let (life, delay) = (
                self.processes[p].life,
                self.rng.between(0, self.swarm.hop()),
            );
            let at = self.now + delay;
            self.queue.push(at, SimEvent::Release { p, life, session });
        }
    }

    /// The release has come this far.
    pub(crate) fn released(&mut self, p: usize, session: usize) {
        let is_down =
            |until: Option<(TrueTime, bool)>| until.is_some_and(|(until, _)| self.now < until);
        let lost = self.faulty() && (is_down(self.store.outage) || is_down(self.store.cuts[p]));
        if lost || !self.runs(p) || (self.faulty() && self.rng.chance(20)) {
            let life = self.processes[p].life;
            let at = self.now + self.rng.between(MILLI, self.swarm.lease / 4);
            return self.queue.push(at, SimEvent::Release { p, life, session });
        }
        self.end_session(session);
    }

    /// The other elections of this process have their session confirmed.
    pub(crate) fn neighbours(&mut self, p: usize) {
        if let Some(session) = self.processes[p].session
            && self.runs(p)
        {
            let start = self.nodes[self.processes[p].node].boot(self.now);
            let (life, key) = (
                self.processes[p].life,
                self.store.keys[self.processes[p].election].clone(),
            );
            let question = StoreCall::of_neighbours(p, life, key, session, start);
            self.send(question);
        }
        let (life, lease) = (self.processes[p].life, self.swarm.lease);
        let at = self.now + self.rng.between(lease / 20, lease / 3);
        self.queue.push(at, SimEvent::Neighbours { p, life });
    }

    /// A keep-alive that `p` may count from, if one was confirmed that was sent
    /// at `since` or later.
    pub(crate) fn known_alive(&self, p: usize, since: Instant) -> Option<Instant> {
        let proc = &self.processes[p];
        let (session, start) = proc.kept?;
        (proc.session == Some(session) && start >= since).then_some(start)
    }

    /// The session under which `p` asks: one of its own if it binds.
    pub(crate) fn session_of(&mut self, p: usize, op: &Op) -> Option<usize> {
        let over = |session: &usize| self.store.sessions.all[*session].life == SessionState::Over;
        if let Op::Write(_, Some(bind)) = op
            && self.processes[p].session.as_ref().is_none_or(over)
        {
            let ttl = bind.ttl.as_nanos() as u64;
            self.processes[p].session = Some(self.store.sessions.draft(ttl));
        }
        self.processes[p].session
    }
}
