//! The process side of `tenure run`: a command that runs only while its process
//! leads. An agent's shim (`shim.rs`) is a supervisor too, of many commands.
//!
//! `tenure run` (the *supervisor*) leads an election. It must make sure that CMD
//! ends before another candidate can be elected, even if the supervisor itself
//! fails. A parent alone cannot promise that: it may be killed, stopped or hung at
//! the very moment that counts. So three processes share the work, each of them
//! the same binary:
//!
//! ```text
//!   supervisor ──control channel──► guardian ──► CMD ──► what CMD starts
//!   (elects)                        (own session,  (own process group,
//!                                    one thread)     first a launcher that execs)
//! ```
//!
//! * The **guardian** (`guardian.rs`) starts CMD, knows two times on the
//!   boot-time clock, `drain_at` and `kill_at`, and keeps them on its own: TERM
//!   (SIGTERM) at the first, KILL (SIGKILL) at the second or as soon as the
//!   supervisor is gone. `drain_at` is what client-go calls the renew deadline.
//! * The **launcher** (`launcher.rs`) asks the kernel for a KILL should the
//!   guardian die, and then becomes CMD.
//! * The supervisor's **watchdog** (`watchdog.rs`), a thread, wakes a guardian
//!   that is stopped at `kill_at`, and takes over when it dies or does nothing
//!   then.
//!
//! Why it is safe: only the supervisor moves times, only later, and only after a
//! renewal that succeeded. If *one* of supervisor and guardian is killed or
//! stopped, the other still ends CMD by `kill_at`. Everything that CMD has started
//! ends with it, because supervisor and guardian are both subreapers: an orphan
//! cannot leave their tree (`tree.rs`). Where a cgroup can be had, nothing leaves
//! that either (`cgroup.rs`).
//!
//! Left out on purpose: both stopped at once, a machine frozen as a whole, and
//! processes that another daemon starts at CMD's request. There the fence
//! protects: see docs/design/run.md. Nor is a CMD that runs probed (there is no
//! liveness probe): its end alone is noticed.

mod cgroup;
mod channel;
mod dispatch;
mod event;
mod exit_status;
mod guardian;
mod handle;
mod launcher;
mod messages;
mod order_mailbox;
mod poll;
mod signals;
mod tree;
mod watchdog;

pub use dispatch::dispatch;
pub use event::GuardianEvent;
pub use exit_status::{ExitStatus, StartError};
pub use handle::Guardian;
pub use messages::StartOrder;
pub use signals::{SignalRequest, SignalRequests};
pub use watchdog::{MARGIN_MIN, SLACK};
