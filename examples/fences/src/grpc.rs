//! The same ledger over gRPC. The service is written by hand, as `tonic-build`
//! would generate it from
//!
//! ```text
//! service Ledger { rpc Read(Entry) returns (Count); rpc Add(Entry) returns (Count); }
//! message Entry { string text = 1; }
//! message Count { uint64 lines = 1; }
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::{Result, bail};
use http::uri::PathAndQuery;
use tenure_fence::http::{Admitted, Attach, seen};
use tenure_fence::{Deposed, Term};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Layer as _, Service, service_fn};

use crate::http::{Lines, append, count};
use crate::{pause, say};

const READ: &str = "/tenure.example.Ledger/Read";
const ADD: &str = "/tenure.example.Ledger/Add";

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Count {
    #[prost(uint64, tag = "1")]
    lines: u64,
}

/// The service. A fence is before it.
#[derive(Clone)]
pub(crate) struct Ledger(pub(crate) Lines);

type Answer = http::Response<tonic::body::Body>;

impl Service<http::Request<axum::body::Body>> for Ledger {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<axum::body::Body>) -> Self::Future {
        let (lines, is_add) = (Arc::clone(&self.0), request.uri().path() == ADD);
        Box::pin(async move {
            let method = service_fn(move |request: Request<Entry>| {
                let lines = Arc::clone(&lines);
                async move { answer(&lines, is_add, &request) }
            });
            let codec = ProstCodec::<Count, Entry>::default();
            Ok(tonic::server::Grpc::new(codec).unary(method, request).await)
        })
    }
}

fn answer(
    lines: &Lines,
    is_add: bool,
    request: &Request<Entry>,
) -> Result<Response<Count>, Status> {
    let term = request.extensions().get::<Admitted>();
    let term = term.ok_or_else(|| Status::internal("expected a fence before this service"))?;
    let all = match is_add {
        true => append(lines, term.0, &request.get_ref().text),
        false => count(lines),
    };
    let lines = u64::try_from(all).unwrap_or(u64::MAX);
    Ok(Response::new(Count { lines }))
}

/// Reads the ledger in its term, and then writes by what it has read.
pub(crate) async fn write(address: &str, term: Term, is_paused: bool) -> Result<()> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let mut client = tonic::client::Grpc::new(Attach::new(term).layer(channel));
    let mut call = async |path: &'static str, text: String| -> Result<u64> {
        client.ready().await?;
        let codec = ProstCodec::<Entry, Count>::default();
        let request = Request::new(Entry { text });
        let path = PathAndQuery::from_static(path);
        match client.unary(request, path, codec).await {
            Ok(answer) => Ok(answer.into_inner().lines),
            Err(status) if status.code() == Code::FailedPrecondition => {
                let seen = seen(&status.metadata().clone().into_headers());
                bail!(Deposed { term, seen })
            }
            Err(status) => bail!("{}: {}", status.code(), status.message()),
        }
    };
    let found = call(READ, String::new()).await?;
    say(&format!("found {found} lines in term {term}"))?;
    pause(is_paused)?;
    call(ADD, format!("payment {}", found + 1)).await?;
    say("written")
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use tenure_fence::gate::Gate;
    use tenure_fence::http::FenceLayer;
    use tenure_fence::mark::Mark;
    use tonic::service::Routes;
    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;

    use super::*;

    /// The example's own server is one of axum.
    #[tokio::test]
    async fn a_server_of_tonic_refuses_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let gate = Gate::open(Mark::at(directory.path().join("mark"))).expect("a gate");
        let service = Ledger(Lines::default());
        let router = Router::new().route_service("/tenure.example.Ledger/{call}", service);
        let any = "127.0.0.1:0".parse().expect("an address");
        let incoming = TcpIncoming::bind(any).expect("a port");
        let address = incoming.local_addr().expect("bound").to_string();
        let server = Server::builder()
            .layer(FenceLayer::new(gate))
            .add_routes(Routes::from(router));
        tokio::spawn(server.serve_with_incoming(incoming));
        let term = |number| Term::new(number).expect("a term");
        write(&address, term(8), false).await.expect("written");
        let refused = write(&address, term(7), false).await.expect_err("too late");
        let seen = refused.downcast_ref::<Deposed>().and_then(|it| it.seen);
        assert_eq!(seen, Some(term(8)), "{refused}");
    }
}
