//! A connection to a server, with what shows whose the calls over it are.

use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service, StdError};

use super::own_token_channel::OwnTokenChannel;
use super::token::Bearer;

/// A connection whose calls carry what shows whose they are.
#[derive(Clone, Debug)]
pub(super) enum Channel {
    /// The token that the client was given; none, if the servers are on other
    /// machines.
    Given(tonic::transport::Channel, Bearer),
    /// That it can read the token of this user, if the server is on this
    /// machine.
    OwnTokenChannel(OwnTokenChannel),
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        match self {
            Self::Given(channel, _) => channel.poll_ready(context).map_err(Into::into),
            // It waits in the call.
            Self::OwnTokenChannel(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self {
            Self::Given(channel, bearer) => {
                bearer.carry(&mut request);
                let answered = channel.call(request);
                Box::pin(async move { Ok(answered.await?) })
            }
            Self::OwnTokenChannel(own_token_channel) => {
                Box::pin(own_token_channel.clone().call(request))
            }
        }
    }
}
