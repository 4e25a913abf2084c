//! A proxy between a store and its servers, which cuts a connection in the middle of
//! what it carries when it is told to.
//!
//! Both sides are dropped at once. So the client sees its connection end, and the
//! server has got all of the request, or a part of it.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// How much is carried at a time.
const CHUNK: usize = 16 * 1024;
/// How long the answer of the server is waited for that is not passed on.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Where a connection is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Half of what the client sends next has reached the server.
    Request,
    /// All of it has, and the server has answered; the client does not hear it.
    Answer,
}

/// What all proxies of a trial are told, and count.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The place, and how many parts of what the client sends pass before.
    next: Mutex<Option<(Place, u32)>>,
    cuts: AtomicU64,
}

impl Order {
    /// The next connection that sends is cut, after `parts` parts.
    pub(super) fn cut(&self, place: Place, parts: u32) {
        *self.lock() = Some((place, parts));
    }

    /// Nothing is cut any more.
    pub(super) fn withdraw(&self) {
        *self.lock() = None;
    }

    /// How many connections were cut.
    pub(super) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Place, u32)>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where to cut what was just read of a client, if at all.
    fn take(&self) -> Option<Place> {
        let mut next = self.lock();
        match next.as_mut()? {
            (place, 0) => {
                let place = *place;
                *next = None;
                self.cuts.fetch_add(1, Ordering::Relaxed);
                Some(place)
            }
            (_, parts) => {
                *parts -= 1;
                None
            }
        }
    }
}

/// A proxy that listens. Dropping it ends all of its connections.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens, and carries to `server`, a host and a port.
    pub(super) async fn start(server: String, order: Arc<Order>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let accept = async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, order) = (server.clone(), Arc::clone(&order));
                connections.spawn(async move {
                    // Its end is seen by both sides.
                    drop(carry(&client, &server, &order).await);
                });
                while connections.try_join_next().is_some() {}
            }
        };
        Ok(Self {
            address,
            task: tokio::spawn(accept),
        })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Carries a connection until one side ends it, or it is cut.
async fn carry(client: &TcpStream, server: &str, order: &Order) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            ready = client.readable() => {
                ready?;
                let Some(chunk) = read(client, &mut buffer)? else { continue };
                if chunk.is_empty() {
                    return Ok(());
                }
                match order.take() {
                    None => write(&server, chunk).await?,
                    Some(Place::Request) => {
                        let (half, _) = chunk.split_at(chunk.len() / 2);
                        return write(&server, half).await;
                    }
                    Some(Place::Answer) => {
                        write(&server, chunk).await?;
                        drop(timeout(ANSWER_WITHIN, server.readable()).await);
                        return Ok(());
                    }
                }
            }
            ready = server.readable() => {
                ready?;
                let Some(chunk) = read(&server, &mut buffer)? else { continue };
                if chunk.is_empty() {
                    return Ok(());
                }
                write(client, chunk).await?;
            }
        }
    }
}

/// What has come, nothing at the end; `None` if it was a false alarm.
fn read<'a>(from: &TcpStream, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    match from.try_read(buffer) {
        Ok(count) => Ok(buffer.get(..count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

async fn write(to: &TcpStream, mut chunk: &[u8]) -> io::Result<()> {
    while !chunk.is_empty() {
        to.writable().await?;
        match to.try_write(chunk) {
            Ok(count) => chunk = chunk.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
