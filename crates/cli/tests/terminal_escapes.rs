//! Words that servers and candidates choose, on the terminal and in the log:
//! none of them moves the cursor, ends a line or turns its direction.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use crate::common::TENURE;
use crate::common::servers::{Cluster, tenure};

/// What a server says that takes itself for the program: colours, a title, a
/// line of the log, controls of C1, and a turned direction.
const WORDS: &str = "\u{1b}[31mno\u{1b}]0;t\u{7}\n2026-11-23T13:00:00.000Z  INFO x: elected \
                     \u{9b}31m\u{202e}";
/// The same as it may be shown.
const SHOWN: &str =
    r"\u{1b}[31mno\u{1b}]0;t\u{7}\n2026-11-23T13:00:00.000Z  INFO x: elected \u{9b}31m\u{202e}";

const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const ACK: u8 = 1;
/// The end of the stream, and of the headers.
const ENDS: u8 = 1 | 4;

/// A server of gRPC, as little of it as refuses every call in [`WORDS`].
fn refusing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Ends with the connection.
            std::thread::spawn(move || drop(refuse_all(stream)));
        }
    });
    address
}

fn refuse_all(mut stream: TcpStream) -> io::Result<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface)?;
    stream.write_all(&frame(SETTINGS, 0, [0; 4], &[]))?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, number @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut body = vec![0; usize::try_from(length).expect("it fits")];
        stream.read_exact(&mut body)?;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                stream.write_all(&frame(SETTINGS, ACK, [0; 4], &[]))?;
            }
            PING if flags & ACK == 0 => stream.write_all(&frame(PING, ACK, [0; 4], &body))?,
            HEADERS => stream.write_all(&frame(HEADERS, ENDS, number, &refusal()))?,
            _ => {}
        }
    }
}

fn frame(kind: u8, flags: u8, number: [u8; 4], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("it fits").to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &number, body].concat()
}

/// The headers of an answer that is nothing but an error.
fn refusal() -> Vec<u8> {
    let escaped = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    let words: String = WORDS.bytes().map(escaped).collect();
    // `:status: 200` stands in the table of HPACK.
    let mut headers = vec![0x88];
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("grpc-status", "13"),
        ("grpc-message", &words),
    ] {
        headers.push(0);
        for text in [name, value] {
            let length = u8::try_from(text.len()).expect("it is short");
            assert!(length < 127, "{text}");
            headers.push(length);
            headers.extend_from_slice(text.as_bytes());
        }
    }
    headers
}

fn shown(output: &Output) -> String {
    let shown = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(shown).expect("text")
}

/// Nothing in it came from others but text.
fn is_plain(shown: &str) {
    let odd = |c: char| {
        c != '\n'
            && (c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
    };
    assert_eq!(shown.find(odd), None, "{shown:?}");
    let forged = |line: &str| line.starts_with("2026-11-23T13:00:00.000Z");
    assert!(!shown.lines().any(forged), "{shown}");
}

#[test]
fn a_server_is_quoted_in_plain_text() {
    let url = format!("tenure://{}", refusing());
    let directory = tempfile::tempdir().expect("a directory");
    let backup = directory.path().join("backup");
    let backup = backup.to_str().expect("a path");
    for command in [
        &["status"][..],
        &["leader", "x"],
        &["list"],
        &["log", "read"],
        &["session", "list"],
        &["member", "list"],
        &["backup", backup],
        &["run", "x", "--once", "--", "true"],
    ] {
        let flags = ["--timeout", "2s", "--store", &url];
        let mut asked = Command::new(TENURE);
        asked.args(&command[..1]).args(flags).args(&command[1..]);
        // A candidate stands until it is told to end.
        let told = if command[0] == "run" {
            until_refused(asked)
        } else {
            let asked = asked.output().expect("tenure runs");
            assert!(!asked.status.success(), "{command:?}: {asked:?}");
            shown(&asked)
        };
        is_plain(&told);
        assert!(told.contains(SHOWN), "{command:?}: {told}");
    }
}

/// The log of a candidate up to the line with the words of the server.
fn until_refused(mut candidate: Command) -> String {
    let stderr = Stdio::piped();
    let mut candidate = candidate.stderr(stderr).spawn().expect("tenure runs");
    let mut log = candidate.stderr.take().expect("a pipe");
    let mut heard = Vec::new();
    let mut more = [0; 4_096];
    let whole = |heard: &[u8]| {
        heard.ends_with(b"\n") && String::from_utf8_lossy(heard).contains("elected ")
    };
    while !whole(&heard) {
        let length = log.read(&mut more).expect("its log");
        assert_ne!(length, 0, "{}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&more[..length]);
    }
    candidate.kill().expect("it is ours");
    candidate.wait().expect("it is ours");
    String::from_utf8(heard).expect("text")
}

#[test]
fn a_candidate_is_named_in_plain_text() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", directory.path().join("t.db").display());
    let name = "a\u{202e}b\u{2066}c";
    let ran = tenure(&[
        "run", "x", "--once", "--name", name, "--store", &url, "--", TENURE, "leader", "x",
        "--store", &url,
    ]);
    let listed = tenure(&["list", "--store", &url]);
    let told = format!("{}{}", shown(&ran), shown(&listed));
    is_plain(&told);
    assert!(told.contains(r"a\u{202e}b\u{2066}c leads"), "{told}");
}

/// `script` reads it in a terminal of its own.
#[test]
fn an_entry_is_plain_text_to_a_terminal_and_as_it_is_to_a_pipe() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let entry = "one\ntwo\u{1b}[2J";
    let appended = tenure(&["log", "append", "--store", &url, entry]);
    assert!(appended.status.success(), "{appended:?}");
    let piped = tenure(&["log", "read", "--store", &url]);
    assert_eq!(piped.stdout, format!("{entry}\n").as_bytes());
    let line = "exec \"$TENURE\" log read --store \"$URL\"";
    let terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", line, "/dev/null"])
        .env("TENURE", TENURE)
        .env("URL", &url)
        .stdin(Stdio::null())
        .output()
        .expect("script, of util-linux");
    assert_eq!(shown(&terminal), "one\\ntwo\\u{1b}[2J\r\n");
}
