//! What people and service managers ask of `tenure run` by signals.
//!
//! The handlers are installed before anything else is done. A TERM that comes
//! while the store is still being opened must end the program in order. One that
//! comes between the election and the start must not leave an election with a
//! leader that runs nothing.
//!
//! INT and TERM ask to stop: CMD gets TERM and its grace, then the leadership is
//! resigned. A second one of either asks to kill at once. The other signals go to
//! CMD's process group as they are. CMD sees each signal once, since it is not in
//! the terminal's process group.
//!
//! HUP has two meanings. From a terminal that hangs up it says that the user has
//! gone, so it asks to stop. If it were forwarded, it would end CMD only to have
//! it started again by a supervisor without a terminal. Where there never was a
//! terminal, HUP tells a service to read its settings again, and is forwarded.
//! Standard input and error at the start tell which of the two holds.
//!
//! Left out: TSTP (Ctrl-Z). It stops the supervisor. Then its lease runs out and
//! the guardian ends CMD in time, as if the supervisor had died.

use std::io::{self, IsTerminal as _};
use std::thread;

use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc::{Receiver, channel};

/// Signals that wait to be looked at; more of the forwarded kind are dropped,
/// as the kernel itself does with signals of one kind.
const QUEUE_MAX: usize = 64;

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalRequest {
    /// End CMD with its grace, resign, exit.
    Stop,
    /// The same without grace.
    Kill,
    /// Pass this signal number on.
    Forward(i32),
}

/// The signals sent to this process, as they come.
pub struct SignalRequests(Receiver<SignalRequest>);

impl SignalRequests {
    /// Takes over the signals of this process.
    pub fn install() -> io::Result<Self> {
        let mut signals = Signals::new([
            SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT,
        ])?;
        let (send, receive) = channel(QUEUE_MAX);
        let hangs_up = io::stdin().is_terminal() || io::stderr().is_terminal();
        let relay = move || {
            let mut asked = false;
            // Never dropped, however long it has to wait.
            let stop = |asked: &mut bool| {
                let again = std::mem::replace(asked, true);
                send.blocking_send(if again {
                    SignalRequest::Kill
                } else {
                    SignalRequest::Stop
                })
                .is_ok()
            };
            for signal in signals.forever() {
                let sent = match signal {
                    SIGINT | SIGTERM => stop(&mut asked),
                    SIGHUP if hangs_up => stop(&mut asked),
                    other => {
                        send.try_send(SignalRequest::Forward(other)).is_ok() || !send.is_closed()
                    }
                };
                if !sent {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("tenure-signals".into())
            .spawn(relay)?;
        Ok(Self(receive))
    }

    /// Waits for a request to stop, or to kill. Others are dropped: no command
    /// runs that could get them.
    pub async fn stop(&mut self) {
        while let SignalRequest::Forward(_) = self.next().await {}
    }

    /// The next one. May be cancelled without loss.
    pub async fn next(&mut self) -> SignalRequest {
        match self.0.recv().await {
            Some(request) => request,
            // The relay ends only with this value.
            None => std::future::pending().await,
        }
    }
}
