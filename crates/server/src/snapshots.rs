//! Snapshots: each is encoded, or decoded, and its file written on a thread of
//! its own, and callers wait until theirs is on the disk.
//!
//! To encode a million registers takes longer than an election timeout may be,
//! and so does making a state of what a leader has sent, and giving the memory
//! of a state back. The thread of the event loop keeps a leadership alive, or
//! follows one, and does none of this.
//!
//! A thread that panics would be waited for without end, while the log grows
//! and is never compacted. So its panic ends the server, as that of any of its
//! threads does. One that takes unusually long is told of.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tenure_alpo::{Discarded, LogId, Node, ReceivedSnapshot, Snapshot, StateCopy};
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::sync::oneshot;

use super::inbox::{Event, Inbox, SnapshotWork as Work};
use super::wal::SnapshotWriter;

/// Bytes that are given back at once; more are left to a thread.
const FREED_AT_ONCE: usize = 1024 * 1024;

/// A thread that takes longer is told of, again after twice as long, and so on.
/// For the largest snapshot there may be, 4 GiB, this is several times what a
/// slow processor needs.
const UNUSUALLY_LONG: Duration = Duration::from_secs(60);

/// What lasts until it is done.
const fn meanwhile(work: Work) -> &'static str {
    match work {
        Work::Encode => "until it is done the log grows, in memory and on the disk",
        Work::Decode => "until it is done this server's state stays behind",
    }
}

/// A thread at work.
#[derive(Debug)]
struct AtWork {
    work: Work,
    since: Instant,
    /// When to tell that it takes long.
    told_at: Instant,
}

/// The threads at work, and those who wait for a snapshot.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Where the threads write what they have made.
    files: Option<SnapshotWriter>,
    at_work: Vec<AtWork>,
    /// For one that goes up to this entry or further, and is not encoded yet.
    unencoded: Vec<(LogId, oneshot::Sender<LogId>)>,
    /// For one up to this entry, which is in this batch or in an earlier one.
    unwritten: VecDeque<(u64, LogId, oneshot::Sender<LogId>)>,
}

impl Snapshots {
    /// None yet, of a log that has its snapshots written by `files`.
    pub(super) fn new(files: Option<SnapshotWriter>) -> Self {
        Self {
            files,
            ..Self::default()
        }
    }

    /// Has a snapshot encoded and put into the inbox.
    pub(super) fn encode(&mut self, copy: Box<StateCopy>, inbox: &Arc<Inbox>) {
        self.begin(Work::Encode, inbox, move |files| {
            let snapshot = copy.encode();
            prepare(files, Some(&snapshot));
            Event::SnapshotEncoded(snapshot)
        });
    }

    /// Has a state made of a snapshot, and put into the inbox.
    pub(super) fn decode(&mut self, received: ReceivedSnapshot, inbox: &Arc<Inbox>) {
        self.begin(Work::Decode, inbox, move |files| {
            let decoded = received.clone().decode();
            prepare(files, decoded.snapshot());
            Event::SnapshotDecoded(Box::new(decoded))
        });
    }

    fn begin(
        &mut self,
        work: Work,
        inbox: &Arc<Inbox>,
        make: impl Fn(Option<&SnapshotWriter>) -> Event + Clone + Send + 'static,
    ) {
        let since = clock::boot();
        self.at_work.push(AtWork {
            work,
            since,
            told_at: since.after(UNUSUALLY_LONG),
        });
        let (own, into, files) = (make.clone(), Arc::clone(inbox), self.files.clone());
        if let Err(error) = spawn(move || put_result(work, &into, || own(files.as_ref()))) {
            // Late is better than never. The log writes the file.
            tracing::warn!("no thread that {work}: {error}; other work waits for it");
            put_result(work, inbox, || make(None));
        }
    }

    /// A thread has done this.
    pub(super) fn done(&mut self, work: Work) {
        self.at_work.retain(|it| it.work != work);
    }

    /// When [`warn`](Self::warn) has something to tell.
    pub(super) fn warns_at(&self) -> Option<Instant> {
        self.at_work.iter().map(|it| it.told_at).min()
    }

    /// Tells which threads take unusually long.
    pub(super) fn warn(&mut self, now: Instant) {
        for (work, took) in self.late(now) {
            let meanwhile = meanwhile(work);
            tracing::warn!(
                "the thread that {work} has not come back for {} s: {meanwhile}",
                took.as_secs()
            );
        }
    }

    /// Those that are to be told of now, and how long they have been at work.
    fn late(&mut self, now: Instant) -> Vec<(Work, Duration)> {
        let late = self.at_work.iter_mut().filter(|it| it.told_at <= now);
        let late = late.map(|it| {
            let took = now.since(it.since);
            it.told_at = now.after(took);
            (it.work, took)
        });
        late.collect()
    }

    /// A caller wants a snapshot of everything that `node` has applied. The node
    /// knows it already. `submitted` is the last batch that went to the disk.
    pub(super) fn wait(&mut self, node: &Node, submitted: u64, caller: oneshot::Sender<LogId>) {
        self.unencoded.push((node.state().applied().id, caller));
        self.encoded(node, submitted);
    }

    /// `node` may have been given one that is waited for, or may need none: the
    /// newest covers everything. That one may still be on its way.
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

    /// Gives back the memory of what the machine does not need any more, or its
    /// part in what the disk or a peer still has.
    pub(super) fn discard(what: Discarded) {
        let is_small = match &what {
            Discarded::State(_) | Discarded::Entries(_) => false,
            Discarded::Snapshot(snapshot) => snapshot.bytes.len() <= FREED_AT_ONCE,
        };
        if !is_small {
            // Without a thread it is given back here: the closure is dropped.
            let _ = spawn(move || drop(what));
        }
    }
}

/// The disk may take long, and the log's thread has other things to write.
fn prepare(files: Option<&SnapshotWriter>, snapshot: Option<&Snapshot>) {
    if let (Some(files), Some(snapshot)) = (files, snapshot) {
        files.prepare(snapshot);
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("tenure-snapshot".into());
    thread.spawn(work).map(drop)
}

/// Puts what is made into the inbox, or that making it panicked.
fn put_result(work: Work, inbox: &Inbox, make: impl FnOnce() -> Event) {
    let _panics = Panics { work, inbox };
    inbox.put(make());
}

struct Panics<'a> {
    work: Work,
    inbox: &'a Inbox,
}

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.inbox.put(Event::SnapshotPanicked(self.work));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_takes_long_is_told_of_again_after_twice_as_long() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let mut snapshots = Snapshots::default();
        assert_eq!(snapshots.warns_at(), None);
        snapshots.at_work.push(AtWork {
            work: Work::Encode,
            since: at(10),
            told_at: at(10).after(UNUSUALLY_LONG),
        });
        let mut told = Vec::new();
        for second in 10..500 {
            let due = snapshots.warns_at().is_some_and(|due| due <= at(second));
            let late = !snapshots.late(at(second)).is_empty();
            assert_eq!(due, late, "{second}");
            told.extend(late.then_some(second));
        }
        assert_eq!(told, [70, 130, 250, 490]);
        snapshots.done(Work::Decode);
        assert!(snapshots.warns_at().is_some());
        snapshots.done(Work::Encode);
        assert_eq!(snapshots.warns_at(), None);
    }
}
