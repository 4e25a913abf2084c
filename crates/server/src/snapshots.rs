//! Snapshots: each is encoded on a thread of its own, and callers wait until
//! theirs is on the disk.
//!
//! To encode a million registers takes longer than an election timeout may be,
//! and so does giving their memory back. The thread of the event loop keeps a
//! leadership alive, and does neither.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_alpo::{LogId, Node, Snapshot, StateCopy};
use tokio::sync::oneshot;

use super::inbox::{Event, Inbox};

/// Bytes that are given back at once; more are left to a thread.
const FREED_AT_ONCE: usize = 1024 * 1024;

/// Those who wait for a snapshot.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// For one that goes up to this entry or further, and is being encoded.
    unencoded: Vec<(LogId, oneshot::Sender<LogId>)>,
    /// For one up to this entry, which is in this batch or in an earlier one.
    unwritten: VecDeque<(u64, LogId, oneshot::Sender<LogId>)>,
}

impl Snapshots {
    /// Has a snapshot encoded and put into the inbox.
    pub(super) fn encode(copy: Box<StateCopy>, inbox: &Arc<Inbox>) {
        let (own, into) = (copy.clone(), Arc::clone(inbox));
        let work = move || into.put(Event::SnapshotEncoded(own.encode()));
        if let Err(error) = spawn(work) {
            // Late is better than never: the log grows until it is done.
            tracing::warn!("no thread for a snapshot: {error}; other work waits for it");
            inbox.put(Event::SnapshotEncoded(copy.encode()));
        }
    }

    /// Somebody wants one of everything that `node` has applied, which has
    /// been told so. `submitted` is the last batch that went to the disk.
    pub(super) fn wait(&mut self, node: &Node, submitted: u64, caller: oneshot::Sender<LogId>) {
        if node.encodes_snapshot() {
            self.unencoded.push((node.state().applied().id, caller));
        } else {
            // The newest covers everything, or its disk takes no other one
            // now. It may still be on its way.
            let upto = node.snapshot().map_or(0, |it| it.last.id);
            self.unwritten.push_back((submitted, upto, caller));
        }
    }

    /// `node` was given one, and what it asked for then was done.
    pub(super) fn encoded(&mut self, node: &Node, submitted: u64) {
        let upto = node.snapshot().map_or(0, |it| it.last.id);
        let goes_on = node.encodes_snapshot();
        let done = |(wanted, _): &mut (LogId, _)| *wanted <= upto || !goes_on;
        for (_, caller) in self.unencoded.extract_if(.., done) {
            self.unwritten.push_back((submitted, upto, caller));
        }
    }

    /// Batches up to this one are on the disk.
    pub(super) fn written(&mut self, durable: u64) {
        while let Some(told) = self.unwritten.pop_front_if(|(it, ..)| *it <= durable) {
            let (_, upto, caller) = told;
            // The caller may have gone.
            let _ = caller.send(upto);
        }
    }

    /// Gives back the memory of one that another has replaced, if nobody else
    /// has it: the disk or a peer.
    pub(super) fn free(old: Option<Snapshot>) {
        if let Some(old) = old.filter(|it| it.bytes.len() > FREED_AT_ONCE) {
            // Without a thread it is given back here: the closure is dropped.
            let _ = spawn(move || drop(old));
        }
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("tenure-snapshot".into());
    thread.spawn(work).map(drop)
}
