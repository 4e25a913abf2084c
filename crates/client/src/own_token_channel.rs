//! Servers on this machine, for a client that was given no token.
//!
//! Servers of one user share a token by themselves, which a client of the same
//! user finds where they keep it ([`OwnToken`]). Who listens on a loopback port
//! is not known, so what calls carry is not the token but a proof of it: of
//! this connection, by the address and the moment at which it was dialled.
//!
//! So a proof belongs to a connection, and each connection is made here, rather
//! than by the gRPC library whenever it has lost one: a new one has a new proof.
//! One over which a server has refused a call is made again, since the server
//! may have begun to listen after it was dialled.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tenure_core::time::Instant;
use tenure_runtime::own_token::{OwnToken, is_loopback};
use tenure_runtime::tls::ClientTls;
use tenure_runtime::{clock, drive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response, header::AUTHORIZATION};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::{Service as _, ServiceExt as _};

use super::connector::{Failure, over_tls, plain};
use super::token::{Header, header};

/// After so long without an answer the token's file system hangs, and
/// connections are made without the token.
const SLOW: Duration = Duration::from_secs(2);

/// A server that may be on this machine. Clones share one connection, which is
/// made by the first call, and again by the first after it was lost.
#[derive(Clone)]
pub(super) struct OwnTokenChannel(Arc<Shared>);

struct Shared {
    endpoint: Endpoint,
    /// How long an attempt to connect may take.
    within: Duration,
    tls: Option<Arc<ClientTls>>,
    /// Held while one is made, so that one is made for all who wait.
    authenticated: tokio::sync::Mutex<Option<Authenticated>>,
}

/// A connection, and what calls over it carry.
#[derive(Clone)]
struct Authenticated {
    channel: Channel,
    proof: Option<Header>,
    over: Arc<AtomicBool>,
}

impl Authenticated {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl fmt::Debug for OwnTokenChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Near({})", self.0.endpoint.uri())
    }
}

impl OwnTokenChannel {
    /// Connects to `endpoint`, each attempt within this time.
    pub(super) fn new(endpoint: Endpoint, within: Duration, tls: Option<Arc<ClientTls>>) -> Self {
        let endpoint = endpoint.connect_timeout(within);
        Self(Arc::new(Shared {
            endpoint,
            within,
            tls,
            authenticated: tokio::sync::Mutex::new(None),
        }))
    }

    /// Connects, if there is no connection.
    pub(super) async fn connect(&self) -> Result<(), Failure> {
        self.authenticated().await.map(drop)
    }

    pub(super) async fn call(self, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
        let Authenticated {
            mut channel,
            proof,
            over,
        } = self.authenticated().await?;
        if let Some(proof) = proof {
            request.headers_mut().insert(AUTHORIZATION, proof);
        }
        let answer = channel.ready().await?.call(request).await?;
        if is_refused(&answer) {
            over.store(true, Ordering::Release);
        }
        Ok(answer)
    }

    /// The connection. It is made although the caller that waits for it stops
    /// to wait: else one that takes long would never be made.
    async fn authenticated(&self) -> Result<Authenticated, Failure> {
        let shared = Arc::clone(&self.0);
        let making = drive::background().spawn(async move {
            let mut held = shared.authenticated.lock().await;
            if let Some(authenticated) = &*held
                && !authenticated.is_over()
            {
                return Ok(authenticated.clone());
            }
            let authenticated = shared.dial().await?;
            *held = Some(authenticated.clone());
            Ok(authenticated)
        });
        making.await?
    }
}

/// Whether an answer says that the caller is not known, or that it should try
/// again.
fn is_refused(answer: &Response<Body>) -> bool {
    let code = answer.headers().get("grpc-status");
    let code = code.map(|code| Code::from_bytes(code.as_bytes()));
    matches!(code, Some(Code::Unauthenticated | Code::Unavailable))
}

impl Shared {
    async fn dial(&self) -> Result<Authenticated, Failure> {
        let proof = Arc::new(Mutex::new(None));
        let over = Arc::new(AtomicBool::new(false));
        let (found, end) = (Arc::clone(&proof), Arc::clone(&over));
        let (within, tls) = (self.within, self.tls.clone());
        let connector = tower::service_fn(move |to: Uri| {
            let (tls, found, end) = (tls.clone(), Arc::clone(&found), Arc::clone(&end));
            dialled(to, within, tls, found, end)
        });
        let channel = self.endpoint.connect_with_connector(connector).await?;
        let proof = proof.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Authenticated {
            channel,
            proof,
            over,
        })
    }
}

/// Connects once, and leaves the proof that is this connection's.
async fn dialled(
    to: Uri,
    within: Duration,
    tls: Option<Arc<ClientTls>>,
    proof: Arc<Mutex<Option<Header>>>,
    over: Arc<AtomicBool>,
) -> Result<TokioIo<TrackedStream>, Failure> {
    if over.load(Ordering::Acquire) {
        return Err("the connection has ended".into());
    }
    // Before anything is sent: a program that listens there later cannot use
    // it.
    let began = clock::boot();
    let stream = plain(to.clone(), within).await?;
    let address = stream.peer_addr()?;
    if is_loopback(address)
        && let Some(token) = own_token().await
    {
        let said = token.prove(address, began);
        let said = said.map(|said| header(&said)).transpose()?;
        *proof.lock().unwrap_or_else(PoisonError::into_inner) = said;
    }
    let stream: Box<dyn AsyncStream> = match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(over_tls(&tls, &to, stream).await?),
    };
    Ok(TokioIo::new(TrackedStream { stream, over }))
}

/// What bytes go over.
trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for T {}

/// A connection that says when it has ended.
struct TrackedStream {
    stream: Box<dyn AsyncStream>,
    over: Arc<AtomicBool>,
}

impl Drop for TrackedStream {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The token of this user, if there is one and it can be read. What is wrong
/// with it is said once: the servers say the rest.
async fn own_token() -> Option<OwnToken> {
    /// Held while it is read: of a file system that hangs, one thread is held.
    static READING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    /// Since when, in nanoseconds since boot; 0 if it is not.
    static SINCE: AtomicU64 = AtomicU64::new(0);
    let path = OwnToken::path()?;
    let since = SINCE.load(Ordering::Acquire);
    if since != 0 && clock::boot().since(Instant::from_nanos(since)) > SLOW {
        let path = path.display();
        warn_once(format!(
            "{path}: expected to read it within {SLOW:?}, found no answer: its file system hangs"
        ));
        return None;
    }
    // What cannot wait for so long dials again.
    let reading = READING.lock().await;
    SINCE.store(clock::boot().as_nanos(), Ordering::Release);
    let (tell, told) = oneshot::channel();
    let thread = std::thread::Builder::new().name("tenure-token".into());
    let started = thread.spawn(move || {
        let read = OwnToken::read(&path);
        SINCE.store(0, Ordering::Release);
        drop(reading);
        let _ = tell.send(read);
    });
    if let Err(error) = started {
        SINCE.store(0, Ordering::Release);
        warn_once(format!("expected a thread that reads it, found {error}"));
        return None;
    }
    match told.await {
        Ok(Ok(found)) => return found,
        Ok(Err(why)) => warn_once(why),
        Err(_) => warn_once("the thread that reads it panicked; this is a bug".to_owned()),
    }
    None
}

fn warn_once(why: String) {
    static SAID: Mutex<String> = Mutex::new(String::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if *said != why {
        tracing::warn!("calls to this machine are made without the user's token: {why}");
        *said = why;
    }
}
