//! Who steps back for a better candidate waits a full timeout before it
//! stands again, unless the leader asks it to or a connection breaks (H10).
//! Who drops out because of one better log does so once, and not again until
//! somebody has reigned (H7). Neither is a matter of safety, and breaking
//! either rule is likely to be healed by chance some seconds later; so it is
//! the rules that are watched, not the delay.

use tenure_core::alpo::{Event, ServerId};

use super::{Check, Verdict, broken};

pub(in super::super) struct Patience {
    /// By server, when it stepped back, on its own clock.
    since: Vec<Option<u64>>,
    /// By server, whether it dropped out and nobody has reigned since.
    vetoed: Vec<bool>,
    timeout: u64,
}

impl Patience {
    pub(in super::super) fn new(servers: usize, timeout: u64) -> Self {
        Self {
            since: vec![None; servers],
            vetoed: vec![false; servers],
            timeout,
        }
    }

    /// Something happened after which standing at once is right.
    pub(in super::super) fn excuse(&mut self, server: usize) {
        self.since[server] = None;
    }

    /// Its process began anew.
    pub(in super::super) fn restart(&mut self, server: usize) {
        self.since[server] = None;
        self.vetoed[server] = false;
    }

    pub(in super::super) fn event(
        &mut self,
        server: usize,
        id: ServerId,
        event: &Event,
        local: u64,
    ) -> Verdict {
        match event {
            Event::Deferred { .. } => self.since[server] = Some(local),
            Event::Led { .. } => {
                self.since[server] = None;
                self.vetoed[server] = false;
            }
            Event::Vetoed if self.vetoed[server] => {
                let detail = format!("{id} dropped out twice, and nobody reigned in between");
                return broken(Check::Veto, detail);
            }
            Event::Vetoed => self.vetoed[server] = true,
            Event::Polling | Event::Standing { .. } => {
                if let Some(since) = self.since[server].take()
                    && local - since < self.timeout
                {
                    let waited = (local - since) / 1_000_000;
                    let detail = format!("{id} deferred and stood again after {waited} ms");
                    return broken(Check::Patience, detail);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
