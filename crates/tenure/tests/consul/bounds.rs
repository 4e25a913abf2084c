//! Servers that answer more than was asked for.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure::StoreError;

use crate::common::calls::{WITHIN, broken, opened};
use crate::common::misanswered;

/// Reads the head of a request.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Answers without end until the client has had enough; counts what it took.
fn pour(stream: &mut TcpStream, first: &[u8], sent: &AtomicUsize) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
    stream.write_all(first)?;
    loop {
        stream.write_all(&[b'x'; 65_536])?;
        sent.fetch_add(65_536, Ordering::Relaxed);
    }
}

fn answer(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    let index = "X-Consul-Index: 7\r\n\r\n";
    stream.write_all((head + index + body).as_bytes())
}

#[tokio::test]
async fn a_register_without_an_end_is_given_up_soon() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let port = misanswered::start(move |stream| {
        head(stream)?;
        pour(stream, b"[{\"Key\":\"tenure/key\",\"Value\":\"", &counted)
    });
    let why = broken(&format!("consul://127.0.0.1:{port}")).await;
    assert!(why.contains("at most 1048576 bytes"), "{why}");
    // What the system holds on the way counts as well.
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent < 32 * 1024 * 1024, "{sent} bytes");
}

/// What a server says without an end is no listing that is too large.
#[tokio::test]
async fn a_refusal_without_an_end_is_told_by_its_beginning() {
    let port = misanswered::start(move |stream| {
        head(stream)?;
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\nACL not found ")?;
        loop {
            stream.write_all(&[b'x'; 65_536])?;
        }
    });
    let why = broken(&format!("consul://127.0.0.1:{port}")).await;
    assert!(
        why.contains("403") && why.contains("ACL not found"),
        "{why}"
    );
}

#[tokio::test]
async fn a_listing_of_too_many_keys_is_refused() {
    let port = misanswered::start(|stream| {
        if !head(stream)?.contains("recurse") {
            return answer(stream, "404 Not Found", "");
        }
        let entries = vec![r#"{"Key":"a","ModifyIndex":1}"#; 250_001];
        answer(stream, "200 OK", &format!("[{}]", entries.join(",")))
    });
    let store = opened(&format!("consul://127.0.0.1:{port}")).await;
    let refused = store.list("", None, WITHIN).await;
    let Err(StoreError::Broken(why)) = &refused else {
        panic!("it was taken");
    };
    let why = why.to_string();
    assert!(why.contains("at most 250000 keys, found more"), "{why}");
}
