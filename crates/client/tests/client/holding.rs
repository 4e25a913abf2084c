//! Elections held by sessions, on real servers: many by one, and what becomes
//! of them when their holder is killed, stopped, or goes.
//!
//! Who is killed or stopped must be another process: this test binary runs
//! itself once more as `as_a_holder`, which does nothing unless it is told to.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tenure::core::cas::{Expect, Stamp, Write};
use tenure::core::ids::Key;
use tenure::core::time::Instant;
use tenure::election::{Event, Why};
use tenure::store::{Bind, Hold, Store, Tenure};
use tenure::{Election, Leadership, Name, clock, election};
use tenure_client::{Client, Config};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::servers::{SOON, Servers};

/// Enough for a machine that is busy with other tests.
const LEASE: Duration = Duration::from_secs(8);
const MANY: usize = 1_000;

fn store(servers: &str, by_session: bool) -> Arc<dyn Store> {
    let config = Config::default().hold_by_session(by_session);
    Arc::new(Tenure::with(
        Client::new(servers, &config).expect("a client"),
    ))
}

fn stand(store: &Arc<dyn Store>, election: &str, name: &str) -> Election {
    let builder = Election::builder(Arc::clone(store), election).name(name);
    builder.lease(LEASE).start().expect("a candidate")
}

/// Stands in many elections and waits until all are won; when the last was.
async fn win(store: &Arc<dyn Store>, name: &str) -> (Vec<(Election, Leadership)>, Instant) {
    let mut winning = JoinSet::new();
    for number in 0..MANY {
        let mut election = stand(store, &format!("e{number}"), name);
        winning.spawn(async move {
            let leadership = election.elected().await.expect("a leadership");
            (election, leadership)
        });
    }
    let won = async {
        let mut won = Vec::new();
        while let Some(one) = winning.join_next().await {
            won.push(one.expect("no panic"));
        }
        won
    };
    let won = timeout(SOON * 2, won).await.expect("in time");
    (won, clock::boot())
}

/// How many sessions the cluster has, and how many registers are bound.
async fn counts(servers: &Servers) -> (u64, u64) {
    let client = Client::new(&servers.list(), &Config::default()).expect("a client");
    let status = client.leader_status().await.expect("a leader");
    (status.sessions, status.bound)
}

/// The process that holds all elections.
struct Holder {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Holder {
    fn start(servers: &Servers) -> Self {
        let own = std::env::current_exe().expect("a path");
        let mut child = Command::new(own)
            .args(["--exact", "holding::as_a_holder", "--nocapture"])
            .env("HOLD_ON", servers.list())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let orders = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let read = output.lines().map_while(Result::ok);
            let _ = read.into_iter().try_for_each(|line| send.send(line));
        });
        Self {
            child,
            orders,
            lines,
        }
    }

    /// What comes after `word` on the next line that begins so.
    async fn hear(&mut self, word: &str) -> String {
        tokio::task::block_in_place(|| {
            loop {
                let line = self.lines.recv_timeout(SOON * 2).expect("a line");
                if let Some((_, rest)) = line.split_once(word) {
                    return rest.trim().to_owned();
                }
            }
        })
    }

    /// Asks how many leaderships are valid, and until when the last one is.
    async fn query(&mut self) -> (usize, u64) {
        writeln!(self.orders, "how").expect("it listens");
        let said = self.hear("valid:").await;
        let (valid, until) = said.split_once(' ').expect("two numbers");
        (
            valid.parse().expect("a number"),
            until.parse().expect("a number"),
        )
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.expect("there is a kill").success());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process: wins all elections, and answers when it is asked.
#[tokio::test(flavor = "multi_thread")]
async fn as_a_holder() {
    let Ok(servers) = std::env::var("HOLD_ON") else {
        return;
    };
    let store = store(&servers, true);
    let (won, _) = win(&store, "holder").await;
    println!("all held");
    for line in std::io::stdin().lines() {
        let _ = line.expect("an order");
        let valid = won
            .iter()
            .filter(|(_, leadership)| leadership.is_valid())
            .count();
        let until = won
            .iter()
            .map(|(_, leadership)| leadership.grant().valid_until);
        let until = until.max().map_or(0, Instant::as_nanos);
        println!("valid: {valid} {until}");
    }
}

/// Stands behind the holder in all elections, and waits until all watch it.
async fn behind(store: &Arc<dyn Store>) -> Vec<Election> {
    let rivals: Vec<Election> = (0..MANY)
        .map(|number| stand(store, &format!("e{number}"), "rival"))
        .collect();
    let see = async {
        for rival in &rivals {
            while rival.leader().is_none_or(|seen| seen.leader.is_none()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    timeout(SOON * 2, see).await.expect("they see who leads");
    rivals
}

/// All are elected; when the first one's grant begins and the last one is.
async fn succeed(rivals: Vec<Election>) -> (Instant, Instant, Vec<(Election, Leadership)>) {
    let mut winning = JoinSet::new();
    for mut rival in rivals {
        winning.spawn(async move {
            let mut events = rival.events();
            let leadership = rival.elected().await.expect("a leadership");
            let start = loop {
                if let Some(Event::Elected { grant, .. }) = events.next().await {
                    break grant.start;
                }
            };
            (start, rival, leadership)
        });
    }
    let (mut first, mut held) = (Instant::MAX, Vec::new());
    while let Some(won) = winning.join_next().await {
        let (start, rival, leadership) = won.expect("no panic");
        first = first.min(start);
        held.push((rival, leadership));
    }
    (first, clock::boot(), held)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_held_by_one_session_and_taken_over_when_their_holder_is_killed() {
    let mut servers = Servers::start(3);
    let mut holder = Holder::start(&servers);
    let begun = clock::boot();
    holder.hear("all held").await;
    println!("{MANY} held after {:?}", clock::boot().since(begun));
    let (sessions, bound) = counts(&servers).await;
    // One holds all; the other is that of the store's own calls, if it made any
    // that change something.
    assert!(sessions <= 2, "{sessions} sessions");
    assert_eq!(bound, MANY as u64);

    // The cluster's leader goes, and nobody is deposed.
    let client = Client::new(&servers.list(), &Config::default()).expect("a client");
    let leader = client.leader_status().await.expect("a leader").id;
    servers.stop(leader).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!(holder.query().await.0, MANY, "all are held still");
    servers.run(leader);

    let ours = store(&servers.list(), true);
    let rivals = behind(&ours).await;
    let (valid, until) = holder.query().await;
    assert_eq!(valid, MANY);
    let term = client.leader_status().await.expect("a leader").term;
    holder.signal("-KILL");
    let killed = clock::boot();
    let taken = timeout(LEASE + SOON, succeed(rivals)).await;
    let (first, last, held) = taken.expect("in time");
    println!(
        "taken over: the first {:?}, the last {:?} after the kill",
        first.since(killed),
        last.since(killed)
    );
    assert!(first.as_nanos() >= until, "not before the holder's end");
    // The session lives for the lease and its share of drift, and for another
    // one whenever the cluster has changed its leader meanwhile.
    let now = client.leader_status().await.expect("a leader").term;
    let leases = 1 + u32::try_from(now - term).expect("few terms");
    assert!(last.since(killed) < LEASE * leases + Duration::from_secs(5));
    assert!(
        held.iter()
            .all(|(_, leadership)| leadership.term().get() == 2)
    );
    assert_eq!(counts(&servers).await.1, MANY as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_stopped_knows_it_before_anybody_else_leads() {
    let servers = Servers::start(3);
    let mut holder = Holder::start(&servers);
    holder.hear("all held").await;
    let ours = store(&servers.list(), true);
    let rivals = behind(&ours).await;
    holder.signal("-STOP");
    let taken = timeout(LEASE + SOON, succeed(rivals)).await;
    let (first, _, held) = taken.expect("in time");
    holder.signal("-CONT");
    let (valid, until) = holder.query().await;
    assert_eq!(valid, 0, "it believes in nothing when it wakes");
    assert!(first.as_nanos() >= until, "not before the holder's end");
    assert!(held.iter().all(|(_, leadership)| leadership.is_valid()));
}

#[tokio::test]
async fn an_election_goes_to_the_next_at_once_however_its_holder_goes() {
    let servers = Servers::start(3);
    let (ours, theirs) = (store(&servers.list(), true), store(&servers.list(), false));
    // One holds by a session, the other renews: each follows the other.
    let mut first = stand(&ours, "payroll", "first");
    let leadership = first.elected().await.expect("a leadership");
    assert!(first.config().by_session);
    let mut second = stand(&theirs, "payroll", "second");
    assert!(!second.config().by_session);
    while second.leader().is_none_or(|seen| seen.leader.is_none()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Longer than a lease without a write: the session holds it all the same.
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    assert!(leadership.is_valid());

    let asked = clock::boot();
    drop(leadership);
    let leadership = timeout(SOON, second.elected()).await.expect("in time");
    let leadership = leadership.expect("a leadership");
    println!("resigned: {:?}", clock::boot().since(asked));
    // Long before the lease is over.
    assert!(clock::boot().since(asked) < LEASE / 2);
    assert_eq!(leadership.term().get(), 2);

    // Handed back, and asked to leave through the register.
    second.transfer(Name::new("first").expect("a name"));
    let _ = leadership.cancelled().await;
    drop(leadership);
    let leadership = timeout(SOON, first.elected()).await.expect("in time");
    let leadership = leadership.expect("a leadership");
    assert_eq!(counts(&servers).await.1, 1, "one is bound again");
    let (store, name) = (Arc::clone(&theirs), Name::new("payroll").expect("a name"));
    let asked = clock::boot();
    let asking =
        tokio::spawn(async move { election::ask_to_resign(store, &name, None, SOON, SOON).await });
    assert_eq!(
        timeout(SOON, leadership.cancelled()).await,
        Ok(Why::Requested)
    );
    drop(leadership);
    let leadership = timeout(SOON, second.elected()).await.expect("in time");
    println!("asked to resign: {:?}", clock::boot().since(asked));
    assert_eq!(leadership.expect("a leadership").term().get(), 4);
    asking.await.expect("no panic").expect("it went");
}

fn bind(key: &Key, value: &str) -> (Write, Bind) {
    let write = Write {
        key: key.clone(),
        expect: Expect::Absent,
        value: value.as_bytes().into(),
        stamp: Stamp::Now,
    };
    let bind = Bind {
        last: b"free".as_slice().into(),
        ttl: LEASE,
    };
    (write, bind)
}

#[tokio::test]
async fn what_nobody_claims_is_vacated_though_its_session_lives() {
    let servers = Servers::start(1);
    let store = store(&servers.list(), true);
    let keys = ["a", "b"].map(|key| Key::new(key).expect("a key"));
    let holds = keys.clone().map(|key| {
        let hold = store.hold(&key, LEASE);
        hold.expect("sessions")
    });
    for (key, hold) in keys.iter().zip(&holds) {
        let (write, last) = bind(key, "held");
        let written = hold.write(write, Some(last), SOON).await;
        written.expect("it is written");
    }
    let (sessions, bound) = counts(&servers).await;
    assert_eq!((sessions, bound), (1, 2));
    // Nobody waits for what is under way when it is released.
    drop(hold_again(&holds[0], &keys[0]));
    holds[0].release();
    let vacated = async {
        loop {
            let reading = store.read(&keys[0], SOON).await.expect("a read");
            let register = reading.register.expect("it is there");
            if *register.value == *b"free" {
                return reading.bound;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(timeout(SOON, vacated).await.expect("in time"), None);
    let other = store.read(&keys[1], SOON).await.expect("a read");
    assert!(other.bound.is_some(), "the other one is held");
    let alive = holds[1].confirm(clock::boot(), SOON).await;
    assert!(alive.expect("it lives") <= clock::boot());
}

/// A write of unknown outcome: its sender does not wait.
fn hold_again(hold: &Arc<dyn Hold>, key: &Key) -> impl Future {
    let (write, last) = bind(key, "late");
    hold.write(write, Some(last), SOON)
}

#[tokio::test]
async fn a_session_that_is_full_is_followed_by_another() {
    let servers = Servers::start(1);
    let store = store(&servers.list(), true);
    let mut writing = JoinSet::new();
    let mut holds = Vec::new();
    for number in 0..1_030 {
        let key = Key::new(&format!("k{number}")).expect("a key");
        let hold = store.hold(&key, LEASE).expect("sessions");
        let (write, last) = bind(&key, "held");
        writing.spawn(hold.write(write, Some(last), SOON));
        holds.push(hold);
    }
    while let Some(written) = writing.join_next().await {
        written.expect("no panic").expect("it is written");
    }
    assert_eq!(counts(&servers).await, (2, 1_030));
    // Two campaigns for one register are two writers.
    let key = Key::new("k0").expect("a key");
    let rival = store.hold(&key, LEASE).expect("sessions");
    let (write, last) = bind(&key, "mine");
    let version = store.read(&key, SOON).await.expect("a read").register;
    let write = Write {
        expect: Expect::Version(version.expect("it is there").version),
        ..write
    };
    let refused = rival.write(write, Some(last), SOON).await;
    assert!(
        matches!(refused, Err(tenure::error::StoreError::Conflict)),
        "{refused:?}"
    );
}
