//! Servers and clients that prove who they are.

use std::path::Path;
use std::time::Duration;

use tenure::store::{Expect, Key, Stamp, Write};
use tenure_client::{Client, ClientTlsFiles, Config, Error, OwnFiles, WatchEvent, WatchTarget};
use tenure_server::Server;
use tenure_server::transport::{MaybeTlsStream, Tls, TlsFiles};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::certificates::{Authority, authority, certified};
use crate::servers::{PATIENCE, Servers};

/// Writes a certificate for this machine.
pub(crate) fn write(dir: &Path, authority: &Authority, expired: bool) -> TlsFiles {
    std::fs::create_dir_all(dir).expect("a directory");
    let [certificate, key] = certified(authority, expired);
    let files = TlsFiles {
        certificate: dir.join("cert.pem"),
        key: dir.join("key.pem"),
        authority: dir.join("ca.pem"),
    };
    // The key and the certificate must never be seen apart.
    let staged = dir.join("staged");
    std::fs::write(&staged, key).expect("written");
    std::fs::write(&files.authority, authority.pem()).expect("written");
    std::fs::rename(&staged, &files.key).expect("renamed");
    std::fs::write(&files.certificate, certificate).expect("written");
    files
}

fn secured(count: u64, authority: &Authority) -> (Servers, TlsFiles) {
    secured_for(count, authority, true)
}

/// The same, whose clients must have a certificate, or need none.
fn secured_for(count: u64, authority: &Authority, demanding: bool) -> (Servers, TlsFiles) {
    secured_with(count, authority, |config| {
        config.client_certificates = demanding;
    })
}

/// The same with what `change` makes of their settings.
pub(crate) fn secured_with(
    count: u64,
    authority: &Authority,
    change: impl Fn(&mut tenure_server::Config),
) -> (Servers, TlsFiles) {
    let mut servers = Servers::found(0, count);
    let client = write(&servers.dir.path().join("client"), authority, false);
    for number in 1..=count {
        let dir = servers.dir.path().join(format!("tls{number}"));
        let files = write(&dir, authority, false);
        let all = servers.configs[&count].peers.clone();
        let config = servers.configs.get_mut(&number).expect("a server");
        config.tls = Some(files);
        config.peers = all;
        change(config);
    }
    for number in 1..=count {
        servers.start(number);
    }
    (servers, client)
}

async fn request_health(tls: &Tls, server: &Server) -> Result<(String, Vec<u8>), std::io::Error> {
    let address = server.address().to_string();
    let stream = TcpStream::connect(&address).await?;
    let mut line = tls.connect(stream, &address).await?;
    let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    line.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    line.read_to_string(&mut answer).await?;
    let MaybeTlsStream::Tls(stream) = line else {
        panic!("expected TLS");
    };
    // The server asks for the certificate on each connection: it may have
    // expired since the last one.
    let handshake = stream.get_ref().1.handshake_kind();
    assert_eq!(format!("{handshake:?}"), "Some(Full)");
    let certificates = stream.get_ref().1.peer_certificates();
    let shown = certificates.expect("it proved itself")[0].to_vec();
    Ok((answer, shown))
}

#[tokio::test]
async fn a_cluster_with_certificates_takes_no_one_without() {
    let authority = authority();
    let (servers, client) = secured(3, &authority);
    let leader = servers.leader().await;
    let server = &servers.running[&leader];
    let known = Tls::open(client).expect("files");
    let (answer, _) = request_health(&known, server).await.expect("let in");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let other = self::authority();
    for (name, by, expired) in [("other", &other, false), ("expired", &authority, true)] {
        let files = write(&servers.dir.path().join(name), by, expired);
        // It believes in the servers, so that it is they who refuse.
        std::fs::write(&files.authority, authority.pem()).expect("written");
        let stranger = Tls::open(files).expect("files");
        let refused = request_health(&stranger, server).await;
        assert!(refused.is_err(), "{name}: {refused:?}");
    }
    // And one that does not speak TLS at all, on either port.
    let peers = servers.configs[&leader].peers.values().next().cloned();
    for address in [server.address().to_string(), peers.expect("an address")] {
        let mut plain = TcpStream::connect(address).await.expect("it listens");
        plain
            .write_all(b"GET /readyz HTTP/1.1\r\n\r\n")
            .await
            .expect("sent");
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut rest)).await;
        read.expect("it is closed").ok();
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.starts_with("HTTP/1.1 400"), "{rest}");
    }
}

#[tokio::test]
async fn a_certificate_that_is_renewed_is_in_use_without_a_restart() {
    let authority = authority();
    let (servers, client) = secured(1, &authority);
    servers.leader().await;
    let known = Tls::open(client).expect("files");
    let (_, before) = request_health(&known, &servers.running[&1])
        .await
        .expect("let in");
    write(&servers.dir.path().join("tls1"), &authority, false);
    let renewed = async {
        loop {
            let (_, now) = request_health(&known, &servers.running[&1])
                .await
                .expect("let in");
            if now != before {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, renewed)
        .await
        .expect("renewed");
    // A file that makes no sense leaves the last good one in use.
    std::fs::write(servers.dir.path().join("tls1/cert.pem"), "nonsense").expect("written");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    request_health(&known, &servers.running[&1])
        .await
        .expect("still let in");
}

#[tokio::test]
async fn files_that_make_no_sense_are_named() {
    let authority = authority();
    let servers = Servers::found(0, 1);
    let files = write(&servers.dir.path().join("tls"), &authority, false);
    for (file, said) in [
        (&files.certificate, "expected certificates in PEM"),
        (&files.key, "expected a key in PEM"),
        (&files.authority, "expected certificates in PEM"),
    ] {
        let good = std::fs::read(file).expect("it is there");
        std::fs::write(file, "nonsense").expect("written");
        let mut config = servers.configs[&1].clone();
        config.tls = Some(files.clone());
        let error = Server::start(config)
            .expect_err("no certificates")
            .to_string();
        assert!(error.contains(said), "{error}");
        assert!(error.contains(&file.display().to_string()), "{error}");
        std::fs::write(file, good).expect("written");
    }
}

/// A client of all the servers that has these files.
pub(crate) fn client(servers: &Servers, authority: &Path, own: Option<&TlsFiles>) -> Client {
    let listen: Vec<&str> = servers.configs.values().map(|it| &*it.listen).collect();
    let files = ClientTlsFiles {
        authority: authority.to_owned(),
        own: own.map(|own| OwnFiles {
            certificate: own.certificate.clone(),
            key: own.key.clone(),
        }),
        revoked: None,
    };
    let config = Config::default().timeout(PATIENCE).tls(files);
    Client::new(&listen.join(","), &config).expect("a client")
}

/// Why a client does not get through, in the time that a handshake takes on a
/// busy machine.
async fn trouble(client: &Client) -> String {
    let answer = client
        .with_timeout(Duration::from_secs(6))
        .append("x")
        .await;
    let Err(Error::Unavailable(why)) = answer else {
        panic!("expected that nothing is done, found {answer:?}");
    };
    why
}

#[tokio::test]
async fn all_that_a_client_does_it_does_over_tls() {
    let authority = authority();
    let (servers, files) = secured(3, &authority);
    let client = client(&servers, &files.authority, Some(&files));
    assert_eq!(client.append("one").await, Ok(1));
    let entry = client.tail(1).next().await.expect("it goes on");
    assert_eq!(&*entry.expect("an entry").data, b"one");
    let key = Key::new("a").expect("a key");
    let mut changes = client.watch(WatchTarget::Key(key.clone()));
    assert_eq!(changes.next().await, WatchEvent::Began(Vec::new()));
    assert_eq!(changes.next().await, WatchEvent::Live);
    let write = Write {
        key: key.clone(),
        expect: Expect::Absent,
        value: b"1".as_slice().into(),
        stamp: Stamp::Now,
    };
    client.compare_and_swap(write).await.expect("written");
    let WatchEvent::Changed(changed, Some(held)) = changes.next().await else {
        panic!("expected a change");
    };
    assert_eq!((changed, &*held.value), (key, &b"1"[..]));
    let reached = client.status().await;
    assert!(reached.iter().all(|it| it.status.is_ok()), "{reached:?}");
    assert_eq!(reached.len(), 3);
}

#[tokio::test]
async fn a_client_without_a_certificate_comes_in_where_anybody_may() {
    let authority = authority();
    let (open, files) = secured_for(1, &authority, false);
    let anybody = client(&open, &files.authority, None);
    assert_eq!(anybody.append("one").await, Ok(1));
    let (closed, files) = secured(1, &authority);
    closed.leader().await;
    let why = trouble(&client(&closed, &files.authority, None)).await;
    assert!(why.contains("the servers ask clients for one"), "{why}");
    assert!(why.contains("cert= and key="), "{why}");
    assert!(!why.contains("alert"), "{why}");
}

/// The servers hear what is wrong with a client's certificate, and the client
/// an alert, which it translates.
#[tokio::test]
async fn a_client_that_is_not_believed_says_why_and_what_to_do() {
    let authority = authority();
    let (servers, files) = secured(1, &authority);
    servers.leader().await;
    let dir = |name: &str| servers.dir.path().join(name);
    let foreign = write(&dir("foreign"), &self::authority(), false);
    let expired = write(&dir("expired"), &authority, true);
    for (own, found) in [
        (&foreign, "it is of another authority than their --tls-ca"),
        (&expired, "it has expired, or is not valid yet; renew it"),
    ] {
        let why = trouble(&client(&servers, &files.authority, Some(own))).await;
        assert!(why.contains(found), "{why}");
        let named = own.certificate.display().to_string();
        assert!(why.contains(&named), "{why}");
        assert!(!why.contains("alert"), "{why}");
    }
}

#[tokio::test]
async fn a_client_says_whom_it_does_not_believe_and_looks_again() {
    let authority = authority();
    let (servers, files) = secured(1, &authority);
    servers.leader().await;
    let other = write(&servers.dir.path().join("other"), &self::authority(), false);
    let client = client(&servers, &other.authority, Some(&files));
    let why = trouble(&client).await;
    let expected = "expected a certificate for this host from an authority in";
    assert!(
        why.contains(expected) && why.contains("found one of another authority; name"),
        "{why}"
    );
    let named = other.authority.display().to_string();
    assert!(why.contains(&named), "{why}");
    std::fs::write(&other.authority, authority.pem()).expect("written");
    assert_eq!(client.append("one").await, Ok(1));
}

#[tokio::test]
async fn a_client_with_tls_is_no_client_of_servers_without() {
    let servers = Servers::found(1, 0);
    servers.leader().await;
    let files = write(&servers.dir.path().join("client"), &authority(), false);
    let why = trouble(&client(&servers, &files.authority, None)).await;
    assert!(why.contains("expected TLS, found something else"), "{why}");
}

#[tokio::test]
async fn a_client_without_tls_is_told_that_servers_speak_it() {
    let (servers, _) = secured(1, &authority());
    let address = servers.running.values().next().expect("one").address();
    let plain = Client::new(&address.to_string(), &Config::default()).expect("a client");
    let said = trouble(&plain).await;
    assert!(said.contains("this server speaks TLS"), "{said}");
    assert!(said.contains("ca=FILE"), "{said}");
    // By HTTP, too.
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("told");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("this server speaks TLS"), "{answer}");
}

#[tokio::test]
async fn files_of_a_client_that_make_no_sense_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = write(dir.path(), &authority(), false);
    let url = |ca: &Path, key: &Path| {
        let (ca, cert, key) = (ca.display(), files.certificate.display(), key.display());
        format!("tenure://h:1?ca={ca}&cert={cert}&key={key}")
    };
    Client::open(&url(&files.authority, &files.key)).expect("a client");
    let strange = write(&dir.path().join("strange"), &authority(), false);
    for (ca, key, said) in [
        (
            &dir.path().join("none"),
            &files.key,
            "expected certificates in PEM",
        ),
        (&files.key, &files.key, "expected certificates in PEM"),
        (&files.authority, &files.authority, "expected a key in PEM"),
        (
            &files.authority,
            &strange.key,
            "expected the certificate's key in PEM",
        ),
    ] {
        let refused = Client::open(&url(ca, key));
        let Err(Error::Refused { message, .. }) = refused else {
            panic!("expected a refusal, found {refused:?}");
        };
        assert!(message.contains(said), "{message}");
    }
}
