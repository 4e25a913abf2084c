//! The whole of it on one screen: stand, work while leading, leave in good
//! order. Run it twice, and stop the one that works.
//!
//! ```sh
//! cargo run -p tenure --example elect -- sqlite:///tmp/demo.db
//! ```

#![allow(clippy::print_stdout, reason = "an example that prints what it does")]

use std::error::Error;
use std::time::Duration;

use tenure::{Election, Leadership};

/// What only the leader may do. It asks for the fence with everything that
/// leaves the process, and would stop by itself if the election were lost.
async fn work(leadership: &Leadership) {
    while leadership.is_valid() {
        println!(
            "leading in term {}, {:?} left",
            leadership.term(),
            leadership.remaining()
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let store = tenure::store::open(&url).await?;
    let mut election = Election::builder(store, "demo")
        .lease(Duration::from_secs(2))
        .start()?;
    println!("standing as {}", election.config().name);
    while let Some(leadership) = election.elected().await {
        match leadership.guard(work(&leadership)).await {
            Ok(()) => println!("the work is done"),
            Err(deposed) => println!("{deposed}"),
        }
    }
    Ok(())
}
