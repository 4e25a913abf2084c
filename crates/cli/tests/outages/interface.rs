//! What a store has to offer to be struck by a fault, and which faults there are.

/// What goes wrong with a server, or with what it keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// It is away, and comes back with what it had.
    Away,
    /// It is away, and comes back with nothing.
    Emptied,
    /// The credentials of the candidates are good no more.
    Revoked,
    /// The table, stream, bucket, namespace, file or directory is gone.
    Missing,
}

/// A store and its server, if it has one.
pub(crate) trait Subject: Send {
    /// The store's URL.
    fn url(&self) -> String;

    /// `host:port` of its server, as the URL has it.
    fn address(&self) -> String;

    /// Does it, and returns what a candidate has to say of it: any of these words.
    fn strike(&mut self, fault: Fault) -> &'static [&'static str];

    /// Ends it.
    fn relieve(&mut self, fault: Fault);
}

/// A subject that starts when it is made.
pub(crate) type Make = fn() -> Box<dyn Subject>;

/// A store that this fault cannot happen to.
pub(crate) fn never(fault: Fault) -> ! {
    panic!("{fault:?} does not happen to this store")
}
