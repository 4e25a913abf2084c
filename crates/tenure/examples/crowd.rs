//! Many candidates for many elections in one process: do they hold their
//! elections, and at what cost?
//!
//! ```sh
//! cargo run --release -p tenure --example crowd -- sqlite:///tmp/crowd.db 50 10 60
//! ```
//!
//! Arguments: the store's URL, elections, candidates for each, seconds. Prints
//! the processor time of this process, the changes of leader after all elections
//! were first held, and the statements per second where the server counts
//! them.

#![allow(clippy::print_stdout, reason = "an example that prints its figures")]

#[path = "../tests/common/counted.rs"]
mod counted;
#[path = "../tests/common/intercepted.rs"]
mod intercepted;
#[path = "../tests/common/processes.rs"]
mod processes;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use counted::Counted;
use intercepted::Intercepted;
use processes::processor_time_here;
use tenure::Election;
use tenure::election::Event;
use tenure::store::{Store, open};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("expected a store URL")?;
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse());
    let (elections, candidates, seconds) = (number(50)?, number(10)?, number(60)?);
    let store = Intercepted::new(open(&url).await?, Counted::default());
    let elected = Arc::new(AtomicU64::new(0));
    let lost = Arc::new(AtomicU64::new(0));
    let mut crowd = Vec::new();
    for number in 0..elections {
        for candidate in 0..candidates {
            let shared: Arc<dyn Store> = Arc::clone(&store) as _;
            let mut election = Election::builder(shared, format!("election-{number}"))
                .name(format!("candidate-{candidate}"))
                .lease(Duration::from_secs(5))
                .start()?;
            let mut events = election.events();
            let (elected, lost) = (Arc::clone(&elected), Arc::clone(&lost));
            let told = async move {
                while let Some(event) = events.next().await {
                    match event {
                        Event::Elected { .. } => elected.fetch_add(1, Ordering::Relaxed),
                        Event::Ousted { .. } => lost.fetch_add(1, Ordering::Relaxed),
                        _ => 0,
                    };
                }
            };
            crowd.push(tokio::spawn(async move {
                let working = async {
                    // Held for as long as it can be.
                    while let Some(leadership) = election.elected().await {
                        leadership.cancelled().await;
                    }
                };
                tokio::join!(working, told);
            }));
        }
    }
    while elected.load(Ordering::Relaxed) < elections {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let count = || {
        (
            store.interceptor.reads.load(Ordering::Relaxed),
            store.interceptor.writes.load(Ordering::Relaxed),
        )
    };
    let (before, reads_before) = (processor_time_here(), count());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let (used, now) = (processor_time_here() - before, count());
    let per_second = |now: u64, before: u64| (now - before) as f64 / seconds as f64;
    println!(
        "{elections} elections x {candidates} candidates on {store} for {seconds} s: \
         {:.3} of a core, {:.1} writes and {:.1} reads per second, {} elections lost",
        used.as_secs_f64() / seconds as f64,
        per_second(now.1, reads_before.1),
        per_second(now.0, reads_before.0),
        lost.load(Ordering::Relaxed)
    );
    Ok(())
}
