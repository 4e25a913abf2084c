//! For programs without an async runtime: elections and stores run on a thread
//! of their own anyway, so a plain thread only has to wait for what they tell.
//!
//! ```no_run
//! # fn pay_next(_: tenure::Fence) {}
//! # fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::blocking;
//!
//! let store = blocking::wait(tenure::open("sqlite:///var/lib/payroll.db"))?;
//! let mut election = tenure::Election::builder(store, "payroll").start()?;
//! for leadership in blocking::leaderships(&mut election) {
//!     // Another thread may ask, too, and holds nothing by that.
//!     let view = leadership.view();
//!     while view.is_valid() {
//!         pay_next(view.fence());
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! Work that blocks is not dropped at the deadline, as
//! [`guard`](crate::Leadership::guard) drops work that awaits: it has to ask
//! [`is_valid`](crate::LeadershipView::is_valid) before each effect.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

use crate::election::Event;
use crate::{Election, Leadership, Observer};

/// Waits for a future of this crate on the thread that calls. Of other crates
/// only those that need no runtime of their own.
///
/// On a thread of an async runtime it keeps that from doing anything else:
/// `await` there. If that is the only thread of a current-thread runtime, this
/// may never return: what is waited for may need a task or a timer of that runtime.
pub fn wait<F: Future>(future: F) -> F::Output {
    let woken = Arc::new(Woken {
        thread: thread::current(),
        // What is polled may park this thread, too, and take its token.
        again: AtomicBool::new(false),
    });
    let waker = Arc::clone(&woken).into();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        while !woken.again.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

struct Woken {
    thread: Thread,
    again: AtomicBool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.again.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The leaderships of this candidate, one after the other. Each begins when
/// the one before was dropped and the candidate has been elected again; they
/// end when the election is stopped.
pub fn leaderships(election: &mut Election) -> impl Iterator<Item = Leadership> {
    std::iter::from_fn(|| wait(election.elected()))
}

/// What happens in an election or a group in which this process stands, one event after
/// the other. What an [`Observer`] sees of an election is [`observed`].
pub fn events<E>(events: &mut crate::drive::Events<E>) -> impl Iterator<Item = E> {
    std::iter::from_fn(|| wait(events.next()))
}

/// What is seen of an election without standing in it ([`watch`](crate::election::watch)),
/// one event after the other.
pub fn observed(observer: &mut Observer) -> impl Iterator<Item = Event> {
    std::iter::from_fn(|| wait(observer.next()))
}
