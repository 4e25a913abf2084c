//! The replicated log on one screen: append a few entries, each once whatever
//! happens to connections and leaders on the way, and follow the log.
//!
//! ```sh
//! cargo run -p tenure-client --example append -- tenure://127.0.0.1:7401 an order
//! ```

#![allow(clippy::print_stdout, reason = "an example that prints what it does")]

use tenure_client::{Client, Error};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args
        .next()
        .unwrap_or_else(|| "tenure://127.0.0.1:7400".into());
    let words: Vec<String> = args.collect();
    let client = Client::open(&url)?;
    match client.append_many(words).await {
        Ok(numbers) => println!("appended as {numbers:?}"),
        // Not "failed": the entries may be in the log. Follow it and see.
        Err(Error::Unknown(why)) => println!("not known in time: {why}"),
        Err(certainly_not) => return Err(certainly_not.into()),
    }
    // From the first entry on, from whatever server answers, for ever.
    let mut tail = client.tail(1);
    while let Some(entry) = tail.next().await {
        let entry = entry?;
        println!("{}: {}", entry.number, String::from_utf8_lossy(&entry.data));
    }
    Ok(())
}
