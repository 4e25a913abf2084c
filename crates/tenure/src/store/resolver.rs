//! Host names for the HTTP library, by lookups that outlive an attempt to connect.

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tenure_runtime::lookup::lookup;

/// Looks names up. All clients of the process share one lookup of a name. It never uses the
/// addresses of before: another server may have them now.
#[derive(Debug)]
pub(super) struct Resolver;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = lookup(name.as_str(), 0).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
