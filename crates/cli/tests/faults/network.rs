//! What lies between the servers, and what can be done to it.
//!
//! A network is a matrix: for each pair of servers, one direction, how what
//! is sent fares. Two networks carry it out. In namespaces (`namespaces`)
//! packets are dropped by the kernel, so that a connection does not break but
//! hangs, as behind a dead switch. The proxy (`proxy`) sees the streams and can
//! be slow or narrow, hold back one direction of a connection that is up, or
//! reset it; but it loses nothing, for TCP would not.

use std::collections::BTreeMap;

use crate::namespaces::Namespaces;
use crate::proxy::Proxies;
use crate::room::Room;

/// The clients' place in the matrix; servers begin at 1.
pub(crate) const CLIENTS: u64 = 0;

/// How one direction between two places fares.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Edge {
    /// Nothing gets through.
    pub(crate) cut: bool,
    /// Of a hundred packets, so many are lost. Namespaces only.
    pub(crate) loss: u32,
    /// How much later everything arrives, in milliseconds. Proxy only.
    pub(crate) delay_ms: u64,
    /// Bytes in a second at most, 0 for any number. Proxy only.
    pub(crate) rate: u64,
}

/// All that is not as it should be, by `(from, to)`.
pub(crate) type Edges = BTreeMap<(u64, u64), Edge>;

/// Where servers find each other.
pub(crate) struct Place {
    /// What goes into `--peers`.
    pub(crate) peer: String,
    /// Where it listens for peers, if that is elsewhere.
    pub(crate) listen_peers: Option<String>,
    /// Where clients come.
    pub(crate) client: String,
}

pub(crate) enum Network {
    Namespaces(Namespaces),
    Proxies(Proxies),
}

impl Network {
    /// The best that `room` allows, for servers 1 to `count`.
    pub(crate) async fn best(room: Room, count: u64) -> Self {
        match room {
            Room::Own => Self::Namespaces(Namespaces::new(count)),
            Room::Shared => Self::proxied(room, count).await,
        }
    }

    /// A network of proxies.
    pub(crate) async fn proxied(room: Room, count: u64) -> Self {
        if room == Room::Own {
            crate::room::sh("ip link set lo up");
        }
        Self::Proxies(Proxies::start(count).await)
    }

    pub(crate) fn place(&self, server: u64) -> Place {
        match self {
            Self::Namespaces(it) => it.place(server),
            Self::Proxies(it) => it.place(server),
        }
    }

    /// What stands before a command that is to run at `server`'s place.
    pub(crate) fn prefix(&self, server: u64) -> Vec<String> {
        match self {
            Self::Namespaces(it) => it.prefix(server),
            Self::Proxies(_) => Vec::new(),
        }
    }

    /// From now on this is wrong with it, and nothing else.
    pub(crate) fn apply(&mut self, edges: &Edges) {
        match self {
            Self::Namespaces(it) => it.apply(edges),
            Self::Proxies(it) => it.apply(edges),
        }
    }

    /// Ends every connection between servers as if somebody had reset it.
    /// Only the proxy can.
    pub(crate) fn reset(&self) {
        if let Self::Proxies(it) = self {
            it.reset();
        }
    }
}
