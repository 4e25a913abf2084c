//! Connecting to one of several hosts, any of which may be dead or mute.
//!
//! Each host gets [`HANDSHAKE_WITHIN`] for its *whole* handshake: the
//! connection, TLS, authentication and a first question. A host that accepts
//! connections and then says nothing is as dead as one that drops them, and
//! only an answer to a question tells. While a host keeps silent the next one
//! is tried beside it, `NEXT_HOST_AFTER` later, and at once if it fails; the
//! first to finish is used. So a mute host costs two seconds, and a distant
//! one is not given up for being distant.
//!
//! A host that refuses is asked again while another keeps silent, after
//! `AGAIN_AFTER` and twice as long each time, up to `AGAIN_AFTER_MAX`. It may
//! be a server that restarts, or a standby that is about to take over, and
//! the silence of a dead one lasts for as long as a handshake may. One that a
//! person must mend first (a wrong password) is not asked again.
//!
//! A host that keeps silent is asked again, too, beside the handshake that waits: its
//! packets may be lost for a moment, a middlebox may have forgotten the connection, and
//! its name may mean another address by now. So an outage costs `NEXT_HOST_AFTER` after
//! its end, and not the rest of a handshake that began in it ([`race`]).
//!
//! The handshakes run in a task of the background thread. A caller waits for
//! it as long as it has time, and the task goes on when the caller leaves:
//! callers who can wait for less than a handshake takes would otherwise begin
//! it again and again and never get beyond the first host. All callers wait
//! for the same task, so a server that accepts and says nothing holds two
//! connections of each process and not one for each call.
//!
//! If no host can be used, the next call tries all of them again after a pause, which grows
//! from `AGAIN_AFTER` to `AGAIN_AFTER_MAX`. It does not depend on how many calls come. So a
//! server that restarts is not flooded. A server that counts failed handshakes and then
//! refuses the client's host (`max_connect_errors` of MySQL) counts slowly.
//!
//! Which host was used is remembered: the next connection begins with it, or
//! with the one after it if it was left because it kept silent or refuses
//! writes.

#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "kubernetes",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
mod other_hosts;
mod race;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::BoxFuture;
use crate::error::{StoreError, about};
use crate::{clock, drive};

#[cfg(any(feature = "consul", feature = "kubernetes", feature = "redis"))]
pub(super) use other_hosts::ask_others;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "kubernetes",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
pub(super) use other_hosts::{OTHERS_WITHIN, answers_of, comparable};
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "kubernetes",
    feature = "mysql",
    feature = "nats",
    feature = "redis"
))]
pub(super) use race::HANDSHAKE_WITHIN;
use race::{AGAIN_AFTER, AGAIN_AFTER_MAX};
pub(super) use race::{Repeats, race};

/// An open connection. Clones are the same one.
pub(super) trait Connection: Clone + Send + Sync + 'static {
    /// Whether calls can still go over it.
    fn is_open(&self) -> bool;
    /// Whether it is this very connection.
    fn is(&self, other: &Self) -> bool;
}

/// Does the whole handshake with the host of this number.
pub(super) type ConnectFn<T> =
    Arc<dyn Fn(usize) -> BoxFuture<'static, Result<T, StoreError>> + Send + Sync>;

/// The connection of one store, opened when it is needed.
pub(super) struct Dialer<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    /// What the whole is called in errors.
    server: String,
    /// What each host is called there.
    hosts: Vec<String>,
    connect_to: ConnectFn<T>,
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    state: State<T>,
    /// The host to begin with.
    first: usize,
    /// Set while none could be used when they were tried last.
    failure: Option<DialFailure>,
}

/// All hosts have failed, perhaps several times.
struct DialFailure {
    error: DialError,
    pause: Duration,
    /// They are not tried again before.
    until: Instant,
}

impl DialFailure {
    fn after(before: Option<&Self>, error: DialError) -> Self {
        let pause = before.map_or(AGAIN_AFTER, |before| {
            (before.pause * 2).min(AGAIN_AFTER_MAX)
        });
        Self {
            error,
            pause,
            until: clock::boot().after(pause),
        }
    }
}

enum State<T> {
    Closed,
    Dialing(Dialing),
    Open {
        host: usize,
        connected: T,
        /// When the last answer came over it, or it was opened.
        answered: Instant,
    },
}

struct Dialing {
    _task: DialTask,
    outcome: watch::Receiver<DialOutcome>,
    outcomes: Arc<HostOutcomes>,
}

/// What came of dialling, once it has ended; what went wrong.
type DialOutcome = Option<Option<DialError>>;

/// Why no host could be used.
#[derive(Clone, Debug)]
struct DialError {
    is_broken: bool,
    why: String,
}

impl From<DialError> for StoreError {
    fn from(failed: DialError) -> Self {
        if failed.is_broken {
            Self::broken(failed.why)
        } else {
            Self::unavailable(failed.why)
        }
    }
}

/// Ends a task when it is dropped.
struct DialTask(JoinHandle<()>);

impl Drop for DialTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What has become of each host that was tried so far, by its number.
#[derive(Default)]
struct HostOutcomes(Mutex<BTreeMap<usize, String>>);

impl HostOutcomes {
    fn record(&self, host: usize, what: &str) {
        lock(&self.0).insert(host, what.to_owned());
    }

    /// All of it in a sentence.
    fn all(&self, hosts: &[String]) -> String {
        let mut text = String::new();
        for (host, what) in lock(&self.0).iter() {
            let comma = if text.is_empty() { "" } else { "; " };
            let name = hosts.get(*host).map_or("", String::as_str);
            let _ = write!(text, "{comma}{name}: {what}");
        }
        if text.is_empty() {
            // The caller's time was up before anything came of the first host.
            text.push_str("no host has answered or refused yet");
        }
        text
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> fmt::Debug for Dialer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dialer({})", self.shared.server)
    }
}

impl<T: Connection> Dialer<T> {
    pub(super) fn new(
        server: String,
        hosts: Vec<String>,
        first: usize,
        connect_to: ConnectFn<T>,
    ) -> Self {
        let inner = Inner {
            state: State::Closed,
            first,
            failure: None,
        };
        Self {
            shared: Arc::new(Shared {
                server,
                hosts,
                connect_to,
                inner: Mutex::new(inner),
            }),
        }
    }

    /// The open connection, or a new one.
    pub(super) async fn connected(&self, until: Instant) -> Result<T, StoreError> {
        let left = until.since(clock::boot());
        let (mut outcome, outcomes) = {
            let mut inner = lock(&self.shared.inner);
            match &inner.state {
                State::Open { connected, .. } if connected.is_open() => {
                    return Ok(connected.clone());
                }
                State::Dialing(dialing) if !is_over(&dialing.outcome) => {
                    (dialing.outcome.clone(), Arc::clone(&dialing.outcomes))
                }
                _ => {
                    let failure = inner.failure.as_ref();
                    let not_before = failure.map(|failure| failure.until);
                    // It would end before anything is tried.
                    if let Some(failure) = failure.filter(|failure| until <= failure.until) {
                        return Err(failure.error.clone().into());
                    }
                    let dialing = self.shared.begin(inner.first, not_before);
                    let waits = (dialing.outcome.clone(), Arc::clone(&dialing.outcomes));
                    inner.state = State::Dialing(dialing);
                    waits
                }
            }
        };
        let ended = timeout(left, outcome.wait_for(Option::is_some)).await;
        let failed = match ended {
            Ok(Ok(outcome)) => outcome.clone().flatten(),
            // It panicked; the next call dials again.
            Ok(Err(_)) => Some(DialError {
                is_broken: false,
                why: format!("connecting to {} has ended early", self.shared.server),
            }),
            Err(_) => {
                let (server, left) = (&self.shared.server, about(left));
                let outcomes = outcomes.all(&self.shared.hosts);
                return Err(StoreError::unavailable(format!(
                    "no connection to {server} within {left} ({outcomes}); still trying"
                )));
            }
        };
        if let Some(failed) = failed {
            return Err(failed.into());
        }
        match &lock(&self.shared.inner).state {
            State::Open { connected, .. } => Ok(connected.clone()),
            // It was left again before this caller's turn came.
            State::Closed | State::Dialing(_) => Err(StoreError::unavailable(format!(
                "the connection to {} was given up as soon as it was there",
                self.shared.server
            ))),
        }
    }

    /// Another connection, which belongs to the caller alone; to the host
    /// that is in use, if it answers.
    #[cfg(feature = "postgres")]
    pub(super) async fn dedicated(&self) -> Result<T, StoreError> {
        let from = {
            let inner = lock(&self.shared.inner);
            match &inner.state {
                State::Open { host, .. } => *host,
                State::Closed | State::Dialing(_) => inner.first,
            }
        };
        let (shared, outcomes) = (Arc::clone(&self.shared), Arc::<HostOutcomes>::default());
        let (_, connected) = shared.connect_any(from, &outcomes).await?;
        Ok(connected)
    }

    /// Leaves a suspect connection, if that has not been done yet: the next
    /// one begins with the host after it.
    pub(super) fn abandon(&self, suspect: &T) {
        self.abandon_if(suspect, |_| true);
    }

    /// The same, if what is given is so of the time of the last answer.
    fn abandon_if(&self, suspect: &T, is_suspect: impl FnOnce(Instant) -> bool) {
        let mut inner = lock(&self.shared.inner);
        if let State::Open {
            host,
            connected,
            answered,
        } = &inner.state
            && connected.is(suspect)
            && is_suspect(*answered)
        {
            inner.first = host + 1;
            inner.state = State::Closed;
        }
    }
}

/// A call that waits for its answer over a connection. Where it has ended badly, the
/// connection is left. So it is where the call is dropped before its answer has come, if
/// nothing was answered over the connection for half of the time that it has waited, or
/// longer. Otherwise the server lives, and the caller needs the answer no longer: to open
/// another connection to a server far away takes longer than a lease may have.
#[cfg(any(feature = "consul", feature = "kubernetes", feature = "nats"))]
pub(super) struct Pending<'a, T: Connection> {
    dialer: &'a Dialer<T>,
    connection: &'a T,
    began: Instant,
    /// Once it has ended.
    is_well: Option<bool>,
}

#[cfg(any(feature = "consul", feature = "kubernetes", feature = "nats"))]
impl<T: Connection> Dialer<T> {
    /// An answer has come over this connection.
    fn answered(&self, connection: &T) {
        if let State::Open {
            connected,
            answered,
            ..
        } = &mut lock(&self.shared.inner).state
            && connected.is(connection)
        {
            *answered = clock::boot();
        }
    }

    /// Begins a call.
    pub(super) fn pending<'a>(&'a self, connection: &'a T) -> Pending<'a, T> {
        Pending {
            dialer: self,
            connection,
            began: clock::boot(),
            is_well: None,
        }
    }
}

#[cfg(any(feature = "consul", feature = "kubernetes", feature = "nats"))]
impl<T: Connection> Pending<'_, T> {
    /// The call has ended; whether the connection can be used on.
    pub(super) fn ended(mut self, is_well: bool) {
        self.is_well = Some(is_well);
    }
}

#[cfg(any(feature = "consul", feature = "kubernetes", feature = "nats"))]
impl<T: Connection> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        let began = self.began;
        match self.is_well {
            Some(true) => self.dialer.answered(self.connection),
            Some(false) => self.dialer.abandon(self.connection),
            None => {
                let now = clock::boot();
                let is_silent = |answered| now.since(answered) * 2 >= now.since(began);
                self.dialer.abandon_if(self.connection, is_silent);
            }
        }
    }
}

fn is_over(outcome: &watch::Receiver<DialOutcome>) -> bool {
    // A task that has panicked will say nothing more.
    outcome.borrow().is_some() || outcome.has_changed().is_err()
}

impl<T> Drop for Dialer<T> {
    fn drop(&mut self) {
        // Ends the task: it holds what it is held by.
        lock(&self.shared.inner).state = State::Closed;
    }
}

impl<T: Connection> Shared<T> {
    /// Begins to dial in the background, at this time or at once.
    fn begin(self: &Arc<Self>, first: usize, not_before: Option<Instant>) -> Dialing {
        let (shared, outcomes) = (Arc::clone(self), Arc::<HostOutcomes>::default());
        let (tell, outcome) = watch::channel(None);
        let recorded = Arc::clone(&outcomes);
        let task = drive::background().spawn(async move {
            if let Some(at) = not_before {
                sleep(at.since(clock::boot())).await;
            }
            let connected = shared.connect_any(first, &recorded).await;
            let mut inner = lock(&shared.inner);
            let failed = match connected {
                Ok((host, connected)) => {
                    inner.first = host;
                    inner.state = State::Open {
                        host,
                        connected,
                        answered: clock::boot(),
                    };
                    inner.failure = None;
                    None
                }
                Err(error) => {
                    let failure = DialFailure::after(inner.failure.as_ref(), error.clone());
                    inner.failure = Some(failure);
                    Some(error)
                }
            };
            drop(inner);
            tell.send_replace(Some(failed));
        });
        Dialing {
            _task: DialTask(task),
            outcome,
            outcomes,
        }
    }

    /// Tries all hosts, beginning with `first`; the number of the one that
    /// finished its handshake first.
    async fn connect_any(
        &self,
        first: usize,
        outcomes: &HostOutcomes,
    ) -> Result<(usize, T), DialError> {
        let count = self.hosts.len();
        let order = (0..count).map(|at| (first + at) % count);
        // A person has to do something first only if that is so of every host: one that is
        // merely away may be back soon.
        let mut broken = BTreeSet::new();
        let won = race(
            order,
            Repeats::OfSilentOnes,
            |host| (self.connect_to)(host),
            |host, error| match error {
                None => outcomes.record(host, "no answer yet"),
                Some(error) => {
                    match error {
                        StoreError::Broken(_) => broken.insert(host),
                        _ => broken.remove(&host),
                    };
                    outcomes.record(host, &reason(error));
                }
            },
        );
        if let Some(won) = won.await {
            return Ok(won);
        }
        let why = match self.hosts.as_slice() {
            [host] => {
                let why = lock(&outcomes.0).values().next().cloned();
                match why.unwrap_or_default() {
                    why if why.contains(host.as_str()) => why,
                    why => format!("{host}: {why}"),
                }
            }
            hosts => format!(
                "no host of {} can be used: {}",
                self.server,
                outcomes.all(hosts)
            ),
        };
        let is_broken = broken.len() == count;
        Err(DialError { is_broken, why })
    }
}

/// What an error says without its class, which the whole gets anew.
pub(super) fn reason(error: &StoreError) -> String {
    match error {
        StoreError::Conflict => error.to_string(),
        StoreError::Unavailable(why) | StoreError::Unknown(why) | StoreError::Broken(why) => {
            why.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::race::{HANDSHAKE_WITHIN, NEXT_HOST_AFTER};
    use super::*;

    #[derive(Clone, Debug)]
    struct Fake(Arc<usize>);

    impl Connection for Fake {
        fn is_open(&self) -> bool {
            true
        }

        fn is(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.0, &other.0)
        }
    }

    /// Hosts that are good, mute (`None`) or fail with a text.
    fn dialer(hosts: &[Option<Result<(), &'static str>>]) -> Dialer<Fake> {
        let names = (0..hosts.len()).map(|host| format!("h{host}")).collect();
        let hosts = hosts.to_vec();
        let connect_to: ConnectFn<Fake> = Arc::new(move |host| {
            let how = hosts[host];
            Box::pin(async move {
                match how {
                    Some(Ok(())) => Ok(Fake(Arc::new(host))),
                    Some(Err(why)) if why.starts_with("broken") => Err(StoreError::broken(why)),
                    Some(Err(why)) => Err(StoreError::unavailable(why)),
                    None => std::future::pending().await,
                }
            })
        });
        Dialer::new("all".into(), names, 0, connect_to)
    }

    fn soon(millis: u64) -> Instant {
        clock::boot().after(Duration::from_millis(millis))
    }

    #[tokio::test]
    async fn the_host_after_a_mute_one_is_reached_however_impatient_the_callers_are() {
        let dialer = dialer(&[None, Some(Err("refused")), Some(Ok(()))]);
        let give_up = soon(20_000);
        let connected = loop {
            match dialer.connected(soon(100)).await {
                Ok(connected) => break connected,
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.contains("h0: no answer yet"), "{said}");
                }
            }
            assert!(clock::boot() < give_up, "the third was never reached");
        };
        assert_eq!(*connected.0, 2);
        // It is remembered: where that one has merely ended, the next
        // connection begins there.
        lock(&dialer.shared.inner).state = State::Closed;
        let again = dialer.connected(soon(1_000)).await.expect("a connection");
        assert_eq!(*again.0, 2);
    }

    /// A server that restarts, beside one without power.
    #[tokio::test]
    async fn a_host_that_refuses_is_asked_again_while_another_is_mute() {
        for mute in [0, 1] {
            let asked = Arc::new(Mutex::new(0));
            let counted = Arc::clone(&asked);
            let connect_to: ConnectFn<Fake> = Arc::new(move |host| {
                let counted = Arc::clone(&counted);
                Box::pin(async move {
                    if host == mute {
                        return std::future::pending().await;
                    }
                    *lock(&counted) += 1;
                    match *lock(&counted) {
                        ..=3 => Err(StoreError::unavailable("it is shutting down")),
                        _ => Ok(Fake(Arc::new(host))),
                    }
                })
            });
            let names = vec!["h0".into(), "h1".into()];
            let dialer = Dialer::new("all".into(), names, 0, connect_to);
            let until = clock::boot().after(HANDSHAKE_WITHIN / 2);
            let connected = dialer.connected(until).await.expect("a connection");
            assert_eq!((*connected.0, *lock(&asked)), (1 - mute, 4));
        }
    }

    /// Its packets were lost for a moment: the handshake that began then never ends.
    #[tokio::test]
    async fn a_host_that_was_mute_for_a_moment_is_reached_soon() {
        for hosts in [1, 2] {
            let asked = Arc::new(Mutex::new(0));
            let counted = Arc::clone(&asked);
            let connect_to: ConnectFn<Fake> = Arc::new(move |host| {
                let counted = Arc::clone(&counted);
                Box::pin(async move {
                    *lock(&counted) += 1;
                    if *lock(&counted) <= hosts {
                        std::future::pending::<()>().await;
                    }
                    Ok(Fake(Arc::new(host)))
                })
            });
            let names = (0..hosts).map(|host| format!("h{host}")).collect();
            let dialer = Dialer::new("all".into(), names, 0, connect_to);
            let until = clock::boot().after(HANDSHAKE_WITHIN / 2);
            let connected = dialer.connected(until).await.expect("a connection");
            assert_eq!((*connected.0, *lock(&asked)), (0, hosts + 1));
        }
    }

    /// A distant host is not given up for being distant, and one that says nothing holds
    /// no third connection.
    #[tokio::test]
    async fn beside_a_handshake_that_takes_long_there_is_one_other() {
        let alive = Arc::new(());
        let (counted, most) = (Arc::clone(&alive), Arc::new(Mutex::new(0)));
        let (seen, asked) = (Arc::clone(&most), Mutex::new(0));
        let connect_to: ConnectFn<Fake> = Arc::new(move |_| {
            *lock(&asked) += 1;
            let (is_first, running) = (*lock(&asked) == 1, Arc::clone(&counted));
            let mut most = lock(&seen);
            // But for the closure's own, and the test's.
            *most = (*most).max(Arc::strong_count(&running) - 2);
            Box::pin(async move {
                let _running = running;
                if !is_first {
                    std::future::pending::<()>().await;
                }
                sleep(NEXT_HOST_AFTER * 7 / 2).await;
                Ok(Fake(Arc::new(0)))
            })
        });
        let dialer = Dialer::new("all".into(), vec!["h0".into()], 0, connect_to);
        let connected = dialer.connected(soon(20_000)).await.expect("a connection");
        assert_eq!(*connected.0, 0);
        // One that is given up has not ended yet when the next begins.
        assert!((2..=3).contains(&*lock(&most)), "{most:?}");
        drop(alive);
    }

    /// A server that restarts is not flooded by callers who come back at once.
    #[tokio::test]
    async fn however_often_callers_come_hosts_that_fail_are_tried_now_and_then() {
        let asked = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&asked);
        let connect_to: ConnectFn<Fake> = Arc::new(move |_| {
            *lock(&counted) += 1;
            Box::pin(async { Err(StoreError::unavailable("it starts")) })
        });
        let dialer = Dialer::new("all".into(), vec!["h0".into()], 0, connect_to);
        let begun = clock::boot();
        let give_up = begun.after(AGAIN_AFTER_MAX * 4);
        while clock::boot() < give_up {
            // A call that has less time than the pause gets the last error.
            for millis in [1, 2_000] {
                let refused = dialer.connected(soon(millis)).await.map(|_| ());
                let why = refused.expect_err("it starts").to_string();
                assert!(why.contains("h0: it starts"), "{why}");
            }
            sleep(Duration::from_millis(5)).await;
        }
        // At 0, 1/4, 3/4, 7/4, 11/4 and 15/4 s, and one that was waited for.
        let asked = *lock(&asked);
        assert!((3..=7).contains(&asked), "{asked}");
    }

    /// As those that compare servers for seconds do: at each moment there is one with
    /// which a handshake goes on.
    #[tokio::test]
    async fn hosts_that_take_long_to_refuse_are_told_of_once_all_have() {
        let connect_to: ConnectFn<Fake> = Arc::new(move |_| {
            Box::pin(async move {
                sleep(NEXT_HOST_AFTER * 3 / 2).await;
                Err(StoreError::unavailable("a copy"))
            })
        });
        let names = vec!["h0".into(), "h1".into()];
        let dialer = Dialer::new("all".into(), names, 0, connect_to);
        let refused = dialer.connected(soon(10_000)).await.map(|_| ());
        let why = refused.expect_err("copies").to_string();
        assert!(why.contains("no host of all can be used"), "{why}");
        assert!(why.contains("h0: a copy; h1: a copy"), "{why}");
    }

    /// A wrong password is not tried until the account is locked.
    #[tokio::test]
    async fn a_host_that_a_person_must_mend_is_not_asked_again() {
        let dialer = dialer(&[None, Some(Err("broken: no such user"))]);
        let asked = clock::boot();
        let refused = dialer.connected(asked.after(NEXT_HOST_AFTER * 2)).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))));
        let said = refused.unwrap_err().to_string();
        assert!(said.contains("h1: broken: no such user"), "{said}");
    }

    #[tokio::test]
    async fn a_handshake_that_panics_has_failed_and_says_by_what() {
        let connect_to: ConnectFn<Fake> = Arc::new(|_| Box::pin(async { panic!("valid PEM") }));
        let dialer = Dialer::new("all".into(), vec!["h0".into()], 0, connect_to);
        let refused = dialer.connected(soon(20_000)).await;
        let Err(StoreError::Unavailable(why)) = refused else {
            panic!("{refused:?}");
        };
        let why = why.to_string();
        assert!(
            why.starts_with("h0: ") && why.ends_with("panicked: valid PEM"),
            "{why}"
        );
    }

    #[tokio::test]
    async fn when_all_fail_each_is_named_with_its_reason() {
        // The one that refuses may be back soon.
        let failing = dialer(&[Some(Err("refused")), Some(Err("broken: no such user"))]);
        let refused = failing.connected(soon(20_000)).await;
        let Err(StoreError::Unavailable(why)) = refused else {
            panic!("{refused:?}");
        };
        let why = why.to_string();
        for words in ["h0: refused", "h1: broken: no such user"] {
            assert!(why.contains(words), "{words}: {why}");
        }
        let failing = dialer(&[Some(Err("broken: a")), Some(Err("broken: b"))]);
        let refused = failing.connected(soon(20_000)).await;
        assert!(matches!(refused, Err(StoreError::Broken(_))), "{refused:?}");
        // The only one is named, too, and once.
        for (said, told) in [("refused", "h0: refused"), ("h0 is away", "h0 is away")] {
            let failing = dialer(&[Some(Err(said))]);
            let refused = failing.connected(soon(20_000)).await;
            let Err(StoreError::Unavailable(why)) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(why.to_string(), told);
        }
        // One that a person must mend hides none that works.
        let other = dialer(&[Some(Err("broken")), Some(Ok(()))]);
        assert_eq!(*other.connected(soon(20_000)).await.expect("it").0, 1);
    }

    #[cfg(any(feature = "consul", feature = "kubernetes", feature = "nats"))]
    #[tokio::test]
    async fn a_call_that_is_dropped_leaves_a_connection_only_if_it_is_silent() {
        let dialer = dialer(&[Some(Ok(())), Some(Ok(()))]);
        let first = dialer.connected(soon(20_000)).await.expect("it");
        // The caller drops the call; the connection has answered another one.
        let dropped = dialer.pending(&first);
        sleep(Duration::from_millis(20)).await;
        dialer.pending(&first).ended(true);
        drop(dropped);
        let still = dialer.connected(soon(20_000)).await.expect("it");
        assert!(still.is(&first));
        // Another one was answered long ago.
        let dropped = dialer.pending(&first);
        dialer.pending(&first).ended(true);
        sleep(Duration::from_millis(200)).await;
        drop(dropped);
        let second = dialer.connected(soon(20_000)).await.expect("it");
        assert_eq!(*second.0, 1);
        // None was.
        drop(dialer.pending(&second));
        let third = dialer.connected(soon(20_000)).await.expect("it");
        assert_eq!(*third.0, 0);
        dialer.pending(&third).ended(false);
        assert_eq!(*dialer.connected(soon(20_000)).await.expect("it").0, 1);
    }

    #[tokio::test]
    async fn a_host_that_was_left_for_another_comes_last() {
        let dialer = dialer(&[Some(Ok(())), Some(Ok(()))]);
        let first = dialer.connected(soon(20_000)).await.expect("it");
        assert_eq!(*first.0, 0);
        dialer.abandon(&first);
        let second = dialer.connected(soon(20_000)).await.expect("it");
        assert_eq!(*second.0, 1);
        // Who was left already leaves nobody else.
        dialer.abandon(&first);
        let still = dialer.connected(soon(20_000)).await.expect("it");
        assert!(still.is(&second));
    }
}
