//! What runs the machines: one OS thread with a runtime of its own, and a
//! loop that fits them all.
//!
//! Renewals must not depend on the application's executor: an application
//! that blocks its own threads would otherwise lose its election by accident.
//! So every election of a process, and every connection that elections
//! depend on, lives on one background thread started at first use. It does
//! little (a few wake-ups per election and interval), so one is enough for
//! thousands of elections.

mod events;
mod machine;
mod suspend;

use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::runtime::{Builder, Handle};

pub use events::{EVENTS_MAX, EventBroadcaster, Events};
pub use machine::until;
pub use machine::{Environment, Flow, drive};

/// The runtime that elections and stores run on, started at first use.
/// Stores spawn their connection tasks here, never on the caller's runtime.
///
/// # Panics
/// If the operating system gives no thread, or too few files.
pub fn background() -> &'static Handle {
    try_background().expect("a thread and its files from the operating system")
}

/// As [`background`], but with an error in place of a panic.
///
/// # Errors
/// If the operating system gives no thread, or too few files.
pub fn try_background() -> io::Result<&'static Handle> {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(handle) = RUNTIME.get() {
        return Ok(handle);
    }
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = RUNTIME.get() {
        return Ok(handle);
    }
    let handle = start()?;
    Ok(RUNTIME.get_or_init(|| handle))
}

fn start() -> io::Result<Handle> {
    let (send, receive) = std::sync::mpsc::channel();
    let run = move || {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = send.send(Err(error));
                return;
            }
        };
        let _ = send.send(Ok(runtime.handle().clone()));
        runtime.block_on(suspend::notice());
    };
    let thread = std::thread::Builder::new().name("tenure".into());
    thread.spawn(run)?;
    receive.recv().map_err(io::Error::other)?
}
