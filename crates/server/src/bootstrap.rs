//! A blank server on its way into a cluster.
//!
//! It greets everybody it was told of and hears who they are, until all are
//! blank too (then they found a cluster), or one of them has one that it belongs
//! to. What it may conclude from which answer is judged by
//! [`Bootstrap`](tenure_alpo::Bootstrap).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_alpo::{
    Answer, Bootstrap, Hello, Identity, JoinError, LogId, MemberDisks, Membership, Refusal,
    ServerId,
};
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::sync::oneshot;

use super::data::{BlankDirectory, OpenLog};
use super::ended::Ended;
use super::inbox::{Event, Inbox, TimedAnswer};
use super::peers::Peers;
use super::refusals::Refusals;
use super::shared::Shared;
use crate::wal::WalError;

/// After this long without an answer of the disk it is said.
const SLOW: Duration = Duration::from_secs(2);

/// Waits until this server is part of a cluster, and gives its log, which
/// knows no members if it has to learn them from its leader.
///
/// The disk may take for ever to write a promise or a log. So a thread of its
/// own writes them, and meanwhile this server answers, and stops when it is
/// told to. Nothing is sent before it is durable.
pub(super) async fn found(
    bootstrap: Bootstrap,
    peers: &mut Peers,
    shared: &Shared,
    inbox: &Arc<Inbox>,
    blank_directory: BlankDirectory,
) -> Result<OpenLog, Ended> {
    let wanted = bootstrap.missing().into_iter();
    let wanted = Membership::bootstrapped(wanted.map(|id| (id, bootstrap.hello().storage)));
    peers.greeted(&wanted);
    let mut blank_server = BlankServer {
        bootstrap,
        peers,
        shared,
        wanted,
        join_errors: JoinErrors::default(),
        disk: Disk::Idle(blank_directory),
    };
    // No other server may be there to ask.
    blank_server
        .join_errors
        .tell(&blank_server.bootstrap, shared);
    // Alone it needs nobody else.
    if let Some(bootstrapped) = blank_server.bootstrap.complete() {
        blank_server.fill(bootstrapped)?;
    }
    let mut events = Vec::new();
    loop {
        tokio::select! {
            () = inbox.more() => {
                inbox.take(&mut events);
                for event in events.drain(..) {
                    blank_server.handle(event)?;
                }
            }
            written = blank_server.disk.written() => match written? {
                WriteDone::Promise(table, blank_directory) => blank_server.promised(table, blank_directory)?,
                WriteDone::OpenLog(log) => return Ok(*log),
            }
        }
    }
}

/// A blank server, and all that it needs to become part of a cluster.
struct BlankServer<'a> {
    bootstrap: Bootstrap,
    peers: &'a mut Peers,
    shared: &'a Shared,
    /// Whom it looks for.
    wanted: Membership,
    join_errors: JoinErrors,
    disk: Disk,
}

impl BlankServer<'_> {
    fn handle(&mut self, event: Event) -> Result<(), Ended> {
        match event {
            Event::Greeted { greeting, dialled } => {
                self.shared.local_server().meet(&greeting, dialled, 0);
                self.peers.greeted(&self.wanted);
                self.hear(&greeting.hello)?;
            }
            Event::Connected(peer_connection) => {
                self.peers.connected(peer_connection, &self.wanted);
            }
            Event::Closed(peer_connection, _) => {
                self.peers.closed(peer_connection);
            }
            Event::ClientRequest(_, _, reply) => {
                let answer = Answer::Refused(Refusal::NotLeader { leader: None });
                reply.send(TimedAnswer::from(answer));
            }
            Event::Inspection(inspect) => inspect(None),
            Event::Stop => return Err(Ended::Stopped),
            // A leader that has admitted it says so again when it is part of
            // the cluster.
            Event::Received(..) | Event::Persisted(_) => {}
            // A blank server has nothing to take one of, and is sent none.
            Event::SnapshotEncoded(_) | Event::SnapshotDecoded(_) | Event::SnapshotPanicked(_) => {}
            // A blank server has promised nothing.
            Event::SetBack(_) => {}
            Event::Refused { by, why } => {
                if self.join_errors.refusals.hear(by, why) {
                    self.join_errors.tell(&self.bootstrap, self.shared);
                }
            }
            // The caller sees that no answer will come.
            Event::Snapshot(reply_to) => drop(reply_to),
            Event::DiskFailed(error) => return Err(Ended::Disk(error)),
        }
        Ok(())
    }

    /// What another server says. While the disk writes, this server has made
    /// up its mind: after a promise it greets all others again, and hears then
    /// what it has missed.
    fn hear(&mut self, hello: &Hello) -> Result<(), Ended> {
        if !matches!(self.disk, Disk::Idle(_)) {
            return Ok(());
        }
        let bootstrapped = hear(
            &mut self.bootstrap,
            hello,
            &mut self.join_errors,
            self.shared,
        )?;
        if let Some(bootstrapped) = bootstrapped {
            return self.fill(bootstrapped);
        }
        match self.bootstrap.due() {
            Some(table) => self.disk.begin(|blank_directory| {
                blank_directory.promise(&table)?;
                Ok(WriteDone::Promise(table, blank_directory))
            }),
            None => Ok(()),
        }
    }

    /// A promise is durable: others may hear of it.
    fn promised(
        &mut self,
        table: MemberDisks,
        blank_directory: BlankDirectory,
    ) -> Result<(), Ended> {
        self.disk = Disk::Idle(blank_directory);
        let bootstrapped = self.bootstrap.promise(table);
        self.shared.announce(self.bootstrap.hello());
        self.peers.start_again(&self.wanted);
        bootstrapped.map_or(Ok(()), |bootstrapped| self.fill(bootstrapped))
    }

    /// Makes the log of a server that is part of a cluster now.
    fn fill(&mut self, (identity, members): (Identity, Membership)) -> Result<(), Ended> {
        let own = self.bootstrap.hello().server;
        if let Some(text) = differ(&self.wanted, own, &members) {
            tracing::warn!("{text}");
        }
        self.disk.begin(move |blank_directory| {
            let log = blank_directory.fill(identity, &members)?;
            Ok(WriteDone::OpenLog(Box::new(log)))
        })
    }
}

/// What the disk has written.
enum WriteDone {
    Promise(MemberDisks, BlankDirectory),
    OpenLog(Box<OpenLog>),
}

/// The directory of a blank server, or the thread that writes in it. The
/// directory stays locked until that thread is done.
enum Disk {
    Idle(BlankDirectory),
    Writing {
        done: oneshot::Receiver<Result<WriteDone, WalError>>,
        path: PathBuf,
        /// When to say that it takes long, if it was not said yet.
        slow: Option<Instant>,
    },
    /// The directory has become a log's.
    Gone,
}

impl Disk {
    /// Writes, on a thread of its own. It must be idle.
    fn begin(
        &mut self,
        write: impl FnOnce(BlankDirectory) -> Result<WriteDone, WalError> + Send + 'static,
    ) -> Result<(), Ended> {
        let Self::Idle(blank_directory) = std::mem::replace(self, Self::Gone) else {
            return Err(Ended::Fault("it wrote twice at once; this is a bug".into()));
        };
        let path = blank_directory.path().to_owned();
        let (tell, done) = oneshot::channel();
        let thread = std::thread::Builder::new().name("tenure-founding".into());
        let span = tracing::Span::current();
        let begun = thread.spawn(move || {
            let _speaks = span.entered();
            // A server that was stopped has no caller that waits.
            let _ = tell.send(write(blank_directory));
        });
        begun.map_err(|error| Ended::Fault(format!("no thread to write with: {error}")))?;
        let slow = Some(clock::boot().after(SLOW));
        *self = Self::Writing { done, path, slow };
        Ok(())
    }

    /// Waits until what was begun is written, and says so if that takes long.
    /// May be dropped and called again.
    async fn written(&mut self) -> Result<WriteDone, Ended> {
        let Self::Writing { done, path, slow } = self else {
            return std::future::pending().await;
        };
        let done = tokio::select! {
            done = &mut *done => done,
            () = clock::until(*slow) => {
                *slow = None;
                tracing::warn!(
                    "the disk of {} has not written the files of a new cluster for {SLOW:?}, and \
                     this server waits for it",
                    path.display()
                );
                done.await
            }
        };
        *self = Self::Gone;
        let panicked = |_| Ended::Fault("the thread that writes panicked; this is a bug".into());
        Ok(done.map_err(panicked)??)
    }
}

/// What to say if the cluster was not founded by the servers of `--peers`:
/// `others` and this server, `own`. That happens if servers were started with
/// different `--peers`, since each waits for those that it was told of. None
/// among the `founders` means that they are not known yet.
fn differ(others: &Membership, own: ServerId, founders: &Membership) -> Option<String> {
    let ids = |members: &Membership| -> BTreeSet<_> { members.iter().map(|(id, _)| id).collect() };
    let (mut expected, found) = (ids(others), ids(founders));
    expected.insert(own);
    if found.is_empty() || found == expected {
        return None;
    }
    let mut text = format!(
        "expected that the servers of --peers found the cluster ({}), found that {} did, since \
         not all were started with the same --peers",
        names(expected.iter().copied()),
        names(found.iter().copied()),
    );
    let missing: Vec<_> = expected.difference(&found).copied().collect();
    if !missing.is_empty() {
        let missing = names(missing.into_iter());
        let _ = write!(
            text,
            "; no member: {missing}. To take it in, start it, run the `tenure member add` that it \
             prints, and then `tenure member promote`"
        );
    }
    let more: Vec<_> = found.difference(&expected).copied().collect();
    if !more.is_empty() {
        let more = names(more.into_iter());
        let _ = write!(
            text,
            "; a member that --peers does not name here: {more}. Correct --peers, or, if it does \
             not belong, `tenure member remove` it"
        );
    }
    Some(text)
}

/// What to say if `--peers` names servers that are no members by the log that
/// a server starts with, which ends with entry `end`. A cluster of one whose
/// server is started with more `--peers` is still a cluster of one: flags
/// add no members. Fewer are no fault: they are where to begin looking. None
/// among the `members` means that they are not known yet.
pub(super) fn beyond(
    peers: impl Iterator<Item = ServerId>,
    members: &Membership,
    (data, end): (&Path, LogId),
) -> Option<String> {
    let more: Vec<_> = peers.filter(|id| members.get(*id).is_none()).collect();
    if more.is_empty() || members.is_empty() {
        return None;
    }
    let found = names(members.iter().map(|(id, _)| id));
    let add = |id: &ServerId| {
        let id = id.get();
        format!("`tenure member add {id} --storage …` and `tenure member promote {id}`")
    };
    let adds: Vec<_> = more.iter().map(add).collect();
    Some(format!(
        "expected the servers of --peers to be members, found that {} {}: the cluster in {} is of \
         {found}, as of entry {end} of its log, and --peers admits no server. Unless `tenure \
         member list` shows more by now, or --peers is to be corrected, start each with an empty \
         --data and run what it prints: {}",
        names(more.iter().copied()),
        if more.len() == 1 {
            "is none"
        } else {
            "are none"
        },
        data.display(),
        adds.join("; "),
    ))
}

/// Servers as a list for people.
fn names(servers: impl Iterator<Item = ServerId>) -> String {
    let names: Vec<_> = servers.map(|id| id.get().to_string()).collect();
    match &names[..] {
        [one] => format!("server {one}"),
        _ => format!("servers {}", names.join(", ")),
    }
}

/// Why this server is not part of a cluster yet.
#[derive(Default)]
struct JoinErrors {
    /// What is wrong with whom, until it says something else; and whether this
    /// server's number is, or was, another's.
    strangers: BTreeMap<ServerId, (bool, String)>,
    refusals: Refusals,
}

impl JoinErrors {
    /// Says to people what this server waits for.
    fn tell(&self, bootstrap: &Bootstrap, shared: &Shared) {
        let strangers = self.strangers.values();
        let mut texts: Vec<_> = strangers.map(|(_, text)| text.clone()).collect();
        // Several members say the same of a server that is none.
        texts.dedup();
        let refusals = self.refusals.text(&Membership::default());
        let is_twin = self.strangers.values().any(|(is_twin, _)| *is_twin);
        let excluded = is_twin || refusals.is_some();
        texts.extend(refusals);
        let waiting = if texts.is_empty() {
            let missing = bootstrap.missing();
            if missing.is_empty() {
                "a new cluster waits until its servers have agreed on each other's disks".to_owned()
            } else {
                let missing = names(missing.into_iter());
                if bootstrap.hello().known.is_empty() {
                    format!("a new cluster waits for {missing}")
                } else {
                    // Flags do not say any more who the founders are.
                    format!(
                        "a new cluster waits for {missing}, with which this server has agreed to \
                         found it; --peers must say where they are"
                    )
                }
            }
        } else {
            texts.join("; ")
        };
        shared.health_status.send_if_modified(|health_status| {
            let news = health_status.waiting != waiting;
            if news && is_twin {
                tracing::warn!("{waiting}");
            } else if news && !excluded {
                // Who does not let this server in was said where it dials.
                tracing::info!("{waiting}");
            }
            (health_status.waiting, health_status.excluded) = (waiting, excluded);
            news
        });
    }
}

fn hear(
    bootstrap: &mut Bootstrap,
    hello: &Hello,
    join_errors: &mut JoinErrors,
    shared: &Shared,
) -> Result<Option<(Identity, Membership)>, Ended> {
    let strangers = &mut join_errors.strangers;
    match bootstrap.heard(hello) {
        Ok(Some(bootstrapped)) => return Ok(Some(bootstrapped)),
        Ok(None) => drop(strangers.remove(&hello.server)),
        // An operator may correct that while this server waits.
        Err(
            stranger @ (JoinError::NotAMember { .. }
            | JoinError::NotAPeer { .. }
            | JoinError::OtherPeers { .. }
            | JoinError::Promised { .. }
            // It has promised nothing and takes part in nothing: there is no
            // need to end, and the commands that mend it find it waiting.
            | JoinError::Replaced { .. }
            | JoinError::SameNumber { .. }),
        ) => {
            let is_twin = matches!(
                stranger,
                JoinError::Replaced { .. }
                    | JoinError::SameNumber { .. }
                    | JoinError::Promised { .. }
            );
            strangers.insert(hello.server, (is_twin, stranger.to_string()));
        }
        Err(stranger) => return Err(Ended::JoinError(stranger)),
    }
    join_errors.tell(bootstrap, shared);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use tenure_alpo::StorageId;

    use super::*;

    fn id(number: u64) -> ServerId {
        ServerId::new(number).expect("a number")
    }

    fn bootstrapped(numbers: &[u64]) -> Membership {
        let storage = StorageId::from_u128(7);
        Membership::bootstrapped(numbers.iter().map(|number| (id(*number), storage)))
    }

    #[test]
    fn peers_that_are_no_members_are_named_with_what_takes_them_in() {
        let beyond = |peers: &[u64], members: &[u64]| {
            let peers = peers.iter().copied().map(id);
            beyond(peers, &bootstrapped(members), (Path::new("/data"), 41))
        };
        assert_eq!(beyond(&[1, 2, 3], &[1, 2, 3]), None);
        // Where to begin looking.
        assert_eq!(beyond(&[1, 3], &[1, 2, 3]), None);
        // They will be learnt from the log.
        assert_eq!(beyond(&[1, 2, 3], &[]), None);
        let said = beyond(&[1, 2, 3], &[1]).expect("it is said");
        for part in [
            "found that servers 2, 3 are none",
            "the cluster in /data is of server 1, as of entry 41",
            "tenure member add 2 --storage",
            "tenure member promote 3",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn other_founders_than_peers_are_named_with_what_to_do() {
        let differ = |others: &[u64], found: &[u64]| {
            differ(&bootstrapped(others), id(2), &bootstrapped(found))
        };
        assert_eq!(differ(&[1, 3], &[1, 2, 3]), None);
        // They will be learnt from the log.
        assert_eq!(differ(&[1, 3], &[]), None);

        let fewer = differ(&[1, 3], &[1, 2]).expect("it is said");
        for part in [
            "(servers 1, 2, 3)",
            "found that servers 1, 2 did",
            "no member: server 3",
            "tenure member add",
        ] {
            assert!(fewer.contains(part), "{part}: {fewer}");
        }
        assert!(!fewer.contains("does not name"), "{fewer}");

        let more = differ(&[1], &[1, 2, 4]).expect("it is said");
        assert!(more.contains("not name here: server 4"), "{more}");
        assert!(!more.contains("no member"), "{more}");
    }
}
