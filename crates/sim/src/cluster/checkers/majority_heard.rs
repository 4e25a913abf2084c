//! A leader that no majority answers steps down within a timeout (H5).
//!
//! Seen from outside: among the last times at which each voter's answer
//! reached it, a majority (itself counted) is recent. Twice the timeout and
//! some more are allowed for. A leader looks after its timers many times in a
//! timeout; if it did not for half of one it was paused, and could not ask, so
//! that the silence of the others counts from then on. Where reads rest on a
//! lease there is no such excuse.

use tenure_alpo::{Node, ServerId, Status};

use super::{Check, Verdict, broken};

pub(in super::super) struct Followed {
    numbers: usize,
    timeout: u64,
    /// Whether a pause is no excuse.
    strictly: bool,
    /// By leader and peer, when an answer last arrived.
    heard: Vec<u64>,
    /// By server, since when it leads these voters, if it does.
    since: Vec<Option<(u64, Vec<ServerId>)>>,
    /// By server, when it looked after its timers last.
    looked: Vec<u64>,
}

impl Followed {
    /// For so many numbers, and so many servers that share them.
    pub(in super::super) fn new(
        (numbers, servers): (usize, usize),
        timeout: u64,
        strictly: bool,
    ) -> Self {
        Self {
            numbers,
            timeout,
            strictly,
            heard: vec![0; servers * numbers],
            since: vec![None; servers],
            looked: vec![0; servers],
        }
    }

    pub(in super::super) fn heard(&mut self, server: usize, from: ServerId, now: u64) {
        self.heard[server * self.numbers + from.get() as usize - 1] = now;
    }

    /// A timer of the server ran out and it has done what it had to.
    pub(in super::super) fn look(
        &mut self,
        server: usize,
        node: Option<&Node>,
        now: u64,
    ) -> Verdict {
        let Some(node) = node.filter(|node| node.status() == Status::Leader) else {
            self.since[server] = None;
            return Ok(());
        };
        // When a voter goes, those that are left need not have been heard.
        let voters: Vec<_> = node.members().voters().collect();
        let paused = !self.strictly && now - self.looked[server] > self.timeout / 2;
        self.looked[server] = now;
        let since = match &self.since[server] {
            Some((since, led)) if *led == voters && !paused => *since,
            _ => now,
        };
        let mut heard: Vec<_> = voters
            .iter()
            .map(|id| match id.get() as usize - 1 {
                _ if *id == node.id() => now,
                peer => self.heard[server * self.numbers + peer].max(since),
            })
            .collect();
        self.since[server] = Some((since, voters));
        heard.sort_unstable();
        let majority = heard.len().div_ceil(2).saturating_sub(1);
        let recent = heard.get(majority).copied().unwrap_or(now);
        if now - recent > 2 * self.timeout + self.timeout / 2 {
            let silent = (now - recent) / 1_000_000;
            let detail = format!("{} leads, unheard of for {silent} ms", node.id());
            return broken(Check::Followed, detail);
        }
        Ok(())
    }
}
