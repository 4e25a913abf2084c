//! Watches of registers and tails of the log, from any server.
//!
//! What is watched has numbers (of entries, of revisions), so a subscription that loses
//! a server goes on at another from the number after the last one heard, and
//! nothing is told twice or left out. Where the changes in between are kept no
//! more (`COMPACTED`, 410 Gone in Kubernetes), a watch of registers lists them
//! again from the beginning (relist). A server that has fallen silent is
//! asked now and then whether it is still part of a cluster that is led; one
//! that is not is left for another.
//!
//! Another cluster counts its own entries and revisions. So a subscription
//! leaves a server of another cluster than this client's. The client goes to
//! another cluster when its own is gone ([`LeaderDiscovery`]). Then a watch
//! lists the registers again, and a tail ends: entries of the same number are
//! other ones there.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::v1::{self, log_client::LogClient, registers_client::RegistersClient};
use tenure_core::cas::Register;
use tenure_core::ids::Key;
use tenure_runtime::drive;
use tenure_runtime::error::about;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::channel::Channel;
use super::client::entry;
use super::error::{carried, sentence};
use super::leader_discovery::{LeaderDiscovery, jitter, status};
use super::{Client, Entry, Error, wire};

/// Messages that are taken ahead of the reader.
const AHEAD: usize = 16;
/// How long a server that is near may take to begin, or to say that it is
/// alive.
const WITHIN: Duration = Duration::from_secs(1);
/// How long a silent server is not asked whether it is alive.
const SILENCE: Duration = Duration::from_secs(3);
/// The pauses between servers that did not serve a subscription.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The largest message: a page of registers, or of the log.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The log from one entry on, and then every new one. Dropping it ends it.
#[derive(Debug)]
pub struct Tail {
    batches: mpsc::Receiver<Result<Vec<Entry>, Error>>,
    entries: VecDeque<Entry>,
}

impl Tail {
    /// The next entry; waits until there is one. After an error there is
    /// nothing more. Cancelling this loses nothing.
    ///
    /// # Errors
    /// [`Error::Compacted`] if the next entry is kept no more, by any server;
    /// [`Error::Restored`] if the log was restored from a backup, and goes on
    /// elsewhere;
    /// [`Error::Refused`] if this client may not read, or if the cluster of
    /// the log is gone and its client has found another one in its place.
    pub async fn next(&mut self) -> Option<Result<Entry, Error>> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Some(Ok(entry));
            }
            match self.batches.recv().await? {
                Ok(entries) => self.entries.extend(entries),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Which registers to watch.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WatchTarget {
    /// One.
    Key(Key),
    /// All whose key begins with this.
    Prefix(String),
}

/// What a watch tells.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WatchEvent {
    /// All of them as they were at some moment not before an earlier news'.
    /// It comes first, and again if changes were missed.
    Began(Vec<(Key, Register)>),
    /// One has changed; `None`: it was deleted.
    Changed(Key, Option<Register>),
    /// No server serves the watch at the moment, and why.
    Down(String),
    /// One can be, again.
    Live,
}

/// A watch of registers. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    news: mpsc::Receiver<WatchEvent>,
}

impl Watch {
    /// The next news; waits until there is any. Cancelling this loses
    /// nothing.
    pub async fn next(&mut self) -> WatchEvent {
        match self.news.recv().await {
            Some(news) => news,
            // The task ends only after this does.
            None => std::future::pending().await,
        }
    }
}

impl Client {
    /// The log from entry `from` on, and then every new entry, from whatever
    /// server answers. 0 for only those appended after this call.
    pub fn tail(&self, from: u64) -> Tail {
        let (batches, receiver) = mpsc::channel(AHEAD);
        let mut tail = TailSubscription {
            next: from,
            cluster: self.shared.leader_discovery.cluster(),
            batches: batches.clone(),
        };
        let client = self.clone();
        let work = async move {
            if tail.next == 0 {
                (tail.next, tail.cluster) = match newest(&client).await {
                    Ok(newest) => newest,
                    Err(error) => {
                        // A reader that has gone needs no reason.
                        let _ = tail.batches.send(Err(error)).await;
                        return;
                    }
                };
            }
            // A watch that is not read must hold up no other: a connection of
            // its own.
            let leader_discovery = &client.shared.leader_discovery;
            let connect = |address: &Arc<str>| leader_discovery.dialer().lazy(address);
            serve(leader_discovery, connect, &mut tail).await;
        };
        drive::background().spawn(until_unread(batches, work));
        Tail {
            batches: receiver,
            entries: VecDeque::new(),
        }
    }

    /// Every change of these registers, after their state now, from whatever
    /// server answers.
    pub fn watch(&self, what: WatchTarget) -> Watch {
        let (news, receiver) = mpsc::channel(AHEAD);
        let mut watching = WatchSubscription {
            what,
            revision: None,
            cluster: String::new(),
            told: 0,
            initial: BTreeMap::new(),
            live: false,
            news: news.clone(),
        };
        let leader_discovery = Arc::clone(&self.shared.leader_discovery);
        let work = async move {
            let connect = |address: &Arc<str>| leader_discovery.watching(address);
            serve(&leader_discovery, connect, &mut watching).await;
        };
        drive::background().spawn(until_unread(news, work));
        Watch { news: receiver }
    }
}

/// The number after the newest entry, and in which cluster's log.
async fn newest(client: &Client) -> Result<(u64, String), Error> {
    let (mut past, mut pause) = (0, PAUSE_MIN);
    loop {
        let leader = client.shared.leader_discovery.leader(past).await?;
        past = leader.search;
        if let Ok(channel) = client.shared.leader_discovery.channel(&leader.address)
            && let Ok(Ok(status)) = timeout(WITHIN, status(channel)).await
            && status.role() == v1::Role::Leader
        {
            return Ok((status.log_next.max(1), status.cluster));
        }
        tokio::time::sleep(jitter(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Does `work` while somebody reads what comes of it.
async fn until_unread<T>(sender: mpsc::Sender<T>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = sender.closed() => {}
    }
}

/// A subscription that any server can serve.
trait Subscription: Send {
    type Message: Send;

    /// Asks a server for what comes next.
    fn begin(
        &self,
        channel: Channel,
    ) -> impl Future<Output = Result<tonic::Streaming<Self::Message>, tonic::Status>> + Send;

    /// The server has agreed.
    fn accepted(&mut self) -> impl Future<Output = ()> + Send;

    /// Takes a message. Breaks if this server cannot serve it any more.
    fn take(&mut self, message: Self::Message) -> impl Future<Output = ControlFlow<String>> + Send;

    /// A server has refused to begin, or what it has begun can go on nowhere.
    /// Breaks if all would.
    fn refused(&mut self, error: Error) -> impl Future<Output = ControlFlow<()>> + Send;

    /// Of which cluster a message says that it is; empty if it does not say.
    fn cluster(message: &Self::Message) -> &str;

    /// Called before each message is taken, with its cluster (empty: not said). Breaks if the
    /// subscription cannot go on in that cluster.
    fn found_cluster(&mut self, cluster: &str) -> impl Future<Output = ControlFlow<()>> + Send;

    /// All servers were tried in vain.
    fn lost(&mut self, why: &str) -> impl Future<Output = ()> + Send;
}

/// What came of servers that did not serve a subscription.
#[derive(Default)]
struct Heard {
    /// Whether anything came of the one that was tried last.
    useful: bool,
    /// Why a server that answers is not believed. It says more than what is wrong with one of
    /// the others.
    doubt: Option<String>,
    /// The refusal of a server whose cluster is not known.
    refusal: Option<Error>,
}

/// Has it served by one server after the other, until all refuse.
async fn serve<F: Subscription>(
    leader_discovery: &LeaderDiscovery,
    connect: impl Fn(&Arc<str>) -> Result<Channel, String>,
    subscription: &mut F,
) {
    let start = getrandom::u32().unwrap_or(0) as usize;
    let (mut turn, mut failed, mut pause) = (start, 0, PAUSE_MIN);
    let mut heard = Heard::default();
    loop {
        let addresses = leader_discovery.addresses();
        let address = &addresses[turn % addresses.len()];
        turn = turn.wrapping_add(1);
        heard.useful = false;
        let why = match connect(address) {
            Ok(channel) => {
                match serve_by_one(leader_discovery, channel, subscription, &mut heard).await {
                    ControlFlow::Continue(why) => why,
                    ControlFlow::Break(()) => return,
                }
            }
            Err(why) => why,
        };
        leader_discovery.unwatch(address);
        tracing::debug!("{address}: {why}");
        if heard.useful {
            (failed, pause, heard) = (0, PAUSE_MIN, Heard::default());
            tokio::time::sleep(jitter(pause)).await;
            continue;
        }
        failed += 1;
        if failed % addresses.len() == 0 {
            // All that answer refuse.
            if let (Some(error), None) = (heard.refusal.take(), &heard.doubt)
                && subscription.refused(error).await.is_break()
            {
                return;
            }
            let doubt = heard.doubt.take();
            let why = doubt.unwrap_or_else(|| format!("{address}: {why}"));
            subscription.lost(&why).await;
            tokio::time::sleep(jitter(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Has it served by one server for as long as that goes, and says why it ended.
/// Notes whether anything came of it, and why what came is not believed.
async fn serve_by_one<F: Subscription>(
    leader_discovery: &LeaderDiscovery,
    channel: Channel,
    subscription: &mut F,
    heard: &mut Heard,
) -> ControlFlow<(), String> {
    let within = leader_discovery.round_trips().timeout(WITHIN);
    let mut messages = match timeout(within, subscription.begin(channel.clone())).await {
        Ok(Ok(messages)) => messages,
        Ok(Err(refusal)) => {
            return turned_away(leader_discovery, channel, subscription, &refusal, heard).await;
        }
        Err(_) => return ControlFlow::Continue(format!("no answer within {}", about(within))),
    };
    subscription.accepted().await;
    loop {
        let message = match timeout(SILENCE, messages.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => return ControlFlow::Continue("the server has ended it".into()),
            Ok(Err(status)) if is_unknown(&status) => {
                // The token with which it began is gone. There may be a new
                // one by now, with which it begins again; the answer to that
                // tells.
                heard.useful = true;
                return ControlFlow::Continue(sentence(&status));
            }
            Ok(Err(refusal)) => {
                return turned_away(leader_discovery, channel, subscription, &refusal, heard).await;
            }
            Err(_) => match timeout(within, status(channel.clone())).await {
                Ok(Ok(status)) if status.ready => {
                    // One that has told nothing yet may be of another cluster.
                    if let Err(why) = leader_discovery.is_ours(&status.cluster).await {
                        return ControlFlow::Continue(heard.doubt.insert(why).clone());
                    }
                    subscription.found_cluster(&status.cluster).await?;
                    continue;
                }
                Ok(Ok(_)) => return ControlFlow::Continue("it is not led".into()),
                Ok(Err(status)) => return ControlFlow::Continue(sentence(&status)),
                Err(_) => return ControlFlow::Continue(format!("silent for {SILENCE:?}")),
            },
        };
        if let Err(why) = leader_discovery.is_ours(F::cluster(&message)).await {
            return ControlFlow::Continue(heard.doubt.insert(why).clone());
        }
        subscription.found_cluster(F::cluster(&message)).await?;
        heard.useful = true;
        if let ControlFlow::Break(why) = subscription.take(message).await {
            return ControlFlow::Continue(why);
        }
    }
}

/// Whether a server does not know this client.
fn is_unknown(status: &tonic::Status) -> bool {
    carried(status).is_some_and(|error| error.cause() == v1::Cause::Unauthenticated)
}

/// Handles a refusal. The refusal of a server of another cluster does not count, and
/// [`Heard::doubt`] says why. If the server's cluster is not known, the refusal counts once all
/// servers that answer have refused.
async fn turned_away<F: Subscription>(
    leader_discovery: &LeaderDiscovery,
    channel: Channel,
    subscription: &mut F,
    refusal: &tonic::Status,
    heard: &mut Heard,
) -> ControlFlow<(), String> {
    let Some(error) = carried(refusal) else {
        return ControlFlow::Continue(sentence(refusal));
    };
    let error = Error::from_wire(&error);
    let within = leader_discovery.round_trips().timeout(WITHIN);
    match timeout(within, status(channel)).await {
        Ok(Ok(found)) => match leader_discovery.is_ours(&found.cluster).await {
            Ok(()) => subscription.refused(error).await?,
            Err(why) => return ControlFlow::Continue(heard.doubt.insert(why).clone()),
        },
        Ok(Err(_)) | Err(_) => heard.refusal = Some(error),
    }
    ControlFlow::Continue(sentence(refusal))
}

struct TailSubscription {
    /// The number of the next entry.
    next: u64,
    /// The cluster of the log; empty until it is known.
    cluster: String,
    batches: mpsc::Sender<Result<Vec<Entry>, Error>>,
}

impl Subscription for TailSubscription {
    type Message = v1::ReadLogResponse;

    async fn begin(
        &self,
        channel: Channel,
    ) -> Result<tonic::Streaming<Self::Message>, tonic::Status> {
        let mut client = LogClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let from = self.next;
        let answer = client.tail(v1::TailRequest { from }).await;
        answer.map(tonic::Response::into_inner)
    }

    fn cluster(message: &Self::Message) -> &str {
        &message.cluster
    }

    async fn found_cluster(&mut self, cluster: &str) -> ControlFlow<()> {
        if cluster.is_empty() || self.cluster == cluster {
            return ControlFlow::Continue(());
        }
        if self.cluster.is_empty() {
            cluster.clone_into(&mut self.cluster);
            return ControlFlow::Continue(());
        }
        let message = format!(
            "expected the log of cluster {}, found that of cluster {cluster}, which has taken its \
             place: entry {} is another one there; begin again",
            self.cluster, self.next
        );
        let cause = v1::Cause::Invalid;
        let _ = self
            .batches
            .send(Err(Error::Refused { cause, message }))
            .await;
        ControlFlow::Break(())
    }

    async fn accepted(&mut self) {}

    async fn take(&mut self, message: Self::Message) -> ControlFlow<String> {
        let mut batch = Vec::with_capacity(message.entries.len());
        for read in message.entries {
            if read.number < self.next {
                continue;
            }
            if read.number > self.next {
                return ControlFlow::Break(format!(
                    "expected entry {}, found {}",
                    self.next, read.number
                ));
            }
            self.next += 1;
            batch.push(entry(read));
        }
        if !batch.is_empty() {
            // A reader that has gone ends the task elsewhere.
            let _ = self.batches.send(Ok(batch)).await;
        }
        ControlFlow::Continue(())
    }

    async fn refused(&mut self, error: Error) -> ControlFlow<()> {
        match error {
            Error::Compacted { .. } | Error::Restored { .. } | Error::Refused { .. } => {
                let _ = self.batches.send(Err(error)).await;
                ControlFlow::Break(())
            }
            Error::Conflict | Error::Unavailable(_) | Error::Unknown(_) => {
                ControlFlow::Continue(())
            }
        }
    }

    async fn lost(&mut self, _: &str) {}
}

struct WatchSubscription {
    what: WatchTarget,
    /// After which changes to go on; `None`: from the state now.
    revision: Option<u64>,
    /// Which cluster counted them.
    cluster: String,
    /// Up to where changes were ever told.
    told: u64,
    /// The registers as they were, as far as they have come.
    initial: BTreeMap<Key, Register>,
    live: bool,
    news: mpsc::Sender<WatchEvent>,
}

impl WatchSubscription {
    async fn tell(&self, news: WatchEvent) {
        // A reader that has gone ends the task elsewhere.
        let _ = self.news.send(news).await;
    }
}

impl Subscription for WatchSubscription {
    type Message = v1::WatchResponse;

    async fn begin(
        &self,
        channel: Channel,
    ) -> Result<tonic::Streaming<Self::Message>, tonic::Status> {
        let mut client = RegistersClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let (prefix, key) = match &self.what {
            WatchTarget::Key(key) => (String::new(), Some(key.as_str().to_owned())),
            WatchTarget::Prefix(prefix) => (prefix.clone(), None),
        };
        let after_revision = self.revision;
        let watch = v1::WatchRequest {
            prefix,
            key,
            after_revision,
            after_id: None,
            cluster: self.cluster.clone(),
        };
        let answer = client.watch(watch).await;
        answer.map(tonic::Response::into_inner)
    }

    fn cluster(message: &Self::Message) -> &str {
        &message.cluster
    }

    async fn found_cluster(&mut self, cluster: &str) -> ControlFlow<()> {
        if !cluster.is_empty() && self.cluster != cluster {
            // It was made anew from a copy, and counts its own changes.
            cluster.clone_into(&mut self.cluster);
            self.told = 0;
        }
        ControlFlow::Continue(())
    }

    async fn accepted(&mut self) {
        self.initial.clear();
        // Without a revision it is up when the state has come.
        if self.revision.is_some() && !self.live {
            self.live = true;
            self.tell(WatchEvent::Live).await;
        }
    }

    async fn take(&mut self, message: Self::Message) -> ControlFlow<String> {
        let known = self.revision.unwrap_or(0);
        for changed in message.changes {
            let Ok(key) = wire::key(&changed.key) else {
                return ControlFlow::Break("a key that is none".into());
            };
            let register = changed.register.map(wire::register);
            match register {
                Some(register) if message.initial => drop(self.initial.insert(key, register)),
                None if message.initial => drop(self.initial.remove(&key)),
                register if message.revision > known => {
                    self.tell(WatchEvent::Changed(key, register)).await;
                }
                // Heard from another server already.
                _ => {}
            }
        }
        if message.initial && !message.began {
            return ControlFlow::Continue(());
        }
        if message.began {
            if message.revision < self.told {
                return ControlFlow::Break("it lags behind what was told already".into());
            }
            let registers = std::mem::take(&mut self.initial);
            self.tell(WatchEvent::Began(registers.into_iter().collect()))
                .await;
        }
        self.told = known.max(message.revision);
        self.revision = Some(self.told);
        if !self.live {
            self.live = true;
            self.tell(WatchEvent::Live).await;
        }
        ControlFlow::Continue(())
    }

    async fn refused(&mut self, error: Error) -> ControlFlow<()> {
        match error {
            // Relist: without a revision the next subscription begins with all
            // registers.
            Error::Compacted { .. } | Error::Restored { .. } => self.revision = None,
            Error::Refused { message, .. } => self.lost(&message).await,
            Error::Conflict | Error::Unavailable(_) | Error::Unknown(_) => {}
        }
        ControlFlow::Continue(())
    }

    async fn lost(&mut self, why: &str) {
        self.live = false;
        self.tell(WatchEvent::Down(why.to_owned())).await;
    }
}
