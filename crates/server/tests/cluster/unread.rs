//! What HTTP/2 streams are told that one side does not read: requests that are
//! answered before their bodies have come, and answers that are not read.

use std::future::poll_fn;
use std::task::Poll;

use axum::http;
use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Reason, SendStream};
use tenure_api::v1;
use tokio::net::TcpStream;

use crate::servers::{PATIENCE, Servers};
use crate::tokens::{guarded, write};

/// A connection over which answers have so much room.
async fn connect(servers: &Servers, window: u32) -> SendRequest<Bytes> {
    let address = servers.running[&1].address();
    let stream = TcpStream::connect(address).await.expect("it listens");
    let mut builder = client::Builder::new();
    builder.initial_window_size(window);
    let (send, connection) = builder.handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    send.ready().await.expect("open")
}

fn request(path: &str, kind: &str) -> http::request::Builder {
    http::Request::builder()
        .method("POST")
        .uri(format!("http://localhost{path}"))
        .header("content-type", kind)
}

async fn is_reset(stream: &mut SendStream<Bytes>) -> Option<Reason> {
    poll_fn(|context| match stream.poll_reset(context) {
        Poll::Ready(reason) => Poll::Ready(reason.ok()),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A reset says that the call has failed, to clients such as curl: they show
/// neither the status nor the answer.
#[tokio::test]
async fn an_answer_that_comes_before_the_body_is_no_failure() {
    let (servers, _) = guarded(1, &[("any", "admin = true")]).await;
    let calls = [
        ("/nowhere", Some("any"), 404, 3_000_000),
        ("/v1/log/nothing", Some("any"), 404, 6_000_000),
        ("/healthz", Some("any"), 405, 3_000_000),
        ("/v1/log/append", Some("any"), 413, 9_000_000),
        ("/v1/log/append", Some("none"), 401, 3_000_000),
        ("/v1/log/append", None, 401, 100),
    ];
    for (path, token, status, bytes) in calls {
        let mut connection = connect(&servers, 1 << 20).await;
        let mut call = request(path, "application/json");
        if let Some(token) = token {
            call = call.header("authorization", format!("Bearer {token}"));
        }
        let call = call.body(()).expect("a request");
        let (answer, mut body) = connection.send_request(call, false).expect("sent");
        let sent = body.send_data(vec![b'x'; bytes - 1].into(), false);
        sent.expect("sent");
        let answer = async {
            let answer = answer.await.expect("an answer");
            assert_eq!(answer.status(), status, "{path}");
            let mut body = answer.into_body();
            while let Some(part) = body.data().await {
                part.expect("whole");
            }
        };
        tokio::time::timeout(PATIENCE, answer)
            .await
            .expect("in time");
        // The client goes on until it sees the answer.
        let sent = body.send_data(vec![b'x'].into(), true);
        sent.unwrap_or_else(|error| panic!("{path}: {error}"));
        let probe = http::Request::get("http://localhost/healthz").body(());
        let (probed, _) = connection
            .ready()
            .await
            .and_then(|mut it| it.send_request(probe.expect("a request"), true))
            .expect("sent");
        assert!(probed.await.is_ok_and(|it| it.status().is_success()));
        assert_eq!(is_reset(&mut body).await, None, "{path}");
    }
}

/// The server has no room to say anything, and ends the stream all the same.
#[tokio::test]
async fn a_stream_that_is_not_read_ends_with_the_rights_of_its_caller() {
    let (servers, file) = guarded(1, &[("reads", "read = [\"a\"]"), ("other", "")]).await;
    let mut connection = connect(&servers, 0).await;
    let watch = v1::WatchRequest {
        prefix: "a".into(),
        ..v1::WatchRequest::default()
    };
    let message = prost::Message::encode_to_vec(&watch);
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
    framed.extend(message);
    let call = request("/tenure.v1.Registers/Watch", "application/grpc")
        .header("te", "trailers")
        .header("authorization", "Bearer reads");
    let call = call.body(()).expect("a request");
    let (answer, mut body) = connection.send_request(call, false).expect("sent");
    body.send_data(framed.into(), true).expect("sent");
    let answer = answer.await.expect("an answer");
    assert!(answer.headers().get("grpc-status").is_none());
    write(&file, &[("other", "")]);
    let reset = poll_fn(|context| body.poll_reset(context));
    let reset = tokio::time::timeout(PATIENCE, reset).await;
    let reason = reset.expect("within a minute").expect("a reason");
    assert_eq!(reason, Reason::CANCEL);
    drop(answer);
}
