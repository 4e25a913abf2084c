//! Elections that are shared with candidates of vimeo's Go library: their objects, made
//! and read by another implementation of their format (Python's protobuf).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tenure::election::{leader, list};
use tenure::{Leadership, Name};

use super::google::foreign;
use super::*;

const SKEW: Duration = Duration::from_millis(200);

fn url(server: &Server) -> String {
    let endpoint = server.endpoint();
    format!(
        "gs://bucket/a/b?endpoint={endpoint}&poll=20ms&format=leaderelection-go\
         &max_clock_skew=200ms"
    )
}

fn python(command: &str, argument: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/object/race_entry.py");
    let mut python = Command::new(installed::installed("bin/python3"));
    let ended = python.args([script, command, argument]).output();
    let ended = ended.expect("Python");
    assert!(ended.status.success(), "{ended:?}");
    String::from_utf8(ended.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

/// The bytes of an entry, whose term ends so many milliseconds from 1970 on.
fn entry(number: u64, leader: &str, expiry: u64) -> Vec<u8> {
    let (seconds, nanos) = (expiry / 1_000, expiry % 1_000 * 1_000_000);
    let text = format!(
        r#"{{"election_number": {number}, "leader_id": "{leader}", "host_port": ["10.0.0.9:80"],
             "term_expiry": "{}", "connection_parameters": "AP8="}}"#,
        date(seconds, nanos)
    );
    let hex = python("encode", &text);
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits"))
        .collect()
}

/// What `date` says of a time since 1970.
fn date(seconds: u64, nanos: u64) -> String {
    let mut date = Command::new("date");
    let said = date.args(["-u", "-d", &format!("@{seconds}"), "+%Y-%m-%dT%H:%M:%S"]);
    let said = said.output().expect("date").stdout;
    let said = String::from_utf8(said).expect("text");
    format!("{}.{nanos:09}Z", said.trim())
}

fn millis_of(date: &str) -> u64 {
    let mut command = Command::new("date");
    let said = command.args(["-d", date, "+%s%3N"]).output();
    let said = String::from_utf8(said.expect("date").stdout).expect("text");
    said.trim().parse().expect("milliseconds")
}

/// What another program finds in an object: its fields, as JSON, and the generation.
fn found(server: &Server, name: &str) -> (String, String) {
    let head =
        format!("GET /storage/v1/b/bucket/o/a%2Fb%2F{name}?alt=media HTTP/1.0\r\nHost: h\r\n\r\n");
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a server");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.expect("a head") + 4);
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let generation = head
        .split("x-goog-generation: ")
        .nth(1)
        .expect("a generation");
    let generation = generation.split("\r\n").next().expect("a line").to_owned();
    let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    (python("decode", &hex), generation)
}

/// A field of an entry in JSON, as text.
fn field<'a>(json: &'a str, name: &str) -> &'a str {
    let (_, rest) = json.split_once(&format!("\"{name}\": ")).expect(name);
    rest.trim_start_matches('"').split('"').next().expect(name)
}

fn wall() -> u64 {
    clock::wall().as_millis()
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

async fn candidate(server: &Server, name: &str) -> Election {
    let store = opened(&url(server)).await;
    let builder = Election::builder(store, "payroll").name(name);
    let builder = builder.lease(Duration::from_secs(2)).address("10.0.0.7:80");
    builder.params(*b"{}").start().expect("a candidate")
}

async fn elected(election: &mut Election) -> Leadership {
    let elected = tokio::time::timeout(WITHIN, election.elected());
    elected.await.expect("in time").expect("a leadership")
}

#[tokio::test]
async fn a_leader_of_theirs_is_seen_and_outwaited() {
    let server = Server::google();
    foreign(&server, "old", &entry(7, "web-2", 1_000));
    foreign(&server, "page.html", b"<html>");
    let store = opened(&url(&server)).await;
    // Long enough for a look and a list beside other tests.
    let expiry = wall() + 4_000;
    foreign(&server, "payroll", &entry(300, "web-1", expiry));
    let looked = leader(Arc::clone(&store), &name("payroll"), WITHIN).await;
    let (seen, record) = looked.expect("a look");
    let shown = seen.leader.expect("a leader");
    assert_eq!((shown.name.as_str(), shown.term.get()), ("web-1", 301));
    assert_eq!(shown.addresses[0].as_str(), "10.0.0.9:80");
    assert_eq!(*shown.params, [0, 255]);
    assert_eq!(record.expect("a record").sequence, 300);
    let listed = list(Arc::clone(&store), WITHIN).await.expect("a list");
    let names: Vec<_> = listed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["old", "payroll"], "and no page");
    let (past, _) = listed[0].1.as_ref().expect("a look");
    assert_eq!(past.leader, None, "its term is over");
    let mut ours = candidate(&server, "ours").await;
    let leadership = elected(&mut ours).await;
    let waited = wall().saturating_sub(expiry);
    println!("elected {waited} ms after the end of a term of theirs, at a bound of 200 ms");
    assert!(u128::from(waited) >= SKEW.as_millis(), "{waited} ms");
    assert_eq!(leadership.term().get(), 302);
    drop(leadership);
    ours.stop().await;
}

#[tokio::test]
async fn what_ours_writes_theirs_reads() {
    let server = Server::google();
    let mut ours = candidate(&server, "ours").await;
    let leadership = elected(&mut ours).await;
    let (first, _) = found(&server, "payroll");
    let valid = leadership.extended().await.expect("it leads");
    while leadership.extended().await.expect("it leads") == valid {}
    // Before the object is read, which may be renewed meanwhile.
    let ends = u128::from(wall()) + leadership.remaining().as_millis();
    let (json, _) = found(&server, "payroll");
    let number = |json: &str| -> u64 { field(json, "election_number").parse().expect("a number") };
    assert!(number(&json) > number(&first), "{first}, {json}");
    assert!(field(&json, "leader_id").starts_with("tenure/"), "{json}");
    assert!(field(&json, "leader_id").ends_with("/ours"), "{json}");
    assert!(json.contains(r#""host_port": ["10.0.0.7:80"]"#), "{json}");
    assert_eq!(field(&json, "connection_parameters"), "e30=");
    // Ours is over before theirs look at the end, however far apart clocks are.
    let expiry = millis_of(field(&json, "term_expiry"));
    assert!(
        ends + SKEW.as_millis() <= u128::from(expiry),
        "{ends}, {json}"
    );
    ours.resign();
    drop(leadership);
    ours.stop().await;
    let (json, _) = found(&server, "payroll");
    assert!(!json.contains("leader_id"), "{json}");
    assert!(millis_of(field(&json, "term_expiry")) <= wall(), "{json}");
    // The next of theirs is seen by ours, in a term above.
    let next = number(&json) + 1;
    foreign(&server, "payroll", &entry(next, "web-1", wall() + 60_000));
    let store = opened(&url(&server)).await;
    let looked = leader(store, &name("payroll"), WITHIN).await;
    let shown = looked.expect("a look").0.leader.expect("a leader");
    assert_eq!((shown.name.as_str(), shown.term.get()), ("web-1", next + 1));
}

#[tokio::test]
async fn what_the_format_has_no_room_for_is_refused() {
    let server = Server::google();
    let store = opened(&url(&server)).await;
    let election = Key::of_election(&name("payroll"));
    for (key, value) in [
        (key("nodes/one"), &b"x"[..]),
        (election.clone(), b"no record"),
    ] {
        let refused = store.compare_and_swap(write(&key, Expect::Absent, value), WITHIN);
        broken(refused.await, "no room");
    }
    assert_eq!(held(&store, &key("nodes/one")).await, None);
    let slashes = Key::of_election(&name("a//b"));
    broken(store.read(&slashes, WITHIN).await, "that of an object");
    let version = Version::from_u64(1);
    let deleted = store.delete(&election, &version, WITHIN).await;
    broken(deleted, "a deletion");
    // What is no entry is shown as it is, and nobody stands above it.
    foreign(&server, "payroll", b"by hand");
    let looked = leader(Arc::clone(&store), &name("payroll"), WITHIN).await;
    broken(looked, "something else");
    assert_eq!(
        *held(&store, &election).await.expect("a register").value,
        *b"by hand"
    );
}
