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

use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle};

pub use events::{EVENTS_MAX, EventBroadcaster, Events};
pub use machine::until;
pub use machine::{Environment, Flow, drive};

/// The runtime that elections and stores run on, started at first use.
/// Stores spawn their connection tasks here, never on the caller's runtime.
///
/// # Panics
/// If the operating system gives no thread.
pub fn background() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("tenure".into())
            .spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime needs an epoll descriptor from the operating system");
                let _ = send.send(runtime.handle().clone());
                runtime.block_on(suspend::notice());
            })
            .expect("a thread from the operating system");
        receive.recv().expect("the thread sends its handle first")
    })
}
