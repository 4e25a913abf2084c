//! One connection over TCP, with TLS or without, for the gRPC library.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioIo;
use tenure_runtime::lookup::lookup_or_last;
use tenure_runtime::tls::{ClientStream, ClientTls};
use tokio::net::TcpStream;
use tonic::transport::Uri;
use tower::{Service, ServiceExt as _};

/// After how much silence the system asks whether the other side is there.
const ALIVE_AFTER: Duration = Duration::from_secs(20);

type Dialled = Result<TokioIo<ClientStream>, Failure>;
pub(super) type Failure = Box<dyn StdError + Send + Sync>;

pub(super) fn connector(
    tls: Arc<ClientTls>,
) -> impl Service<
    Uri,
    Response = TokioIo<ClientStream>,
    Error = Failure,
    Future = impl Future<Output = Dialled> + Send,
> + Send {
    tower::service_fn(move |to: Uri| secured(Arc::clone(&tls), to))
}

/// Connects as the library would, by lookups that outlive an attempt to connect.
pub(super) fn tcp() -> impl Service<
    Uri,
    Response = TokioIo<TcpStream>,
    Error = impl StdError + Send + Sync + 'static,
    Future = impl Send,
> + Send {
    let resolver = tower::service_fn(|name: Name| async move {
        let found = lookup_or_last(name.as_str(), 0).await;
        found.map(Vec::into_iter)
    });
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(ALIVE_AFTER));
    tcp
}

/// Connects, and speaks TLS.
async fn secured(tls: Arc<ClientTls>, to: Uri) -> Dialled {
    let stream = plain(to.clone()).await?;
    Ok(TokioIo::new(over_tls(&tls, &to, stream).await?))
}

/// Connects once.
pub(super) async fn plain(to: Uri) -> Result<TcpStream, Failure> {
    let connected = tcp().oneshot(to).await?;
    Ok(connected.into_inner())
}

/// Speaks TLS over what is connected.
pub(super) async fn over_tls(
    tls: &ClientTls,
    to: &Uri,
    stream: TcpStream,
) -> Result<ClientStream, Failure> {
    let address = to.authority().map(ToString::to_string).unwrap_or_default();
    Ok(tls.connect(stream, &address).await?)
}
