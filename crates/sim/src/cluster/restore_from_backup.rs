//! The cluster is lost, and restored from a backup.
//!
//! Some time in a run a backup is taken; the cluster goes on, and later all of
//! it is lost. What comes then happens beside the run, which goes on as if
//! nothing had been lost: one server begins a new cluster from the backup, on
//! a disk of its own, with crashes of its own, and those who were clients of
//! the lost one come to it as they are, with their sessions, with what they
//! believe to be in registers, and with what they still wait for.
//!
//! They are judged over both lives: nothing that the lost cluster told them
//! (a version, a session, a number of the user log) is told again for
//! something else; everything that was in the backup is there; what somebody
//! still counts on is nobody else's; and the new life explains itself as any
//! other does.

use std::collections::BTreeMap;

use tenure_alpo::codec::crc32c_append;
use tenure_alpo::wal::Format;
use tenure_alpo::{
    Answer, Batch, ClientRequest, HardState, Input, Membership, Node, Operation, Outcome, Output,
    OwnershipProof, Query, QueryResult, Restoring, ServerId, SessionId, Snapshot, State, StorageId,
    TERM_STEP,
};
use tenure_core::Machine;
use tenure_core::cas::Bytes;
use tenure_core::ids::Key;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, WallTime};

use super::checkers::clients::Calls;
use super::checkers::{Broken, Check, Verdict, broken};
use super::client::Client;
use super::events::Event;
use super::given_out::HighestGiven;
use super::host::Host;
use super::swarm::Swarm;
use super::world::World;
use crate::clock::MILLI;

/// How many turns clients have in the new life.
const TURNS: u64 = 80;

impl World {
    /// In some runs the cluster is lost, at a time that nobody expects.
    pub(super) fn plan_loss(&mut self) {
        let storm = self.swarm.storm;
        let rng = &mut self.loss.rng;
        if !rng.chance(20) {
            return;
        }
        let backup = rng.between(storm / 8, storm * 3 / 4);
        let lost = backup + rng.between(storm / 40, storm / 4);
        self.after(backup, Event::Backup);
        self.after(lost, Event::Lost);
    }

    /// What a backup would hold now.
    pub(super) fn back_up(&mut self) {
        if self.committed.len() > 0 {
            self.loss.backup = Some(self.committed.reference.clone());
        }
    }

    /// All servers are lost, if they were; what then?
    pub(super) fn lost(&mut self) -> Verdict {
        let Some(backup) = self.loss.backup.take() else {
            return Ok(());
        };
        self.stats.restores += 1;
        let rng = self.loss.rng.fork();
        let mut life = RestoredCluster::begin(self, &backup, rng)?;
        for _ in 0..TURNS {
            life.turn(&self.loss.given_out)?;
        }
        life.judge()?;
        self.stats.restored_answers += life.answers;
        Ok(())
    }
}

/// What is asked and not answered.
struct BackupRequest {
    client: usize,
    request: ClientRequest,
    operation: usize,
}

/// The restored cluster.
struct RestoredCluster {
    swarm: Swarm,
    rng: Rng,
    now: u64,
    host: Host,
    clients: Vec<Client>,
    calls: Calls,
    waiting: BTreeMap<u64, BackupRequest>,
    token: u64,
    appended: Vec<(u64, Bytes)>,
    /// Registers that somebody counts on, until when, and to what they were
    /// bound when the new life began.
    counted: Vec<(Key, u64, SessionId)>,
    answers: u64,
}

impl RestoredCluster {
    fn begin(world: &World, backup: &State, mut rng: Rng) -> Result<Self, Broken> {
        let swarm = world.swarm.clone();
        let id = ServerId::new(1).expect("not zero");
        let mut host = Host::new(id, rng.below(1 << 40), swarm.drift[0]);
        host.storage = StorageId::from_u128(1 << 64);
        let state = restored(&swarm, backup, &host)?;
        is_all_there(backup, &state)?;
        let ttl = swarm.session_ttl;
        let now = world.now + rng.below(ttl);
        let counted = world.session_leases.counted_on();
        let counted = counted.filter_map(|(key, until)| {
            let bound = state.bound(key)?;
            Some((key.clone(), until, bound.session))
        });
        let mut life = Self {
            counted: counted.collect(),
            clients: world.clients.clone(),
            calls: Calls::default(),
            waiting: BTreeMap::new(),
            token: 0,
            appended: Vec::new(),
            answers: 0,
            swarm,
            rng,
            now,
            host,
        };
        life.remember(&state);
        let last = state.applied();
        let batch = Batch {
            number: 1,
            hard: Some(HardState {
                term: last.term,
                last_reign: last.term,
                vote: None,
            }),
            snapshot: Some(Snapshot {
                last,
                bytes: state.encode().into(),
            }),
            reset: true,
            ..Batch::default()
        };
        let format = life.format();
        let made = life.host.disk.restore(format, life.swarm.log, batch);
        made.map_err(|trouble| Broken::new(Check::Disk, format!("restoring: {trouble:?}")))?;
        life.start()?;
        Ok(life)
    }

    /// What the new history begins with, as if it had been written first.
    fn remember(&mut self, state: &State) {
        for (serial, (key, held)) in (1..).zip(state.registers().list("")) {
            let write = tenure_core::cas::Write {
                key: key.clone(),
                expect: tenure_core::cas::Expect::Absent,
                value: held.value.clone(),
                stamp: tenure_core::cas::Stamp::Now,
            };
            let last = state.on_expiry_value(key);
            let session = state.bound(key).map_or(0, |bound| bound.session);
            let operation = match last {
                Some(last) => Operation::bind(write, last.clone()),
                None => Operation::swap(write),
            };
            let command = tenure_alpo::Command {
                session,
                serial,
                outstanding: serial,
                operation,
            };
            let request = ClientRequest::Command(command, OwnershipProof::NONE);
            let number = self.calls.invoke(self.now, usize::MAX, &request);
            let outcome = Outcome::Swapped(held.version.clone());
            // It is a register's, so it is taken.
            let _ = self.calls.done(self.now, number, &request, &outcome);
        }
    }

    fn format(&self) -> Format {
        Format::new(self.host.identity(), crc32c_append)
    }

    fn start(&mut self) -> Verdict {
        let format = self.format();
        let found = self.host.disk.open(format, self.swarm.log);
        let found =
            found.map_err(|trouble| Broken::new(Check::Disk, format!("restored: {trouble:?}")))?;
        let blank = State::new(self.swarm.limits, ClockId::default());
        let (config, identity) = (self.swarm.config.clone(), self.host.identity());
        let now = self.host.now(self.now).boot;
        let rng = self.rng.fork();
        let node = Node::start(config, identity, found.recovered, blank, rng, now);
        let node = node.map_err(|error| Broken::new(Check::State, error.to_string()))?;
        self.host.node = Some(node);
        Ok(())
    }

    /// Time passes, the server does what is due, and a client has its turn.
    fn turn(&mut self, lost: &HighestGiven) -> Verdict {
        self.now += self.rng.between(MILLI, self.swarm.session_ttl / 20);
        if self.rng.chance(4) {
            self.host.node = None;
            self.host.disk.crash(&mut self.rng);
            self.host.disk.repair();
            // Who waits is not answered, and what it asked is not known.
            for asked in std::mem::take(&mut self.waiting).into_values() {
                self.clients[asked.client].start_over();
            }
            self.start()?;
        }
        let now = self.host.now(self.now);
        let due = |node: &Node| node.deadline().is_some_and(|due| due <= now.boot);
        while self.host.node.as_ref().is_some_and(due) {
            self.step(lost, Machine::tick)?;
        }
        let client = self.rng.below(self.clients.len() as u64) as usize;
        let request = self.next_of(client);
        self.token += 1;
        let token = self.token;
        let operation = self.calls.invoke(self.now, client, &request);
        let asked = BackupRequest {
            client,
            request: request.clone(),
            operation,
        };
        self.waiting.insert(token, asked);
        self.step(lost, |node, now| {
            node.handle(now, Input::ClientRequest { token, request });
        })?;
        self.still_counted_on()
    }

    /// What a client asks: first what it still waits for.
    fn next_of(&mut self, client: usize) -> ClientRequest {
        let ttl = self.swarm.session_ttl;
        let own = &mut self.clients[client];
        if let Some((_, pending)) = own.pending.pop_first() {
            return pending.request;
        }
        match own.session {
            _ if own.reader => ClientRequest::Read(Query::Register(own.key())),
            None => ClientRequest::Open(own.opening(ttl)),
            Some(session) => {
                let client_operation = own.client_operation();
                own.numbered(client_operation, session)
            }
        }
    }

    fn step(
        &mut self,
        lost: &HighestGiven,
        act: impl FnOnce(&mut Node, tenure_core::time::Now),
    ) -> Verdict {
        let now = self.host.now(self.now);
        let Some(node) = &mut self.host.node else {
            return Ok(());
        };
        act(node, now);
        let mut answers = Vec::new();
        loop {
            while let Some(output) = node.poll() {
                match output {
                    Output::Persist(batch) => self.host.disk.write(batch),
                    Output::EncodeSnapshot(copy) => {
                        node.handle(now, Input::SnapshotEncoded(copy.encode()));
                    }
                    Output::DecodeSnapshot(received) => {
                        let decoded = Box::new(received.decode());
                        node.handle(now, Input::SnapshotDecoded(decoded));
                    }
                    Output::Answer { token, answer } => answers.push((token, answer)),
                    Output::Halt(fault) => return broken(Check::Halted, fault.to_string()),
                    Output::Send { .. }
                    | Output::Applied { .. }
                    | Output::Discard(_)
                    | Output::Event(_) => {}
                }
            }
            let Some(upto) = self.host.disk.begin() else {
                break;
            };
            if let Err(error) = self.host.disk.sync() {
                return broken(Check::Disk, format!("restored: {error}"));
            }
            node.handle(now, Input::Persisted(upto));
        }
        for (token, answer) in answers {
            self.answered(lost, token, answer)?;
        }
        Ok(())
    }

    fn answered(&mut self, lost: &HighestGiven, token: u64, answer: Answer) -> Verdict {
        let Some(asked) = self.waiting.remove(&token) else {
            return Ok(());
        };
        let own = &mut self.clients[asked.client];
        match answer {
            Answer::Done(outcome) => {
                self.answers += 1;
                if lost.has(&outcome) {
                    let detail = format!("{outcome:?}, which the lost cluster had given out");
                    return broken(Check::Restored, detail);
                }
                let (request, number) = (&asked.request, asked.operation);
                self.calls.done(self.now, number, request, &outcome)?;
                match &outcome {
                    Outcome::Opened(session) => {
                        own.session = Some(*session);
                        own.next_serial = 1;
                    }
                    Outcome::SessionExpired | Outcome::Closed => own.start_over(),
                    Outcome::Conflict => own.seen.clear(),
                    Outcome::Appended(number) => {
                        if let ClientRequest::Command(command, _) = request
                            && let Operation::Append(bytes) = &command.operation
                        {
                            self.appended.push((*number, bytes.clone()));
                        }
                    }
                    outcome => own.learn(request, outcome),
                }
            }
            Answer::Read(found) => {
                self.answers += 1;
                self.calls.read(self.now, asked.operation, &found);
                if let (
                    ClientRequest::Read(Query::Register(key)),
                    QueryResult::Register(held, ..),
                ) = (&asked.request, &found)
                {
                    let version = held.as_ref().map(|held| held.version.clone());
                    own.seen.insert(key.clone(), version);
                }
            }
            // It is not known, and its serial is missing from now on.
            Answer::Refused(_) | Answer::Interrupted | Answer::HandedOver => own.start_over(),
        }
        Ok(())
    }

    /// A holder of the lost cluster may still count on what it had: nobody
    /// else has it.
    fn still_counted_on(&self) -> Verdict {
        let Some(node) = &self.host.node else {
            return Ok(());
        };
        for (key, until, session) in &self.counted {
            let bound = node.state().bound(key).map(|bound| bound.session);
            if *until > self.now && bound != Some(*session) {
                let early = (until - self.now) / MILLI;
                let detail = format!(
                    "a holder of before counts on {key} for another {early} ms, and it is bound \
                     to {bound:?} in the restored cluster"
                );
                return broken(Check::Held, detail);
            }
        }
        Ok(())
    }

    fn judge(&mut self) -> Verdict {
        if let Some(node) = &self.host.node {
            let user_log = node.state().user_log();
            for (number, payload) in &self.appended {
                let found = user_log.read(*number).map(|mut rest| rest.next());
                if found.is_ok_and(|found| found != Some((*number, payload))) {
                    let detail = format!("entry {number} is not where its client was told");
                    return broken(Check::ExactlyOnce, detail);
                }
            }
        }
        self.calls.judge_registers()
    }
}

/// The backup as it is restored: through its bytes.
fn restored(swarm: &Swarm, backup: &State, host: &Host) -> Result<State, Broken> {
    let wrong = |what: String| Broken::new(Check::Restored, what);
    let state = State::decode(&backup.encode()).map_err(|error| wrong(error.to_string()))?;
    #[cfg(feature = "planted-bugs")]
    let state = {
        let mut state = state;
        state.plant(swarm.config.planted);
        state
    };
    #[cfg(not(feature = "planted-bugs"))]
    let _ = swarm;
    let how = Restoring {
        clock: ClockId {
            boot: 2,
            namespace: 2,
        },
        members: Membership::bootstrapped([(host.id, host.storage)]),
        times: 1,
        term_step: TERM_STEP,
        longest_lease: None,
        holder: 1,
        wall: WallTime::default(),
    };
    let restored = state.restored(&how);
    restored
        .map(|it| it.state)
        .map_err(|error| wrong(error.to_string()))
}

/// The rightful case: registers and the user log are as they were.
fn is_all_there(backup: &State, state: &State) -> Verdict {
    let registers = |state: &State| {
        let all = state.registers().list("");
        let essence = all.map(|(key, it)| (key.clone(), it.value.clone(), it.version.clone()));
        essence.collect::<Vec<_>>()
    };
    let log = |state: &State| {
        let user_log = state.user_log();
        let all = user_log
            .read(backup.user_log().first())
            .into_iter()
            .flatten();
        all.map(|(number, it)| (number, it.clone()))
            .collect::<Vec<_>>()
    };
    if registers(backup) != registers(state) || log(backup) != log(state) {
        return broken(Check::Restored, "something of the backup is not there");
    }
    Ok(())
}
