//! Registers that are bound to sessions, and elections that rest on them.

use std::sync::Arc;
use std::time::Duration;

use tenure::Election;
use tenure::core::election::{Holder, Occupancy, Record};
use tenure::core::ids::{LeaderId, Name, Term};
use tenure::core::time::WallTime;
use tenure::store::Tenure;
use tenure_api::v1::sessions_client::SessionsClient;
use tenure_api::v1::{self, Cause};
use tenure_client::{Client, Config};
use tokio::time::timeout;

use crate::servers::{PATIENCE, Servers, again, cause};

/// A client that numbers its commands, on the leader.
struct Caller<'a> {
    servers: &'a Servers,
    session: u64,
    serial: u64,
}

impl<'a> Caller<'a> {
    async fn open(servers: &'a Servers, ttl: Duration) -> Self {
        let ttl_millis = u64::try_from(ttl.as_millis()).expect("a short time");
        loop {
            let leader = servers.leader().await;
            let mut sessions = SessionsClient::new(servers.channel(leader).await);
            match sessions
                .open(v1::OpenSessionRequest {
                    ttl_millis,
                    ..v1::OpenSessionRequest::default()
                })
                .await
            {
                Ok(opened) => {
                    return Self {
                        servers,
                        session: opened.into_inner().session,
                        serial: 0,
                    };
                }
                // One that was opened all the same has no owner, and expires.
                Err(status) => assert!(again(&status), "{status}"),
            }
        }
    }

    fn next(&mut self) -> Option<v1::Numbered> {
        self.serial += 1;
        Some(v1::Numbered {
            session: self.session,
            serial: self.serial,
            outstanding: self.serial,
            secret: bytes::Bytes::new(),
        })
    }

    /// What has a number is asked again, unchanged, of the server that leads by
    /// then.
    async fn swap(&mut self, swap: v1::Swap) -> v1::CompareAndSwapResponse {
        let request = v1::CompareAndSwapRequest {
            swap: Some(swap),
            numbered: self.next(),
        };
        loop {
            let leader = self.servers.leader().await;
            let mut registers = self.servers.registers(leader).await;
            match registers.compare_and_swap(request.clone()).await {
                Ok(answer) => return answer.into_inner(),
                Err(status) => assert!(again(&status), "{status}"),
            }
        }
    }

    async fn keep_alive(&mut self) {
        let numbered = self.next();
        loop {
            let leader = self.servers.leader().await;
            let mut sessions = SessionsClient::new(self.servers.channel(leader).await);
            let numbered = numbered.clone();
            let request = v1::KeepAliveRequest { numbered };
            match sessions.keep_alive(request).await {
                Ok(_) => return,
                Err(status) => assert!(again(&status), "{status}"),
            }
        }
    }

    async fn close(mut self) {
        let numbered = self.next();
        loop {
            let leader = self.servers.leader().await;
            let mut sessions = SessionsClient::new(self.servers.channel(leader).await);
            let numbered = numbered.clone();
            let request = v1::CloseSessionRequest { numbered };
            match sessions.close(request).await {
                Ok(_) => return,
                Err(status) => assert!(again(&status), "{status}"),
            }
        }
    }
}

fn bind(key: &str, value: &[u8], last: &[u8], expect: Option<u64>) -> v1::Swap {
    v1::Swap {
        key: key.to_owned(),
        value: value.to_vec().into(),
        expect,
        keep_stamp: false,
        at_end: Some(v1::AtEnd {
            value: last.to_vec().into(),
        }),
    }
}

/// What server `number` has applied.
async fn stale(servers: &Servers, number: u64, key: &str) -> v1::ReadResponse {
    let request = v1::ReadRequest {
        key: key.to_owned(),
        stale: true,
    };
    let answer = servers.registers(number).await.read(request).await;
    answer.expect("an answer").into_inner()
}

fn value(response: &v1::ReadResponse) -> &[u8] {
    response.register.as_ref().map_or(b"", |it| &it.value)
}

#[tokio::test]
async fn a_register_is_its_sessions_until_that_ends_on_every_server() {
    let servers = Servers::found(3, 0);
    let mut holder = Caller::open(&servers, Duration::from_secs(600)).await;
    let mut rival = Caller::open(&servers, Duration::from_secs(600)).await;
    let bound = holder.swap(bind("a", b"held", b"free", None)).await;
    assert!(bound.swapped);
    let leader = servers.leader().await;
    let seen = servers.read("a").await;
    let by = seen.bound.expect("it is bound");
    assert_eq!((by.session, value(&seen)), (holder.session, &b"held"[..]));
    let (heard, ends) = (by.heard.expect("a time"), by.ends.expect("a time"));
    assert_eq!(ends.nanos - heard.nanos, 600_000_000_000);
    let mut cluster = servers.cluster(leader).await;
    let status = cluster.status(v1::StatusRequest::default()).await;
    assert_eq!(status.expect("a status").into_inner().bound, 1);

    let taken = rival
        .swap(bind("a", b"mine", b"free", Some(bound.version)))
        .await;
    assert!(!taken.swapped);
    let both = v1::Swap {
        keep_stamp: true,
        ..bind("b", b"x", b"y", None)
    };
    for (swap, numbered) in [(bind("b", b"x", b"y", None), None), (both, rival.next())] {
        let mut registers = servers.registers(leader).await;
        let request = v1::CompareAndSwapRequest {
            swap: Some(swap),
            numbered,
        };
        let refused = registers.compare_and_swap(request).await;
        assert_eq!(cause(&refused.expect_err("no sense")), Cause::Invalid);
    }

    let mut registers = servers.registers(leader).await;
    let request = v1::WatchRequest {
        key: Some("a".into()),
        after_id: Some(bound.version),
        ..v1::WatchRequest::default()
    };
    let mut changes = registers
        .watch(request)
        .await
        .expect("a watch")
        .into_inner();
    holder.close().await;
    let told = async {
        loop {
            let message = changes.message().await.expect("a message").expect("no end");
            if let Some(change) = message.changes.into_iter().next() {
                return change.register.expect("it is there");
            }
        }
    };
    let freed = timeout(PATIENCE, told).await.expect("it is told");
    assert_eq!(&*freed.value, b"free");
    assert!(freed.version > bound.version);
    for number in 1..=3 {
        let same = async {
            while stale(&servers, number, "a").await.register.as_ref() != Some(&freed) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, same).await.expect("the same everywhere");
    }
    assert_eq!(servers.read("a").await.bound, None);
}

#[tokio::test]
async fn what_is_held_outlives_its_leader_and_ends_without_a_sign_of_life() {
    let mut servers = Servers::found(3, 0);
    // Longer than it takes to elect another leader.
    let mut holder = Caller::open(&servers, Duration::from_secs(8)).await;
    assert!(holder.swap(bind("a", b"held", b"free", None)).await.swapped);
    let leader = servers.leader().await;
    servers.stop(leader).await;
    // It goes on, with a new lease, and ends by the log's time.
    let seen = servers.read("a").await;
    assert_eq!(value(&seen), b"held");
    assert!(seen.bound.is_some());
    let freed = async {
        while value(&servers.read("a").await) != b"free" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, freed).await.expect("it ends");
}

fn record(term: u64, occupancy: Occupancy) -> Record {
    Record {
        election: Name::new("payroll").expect("a name"),
        term: Term::new(term).expect("a small term"),
        sequence: 1,
        renewal: 1,
        lease: Duration::from_secs(1),
        acquired_at: WallTime::from_millis(0),
        renewed_at: WallTime::from_millis(0),
        occupancy,
    }
}

#[tokio::test]
async fn an_election_held_by_a_session_is_taken_when_that_ends_and_not_before() {
    let servers = Servers::found(1, 0);
    let mut holder = Caller::open(&servers, Duration::from_secs(60)).await;
    let held = Occupancy::Held(Holder {
        id: LeaderId::parse(&"ab".repeat(16)).expect("an id"),
        name: Name::new("holder").expect("a name"),
        addresses: Arc::from([]),
        params: Arc::from([]),
        request: None,
    });
    let mut last = record(1, Occupancy::Vacant { successor: None });
    // A note that is left in between counts on, and this is still another.
    last.sequence += 1_000_000;
    let key = "elections/payroll";
    let bound = bind(key, &record(1, held).encode(), &last.encode(), None);
    assert!(holder.swap(bound).await.swapped);

    // A candidate that judges by the log's time, whose lease is long over.
    let config = Config::default().timeout(PATIENCE);
    let client = Client::new(&servers.configs[&1].listen, &config).expect("a client");
    let store: Arc<dyn tenure::store::Store> = Arc::new(Tenure::with(client));
    let rival = Election::builder(store, "payroll").lease(Duration::from_secs(2));
    let mut rival = rival.start().expect("it stands");
    for _ in 0..6 {
        holder.keep_alive().await;
        let elected = timeout(Duration::from_millis(500), rival.elected()).await;
        assert!(elected.is_err(), "the election is held: {elected:?}");
    }
    holder.close().await;
    let leadership = timeout(PATIENCE, rival.elected()).await;
    let leadership = leadership.expect("in time").expect("elected");
    assert_eq!(leadership.term().get(), 2, "terms go on");
}
