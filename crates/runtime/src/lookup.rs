//! Looks up host names, for connections that are tried again and again.
//!
//! A client gives an attempt to connect up after a fraction of a second, and tries another
//! server. If it gave the lookup up too, no lookup would succeed that takes longer: with one
//! dead name server out of two each takes five seconds. So
//!
//! - a lookup goes on when its attempt is given up. Each name has one lookup at a time, and
//!   the next attempt waits for the same one ([`lookup`]). Where no attempt waits when a
//!   lookup succeeds, the next one gets its answer, once, if it comes within 30 s;
//! - where a lookup takes longer than 50 ms, or fails, [`lookup_or_last`] gives the addresses
//!   that the name had last in this process. It is for servers that prove to which cluster
//!   they belong. Any other server may have moved, and another may have its old address.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock;

/// After this time a caller of [`lookup_or_last`] gets the last addresses, if they are known.
/// It is shorter than any attempt to connect.
const FALLBACK_AFTER: Duration = Duration::from_millis(50);
/// If nobody waits when a lookup ends, its answer is kept for the next attempt for this time.
const UNCLAIMED_FOR: Duration = Duration::from_secs(30);
/// After so long without an answer the next address of a name is tried as well. RFC 8305
/// wants a tenth of a second at least.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(100);
/// So many names are remembered. Beyond that any other is forgotten.
const NAMES_MAX: usize = 256;

/// Each with the port 0: the one that is asked for takes its place.
type Addresses = Arc<[SocketAddr]>;
/// An error is its text, which can be copied for each caller that waits.
type Answer = Result<Addresses, String>;

static LOOKUPS: LazyLock<Lookups> = LazyLock::new(Lookups::default);

/// The addresses of a host, at least one. The host may be written as a number.
///
/// # Errors
/// What the system says.
pub async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    LOOKUPS.sockets(host, port, false).await
}

/// The addresses of a host, or those that it had last if the lookup fails or takes longer
/// than 50 ms.
///
/// # Errors
/// What the system says, where the name was never found in this process.
pub async fn lookup_or_last(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    LOOKUPS.sockets(host, port, true).await
}

/// Connects to `HOST:PORT`, to the first address of the host that takes the connection. It may
/// be one that the host had last.
///
/// # Errors
/// What the system says.
pub async fn connect(address: &str) -> io::Result<TcpStream> {
    // An address with a zone is none of a host alone (`[fe80::1%2]:7500`).
    if let Ok(number) = address.parse::<SocketAddr>() {
        return TcpStream::connect(number).await;
    }
    let parts = address.rsplit_once(':');
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port)) = parts else {
        let text = format!("expected HOST:PORT, found {address}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    };
    first_to_connect(lookup_or_last(host, port).await?).await
}

/// Connects to the first address that takes the connection. The next attempt begins
/// [`NEXT_ADDRESS_AFTER`] later, or as soon as one fails. The system gives up a silent address
/// only after minutes.
async fn first_to_connect(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut addresses = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut failure = io::Error::other("no address");
    loop {
        let next = addresses.next();
        if let Some(next) = next {
            attempts.spawn(TcpStream::connect(next));
        }
        tokio::select! {
            done = attempts.join_next() => match done {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => failure = error,
                Some(Err(panicked)) => failure = io::Error::other(panicked),
                None => return Err(failure),
            },
            () = tokio::time::sleep(NEXT_ADDRESS_AFTER), if next.is_some() => {}
        }
    }
}

/// Whether [`lookup_or_last`] has answered the latest question for a host with the addresses
/// that it had before. Another server may have them now.
pub fn gave_last_addresses(host: &str) -> bool {
    LOOKUPS
        .lock()
        .get(host)
        .is_some_and(|name| name.gave_last_addresses)
}

async fn ask_system(host: String) -> Answer {
    let found = tokio::net::lookup_host((host.as_str(), 0)).await;
    let found = found.map_err(|error| error.to_string())?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.dedup();
    if addresses.is_empty() {
        return Err(format!("{host} has no address"));
    }
    Ok(addresses.into())
}

/// What is known of each name.
#[derive(Clone, Default)]
struct Lookups(Arc<Mutex<HashMap<String, Name>>>);

#[derive(Default)]
struct Name {
    /// What the last lookup that succeeded has found.
    last: Option<Addresses>,
    /// The result of a lookup that ended while no attempt waited, and when it ended. The next
    /// attempt takes it.
    unclaimed: Option<(Addresses, Instant)>,
    /// Whether the latest question was answered with the last addresses.
    gave_last_addresses: bool,
    /// The lookup that is under way.
    running: Option<watch::Receiver<Option<Answer>>>,
}

impl Lookups {
    async fn sockets(&self, host: &str, port: u16, or_last: bool) -> io::Result<Vec<SocketAddr>> {
        let number = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        if let Ok(address) = number.unwrap_or(host).parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let mut found = self.addresses(host, or_last, ask_system).await?.to_vec();
        found.iter_mut().for_each(|it| it.set_port(port));
        Ok(found)
    }

    async fn addresses<F>(
        &self,
        host: &str,
        or_last: bool,
        ask: impl Fn(String) -> F,
    ) -> io::Result<Addresses>
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let (last, mut running) = self.join(host, ask);
        let answer = async {
            let told = running.wait_for(Option::is_some).await;
            // The runtime that looked it up has ended.
            told.map_or_else(|_| None, |answer| answer.clone())
                .unwrap_or_else(|| Err(format!("the lookup of {host} was cut short")))
        };
        let (given, are_last) = match last.filter(|_| or_last) {
            None => (answer.await.map_err(io::Error::other)?, false),
            Some(last) => match tokio::time::timeout(FALLBACK_AFTER, answer).await {
                Ok(Ok(found)) => (found, false),
                Ok(Err(_)) | Err(_) => (last, true),
            },
        };
        if let Some(name) = self.lock().get_mut(host) {
            name.gave_last_addresses = are_last;
        }
        Ok(given)
    }

    /// Returns the last addresses, and a lookup. That is the one that runs; else the one whose
    /// answer is kept; else a new one.
    fn join<F>(
        &self,
        host: &str,
        ask: impl Fn(String) -> F,
    ) -> (Option<Addresses>, watch::Receiver<Option<Answer>>)
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let mut names = self.lock();
        if names.len() >= NAMES_MAX && !names.contains_key(host) {
            let any = names.keys().next().cloned();
            any.and_then(|any| names.remove(&any));
        }
        let name = names.entry(host.to_owned()).or_default();
        if let Some((addresses, at)) = name.unclaimed.take()
            && clock::boot().since(at) < UNCLAIMED_FOR
        {
            return (name.last.clone(), watch::channel(Some(Ok(addresses))).1);
        }
        let goes_on = |it: &&watch::Receiver<_>| it.has_changed().is_ok();
        if let Some(running) = name.running.as_ref().filter(goes_on) {
            return (name.last.clone(), running.clone());
        }
        let (tell, running) = watch::channel(None);
        name.running = Some(running.clone());
        let last = name.last.clone();
        drop(names);
        let (all, host, asked) = (self.clone(), host.to_owned(), ask(host.to_owned()));
        tokio::spawn(async move {
            let answer = asked.await;
            if let Some(name) = all.lock().get_mut(&host) {
                name.running = None;
                if let Ok(addresses) = &answer {
                    name.last = Some(Arc::clone(addresses));
                    let is_unclaimed = tell.receiver_count() == 0;
                    name.unclaimed = is_unclaimed.then(|| (Arc::clone(addresses), clock::boot()));
                }
            }
            tell.send_replace(Some(answer));
        });
        (last, running)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Name>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::Pin;

    use tokio::sync::oneshot;

    use super::*;

    type Asked = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn addresses(last: u8) -> Addresses {
        Arc::new([SocketAddr::from(([10, 0, 0, last], 0))])
    }

    /// A lookup that ends with the answer that the test sends. It panics if it begins twice.
    fn told_later() -> (oneshot::Sender<Answer>, impl Fn(String) -> Asked) {
        let (tell, told) = oneshot::channel();
        let told = Mutex::new(Some(told));
        let ask = move |_| {
            let told = told.lock().expect("sound").take();
            let told = told.expect("it begins once");
            Box::pin(async move { told.await.expect("told") }) as Asked
        };
        (tell, ask)
    }

    async fn found(it: &Lookups, last: u8) {
        let answer = it.addresses("h", true, |_| async move { Ok(addresses(last)) });
        assert_eq!(answer.await.expect("found"), addresses(last));
    }

    #[tokio::test]
    async fn a_lookup_goes_on_when_nobody_waits_and_others_join_it() {
        let (it, (tell, slow)) = (Lookups::default(), told_later());
        for _ in 0..3 {
            let given_up = tokio::time::timeout(FALLBACK_AFTER, it.addresses("h", true, &slow));
            given_up.await.expect_err("it takes longer");
        }
        tell.send(Ok(addresses(1))).expect("it goes on");
        let joined = it.addresses("h", true, &slow).await;
        assert_eq!(joined.expect("found"), addresses(1));
    }

    /// Each attempt is over before a lookup, and the next one begins after it.
    #[tokio::test]
    async fn an_answer_that_nobody_waited_for_is_for_the_next_attempt() {
        let (it, (tell, slow)) = (Lookups::default(), told_later());
        let given_up = tokio::time::timeout(FALLBACK_AFTER, it.addresses("h", false, &slow));
        given_up.await.expect_err("it takes longer");
        tell.send(Ok(addresses(1))).expect("it goes on");
        while it.lock()["h"].running.is_some() {
            tokio::task::yield_now().await;
        }
        let next = it.addresses("h", false, &slow).await;
        assert_eq!(next.expect("found"), addresses(1));
        let once = it.addresses("h", false, |_| pending());
        tokio::time::timeout(FALLBACK_AFTER, once)
            .await
            .expect_err("it is asked again");
    }

    #[tokio::test]
    async fn a_slow_or_failed_lookup_leaves_the_last_addresses_in_use() {
        let it = Lookups::default();
        let unknown = it.addresses("h", true, |_| async { Err("no such name".to_owned()) });
        assert_eq!(
            unknown.await.expect_err("never found").to_string(),
            "no such name"
        );
        found(&it, 1).await;
        let failed = it.addresses("h", true, |_| async { Err("no server answers".to_owned()) });
        assert_eq!(failed.await.expect("the last"), addresses(1));
        assert!(it.lock()["h"].gave_last_addresses);
        found(&it, 2).await;
        let (tell, slow) = told_later();
        for _ in 0..2 {
            let last = it.addresses("h", true, &slow).await;
            assert_eq!(last.expect("the last"), addresses(2));
        }
        assert!(it.lock()["h"].gave_last_addresses);
        tell.send(Ok(addresses(3))).expect("it goes on");
        while it.lock()["h"].running.is_some() {
            tokio::task::yield_now().await;
        }
        found(&it, 3).await;
        assert!(!it.lock()["h"].gave_last_addresses);
        let waits = it.addresses("h", false, |_| pending());
        tokio::time::timeout(FALLBACK_AFTER * 2, waits)
            .await
            .expect_err("the last does not count");
        let last = it.addresses("h", true, |_| pending()).await;
        assert_eq!(last.expect("the last"), addresses(3));
    }

    #[test]
    fn a_lookup_that_ended_with_its_runtime_is_begun_again() {
        let it = Lookups::default();
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().expect("a runtime")
        };
        runtime().block_on(async {
            let hangs = it.addresses("h", true, |_| pending());
            tokio::time::timeout(FALLBACK_AFTER, hangs)
                .await
                .expect_err("hangs");
        });
        runtime().block_on(found(&it, 1));
    }

    #[tokio::test]
    async fn only_so_many_names_are_remembered() {
        let it = Lookups::default();
        for number in 0..NAMES_MAX + 10 {
            let host = number.to_string();
            let answer = it.addresses(&host, true, |_| async { Ok(addresses(1)) });
            answer.await.expect("found");
        }
        assert_eq!(it.lock().len(), NAMES_MAX);
    }

    /// The first takes no connection, and does not answer: its queue is full.
    #[tokio::test]
    async fn an_address_that_does_not_answer_keeps_no_other_waiting() {
        let silent = tokio::net::TcpSocket::new_v4().expect("a socket");
        silent.bind(([127, 0, 0, 1], 0).into()).expect("bound");
        let silent = silent.listen(0).expect("listens");
        let full = silent.local_addr().expect("bound");
        let mut waiting = Vec::new();
        while let Ok(taken) = tokio::time::timeout(FALLBACK_AFTER, TcpStream::connect(full)).await {
            waiting.push(taken.expect("the queue has room"));
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("listens");
        let refuses = ([127, 0, 0, 1], 1).into();
        let addresses = vec![full, refuses, listener.local_addr().expect("bound")];
        let connected = tokio::time::timeout(Duration::from_secs(10), first_to_connect(addresses));
        let connected = connected.await.expect("in time").expect("connected");
        assert_eq!(connected.peer_addr().ok(), listener.local_addr().ok());
        let refused = first_to_connect(vec![refuses]).await.expect_err("refused");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn numbers_and_names_of_this_machine_are_connected_to() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("listens");
        let port = listener.local_addr().expect("bound").port();
        for host in [
            "127.0.0.1",
            "[::ffff:127.0.0.1]",
            "[::ffff:127.0.0.1%0]",
            "localhost",
        ] {
            connect(&format!("{host}:{port}")).await.expect("connected");
        }
        let wrong = connect("127.0.0.1").await.expect_err("no port");
        assert!(wrong.to_string().contains("HOST:PORT"), "{wrong}");
    }
}
