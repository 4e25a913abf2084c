//! A stranger who speaks the servers' protocol, against three real servers:
//! without a secret, with one, with the certificate of a client, and with that
//! of another server. It gets nothing: nobody stops, nobody else leads, no
//! log, no address and no health changes, and a server that belongs is still
//! taken in.
//!
//! `TENURE_ATTACKED` names another binary to attack: that of before falls.

#[path = "../common/mod.rs"]
mod common;
mod stranger;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::servers::{SOON, free, led, metric, objects};
use common::{TENURE, poll_until};
use serde_json::Value;
use stranger::{
    Response, Stranger, book, forged, greeting, heartbeat, nobody, request, settings, vote,
};
use tenure::core::alpo::{ClusterId, Envelope, MAX_NUMBER, Position, StorageId};
use tenure::core::ids::Term;
use tenure::transport::{Answer, Form, PeerSecret, Prover, Tls, TlsFiles, introduced};

pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// Long enough that nobody stands because the machine is busy: whoever leads
/// another reign was helped.
const TIMEOUT: Duration = Duration::from_secs(3);

fn attacked() -> String {
    std::env::var("TENURE_ATTACKED").unwrap_or_else(|_| TENURE.to_owned())
}

/// How servers know each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Nothing,
    Secret,
    Certificates,
    /// Those that name no number are taken for a server's, too.
    AnyServer,
    /// Servers have an authority of their own, and clients another.
    Authorities,
}

impl By {
    const fn has_tls(self) -> bool {
        !matches!(self, Self::Nothing | Self::Secret)
    }
}

struct Place {
    dir: tempfile::TempDir,
    by: By,
    peers: Vec<String>,
    clients: Vec<String>,
    servers: Vec<Child>,
}

/// A member's number, and where it is reached by servers and by clients.
type Contact = (u64, String, String);

/// What must not change.
#[derive(Clone, PartialEq, Debug)]
struct Seen {
    leader: u64,
    /// Of each server: its number, whether it leads, its term, and where it
    /// has everybody.
    servers: Vec<(u64, bool, u64, Vec<Contact>)>,
    log: String,
}

impl Place {
    fn found(by: By) -> Self {
        let [a, b, c, d, clients @ ..] = free::<8>();
        let mut place = Self {
            dir: tempfile::tempdir().expect("a directory"),
            by,
            peers: vec![a, b, c, d],
            clients: clients.into(),
            servers: Vec::new(),
        };
        if by.has_tls() {
            for server in 1..=4 {
                let (name, server) = (format!("server-{server}"), server.to_string());
                place.tenure(&[
                    "certs",
                    &place.path("certs"),
                    "--name",
                    &name,
                    "--server",
                    &server,
                ]);
            }
            place.tenure(&["certs", &place.path("certs"), "--name", "client"]);
            let clients = ["certs", &place.path("clients"), "--name"];
            place.tenure(&[&clients[..], &["client"]].concat());
            place.tenure(&[&clients[..], &["server-2", "--server", "2"]].concat());
        }
        std::fs::write(place.path("secret"), "a secret of all servers\n").expect("written");
        place.close("secret");
        for number in 1..=3 {
            let server = place.serve(number, 3);
            place.servers.push(server);
        }
        led(&place.url());
        if attacked() == TENURE {
            // Before that servers of an earlier release may be among them.
            let risen = || {
                let status = place.status();
                let risen = |it: &&Value| it["cluster_version"].as_u64() >= Some(2);
                (status.iter().filter(risen).count() == 3).then_some(())
            };
            poll_until(SOON, risen).expect("the second version");
        }
        place.tenure(&["log", "append", "--store", &place.url(), "kept"]);
        place
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn close(&self, name: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let only_ours = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.path(name), only_ours).expect("set");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("certs").join(name)
    }

    fn serve(&self, number: usize, of: usize) -> Child {
        let mut peers: Vec<_> = (1..=of).collect();
        if !peers.contains(&number) {
            peers.push(number);
        }
        let named = |it: &usize| format!("{it}={}", self.peers[it - 1]);
        let peers: Vec<_> = peers.iter().map(named).collect();
        let mut serve = Command::new(attacked());
        serve
            .args(["serve", "--id", &number.to_string()])
            .args([
                "--peers",
                &peers.join(","),
                "--listen",
                &self.clients[number - 1],
            ])
            .args(["--election-timeout", "3s", "--heartbeat", "100ms"])
            .args(["--data", &self.path(&number.to_string())])
            // What servers of one machine share by themselves is not meant.
            .env_remove("HOME")
            .env_remove("XDG_STATE_HOME");
        match self.by {
            By::Nothing => {}
            By::Secret => {
                serve.args(["--peer-secret-file", &self.path("secret")]);
            }
            By::Certificates | By::AnyServer | By::Authorities => {
                serve
                    .arg("--tls-cert")
                    .arg(self.file(&format!("server-{number}.pem")));
                serve
                    .arg("--tls-key")
                    .arg(self.file(&format!("server-{number}.key")));
            }
        }
        match self.by {
            By::Nothing | By::Secret => {}
            By::Certificates => drop(serve.arg("--tls-ca").arg(self.file("ca.pem"))),
            By::AnyServer => {
                serve.arg("--tls-ca").arg(self.file("ca.pem"));
                serve.arg("--tls-any-server");
            }
            By::Authorities => {
                serve.args(["--tls-ca", &self.path("clients/ca.pem")]);
                serve.arg("--tls-peer-ca").arg(self.file("ca.pem"));
            }
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path(&format!("{number}.log")));
        serve.stdout(Stdio::null()).stderr(log.expect("a file"));
        serve.spawn().expect("a server")
    }

    /// How often a server warned of a connection or message of another one.
    fn warnings(&self, number: usize) -> usize {
        let log = std::fs::read_to_string(self.path(&format!("{number}.log")));
        let log = log.expect("the server's log");
        let of_peers = ["a connection is closed", "a message is not heeded"];
        let is_one = |line: &&str| of_peers.iter().any(|text| line.contains(text));
        log.lines().filter(is_one).count()
    }

    fn url(&self) -> String {
        let url = format!("tenure://{}", self.clients[..3].join(","));
        if !self.by.has_tls() {
            return url;
        }
        let own = match self.by {
            By::Authorities => self.path("clients"),
            _ => self.path("certs"),
        };
        let ca = self.path("certs/ca.pem");
        format!("{url}?ca={ca}&cert={own}/client.pem&key={own}/client.key")
    }

    fn tenure(&self, args: &[&str]) -> String {
        let done = Command::new(TENURE).args(args).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{args:?}: {said}");
        String::from_utf8(done.stdout).expect("text")
    }

    fn status(&self) -> Vec<Value> {
        objects(&["status", "--json", "--store", &self.url()])
    }

    fn seen(&mut self) -> Seen {
        for (index, server) in self.servers.iter_mut().enumerate() {
            let ended = server.try_wait().expect("it can be asked");
            assert_eq!(ended, None, "server {} has ended", index + 1);
        }
        let mut seen = None;
        let settled = || {
            let status = self.status();
            let ready = status
                .iter()
                .filter(|it| it["ready"] == true && it["removed"] != true);
            if ready.count() < 3 {
                return None;
            }
            let mut servers: Vec<_> = status.iter().map(server_seen).collect();
            servers.sort_by_key(|it| it.0);
            let leader = servers.iter().find(|it| it.1)?.0;
            Some((leader, servers))
        };
        if let Some((leader, servers)) = poll_until(SOON, settled) {
            let log = self.tenure(&["log", "read", "--store", &self.url()]);
            seen = Some(Seen {
                leader,
                servers,
                log,
            });
        }
        seen.unwrap_or_else(|| panic!("expected three that are ready, found {:#?}", self.status()))
    }

    /// The cluster's id, and the disks of its servers.
    fn known(&self) -> (ClusterId, Vec<u128>) {
        let status = self.status();
        let hex = |it: &Value| {
            let text = it.as_str().expect("text");
            u128::from_str_radix(text, 16).expect("a number")
        };
        let mut disks: Vec<_> = status
            .iter()
            .map(|it| (it["id"].as_u64(), hex(&it["storage"])))
            .collect();
        disks.sort_unstable();
        let cluster = ClusterId::from_u128(hex(&status[0]["cluster"]));
        (cluster, disks.into_iter().map(|(_, disk)| disk).collect())
    }

    /// Where the leader's log ends.
    fn end(&self) -> Position {
        let status = self.status();
        let leader = status.iter().find(|it| it["role"] == "leader");
        let leader = leader.expect("a leader");
        let number = |name: &str| leader[name].as_u64().expect("a number");
        let term = Term::new(number("last_log_term")).expect("a term");
        Position::new(term, number("last_log_id"))
    }

    /// A server that belongs is taken in.
    fn takes_in_a_fourth(&mut self) {
        let server = self.serve(4, 3);
        self.servers.push(server);
        let url = self
            .url()
            .replace(&self.clients[..3].join(","), &self.clients[3]);
        let fourth = || {
            objects(&["status", "--json", "--store", &url])
                .into_iter()
                .next()
        };
        let storage = poll_until(SOON, || {
            let status = fourth()?;
            let waits = status["waiting"].as_str()?.contains("member add 4");
            waits.then(|| status["storage"].as_str().map(str::to_owned))?
        });
        let storage = storage.unwrap_or_else(|| panic!("it waits: {:?}", fourth()));
        self.tenure(&[
            "member",
            "add",
            "4",
            "--storage",
            &storage,
            "--store",
            &self.url(),
        ]);
        let follows = || (fourth()?["ready"] == true).then_some(());
        poll_until(SOON, follows).unwrap_or_else(|| panic!("it follows: {:?}", fourth()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn server_seen(status: &Value) -> (u64, bool, u64, Vec<(u64, String, String)>) {
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    let members = status["members"].as_array().cloned().unwrap_or_default();
    let member = |it: &Value| {
        let number = it["id"].as_u64().unwrap_or_default();
        (
            number,
            text(&it["peer_address"]),
            text(&it["client_address"]),
        )
    };
    (
        status["id"].as_u64().unwrap_or_default(),
        status["role"] == "leader",
        status["term"].as_u64().unwrap_or_default(),
        members.iter().map(member).collect(),
    )
}

/// Where the stranger would have servers and clients go.
struct Foreign(TcpListener);

impl Foreign {
    fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("set");
        Self(listener)
    }

    fn address(&self) -> String {
        self.0.local_addr().expect("bound").to_string()
    }

    fn nobody_came(&self) {
        let came = self.0.accept();
        assert!(came.is_err(), "somebody was led here: {came:?}");
    }
}

/// What is tried in any case, under the number and the disk of a stranger.
async fn attack(place: &Place, stranger: &Stranger<'_>, foreign: &str) -> Vec<Response> {
    let (cluster, disks) = place.known();
    let (leads, end) = (place.status(), place.end());
    let term = leads.iter().filter_map(|it| it["term"].as_u64()).max();
    let term = term.expect("a term");
    let mut told = Vec::new();
    for number in 1..=3_u64 {
        let to = &place.peers[number as usize - 1];
        let other = number % 3 + 1;
        let zero = Position::ZERO;
        let plain = |from: u64, disk: u128| greeting(from, disk, Some(cluster));
        // Nobody's number: a leader of this term, one that would lead in the
        // last term there is, and one that would be voted for without a poll.
        for forgery in [
            request(77, number, term, heartbeat(end)),
            request(77, number, term, forged(end, term)),
            request(77, number, Term::MAX.get(), vote(end, true)),
            request(77, number, MAX_NUMBER, vote(end, true)),
            request(
                77,
                number,
                term,
                vote(Position::new(Term::MAX, u64::MAX), false),
            ),
            request(
                77,
                number,
                term,
                heartbeat(Position::new(end.term, u64::MAX)),
            ),
            // Somebody else's word.
            request(other, number, term + 1, heartbeat(end)),
        ] {
            told.push(stranger.say(to, &plain(77, 77), &[forgery]).await);
        }
        // A member's number with another disk.
        let lead = [request(other, number, term + 1, heartbeat(zero))];
        let replaces = [request(other, number, term, heartbeat(end))];
        stranger.say(to, &plain(other, 77), &replaces).await;
        // This server's own.
        let own = stranger
            .say(to, &plain(number, disks[number as usize - 1]), &lead)
            .await;
        assert!(!own.is_welcome(), "{own:?}");
        // Another cluster.
        let elsewhere = greeting(77, 77, Some(ClusterId::from_u128(7)));
        assert!(!stranger.say(to, &elsewhere, &[]).await.is_welcome());
        // Addresses, by one that is blank and by one that says it is not, as
        // new as can be believed and newer.
        for edition in [u64::MAX, MAX_NUMBER + 1, MAX_NUMBER, 1 << 50] {
            for from in [greeting(88, 88, None), plain(77, 77), plain(other, 77)] {
                let mut lies = from;
                lies.book = book(&[1, 2, 3, 99], edition, foreign);
                let said = stranger.say(to, &lies, &[]).await;
                assert!(edition <= MAX_NUMBER || !said.is_welcome(), "{said:?}");
            }
        }
        // Nobody is a member any more.
        for upto in [end.id + 1_000, MAX_NUMBER, u64::MAX] {
            let mut lies = plain(77, 77);
            lies.settled = nobody(upto);
            stranger.say(to, &lies, &[]).await;
        }
        // Nothing that makes sense.
        let mut garbage = TcpStream::connect(to).expect("it listens");
        garbage.set_read_timeout(Some(PATIENCE)).expect("set");
        let _ = garbage.write_all(&[b't'; 4096]);
        let _ = garbage.shutdown(std::net::Shutdown::Write);
        let _ = garbage.read_to_end(&mut Vec::new());
    }
    told
}

/// The same by one that says to be each member, with the disk that it has.
async fn pass_for_members(place: &Place, stranger: &Stranger<'_>, foreign: &str) -> Vec<Response> {
    let (cluster, disks) = place.known();
    let end = place.end();
    let term = end.term.get();
    let mut told = Vec::new();
    for number in 1..=3_u64 {
        for other in (1..=3_u64).filter(|other| *other != number) {
            let mut lies = greeting(other, disks[other as usize - 1], Some(cluster));
            lies.hello.known = (1..=3_u64)
                .map(|it| {
                    (
                        stranger::id(it),
                        StorageId::from_u128(disks[it as usize - 1]),
                    )
                })
                .collect();
            lies.book = book(&[1, 2, 3, 99], MAX_NUMBER, foreign);
            lies.settled = nobody(end.id + 1_000);
            let messages: Vec<Envelope> = vec![
                request(other, number, term + 1, heartbeat(end)),
                request(other, number, term + 1, forged(end, term + 1)),
                request(other, number, term + 2, vote(end, true)),
            ];
            let to = &place.peers[number as usize - 1];
            told.push(stranger.say(to, &lies, &messages).await);
        }
    }
    told
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

fn plain(form: Form, prover: Prover) -> Stranger<'static> {
    Stranger {
        form,
        tls: None,
        prover,
        settings: settings(TIMEOUT),
    }
}

#[test]
fn without_a_secret_a_stranger_stops_and_misleads_nobody() {
    let mut place = Place::found(By::Nothing);
    let (foreign, before) = (Foreign::listen(), place.seen());
    for form in [Form::First, Form::Second] {
        let stranger = plain(form, Prover::default());
        for told in run(attack(&place, &stranger, &foreign.address())) {
            // All members speak the second form, so nobody is met in the first.
            assert_eq!(told.is_welcome(), form == Form::Second, "{told:?}");
            let refused = form == Form::First;
            assert!(!refused || told.refusal().contains("tenure-2"), "{told:?}");
        }
    }
    assert_eq!(place.seen(), before);
    foreign.nobody_came();
    for number in 1..=3 {
        // Four numbers spoke, each over many connections that all ended with
        // what is no message.
        let warnings = place.warnings(number);
        assert!((1..=8).contains(&warnings), "{warnings} warnings");
    }
    let unheeded = |client: &String| metric(client, "messages_unheeded_total ");
    let unheeded: f64 = place.clients[..3].iter().map(unheeded).sum();
    assert!(unheeded > 0.0, "no message was counted as not heeded");
    place.takes_in_a_fourth();
}

#[test]
fn without_the_secret_nobody_passes_for_a_server() {
    let mut place = Place::found(By::Secret);
    let (foreign, before) = (Foreign::listen(), place.seen());
    let guess = Prover::new(|_| [7; 32]);
    for (prover, found) in [(Prover::default(), "no proof"), (guess, "another secret")] {
        let stranger = plain(Form::Second, prover);
        for told in run(attack(&place, &stranger, &foreign.address())) {
            assert!(told.refusal().contains(found), "{told:?}");
        }
        for told in run(pass_for_members(&place, &stranger, &foreign.address())) {
            assert!(told.refusal().contains(found), "{told:?}");
        }
    }
    // As a release that knows no proofs.
    let old = plain(Form::First, Prover::default());
    for told in run(attack(&place, &old, &foreign.address())) {
        assert!(!told.is_welcome(), "{told:?}");
    }
    for told in run(pass_for_members(&place, &old, &foreign.address())) {
        assert!(!told.is_welcome(), "{told:?}");
    }
    assert_eq!(place.seen(), before);
    foreign.nobody_came();
    place.takes_in_a_fourth();
}

#[test]
fn neither_a_clients_certificate_nor_another_servers_passes_for_a_server() {
    let mut place = Place::found(By::Certificates);
    let (foreign, before) = (Foreign::listen(), place.seen());
    for (name, found) in [
        ("client", "no name"),
        ("server-4", "server-4.tenure.internal"),
    ] {
        let tls = Tls::open(TlsFiles {
            certificate: place.file(&format!("{name}.pem")),
            key: place.file(&format!("{name}.key")),
            authority: place.file("ca.pem"),
        });
        let tls = tls.expect("files");
        for form in [Form::First, Form::Second] {
            let stranger = Stranger {
                tls: Some(&tls),
                ..plain(form, Prover::default())
            };
            let mut told = run(attack(&place, &stranger, &foreign.address()));
            told.extend(run(pass_for_members(&place, &stranger, &foreign.address())));
            for told in told {
                let why = told.refusal();
                assert!(
                    why.contains("expected a certificate that names server"),
                    "{why}"
                );
                assert!(why.contains(found), "{why}");
            }
        }
    }
    assert_eq!(place.seen(), before);
    foreign.nobody_came();
    place.takes_in_a_fourth();
}

/// A client's certificate is none of a server even where no number is asked
/// for, and the clients' authority makes no server where servers have their own.
#[test]
fn no_other_purpose_and_no_other_authority_makes_a_server() {
    for (by, file) in [
        (By::AnyServer, "certs/client"),
        (By::Authorities, "clients/server-2"),
    ] {
        let mut place = Place::found(by);
        let (foreign, before) = (Foreign::listen(), place.seen());
        let tls = Tls::open(TlsFiles {
            certificate: place.path(&format!("{file}.pem")).into(),
            key: place.path(&format!("{file}.key")).into(),
            authority: place.file("ca.pem"),
        });
        let tls = tls.expect("files");
        let stranger = Stranger {
            tls: Some(&tls),
            ..plain(Form::Second, Prover::default())
        };
        let mut told = run(attack(&place, &stranger, &foreign.address()));
        told.extend(run(pass_for_members(&place, &stranger, &foreign.address())));
        for told in told {
            assert!(!told.is_welcome(), "{told:?}");
        }
        assert_eq!(place.seen(), before);
        foreign.nobody_came();
        place.takes_in_a_fourth();
    }
}

/// Somebody is where a server was that is down, and says to those who dial it
/// that their own disks were set back. It cannot prove to be that server; or
/// it is one that knows the secret, with a disk that is no member's.
#[test]
fn an_answer_that_is_not_proven_or_no_members_puts_nobody_out() {
    let mut place = Place::found(By::Secret);
    let before = place.seen();
    let (_, disks) = place.known();
    let gone = (0..3).find(|it| *it as u64 + 1 != before.leader);
    let gone = gone.expect("one that follows");
    place.servers[gone].kill().expect("killed");
    place.servers[gone].wait().expect("it ended");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let forged = |disk| Answer::SetBack(StorageId::from_u128(disk), "a forged reason".into());
    let secret = PeerSecret::new(b"a secret of all servers").expect("long enough");
    let knows = Prover::new(move |bytes| secret.prove(bytes));
    let told = [
        (forged(disks[gone]), Prover::default()),
        (forged(77), knows),
    ];
    let answering = async {
        let listener = tokio::net::TcpListener::bind(&place.peers[gone]).await;
        let listener = listener.expect("its port");
        let mut heard = std::collections::BTreeMap::new();
        // Until each of the other two servers has got both answers.
        while heard.len() < 2 || heard.values().any(|times| *times < told.len()) {
            let (mut stream, _) = listener.accept().await.expect("a dialler");
            let greeted = introduced(&mut stream, stranger::id(gone as u64 + 1)).await;
            let Ok(mut greeted) = greeted else { continue };
            let times: &mut usize = heard.entry(greeted.greeting.hello.server).or_default();
            let (answer, prover) = &told[*times % told.len()];
            let answered = greeted.answer(&mut stream, answer, prover).await;
            answered.expect("it waits for an answer");
            *times += 1;
        }
    };
    let answered = runtime.block_on(async { tokio::time::timeout(PATIENCE, answering).await });
    answered.expect("both dial, and dial again");
    place.servers[gone] = place.serve(gone + 1, 3);
    let after = place.seen();
    assert_eq!((after.leader, &after.log), (before.leader, &before.log));
    for number in 1..=3 {
        let file = place.dir.path().join(number.to_string()).join("set-back");
        assert!(!file.exists(), "server {number} was put out");
    }
    place.tenure(&["log", "append", "--store", &place.url(), "more"]);
}
