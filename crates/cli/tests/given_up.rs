//! Calls that are given up, by the thousand, in HTTP/2 as it is on the wire.
//!
//! The server is stopped while they come, as a machine is that has too much to
//! do: then it finds the calls together with their ends, however fast it is.
//! Or the other servers are stopped: then the calls are under way, and wait
//! for a majority, when they are given up.

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::thread;

use common::TENURE;
use common::servers::{Cluster, Heard, SOON, answer, call, free, led, metric, risen};
use rustix::process::{Pid, Signal, kill_process};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200`, as HPACK has it in its table.
const STATUS_200: u8 = 0x88;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The headers of a request without a body, or of one whose body is to come.
fn headers(stream: u32, method: u8, path: &str, flags: u8) -> Vec<u8> {
    let mut block = vec![method, 0x86];
    // The authority, the path, and the content type: 31 in HPACK's table.
    let kind = "application/json";
    for (name, value) in [
        (&[1][..], "localhost"),
        (&[4], path),
        (&[15, 31 - 15], kind),
    ] {
        block.extend(name);
        block.push(u8::try_from(value.len()).expect("short"));
        block.extend(value.as_bytes());
    }
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

fn get(stream: u32, path: &str) -> Vec<u8> {
    headers(stream, 0x82, path, END_STREAM)
}

const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// A call that is begun and given up.
fn given_up(stream: u32) -> Vec<u8> {
    let begun = headers(stream, 0x83, "/v1/log/append", 0);
    [begun, frame(RST_STREAM, 0, stream, &CANCEL)].concat()
}

/// The same in as few bytes as can be: thousands are in what the system hands a
/// server at once, and none of the network's pieces lets it keep up with them.
fn given_up_briefly(stream: u32) -> Vec<u8> {
    // `:method: POST`, `:scheme: http` and `:path: /` of HPACK's table.
    let begun = frame(HEADERS, END_HEADERS, stream, &[0x83, 0x86, 0x84]);
    [begun, frame(RST_STREAM, 0, stream, &CANCEL)].concat()
}

const APPEND: &str = r#"{"entries": ["YQ=="]}"#;

/// A call that appends an entry and says nothing of a session.
fn append(stream: u32) -> Vec<u8> {
    let begun = headers(stream, 0x83, "/v1/log/append", 0);
    let body = frame(DATA, END_STREAM, stream, APPEND.as_bytes());
    [begun, body].concat()
}

/// A connection whose frames are written by hand.
struct Wire(TcpStream);

impl Wire {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        let mut wire = Self(stream);
        let begin = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(SETTINGS, 0, 0, &[]),
        ];
        wire.0.write_all(&begin.concat()).expect("it reads");
        wire
    }

    /// The next frame that answers a call or ends the connection; `None` if
    /// that ended without a word.
    fn next(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        self.next_of(&[HEADERS, GOAWAY])
    }

    /// The next frame of one of these kinds.
    fn next_of(&mut self, kinds: &[u8]) -> Option<(u8, u32, Vec<u8>)> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).ok()?;
            let [high, middle, low, kind, _, stream @ ..] = head;
            let length = u32::from_be_bytes([0, high, middle, low]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).ok()?;
            if kinds.contains(&kind) {
                return Some((kind, u32::from_be_bytes(stream), payload));
            }
        }
    }
}

fn send(server: u32, signal: Signal) {
    let pid = i32::try_from(server).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), signal).expect("it runs");
}

/// One server.
struct Alone {
    server: Heard,
    address: String,
    _directory: tempfile::TempDir,
}

impl Alone {
    fn start() -> Self {
        let [peer, address] = free();
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(TENURE);
        command
            .args(["serve", "--id", "1", "--peers", &format!("1={peer}")])
            .args(["--listen", &address, "--data"])
            .arg(directory.path().join("1"))
            // Calls are made by hand, and without a token.
            .env("TENURE_NO_TOKEN", "true");
        let server = Heard::start(command);
        led(&format!("tenure://{address}"));
        Self {
            server,
            address,
            _directory: directory,
        }
    }

    fn signal(&self, signal: Signal) {
        send(self.server.id(), signal);
    }

    /// Gives so many calls up while the server is stopped, asks one more, and
    /// says how that one is answered, or that the connection is ended; and how
    /// many of the others were answered before.
    fn finds(&self, calls: u32, call: fn(u32) -> Vec<u8>) -> (u32, (u8, u32, Vec<u8>)) {
        let mut wire = Wire::connect(&self.address);
        self.signal(Signal::STOP);
        let last = 2 * calls + 1;
        let burst = (1..last).step_by(2).map(call);
        let burst: Vec<u8> = burst.chain([get(last, "/healthz")]).flatten().collect();
        let mut writer = wire.0.try_clone().expect("a handle");
        // More than the system takes in for it may come after it goes on.
        let written = thread::spawn(move || writer.write_all(&burst));
        thread::park_timeout(std::time::Duration::from_millis(300));
        self.signal(Signal::CONT);
        let mut others = 0;
        let answer = loop {
            let answer = wire.next().expect("a frame");
            if answer.0 != HEADERS || answer.1 == last {
                break answer;
            }
            others += 1;
        };
        let _ = written.join().expect("no panic");
        (others, answer)
    }

    /// Whether so many connections were closed for that.
    fn closed(&self, connections: u32) -> bool {
        let text = answer(call(&self.address, "GET /metrics", ""));
        let line = format!("tenure_connections_closed_total{{reason=\"GivenUp\"}} {connections}");
        text.lines().any(|it| it == line)
    }
}

/// What a client does whose deadlines pass while the server does not run.
#[test]
fn calls_that_were_given_up_cost_the_others_of_their_connection_nothing() {
    let alone = Alone::start();
    let (others, (kind, stream, payload)) = alone.finds(2_000, given_up);
    assert_eq!((kind, stream), (HEADERS, 4_001), "{payload:?}");
    // Each waits for a body that never comes: none is refused for the others.
    assert_eq!(others, 0);
    assert_eq!(payload[0], STATUS_200);
    assert!(!alone.closed(1));
}

/// A call that is refused is answered before its body has come, and the body
/// is read all the same: its stream would be reset else, which clients take
/// for a failure.
#[test]
fn a_refused_call_is_answered_at_once_and_its_body_is_read() {
    let alone = Alone::start();
    let mut wire = Wire::connect(&alone.address);
    let mut block = headers(1, 0x83, "/v1/log/append", 0).split_off(9);
    // The content length, 28 in HPACK's table, and where no page may be from.
    let length = APPEND.len().to_string();
    block.extend([&[15, 28 - 15, 2][..], length.as_bytes()].concat());
    block.extend([&[0, 6][..], b"origin", &[11], b"http://evil"].concat());
    wire.0
        .write_all(&frame(HEADERS, END_HEADERS, 1, &block))
        .expect("it reads");
    let (kind, stream, payload) = wire.next().expect("an answer");
    assert_eq!((kind, stream), (HEADERS, 1), "{payload:?}");
    assert_ne!(payload[0], STATUS_200, "it is refused");
    let body = frame(DATA, END_STREAM, 1, APPEND.as_bytes());
    wire.0.write_all(&body).expect("it reads");
    // A stream that had been reset would have been so before this answer.
    wire.0.write_all(&get(3, "/healthz")).expect("it reads");
    let told = wire.next_of(&[HEADERS, GOAWAY, RST_STREAM]);
    let (kind, stream, payload) = told.expect("an answer");
    assert_eq!((kind, stream, payload[0]), (HEADERS, 3, STATUS_200));
}

/// More than may wait for the server: an attack, which ends its own
/// connection, is counted, and harms no other. What the system holds back for
/// the server may reach it in pieces, and it may keep up with these; then it
/// answers the last call (with BUSY, if it came to more than it lets be given
/// up), and the attack comes again.
#[test]
fn a_flood_of_calls_that_are_given_up_ends_its_connection() {
    let alone = Alone::start();
    let ended = || (alone.finds(20_000, given_up_briefly).1.0 == GOAWAY).then_some(());
    common::poll_until(SOON, ended).expect("its connection is ended");
    let counted = common::poll_until(SOON, || alone.closed(1).then_some(()));
    assert!(counted.is_some(), "it is counted as what it is");
}

/// Headers that go on without an end: the same error of HTTP/2 ends their
/// connections. It is said once of an address, and holds for all that ends
/// so.
#[test]
fn floods_of_one_address_are_counted_and_said_once() {
    const ENHANCE_YOUR_CALM: &[u8] = &[0, 0, 0, 11];
    let alone = Alone::start();
    for _ in 0..12 {
        let mut wire = Wire::connect(&alone.address);
        let endless = (0..100).map(|_| frame(CONTINUATION, 0, 1, &[]));
        let flood: Vec<u8> = [frame(HEADERS, 0, 1, &[0x82])]
            .into_iter()
            .chain(endless)
            .flatten()
            .collect();
        wire.0.write_all(&flood).expect("it reads");
        let (kind, _, payload) = wire.next().expect("a frame");
        assert_eq!((kind, &payload[4..8]), (GOAWAY, ENHANCE_YOUR_CALM));
    }
    let counted = common::poll_until(SOON, || alone.closed(12).then_some(()));
    counted.expect("they are counted");
    let words = [
        "a client's connection was closed",
        "ENHANCE_YOUR_CALM",
        "127.0.0.1",
    ];
    alone.server.says(1, &words);
    let said = alone.server.count(&words[..1]);
    assert_eq!(said, 1, "{:#?}", alone.server.all());
}

/// How many calls without a session one server has under way at most.
const PLACES: u32 = 512;

/// The last entry in a server's log, committed or not.
fn last(address: &str) -> f64 {
    metric(address, "log_last ")
}

/// Every call without a session takes one of a server's places, and gives it
/// back when its client gives it up while it waits for a majority. Were a
/// place lost each time, the server would soon refuse all such calls for good.
#[test]
fn calls_without_a_session_that_are_given_up_give_their_places_back() {
    // So long that the leader goes on leading while the others are stopped.
    let cluster = Cluster::start_with(&["--election-timeout", "5s"]);
    // Nothing else is to be written to the log from here on.
    risen(&cluster.url());
    let leader = cluster.leader() - 1;
    let address = &cluster.clients[leader];
    let append_one = |address: &str| answer(call(address, "POST /v1/log/append", APPEND));
    assert!(append_one(address).starts_with("HTTP/1.1 200"));
    let others = || (0..3).filter(|it| *it != leader);
    others().for_each(|it| send(cluster.servers[it].id(), Signal::STOP));

    let full = last(address) + f64::from(PLACES);
    let mut wire = Wire::connect(address);
    let calls = (1..2 * PLACES).step_by(2).flat_map(append);
    wire.0
        .write_all(&calls.collect::<Vec<u8>>())
        .expect("it reads");
    let waiting = common::poll_until(SOON, || (last(address) >= full).then_some(()));
    waiting.expect("all of them are in the log and wait");
    let refused = append_one(address);
    assert!(refused.contains("BUSY"), "all places are taken: {refused}");

    // They are given up, and one more is taken in: it is in the log as well.
    drop(wire);
    let taken = common::poll_until(SOON, || {
        let one = call(address, "POST /v1/log/append", APPEND);
        one.set_nonblocking(true).expect("a setting");
        common::poll_until(SOON, || {
            let refused = one.peek(&mut [0]).is_ok();
            (refused || last(address) > full).then_some(())
        })?;
        (last(address) > full).then_some(())
    });
    taken.expect("a place is free again");
    others().for_each(|it| send(cluster.servers[it].id(), Signal::CONT));
    let served = || {
        let mut answers = cluster.clients.iter().map(|it| append_one(it));
        answers.any(|it| it.starts_with("HTTP/1.1 200"))
    };
    common::poll_until(SOON, || served().then_some(())).expect("it is done");
}
