//! Reads of the machine's state that wait for their turn.
//!
//! A page of what a watch begins with costs little, and a thousand watches ask
//! for one at the same time. If all of them were taken in one round of the
//! machine, it would do nothing else meanwhile. So they wait here, and in each
//! round some of them are taken, for [`SLICE`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tenure_runtime::clock;
use tokio::sync::{mpsc, oneshot};

use super::inbox::{Event, Inbox, Inspection};

/// For how long reads are taken in one round; one page takes less.
const SLICE: Duration = Duration::from_micros(500);
/// How many wait for a round, at most.
const TOGETHER_MAX: usize = 1_024;

/// Passes reads on to the machine, in the order in which they come. Each who
/// asks has one at a time, so that there are at most as many as calls.
pub(super) async fn in_turn(
    mut inspections: mpsc::UnboundedReceiver<Inspection>,
    inbox: Arc<Inbox>,
) {
    let mut some = Vec::new();
    while inspections.recv_many(&mut some, TOGETHER_MAX).await > 0 {
        let mut waiting = VecDeque::from(std::mem::take(&mut some));
        while !waiting.is_empty() {
            let (give_back, rest) = oneshot::channel();
            inbox.put(Event::Inspection(Box::new(move |node| {
                let begun = clock::boot();
                while let Some(inspect) = waiting.pop_front() {
                    inspect(node);
                    if clock::boot().since(begun) >= SLICE {
                        break;
                    }
                }
                let _ = give_back.send(waiting);
            })));
            // None are left if nobody takes them any more.
            waiting = rest.await.unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn looks_are_taken_in_order_and_no_longer_than_a_slice_in_a_round() {
        let (sender, inspections) = mpsc::unbounded_channel::<Inspection>();
        let inbox = Arc::new(Inbox::default());
        tokio::spawn(in_turn(inspections, Arc::clone(&inbox)));
        let (tell, mut told) = mpsc::unbounded_channel();
        for number in 0..50 {
            let tell = tell.clone();
            let inspect = move |_: Option<&_>| {
                let begun = clock::boot();
                while clock::boot().since(begun) < SLICE / 4 {}
                let _ = tell.send(number);
            };
            sender.send(Box::new(inspect)).expect("somebody takes it");
        }
        let (mut next, mut events) = (0, Vec::new());
        while next < 50 {
            inbox.more().await;
            inbox.take(&mut events);
            for event in events.drain(..) {
                let Event::Inspection(inspect) = event else {
                    panic!("expected a look");
                };
                inspect(None);
            }
            let before = next;
            while let Ok(number) = told.try_recv() {
                assert_eq!(number, next);
                next += 1;
            }
            assert!((1..=4).contains(&(next - before)), "{before} to {next}");
        }
    }
}
