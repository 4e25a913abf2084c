//! What readers have been told so far.

use tenure_alpo::LogId;

/// A client that follows all changes, from whichever server it is at.
#[derive(Default)]
pub(super) struct Watch {
    /// At which server, and in which life of it.
    pub(super) at: Option<(usize, u64)>,
    /// How many changes it has been told of.
    pub(super) seen: u64,
    /// The entry that made the last of them, or a later one.
    pub(super) id: LogId,
}

/// What is known of servers that reading needs.
pub(super) struct Readers {
    pub(super) watch: Watch,
    /// By server: how many changes there had been in the snapshot that it
    /// began with, or took over, and the last entry in it.
    pub(super) base: Vec<(u64, LogId)>,
    /// By server: since when it is in its term.
    pub(super) since: Vec<u64>,
}

impl Readers {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            watch: Watch::default(),
            base: vec![(0, 0); servers],
            since: vec![0; servers],
        }
    }

    /// The server has another term. One that was removed and lives on beside
    /// its successor came later than the rest.
    pub(super) fn has_term(&mut self, server: usize, now: u64) {
        self.make_room(server);
        self.since[server] = now;
    }

    pub(super) fn make_room(&mut self, server: usize) {
        let servers = self.base.len().max(server + 1);
        self.base.resize(servers, (0, 0));
        self.since.resize(servers, 0);
    }
}
