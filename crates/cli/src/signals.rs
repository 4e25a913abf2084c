//! Signals, caught before anything else is done: a TERM that arrives between
//! winning the office and starting the command must not be lost.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// INT or TERM: stop in good order; a second one: at once.
    Stop,
    /// Any other: pass it on to the command.
    Forward(i32),
}

/// The signals that are caught.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    user1: Signal,
    user2: Signal,
    window: Signal,
}

impl Signals {
    /// Begins to catch them. Needs the runtime.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            window: signal(SignalKind::window_change())?,
        })
    }

    /// The next one. Cancelling this loses nothing.
    pub(crate) async fn next(&mut self) -> Asked {
        let forward = |kind: SignalKind| Asked::Forward(kind.as_raw_value());
        tokio::select! {
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.hangup.recv() => forward(SignalKind::hangup()),
            _ = self.quit.recv() => forward(SignalKind::quit()),
            _ = self.user1.recv() => forward(SignalKind::user_defined1()),
            _ = self.user2.recv() => forward(SignalKind::user_defined2()),
            _ = self.window.recv() => forward(SignalKind::window_change()),
        }
    }
}
