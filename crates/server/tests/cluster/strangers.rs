//! Strangers, and messages that make no sense.

use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tenure::clock;
use tenure_api::v1;
use tenure_api::v1::log_client::LogClient;
use tenure_server::{Ended, Server, StartError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::cases::{admit, remove};
use crate::servers::{PATIENCE, Servers, id};

/// What a server says that founds nothing and waits, because its number is
/// another disk's.
async fn waits(server: &Server) -> String {
    let mut health_status = server.health_status();
    let told = health_status.wait_for(|it| it.waiting.contains("expected the data directory"));
    let told = tokio::time::timeout(PATIENCE, told).await;
    told.expect("in time").expect("it runs").waiting.clone()
}

async fn why(server: &Server) -> String {
    let ended = tokio::time::timeout(PATIENCE, server.ended()).await;
    ended.expect("it ends").to_string()
}

#[tokio::test]
async fn a_wiped_server_refuses_and_is_taken_in_anew() {
    let mut servers = Servers::found(3, 0);
    servers.append("kept").await;
    let wiped = 2;
    servers.stop(wiped).await;
    std::fs::remove_dir_all(servers.data(wiped)).expect("wiped");
    let refused = Server::start(servers.configs[&wiped].clone()).expect("it starts");
    let said = waits(&refused).await;
    assert!(said.contains("tenure member remove 2"), "{said}");
    assert!(said.contains("tenure member add 2 --storage"), "{said}");
    refused.stop();
    why(&refused).await;

    remove(&servers, wiped).await;
    servers.start(wiped);
    servers
        .until(wiped, |it| it.waiting.contains("member add"))
        .await;
    admit(&servers, wiped).await;
    servers.until(wiped, |it| it.ready).await;
    assert_eq!(servers.entries(wiped, 1).await, ["kept"]);
}

#[tokio::test]
async fn a_server_of_another_cluster_is_refused_by_both_sides() {
    let mut ours = Servers::found(3, 0);
    let theirs = Servers::found(1, 0);
    ours.leader().await;
    theirs.leader().await;
    ours.stop(3).await;
    // Somebody confuses the data directories.
    let mut confused = ours.configs[&3].clone();
    confused.data = theirs.data(1);
    let error = Server::start(confused.clone()).expect_err("it is in use");
    assert!(matches!(error, StartError::Disk(_)), "{error}");
    assert!(
        error.to_string().contains("no other process uses"),
        "{error}"
    );
    drop(
        theirs
            .running
            .values()
            .map(Server::stop)
            .collect::<Vec<_>>(),
    );
    let _ = why(&theirs.running[&1]).await;
    let error = Server::start(confused).expect_err("it is server 1's");
    assert!(error.to_string().contains("server"), "{error}");
    ours.append("undisturbed").await;
}

#[tokio::test]
async fn a_second_server_with_the_same_number_is_refused() {
    let servers = Servers::found(3, 0);
    servers.leader().await;
    let [peer, client] = crate::servers::ports();
    let mut twin = servers.configs[&3].clone();
    twin.data = servers.dir.path().join("twin");
    twin.peers.insert(id(3), format!("127.0.0.1:{peer}"));
    twin.listen = format!("127.0.0.1:{client}");
    let twin = Server::start(twin).expect("it starts");
    let said = waits(&twin).await;
    assert!(said.contains("expected the data directory"), "{said}");
    servers.append("undisturbed").await;
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let servers = Servers::found(1, 0);
    let mut config = servers.configs[&1].clone();
    config.data = servers.dir.path().join("other");
    let error = Server::start(config.clone()).expect_err("the port is in use");
    let said = error.to_string();
    assert!(said.contains(&config.peers[&id(1)]), "{said}");
    assert!(said.contains("choose another port"), "{said}");
    assert!(said.contains("in use"), "{said}");
    // The message says what the system said; a chain would say it again.
    assert!(std::error::Error::source(&error).is_none(), "{error:?}");
}

#[tokio::test]
async fn garbage_on_either_port_closes_that_connection_and_nothing_else() {
    let servers = Servers::found(3, 0);
    let leader = servers.leader().await;
    let config = &servers.configs[&leader];
    let mut garbage = vec![0; 1 << 20];
    getrandom::fill(&mut garbage).expect("random bytes");
    for port in [config.peers[&id(leader)].clone(), config.listen.clone()] {
        let garbage = garbage.clone();
        let closed = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(port).expect("it listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            // It may be closed before everything is written.
            let _ = stream.write_all(&garbage);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut rest = Vec::new();
            match stream.read_to_end(&mut rest) {
                Ok(_) => true,
                Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        });
        assert!(closed.await.expect("no panic"));
    }
    servers.append("undisturbed").await;
}

/// The first bytes of a message, and then nothing.
struct Half(Option<Bytes>);

impl Body for Half {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

/// A client that sends a part of a message and goes to sleep is not waited for,
/// and other calls of the same connection are none the worse.
#[tokio::test]
async fn a_message_that_is_sent_by_half_is_dropped_in_time() {
    use tonic::codegen::{Service as _, http};
    let mut servers = Servers::found(0, 1);
    let within = Duration::from_millis(300);
    let config = servers.configs.get_mut(&1).expect("it is there");
    config.message_within = within;
    servers.start(1);
    servers.leader().await;

    let mut channel = servers.channel(1).await;
    // It is to be of a hundred bytes.
    let begun = Bytes::from_static(&[0, 0, 0, 0, 100, 10, 1]);
    let request = http::Request::post("http://x/tenure.v1.Log/Append")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(tonic::body::Body::new(Half(Some(begun))))
        .expect("a request");
    let sent = clock::boot();
    poll_fn(|context| channel.poll_ready(context))
        .await
        .expect("ready");
    let answer = tokio::time::timeout(PATIENCE, channel.call(request)).await;
    let took = clock::boot().since(sent);
    let answer = answer.expect("an answer in time").expect("an answer");
    assert!(took >= within, "{took:?}");
    let status = tonic::Status::from_header_map(answer.headers()).expect("a status");
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("300ms"), "{status}");

    let append = v1::AppendRequest {
        entries: vec!["whole".into()],
        numbered: None,
    };
    let appended = LogClient::new(channel).append(append).await;
    assert_eq!(appended.expect("it is whole").into_inner().numbers, [1]);
}

#[tokio::test]
async fn a_connection_without_a_call_is_closed_and_one_with_a_call_is_not() {
    let mut servers = Servers::found(0, 1);
    let config = servers.configs.get_mut(&1).expect("it is there");
    config.idle = Duration::from_millis(200);
    let address = config.listen.clone();
    servers.start(1);
    servers.leader().await;

    let tail = v1::TailRequest { from: 1 };
    let tail = servers.log(1).await.tail(tail).await.expect("a tail");
    let mut tail = tail.into_inner();
    let idle = tokio::net::TcpStream::connect(address).await;
    let mut idle = idle.expect("it listens");
    let probe = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    idle.write_all(probe).await.expect("it reads");
    let mut said = String::new();
    let ended = tokio::time::timeout(PATIENCE, idle.read_to_string(&mut said)).await;
    ended.expect("it ends in time").expect("an answer");
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    let mut cluster = servers.cluster(1).await;
    let metrics = cluster.metrics(v1::MetricsRequest {}).await;
    let text = metrics.expect("metrics").into_inner().text;
    let closed = "tenure_connections_closed_total{reason=\"Idle\"} 1";
    assert!(text.contains(closed), "{text}");

    servers.append("heard").await;
    let told = tokio::time::timeout(PATIENCE, tail.message()).await;
    let told = told.expect("in time").expect("it goes on").expect("no end");
    assert_eq!(told.entries[0].data, "heard");
}

#[tokio::test]
async fn servers_that_were_told_of_different_peers_found_nothing_and_say_so() {
    // Server 1 does not know of 3: with 2 it has heard everybody.
    let mut servers = Servers::found(0, 3);
    let peers = |of: &Servers, number| of.configs[&number].peers[&id(number)].clone();
    let all = [1, 2, 3].map(|number| (id(number), peers(&servers, number)));
    for (number, known) in [(1, &all[..2]), (2, &all[..]), (3, &all[..])] {
        let config = servers.configs.get_mut(&number).expect("it is there");
        config.peers = known.iter().cloned().collect();
    }
    for number in [1, 2, 3] {
        servers.start(number);
    }
    let other_peers = |it: &tenure_server::HealthStatus| it.waiting.contains("the same --peers");
    for number in [1, 2] {
        let stands = servers.until(number, other_peers).await;
        assert!(
            stands.waiting.contains("servers 1, 2, 3"),
            "{}",
            stands.waiting
        );
    }
    // Corrected, it founds the cluster with the others, which waited.
    servers.stop(1).await;
    let first = servers.configs.get_mut(&1).expect("it is there");
    first.peers = all.into();
    servers.start(1);
    servers.leader().await;
    servers.append("together").await;
}

#[tokio::test]
async fn a_newcomer_that_was_told_of_a_follower_alone_is_found_by_the_leader() {
    let mut servers = Servers::found(3, 1);
    let leader = servers.leader().await;
    servers.append("before").await;
    let told_of = (1..=3)
        .find(|number| *number != leader)
        .expect("a follower");
    let address = servers.configs[&told_of].peers[&id(told_of)].clone();
    let newcomer = servers.configs.get_mut(&4).expect("it is there");
    newcomer.peers.retain(|server, _| *server == id(4));
    newcomer.peers.insert(id(told_of), address);
    servers.start(4);
    servers
        .until(4, |it| it.waiting.contains("member add"))
        .await;
    admit(&servers, 4).await;
    servers.until(4, |it| it.ready).await;
    assert_eq!(servers.entries(4, 1).await, ["before"]);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_what_was_found() {
    let servers = Servers::found(1, 0);
    servers.leader().await;
    let mut registers = servers.registers(1).await;
    let long = "k".repeat(600);
    for key in ["", "a\nb", &long] {
        let request = v1::ReadRequest {
            key: key.into(),
            stale: false,
        };
        let refused = registers.read(request).await.expect_err("no key");
        assert_eq!(crate::servers::cause(&refused), v1::Cause::Invalid);
    }
    let swap = v1::Swap {
        key: "a".into(),
        value: vec![0; 300 * 1024].into(),
        ..v1::Swap::default()
    };
    let request = v1::CompareAndSwapRequest {
        swap: Some(swap),
        numbered: None,
    };
    let refused = registers
        .compare_and_swap(request)
        .await
        .expect_err("too large");
    assert_eq!(crate::servers::cause(&refused), v1::Cause::TooLarge);
    assert!(refused.message().contains("found 307200"), "{refused}");
}

#[tokio::test]
async fn a_blank_server_can_be_stopped() {
    let servers = Servers::found(1, 2);
    let waits = Server::start(servers.configs[&3].clone()).expect("it starts");
    waits.stop();
    let ended = tokio::time::timeout(PATIENCE, waits.ended()).await;
    assert!(matches!(*ended.expect("in time"), Ended::Stopped));
}
