//! Simulated processes: a candidate, an observer or an operator's command,
//! and the driver around it.
//!
//! The driver is what the production driver is: it hands in inputs with the
//! time of its own clocks, carries out every output, and wakes the machine
//! at its deadline. While a process is paused or its machine sleeps, what
//! arrives waits in its inbox.

use tenure_core::Machine as _;
use tenure_core::cas::{Expect, Reading, Register, Stamp, Write};
use tenure_core::ids::{Key, LeaderId};
use tenure_core::time::{Instant, Now};
use tenure_election::{Call, FailureClass, Input, Occupancy as Seat, Output, Record, Request};

use crate::checkers::{Check, Held, own_id, race, told};
use crate::clock::{MICRO, TrueTime};
use crate::events::SimEvent;
use crate::simulated_process::{Actor, ProcessInput};
use crate::simulated_store::{Op, StoreCall};
use crate::world::World;

/// The most inputs that one step hands in; as many as a kernel would buffer.
const INBOX_MAX: usize = 4_096;

impl World {
    /// Whether `p` gets to do anything at present.
    pub(crate) fn runs(&self, p: usize) -> bool {
        let proc = &self.processes[p];
        proc.up && !proc.paused && !self.nodes[proc.node].suspended
    }

    /// Sends `mail` to `p`, to be there at `at`.
    pub(crate) fn post(&mut self, p: usize, at: TrueTime, mail: ProcessInput) {
        let life = self.processes[p].life;
        self.queue
            .push(at, SimEvent::ProcessInput { p, life, mail });
    }

    /// Mail has arrived.
    pub(crate) fn deliver(&mut self, p: usize, mail: ProcessInput) {
        if self.runs(p) {
            self.open(p, mail);
            self.after_step(p);
        } else if self.processes[p].inbox.len() < INBOX_MAX {
            self.processes[p].inbox.push_back(mail);
        }
    }

    /// `p` runs again: its timers are late and its inbox is full, and nobody
    /// says which of them its driver looks at first.
    pub(crate) fn resume(&mut self, p: usize) {
        if !self.runs(p) {
            return;
        }
        let timer_first = self.rng.chance(50);
        // The executor of its application may have a thread of its own.
        let task_first = self.processes[p].guarded.is_some() && self.rng.chance(50);
        if task_first {
            self.resume_task(p);
        }
        if timer_first {
            self.tick(p);
        }
        while let Some(mail) = self.processes[p].inbox.pop_front() {
            self.open(p, mail);
        }
        self.tick(p);
        self.resume_task(p);
        self.after_step(p);
    }

    pub(crate) fn timer(&mut self, p: usize) {
        self.processes[p].timer.0 = TrueTime::MAX;
        if self.runs(p) {
            self.tick(p);
            self.after_step(p);
        }
    }

    fn open(&mut self, p: usize, mail: ProcessInput) {
        match mail {
            ProcessInput::Input(input) => self.step(p, Some(input)),
            ProcessInput::Answer(input, writes) => {
                self.remember(p, &input, writes);
                self.note_failure(p, &input);
                self.step(p, Some(input));
            }
            ProcessInput::Kept(session, Some(start)) => {
                let kept = &mut self.processes[p].kept;
                if kept.is_none_or(|(known, best)| known != session || best < start) {
                    *kept = Some((session, start));
                }
            }
            ProcessInput::Kept(_, None) => {}
            ProcessInput::Begin(term) => self.begin_work(p, term),
            ProcessInput::Word(start) => self.heard(p, start),
        }
    }

    /// What a candidate has been shown, if it takes this answer.
    fn remember(&mut self, p: usize, input: &Input, writes: Option<u64>) {
        let proc = &mut self.processes[p];
        let now = self.nodes[proc.node].boot(self.now);
        let call = match input {
            Input::Read { call, .. }
            | Input::Wrote { call, .. }
            | Input::Confirmed { call, .. } => *call,
            _ => return,
        };
        if let Some(writes) = writes
            && proc.awaited.0 == call
            && now < proc.awaited.1
        {
            proc.shown = writes;
        }
    }

    /// A write that has certainly not happened is no request.
    fn note_failure(&mut self, p: usize, input: &Input) {
        if let Input::Wrote {
            call,
            result: Err(failure),
        } = input
            && failure.class != FailureClass::Unknown
        {
            self.processes[p].floors.failed(*call);
        }
    }

    /// A candidate asks a leader to go, for the sake of a floor.
    fn note_leader_request(&mut self, p: usize, call: Call, now: Instant) {
        self.stats.floor_requests += 1;
        let proc = &mut self.processes[p];
        let finding = proc.floors.asks(call, now, proc.config.lease);
        self.judge(Check::Floors, p, finding);
    }

    fn tick(&mut self, p: usize) {
        self.step(p, None);
    }

    /// One step of the machine, and everything it asks for.
    pub(crate) fn step(&mut self, p: usize, input: Option<Input>) {
        let now = self.nodes[self.processes[p].node].now(self.now);
        self.stats.steps += 1;
        if let Some(input) = &input
            && self.trace.is_on()
        {
            let text = format!("<- {}", brief(input));
            self.note(p, || text);
        }
        match (&mut self.processes[p].actor, input) {
            (Actor::Candidate(campaign), Some(input)) => campaign.handle(now, input),
            (Actor::Candidate(campaign), None) => campaign.tick(now),
            (Actor::Observer(observer), Some(input)) => observer.handle(now, input),
            (Actor::Observer(observer), None) => observer.tick(now),
            (Actor::RequestSender(_), Some(input)) => return self.leader_request_step(p, input),
            (Actor::RequestSender(_), None) => return,
        }
        self.carry_out(p, now);
    }

    /// Carries out what the machine of `p` asks for.
    pub(crate) fn carry_out(&mut self, p: usize, now: Now) {
        // The leadership first: an event is told after the fact.
        self.note_reign(p);
        loop {
            let output = match &mut self.processes[p].actor {
                Actor::Candidate(campaign) => campaign.poll(),
                Actor::Observer(observer) => observer.poll(),
                Actor::RequestSender(_) => None,
            };
            match output {
                None => return,
                Some(Output::Event(event)) => {
                    self.note(p, || format!("-- {event:?}"));
                    self.tell(p, &event);
                }
                Some(Output::Read { call, key, within }) => {
                    self.note(p, || format!("-> read {key} (call {})", call.0));
                    self.processes[p].awaited = (call, now.boot.after(within));
                    self.begin_call(p, call, key, Op::Read, now.boot.after(within));
                }
                Some(Output::Confirm {
                    call,
                    since,
                    within,
                }) => {
                    self.note(p, || format!("-> confirm (call {})", call.0));
                    self.extends(p, None);
                    self.processes[p].awaited = (call, now.boot.after(within));
                    self.have_confirmed(p, call, since, now.boot, now.boot.after(within));
                }
                Some(Output::Release) => {
                    self.note(p, || "-> release".into());
                    self.release(p);
                }
                Some(Output::Write {
                    call,
                    write,
                    bind,
                    within,
                }) => {
                    self.note(p, || {
                        format!("-> write {} (call {})", wording(&write), call.0)
                    });
                    self.processes[p].awaited = (call, now.boot.after(within));
                    let election = self.processes[p].election;
                    let terms = &self.terms[election];
                    let finding = race(&write, election, self.now, terms, &self.leaderships);
                    self.judge(Check::Races, p, finding);
                    self.extends(p, Some(&write));
                    if write.stamp == Stamp::Keep {
                        self.note_leader_request(p, call, now.boot);
                    }
                    let key = write.key.clone();
                    self.begin_call(p, call, key, Op::Write(write, bind), now.boot.after(within));
                }
            }
        }
    }

    /// Takes note of the leadership that `p` holds now, if it is another.
    fn note_reign(&mut self, p: usize) {
        let proc = &self.processes[p];
        let Actor::Candidate(campaign) = &proc.actor else {
            return;
        };
        let leadership = campaign.leadership();
        let known = self.leaderships.of(p);
        let same = match (&leadership, &known) {
            (None, None) => true,
            (Some((fence, grant)), Some(held)) => {
                fence.term == held.term && grant.valid_until == held.valid_until
            }
            _ => false,
        };
        if same {
            return;
        }
        let held = leadership.map(|(fence, grant)| Held {
            election: proc.election,
            term: fence.term,
            valid_until: grant.valid_until,
            until: self.nodes[proc.node].when(grant.valid_until),
        });
        let finding = self.leaderships.note(p, self.now, held);
        self.judge(Check::Exclusivity, p, finding);
    }

    /// Sets the timer anew and lets the checkers look.
    pub(crate) fn after_step(&mut self, p: usize) {
        self.note_reign(p);
        self.look(p);
        let proc = &self.processes[p];
        let deadline = match &proc.actor {
            Actor::Candidate(campaign) => {
                let finding = own_id(campaign);
                let deadline = campaign.deadline();
                self.judge(Check::OwnId, p, finding);
                deadline
            }
            Actor::Observer(observer) => observer.deadline(),
            Actor::RequestSender(_) => None,
        };
        let node = &self.nodes[self.processes[p].node];
        let at = deadline
            .filter(|deadline| *deadline < Instant::MAX)
            .map(|deadline| node.when(deadline));
        let proc = &mut self.processes[p];
        let at = match at {
            None => return proc.timer = (TrueTime::MAX, proc.timer.1 + 1),
            Some(at) if at > self.now => {
                proc.spins = 0;
                at
            }
            Some(_) => {
                // A deadline that has passed: come back very soon.
                proc.spins += 1;
                self.now + MICRO
            }
        };
        if at != proc.timer.0 {
            proc.timer = (at, proc.timer.1 + 1);
            let happening = SimEvent::Timer {
                p,
                life: proc.life,
                number: proc.timer.1,
            };
            self.queue.push(at, happening);
        }
        if self.processes[p].spins > 100 {
            let finding = Err("asked a hundred times to be woken in the past".into());
            self.judge(Check::Spin, p, finding);
        }
    }

    /// Whether the application of `p` has been told in time.
    pub(crate) fn look(&mut self, p: usize) {
        if !self.runs(p) {
            return;
        }
        let proc = &self.processes[p];
        if let Some(leadership) = &proc.leadership {
            // As of a moment ago: its timer for this very moment may be next.
            let now = self.nodes[proc.node].boot(self.now.saturating_sub(1));
            let finding = told(leadership, now);
            self.judge(Check::Told, p, finding);
        }
    }

    /// An operator begins to write `request` into the register.
    pub(crate) fn leader_request(&mut self, p: usize, request: Request) {
        if let Actor::RequestSender(sender) = &mut self.processes[p].actor {
            sender.request = Some(request);
            sender.tries = 0;
        }
        self.leader_request_read(p);
    }

    fn leader_request_read(&mut self, p: usize) {
        let Actor::RequestSender(sender) = &mut self.processes[p].actor else {
            return;
        };
        sender.tries += 1;
        sender.calls += 1;
        let call = Call(sender.calls);
        if sender.tries > 3 {
            sender.request = None;
            return;
        }
        let key = Key::of_election(&self.processes[p].config.election);
        self.begin_call(p, call, key, Op::Read, Instant::MAX);
    }

    fn leader_request_step(&mut self, p: usize, input: Input) {
        let Actor::RequestSender(sender) = &mut self.processes[p].actor else {
            return;
        };
        let (Input::Read { call, .. } | Input::Wrote { call, .. }) = &input else {
            return;
        };
        if call.0 != sender.calls {
            return;
        }
        let found = match input {
            Input::Read {
                result:
                    Ok(Reading {
                        register: Some(register),
                        ..
                    }),
                ..
            } => register,
            Input::Wrote { result: Ok(_), .. } => {
                sender.request = None;
                return;
            }
            _ => return self.leader_request_read(p),
        };
        let request = sender.request.clone();
        let Some(write) = request.and_then(|request| asked(&found, request)) else {
            return;
        };
        sender.calls += 1;
        let call = Call(sender.calls);
        let key = Key::of_election(&self.processes[p].config.election);
        self.begin_call(
            p,
            call,
            key.clone(),
            Op::Write(Write { key, ..write }, None),
            Instant::MAX,
        );
    }

    /// Has the session of `p` confirmed, or knows already that it is.
    fn have_confirmed(
        &mut self,
        p: usize,
        call: Call,
        since: Instant,
        now: Instant,
        give_up: Instant,
    ) {
        if let Some(start) = self.known_alive(p, since) {
            let result = Ok(start);
            return self.post(
                p,
                self.now,
                ProcessInput::Input(Input::Confirmed { call, result }),
            );
        }
        let key = Key::of_election(&self.processes[p].config.election);
        self.begin_call(p, call, key, Op::Confirm(now), give_up);
    }

    /// Sends a question to the store.
    pub(crate) fn begin_call(&mut self, p: usize, call: Call, key: Key, op: Op, give_up: Instant) {
        let session = self.session_of(p, &op);
        let proc = &self.processes[p];
        let question = StoreCall {
            p,
            life: proc.life,
            call,
            key,
            op,
            session,
            give_up_at: self.nodes[proc.node].when(give_up),
            shown: proc
                .leadership
                .filter(|o| !o.draining && !o.ousted)
                .map(|_| proc.shown),
            slow: false,
        };
        self.send(question);
    }
}

/// The register with a request added, if somebody holds it and was not asked
/// before.
fn asked(register: &Register, request: Request) -> Option<Write> {
    let mut record = Record::decode(&register.value).ok()?;
    let Seat::Held(holder) = &mut record.occupancy else {
        return None;
    };
    if holder.request.is_some() {
        return None;
    }
    holder.request = Some(request);
    record.sequence += 1;
    Some(Write {
        key: Key::of_election(&record.election),
        expect: Expect::Version(register.version.clone()),
        value: record.encode(),
        stamp: Stamp::Keep,
    })
}

fn wording(write: &Write) -> String {
    let value = Record::decode(&write.value).map_or_else(|_| "garbage".into(), |r| sketch(&r));
    match &write.expect {
        Expect::Absent => format!("{value} where nothing is"),
        Expect::Version(version) => format!("{value} over {version}"),
    }
}

/// A record in a few words.
pub(crate) fn sketch(record: &Record) -> String {
    let short = |id: LeaderId| id.to_string()[..6].to_owned();
    let holder = record.holder();
    let asked = holder.and_then(|holder| holder.request.as_ref());
    let holder = holder.map_or_else(
        || "vacant".into(),
        |h| format!("{} {}", h.name, short(h.id)),
    );
    let asked = asked.map_or_else(String::new, |request| format!(" asked {request:?}"));
    let (term, sequence, renewal) = (record.term, record.sequence, record.renewal);
    format!("[t{term} #{sequence} r{renewal} {holder}{asked}]")
}

fn shown(register: Option<&Register>) -> String {
    register.map_or_else(
        || "nothing".into(),
        |register| {
            let record = Record::decode(&register.value);
            let text = record.map_or_else(|_| "garbage".into(), |record| sketch(&record));
            format!("{} {text}", register.version)
        },
    )
}

fn brief(input: &Input) -> String {
    match input {
        Input::Read {
            call,
            result: Ok(reading),
        } => {
            format!("(call {}) {}", call.0, shown(reading.register.as_ref()))
        }
        Input::Wrote {
            call,
            result: Ok(version),
        } => format!("(call {}) wrote {version}", call.0),
        Input::Read {
            call,
            result: Err(failure),
        }
        | Input::Wrote {
            call,
            result: Err(failure),
        } => {
            format!("(call {}) {}: {}", call.0, failure.class, failure.why)
        }
        Input::Seen { key, register } => format!("watch: {key} {}", shown(register.as_ref())),
        other => format!("{other:?}"),
    }
}
