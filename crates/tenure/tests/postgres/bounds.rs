//! Servers that send more than they may: each call fails at once, and says which bound
//! was broken.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use tenure::StoreError;

use super::calls::{WITHIN, key, opened};
use super::misanswered;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("short");
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

/// The authentication is over, and a statement may come.
fn started() -> Vec<u8> {
    [message(b'R', &[0; 4]), message(b'Z', b"I")].concat()
}

/// Takes what has no type: `SSLRequest`, and what begins a connection.
fn take_start(stream: &mut TcpStream) -> io::Result<()> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let rest = usize::try_from(u32::from_be_bytes(length)).expect("short") - 4;
    stream.read_exact(&mut vec![0; rest])
}

/// Why a read fails with a server that starts with `start`, and answers the first
/// statement with `answer`.
async fn refusal(sslmode: &str, start: Vec<u8>, answer: Vec<u8>) -> String {
    let asks = sslmode != "disable";
    let port = misanswered::start(move |stream| {
        if asks {
            take_start(stream)?;
            stream.write_all(b"N")?;
        }
        take_start(stream)?;
        stream.write_all(&start)?;
        if !answer.is_empty() {
            stream.read_exact(&mut [0; 5])?;
            stream.write_all(&answer)?;
        }
        Ok(())
    });
    let url = format!("postgres://u:p@127.0.0.1:{port}/db?sslmode={sslmode}");
    let read = opened(&url).await.read(&key("key"), WITHIN).await;
    let Err(StoreError::Unavailable(why)) = read else {
        panic!("{read:?}");
    };
    why.to_string()
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_a_call() {
    let header = |tag: u8, length: i32| [&[tag][..], &length.to_be_bytes()].concat();
    // The first one, or one of an answer; more does not come.
    for sslmode in ["disable", "prefer"] {
        let why = refusal(sslmode, header(b'R', i32::MAX), Vec::new()).await;
        assert!(
            why.contains("at most 4096 KiB, found one of 2147483643"),
            "{why}"
        );
    }
    let why = refusal("disable", header(b'R', -16), Vec::new()).await;
    assert!(why.contains("found one of -16 bytes"), "{why}");
    let why = refusal("disable", started(), header(b'D', i32::MAX)).await;
    assert!(
        why.contains("at most 4096 KiB, found one of 2147483643"),
        "{why}"
    );
}

#[tokio::test]
async fn a_start_without_end_ends_a_call() {
    let parameter = |number: usize| message(b'S', format!("k{number}\0v\0").as_bytes());
    let many = [
        vec![message(b'R', &[0; 4])],
        (0..300).map(parameter).collect(),
    ];
    let why = refusal("disable", many.concat().concat(), Vec::new()).await;
    assert!(why.contains("at most 256 parameters"), "{why}");
    let notices = message(b'N', &[&b"M"[..], &[b'x'; 60_000], b"\0\0"].concat());
    let many = [message(b'R', &[0; 4]), notices.repeat(20)].concat();
    let why = refusal("disable", many, Vec::new()).await;
    assert!(why.contains("a start of at most 1024 KiB"), "{why}");
}

#[tokio::test]
async fn an_answer_without_end_ends_a_call() {
    let columns = message(
        b'T',
        b"\0\x01a\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0",
    );
    let rows = message(b'D', b"\0\x01\0\0\0\x01x").repeat(9_000);
    let why = refusal("disable", started(), [columns, rows].concat()).await;
    assert!(why.contains("an answer of at most 8192 messages"), "{why}");
    // Parameters are kept after the start as well.
    let parameters = (0..300).map(|number| message(b'S', format!("k{number}\0v\0").as_bytes()));
    let why = refusal(
        "disable",
        started(),
        parameters.collect::<Vec<_>>().concat(),
    )
    .await;
    assert!(why.contains("at most 256 parameters"), "{why}");
}
