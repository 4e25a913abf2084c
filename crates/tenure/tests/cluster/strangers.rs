//! Whoever does not belong, and whatever makes no sense.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tenure::api::v1;
use tenure::server::{Ended, Server, StartError};

use crate::cases::{admit, remove};
use crate::servers::{PATIENCE, Servers, id};

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
    let said = why(&refused).await;
    assert!(said.contains("tenure member remove 2"), "{said}");
    assert!(said.contains("tenure member add 2 --storage"), "{said}");

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
    let said = why(&twin).await;
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

#[tokio::test]
async fn a_server_that_others_have_founded_without_joins_nothing_and_says_so() {
    // Servers 1 and 2 differ on who belongs to the cluster: 1 does not know of
    // 3, so with 2 it has heard everybody.
    let mut servers = Servers::found(0, 3);
    let third = servers.configs[&3].peers[&id(3)].clone();
    let second = servers.configs.get_mut(&2).expect("it is there");
    second.peers.insert(id(3), third);
    let known = second.peers.clone();
    let first = servers.configs.get_mut(&1).expect("it is there");
    first.peers = known.into_iter().filter(|(it, _)| *it != id(3)).collect();
    servers.start(1);
    servers.start(2);
    servers.leader().await;
    servers.start(3);
    let stands = servers
        .until(3, |it| it.waiting.contains("member add"))
        .await;
    assert!(stands.waiting.contains("not in it"), "{}", stands.waiting);
    // It is as the warning says: taken in, it follows.
    admit(&servers, 3).await;
    servers.until(3, |it| it.ready).await;
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
