//! A network of forwarders: one stands before each server, in this process.
//!
//! A server is told to listen elsewhere than where others look for it
//! (`--listen-peers`), and a forwarder stands at the address they know. Each
//! connection between servers begins with a greeting, which says who dialled,
//! so a forwarder knows both ends and can treat every pair, and each
//! direction, by itself.
//!
//! What is cut is *held back*, not thrown away: TCP would send it again. A
//! connection that is dialled through a cut is taken and then says nothing,
//! which is what a half-open connection is. An end is held back like
//! everything else: a cable that is cut does not tell that it was.
//!
//! TCP keeps the order of what it carries, and kernels here cannot be asked to
//! do otherwise. But the protocol between servers must not rest on that: what
//! they say comes by several connections one after the other. So a forwarder
//! takes the streams apart into messages and lets some arrive before others
//! that were sent earlier.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure::core::rng::Rng;
use tenure_alpo::codec::decode_frame;
use tenure_server::transport::{Form, Piece};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until};

use crate::network::{Edge, Edges, Place};
use crate::servers::free;

/// What is read at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// How many messages may be on their way.
const MESSAGES_MAX: usize = 256;
/// What a greeting begins with; after eight bytes of it come its length and
/// its checksum, four bytes each.
const GREETING: &[u8] = b"tenure-";

#[derive(Clone, Default)]
struct Weather {
    edges: Edges,
    /// Grows when every connection is to be reset.
    resets: u64,
}

impl Weather {
    fn edge(&self, from: u64, to: u64) -> Edge {
        self.edges.get(&(from, to)).copied().unwrap_or_default()
    }
}

pub(crate) struct Proxies {
    places: BTreeMap<u64, [String; 3]>,
    weather: watch::Sender<Weather>,
    overtaken: Arc<AtomicU64>,
}

impl Proxies {
    pub(crate) async fn start(count: u64) -> Self {
        let weather = watch::Sender::new(Weather::default());
        let overtaken = Arc::<AtomicU64>::default();
        let mut places = BTreeMap::new();
        for server in 1..=count {
            let before = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let [behind, client] = free();
            let known = before.local_addr().expect("bound").to_string();
            places.insert(server, [known, behind.clone(), client]);
            let way = Way {
                to: server,
                behind,
                weather: weather.subscribe(),
                overtaken: Arc::clone(&overtaken),
            };
            tokio::spawn(way.forward(before));
        }
        Self {
            places,
            weather,
            overtaken,
        }
    }

    pub(crate) fn overtaken(&self) -> u64 {
        self.overtaken.load(Ordering::Relaxed)
    }

    pub(crate) fn place(&self, server: u64) -> Place {
        let [peer, behind, client] = self.places[&server].clone();
        Place {
            peer,
            listen_peers: Some(behind),
            client,
        }
    }

    pub(crate) fn apply(&mut self, edges: &Edges) {
        self.weather.send_if_modified(|weather| {
            let news = weather.edges != *edges;
            weather.edges.clone_from(edges);
            news
        });
    }

    pub(crate) fn reset(&self) {
        self.weather.send_modify(|weather| weather.resets += 1);
    }
}

/// The way to one server.
#[derive(Clone)]
struct Way {
    to: u64,
    behind: String,
    weather: watch::Receiver<Weather>,
    overtaken: Arc<AtomicU64>,
}

impl Way {
    async fn forward(self, listener: TcpListener) {
        loop {
            // Ends with the runtime.
            let (stream, _) = listener.accept().await.expect("it listens");
            tokio::spawn(self.clone().connection(stream));
        }
    }

    async fn connection(mut self, mut dialler: TcpStream) {
        let _ = dialler.set_nodelay(true);
        let Some((from, met, first)) = self.introduced(&mut dialler).await else {
            return;
        };
        let resets = self.weather.borrow_and_update().resets;
        let carry = async {
            let mut through = self.weather.clone();
            let to = self.to;
            let open = through.wait_for(|it| !it.edge(from, to).cut).await.is_ok();
            if !open {
                return;
            }
            let server = match met {
                Some(server) => Some(server),
                None => self.behind().await,
            };
            let Some(mut server) = server else {
                return;
            };
            if first.write(&mut server).await.is_err() {
                return;
            }
            let mut dialler = dialler;
            let (dialler_reads, dialler_writes) = dialler.split();
            let (server_reads, server_writes) = server.split();
            // Either end ends both, once word of it has got through.
            tokio::select! {
                () = self.carry(dialler_reads, server_writes, (from, to)) => {}
                () = self.carry(server_reads, dialler_writes, (to, from)) => {}
            }
        };
        let mut reset = self.weather.clone();
        tokio::select! {
            () = carry => {}
            _ = reset.wait_for(|it| it.resets != resets) => {}
        }
    }

    async fn behind(&self) -> Option<TcpStream> {
        let server = TcpStream::connect(&self.behind).await.ok()?;
        let _ = server.set_nodelay(true);
        Some(server)
    }

    /// Who dials, the connection to the server if there had to be one to hear
    /// that, and what to give it next. Before a dialler says who it is, both
    /// sides exchange random bytes: these get through every cut.
    async fn introduced(&self, dialler: &mut TcpStream) -> Option<(u64, Option<TcpStream>, Piece)> {
        let first = Piece::read(dialler).await.ok()?;
        let (server, first) = match first.form {
            Form::First => (None, first),
            Form::Second => {
                let mut server = self.behind().await?;
                first.write(&mut server).await.ok()?;
                Piece::read(&mut server)
                    .await
                    .ok()?
                    .write(dialler)
                    .await
                    .ok()?;
                (Some(server), Piece::read(dialler).await.ok()?)
            }
        };
        let greeting = first.greeted().ok()?;
        Some((greeting.hello.server.get(), server, first))
    }

    /// Carries messages one way until there are no more.
    async fn carry(
        &self,
        mut reads: impl AsyncRead + Unpin,
        writes: impl AsyncWrite + Unpin,
        (from, to): (u64, u64),
    ) {
        let (sender, messages) = mpsc::channel::<(Instant, Vec<u8>)>(MESSAGES_MAX);
        let taking = async move {
            let mut buffer = Vec::new();
            loop {
                let before = buffer.len();
                buffer.resize(before + CHUNK_BYTES, 0);
                let read = reads.read(&mut buffer[before..]).await.unwrap_or(0);
                buffer.truncate(before + read);
                while let Some(length) = whole(&buffer) {
                    let rest = buffer.split_off(length);
                    let message = std::mem::replace(&mut buffer, rest);
                    if sender.send((Instant::now(), message)).await.is_err() {
                        return;
                    }
                }
                if read == 0 {
                    // An empty one stands for the end; half a message is lost
                    // with it, as it would be.
                    let _ = sender.send((Instant::now(), Vec::new())).await;
                    return;
                }
            }
        };
        let mut queue = Queue {
            rng: Rng::from_seed(from << 32 | to),
            waiting: BTreeMap::new(),
            number: 0,
            floor: Instant::now(),
        };
        tokio::join!(taking, self.give(messages, writes, (from, to), &mut queue));
    }

    /// Writes every message when it is due.
    async fn give(
        &self,
        mut messages: mpsc::Receiver<(Instant, Vec<u8>)>,
        mut writes: impl AsyncWrite + Unpin,
        (from, to): (u64, u64),
        queue: &mut Queue,
    ) {
        let mut weather = self.weather.clone();
        loop {
            let next = queue.waiting.first_key_value();
            let next = next.map(|((due, _), _)| *due);
            let full = queue.waiting.len() >= MESSAGES_MAX;
            tokio::select! {
                Some((came, message)) = messages.recv(), if !full => {
                    let edge = weather.borrow_and_update().edge(from, to);
                    queue.take(came, message, edge);
                    continue;
                }
                () = sleep_until(next.unwrap_or(queue.floor).into()), if next.is_some() => {}
                else => return,
            }
            let Ok(edge) = weather
                .wait_for(|it| !it.edge(from, to).cut)
                .await
                .map(|it| it.edge(from, to))
            else {
                return;
            };
            let Some((message, early)) = queue.pop() else {
                continue;
            };
            self.overtaken
                .fetch_add(u64::from(early), Ordering::Relaxed);
            if message.is_empty() || writes.write_all(&message).await.is_err() {
                return;
            }
            if edge.rate > 0 {
                let bytes = u32::try_from(message.len()).expect("it is small");
                sleep(Duration::from_secs(1) * bytes / u32::try_from(edge.rate).expect("small"))
                    .await;
            }
        }
    }
}

/// Messages that are on their way.
struct Queue {
    rng: Rng,
    /// By when they arrive, and how many came before.
    waiting: BTreeMap<(Instant, u64), Vec<u8>>,
    number: u64,
    /// Nothing arrives before.
    floor: Instant,
}

impl Queue {
    fn take(&mut self, came: Instant, message: Vec<u8>, edge: Edge) {
        let mut due = self.floor.max(came + Duration::from_millis(edge.delay_ms));
        if message.is_empty() {
            // Nothing comes after the end.
            let last = self.waiting.last_key_value();
            due = last.map_or(due, |((last, _), _)| due.max(*last));
        } else if message.starts_with(GREETING) {
            // Nothing comes before a greeting.
            self.floor = due;
        } else {
            due += self.rng.span(Duration::from_millis(edge.jitter_ms));
        }
        self.number += 1;
        self.waiting.insert((due, self.number), message);
    }

    /// The next message, and whether one that was sent before it still waits.
    fn pop(&mut self) -> Option<(Vec<u8>, bool)> {
        let ((_, number), message) = self.waiting.pop_first()?;
        let early = self.waiting.keys().any(|(_, other)| *other < number);
        Some((message, early))
    }
}

/// How long the message is that `bytes` begin with, if all of it is there.
fn whole(bytes: &[u8]) -> Option<usize> {
    if bytes.is_empty() {
        return None;
    }
    let magic = bytes.len().min(GREETING.len());
    if bytes[..magic] == GREETING[..magic] {
        let length = bytes.get(8..12)?.first_chunk::<4>()?;
        let length = 16 + usize::try_from(u32::from_le_bytes(*length)).ok()?;
        return (bytes.len() >= length).then_some(length);
    }
    match decode_frame(bytes) {
        Ok(found) => found.map(|(_, length)| length),
        // Not for a network to judge.
        Err(_) => Some(bytes.len()),
    }
}
