//! How servers are reached: over TCP, or with TLS on top.
//!
//! This module makes each connection and hands it to the gRPC library. Its lookups outlive
//! an attempt to connect, which the library's own do not. With TLS it reads the certificates
//! anew: renewed files are in use from the next connection on, and an error can name the
//! file. The library would keep the certificates that it was first given.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure_runtime::own_token::is_loopback;
use tenure_runtime::round_trip::RoundTripTimes;
use tenure_runtime::tls::ClientTls;
use tonic::transport::{Endpoint, Uri};

use super::channel::Channel;
use super::connector::{Lookup, connector, tcp};
use super::error::chain;
use super::inline_tasks::InlineExecutor;
use super::own_token_channel::OwnTokenChannel;
use super::token::Bearer;
use super::{Config, Error};

/// How long a connection may take, TLS included, to servers that are near.
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
/// The windows of a stream and of a connection, in bytes.
const WINDOW_BYTES: [u32; 2] = [1024 * 1024, 4 * 1024 * 1024];

/// Makes connections, all in the same way.
#[derive(Clone, Debug)]
pub(super) struct Dialer {
    tls: Option<Arc<ClientTls>>,
    bearer: Bearer,
    round_trips: RoundTripTimes,
}

impl Dialer {
    /// Reads the files, of certificates and of the token, that are named.
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        let tls = config.tls.clone().map(ClientTls::open).transpose();
        Ok(Self {
            tls: tls?.map(Arc::new),
            bearer: Bearer::new(config.token.as_ref())?,
            round_trips: RoundTripTimes::default(),
        })
    }

    /// How far away the servers are.
    pub(super) const fn round_trips(&self) -> &RoundTripTimes {
        &self.round_trips
    }

    /// Whether connections may go to the addresses that a name had last.
    pub(super) const fn may_use_last_addresses(&self) -> bool {
        self.tls.is_some() || !self.bearer.is_given()
    }

    /// Whether this is an address at all.
    pub(super) fn check(&self, address: &str) -> Result<(), String> {
        self.endpoint(address).map(drop)
    }

    /// A connection that is made at its first use.
    pub(super) fn lazy(&self, address: &str) -> Result<Channel, String> {
        self.lazy_within(address, self.round_trips.timeout(CONNECT_WITHIN))
    }

    /// The same, which may take so long.
    pub(super) fn lazy_within(&self, address: &str, within: Duration) -> Result<Channel, String> {
        let endpoint = self.endpoint(address)?.connect_timeout(within);
        if self.may_need_own_token(address) {
            return Ok(Channel::OwnTokenChannel(OwnTokenChannel::new(
                endpoint,
                within,
                self.tls.clone(),
            )));
        }
        let channel = match &self.tls {
            None => endpoint.connect_with_connector_lazy(tcp(within, Lookup::Fresh)),
            Some(tls) => endpoint.connect_with_connector_lazy(connector(Arc::clone(tls), within)),
        };
        Ok(Channel::Given(channel, self.bearer.clone()))
    }

    /// A connection that is made now, and lives as long as `executor` runs what
    /// it spawns.
    pub(super) async fn connect(
        &self,
        address: &str,
        executor: InlineExecutor,
    ) -> Result<Channel, String> {
        let within = self.round_trips.timeout(CONNECT_WITHIN);
        let endpoint = self.endpoint(address)?.connect_timeout(within);
        let endpoint = endpoint.executor(executor);
        if self.may_need_own_token(address) {
            let own_token_channel = OwnTokenChannel::new(endpoint, within, self.tls.clone());
            own_token_channel
                .connect()
                .await
                .map_err(|error| chain(&*error))?;
            return Ok(Channel::OwnTokenChannel(own_token_channel));
        }
        let connected = match &self.tls {
            None => {
                let connector = tcp(within, Lookup::Fresh);
                endpoint.connect_with_connector(connector).await
            }
            Some(tls) => {
                let connector = connector(Arc::clone(tls), within);
                endpoint.connect_with_connector(connector).await
            }
        };
        let channel = connected.map_err(|error| chain(&error))?;
        Ok(Channel::Given(channel, self.bearer.clone()))
    }

    /// Whether a connection to this address may be one to this machine that
    /// needs the token of its user. What a name stands for is seen when it is
    /// dialled.
    fn may_need_own_token(&self, address: &str) -> bool {
        let number = address.parse::<SocketAddr>();
        !self.bearer.is_given() && number.map_or(true, is_loopback)
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint, String> {
        // What is dialled has the scheme of what the library connects to; what
        // requests are told to be for has that of the whole.
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| format!("{address}: {error}"))?
            .initial_stream_window_size(WINDOW_BYTES[0])
            .initial_connection_window_size(WINDOW_BYTES[1]);
        if self.tls.is_none() {
            return Ok(endpoint);
        }
        let origin = format!("https://{address}")
            .parse::<Uri>()
            .map_err(|error| format!("{address}: {error}"))?;
        Ok(endpoint.origin(origin))
    }
}
