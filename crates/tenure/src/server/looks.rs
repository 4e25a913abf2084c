//! Looks at the machine that wait for their turn.
//!
//! A page of what a watch begins with costs little, and a thousand watches ask
//! for one at the same time. If all of them were taken in one round of the
//! machine, it would do nothing else meanwhile. So they wait here, and a few
//! of them are taken in each round.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::inbox::{Event, Inbox, Look};

/// How many are taken in one round. Each reads a page, which takes about a
/// tenth of a millisecond.
const TOGETHER_MAX: usize = 4;

/// Passes looks on to the machine, in the order in which they come. Each who
/// asks has one at a time, so that there are at most as many as calls.
pub(super) async fn in_turn(mut looks: mpsc::UnboundedReceiver<Look>, inbox: Arc<Inbox>) {
    let mut some = Vec::new();
    while looks.recv_many(&mut some, TOGETHER_MAX).await > 0 {
        let taken = std::mem::take(&mut some);
        let (done, taken_all) = oneshot::channel::<()>();
        inbox.put(Event::Look(Box::new(move |node| {
            for look in taken {
                look(node);
            }
            drop(done);
        })));
        // It ends when the looks were taken, or nobody takes any more.
        let _ = taken_all.await;
    }
}
