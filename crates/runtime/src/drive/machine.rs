//! The loop that runs any machine.
//!
//! Everything it knows is the shape: do what the machine asks, tell it what
//! happened, come back by its deadline. The simulator has a loop of its own
//! around the very same machines.

use std::future::Future;

use tenure_core::Machine;
use tenure_core::time::Instant;

use super::suspend;
use crate::clock;

/// Whether to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// The machine has more to do.
    On,
    /// It has ended.
    End,
}

/// What surrounds a machine.
pub trait Environment<M: Machine>: Send {
    /// Carries out, or begins to carry out, what the machine asks. Must not
    /// block.
    fn carry_out(&mut self, output: M::Output) -> Flow;

    /// The next thing that happened. Cancelling this must lose nothing.
    fn next(&mut self) -> impl Future<Output = M::Input> + Send;
}

/// Runs `machine` in `environment` until an output ends it. To be spawned on
/// [`background`](super::background).
pub async fn drive<M: Machine>(mut machine: M, mut environment: impl Environment<M>) {
    let mut resumed = suspend::resumed();
    loop {
        while let Some(output) = machine.poll() {
            if environment.carry_out(output) == Flow::End {
                return;
            }
        }
        let input = tokio::select! {
            input = environment.next() => Some(input),
            () = until(machine.deadline()) => None,
            _ = resumed.changed() => None,
        };
        match input {
            Some(input) => machine.handle(clock::now(), input),
            None => machine.tick(clock::now()),
        }
    }
}

/// Waits for that time; for ever, if there is none.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.since(clock::boot())).await,
        None => std::future::pending().await,
    }
}
