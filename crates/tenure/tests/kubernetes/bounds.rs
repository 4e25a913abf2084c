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
    pour_as(stream, "200 OK", first, sent)
}

/// The same with this status.
fn pour_as(
    stream: &mut TcpStream,
    status: &str,
    first: &[u8],
    sent: &AtomicUsize,
) -> io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(first)?;
    loop {
        stream.write_all(&[b'x'; 65_536])?;
        sent.fetch_add(65_536, Ordering::Relaxed);
    }
}

fn answer(stream: &mut TcpStream, body: &str) -> io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}");
    stream.write_all((head + "\r\n\r\n" + body).as_bytes())
}

#[tokio::test]
async fn an_object_without_an_end_is_given_up_soon() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let port = misanswered::start(move |stream| {
        head(stream)?;
        pour(stream, b"{\"metadata\":{\"name\":\"", &counted)
    });
    let why = broken(&format!("kubernetes://127.0.0.1:{port}/n?tls=off")).await;
    assert!(why.contains("objects of at most 2097152 bytes"), "{why}");
    // What the system holds on the way counts as well.
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent < 32 * 1024 * 1024, "{sent} bytes");
}

/// The client judges a refusal by its status, also if its text has no end.
#[tokio::test]
async fn a_refusal_without_an_end_is_still_a_refusal() {
    let port = misanswered::start(move |stream| {
        head(stream)?;
        let first = b"<html>a proxy that lets nobody in ";
        pour_as(stream, "403 Forbidden", first, &AtomicUsize::new(0))
    });
    let why = broken(&format!("kubernetes://127.0.0.1:{port}/n?tls=off")).await;
    assert!(
        why.contains("403 : ") && why.contains("a Role that allows"),
        "{why}"
    );
    assert!(why.contains("a proxy that lets nobody in"), "{why}");
    assert!(why.len() < 4_096, "{} bytes", why.len());
}

/// More objects than were asked for, ones that take much more memory than bytes, and pages
/// without an end.
#[tokio::test]
async fn a_listing_that_takes_more_than_was_asked_for_is_refused() {
    let empty = vec!["{}"; 101].join(",");
    let deep = format!("{{\"a\":[{}0]}}", "{\"\":0},".repeat(1_000_000));
    let page = vec!["{}"; 100].join(",");
    for (items, continues, words) in [
        (empty, "", "101 objects in place of 100 at most"),
        (deep, "", "with more than 819200 values"),
        (page, "more", "at most 250000 objects"),
    ] {
        let body = format!(
            "{{\"metadata\":{{\"resourceVersion\":\"7\",\"continue\":\"{continues}\"}},\
             \"items\":[{items}]}}"
        );
        let port = misanswered::start(move |stream| {
            if head(stream)?.contains("limit=") {
                answer(stream, &body)
            } else {
                answer(stream, "{}")
            }
        });
        let store = opened(&format!("kubernetes://127.0.0.1:{port}/n?tls=off")).await;
        let refused = store.list("pages/", None, WITHIN).await;
        let Err(StoreError::Broken(why)) = &refused else {
            panic!("{words}: {refused:?}");
        };
        let why = why.to_string();
        assert!(why.contains(words), "{words}: {why}");
    }
}
