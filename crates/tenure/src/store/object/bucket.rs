//! What differs between providers: where credentials are had. All of them tell an
//! object's state by its `ETag`.

use object_store::list::PaginatedListStore;
use object_store::{ObjectStore, Result};

use crate::store::BoxFuture;

/// The client of one bucket.
pub(super) trait Bucket: ObjectStore + PaginatedListStore {
    /// Has credentials, so that a failure to get some is told from one of the write
    /// that needs them.
    fn credentials(&self) -> BoxFuture<'_, Result<()>>;

    /// A tag that no object has.
    fn stranger(&self) -> &'static str;

    /// Where credentials are found, for people.
    fn advice(&self) -> &'static str;
}
