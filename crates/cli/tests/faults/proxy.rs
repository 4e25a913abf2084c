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

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tenure::transport::{read_greeting, write_greeting};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until};

use crate::network::{Edge, Edges, Place};
use crate::servers::free;

/// What is read at once, and how many of that may be on their way.
const CHUNK_BYTES: usize = 16 * 1024;
const CHUNKS_MAX: usize = 64;

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
}

impl Proxies {
    pub(crate) async fn start(count: u64) -> Self {
        let weather = watch::Sender::new(Weather::default());
        let mut places = BTreeMap::new();
        for server in 1..=count {
            let before = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let [behind, client] = free();
            let known = before.local_addr().expect("bound").to_string();
            places.insert(server, [known, behind.clone(), client]);
            tokio::spawn(forward(before, server, behind, weather.subscribe()));
        }
        Self { places, weather }
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

async fn forward(
    listener: TcpListener,
    to: u64,
    behind: String,
    weather: watch::Receiver<Weather>,
) {
    loop {
        // Ends with the runtime.
        let (stream, _) = listener.accept().await.expect("it listens");
        tokio::spawn(connection(stream, to, behind.clone(), weather.clone()));
    }
}

async fn connection(
    mut dialler: TcpStream,
    to: u64,
    behind: String,
    mut weather: watch::Receiver<Weather>,
) {
    let Ok(greeting) = read_greeting(&mut dialler).await else {
        return;
    };
    let from = greeting.hello.server.get();
    let _ = dialler.set_nodelay(true);
    let resets = weather.borrow_and_update().resets;
    let carry = async {
        let mut through = weather.clone();
        let open = through.wait_for(|it| !it.edge(from, to).cut).await.is_ok();
        if !open {
            return;
        }
        let Ok(mut server) = TcpStream::connect(&behind).await else {
            return;
        };
        let _ = server.set_nodelay(true);
        if write_greeting(&mut server, &greeting).await.is_err() {
            return;
        }
        let (mut dialler, mut server) = (dialler, server);
        let (dialler_reads, dialler_writes) = dialler.split();
        let (server_reads, server_writes) = server.split();
        // Either end ends both, once word of it has got through.
        tokio::select! {
            () = carry(dialler_reads, server_writes, (from, to), weather.clone()) => {}
            () = carry(server_reads, dialler_writes, (to, from), weather.clone()) => {}
        }
    };
    let mut reset = weather.clone();
    tokio::select! {
        () = carry => {}
        _ = reset.wait_for(|it| it.resets != resets) => {}
    }
}

/// Carries bytes one way until there are no more.
async fn carry(
    mut reads: impl AsyncRead + Unpin,
    mut writes: impl AsyncWrite + Unpin,
    (from, to): (u64, u64),
    mut weather: watch::Receiver<Weather>,
) {
    let (sender, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let taking = async move {
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            let read = reads.read(&mut chunk).await.unwrap_or(0);
            chunk.truncate(read);
            // An empty one stands for the end.
            if sender.send((Instant::now(), chunk)).await.is_err() || read == 0 {
                return;
            }
        }
    };
    let giving = async move {
        while let Some((came, chunk)) = chunks.recv().await {
            let Ok(edge) = weather
                .wait_for(|it| !it.edge(from, to).cut)
                .await
                .map(|it| it.edge(from, to))
            else {
                return;
            };
            sleep_until((came + Duration::from_millis(edge.delay_ms)).into()).await;
            if chunk.is_empty() || writes.write_all(&chunk).await.is_err() {
                return;
            }
            if edge.rate > 0 {
                let bytes = u32::try_from(chunk.len()).expect("it is small");
                sleep(Duration::from_secs(1) * bytes / u32::try_from(edge.rate).expect("small"))
                    .await;
            }
        }
    };
    tokio::join!(taking, giving);
}
