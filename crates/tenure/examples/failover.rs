//! The whole of it on one screen: a scheduler in this process that survives
//! its node. Run it two or three times in different terminals; then kill the
//! one that ticks, or end it with a line from the keyboard, which hands on.
//!
//! ```sh
//! cargo run -p tenure --example failover -- sqlite:///tmp/demo.db
//! ```

#![allow(clippy::print_stdout, reason = "an example that prints what it does")]

use std::error::Error;
use std::time::Duration;

use tenure::error::Cause;
use tenure::ha::{Deployment, GroupRequestError, Manager, Refusal, RunHandle, Workload};
use tokio::task::JoinSet;

/// Ticks. Its tasks end when it is dropped.
#[derive(Default)]
struct Ticker(JoinSet<()>);

impl Workload for Ticker {
    async fn deploy(&mut self, run: &RunHandle) -> Result<(), Cause> {
        let run = run.clone();
        self.0.spawn(async move {
            while run.is_valid() {
                let config = String::from_utf8_lossy(run.config());
                println!("tick {config}, fence {}", run.fence());
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        Ok(())
    }

    async fn undeploy(&mut self) {
        self.0.shutdown().await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let store = tenure::store::open(&url).await?;
    let node = Manager::builder(store, "demo")
        .name(format!("process-{}", std::process::id()))
        .lease(Duration::from_secs(3))
        .workload("ticker", Ticker::default)
        .start()?;
    println!("joined as {}", node.joined().await?);
    let ticker = Deployment::new("clock", "ticker").config(r#"{"of": "the demo"}"#);
    match node.deploy(ticker).await {
        Ok(_) => println!("it runs here"),
        Err(GroupRequestError::Refused(Refusal::Exists(_))) => {
            println!("it runs elsewhere; standing by");
        }
        Err(error) => return Err(error.into()),
    }
    let mut events = node.events();
    let (enter, entered) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || enter.send(std::io::stdin().read_line(&mut String::new())));
    let watching = async {
        while let Some(event) = events.next().await {
            println!("{event:?}");
        }
    };
    tokio::select! {
        () = watching => {}
        _ = entered => node.drain().await,
    }
    Ok(())
}
