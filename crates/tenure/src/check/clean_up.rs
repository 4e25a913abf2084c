//! What a check has made goes again, however it ended.

use std::time::Duration;

use super::connection::Connection;

/// How often it is tried, and how long it waits after a failure.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(200);

/// Deletes all registers below the prefix; what is left, if anything may be.
/// `looks` is how often there must be nothing: a write that was given up may be
/// carried out a moment later.
pub(super) async fn clean_up(store: &Connection, prefix: &str, looks: u32) -> Option<String> {
    let mut left = None;
    let mut looked = 0;
    for _ in 0..ATTEMPTS {
        match store.page(prefix).await {
            Ok(page) if page.registers.is_empty() => {
                looked += 1;
                if looked >= looks {
                    return None;
                }
                tokio::time::sleep(PAUSE).await;
            }
            Ok(page) => {
                let mut failed = None;
                for (key, register) in &page.registers {
                    if let Err(error) = store.clear(key, &register.version).await {
                        failed = Some(error);
                    }
                }
                if let Some(error) = failed {
                    left = Some(format!(
                        "{} registers or fewer: {error}",
                        page.registers.len()
                    ));
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Err(error) => {
                left = Some(format!("registers that cannot be listed: {error}"));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    left
}
