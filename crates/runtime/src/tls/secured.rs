//! A connection with TLS, whose other side is judged again while it is up.
//!
//! A certificate is judged when a connection is made. After that its authority
//! may be taken out of the files, or it may be revoked. A connection that is up
//! must not outlive that: who has a stolen key keeps a connection up as long as
//! neither side ends it. So each keeps the chain that the other side has shown. Before
//! anything passes over it, in either direction, it looks whether the files have
//! changed, at most once in [`LOOK_EVERY`]. If they have, the chain is judged as
//! that of a new connection would be, and the connection ends if it is refused.
//!
//! **Of which time.** The chain is judged as of the time at which the connection
//! was made. A certificate that has merely expired since then is believed on
//! it. It does not hide what else there is to say of it: a verifier looks at the
//! dates first, so as of now it would not get to the authority and the lists.
//! Neither roots nor serial numbers on a list depend on the time.
//!
//! **Where.** To judge takes a signature for each certificate, and one over all
//! of a list for each authority: milliseconds, for each of thousands of
//! connections at once. So it is done by one thread ([`Judging`]), one chain
//! after the other; a message costs a look at the clock. Until a chain is judged
//! its connection goes on.
//!
//! How long a connection outlives the change of a file, if something passes over
//! it all the time: at most twice [`LOOK_EVERY`], since it may be the first to
//! have the files looked at, and hears of that the next time; and the time in
//! which the thread judges those before it. A connection over which nothing
//! passes is not looked at and costs nothing. It has as long from the first that
//! passes again.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustls::Error;
use rustls::pki_types::{CertificateDer, UnixTime};
use tenure_core::time::Instant;
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::reloaded::Reloaded;
use super::tls_error::describe_certificate_error;
use crate::clock;

/// How often a connection that is up looks whether the files have changed, at
/// most.
const LOOK_EVERY: Duration = Duration::from_secs(3);

type Chain = [CertificateDer<'static>];

/// Judges by what files make the chain that the other side has shown, as of a
/// time of the calendar.
pub trait Judge<T>: Fn(&T, &Chain, UnixTime) -> Result<(), Error> + Send + Sync + 'static {}

impl<T, F> Judge<T> for F where
    F: Fn(&T, &Chain, UnixTime) -> Result<(), Error> + Send + Sync + 'static
{
}

/// Has a chain judged if the files have changed since the last time.
pub type Recheck = Box<dyn FnMut(&Chain, &Arc<Verdict>) + Send + Sync>;

/// What came of judging a chain again.
#[derive(Default)]
pub struct Verdict {
    /// The chain waits for the thread that judges it.
    waits: AtomicBool,
    /// Why the other side is believed no more.
    distrusted: OnceLock<Error>,
}

/// Has the other side of a connection judged again whenever the files have
/// changed since they made `seen`, with which it was let in.
pub fn again<T: Clone + Send + Sync + 'static>(
    (files, judging): (&Reloaded<T>, &Judging),
    mut seen: T,
    same: fn(&T, &T) -> bool,
    judge: impl Judge<T>,
) -> Recheck {
    let (files, judging, judge) = (files.clone(), judging.clone(), Arc::new(judge));
    let as_of = UnixTime::now();
    Box::new(move |shown, verdict| {
        // Among the messages of the connection: not even for a moment.
        let made = files.latest();
        if same(&made, &seen) || verdict.waits.swap(true, Ordering::AcqRel) {
            return;
        }
        let (by, shown) = (made.clone(), shown.to_vec());
        let (judge, to) = (Arc::clone(&judge), Arc::clone(verdict));
        let begun = judging.begin(Box::new(move || {
            if let Err(why) = judge(&by, &shown, as_of) {
                // There is none before it: who is distrusted is judged no more.
                let _ = to.distrusted.set(why);
            }
            to.waits.store(false, Ordering::Release);
        }));
        if begun {
            seen = made;
        } else {
            verdict.waits.store(false, Ordering::Release);
        }
    })
}

/// The thread that judges chains again, one after the other. It ends when there
/// is none left. At most one of each connection waits for it.
#[derive(Clone, Default, Debug)]
pub struct Judging(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    chains: VecDeque<Box<dyn FnOnce() + Send>>,
    under_way: bool,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} chains", self.chains.len())
    }
}

impl Judging {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a chain judged; `false` if there is no thread for it, and it is to
    /// be tried again.
    fn begin(&self, chain: Box<dyn FnOnce() + Send>) -> bool {
        let mut queue = self.lock();
        queue.chains.push_back(chain);
        if queue.under_way {
            return true;
        }
        let judging = self.clone();
        let thread = std::thread::Builder::new().name("tenure-judge".into());
        let begun = thread.spawn(move || {
            let _ends = Ends(&judging);
            while let Some(chain) = judging.next() {
                chain();
            }
        });
        if let Err(error) = begun {
            queue.chains.pop_back();
            tracing::warn!("certificates of connections are not judged again yet: {error}");
            return false;
        }
        queue.under_way = true;
        true
    }

    fn next(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let mut queue = self.lock();
        let chain = queue.chains.pop_front();
        queue.under_way = chain.is_some();
        chain
    }
}

/// The thread. If it panics the next chain begins another.
struct Ends<'a>(&'a Judging);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().under_way = false;
        }
    }
}

/// A connection with TLS.
pub struct Secured {
    stream: TlsStream<TcpStream>,
    recheck: Recheck,
    /// Who is at the other end; a connection that has ended does not say.
    from: Option<SocketAddr>,
    looked: Instant,
    verdict: Arc<Verdict>,
    ended: bool,
}

impl Secured {
    /// Has the other side judged again by `recheck`.
    pub fn new(stream: TlsStream<TcpStream>, recheck: Recheck) -> Self {
        Self {
            from: stream.get_ref().0.peer_addr().ok(),
            stream,
            recheck,
            looked: clock::boot(),
            verdict: Arc::default(),
            ended: false,
        }
    }

    /// The connection, as long as the other side is believed.
    pub fn believed(&mut self) -> io::Result<Pin<&mut TlsStream<TcpStream>>> {
        let now = clock::boot();
        if !self.ended && now.since(self.looked) >= LOOK_EVERY {
            self.looked = now;
            if let Some(shown) = self.stream.get_ref().1.peer_certificates() {
                (self.recheck)(shown, &self.verdict);
            }
        }
        match self.verdict.distrusted.get() {
            None => Ok(Pin::new(&mut self.stream)),
            Some(why) => {
                if !self.ended {
                    self.ended = true;
                    let from = self.from.map_or_else(String::new, |it| it.to_string());
                    let found = match why {
                        Error::InvalidCertificate(why) => describe_certificate_error(why).0,
                        other => format!("one that cannot be judged ({other})"),
                    };
                    tracing::warn!(from, "a connection ends: its certificate is {found}");
                }
                Err(io::Error::new(io::ErrorKind::InvalidData, why.clone()))
            }
        }
    }

    /// The connection, to end it.
    pub fn stream(&mut self) -> Pin<&mut TlsStream<TcpStream>> {
        Pin::new(&mut self.stream)
    }
}

impl Deref for Secured {
    type Target = TlsStream<TcpStream>;

    fn deref(&self) -> &Self::Target {
        &self.stream
    }
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use rcgen::{CertificateParams, KeyPair};
    use rustls::CertificateError::UnknownIssuer;
    use rustls::server::danger::ClientCertVerifier;

    use super::*;
    use crate::tls::revocation::tests::{Authority, authority};
    use crate::tls::revocation::{RevocationLists, judge};
    use crate::tls::roots;

    type Verifier = Arc<dyn ClientCertVerifier>;

    /// A certificate that is good for so many seconds.
    fn certificate(by: &Authority, seconds: u64) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::new(vec!["h".to_owned()]).expect("parameters");
        let now = Duration::from_secs(UnixTime::now().as_secs());
        let now = std::time::SystemTime::UNIX_EPOCH + now;
        params.not_before = (now - Duration::from_secs(60)).into();
        params.not_after = (now + Duration::from_secs(seconds)).into();
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, by).expect("signed");
        vec![signed.der().clone()]
    }

    fn open(file: &Path) -> Reloaded<Verifier> {
        let from = file.to_owned();
        let make = move || {
            let lists = RevocationLists::read(None::<&PathBuf>)?;
            lists.client_verifier(&Arc::new(roots(&from)?), (false, false))
        };
        Reloaded::open("authorities", vec![file.to_owned()], make).expect("a file")
    }

    /// A connection that was made when the file had the first authority.
    struct Up(Recheck, Vec<CertificateDer<'static>>, Arc<Verdict>);

    impl Up {
        fn new(files: &Reloaded<Verifier>, shown: Vec<CertificateDer<'static>>) -> Self {
            let judge = |made: &Verifier, shown: &Chain, as_of| judge(&**made, shown, as_of);
            let judging = Judging::default();
            let recheck = again((files, &judging), files.current(), Arc::ptr_eq, judge);
            Self(recheck, shown, Arc::default())
        }

        fn ends(&mut self) -> Option<Error> {
            (self.0)(&self.1, &self.2);
            while self.2.waits.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            self.2.distrusted.get().cloned()
        }
    }

    /// Waits until other verifiers are in use.
    fn renewed(files: &Reloaded<Verifier>, before: &Verifier) -> Verifier {
        loop {
            let now = files.current();
            if !Arc::ptr_eq(&now, before) {
                return now;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_connection_that_is_up_ends_with_its_authority_and_not_with_its_certificate() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ca.pem");
        let (old, new) = (authority("old"), authority("new"));
        std::fs::write(&file, old.pem()).expect("written");
        let files = open(&file);
        let before = files.current();
        let mut short = Up::new(&files, certificate(&old, 2));
        let mut long = Up::new(&files, certificate(&old, 3_600));
        assert_eq!((short.ends(), long.ends()), (None, None));

        std::fs::write(&file, old.pem() + &new.pem()).expect("written");
        let both = renewed(&files, &before);
        while judge(&*both, &short.1, UnixTime::now()).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!((short.ends(), long.ends()), (None, None), "it has expired");

        std::fs::write(&file, new.pem()).expect("written");
        renewed(&files, &both);
        let why = Some(Error::InvalidCertificate(UnknownIssuer));
        assert_eq!((short.ends(), long.ends()), (why.clone(), why));
    }
}
