//! What comes to the port of clients, and what operators hand over
//! ([`crate::fuzzed`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::{Method, Request, StatusCode, Uri, header};
use axum::response::Response;
use serde_json::Value;
use tenure_alpo::codec::crc32c_append;
use tenure_alpo::{
    ClusterId, Config as NodeConfig, Hello, Identity, Input, Limits, MemberDisks, Membership, Node,
    Output, Recovered, Restoring, ServerId, Snapshot, State, StorageId,
};
use tenure_api::v1::Cause;
use tenure_core::Machine as _;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};
use tower::ServiceExt as _;

use crate::audit::Audit;
use crate::backup::read;
use crate::config::Config;
use crate::handle::ServerHandle;
use crate::http;
use crate::inbox::{Event, Inbox, ReplyTo, TimedAnswer};
use crate::listen;
use crate::shared::{LocalServer, Shared};
use crate::tokens::Tokens;
use crate::transport::{AddressBook, Details, Settings};
use crate::unconfirmed_contacts::UnconfirmedContacts;
use crate::watchers::Watchers;

/// `bytes` as the file of tokens, and as the header of a call that has one.
pub(super) fn tokens(bytes: &[u8]) {
    crate::tokens::fuzzed::tokens(bytes);
}

/// The longest message of an error, in bytes.
const MESSAGE_MAX: usize = 4_000;
/// How often everything that could go on is let go on, before an answer that
/// has not ended is left.
const TURNS: usize = 200;

/// `bytes` as a request: a byte that says which method and which headers, the
/// path up to the end of the line, the body. It goes to all that is behind the
/// port but gRPC, of a server that leads alone.
pub(super) fn requests(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else {
        return;
    };
    let mut parts = rest.splitn(2, |byte| *byte == b'\n');
    let path = parts.next().unwrap_or_default();
    let body = parts.next().unwrap_or_default();
    let Ok(uri) = Uri::try_from(path) else {
        return;
    };
    let methods = [Method::POST, Method::GET, Method::PUT, Method::HEAD];
    let method = methods[usize::from(how & 3)].clone();
    let mut request = Request::builder().method(method.clone()).uri(uri);
    if how & 4 == 0 {
        request = request.header(header::HOST, "127.0.0.1:7400");
    }
    if how & 8 == 0 {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let Ok(request) = request.body(Body::from(body.to_vec())) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.expect("a runtime").block_on(async {
        let (response, body) = answered(request).await;
        if method != Method::HEAD {
            is_ours(response.status(), &response, &body);
        }
    });
}

/// What is answered, as far as it comes without time passing.
async fn answered(mut request: Request<Body>) -> (Response<()>, Bytes) {
    let (handle, routes) = port();
    let connection = handle.account.connection([127, 0, 0, 1].into());
    request.extensions_mut().insert(connection);
    let inbox = Arc::clone(&handle.inbox);
    tokio::spawn(machine(inbox));
    let answer = tokio::select! {
        biased;
        answer = routes.oneshot(request) => answer,
        () = idle() => panic!("expected an answer"),
    };
    let (parts, mut body) = answer.expect("an answer").into_parts();
    let mut said = Vec::new();
    loop {
        let frame =
            std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context));
        let frame = tokio::select! {
            biased;
            frame = frame => frame,
            // A watch or a tail, which has no end.
            () = idle() => break,
        };
        match frame {
            Some(Ok(frame)) => said.extend(frame.into_data().unwrap_or_default()),
            Some(Err(error)) => panic!("the answer broke: {error}"),
            None => break,
        }
    }
    (Response::from_parts(parts, ()), said.into())
}

async fn idle() {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}

/// All that clients can reach, in JSON but for the metrics.
fn is_ours(code: StatusCode, response: &Response<()>, body: &[u8]) {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let body = str::from_utf8(body).expect("text");
    if code.is_success() {
        if kind.starts_with("application/openmetrics-text") {
            assert!(body.ends_with("# EOF\n"), "{body}");
            return;
        }
        for line in body.lines() {
            let value: Value = serde_json::from_str(line).expect("JSON");
            assert!(value.is_object(), "{line}");
        }
        let lines = kind == "application/x-ndjson";
        assert!(lines || (kind == "application/json" && body.lines().count() == 1));
        return;
    }
    assert_eq!(kind, "application/json", "{code}: {body}");
    let value: Value = serde_json::from_str(body).expect("JSON");
    if code == StatusCode::SERVICE_UNAVAILABLE && value["error"].is_null() {
        // A probe that says no.
        assert!(value.is_object(), "{body}");
        return;
    }
    let cause = value["error"]["cause"].as_str().expect("a cause");
    assert!(Cause::from_str_name(cause).is_some(), "{cause}");
    let message = value["error"]["message"].as_str().expect("a message");
    assert!(message.len() <= MESSAGE_MAX, "{} bytes", message.len());
    assert_ne!(code, StatusCode::INTERNAL_SERVER_ERROR, "{message}");
}

fn server() -> ServerId {
    ServerId::new(1).expect("a number")
}

fn identity() -> Identity {
    Identity {
        cluster: ClusterId::from_u128(9),
        server: server(),
        storage: StorageId::from_u128(7),
    }
}

fn members() -> Membership {
    Membership::bootstrapped([(server(), identity().storage)])
}

/// A handle, and all routes to it.
fn port() -> (ServerHandle, Router) {
    let peers = BTreeMap::from([(server(), "127.0.0.1:7500".to_owned())]);
    let config = Config::new(server(), peers, "/nowhere", "127.0.0.1:7400");
    let local_server = LocalServer {
        identity: Some(identity()),
        members: members(),
        hello: Hello {
            server: server(),
            storage: identity().storage,
            cluster: Some(identity().cluster),
            known: MemberDisks::new(),
            founders: BTreeSet::new(),
        },
        settings: Settings::of(&config.node),
        address_book: AddressBook::default(),
        details: Details::default(),
        unconfirmed: UnconfirmedContacts::default(),
        connected: BTreeMap::new(),
        unproven: BTreeSet::new(),
        edition: 0,
    };
    let shared = Arc::new(Shared::new(local_server, None));
    shared.caught_up.send_replace(true);
    let (inbox, watchers) = (Arc::default(), Arc::new(Watchers::new(config.watches)));
    let tokens = Tokens::open(&config, &Audit::default()).expect("none");
    let handle = ServerHandle::new(&config, &shared, &inbox, &watchers, tokens);
    (
        handle.clone(),
        listen::noted(http::routes(handle.clone()), handle),
    )
}

/// A machine that is a cluster by itself and has a disk that takes no time.
async fn machine(inbox: Arc<Inbox>) {
    let mut now = Now {
        boot: Instant::ZERO,
        wall: WallTime::from_millis(0),
    };
    let state = State::bootstrapped(Limits::default(), ClockId::default(), members());
    let recovered = Recovered {
        snapshot: Some(Snapshot {
            last: state.applied(),
            bytes: state.encode().into(),
        }),
        ..Recovered::default()
    };
    let (config, rng) = (NodeConfig::default(), Rng::from_seed(1));
    let node = Node::start(config, identity(), recovered, state, rng, now.boot);
    let mut node = node.expect("a good snapshot");
    let mut replies = BTreeMap::new();
    for _ in 0..10 {
        now.boot = node.deadline().unwrap_or(now.boot).max(now.boot);
        node.tick(now);
        settle(&mut node, now, &mut replies);
    }
    let (mut events, mut token) = (Vec::new(), 1_000);
    loop {
        inbox.take(&mut events);
        if events.is_empty() {
            inbox.more().await;
            continue;
        }
        for event in events.drain(..) {
            match event {
                Event::ClientRequest(request, _, reply) => {
                    token += 1;
                    replies.insert(token, reply);
                    now.boot = now.boot.after(Duration::from_millis(1));
                    node.handle(now, Input::ClientRequest { token, request });
                }
                Event::Inspection(inspect) => inspect(Some(&node)),
                Event::Snapshot(teller) => drop(teller.send(node.commit())),
                _ => {}
            }
            settle(&mut node, now, &mut replies);
        }
    }
}

fn settle(node: &mut Node, now: Now, replies: &mut BTreeMap<u64, ReplyTo>) {
    while let Some(output) = node.poll() {
        match output {
            Output::Persist(batch) => node.handle(now, Input::Persisted(batch.number)),
            Output::EncodeSnapshot(copy) => {
                node.handle(now, Input::SnapshotEncoded(copy.encode()));
            }
            Output::DecodeSnapshot(_) => panic!("it is its whole cluster"),
            Output::Answer { token, answer } => {
                if let Some(reply) = replies.remove(&token) {
                    reply.send(TimedAnswer::from(answer));
                }
            }
            Output::Halt(fault) => panic!("a client has ended the server: {fault:?}"),
            _ => {}
        }
    }
}

/// `bytes` as a backup, and as the state that is in one: as they are, and with
/// lengths and checksums put right.
pub(super) fn backup(bytes: &[u8]) {
    let _ = read(bytes);
    let mut image = bytes.to_vec();
    if let Some(at) = image.len().checked_sub(4) {
        let sum = crc32c::crc32c(&image[..at]);
        image[at..].copy_from_slice(&sum.to_le_bytes());
    }
    let foreign = State::decode_foreign(crc32c_append, &image);
    let Ok(state) = State::decode(&image) else {
        return;
    };
    assert_eq!(state.encode(), image, "a state is written in one way");
    let header = crate::backup::header(identity().cluster, state.applied(), &image);
    let file = [&header, &image[..]].concat();
    match (read(&file), foreign) {
        (Ok((summary, again)), Ok(_)) => {
            assert_eq!(summary.last, state.applied());
            restored(again);
        }
        (Err(_), Err(_)) => {}
        (read, foreign) => panic!("expected the same of both: {read:?}, {foreign:?}"),
    }
}

/// What can be restored can be read by the servers of the new cluster.
fn restored(state: State) {
    let restored = state.restored(&Restoring {
        clock: ClockId::default(),
        members: members(),
        times: 1,
        term_step: 1_000_000,
        longest_lease: None,
        holder: 5,
        wall: WallTime::from_millis(1),
    });
    if let Ok(restored) = restored {
        let image = restored.state.encode();
        let again = State::decode_foreign(crc32c_append, &image).expect("a state");
        assert_eq!(again.encode(), image, "what is written reads the same");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_path_that_is_no_text_is_answered_as_all_errors_are() {
        for service in ["registers", "log", "sessions", "cluster"] {
            let path = format!("/v1/{service}/%ff");
            let request = Request::post(&path)
                .header(header::HOST, "127.0.0.1:7400")
                .header(header::CONTENT_TYPE, "application/json");
            let request = request.body(Body::empty()).expect("a request");
            let (response, body) = answered(request).await;
            assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
            is_ours(response.status(), &response, &body);
            let body = String::from_utf8_lossy(&body);
            assert!(body.contains(&path), "{body}");
        }
    }
}
