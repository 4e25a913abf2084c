//! Quotas of registers: what is refused where one is taken, and what goes on.

use std::sync::Arc;
use std::time::Duration;

use tenure::Election;
use tenure::store::{Expect, Key, Stamp, Tenure, Write};
use tenure_api::v1::{self, Cause};
use tenure_client::{Client, Error};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::servers::{PATIENCE, Servers, error};
use crate::tokens::{client, guarded, named, put};

const QUOTA: u64 = 64 * 1024;

/// One server whose registers may take so much.
async fn server(bytes: u64, registers: u64) -> Servers {
    let servers = Servers::found_with(1, 0, |config| {
        config.quota_bytes = bytes;
        config.quota_registers = registers;
    });
    servers.leader().await;
    servers
}

async fn status(servers: &Servers) -> v1::StatusResponse {
    let mut cluster = servers.cluster(1).await;
    let status = cluster.status(v1::StatusRequest::default()).await;
    status.expect("a status").into_inner()
}

/// The status of a call over HTTP, and all that was answered.
async fn http(servers: &Servers, head: &str, body: &str) -> (u16, String) {
    http_at(servers.running[&1].address(), head, body).await
}

async fn http_at(address: std::net::SocketAddr, head: &str, body: &str) -> (u16, String) {
    let stream = tokio::net::TcpStream::connect(address).await;
    let mut stream = stream.expect("it listens");
    let request = format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    (status.expect("a status"), text)
}

/// Writes registers of 1 KiB below `prefix` until that is refused: how many,
/// and what was said.
async fn fill(client: &Client, prefix: &str) -> (u64, String) {
    for number in 0..2_000 {
        let written = client
            .compare_and_swap(put(&format!("{prefix}{number:04}"), &[7; 1_015]))
            .await;
        match written {
            Ok(_) => {}
            Err(Error::Refused { cause, message, .. }) => {
                assert_eq!(cause, Cause::TooLarge, "{message}");
                return (number, message);
            }
            Err(other) => panic!("expected a refusal, found {other}"),
        }
    }
    panic!("expected a refusal, found room for 2,000 registers");
}

/// Writes over what is there.
pub(crate) async fn over(client: &Client, key: &str, value: &[u8]) -> Result<(), Error> {
    let key = Key::new(key).expect("a key");
    let held = client.read(&key).await.expect("read").register;
    let write = Write {
        expect: Expect::Version(held.expect("it is there").version),
        key,
        value: value.into(),
        stamp: Stamp::Now,
    };
    client.compare_and_swap(write).await.map(drop)
}

pub(crate) async fn delete(client: &Client, key: &str) {
    let key = Key::new(key).expect("a key");
    let held = client.read(&key).await.expect("read").register;
    let deleted = client
        .delete(&key, &held.expect("it is there").version)
        .await;
    deleted.expect("deleted");
}

#[tokio::test]
async fn where_the_quota_is_taken_what_grows_is_refused_and_the_rest_goes_on() {
    let servers = server(QUOTA, 1_000).await;
    let client = client(&servers, None);
    let stand = |name: &str| {
        let store = Arc::new(Tenure::with(crate::tokens::client(&servers, None)));
        let lease = Duration::from_secs(2);
        let builder = Election::builder(store, "payroll").name(name).lease(lease);
        builder.start().expect("it stands")
    };
    let mut first = stand("first");
    let elected = tokio::time::timeout(PATIENCE, first.elected()).await;
    let leadership = elected.expect("in time").expect("elected");
    client
        .compare_and_swap(put("ha/web/view", b"1"))
        .await
        .expect("written");
    let (count, said) = fill(&client, "state/").await;
    assert!((56..=60).contains(&count), "{count}");
    for words in [
        "expected room for 1025 more bytes",
        "of 61440",
        "--quota-bytes",
        "a sixteenth is kept",
        "delete some",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let stands = status(&servers).await;
    let most = QUOTA / 16 * 15;
    assert!((most - 1_024..=most).contains(&stands.register_bytes));
    assert!(stands.full.contains("of 65536 bytes"), "{}", stands.full);
    assert_eq!((stands.quota_bytes, stands.quota_registers), (QUOTA, 1_000));

    // What grows beyond it is refused, whichever way it comes.
    assert!(over(&client, "state/0000", &[7; 3_000]).await.is_err());
    // Elections that begin, and nodes that join, have a part of their own.
    for key in ["elections/new", "ha/web/new"] {
        let write = put(key, &[7; 1_500]);
        client.compare_and_swap(write).await.expect("kept for it");
    }
    let write = put("ha/web/more", &[7; 2_000]);
    assert!(client.compare_and_swap(write).await.is_err());
    // What does not, and what is of elections and groups, is done.
    over(&client, "state/0000", &[8; 1_015])
        .await
        .expect("as large");
    over(&client, "state/0001", &[8; 1_014])
        .await
        .expect("smaller");
    over(&client, "ha/web/view", &[8; 5_000])
        .await
        .expect("of a group");
    assert_eq!(client.append("one").await, Ok(1));
    let mut cluster = servers.cluster(1).await;
    let taken = cluster.snapshot(v1::SnapshotRequest {}).await;
    taken.expect("an operator goes on");
    // A leader goes on beyond its lease, and another takes over.
    let term = leadership.term();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(leadership.is_valid(), "it renews");
    let mut second = stand("second");
    drop(leadership);
    drop(first);
    let elected = tokio::time::timeout(PATIENCE, second.elected()).await;
    let leadership = elected.expect("in time").expect("elected");
    assert!(leadership.term() > term);
    it_is_left_by_deleting(&servers, &client).await;
}

async fn it_is_left_by_deleting(servers: &Servers, client: &Client) {
    let (code, text) = http(servers, "GET /readyz", "").await;
    assert_eq!(code, 200, "{text}");
    assert!(text.contains("\"full\":\"registers take"), "{text}");
    for number in 0..20 {
        delete(client, &format!("state/{number:04}")).await;
    }
    client
        .compare_and_swap(put("state/new", &[7; 2_000]))
        .await
        .expect("there is room");
    assert_eq!(status(servers).await.full, "");
    let (_, text) = http(servers, "GET /readyz", "").await;
    assert!(text.contains("\"full\":\"\""), "{text}");
    let (_, metrics) = http(servers, "GET /metrics", "").await;
    for line in [
        "tenure_quota_bytes 65536",
        "tenure_quota_registers 1000",
        "tenure_writes_without_room_total 3",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn calls_without_a_session_are_refused_with_their_own_status_and_open_none() {
    let servers = server(QUOTA, 3).await;
    let write = |key: &str| format!("{{\"swap\": {{\"key\": {key:?}, \"value\": \"eA==\"}}}}");
    let path = "POST /v1/registers/compare_and_swap";
    for key in ["a", "b", "c"] {
        let (code, text) = http(&servers, path, &write(key)).await;
        assert_eq!(code, 200, "{text}");
    }
    let before = status(&servers).await.sessions;
    let address = servers.running[&1].address();
    let calls = (0..40).map(|n| {
        let body = write(&format!("d{n}"));
        async move { http_at(address, path, &body).await }
    });
    for (code, text) in calls.collect::<JoinSet<_>>().join_all().await {
        assert_eq!(code, 507, "{text}");
        assert!(text.contains("\"quota\":true"), "{text}");
        assert!(text.contains("take 3 of 3"), "{text}");
    }
    let request = v1::CompareAndSwapRequest {
        swap: Some(v1::Swap {
            key: "d".into(),
            ..v1::Swap::default()
        }),
        numbered: None,
    };
    let mut registers = servers.registers(1).await;
    let refused = registers.compare_and_swap(request).await;
    let refused = refused.expect_err("there is no room");
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(error(&refused).quota);
    // The session of the server's own has not become many.
    assert_eq!(status(&servers).await.sessions, before);
    let (code, text) = http(
        &servers,
        "POST /v1/registers/delete",
        "{\"key\": \"a\", \"expect\": 1}",
    )
    .await;
    assert_eq!(code, 200, "{text}");
}

/// Who did not hear the answer asks again, and is told what became of it,
/// though there is no room for it by then.
#[tokio::test]
async fn what_was_done_is_not_refused_when_it_is_asked_again() {
    let servers = server(QUOTA, 1).await;
    let mut sessions = servers_sessions(&servers).await;
    let opened = sessions
        .open(v1::OpenSessionRequest {
            ttl_millis: 60_000,
            ..v1::OpenSessionRequest::default()
        })
        .await;
    let session = opened.expect("a session").into_inner().session;
    let numbered = |serial| {
        Some(v1::Numbered {
            session,
            serial,
            outstanding: 1,
            ..v1::Numbered::default()
        })
    };
    let mut registers = servers.registers(1).await;
    let mut write = async |key: &str, serial| {
        let swap = v1::Swap {
            key: key.into(),
            ..v1::Swap::default()
        };
        let request = v1::CompareAndSwapRequest {
            swap: Some(swap),
            numbered: numbered(serial),
        };
        let written = registers.compare_and_swap(request).await;
        written.map(|it| it.into_inner().version)
    };
    let version = write("a", 1).await.expect("written");
    assert_eq!(write("a", 1).await.expect("told again"), version);
    for _ in 0..2 {
        let refused = write("b", 2).await.expect_err("there is no room");
        assert!(error(&refused).quota, "{refused}");
    }
    // Its serial was not used.
    let alive = v1::KeepAliveRequest {
        numbered: numbered(2),
    };
    sessions.keep_alive(alive).await.expect("it goes on");
}

async fn servers_sessions(
    servers: &Servers,
) -> v1::sessions_client::SessionsClient<tonic::transport::Channel> {
    v1::sessions_client::SessionsClient::new(servers.channel(1).await)
}

#[tokio::test]
async fn writes_at_the_same_time_do_not_pass_a_quota_together() {
    let servers = server(QUOTA, 1_000).await;
    let client = Arc::new(client(&servers, None));
    let writes = (0..300).map(|number| {
        let client = Arc::clone(&client);
        async move {
            let write = put(&format!("state/{number:04}"), &[7; 1_014]);
            client.compare_and_swap(write).await
        }
    });
    let results = writes.collect::<JoinSet<_>>().join_all().await;
    let done = results.iter().filter(|it| it.is_ok()).count() as u64;
    let stands = status(&servers).await;
    assert!(done >= 32, "{done} were done");
    assert_eq!(
        (stands.registers, stands.register_bytes),
        (done, done * 1_024)
    );
    let most = QUOTA / 16 * 15;
    assert!(stands.register_bytes <= most, "{stands:?}");
    // What was under way counts no more: it can be filled to the brim.
    let (_, said) = fill(&client, "rest/").await;
    let stands = status(&servers).await;
    assert!(stands.register_bytes > most - 1_024, "{said} {stands:?}");
}

#[tokio::test]
async fn a_token_has_a_quota_of_what_is_below_its_prefixes() {
    let greedy = "write = [\"g/\", \"g/h/\"]\ncampaign = [\"g\"]\nquota_registers = 3000";
    let small = "write = [\"s/\"]\nquota_bytes = 10000";
    let tokens = [
        ("greedy", greedy),
        ("small", small),
        ("boss", "admin = true"),
    ];
    let (mut servers, _) = guarded(1, &tokens).await;
    let [greedy, small, boss] = tokens.map(|(name, _)| named(&servers, name));
    // More than are counted at once, no matter who wrote them.
    let boss = Arc::new(boss);
    let writes = (0..2_998).map(|number| {
        let boss = Arc::clone(&boss);
        async move {
            boss.compare_and_swap(put(&format!("g/{number}"), b""))
                .await
        }
    });
    for written in writes.collect::<JoinSet<_>>().join_all().await {
        written.expect("written");
    }
    let refused = |written: Result<_, Error>| match written {
        Err(Error::Refused { cause, message, .. }) => {
            assert_eq!(cause, Cause::TooLarge, "{message}");
            message
        }
        other => panic!("expected a refusal, found {other:?}"),
    };
    for key in ["g/h/1", "g/h/2"] {
        greedy
            .compare_and_swap(put(key, b""))
            .await
            .expect("written");
    }
    let said = refused(greedy.compare_and_swap(put("g/h/3", b"")).await);
    for words in [
        "take 3000 of 3000",
        "the token whose SHA-256 begins",
        "quota_registers",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let (count, said) = fill(&small, "s/").await;
    assert_eq!(count, 9, "{said}");
    assert!(
        said.contains("quota_bytes") && said.contains("of 10000"),
        "{said}"
    );
    // No other token is concerned, and any token that deletes makes room again.
    boss.compare_and_swap(put("s/more", b"1"))
        .await
        .expect("written");
    delete(&boss, "g/7").await;
    greedy
        .compare_and_swap(put("g/7", b""))
        .await
        .expect("written");
    refused(greedy.compare_and_swap(put("g/h/3", b"")).await);
    // So it is after a restart.
    servers.stop(1).await;
    servers.start(1);
    servers.leader().await;
    refused(greedy.compare_and_swap(put("g/h/3", b"")).await);
    refused(small.compare_and_swap(put("s/9", &[7; 1_015])).await);
    small
        .compare_and_swap(put("s/8x", &[7; 500]))
        .await
        .expect("written");
}
