//! Who waits for which entry, and which requests a leader takes in.
//!
//! This is the leader's part of deduplication (Raft's client sessions, *exactly
//! once*; `state/sessions.rs` has the part of the applied state).
//!
//! A request is looked for in three places before it is appended, so that it
//! stands in the log once: among those done (the session remembers them), among
//! the uncommitted ones (the *tail* of its session, kept here), and only then
//! is it new.
//!
//! The first is only complete once this leader's no-op is applied, since an
//! earlier leader's entries may hold it; until then requests wait in the
//! backlog (`docs/design/alpo.md`, H16). So do those that come while the
//! leadership is handed over: refused, their clients would come again after a
//! pause of their own, which may be longer than it takes.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_core::ids::Key;

use super::super::bug::Bug;
use super::super::config::Config;
use super::super::entry::{ClusterVersion, Command, Entry, Operation, Outcome, Payload, SessionId};
use super::super::ids::LogId;
use super::super::session_owner::{OpenSession, OwnershipProof, SessionOpener};
use super::super::state::{MAX_BOUND, MAX_WINDOW, SerialStatus, Session};
use super::admission_window::AdmissionWindow;
use super::fair_queue::{FairQueue, Flow, Waiting};
use super::server::Server;
use super::session_ends::{BYTES_OF_A_WRITE, SessionEnds};
use super::types::{Answer, ClientRequest, Refusal};

#[derive(Clone, Debug, Default)]
pub(super) struct PendingProposals {
    /// Entries and who is told what became of them, by entry.
    waiters: VecDeque<(LogId, u64)>,
    /// For each session its uncommitted commands of this term, in the order of
    /// their serials, which follow the last completed one.
    tails: BTreeMap<SessionId, VecDeque<LogId>>,
    /// Sessions whose end is among their uncommitted commands.
    ending: BTreeSet<SessionId>,
    /// What the ends of sessions may write that are not applied yet.
    pub(super) session_ends: SessionEnds,
    /// How many sessions each opens by uncommitted entries of this term.
    opening: BTreeMap<SessionOpener, u64>,
    /// How many all of them open so.
    openings: u64,
    /// Asked before the leader was ready, or while it hands over.
    backlog: VecDeque<(u64, ClientRequest)>,
    /// Bytes of them.
    backlog_bytes: usize,
    /// Bytes of entries that are not applied yet.
    uncommitted: usize,
    /// How many of these there may be before others wait.
    pub(super) window: AdmissionWindow,
    /// They wait here for their turn.
    queue: FairQueue,
}

/// One of so many sessions is kept for those whose sessions are not counted:
/// operators, and the servers themselves.
const KEPT_OF: u64 = 1_024;

/// What to do with a request.
#[derive(Debug)]
pub(super) enum Admission {
    /// Append it.
    Append,
    /// It is in the log already, there.
    Attach(LogId),
    /// Answer at once.
    Answer(Answer),
}

impl PendingProposals {
    /// Whether there is room for `payload`.
    pub(super) fn has_room(&self, server: &Server, weight: usize) -> bool {
        self.uncommitted == 0 || self.uncommitted + weight <= server.config.uncommitted_bytes
    }

    /// Whether an entry of this weight may be appended now, and not only when
    /// what is uncommitted has become less.
    fn fits_window(&self, config: &Config, weight: usize) -> bool {
        self.uncommitted == 0 || self.uncommitted + weight <= self.window.bytes(config)
    }

    /// Whether a new entry of this weight has to wait for its turn.
    pub(super) fn is_crowded(&self, config: &Config, weight: usize) -> bool {
        !self.queue.is_empty() || !self.fits_window(config, weight)
    }

    /// Whether requests of this session wait for their turn.
    pub(super) fn queues(&self, session: SessionId) -> bool {
        self.queue.has(session)
    }

    /// Lets a request wait for its turn; `false` if too much waits.
    pub(super) fn push_waiting(&mut self, server: &Server, flow: Flow, waiting: Waiting) -> bool {
        let taken = self.uncommitted + self.queue.bytes();
        let free = server.config.uncommitted_bytes.saturating_sub(taken);
        if !self.queue.has_room(flow, waiting.weight, free) {
            return false;
        }
        self.window.note_wait();
        self.queue.push(flow, waiting);
        true
    }

    /// The request whose turn it is, if the log has room for it.
    pub(super) fn next_turn(&mut self, config: &Config) -> Option<Waiting> {
        let weight = self.queue.next()?;
        if !self.fits_window(config, weight) {
            self.window.note_wait();
            return None;
        }
        self.queue.pop()
    }

    /// How many requests wait for their turn.
    pub(super) const fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Puts `request` into the backlog; `false` if that is full.
    pub(super) fn push_backlog(
        &mut self,
        config: &Config,
        token: u64,
        request: ClientRequest,
    ) -> bool {
        let weight = request.weight();
        let backlog_bytes = self.backlog_bytes + weight;
        let fits = self.backlog.is_empty() || backlog_bytes <= config.uncommitted_bytes;
        if self.backlog.len() >= config.backlog_requests || !fits {
            return false;
        }
        self.backlog_bytes = backlog_bytes;
        self.backlog.push_back((token, request));
        true
    }

    /// Empties the backlog: its requests in the order they came.
    pub(super) fn take_backlog(&mut self) -> VecDeque<(u64, ClientRequest)> {
        self.backlog_bytes = 0;
        core::mem::take(&mut self.backlog)
    }

    /// How many requests the backlog has.
    pub(super) fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    /// Whether another session may be opened for this opener.
    ///
    /// One that has as many as there are places left opens no more: however
    /// many take all that they get, an opener that has fewer than they finds a
    /// place.
    pub(super) fn judge_opening(&self, server: &Server, opening: &OpenSession) -> Option<Refusal> {
        let (opener, most) = (opening.owner.opener, opening.most);
        if most == u64::MAX {
            // Only the state bounds it, as it does all of them together.
            return None;
        }
        let under_way = self.opening.get(&opener).copied().unwrap_or(0);
        let sessions = server.state.sessions();
        let held = sessions.of(&opener) + under_way;
        if held >= most {
            return Some(Refusal::Quota { opener, held, most });
        }
        let all = server.state.limits().sessions;
        let taken = sessions.len() as u64 + self.openings;
        let left = all.saturating_sub(taken).saturating_sub(all / KEPT_OF);
        (held >= left).then_some(Refusal::FewSessionsLeft { opener, held, left })
    }

    /// Whether somebody who claims so may use the session.
    ///
    /// What opened it is applied, or it is in the tail of this very log, and
    /// then it is applied before what is appended now. Only what is applied
    /// says for certain whose it is. An uncommitted entry may be that of a
    /// leader which was deposed and does not know it: the leader after it has
    /// given the same number to somebody else, who is told to ask elsewhere.
    /// The rightful owner of an uncommitted one cannot know its number yet.
    fn judge_owner(server: &Server, session: SessionId, proof: &OwnershipProof) -> Option<Refusal> {
        if let Some(open) = server.state.sessions().get(session) {
            return (!open.owner().admits(proof)).then_some(Refusal::NotOwner);
        }
        if session <= server.state.applied().id {
            return None;
        }
        match server.log.get(session)?.payload {
            Payload::OpenOwned { owner, .. } if !owner.admits(proof) => {
                Some(Refusal::NotLeader { leader: None })
            }
            _ => None,
        }
    }

    pub(super) fn judge(
        &self,
        server: &Server,
        command: &Command,
        proof: &OwnershipProof,
    ) -> Admission {
        if let Some(refused) = Self::judge_owner(server, command.session, proof)
            && !server.planted(Bug::SessionWithoutOwner)
        {
            return Admission::Answer(Answer::Refused(refused));
        }
        let sessions = server.state.sessions();
        match sessions.serial_status(command.session, command.serial, &command.operation) {
            SerialStatus::Done(_) if server.planted(Bug::AnswerLost) => {
                Admission::Answer(Answer::Done(Outcome::Nothing))
            }
            SerialStatus::Done(outcome) => Admission::Answer(Answer::Done(outcome)),
            SerialStatus::OtherContent => Admission::Answer(Answer::Refused(Refusal::OtherContent)),
            SerialStatus::Forgotten => Admission::Answer(Answer::Done(Outcome::TooOld)),
            // That there is no such session is for the log to say: a leader
            // that was deposed without knowing it might say so of one that
            // was opened since.
            SerialStatus::NoSession => Admission::Append,
            SerialStatus::Next | SerialStatus::Ahead { .. } => self.judge_new(server, command),
        }
    }

    fn judge_new(&self, server: &Server, command: &Command) -> Admission {
        let session = server.state.sessions().get(command.session);
        let completed = session.map_or(0, Session::completed);
        let empty = VecDeque::new();
        let tail = self.tails.get(&command.session).unwrap_or(&empty);
        let ahead = usize::try_from(command.serial - completed - 1).unwrap_or(usize::MAX);
        if let Some(id) = tail.get(ahead) {
            if server.planted(Bug::TailUnsearched) {
                return Admission::Append;
            }
            return Self::judge_again(server, command, *id);
        }
        if self.ending.contains(&command.session) {
            // Behind the session's end: the log will say that there is none.
            return Admission::Append;
        }
        if ahead > tail.len() {
            let expected = completed.saturating_add(tail.len() as u64 + 1);
            return Admission::Answer(Answer::Refused(Refusal::OutOfOrder { expected }));
        }
        let sessions = server.state.sessions();
        let window = session.map_or(MAX_WINDOW, |it| sessions.window(&it.owner().opener));
        if command.serial.saturating_sub(command.outstanding) >= window {
            return Admission::Answer(Answer::Refused(Refusal::SessionWindowFull));
        }
        Admission::Append
    }

    /// The serial is in the log, uncommitted, as entry `id`.
    fn judge_again(server: &Server, command: &Command, id: LogId) -> Admission {
        // In a cluster of version 1 the saved answer would not tell either.
        let checked = server.state.version() >= ClusterVersion::SECOND
            && !server.planted(Bug::SerialWithoutDigest);
        let before = match server.log.get(id).map(|entry| &entry.payload) {
            Some(Payload::Command(before)) if checked => before,
            _ => return Admission::Attach(id),
        };
        if before.operation == command.operation {
            Admission::Attach(id)
        } else if before.operation == Operation::Close {
            // The session is being ended, perhaps by an operator, and its
            // client does not know: the log will say that there is none.
            Admission::Append
        } else {
            Admission::Answer(Answer::Refused(Refusal::OtherContent))
        }
    }

    /// The command that ends a session in place of its owner: with the serial
    /// that comes next, whatever is under way.
    ///
    /// A holder that lives believes in the registers that the session holds
    /// until that would have expired; it hears of the end only if it is neither
    /// stopped nor cut off, and the next holder would not be alone. So the end
    /// stands behind no entry that binds a register, unless the holder is said
    /// to have gone: entries before it are applied, or in the session's tail.
    /// Those that come behind it find no session.
    ///
    /// # Errors
    /// [`Refusal::Held`].
    pub(super) fn end(
        &self,
        server: &Server,
        session: SessionId,
        holder_is_gone: bool,
    ) -> Result<Command, Refusal> {
        let open = server.state.sessions().get(session);
        let bound = self.bound_soon(server, session);
        if bound > 0 && !holder_is_gone {
            let ttl = open.map_or(0, Session::ttl);
            return Err(Refusal::Held {
                session,
                bound,
                ttl,
            });
        }
        let completed = open.map_or(0, Session::completed);
        let tail = self.tails.get(&session).map_or(0, VecDeque::len);
        let serial = completed.saturating_add(tail as u64);
        let serial = serial.saturating_add(1);
        Ok(Command {
            session,
            serial,
            outstanding: serial,
            operation: Operation::Close,
        })
    }

    /// How many registers the session holds once its tail is applied, at most.
    fn bound_soon(&self, server: &Server, session: SessionId) -> u64 {
        let tail = self.tails.get(&session).into_iter().flatten();
        let binds = |id: &&LogId| match server.log.get(**id).map(|entry| &entry.payload) {
            Some(Payload::Command(it)) => matches!(it.operation, Operation::Bind(_)),
            _ => false,
        };
        (server.state.bound_by(session) + tail.filter(binds).count()) as u64
    }

    /// How much it may write to apply `payload`, if that ends a session.
    pub(super) fn end_writes(&self, server: &Server, payload: &Payload) -> Option<u64> {
        let session = match payload {
            Payload::Expire { session } => *session,
            Payload::Command(it) if it.operation == Operation::Close => it.session,
            _ => return None,
        };
        if self.ending.contains(&session) {
            // Behind the session's end there is nothing left to write.
            return Some(1);
        }
        let most = MAX_BOUND as u64;
        let writes = 1 + self.bound_soon(server, session).min(most);
        Some(writes + self.end_bytes(server, session) / BYTES_OF_A_WRITE)
    }

    /// The bytes of the values that the session's end replaces, and of those that
    /// replace them, at most: a server looks at each of them once.
    fn end_bytes(&self, server: &Server, session: SessionId) -> u64 {
        let (state, registers) = (&server.state, server.state.registers());
        let of_key = |key: &Key| {
            let held = registers.read(key).map_or(0, |it| it.value.len());
            held + state.on_expiry_value(key).map_or(0, |last| last.len())
        };
        let tail = self.tails.get(&session).into_iter().flatten();
        let of_entry = |id: &LogId| match server.log.get(*id).map(|entry| &entry.payload) {
            Some(Payload::Command(Command {
                operation: Operation::Bind(bind),
                ..
            })) => bind.write.value.len() + bind.last.len(),
            _ => 0,
        };
        let bound: usize = state.bound_to(session).map(of_key).sum();
        let soon: usize = tail.map(of_entry).sum();
        (bound + soon) as u64
    }

    /// `entry` was appended for `token`.
    pub(super) fn appended(&mut self, server: &Server, entry: &Entry, token: Option<u64>) {
        self.uncommitted += entry.weight();
        if let Some(writes) = self.end_writes(server, &entry.payload) {
            self.session_ends.appended(entry.id, writes);
        }
        if let Some(token) = token {
            self.waiters.push_back((entry.id, token));
        }
        if let Payload::OpenOwned { owner, .. } = &entry.payload {
            *self.opening.entry(owner.opener).or_default() += 1;
            self.openings += 1;
        }
        if let Payload::Command(command) = &entry.payload
            && server.state.sessions().get(command.session).is_some()
        {
            if self.ending.contains(&command.session) {
                return;
            }
            if command.operation == Operation::Close {
                self.ending.insert(command.session);
            }
            let tail = self.tails.entry(command.session).or_default();
            tail.push_back(entry.id);
        }
    }

    /// `token` waits for entry `id` too.
    pub(super) fn attach(&mut self, id: LogId, token: u64) {
        let at = self.waiters.partition_point(|(waited, _)| *waited <= id);
        self.waiters.insert(at, (id, token));
    }

    /// `entry` was applied: says whom to tell.
    pub(super) fn applied(&mut self, entry: &Entry, mut emit: impl FnMut(u64)) {
        // Entries of earlier terms were never counted.
        self.uncommitted = self.uncommitted.saturating_sub(entry.weight());
        self.session_ends.applied(entry.id);
        if let Payload::Command(command) = &entry.payload
            && command.operation == Operation::Close
        {
            self.ending.remove(&command.session);
        }
        if let Payload::Command(command) = &entry.payload
            && let Some(tail) = self.tails.get_mut(&command.session)
        {
            tail.pop_front_if(|id| *id <= entry.id);
            if tail.is_empty() {
                self.tails.remove(&command.session);
            }
        }
        if let Payload::OpenOwned { owner, .. } = &entry.payload
            && let Some(count) = self.opening.get_mut(&owner.opener)
        {
            // Those of earlier terms were never counted, and are applied before
            // the first of this one.
            *count -= 1;
            self.openings -= 1;
            if *count == 0 {
                self.opening.remove(&owner.opener);
            }
        }
        while let Some((_, token)) = self.waiters.pop_front_if(|(id, _)| *id <= entry.id) {
            emit(token);
        }
    }

    /// Everybody who still waits, and those who had not been let in.
    pub(super) fn abandon(self) -> (impl Iterator<Item = u64>, impl Iterator<Item = u64>) {
        let waiting = self.waiters.into_iter().map(|(_, token)| token);
        let backlog = self.backlog.into_iter().map(|(token, _)| token);
        (waiting, self.queue.into_tokens().chain(backlog))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn append(bytes: usize) -> ClientRequest {
        let command = Command {
            session: 1,
            serial: 1,
            outstanding: 1,
            operation: Operation::Append(alloc::vec![0; bytes].into()),
        };
        ClientRequest::Command(command, OwnershipProof::NONE)
    }

    #[test]
    fn the_backlog_has_limits_and_keeps_its_order() {
        let config = Config {
            backlog_requests: 3,
            uncommitted_bytes: 100,
            ..Config::default()
        };
        let mut pending_proposals = PendingProposals::default();
        assert!(pending_proposals.push_backlog(&config, 1, append(60)));
        assert!(
            !pending_proposals.push_backlog(&config, 2, append(41)),
            "too much"
        );
        assert!(pending_proposals.push_backlog(&config, 3, append(40)));
        assert!(pending_proposals.push_backlog(&config, 4, append(0)));
        assert!(
            !pending_proposals.push_backlog(&config, 5, append(0)),
            "too many"
        );
        let tokens: Vec<_> = pending_proposals
            .take_backlog()
            .into_iter()
            .map(|(token, _)| token)
            .collect();
        assert_eq!(tokens, [1, 3, 4]);
        // A request that is alone may come in, however large it is.
        assert!(pending_proposals.push_backlog(&config, 6, append(101)));
        assert!(
            !pending_proposals.push_backlog(&config, 7, append(1)),
            "too much"
        );
    }
}
