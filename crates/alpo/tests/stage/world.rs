//! The clock, and carrying out what the servers ask for.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_alpo::invariants::View;
use tenure_alpo::{
    Answer, ClientRequest, Input, LogId, Node, Outcome as Done, Output, ServerId, Status,
};
use tenure_core::Machine;
use tenure_core::time::{Instant, Now, WallTime};

use super::checks::Checks;
use super::host::Host;
use super::network::{Meant, Network, Sent};
use super::show;
use crate::args::Outcome;

/// More steps than any script needs: somebody talks for ever.
const MOST_STEPS: usize = 20_000;

#[derive(Default)]
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) hosts: BTreeMap<ServerId, Host>,
    pub(crate) network: Network,
    pub(crate) checks: Checks,
    /// The mistake that every server makes, if any.
    #[cfg(feature = "planted-bugs")]
    pub(crate) planted: Option<tenure_alpo::Bug>,
    /// What was asked, by token; and what had been answered by then.
    asked: BTreeMap<u64, (String, LogId)>,
    /// The session opened last, and the last serial used in it.
    pub(crate) session: Option<LogId>,
    pub(crate) serial: u64,
    /// Tell only what is news.
    pub(crate) quiet: bool,
    /// Caused by what was told last.
    depth: usize,
    told_at: Duration,
    trace: String,
}

impl World {
    pub(crate) fn take_trace(&mut self) -> String {
        std::mem::take(&mut self.trace)
    }

    pub(crate) fn instant(&self) -> Instant {
        Instant::ZERO.after(self.now)
    }

    fn clocks(&self) -> Now {
        Now {
            boot: self.instant(),
            wall: WallTime::default(),
        }
    }

    pub(crate) fn host(&mut self, id: ServerId) -> Outcome<&mut Host> {
        let host = self.hosts.get_mut(&id);
        host.ok_or_else(|| format!("there is no {id}").into())
    }

    pub(crate) fn node(&self, id: ServerId) -> Outcome<&Node> {
        let node = self.hosts.get(&id).and_then(|host| host.node.as_ref());
        node.ok_or_else(|| "it does not run".into())
    }

    /// One line of the trace, with the time if it is another than before.
    pub(crate) fn tell(&mut self, line: &str) {
        if self.told_at != self.now {
            self.told_at = self.now;
            self.trace += &format!("at {}ms\n", self.now.as_millis());
        }
        let indent = if self.quiet { 0 } else { self.depth.min(1) };
        self.trace += &format!("{}{line}\n", "  ".repeat(indent));
    }

    fn detail(&mut self, line: &str) {
        if !self.quiet {
            self.tell(line);
        }
    }

    /// Lets a server take note of an input, or of the time.
    pub(crate) fn step(&mut self, id: ServerId, input: Option<Input>) -> Outcome<()> {
        let now = self.clocks();
        let Some(node) = self.host(id)?.node.as_mut() else {
            return Ok(());
        };
        let before = View::of(node);
        match input {
            Some(input) => node.handle(now, input),
            None => node.tick(now),
        }
        let mut outputs = Vec::new();
        while let Some(output) = node.poll() {
            outputs.push(output);
        }
        let after = View::of(node);
        self.depth += 1;
        if (before.status, before.hard.term) != (after.status, after.hard.term) {
            let (was, is) = (show::status(before.status), show::status(after.status));
            let (from, to) = (before.hard.term, after.hard.term);
            self.tell(&format!("{id} {was}@{from} -> {is}@{to}"));
        }
        let mut made = Vec::new();
        for output in outputs {
            match output {
                Output::EncodeSnapshot(copy) => made.push(Input::SnapshotEncoded(copy.encode())),
                Output::DecodeSnapshot(received) => {
                    let decoded = Box::new(received.decode());
                    made.push(Input::SnapshotDecoded(decoded));
                }
                output => self.carry_out(id, &before, output)?,
            }
        }
        for input in made {
            self.step(id, Some(input))?;
        }
        self.checks.after_step(&self.hosts, id, &before)?;
        let host = self.host(id)?;
        if !host.slow {
            self.sync(id, None)?;
        }
        self.depth -= 1;
        Ok(())
    }

    fn carry_out(&mut self, id: ServerId, before: &View, output: Output) -> Outcome<()> {
        match output {
            Output::Persist(batch) => {
                self.detail(&format!("{id} writes {}", show::batch(&batch)));
                self.host(id)?.disk.waiting.push_back(batch);
            }
            // Done after all others.
            Output::EncodeSnapshot(_) | Output::DecodeSnapshot(_) | Output::Discard(_) => {}
            Output::Send {
                envelope,
                storage: wanted,
            } => {
                self.checks.sent(&self.hosts, before, &envelope)?;
                let lost = self.network.is_cut(&envelope);
                let arrow = if lost { "-x" } else { "->" };
                self.detail(&show::message(&envelope, arrow));
                if !lost {
                    let storage = self.host(id)?.greets;
                    self.network.queue.push_back(Sent {
                        envelope,
                        storage,
                        wanted,
                    });
                }
            }
            Output::Answer { token, answer } => {
                let asked = self.asked.remove(&token);
                let (what, known) = asked.ok_or("an answer to nothing")?;
                self.checks.answered(&self.hosts, id, &answer, known)?;
                if let Answer::Done(Done::Opened(session)) = answer {
                    (self.session, self.serial) = (Some(session), 0);
                }
                self.tell(&format!("{id} answers {what}: {}", show::answer(&answer)));
            }
            Output::Applied { to, .. } => self.tell(&format!("{id} commits upto {to}")),
            Output::Event(event) => {
                let line = show::event(self.node(id)?, &event);
                if let Some(line) = line {
                    self.tell(&format!("{id} {line}"));
                }
            }
            Output::Halt(fault) => self.tell(&format!("{id} HALTS: {fault}")),
        }
        Ok(())
    }

    /// The disk has batches up to `upto`, or all of them.
    pub(crate) fn sync(&mut self, id: ServerId, count: Option<usize>) -> Outcome<()> {
        let disk = &mut self.host(id)?.disk;
        let count = count.unwrap_or(disk.waiting.len()).min(disk.waiting.len());
        let Some(last) = count.checked_sub(1) else {
            return Ok(());
        };
        let number = disk.waiting[last].number;
        disk.sync(number);
        self.step(id, Some(Input::Persisted(number)))
    }

    pub(crate) fn submit(
        &mut self,
        id: ServerId,
        what: String,
        request: ClientRequest,
    ) -> Outcome<()> {
        let token = self.checks.next_token();
        let known = self.checks.acknowledged();
        self.asked.insert(token, (what, known));
        self.step(id, Some(Input::ClientRequest { token, request }))
    }

    /// Delivers those of the messages under way that are meant.
    pub(crate) fn deliver(&mut self, meant: &Meant) -> Outcome<usize> {
        let messages = self.network.take(meant);
        let count = messages.len();
        for envelope in messages {
            self.arrive(envelope)?;
        }
        Ok(count)
    }

    pub(crate) fn arrive(&mut self, sent: Sent) -> Outcome<()> {
        let envelope = &sent.envelope;
        let host = self.host(envelope.to)?;
        let (runs, paused) = (host.node.is_some(), host.paused);
        let is_here = |disk| disk == host.storage || disk == host.greets;
        let other = sent.wanted.is_some_and(|wanted| !is_here(wanted));
        if paused {
            self.network.queue.push_back(sent);
            return Ok(());
        }
        let settings = host.settings();
        let strange = self.host(envelope.from)?.settings() != settings;
        if !runs || other || strange || self.network.is_cut(envelope) {
            self.detail(&show::message(envelope, "-x"));
            return Ok(());
        }
        self.detail(&show::message(envelope, "=>"));
        let Sent {
            envelope, storage, ..
        } = sent;
        self.step(envelope.to, Some(Input::Received { envelope, storage }))
    }

    /// Delivers until nothing is under way; the clock stands still.
    pub(crate) fn settle(&mut self) -> Outcome<()> {
        for _ in 0..MOST_STEPS {
            let hosts = &self.hosts;
            let reaches = |envelope: &Sent| !hosts[&envelope.to].paused;
            let next = self.network.queue.iter().position(reaches);
            let Some(envelope) = next.and_then(|index| self.network.queue.remove(index)) else {
                return Ok(());
            };
            self.arrive(envelope)?;
        }
        Err("they talk for ever".into())
    }

    /// Lets time pass: a server whose time has come does what it does, and all
    /// messages arrive at once.
    pub(crate) fn run(&mut self, span: Duration) -> Outcome<()> {
        let end = self.now + span;
        self.settle()?;
        for _ in 0..MOST_STEPS {
            let Some((due, id)) = self.next_due() else {
                break;
            };
            if due > end {
                break;
            }
            self.now = self.now.max(due);
            self.step(id, None)?;
            self.settle()?;
        }
        self.now = self.now.max(end);
        Ok(())
    }

    /// Whose timer is the next.
    fn next_due(&self) -> Option<(Duration, ServerId)> {
        let running = self.hosts.values().filter(|host| !host.paused);
        let due = running.filter_map(|host| {
            let deadline = host.node.as_ref()?.deadline()?;
            Some((deadline.since(Instant::ZERO), host.id))
        });
        due.min()
    }

    /// Moves the clock to the moment at which this server's timer ends, and
    /// lets that server alone take note of it.
    pub(crate) fn ring(&mut self, id: ServerId) -> Outcome<()> {
        let deadline = self.node(id)?.deadline().ok_or("it waits for nothing")?;
        self.now = self.now.max(deadline.since(Instant::ZERO));
        self.step(id, None)
    }

    /// The process is gone, with what its disk was only told and what was
    /// under way to it.
    pub(crate) fn crash(&mut self, id: ServerId) -> Outcome<()> {
        let host = self.host(id)?;
        host.node = None;
        let lost: Vec<_> = host.disk.waiting.drain(..).collect();
        for batch in lost {
            self.detail(&format!("{id} loses {}", show::batch(&batch)));
        }
        self.network.queue.retain(|envelope| envelope.to != id);
        self.network.held.retain(|envelope| envelope.to != id);
        Ok(())
    }

    /// One leads, and all its members have committed as much as it has.
    pub(crate) fn agree(&self) -> Outcome<()> {
        let nodes = || self.hosts.values().filter_map(|host| host.node.as_ref());
        let leads = |node: &&Node| node.status() == Status::Leader;
        let leader = nodes().filter(leads).max_by_key(|node| node.term());
        let leader = leader.ok_or("nobody leads")?;
        for (id, _) in leader.members().iter() {
            let (has, all) = (self.node(id)?.commit(), leader.commit());
            if has != all || self.node(id)?.leader() != Some(leader.id()) {
                return Err(format!("{id} is not with its leader: {has} of {all}").into());
            }
        }
        Ok(())
    }

    /// What each server is and has.
    pub(crate) fn tell_state(&mut self) {
        let hosts = self.hosts.values();
        let lines: Vec<_> = hosts
            .map(|host| match &host.node {
                None => format!("{} down", host.id),
                Some(node) => format!("{} {}", host.id, show::node(node)),
            })
            .collect();
        lines.iter().for_each(|line| self.tell(line));
    }
}
