//! A snapshot that comes from the leader (`InstallSnapshot` of Raft), from its
//! first chunk until it is in use.
//!
//! To decode a million registers takes longer than an election timeout may be,
//! and so does giving back the memory of the state that they replace. So both
//! are done elsewhere ([`Output::DecodeSnapshot`], [`Output::Discard`]), while
//! this server goes on: it answers heartbeats, takes entries, votes, and may
//! even stand. What becomes of a snapshot is decided when its state is there:
//!
//! * *The log went past it meanwhile*: everything that is in it is committed
//!   here already. It is dropped.
//! * *This server does not follow any more.* A candidate has told others where
//!   its log ends, and they vote by that; a leader's log loses nothing (I5). It
//!   is dropped; whichever server leads next sends what is needed.
//! * *The term changed*, and this server follows. It is taken over all the same:
//!   what is in it was committed, so each later leader has it in its log. If
//!   this log goes on from its last entry the rest stays. If not, the log has
//!   another entry there, or ends before: from there on nothing of it was
//!   committed or ever can be, and what is before is in the snapshot. So the
//!   server loses no entry that it acknowledged to the leader of this term, and
//!   none on which its vote depends.
//! * *Another snapshot came meanwhile.* It is gathered as the first was, and
//!   its state is made after that, if it is needed by then. So there are at
//!   most the bytes of two of them.
//!
//! As long as the state is not there, the sender is told that nothing is
//! missing but that the snapshot is not in use. It asks again with each
//! heartbeat, by a chunk without bytes. After a restart nothing of all this is
//! left, and the leader begins anew. A candidate keeps what has arrived, so that
//! one silent election timeout does not begin the transfer anew. A leader drops
//! it.
//!
//! [`Output::DecodeSnapshot`]: super::Output::DecodeSnapshot
//! [`Output::Discard`]: super::Output::Discard

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::super::bug::Bug;
use super::super::durable::Snapshot;
use super::super::ids::Position;
use super::super::log::Log;
use super::super::message::Reply;
use super::super::state::{DecodedSnapshot, ReceivedSnapshot, State};
use super::server::{Decoding, Incoming, RequestContext, Server};
use super::types::{Discarded, Event, Output};

/// The largest snapshot that is taken over, in bytes. A larger one is not
/// answered.
pub const MAX_SNAPSHOT_BYTES: u64 = 4 * 1024 * 1024 * 1024;

impl Incoming {
    fn whole(self) -> Snapshot {
        Snapshot {
            last: self.last,
            bytes: Arc::new(self.bytes),
        }
    }
}

/// A part of a snapshot.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    /// The last entry of the snapshot.
    pub(super) last: Position,
    /// Where the bytes begin.
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
    /// How long the whole of it is.
    pub(super) total: u64,
}

/// Takes a chunk; says which byte comes next, or `None` when all of it is in
/// use.
pub(super) fn take_chunk(
    server: &mut Server,
    request: (&RequestContext, u64),
    chunk: &Chunk<'_>,
) -> Option<u64> {
    let Chunk {
        last,
        offset,
        bytes,
        total,
    } = *chunk;
    let is_needed = last.id > server.commit;
    let goes_on = |it: &Incoming| is_needed && it.last == last && it.total == total;
    if !server.incoming.as_ref().is_some_and(goes_on) {
        server.give_up_incoming();
    }
    if !is_needed {
        return None;
    }
    if total > MAX_SNAPSHOT_BYTES {
        return Some(0);
    }
    if server.decoding.as_ref().is_some_and(|it| it.last == last) {
        return Some(total);
    }
    let mut incoming = server.incoming.take().unwrap_or_else(|| Incoming {
        last,
        total,
        bytes: Vec::new(),
    });
    let have = incoming.bytes.len() as u64;
    if offset == have && have + bytes.len() as u64 <= total {
        incoming.bytes.extend_from_slice(bytes);
    }
    let have = incoming.bytes.len() as u64;
    if have < total || server.decoding.is_some() {
        server.incoming = Some(incoming);
    } else {
        server.decode_snapshot(incoming, request);
    }
    Some(have)
}

impl Server {
    /// What has arrived of a snapshot is of no use.
    pub(super) fn give_up_incoming(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            self.discard(Discarded::Snapshot(incoming.whole()));
        }
    }

    /// Has the state made of a snapshot that is there as a whole.
    fn decode_snapshot(&mut self, incoming: Incoming, request: (&RequestContext, u64)) {
        let (last, request) = (incoming.last, (*request.0, request.1));
        self.decoding = Some(Decoding { last, request });
        let received = ReceivedSnapshot::new(incoming.whole(), self.config.checksum);
        self.outbox.push_back(Output::DecodeSnapshot(received));
    }

    /// The state of a snapshot is there, or it is known that there is none in
    /// it; see the head of this file. `follows`: this server is a follower.
    ///
    /// A snapshot that was damaged on its way, or that is not what it claims to
    /// be, is asked for again from its first byte when its sender asks again.
    pub(super) fn snapshot_decoded(&mut self, decoded: DecodedSnapshot, follows: bool) {
        let last = decoded.last();
        let Some(decoding) = self.decoding.take_if(|it| it.last == last) else {
            return;
        };
        let DecodedSnapshot { snapshot, state } = decoded;
        let Ok(state) = state else {
            return self.discard(Discarded::Snapshot(snapshot));
        };
        let overtaken = last.id <= self.commit && !self.planted(Bug::InstallOvertaken);
        if overtaken || !follows {
            self.discard(Discarded::Snapshot(snapshot));
            return self.discard(Discarded::State(Box::new((*state, Log::default()))));
        }
        if self.halt_if_too_old_for_state(&state) || self.halt_if_replaced_in(&state) {
            return;
        }
        let total = snapshot.bytes.len() as u64;
        self.take_over(*state, snapshot);
        let (context, round) = decoding.request;
        if context.term == self.term() {
            let reply = Reply::Installed {
                last,
                offset: total,
                done: true,
                round,
            };
            self.reply_when_durable(&context, reply);
        }
    }

    /// Puts a snapshot in the place of everything up to its last entry.
    fn take_over(&mut self, state: State, snapshot: Snapshot) {
        let last = snapshot.last;
        let end = self.log.last().id;
        // If the log goes on from the snapshot's last entry, the rest of it is
        // still good and perhaps already promised; otherwise all of it goes.
        let reset = !self.log.has(last);
        let mut log = Log::default();
        if reset {
            log = core::mem::replace(&mut self.log, Log::after(last));
            self.members.restart(state.members().clone(), last.id);
        } else {
            self.compact_upto(last.id);
            self.members.committed(last.id);
        }
        self.commit = last.id;
        self.verified = self.verified.max(last.id);
        self.log_time = self.log_time.max(state.time());
        let state = core::mem::replace(&mut self.state, state);
        self.discard(Discarded::State(Box::new((state, log))));
        self.replace_snapshot(snapshot.clone());
        self.schedule.begun();
        self.disk.stage_snapshot(snapshot, reset, end, self.now);
        self.emit(Event::Installed { upto: last });
    }

    /// The newest snapshot is this one.
    pub(super) fn replace_snapshot(&mut self, snapshot: Snapshot) {
        if let Some(old) = self.snapshot.replace(snapshot) {
            self.discard(Discarded::Snapshot(old));
        }
    }

    pub(super) fn discard(&mut self, what: Discarded) {
        self.outbox.push_back(Output::Discard(what));
    }
}
