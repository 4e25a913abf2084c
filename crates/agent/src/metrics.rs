//! The metrics of an agent, in the text format of Prometheus, by HTTP.
//!
//! There are a dozen numbers and one page, so this is all the HTTP there is: it
//! reads a request up to its first line, answers it, and closes the connection.
//! At most [`CONNECTIONS_MAX`] are served at a time. A client that is slow is
//! dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tenure_runtime::failure::{Failure, usage};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::node_status::{Condition, Counts};
use super::request_handler::RequestHandler;

const CONNECTIONS_MAX: usize = 16;
/// How long a client may take to ask, and to read the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest beginning of a request that is looked at, in bytes.
const REQUEST_MAX: usize = 8 << 10;

/// Listens there, and says where: with port 0 the kernel chooses.
pub(super) async fn listen(address: &str) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let text = format!(
            "expected to serve metrics at --metrics {address}, found: {error}; name an address \
             of this machine and a port that nobody has"
        );
        match error.kind() {
            // No address at all: only a person can mend that.
            std::io::ErrorKind::InvalidInput => usage(text),
            _ => Failure::Other(anyhow::anyhow!(text)),
        }
    })?;
    let bound = listener.local_addr()?;
    tracing::info!("metrics at http://{bound}/metrics");
    if !bound.ip().is_loopback() {
        tracing::warn!(
            "--metrics {address}: other machines reach this address and can read the metrics: they \
             are served without TLS and without tokens. Name a loopback address \
             (127.0.0.1:PORT), or have a firewall let only their collectors in"
        );
    }
    Ok(listener)
}

/// Serves until this is dropped.
pub(super) async fn serve(listener: TcpListener, handler: Arc<RequestHandler>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let handler = Arc::clone(&handler);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(CLIENT_TIMEOUT, serve_connection(&stream, &handler)).await;
            drop(permit);
        });
    }
}

async fn serve_connection(stream: &TcpStream, handler: &RequestHandler) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        stream.readable().await?;
        let mut bytes = [0; 1024];
        match stream.try_read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => request.extend(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if request.len() > REQUEST_MAX {
            break;
        }
    }
    let (status, body) = if request.starts_with(b"GET /metrics ") {
        (
            "200 OK",
            render(gauges(handler), counters(handler.tracker().counts())),
        )
    } else {
        ("404 Not Found", "expected GET /metrics\n".to_owned())
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(sent) => rest = &rest[sent..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A number: its name, what it means, how much it is.
type Row = (&'static str, &'static str, u64);

/// A number in the text format of Prometheus, whose comments name a counter as
/// its samples do. In OpenMetrics, which servers speak, they leave `_total` out.
#[derive(Debug)]
struct Sample(MetricType, u64);

impl EncodeMetric for Sample {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_gauge(&i64::try_from(self.1).unwrap_or(i64::MAX))
    }

    fn metric_type(&self) -> MetricType {
        self.0
    }
}

fn render(gauges: [Row; 6], counters: [Row; 9]) -> String {
    let mut registry = Registry::with_prefix("tenure_node");
    for (name, help, value) in gauges {
        registry.register(name, help, Sample(MetricType::Gauge, value));
    }
    for (name, help, value) in counters {
        let counter = Sample(MetricType::Counter, value);
        registry.register(format!("{name}_total"), help, counter);
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode_registry(&mut text, &registry);
    text
}

fn gauges(handler: &RequestHandler) -> [Row; 6] {
    let group_state = handler.manager.group_state().borrow().clone();
    let view = group_state.view.as_deref();
    let (epoch, nodes, quorum) = view.map_or((0, 0, 0), |view| {
        (view.epoch, view.voters() as u64, u64::from(view.quorum))
    });
    let tracker = handler.tracker();
    let count = |condition| {
        let all = tracker
            .entries()
            .filter(|entry| entry.condition == condition);
        all.count() as u64
    };
    let (running, failing) = (count(Condition::Running), count(Condition::Failing));
    let member = u64::from(group_state.member);
    [
        (
            "member",
            "Whether the node is in the view of its group",
            member,
        ),
        ("epoch", "The epoch of the view that it knows", epoch),
        ("group_nodes", "The HA nodes of the group", nodes),
        ("group_quorum", "How many HA nodes the group needs", quorum),
        ("workloads_running", "Workloads that run here", running),
        (
            "workloads_failing",
            "Workloads that failed here and are tried again",
            failing,
        ),
    ]
}

fn counters(counts: Counts) -> [Row; 9] {
    [
        ("starts", "Starts that succeeded", counts.starts),
        (
            "failures",
            "Starts that failed, and runs that ended by themselves",
            counts.start_failures,
        ),
        (
            "fenced",
            "How often the node gave up its id and ended everything",
            counts.fenced,
        ),
        ("deaths_seen", "Deaths of other nodes", counts.deaths),
        (
            "failovers_begun",
            "Take-overs that this node has begun",
            counts.failovers_begun,
        ),
        (
            "failovers_completed",
            "Take-overs that this node has completed",
            counts.failovers_completed,
        ),
        (
            "failovers_failed",
            "Workloads taken over that would not start",
            counts.failovers_failed,
        ),
        (
            "store_failures",
            "Calls of the store that failed",
            counts.store_failures,
        ),
        (
            "stewards_lost",
            "Stewards that had to be replaced",
            counts.shims_lost,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the agents of earlier releases wrote, byte for byte.
    #[test]
    fn the_page_is_in_the_text_format_of_prometheus() {
        let names = ["member", "epoch", "c", "d", "e", "f"];
        let gauges = names.map(|name| (name, "How it stands", 7));
        let counters = counters(Counts {
            starts: 1,
            start_failures: 1 << 40,
            ..Counts::default()
        });
        let gauge = |(name, help, value): &Row| {
            format!(
                "# HELP tenure_node_{name} {help}.\n# TYPE tenure_node_{name} gauge\n\
                 tenure_node_{name} {value}\n"
            )
        };
        let counter = |(name, help, value): &Row| {
            format!(
                "# HELP tenure_node_{name}_total {help}.\n# TYPE tenure_node_{name}_total \
                 counter\ntenure_node_{name}_total {value}\n"
            )
        };
        let expected = gauges.iter().map(gauge).chain(counters.iter().map(counter));
        assert_eq!(render(gauges, counters), expected.collect::<String>());
    }
}
