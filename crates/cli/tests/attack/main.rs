//! A stranger who speaks the servers' protocol, against three real servers:
//! without a secret, with one, with the certificate of a client, and with that
//! of another server. It gets nothing: nobody stops, nobody else leads, no
//! log, no address and no health changes, and a server that belongs is still
//! taken in.
//!
//! `TENURE_ATTACKED` names another binary to attack: that of before falls.

mod place;
mod stranger;
mod thief;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use crate::common::poll_until;
use crate::common::servers::{SOON, metric};
use place::{By, PATIENCE, Place, TIMEOUT};
use stranger::{
    Response, Stranger, address_book, forged, greeting, heartbeat, nobody, request, settings, vote,
};
use tenure::core::ids::Term;
use tenure_alpo::{ClusterId, ClusterVersion, Envelope, MAX_NUMBER, Payload, Position, StorageId};
use tenure_server::transport::{
    Form, GreetingAnswer, PeerSecret, Prover, Tls, TlsFiles, introduced,
};

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
    // Of a release that understands more.
    let later = Payload::Version(ClusterVersion::new(99).expect("a version"));
    let mut told = Vec::new();
    for number in 1..=3_u64 {
        let to = &place.peers[number as usize - 1];
        let other = number % 3 + 1;
        let zero = Position::ZERO;
        let plain = |from: u64, disk: u128| greeting(from, disk, Some(cluster));
        // Nobody's number: a leader of this term, one that would lead in the
        // last term there is, and one that would be voted for without a
        // pre-vote.
        for forgery in [
            request(77, number, term, heartbeat(end)),
            request(77, number, term, forged(end, term, Payload::NoOp)),
            request(77, number, term + 1, forged(end, term + 1, later.clone())),
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
                lies.address_book = address_book(&[1, 2, 3, 99], edition, foreign);
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
            lies.address_book = address_book(&[1, 2, 3, 99], MAX_NUMBER, foreign);
            lies.settled = nobody(end.id + 1_000);
            let messages: Vec<Envelope> = vec![
                request(other, number, term + 1, heartbeat(end)),
                request(
                    other,
                    number,
                    term + 1,
                    forged(end, term + 1, Payload::NoOp),
                ),
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
            // All members speak the second form, so they refuse the first.
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
    let forged =
        |disk| GreetingAnswer::SetBack(StorageId::from_u128(disk), "a forged reason".into());
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

/// More strangers than there are places, each with a number and a disk of its
/// own, greet and stay.
#[test]
fn strangers_who_stay_keep_no_member_out() {
    let mut place = Place::found(By::Nothing);
    let before = place.seen();
    let (cluster, _) = place.known();
    let gone = (0..3).find(|it| *it as u64 + 1 != before.leader);
    let gone = gone.expect("one that follows");
    place.servers[gone].kill().expect("killed");
    place.servers[gone].wait().expect("it ended");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let stranger = plain(Form::Second, Prover::default());
    let mut held = Vec::new();
    for to in (0..3).filter(|it| *it != gone) {
        for number in 1_000..1_300_u64 {
            let greeting = greeting(number, number.into(), Some(cluster));
            let stays = stranger.stay(&place.peers[to], &greeting);
            held.extend(runtime.block_on(stays));
        }
    }
    assert!(held.len() > 400, "{} were let in", held.len());
    place.servers[gone] = place.serve(gone + 1, 3);
    let after = place.seen();
    assert_eq!((after.leader, &after.log), (before.leader, &before.log));
    // It hears the others by their connections, and is heard by its own.
    let connected = || metric(&place.clients[gone], "peers_connected ") >= 2.0;
    poll_until(SOON, || connected().then_some(())).expect("it is let in");
    drop(held);
}
