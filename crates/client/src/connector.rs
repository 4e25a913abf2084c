//! One connection over TCP, with TLS or without, for the gRPC library.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioIo;
use tenure_runtime::lookup::{lookup, lookup_or_last};
use tenure_runtime::tls::{ClientStream, ClientTls};
use tokio::net::TcpStream;
use tonic::transport::Uri;
use tower::{Service, ServiceExt as _};

/// After how much silence the system asks whether the other side is there.
const ALIVE_AFTER: Duration = Duration::from_secs(20);

type Dialled = Result<TokioIo<ClientStream>, Failure>;
pub(super) type Failure = Box<dyn StdError + Send + Sync>;

/// The part of an attempt that IPv6 has to itself.
const IPV6_PART: u32 = 4;

/// Connections with TLS, each within this time.
pub(super) fn connector(
    tls: Arc<ClientTls>,
    within: Duration,
) -> impl Service<
    Uri,
    Response = TokioIo<ClientStream>,
    Error = Failure,
    Future = impl Future<Output = Dialled> + Send,
> + Send {
    tower::service_fn(move |to: Uri| secured(Arc::clone(&tls), to, within))
}

/// Which addresses of a name are used.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lookup {
    /// Those that a lookup finds now.
    Fresh,
    /// These, or those that the name had last.
    OrLast,
}

/// Connects within `within`, which all addresses of a name share. Lookups outlive the attempt,
/// which those of the library do not. A caller that sends a token without TLS must use
/// [`Lookup::Fresh`]: another program may have an old address.
pub(super) fn tcp(
    within: Duration,
    names: Lookup,
) -> impl Service<
    Uri,
    Response = TokioIo<TcpStream>,
    Error = impl StdError + Send + Sync + 'static,
    Future = impl Send,
> + Send {
    let resolver = tower::service_fn(move |name: Name| async move {
        let found = match names {
            Lookup::OrLast => lookup_or_last(name.as_str(), 0).await,
            Lookup::Fresh => lookup(name.as_str(), 0).await,
        };
        found.map(Vec::into_iter)
    });
    with_resolver(resolver, within)
}

/// The addresses that the resolver finds share the time.
fn with_resolver<R>(resolver: R, within: Duration) -> HttpConnector<R> {
    let mut tcp = HttpConnector::new_with_resolver(resolver);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(ALIVE_AFTER));
    tcp.set_connect_timeout(Some(within));
    tcp.set_happy_eyeballs_timeout(Some(within / IPV6_PART));
    tcp
}

/// Connects, and speaks TLS.
async fn secured(tls: Arc<ClientTls>, to: Uri, within: Duration) -> Dialled {
    let stream = plain(to.clone(), within).await?;
    Ok(TokioIo::new(over_tls(&tls, &to, stream).await?))
}

/// Connects once. The caller then proves who is at the other end, by TLS or by the user's
/// token.
pub(super) async fn plain(to: Uri, within: Duration) -> Result<TcpStream, Failure> {
    let connected = tcp(within, Lookup::OrLast).oneshot(to).await?;
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

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// The first address does not answer: the queue of its listener is full.
    #[tokio::test]
    async fn an_address_that_does_not_answer_leaves_time_for_the_next_one() {
        const WITHIN: Duration = Duration::from_millis(500);
        let silent = TcpSocket::new_v4().expect("a socket");
        silent.bind(([127, 0, 0, 1], 0).into()).expect("bound");
        let silent = silent.listen(0).expect("listens");
        let full = silent.local_addr().expect("bound");
        let mut waiting = Vec::new();
        while let Ok(taken) = tokio::time::timeout(WITHIN, TcpStream::connect(full)).await {
            waiting.push(taken.expect("the queue has room"));
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let live = listener.local_addr().expect("bound");
        let resolver = tower::service_fn(move |_: Name| async move {
            Ok::<_, std::io::Error>(vec![full, live].into_iter())
        });
        // Without a port in it the addresses keep theirs.
        let connected = with_resolver(resolver, WITHIN).oneshot(Uri::from_static("http://h.test"));
        // By itself the system tries the first one for minutes.
        let connected = tokio::time::timeout(WITHIN * 40, connected).await;
        let connected = connected.expect("in time").expect("connected");
        assert_eq!(connected.inner().peer_addr().ok(), Some(live));
    }
}
