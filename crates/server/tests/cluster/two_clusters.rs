//! Servers of two clusters at the addresses of one, of which some refuse the
//! client: a refusal is no silence.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_client::{Client, Config, Error, Tail, WatchEvent, WatchTarget};
use tonic::Code;

use crate::certificates::authority;
use crate::servers::{PATIENCE, Servers};
use crate::tls::{client as with_tls, secured_with, write as certify};
use crate::tokens::{client, guarded_with, named, write};

/// A client goes to another cluster after some 4 s in which its own is silent.
const SILENCE: Duration = Duration::from_secs(6);

/// Three servers, each with a file of tokens of its own.
async fn three() -> (Servers, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let (servers, _) = guarded_with(3, &TOKENS, |config| {
        let file = tokens(dir.path(), config.id.get());
        write(&file, &TOKENS);
        config.tokens = Some(file);
    })
    .await;
    (servers, dir)
}

const TOKENS: [(&str, &str); 2] = [
    ("boss", "admin = true"),
    ("clerk", "log = \"append\"\nread = [\"watched\"]"),
];

fn tokens(dir: &Path, number: u64) -> PathBuf {
    dir.join(number.to_string())
}

/// Starts server 3 with an empty disk and with itself alone in `--peers`.
async fn found_another(servers: &mut Servers) {
    servers.stop(3).await;
    let data = servers.dir.path().join("other");
    let config = servers.configs.get_mut(&3).expect("a server");
    config.data = data;
    config.peers.retain(|id, _| id.get() == 3);
    servers.start(3);
    servers.until(3, |it| it.leads).await;
}

/// Takes the token of the clerk from some servers, and waits until they
/// refuse it.
async fn refuse_clerk(servers: &Servers, dir: &Path, numbers: &[u64]) {
    for number in numbers {
        write(&tokens(dir, *number), &TOKENS[..1]);
        let mut cluster = servers.cluster(*number).await;
        loop {
            let mut request = tonic::Request::new(tenure_api::v1::StatusRequest::default());
            let token = "Bearer clerk".parse().expect("a header");
            request.metadata_mut().insert("authorization", token);
            match cluster.status(request).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(status) if status.code() == Code::Unauthenticated => break,
                Err(status) => panic!("expected a refusal, found {status}"),
            }
        }
    }
}

/// Checks that a client was told of servers 1 and 2, which refuse it, and of 3.
fn told(servers: &Servers, said: &Error) {
    let said = said.to_string();
    let named = |number: &u64| said.contains(&servers.configs[number].listen);
    assert!(
        said.contains("expected servers of one cluster") && [1, 2, 3].iter().all(named),
        "{said}"
    );
    assert!(said.contains("1 member and"), "{said}");
    assert!(said.contains("refuse this client"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_refuses_a_token_is_alive_beside_another() {
    let (mut servers, dir) = three().await;
    let old = named(&servers, "clerk");
    assert_eq!(old.append("one").await, Ok(1));
    found_another(&mut servers).await;
    refuse_clerk(&servers, dir.path(), &[1, 2]).await;
    let new = named(&servers, "clerk");
    let new = new.with_timeout(SILENCE / 2);
    let old = old.with_timeout(SILENCE);
    // A watch, whose first server may be any, is told nothing either.
    let mut watch = named(&servers, "clerk").watch(WatchTarget::Prefix("watched".into()));
    let watched = async {
        loop {
            match watch.next().await {
                WatchEvent::Began(_) => panic!("it believes the first one that answers"),
                WatchEvent::Down(why) if why.contains("expected servers of one") => return,
                _ => {}
            }
        }
    };
    let watched = tokio::time::timeout(PATIENCE, watched);
    let (old, new, watched) = tokio::join!(old.append("two"), new.append("two"), watched);
    watched.expect("it says why");
    for said in [new, old] {
        told(&servers, &said.expect_err("no leader is believed"));
    }
    // A refusal counts until the server answers.
    for number in [1, 2] {
        write(&tokens(dir.path(), number), &TOKENS);
    }
    let known = named(&servers, "clerk").with_timeout(Duration::from_secs(1));
    loop {
        let said = known.append("two").await.expect_err("there are two");
        if said.to_string().contains(" and 127.0.0.1") && !said.to_string().contains("refuse") {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_one_of_three_does_not_know_yet_is_good() {
    let (servers, dir) = three().await;
    let old = named(&servers, "clerk");
    assert_eq!(old.append("one").await, Ok(1));
    let leader = servers.leader().await;
    let other = (1..=3).find(|it| *it != leader).expect("a follower");
    refuse_clerk(&servers, dir.path(), &[other]).await;
    assert_eq!(named(&servers, "clerk").append("two").await, Ok(2));
    assert_eq!(old.append("three").await, Ok(3));
    // Nor is it lost when another leads.
    let third = 6 - leader - other;
    let handed = named(&servers, "boss").transfer(Some(third)).await;
    handed.expect("handed over");
    assert_eq!(old.append("four").await, Ok(4));
}

/// The next entry of each tail, as text.
async fn next_of(tails: &mut [Tail]) -> Vec<Result<String, Error>> {
    let mut found = Vec::new();
    for tail in tails {
        let entry = tokio::time::timeout(PATIENCE, tail.next()).await;
        let entry = entry.expect("in time").expect("no end");
        found.push(entry.map(|it| String::from_utf8_lossy(&it.data).into_owned()));
    }
    found
}

/// All tails come to the server of the other cluster, whose entries have the same numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_tail_takes_no_entry_of_another_cluster_and_ends_when_its_own_is_gone() {
    let mut servers = Servers::found(3, 0);
    let reader = client(&servers, None);
    reader.append("one").await.expect("appended");
    let mut tails: Vec<_> = (0..6).map(|_| reader.tail(1)).collect();
    let all = |text: &str| vec![Ok(text.to_owned()); tails.len()];
    let [one, two, three] = ["one", "two", "three"].map(all);
    assert_eq!(next_of(&mut tails).await, one);
    found_another(&mut servers).await;
    let other = &servers.configs[&3].listen;
    let other = Client::new(other, &Config::default()).expect("a client");
    for (number, text, wanted) in [(1, "two", two), (2, "three", three)] {
        servers.stop(number).await;
        servers.start(number);
        servers.until(number, |it| it.ready).await;
        reader.append(text).await.expect("appended");
        assert_eq!(next_of(&mut tails).await, wanted);
        // Its log has nothing to tell at first.
        for text in ["1", "2", "3", "4", "5"] {
            other.append(text).await.expect("appended");
        }
    }
    for number in [1, 2] {
        servers.stop(number).await;
    }
    for end in next_of(&mut tails).await {
        let why = end.expect_err("its log is gone").to_string();
        assert!(why.contains("has taken its place"), "{why}");
    }
}

/// What a client hears of TLS comes late, and from the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_refuses_a_certificate_is_alive_beside_another() {
    let [ours, theirs] = [authority(), authority()];
    let (mut servers, _) = secured_with(3, &ours, |config| {
        // Clients have two authorities, and servers one of their own.
        let tls = config.tls.as_mut().expect("TLS");
        let of_servers = tls.authority.with_file_name("servers.pem");
        std::fs::copy(&tls.authority, &of_servers).expect("copied");
        config.peer_authority = Some(of_servers);
        let both = ours.pem() + &theirs.pem();
        std::fs::write(&tls.authority, both).expect("written");
    });
    servers.leader().await;
    let files = certify(&servers.dir.path().join("theirs"), &theirs, false);
    let of_servers = servers.dir.path().join("client/ca.pem");
    let client = |servers: &Servers| with_tls(servers, &of_servers, Some(&files));
    assert_eq!(client(&servers).append("one").await, Ok(1));
    found_another(&mut servers).await;
    for number in [1, 2] {
        let tls = servers.configs[&number].tls.as_ref().expect("TLS");
        std::fs::write(&tls.authority, ours.pem()).expect("written");
    }
    let asked = client(&servers);
    loop {
        let all = asked.status().await;
        if all.iter().filter(|it| it.status.is_err()).count() == 2 {
            break;
        }
    }
    for _ in 0..3 {
        let new = client(&servers).with_timeout(SILENCE / 2);
        told(&servers, &new.append("two").await.expect_err("none leads"));
    }
}
