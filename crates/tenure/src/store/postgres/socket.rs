//! The stream of one connection: to one address, with the bounds on what comes.
//!
//! `tokio_postgres::Config::connect` would make a stream of its own, which nothing can
//! be put around. So the socket is set up here, as it does that.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::net::sockopt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, SslNegotiation};

use super::frames::BackendFrames;
use super::settings::Server;
use crate::store::limited_stream::LimitedStream;

/// A connection, of which the messages are followed. Those within TLS are followed
/// there.
pub(super) type PgStream = LimitedStream<BackendFrames>;

/// Connects to the server, at this address if it is one that has some.
pub(super) async fn open(
    server: &Server,
    address: Option<IpAddr>,
    config: &Config,
) -> io::Result<PgStream> {
    // Whether TLS is spoken is asked first, and answered by one byte.
    let asks = config.get_ssl_mode() != SslMode::Disable
        && config.get_ssl_negotiation() == SslNegotiation::Postgres;
    let connecting = socket(server, address, config, BackendFrames::new(asks));
    match config.get_connect_timeout() {
        Some(within) => timeout(*within, connecting)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "connection timed out"))?,
        None => connecting.await,
    }
}

async fn socket(
    server: &Server,
    address: Option<IpAddr>,
    config: &Config,
    frames: BackendFrames,
) -> io::Result<PgStream> {
    match (address, &server.host) {
        (Some(address), _) => {
            let stream = TcpStream::connect(SocketAddr::new(address, server.port)).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream, config)?;
            Ok(PgStream::new(stream, frames))
        }
        (None, Host::Unix(directory)) => {
            let path = directory.join(format!(".s.PGSQL.{}", server.port));
            Ok(PgStream::new(UnixStream::connect(path).await?, frames))
        }
        (None, Host::Tcp(name)) => Err(io::Error::other(format!("expected an address of {name}"))),
    }
}

/// Has the system look whether the other side is there.
fn keep_alive(socket: impl AsFd, config: &Config) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(within) = config.get_tcp_user_timeout() {
        let millis = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&socket, millis)?;
    }
    if !config.get_keepalives() {
        return Ok(());
    }
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, config.get_keepalives_idle())?;
    if let Some(interval) = config.get_keepalives_interval() {
        sockopt::set_tcp_keepintvl(&socket, interval)?;
    }
    if let Some(retries) = config.get_keepalives_retries() {
        sockopt::set_tcp_keepcnt(&socket, retries)?;
    }
    Ok(())
}
