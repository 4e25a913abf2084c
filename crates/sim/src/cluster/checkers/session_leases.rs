//! Who holds an election by a register that is bound to its session is never
//! wrong about it.
//!
//! A client counts from when it *first sent* its last command that was
//! answered, for the session's time to live less the drift of clocks, on its
//! own clock. As long as it believes, in true time, the register must be bound
//! to its session: no other's write, and no end of the session, takes effect
//! before, whichever server leads, whichever process was paused, and however
//! fast the leaders' clocks are. This is the safety that an election rests on.

use std::collections::BTreeMap;

use tenure_alpo::{Command, Operation, Outcome, Serial, SessionId, State};
use tenure_core::cas::Stamp;
use tenure_core::ids::Key;

use super::bindings::was_done;
use super::{Check, Verdict, broken};

/// What all clients believe.
#[derive(Default)]
pub(in super::super) struct Holders {
    beliefs: BTreeMap<usize, Belief>,
}

struct Belief {
    session: SessionId,
    /// In true time.
    until: u64,
    keys: BTreeMap<Key, Hold>,
}

#[derive(Default)]
struct Hold {
    held: bool,
    /// The serial of the last request by which it may have been let go.
    let_go: Serial,
}

impl Holders {
    /// The client has a new session and believes in it until then.
    pub(in super::super) fn opened(&mut self, client: usize, session: SessionId, until: u64) {
        let keys = BTreeMap::new();
        let belief = Belief {
            session,
            until,
            keys,
        };
        self.beliefs.insert(client, belief);
    }

    /// The client knows its session to be over.
    pub(in super::super) fn over(&mut self, client: usize) {
        self.beliefs.remove(&client);
    }

    /// The client is about to send a request. What that may let go it does
    /// not count on any more.
    pub(in super::super) fn sends(&mut self, client: usize, command: &Command) {
        let key = match &command.operation {
            Operation::Swap(write) if write.stamp == Stamp::Now => &write.key,
            Operation::Delete(delete) => &delete.key,
            Operation::Close => return self.over(client),
            Operation::Swap(_)
            | Operation::Bind(_)
            | Operation::Append(_)
            | Operation::KeepAlive => return,
        };
        if let Some(belief) = self.beliefs.get_mut(&client) {
            let hold = belief.keys.entry(key.clone()).or_default();
            hold.held = false;
            hold.let_go = command.serial;
        }
    }

    /// A request that the client first sent long enough ago was answered: it
    /// believes in its session until then.
    pub(in super::super) fn answered(
        &mut self,
        client: usize,
        command: &Command,
        outcome: &Outcome,
        until: u64,
    ) {
        let Some(belief) = self.beliefs.get_mut(&client) else {
            return;
        };
        if belief.session != command.session || !was_done(outcome) {
            return;
        }
        belief.until = belief.until.max(until);
        if let (Operation::Bind(bind), Outcome::Swapped(_)) = (&command.operation, outcome) {
            let hold = belief.keys.entry(bind.write.key.clone()).or_default();
            hold.held |= hold.let_go < command.serial;
        }
    }

    /// The registers that somebody counts on, and until when.
    pub(in super::super) fn counted_on(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.beliefs.values().flat_map(|belief| {
            let held = belief.keys.iter().filter(|(_, hold)| hold.held);
            held.map(|(key, _)| (key, belief.until))
        })
    }

    /// Whether everybody is right; `state` has all that took effect by now.
    pub(in super::super) fn check(&self, now: u64, state: &State) -> Verdict {
        for (client, belief) in &self.beliefs {
            if belief.until <= now {
                continue;
            }
            let held = belief.keys.iter().filter(|(_, hold)| hold.held);
            for (key, _) in held {
                let bound = state.bound(key).map(|bound| bound.session);
                if bound != Some(belief.session) {
                    let early = (belief.until - now) / 1_000_000;
                    let detail = format!(
                        "client {client} counts on {key} and its session {} for another \
                         {early} ms, and the register is bound to {bound:?} after entry {}",
                        belief.session,
                        state.applied().id
                    );
                    return broken(Check::Held, detail);
                }
            }
        }
        Ok(())
    }
}
