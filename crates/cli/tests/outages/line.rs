//! The line between a candidate and its server: a proxy, which delays, holds back, cuts
//! or loses what it carries.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// How much is carried at a time.
const CHUNK: usize = 16 * 1024;

/// What becomes of what is carried.
#[derive(Clone, Copy, Default)]
struct Rule {
    /// By how much it comes later, each way; connections are made as late.
    delay: Duration,
    /// Nothing is carried until this is over; then all that was sent is.
    is_held: bool,
    /// Connections that there are, and those that are made until it is over, are lost.
    is_lossy: bool,
    /// How often it was so.
    losses: u32,
}

struct State {
    rule: watch::Sender<Rule>,
    /// How many answers are yet to be cut.
    cuts: AtomicU32,
    /// How many connections were made.
    connections: AtomicU32,
}

/// See the [module](self). Its connections end when it is dropped.
pub(crate) struct Line {
    address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl Line {
    /// One before this server.
    pub(crate) async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(State {
            rule: watch::Sender::new(Rule::default()),
            cuts: AtomicU32::new(0),
            connections: AtomicU32::new(0),
        });
        let of_all = Arc::clone(&state);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, state) = (server.clone(), Arc::clone(&of_all));
                state.connections.fetch_add(1, Ordering::Relaxed);
                connections.spawn(async move {
                    // Its end is seen by both sides.
                    drop(carry(client, &server, &state).await);
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            address,
            state,
            task,
        }
    }

    /// This URL, by way of this line.
    pub(crate) fn url(&self, url: &str, server: &str) -> String {
        assert!(url.contains(server), "{url} names {server}");
        url.replace(server, &self.address.to_string())
    }

    /// How many connections were made so far.
    pub(crate) fn connections(&self) -> u32 {
        self.state.connections.load(Ordering::Relaxed)
    }

    /// From now on all comes so much later, each way.
    pub(crate) fn delay(&self, delay: Duration) {
        self.state.rule.send_modify(|rule| rule.delay = delay);
    }

    /// Whether all is held back.
    pub(crate) fn hold(&self, is_held: bool) {
        self.state.rule.send_modify(|rule| rule.is_held = is_held);
    }

    /// Whether connections are lost as by a middlebox that forgets them: nothing is carried
    /// over those that there are, nor over those that are made meanwhile, ever again.
    pub(crate) fn lose(&self, is_lossy: bool) {
        self.state.rule.send_modify(|rule| {
            rule.is_lossy = is_lossy;
            rule.losses += u32::from(is_lossy);
        });
    }

    /// Of the next answers only the first half arrives. Each second one ends its
    /// connection; after the others the connection is silent.
    pub(crate) fn cut(&self, answers: u32) {
        self.state.cuts.store(answers, Ordering::Relaxed);
    }

    /// How many are yet to be cut.
    pub(crate) fn to_cut(&self) -> u32 {
        self.state.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, server: &str, state: &State) -> io::Result<()> {
    let delay = state.rule.borrow().delay;
    // A connection is made by a round trip.
    sleep(2 * delay).await;
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    tokio::select! {
        ended = one_way(from_client, to_server, state, false) => ended,
        ended = one_way(from_server, to_client, state, true) => ended,
    }
}

/// Carries what comes until it ends.
async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
    are_answers: bool,
) -> io::Result<()> {
    let (send, mut queue) = mpsc::unbounded_channel();
    let read = async move {
        let mut rules = state.rule.subscribe();
        let made_under = *rules.borrow_and_update();
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = from.read(&mut buffer).await?;
            let rule = *rules
                .wait_for(|rule| !rule.is_held)
                .await
                .map_err(io::Error::other)?;
            if made_under.is_lossy || rule.losses != made_under.losses {
                // Neither side is told.
                return pending().await;
            }
            let cut = are_answers.then(|| next_cut(state)).flatten();
            let kept = if cut.is_some() { count / 2 } else { count };
            let chunk = buffer.get(..kept).unwrap_or_default().to_vec();
            let due = clock::boot().after(rule.delay);
            // The writer may have failed, and then this ends, too.
            if count == 0 || send.send((due, chunk)).is_err() || cut == Some(Cut::Ends) {
                return Ok(());
            }
            if cut == Some(Cut::Hangs) {
                // Read on, so that the server does not notice.
                while from.read(&mut buffer).await? > 0 {}
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, chunk)) = queue.recv().await {
            // To be late is what it is for.
            sleep(due.since(clock::boot())).await;
            to.write_all(&chunk).await?;
        }
        Ok(())
    };
    let ended: io::Result<((), ())> = tokio::try_join!(read, write);
    ended.map(drop)
}

/// What becomes of a connection after half an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Ends,
    Hangs,
}

fn next_cut(state: &State) -> Option<Cut> {
    let take = |left: u32| left.checked_sub(1);
    let (order, orderly) = (Ordering::Relaxed, Ordering::Relaxed);
    let before = state.cuts.fetch_update(order, orderly, take).ok()?;
    Some(match before % 2 {
        0 => Cut::Ends,
        _ => Cut::Hangs,
    })
}
