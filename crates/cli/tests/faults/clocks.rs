//! Servers whose clocks tell another time, by namespaces of the kernel's.
//!
//! The clock that counts for a server is the one that runs since boot. In a
//! namespace of time it is days ahead, as on a machine that was up longer. The
//! leader stamps entries by it, sessions and leases are judged by those stamps,
//! and the stamps must go on as real time does, whichever server takes over.
//!
//! A calendar may be anywhere, and be set at any time: nothing rests on it.
//! What the system's calendar says nobody can step for a single process, so
//! the debug build of a server adds to it what a file says, at every look.

use std::time::{Duration, Instant};

use tenure::core::ids::Key;
use tenure_api::v1::{self, registers_client::RegistersClient, sessions_client::SessionsClient};
use tenure_client::Client;
use tokio::sync::watch;

use crate::faulty::{ahead, ahead_by, calendar_hook, clocks_move, date, set_calendar};
use crate::healed::{end_of_log, equal};
use crate::load::Load;
use crate::network::Network;
use crate::room::within;
use crate::servers::{Servers, until};

/// How long a session lives that is kept alive, well above any hand-over.
const TTL: Duration = Duration::from_secs(6);
/// For how much of the log's time a calendar stays as it was set: all steps
/// together are longer than a session lives.
const STEP: Duration = Duration::from_secs(2);

/// By server: seconds that its clock is ahead.
const AHEAD: [(u64, u64); 2] = [(2, 3_600), (3, 30_000_000)];

#[test]
fn clocks_that_are_a_year_apart() {
    let name = "clocks::clocks_that_are_a_year_apart";
    within(name, async |room| {
        if !clocks_move() {
            eprintln!("\n*** {name}: LEFT OUT, clocks cannot be moved here\n");
            return;
        }
        let mut servers = Servers::new(3, Network::best(room, 3).await);
        for (server, seconds) in AHEAD {
            let prefix = ahead_by(seconds);
            let prefix: Vec<_> = prefix.iter().map(String::as_str).collect();
            servers.wrap(server, &prefix, &[]);
        }
        (1..=3).for_each(|server| servers.start(server));
        servers.leader().await;
        for (server, seconds) in AHEAD {
            let found = ahead(servers.pid(server)).expect("it runs");
            assert!(
                (found - seconds as f64).abs() < 5.0,
                "server {server}: {found} s"
            );
        }
        let url = servers.url();
        let load = Load::start(&url, 19, Duration::from_millis(10));
        let client = Client::open(&url).expect("a client");
        let (begun, first) = (Instant::now(), now(&client).await);
        // Each leads, is killed, and is followed by another.
        for leader in [1, 2, 3, 2] {
            until("the hand-over", async || {
                if servers.leads().await == Some(leader) {
                    return Some(());
                }
                let _ = client.transfer(Some(leader)).await;
                None
            })
            .await;
            let passed = Duration::from_nanos(now(&client).await - first);
            let real = begun.elapsed() + Duration::from_millis(500);
            assert!(
                passed <= real,
                "{leader} leads: {passed:?} of the log in {real:?}"
            );
            // It goes on under each of them.
            let later = now(&client).await + 200_000_000;
            until("the log's time to go on", async || {
                (now(&client).await >= later).then_some(())
            })
            .await;
            servers.kill(leader);
            servers.leader().await;
            servers.start(leader);
        }
        let passed = Duration::from_nanos(now(&client).await - first);
        eprintln!("  {passed:?} of the log's time in {:?}", begun.elapsed());
        assert!(
            passed > begun.elapsed() / 4,
            "the log's time stood still: {passed:?}"
        );
        let (record, log) = load
            .end(async |record| end_of_log(&url, record).await)
            .await;
        equal(&servers).await;
        let verdict = record
            .copy()
            .judge(&log)
            .unwrap_or_else(|why| panic!("{why}"));
        eprintln!("  {verdict}");
    });
}

/// The log's time, by a read that is up to date.
async fn now(client: &Client) -> u64 {
    let key = Key::new("faults/clock").expect("a good key");
    let read = until("a read", async || client.read(&key).await.ok()).await;
    read.now.expect("the log's time").nanos
}

#[test]
fn calendars_that_step_both_ways_under_load() {
    let name = "clocks::calendars_that_step_both_ways_under_load";
    within(name, async |room| {
        if !cfg!(debug_assertions) {
            eprintln!("\n*** {name}: LEFT OUT, a release has no calendar that a test can step\n");
            return;
        }
        let calendars = tempfile::tempdir().expect("a directory");
        let file = |server: u64| calendars.path().join(server.to_string());
        let mut servers = Servers::new(3, Network::best(room, 3).await);
        for server in 1..=3 {
            let hook = calendar_hook(&file(server));
            servers.wrap(server, &[&hook[0], &hook[1]], &[]);
            servers.start(server);
        }
        servers.leader().await;
        let url = servers.url();
        let load = Load::start(&url, 23, Duration::from_millis(10));
        let client = Client::open(&url).expect("a client");
        let holder = Holder::open(&servers).await;
        let (begun, first) = (Instant::now(), now(&client).await);
        // Years ahead, years back, an hour off, and as it was; not all of the
        // servers the same way.
        for days in [400, -800, 20, 0] {
            for server in 1..=3 {
                let own = if server == 3 { -days } else { days };
                set_calendar(&file(server), own);
            }
            let seen: Vec<_> = (1..=3).map(|server| servers.log(server).len()).collect();
            let old = servers.leader().await;
            until("a hand-over", async || {
                let _ = client.transfer(None).await;
                servers.leads().await.filter(|leader| *leader != old)
            })
            .await;
            // Each says who leads now, at which time by its own calendar.
            for (server, from) in (1..=3).zip(seen) {
                let own = if server == 3 { -days } else { days };
                until(&format!("server {server} in {own} days"), async || {
                    let [before, after] = [-1, 1].map(|minute| date(own, minute));
                    let log = servers.log(server);
                    let mut dates = log[from..].lines().filter_map(|line| line.get(..10));
                    dates
                        .find(|date| *date == before || *date == after)
                        .map(drop)
                })
                .await;
            }
            // The log's time goes on, and no faster than real time.
            let goal = now(&client).await + STEP.as_nanos() as u64;
            until("the log's time", async || {
                (now(&client).await > goal).then_some(())
            })
            .await;
            let passed = Duration::from_nanos(now(&client).await - first);
            let real = begun.elapsed() + Duration::from_millis(500);
            assert!(passed <= real, "{passed:?} of the log in {real:?}");
        }
        eprintln!("  four steps in {:?}", begun.elapsed());
        holder.end(&servers).await;
        let (record, log) = load
            .end(async |record| end_of_log(&url, record).await)
            .await;
        equal(&servers).await;
        let verdict = record.copy().judge(&log);
        eprintln!("  {}", verdict.unwrap_or_else(|why| panic!("{why}")));
    });
}

/// A session that is kept alive, and a register that is bound to it: who else
/// writes that, or ends the session, is seen by its version.
struct Holder {
    session: u64,
    version: u64,
    stop: watch::Sender<bool>,
    keeping: tokio::task::JoinHandle<u64>,
}

impl Holder {
    const KEY: &str = "faults/held";

    async fn open(servers: &Servers) -> Self {
        let ttl_millis = TTL.as_millis() as u64;
        let request = v1::OpenSessionRequest {
            ttl_millis,
            ..v1::OpenSessionRequest::default()
        };
        let session = until("a session", async || {
            let leader = servers.leader().await;
            let mut sessions = SessionsClient::new(servers.channel(leader));
            sessions.open(request.clone()).await.ok()
        });
        let session = session.await.into_inner().session;
        let swap = v1::Swap {
            key: Self::KEY.into(),
            value: b"held".as_slice().into(),
            at_end: Some(v1::AtEnd {
                value: b"free".as_slice().into(),
            }),
            ..v1::Swap::default()
        };
        let request = v1::CompareAndSwapRequest {
            swap: Some(swap),
            numbered: Some(numbered(session, 1)),
        };
        let bound = until("a bound register", async || {
            let leader = servers.leader().await;
            let mut registers = RegistersClient::new(servers.channel(leader));
            registers.compare_and_swap(request.clone()).await.ok()
        });
        let bound = bound.await.into_inner();
        assert!(bound.swapped, "{bound:?}");
        let channels: Vec<_> = (1..=3).map(|server| servers.channel(server)).collect();
        let (stop, stopped) = watch::channel(false);
        Self {
            session,
            version: bound.version,
            stop,
            keeping: tokio::spawn(keep(session, channels, stopped)),
        }
    }

    /// It is still held, and by nothing else than its keep-alives.
    async fn end(self, servers: &Servers) {
        self.stop.send_replace(true);
        let kept = self.keeping.await.expect("it did not panic");
        assert!(kept > 3, "kept alive {kept} times");
        let request = v1::ReadRequest {
            key: Self::KEY.into(),
            stale: false,
        };
        let found = until("a read", async || {
            let leader = servers.leader().await;
            let mut registers = RegistersClient::new(servers.channel(leader));
            registers.read(request.clone()).await.ok()
        });
        let found = found.await.into_inner();
        let version = found.register.as_ref().map(|it| it.version);
        assert_eq!(version, Some(self.version), "{found:?}");
        let session = found.bound.as_ref().map(|it| it.session);
        assert_eq!(session, Some(self.session), "{found:?}");
    }
}

fn numbered(session: u64, serial: u64) -> v1::Numbered {
    v1::Numbered {
        session,
        serial,
        outstanding: serial,
        ..v1::Numbered::default()
    }
}

/// Keeps a session alive, six times in its time to live, by asking any server
/// that answers; how often it was answered.
async fn keep(
    session: u64,
    channels: Vec<tonic::transport::Channel>,
    mut stopped: watch::Receiver<bool>,
) -> u64 {
    let mut kept = 0;
    while !*stopped.borrow() {
        let numbered = numbered(session, kept + 2);
        for channel in &channels {
            let mut sessions = SessionsClient::new(channel.clone());
            let asked = sessions.keep_alive(v1::KeepAliveRequest {
                numbered: Some(numbered.clone()),
            });
            if let Ok(Ok(_)) = tokio::time::timeout(TTL / 6, asked).await {
                kept += 1;
                break;
            }
        }
        let _ = tokio::time::timeout(TTL / 6, stopped.changed()).await;
    }
    kept
}
