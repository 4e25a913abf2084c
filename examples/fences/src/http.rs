//! A ledger over HTTP behind a fence, and a leader that writes to it.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use axum::extract::State;
use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tenure_fence::gate::Gate;
use tenure_fence::http::{Admitted, Attach, FenceLayer, seen};
use tenure_fence::mark::Mark;
use tenure_fence::{Deposed, Term};
use tower::{Layer as _, ServiceExt as _};

use crate::grpc::Ledger;
use crate::{pause, say};

/// The lines of the ledger.
pub(crate) type Lines = Arc<Mutex<Vec<String>>>;

/// Adds a line; how many there are.
pub(crate) fn append(lines: &Lines, term: Term, text: &str) -> usize {
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    lines.push(format!("term {term}: {text}"));
    lines.len()
}

pub(crate) fn count(lines: &Lines) -> usize {
    lines.lock().unwrap_or_else(PoisonError::into_inner).len()
}

async fn read(State(lines): State<Lines>) -> String {
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().map(|line| format!("{line}\n")).collect()
}

async fn add(
    State(lines): State<Lines>,
    Extension(term): Extension<Admitted>,
    text: String,
) -> String {
    format!("{}\n", append(&lines, term.0, &text))
}

/// Serves until it is killed. One gate is before both: HTTP by axum, gRPC by
/// tonic, on one port.
pub(crate) async fn serve(mark: &str) -> Result<()> {
    let gate = Gate::open(Mark::at(mark))?;
    let lines = Lines::default();
    let over_http = Router::new()
        .route("/ledger", get(read).post(add))
        .layer(FenceLayer::new(gate.clone()).let_readers_pass())
        .with_state(Arc::clone(&lines));
    // Here no request passes without a term.
    let over_grpc = Router::new()
        .route_service("/tenure.example.Ledger/{call}", Ledger(lines))
        .layer(FenceLayer::new(gate));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    say(&listener.local_addr()?.to_string())?;
    Ok(axum::serve(listener, over_http.merge(over_grpc)).await?)
}

/// Reads the ledger in its term, and then writes by what it has read.
pub(crate) async fn write(address: &str, term: Term, is_paused: bool) -> Result<()> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = Attach::new(term).layer(client);
    let call = async |method: Method, body: String| -> Result<String> {
        let request = Request::builder().method(method);
        let request = request.uri(format!("http://{address}/ledger"));
        let request = request.body(Full::from(body))?;
        let answer = client.clone().oneshot(request).await?;
        let (head, body) = answer.into_parts();
        if head.status == StatusCode::CONFLICT {
            let seen = seen(&head.headers);
            bail!(Deposed { term, seen });
        }
        let body = body.collect().await?.to_bytes();
        let body = String::from_utf8_lossy(&body).trim_end().to_owned();
        if head.status != StatusCode::OK {
            bail!("expected 200, found {}: {body}", head.status);
        }
        Ok(body)
    };
    let found = call(Method::GET, String::new()).await?.lines().count();
    say(&format!("found {found} lines in term {term}"))?;
    pause(is_paused)?;
    call(Method::POST, format!("payment {}", found + 1)).await?;
    say("written")
}
