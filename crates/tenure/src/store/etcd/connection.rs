//! An open connection to a server of etcd.

use std::sync::Arc;

use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::bounded::Bound;
use super::wire::Header;
use crate::store::dial::Connection;

/// An open connection.
#[derive(Clone, Debug)]
pub(super) struct EtcdConnection {
    channel: Channel,
    pub(super) token: Option<AsciiMetadataValue>,
    /// The cluster whose servers are believed here; 0 if the server did not say.
    pub(super) cluster: u64,
    /// Tells connections apart.
    identity: Arc<()>,
}

impl Connection for EtcdConnection {
    fn is_open(&self) -> bool {
        // That it is not shows with the next call, which leaves it.
        true
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }
}

impl EtcdConnection {
    /// Of no user and no cluster yet.
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            token: None,
            cluster: 0,
            identity: Arc::new(()),
        }
    }

    pub(super) fn grpc(&self, bound: Bound) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(bound.bytes)
    }

    /// Fails if an answer is of another cluster than the handshake was with: the channel
    /// connects anew by itself, and another server may be behind its name by then. A write
    /// that was answered so may have been done there, and counts as unknown.
    pub(super) fn check_cluster(&self, header: Option<&Header>) -> Result<(), Status> {
        let found = header.map_or(0, |header| header.cluster_id);
        if found == self.cluster || found == 0 || self.cluster == 0 {
            return Ok(());
        }
        Err(Status::unknown(format!(
            "expected servers of one cluster, {:x}, found one of cluster {found:x}",
            self.cluster
        )))
    }

    /// Says who asks.
    pub(super) fn authenticate<T>(&self, request: &mut Request<T>) {
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::*;

    #[tokio::test]
    async fn an_answer_of_another_cluster_is_none() {
        let header = |cluster_id| Header {
            cluster_id,
            member_id: 1,
            revision: 7,
        };
        let channel = Endpoint::from_static("http://localhost").connect_lazy();
        let mut connection = EtcdConnection::new(channel);
        let is_taken = |connection: &EtcdConnection, cluster| {
            connection.check_cluster(Some(&header(cluster))).is_ok()
        };
        // The handshake takes what it finds.
        assert!(is_taken(&connection, 5));
        connection.cluster = 5;
        assert!(is_taken(&connection, 5) && !is_taken(&connection, 6));
        // A server may leave it out.
        assert!(is_taken(&connection, 0) && connection.check_cluster(None).is_ok());
        let refused = connection.check_cluster(Some(&header(6)));
        let refused = refused.expect_err("it is of another");
        assert_eq!(refused.code(), tonic::Code::Unknown);
    }
}
