//! The addresses of a host, to try one after another.

use std::net::SocketAddr;

use tokio::net::{ToSocketAddrs, lookup_host};

use crate::error::StoreError;

/// So many addresses of a host are tried. Those beyond are not.
const ADDRESSES_MAX: usize = 16;

/// Looks up the addresses of `place`, which errors call `name`: at least one.
pub(super) async fn addresses(
    name: &str,
    place: impl ToSocketAddrs,
) -> Result<Vec<SocketAddr>, StoreError> {
    let found = lookup_host(place).await;
    let found = found.map_err(|error| StoreError::unavailable(format!("{name}: {error}")))?;
    let mut addresses: Vec<_> = found.collect();
    addresses.dedup();
    addresses.truncate(ADDRESSES_MAX);
    if addresses.is_empty() {
        return Err(StoreError::unavailable(format!("{name} has no address")));
    }
    Ok(addresses)
}
