//! How much clients may make a server hold: of one connection, of one caller
//! and of all.

pub(super) const MIB: usize = 1024 * 1024;

/// How much may be held of one connection, of one caller and of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) connection: usize,
    pub(super) caller: usize,
    pub(super) all: usize,
    /// Beyond all, for callers that hold little.
    pub(super) little: usize,
}

impl Bounds {
    pub(super) const fn half(self) -> Self {
        Self {
            connection: self.connection / 2,
            caller: self.caller / 2,
            all: self.all / 2,
            little: self.little / 2,
        }
    }
}

/// Of requests, for what has come of a body beyond its beginning.
pub(super) const BODIES: Bounds = Bounds {
    connection: 16 * MIB,
    caller: 40 * MIB,
    all: 74 * MIB,
    little: 8 * MIB,
};
/// Of requests, for calls and the beginnings of their bodies.
pub(super) const CALLS: Bounds = Bounds {
    connection: 28 * MIB,
    caller: 52 * MIB,
    all: 84 * MIB,
    little: 8 * MIB,
};
/// Of requests, for probes and operators.
pub(super) const CALLS_KEPT: Bounds = Bounds {
    connection: 32 * MIB,
    caller: 60 * MIB,
    all: 96 * MIB,
    little: 0,
};
/// Of answers, for calls with one and for exchanges.
pub(super) const ANSWERS: Bounds = Bounds {
    connection: 4 * MIB,
    caller: 32 * MIB,
    all: 48 * MIB,
    little: 8 * MIB,
};
/// Of answers, for probes and operators.
pub(super) const ANSWERS_KEPT: Bounds = Bounds {
    connection: 5 * MIB,
    caller: 40 * MIB,
    all: 60 * MIB,
    little: 0,
};
/// Of what streams have made, for those of the log and of backups: each message
/// is large, and they can wait.
pub(super) const BULK: Bounds = Bounds {
    connection: 2 * MIB,
    caller: 20 * MIB,
    all: 28 * MIB,
    little: 0,
};
/// Of what streams have made, for other streams. They go on where those of the log that are
/// not read have filled their part of the connection.
pub(super) const NEWS: Bounds = Bounds {
    connection: 4 * MIB,
    caller: 24 * MIB,
    all: 34 * MIB,
    little: 6 * MIB,
};
/// Of requests, for strangers: callers without a token that is known, where
/// callers have tokens. All that they hold leaves room for the others.
pub(super) const STRANGERS: Bounds = Bounds {
    connection: 4 * MIB,
    caller: 8 * MIB,
    all: 24 * MIB,
    little: 0,
};
/// Of requests, for the probes of strangers: `all` is what strangers hold.
pub(super) const STRANGERS_KEPT: Bounds = Bounds {
    connection: 5 * MIB,
    caller: 10 * MIB,
    all: 28 * MIB,
    little: 0,
};
/// Of answers, for strangers.
pub(super) const ANSWERS_STRANGERS: Bounds = Bounds {
    connection: MIB,
    caller: 4 * MIB,
    all: 12 * MIB,
    little: 0,
};
/// Of answers, for the probes of strangers.
pub(super) const ANSWERS_STRANGERS_KEPT: Bounds = Bounds {
    connection: 2 * MIB,
    caller: 5 * MIB,
    all: 54 * MIB,
    little: 0,
};
/// Of answers that wait in the HTTP library for clients to read. They are bounded
/// of callers: a connection has a thousand at most.
pub(super) const UNSENT: Bounds = Bounds {
    connection: usize::MAX,
    caller: 24 * MIB,
    all: 32 * MIB,
    little: 0,
};
/// The same of strangers.
pub(super) const UNSENT_STRANGERS: Bounds = Bounds {
    connection: usize::MAX,
    caller: 4 * MIB,
    all: 12 * MIB,
    little: 0,
};
/// Above this for all, only connections with nothing unread go on.
pub(super) const SCARCE: usize = 24 * MIB;
/// Requests over exchanges that may be under way, of all callers: as many of
/// the 65,536 of a server
/// ([`ServerConfig::requests`](super::super::config::ServerConfig)) as leave
/// places for all calls that there may be beside them.
pub(super) const PIPELINED: usize = 40_960;
