//! Who leads?
//!
//! All servers are asked at once what they are, and the first that leads is
//! taken; a follower says whom it follows, which teaches addresses that no flag
//! configured. A claim is believed only if no later term was seen in the same
//! cluster: a deposed leader that does not know it yet claims too. A client
//! that believes wrongly learns it from the answer to the first command.
//!
//! All servers of a client are one cluster's. One that lost its disk and was
//! started with itself alone in `--peers` founds another, at an address that
//! clients know: an election would have two leaders of one term. So a client
//! stays with the cluster that it found first, and goes to another only when
//! no server of the first has answered for a while (it was lost, and restored
//! from a backup). Nor does it go to one that answers at the address that a name had before,
//! while the name cannot be looked up. One that is new hears everybody before it believes a
//! leader, and believes none as long as servers of two clusters answer. Before
//! its first watch it hears everybody as well.
//!
//! A server that refuses this client is alive too, and may be of the other
//! cluster. So neither client goes to a cluster that has too few members for
//! those of it that answer and all that refuse ([`RecentAnswers`]). A cluster
//! of three of which one server does not know a new token yet has enough.
//!
//! Servers may be far away. A server that has not answered in the time that
//! near ones take is asked once more over another connection, with more
//! patience, while it goes on being asked with little: what does not
//! answer may as well have been cut off, and be back a moment later, which the
//! patient question would learn of last. What answers take is measured, and the
//! next questions wait accordingly ([`RoundTripTimes`]).
//!
//! After a leader's death this asks again and again, every few milliseconds
//! at first, so that a write succeeds soon after another is elected; what
//! becomes of a round of questions is shared by all connections of a client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_api::v1::{self, cluster_client::ClusterClient};
use tenure_core::time::Instant;
use tenure_runtime::error::about;
use tenure_runtime::round_trip::{RoundTripTimes, TIMEOUT_MAX};
use tenure_runtime::{clock, drive, lookup};
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::Error;
use super::channel::Channel;
use super::dialer::Dialer;
use super::error::{carried, sentence};
use super::recent_answers::{KEPT, RecentAnswers};

/// How long one server that is near may take to say what it is.
const ASK_WITHIN: Duration = Duration::from_millis(200);
/// How many times this time is doubled for a server that stays silent. Each question
/// opens a connection, and those that were given up wait for their turn at the server
/// before later ones: with 200 ms for each, its clients would keep a busy server busy.
const DOUBLINGS_MAX: u32 = 2;
/// The pauses between rounds of questions: short while an election may be
/// under way, longer when it is something worse.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(50);
const PAUSE_LATE: Duration = Duration::from_millis(500);
/// After how many rounds it is something worse.
const ROUNDS_EARLY: u32 = 100;
/// Servers that are asked, learnt ones included, at most.
const SERVERS_MAX: usize = 32;

/// Who leads, as far as is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Leader {
    pub(super) address: Arc<str>,
    /// Grows with every search.
    pub(super) search: u64,
}

#[derive(Debug)]
pub(super) struct LeaderDiscovery {
    dialer: Dialer,
    servers: Mutex<Servers>,
    discovered: tokio::sync::Mutex<Discovered>,
    /// The cluster that was found last; empty before the first search.
    cluster: Mutex<String>,
    /// Why the last search has not ended yet.
    trouble: Mutex<String>,
}

#[derive(Debug)]
struct Servers {
    /// As configured, then as learnt.
    list: Vec<Arc<str>>,
    configured: usize,
    channels: BTreeMap<Arc<str>, Channel>,
    /// For watches, which share a connection with nothing else: one that is
    /// not read must not keep questions from being answered.
    watches: BTreeMap<Arc<str>, Channel>,
}

#[derive(Debug, Default)]
struct Discovered {
    leader: Option<Leader>,
    searches: u64,
    cluster: String,
    term: u64,
}

/// What came of asking everybody once.
enum Round {
    LeaderFound(Arc<str>, Box<v1::StatusResponse>),
    Refused(Error),
    Nobody,
}

/// What came of asking one.
enum StatusOutcome {
    Status(Arc<str>, Box<v1::StatusResponse>),
    Refused(Error),
    Nothing,
}

impl LeaderDiscovery {
    pub(super) fn new(servers: Vec<Arc<str>>, dialer: Dialer) -> Self {
        Self {
            dialer,
            servers: Mutex::new(Servers {
                configured: servers.len(),
                list: servers,
                channels: BTreeMap::new(),
                watches: BTreeMap::new(),
            }),
            discovered: tokio::sync::Mutex::new(Discovered::default()),
            cluster: Mutex::default(),
            trouble: Mutex::new("no server has been asked yet".into()),
        }
    }

    /// By what the servers are reached.
    pub(super) const fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// How far away they are.
    pub(super) const fn round_trips(&self) -> &RoundTripTimes {
        self.dialer.round_trips()
    }

    fn servers(&self) -> MutexGuard<'_, Servers> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The servers that were named, and those that were learnt of.
    pub(super) fn addresses(&self) -> Vec<Arc<str>> {
        self.servers().list.clone()
    }

    /// The servers that were named.
    fn configured(&self) -> Vec<Arc<str>> {
        let servers = self.servers();
        servers.list[..servers.configured].to_vec()
    }

    /// Takes note of a server that another one has named.
    pub(super) fn learn(&self, address: &str) {
        let mut servers = self.servers();
        if address.is_empty() || servers.list.iter().any(|known| **known == *address) {
            return;
        }
        if self.dialer.check(address).is_err() {
            return;
        }
        if servers.list.len() >= SERVERS_MAX {
            // The oldest of the learnt ones goes.
            let configured = servers.configured;
            let gone = servers.list.remove(configured);
            servers.channels.remove(&gone);
            servers.watches.remove(&gone);
        }
        servers.list.push(address.into());
    }

    /// A connection to a server for calls of their own, shared and made at
    /// first use.
    pub(super) fn channel(&self, address: &Arc<str>) -> Result<Channel, String> {
        let mut servers = self.servers();
        if let Some(channel) = servers.channels.get(address) {
            return Ok(channel.clone());
        }
        let channel = self.dialer.lazy(address)?;
        servers
            .channels
            .insert(Arc::clone(address), channel.clone());
        Ok(channel)
    }

    /// Keeps a connection by which somebody has answered, in place of one by
    /// which nobody has.
    fn keep(&self, address: Arc<str>, channel: Channel) {
        self.servers().channels.insert(address, channel);
    }

    /// The same for watches.
    pub(super) fn watching(&self, address: &Arc<str>) -> Result<Channel, String> {
        let mut servers = self.servers();
        if let Some(channel) = servers.watches.get(address) {
            return Ok(channel.clone());
        }
        let channel = self.dialer.lazy(address)?;
        servers.watches.insert(Arc::clone(address), channel.clone());
        Ok(channel)
    }

    /// Forgets the connection for watches, of which one did not get through.
    pub(super) fn unwatch(&self, address: &Arc<str>) {
        self.servers().watches.remove(address);
    }

    /// Forgets a connection that does not answer.
    pub(super) fn forget(&self, address: &Arc<str>) {
        self.servers().channels.remove(address);
    }

    /// The cluster that was found last; empty before that.
    pub(super) fn cluster(&self) -> String {
        lock(&self.cluster).clone()
    }

    /// Why nobody is known to lead.
    pub(super) fn trouble(&self) -> String {
        lock(&self.trouble).clone()
    }

    /// Who leads, by a search later than the one numbered `past`. Waits until
    /// somebody does. Cancelling it loses nothing.
    ///
    /// # Errors
    /// [`Error::Refused`] if all that answer refuse to: they do not know this
    /// client's token.
    pub(super) async fn leader(&self, past: u64) -> Result<Leader, Error> {
        let mut discovered = self.discovered.lock().await;
        if let Some(leader) = discovered
            .leader
            .as_ref()
            .filter(|leader| leader.search > past)
        {
            return Ok(leader.clone());
        }
        let (mut rounds, mut questions) = (0, OpenQuestions::default());
        loop {
            match self.round(&discovered, rounds, &mut questions).await {
                Round::LeaderFound(address, status) => {
                    lock(&self.cluster).clone_from(&status.cluster);
                    discovered.cluster = status.cluster;
                    discovered.term = status.term;
                    discovered.searches = discovered.searches.max(past) + 1;
                    let leader = Leader {
                        address,
                        search: discovered.searches,
                    };
                    discovered.leader = Some(leader.clone());
                    return Ok(leader);
                }
                Round::Refused(error) => return Err(error),
                Round::Nobody => rounds += 1,
            }
        }
    }

    /// Whether this is the cluster that this client speaks with, which is
    /// looked for again if it is not: it may have been restored. A client that
    /// is new hears everybody first. An empty name is of an earlier release.
    ///
    /// # Errors
    /// Why what this cluster says is not believed.
    pub(super) async fn is_ours(&self, cluster: &str) -> Result<(), String> {
        let known = self.cluster();
        if cluster.is_empty() || known == cluster {
            return Ok(());
        }
        if known.is_empty() {
            self.is_alone(cluster).await?;
            // A search that has ended meanwhile knows better.
            let mut ours = lock(&self.cluster);
            if ours.is_empty() {
                cluster.clone_into(&mut ours);
            }
        } else {
            let past = self.discovered.lock().await.searches;
            // Nothing else waits for this search.
            let _ = timeout(TIMEOUT_MAX, self.leader(past)).await;
        }
        if *lock(&self.cluster) == cluster {
            return Ok(());
        }
        Err("it is of another cluster".into())
    }

    /// Whether all servers that are alive can be of this cluster. All are asked
    /// once; whether any of them leads does not matter for a watch.
    ///
    /// # Errors
    /// Why they cannot be, or that none of this cluster says what it is.
    async fn is_alone(&self, cluster: &str) -> Result<(), String> {
        let mut questions = OpenQuestions::default();
        self.query_all(&mut questions);
        let mut of_it = None;
        while let Some(answer) = questions.next(self).await {
            if let StatusOutcome::Status(address, status) = self.outcome_of(&mut questions, answer)
                && status.cluster == cluster
            {
                of_it = Some((address, status));
            }
        }
        let answers = &questions.recent_answers;
        let Some((address, status)) = of_it else {
            return Err(format!("no server says that it is of cluster {cluster}"));
        };
        let two = answers.two_clusters();
        let refused = || answers.too_many_refuse(&address, &status, &self.configured());
        two.or_else(refused).map_or(Ok(()), Err)
    }

    /// Asks everybody who does not owe an answer yet; the first who leads.
    /// The next round begins a pause after the first answer of this one, and
    /// not when all have answered: a leader that has fallen silent would make
    /// everybody wait for its answer before they hear of the next leader.
    async fn round(
        &self,
        discovered: &Discovered,
        rounds: u32,
        questions: &mut OpenQuestions,
    ) -> Round {
        self.query_all(questions);
        let (mut refused, mut answered) = (None, false);
        let (mut over, mut claim) = (None, None);
        loop {
            if claim.is_some() {
                // The others are heard first, as far as they are near.
                if questions.all_have_had_time() {
                    break;
                }
                over = None;
            } else if answered || questions.unanswered.is_empty() {
                // Nobody is left who could answer, or somebody has.
                over.get_or_insert_with(|| clock::boot().after(pause(rounds)));
            }
            let answer = tokio::select! {
                biased;
                Some(answer) = questions.next(self) => answer,
                () = drive::until(over) => break,
            };
            if answer.answer.is_ok() && claim.is_none() {
                over.get_or_insert_with(|| clock::boot().after(pause(rounds)));
            }
            let (address, status) = match self.outcome_of(questions, answer) {
                StatusOutcome::Status(address, status) => (address, status),
                StatusOutcome::Refused(error) => {
                    refused = Some(error);
                    continue;
                }
                StatusOutcome::Nothing => continue,
            };
            answered = true;
            if let Some(why) = self.foreign(discovered, rounds, questions, (&address, &status)) {
                self.doubt(questions, why);
                // Its name may mean another address by now.
                self.forget(&address);
                continue;
            }
            // After a while a lower term is no straggler's: the cluster was
            // made anew, or restored.
            let stale = status.cluster == discovered.cluster
                && status.term < discovered.term
                && rounds < ROUNDS_EARLY;
            if status.role() == v1::Role::Leader && !stale {
                claim = Some((address, status));
                if !discovered.cluster.is_empty() {
                    break;
                }
            } else {
                self.learn_from(&address, &status, questions);
            }
        }
        if let Some((address, status)) = claim {
            let Some(why) = self.another(discovered, questions, (&address, &status)) else {
                return Round::LeaderFound(address, status);
            };
            self.doubt(questions, why);
            tokio::time::sleep(pause(rounds)).await;
            return Round::Nobody;
        }
        match refused {
            // A token that some know already is on its way to the others.
            Some(error) if !answered && questions.all_have_had_time() => Round::Refused(error),
            _ => Round::Nobody,
        }
    }

    /// Takes note of what a server has said, or has not.
    fn outcome_of(&self, questions: &mut OpenQuestions, answered: AnswerOf) -> StatusOutcome {
        let AnswerOf {
            address,
            within,
            answer,
        } = answered;
        let now = clock::boot();
        questions.recent_answers.forget(now);
        match answer {
            Ok(Ok(status)) if self.is_in_doubt(&address, &status) => {
                let id = status.id;
                let why = format!(
                    "{address}: found server {id} of a cluster that this client has not confirmed, \
                     at the address that this name had before; its name server does not answer, \
                     or not in time"
                );
                self.doubt(questions, why);
                // The next question looks the name up again.
                self.forget(&address);
                StatusOutcome::Nothing
            }
            Ok(Ok(status)) => {
                questions.recent_answers.heard(now, &address, &status);
                StatusOutcome::Status(address, Box::new(status))
            }
            Ok(Err(status)) => {
                questions.recent_answers.failed(now, &address, &status);
                let message = format!("{address}: {}", sentence(&status));
                self.note_of_one(questions, message.clone());
                let error = carried(&status);
                let cause = error.is_some_and(|it| it.cause() == v1::Cause::Unauthenticated);
                if !cause {
                    return StatusOutcome::Nothing;
                }
                StatusOutcome::Refused(Error::Refused {
                    cause: v1::Cause::Unauthenticated,
                    message,
                })
            }
            Err(_) => {
                let why = format!("{address}: no answer within {}", about(within));
                self.note_of_one(questions, why);
                StatusOutcome::Nothing
            }
        }
    }

    /// Whether a server may have nothing to do with this client: its name cannot be looked
    /// up, and it is of another cluster than this client's, or of none, or this client has
    /// none yet.
    fn is_in_doubt(&self, address: &str, status: &v1::StatusResponse) -> bool {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let known = self.cluster();
        (known.is_empty() || known != status.cluster)
            && self.dialer.may_use_last_addresses()
            && lookup::gave_last_addresses(host)
    }

    /// Asks everybody who does not owe an answer yet, and those who have been
    /// silent with more time too.
    fn query_all(&self, questions: &mut OpenQuestions) {
        for address in self.addresses() {
            if questions.unanswered.insert(Arc::clone(&address)) {
                match self.channel(&address) {
                    Ok(channel) => {
                        questions.spawn(self, Arc::clone(&address), channel, Patience::Short);
                    }
                    Err(why) => {
                        questions.unanswered.remove(&address);
                        self.note(why);
                    }
                }
            }
            let silent = questions.silent.contains_key(&address);
            if silent && questions.patient.insert(Arc::clone(&address)) {
                match self.dialer.lazy_within(&address, TIMEOUT_MAX) {
                    Ok(channel) => {
                        let asked = Patience::Long(channel.clone());
                        questions.spawn(self, address, channel, asked);
                    }
                    Err(why) => {
                        questions.patient.remove(&address);
                        self.note(why);
                    }
                }
            }
        }
    }

    /// Why a server that has answered is not listened to: it is of another
    /// cluster than this client's, which is, or may be, alive.
    fn foreign(
        &self,
        discovered: &Discovered,
        rounds: u32,
        questions: &OpenQuestions,
        (address, status): (&Arc<str>, &v1::StatusResponse),
    ) -> Option<String> {
        let (ours, theirs) = (&discovered.cluster, &status.cluster);
        if ours.is_empty() || theirs.is_empty() || ours == theirs {
            return None;
        }
        let answers = &questions.recent_answers;
        let refused = answers.too_many_refuse(address, status, &self.configured());
        let ours_is_there = answers.has_cluster(ours) || refused.is_some();
        if !ours_is_there && rounds >= ROUNDS_EARLY {
            return None;
        }
        let id = status.id;
        Some(refused.unwrap_or_else(|| {
            format!("server {id} is of another cluster, {theirs}, than this client's, {ours}")
        }))
    }

    /// Why a new client does not believe the leader that it has found: servers
    /// of another cluster are alive.
    fn another(
        &self,
        discovered: &Discovered,
        questions: &OpenQuestions,
        (address, status): (&Arc<str>, &v1::StatusResponse),
    ) -> Option<String> {
        if !discovered.cluster.is_empty() {
            return None;
        }
        let answers = &questions.recent_answers;
        let two = answers.two_clusters();
        two.or_else(|| answers.too_many_refuse(address, status, &self.configured()))
    }

    fn learn_from(
        &self,
        address: &Arc<str>,
        status: &v1::StatusResponse,
        questions: &OpenQuestions,
    ) {
        let leader = status.leader.filter(|leader| *leader != status.id);
        let member = status
            .members
            .iter()
            .find(|member| Some(member.id) == leader);
        match (leader, member) {
            (Some(leader), Some(member)) => {
                self.learn(&member.client_address);
                // One that does not know the token has said why it does not.
                if questions.recent_answers.has_refusals() {
                    return;
                }
                let why = format!("server {leader} is said to lead, and does not say so");
                self.note_of_one(questions, why);
            }
            _ if status.waiting.is_empty() => {
                self.note_of_one(questions, format!("{address}: nobody leads"));
            }
            _ => self.note_of_one(questions, format!("{address}: {}", status.waiting)),
        }
    }

    /// Takes note of what is known of one server.
    fn note_of_one(&self, questions: &OpenQuestions, why: String) {
        let doubt = questions.doubted_at;
        if doubt.is_none_or(|at| clock::boot().since(at) >= KEPT) {
            self.note(why);
        }
    }

    /// Takes note of why servers that answer are not believed. It says more
    /// than what is known of one server, and stays.
    fn doubt(&self, questions: &mut OpenQuestions, why: String) {
        questions.doubted_at = Some(clock::boot());
        self.note(why);
    }

    fn note(&self, why: String) {
        *lock(&self.trouble) = why;
    }
}

fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Questions that are not answered yet, over the rounds of a search.
#[derive(Default)]
struct OpenQuestions {
    calls: JoinSet<(AnswerOf, Patience)>,
    /// Who owes an answer.
    unanswered: BTreeSet<Arc<str>>,
    /// Who owes one to a question that has more time.
    patient: BTreeSet<Arc<str>>,
    /// Who has let the time for one pass in this search, and how often since an answer.
    silent: BTreeMap<Arc<str>, u32>,
    recent_answers: RecentAnswers,
    /// When servers that answered were last not believed.
    doubted_at: Option<Instant>,
}

/// What came of a question.
struct AnswerOf {
    address: Arc<str>,
    /// How long it was waited for.
    within: Duration,
    answer: Result<Status, Elapsed>,
}

/// How it was asked.
enum Patience {
    Short,
    /// Over a connection of its own.
    Long(Channel),
}

/// What a server says of itself.
pub(super) type Status = Result<v1::StatusResponse, tonic::Status>;

impl OpenQuestions {
    fn spawn(
        &mut self,
        leader_discovery: &LeaderDiscovery,
        address: Arc<str>,
        channel: Channel,
        asked: Patience,
    ) {
        let round_trips = leader_discovery.round_trips().clone();
        let within = match asked {
            Patience::Short => {
                let silences = self.silent.get(&address).copied().unwrap_or(0);
                round_trips.timeout(ASK_WITHIN * (1 << silences.min(DOUBLINGS_MAX)))
            }
            Patience::Long(_) => TIMEOUT_MAX,
        };
        self.calls.spawn(async move {
            let answer = timeout(within, timed(channel, round_trips)).await;
            let answered = AnswerOf {
                address,
                within,
                answer,
            };
            (answered, asked)
        });
    }

    /// The next answer; `None` if nobody owes any. Cancelling it loses
    /// nothing.
    async fn next(&mut self, leader_discovery: &LeaderDiscovery) -> Option<AnswerOf> {
        // What panics here is a bug of ours, and goes on as one.
        let joined = self.calls.join_next().await?;
        let (it, asked) = joined.unwrap_or_else(|error| {
            std::panic::resume_unwind(error.into_panic());
        });
        match asked {
            Patience::Short => self.unanswered.remove(&it.address),
            Patience::Long(_) => self.patient.remove(&it.address),
        };
        match (&it.answer, asked) {
            (Ok(Ok(_)), Patience::Long(channel)) => {
                leader_discovery.keep(Arc::clone(&it.address), channel);
            }
            (Err(_), Patience::Short) => leader_discovery.forget(&it.address),
            (Ok(_), _) | (Err(_), Patience::Long(_)) => {}
        }
        if it.answer.is_ok() {
            self.silent.remove(&it.address);
        } else {
            *self.silent.entry(Arc::clone(&it.address)).or_default() += 1;
        }
        Some(it)
    }

    /// Nobody owes an answer but those who have not given one before.
    fn all_have_had_time(&self) -> bool {
        self.unanswered
            .iter()
            .all(|it| self.silent.contains_key(it))
    }
}

/// What a server says of itself, and how long that took.
async fn timed(channel: Channel, round_trips: RoundTripTimes) -> Status {
    let asked = clock::boot();
    let answer = status(channel).await;
    if answer.is_ok() {
        round_trips.record(clock::boot().since(asked));
    }
    answer
}

/// Asks a server what it is.
pub(super) async fn status(channel: Channel) -> Status {
    let answer = ClusterClient::new(channel)
        .status(v1::StatusRequest::default())
        .await;
    answer.map(tonic::Response::into_inner)
}

/// Longer after every round, and never quite the same for two clients.
fn pause(rounds: u32) -> Duration {
    let longest = if rounds < ROUNDS_EARLY {
        PAUSE_MAX
    } else {
        PAUSE_LATE
    };
    let pause = PAUSE_MIN * rounds.clamp(1, 100);
    jitter(pause.min(longest))
}

/// Half to the whole of `pause`.
pub(super) fn jitter(pause: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    let part = f64::from(random) / f64::from(u32::MAX);
    pause.mul_f64(0.5 + part / 2.0)
}
