//! What differs between providers: where credentials are had, and which tag of an
//! object a write is conditional on.

use object_store::list::PaginatedListStore;
use object_store::{ObjectStore, Result, UpdateVersion};

use crate::store::BoxFuture;

/// The client of one bucket.
pub(super) trait Bucket: ObjectStore + PaginatedListStore {
    /// Has credentials, so that a failure to get some is told from one of the write
    /// that needs them.
    fn credentials(&self) -> BoxFuture<'_, Result<()>>;

    /// The tag that writes are conditional on, of those that an answer has.
    fn tag(&self, e_tag: Option<String>, version: Option<String>) -> Option<String>;

    /// The condition that an object has this tag.
    fn condition(&self, tag: String) -> UpdateVersion;

    /// A tag that no object has.
    fn stranger(&self) -> &'static str;

    /// Where credentials are found, for people.
    fn advice(&self) -> &'static str;
}
