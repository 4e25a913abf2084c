//! Registers on one screen: count in one by compare-and-swap, together with
//! everybody else who runs this.
//!
//! ```sh
//! cargo run -p tenure-client --example registers -- tenure://127.0.0.1:7401
//! ```

#![allow(clippy::print_stdout, reason = "an example that prints what it does")]

use tenure::store::{Expect, Key, Stamp, Write};
use tenure_client::{Client, Error};

/// One more than what is there; again if somebody else was quicker.
async fn count(client: &Client, key: &Key) -> Result<u64, Error> {
    loop {
        let held = client.read(key).await?.register;
        let before = held.as_ref().and_then(|held| (*held.value).try_into().ok());
        let after = before.map_or(0, u64::from_be_bytes) + 1;
        let write = Write {
            key: key.clone(),
            expect: held.map_or(Expect::Absent, |held| Expect::Version(held.version)),
            value: after.to_be_bytes().as_slice().into(),
            stamp: Stamp::Now,
        };
        match client.compare_and_swap(write).await {
            Ok(_) => return Ok(after),
            Err(Error::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::open(url.as_deref().unwrap_or("tenure://127.0.0.1:7400"))?;
    let key = Key::new("demo/counter")?;
    for _ in 0..1_000 {
        count(&client, &key).await?;
    }
    println!("counted to {}", count(&client, &key).await?);
    Ok(())
}
