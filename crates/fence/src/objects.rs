//! A fence around one object of an object store (S3, Azure's Blob service and
//! all that `object_store` has conditional writes for).
//!
//! An object store refuses a write whose condition does not hold, and that is
//! all it can check. So the term is made a part of the condition: it is the
//! first line of the object, and each write names, by its `ETag`, the very
//! object that it replaces.
//!
//! ```text
//! term 8
//! …the content
//! ```
//!
//! A new leader *claims* the object before it reads it: it replaces the object by
//! one of its own term and the same content. Of two writes on one condition a
//! store does one. If an earlier leader's write was first, the claim fails and
//! is tried again on what was written. If the claim was first, the earlier
//! leader's condition names an object that is not there any more.
//!
//! The term is in the bytes and not in the metadata for one reason: on S3 the
//! `ETag` of an object is a digest of its bytes. The claim of an object whose
//! bytes stay as they are would leave its `ETag` as it is, and with it the
//! condition of the earlier leader.
//!
//! Left out: several objects. Each has its own condition. A leader that writes
//! many gives them names with its term in them (`data/8/…`), and claims the one
//! object that says which of them count. A store that ignores conditions (some
//! servers of the S3 protocol do) fences nothing.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion,
};

use crate::{Deposed, Term};

/// The longest content, in bytes: a claim reads it and writes it again.
pub const CONTENT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The longest first line, in bytes.
const LINE_BYTES_MAX: usize = 32;
/// How often a claim is tried while others write: each time another write was
/// done, and only leaders of some term write.
const TRIES_MAX: usize = 64;

/// An object that was claimed in a term.
#[derive(Debug)]
pub struct Claimed {
    store: Arc<dyn ObjectStore>,
    path: Path,
    term: Term,
    content: Bytes,
    /// Which object the next write replaces; `None` after one of unknown outcome.
    version: Option<UpdateVersion>,
}

/// Why an object was not claimed or written, by what the caller does next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A later leader has claimed it; nothing was written. Stop.
    #[error(transparent)]
    Deposed(#[from] Deposed),
    /// It was written in this term meanwhile: by another claim, or by a try of
    /// this write whose answer was lost. Claim again, and look at the content.
    #[error("the object was written in this term meanwhile; claim it again")]
    Conflict,
    /// What is there has no term in its first line, or is too long. A person
    /// has to look.
    #[error("{0}")]
    Damaged(String),
    /// The store has not answered as it should. A write may have been done:
    /// claim again, and look at the content.
    #[error("no certain answer from the object store: {0}")]
    Store(StoreError),
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Claims an object for the leader of `term`; it is made, without content, if it
/// is missing. Nothing may be read of it in this term before.
///
/// # Errors
/// [`Error`]. To claim again is always right.
pub async fn claim(store: Arc<dyn ObjectStore>, path: Path, term: Term) -> Result<Claimed, Error> {
    for _ in 0..TRIES_MAX {
        let (mode, content) = match read(&store, &path).await? {
            Some((seen, _, _)) if seen > term => {
                let seen = Some(seen);
                return Err(Deposed { term, seen }.into());
            }
            Some((seen, content, version)) if seen == term => {
                return Ok(Claimed {
                    store,
                    path,
                    term,
                    content,
                    version: Some(version),
                });
            }
            Some((_, content, version)) => (PutMode::Update(version), content),
            None => (PutMode::Create, Bytes::new()),
        };
        if let Some(version) = put(&store, &path, term, &content, mode).await? {
            return Ok(Claimed {
                store,
                path,
                term,
                content,
                version: Some(version),
            });
        }
    }
    Err(Error::Conflict)
}

impl Claimed {
    /// What is in it: as it was claimed, or written last.
    pub fn content(&self) -> &Bytes {
        &self.content
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// [`Error`]. After [`Error::Store`] and [`Error::Conflict`] this claim
    /// writes nothing more.
    pub async fn write(&mut self, content: Bytes) -> Result<(), Error> {
        // One that is not known any more is no condition.
        let version = self.version.take().ok_or(Error::Conflict)?;
        let mode = PutMode::Update(version);
        let written = put(&self.store, &self.path, self.term, &content, mode).await?;
        if let Some(version) = written {
            self.version = Some(version);
            self.content = content;
            return Ok(());
        }
        let term = self.term;
        match read(&self.store, &self.path).await? {
            Some((seen, _, _)) if seen == term => Err(Error::Conflict),
            // It is another one's, or was removed: this one has not its term.
            found => {
                let seen = found.map(|(seen, _, _)| seen);
                Err(Deposed { term, seen }.into())
            }
        }
    }
}

type Found = (Term, Bytes, UpdateVersion);

async fn read(store: &Arc<dyn ObjectStore>, path: &Path) -> Result<Option<Found>, Error> {
    let got = match store.get(path).await {
        Err(StoreError::NotFound { .. }) => return Ok(None),
        got => got?,
    };
    let damaged = |expected: &str| {
        Error::Damaged(format!(
            "{path}: expected {expected}, found another object; remove it, or write one with the \
             highest term that has led"
        ))
    };
    let most = CONTENT_BYTES_MAX + LINE_BYTES_MAX;
    if !usize::try_from(got.meta.size).is_ok_and(|it| it <= most) {
        return Err(damaged("an object of at most 64 MiB"));
    }
    let version = UpdateVersion {
        e_tag: got.meta.e_tag.clone(),
        version: got.meta.version.clone(),
    };
    // Without a tag no condition can be made, and a weak one meets none.
    let strong = |tag: &String| !tag.starts_with("W/");
    if !version.e_tag.as_ref().is_some_and(strong) {
        return Err(damaged("an object with a strong ETag"));
    }
    let bytes = got.bytes().await?;
    let (term, content) = parse(&bytes).ok_or_else(|| damaged("`term N` in the first line"))?;
    Ok(Some((term, content, version)))
}

/// Writes on a condition; `None` if it does not hold.
async fn put(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    term: Term,
    content: &Bytes,
    mode: PutMode,
) -> Result<Option<UpdateVersion>, Error> {
    if content.len() > CONTENT_BYTES_MAX {
        return Err(Error::Damaged(format!(
            "{path}: expected a content of at most {CONTENT_BYTES_MAX} bytes, found {}",
            content.len()
        )));
    }
    let line = format!("term {term}\n");
    let mut bytes = BytesMut::with_capacity(line.len() + content.len());
    bytes.extend_from_slice(line.as_bytes());
    bytes.extend_from_slice(content);
    let put = store.put_opts(path, bytes.freeze().into(), PutOptions::from(mode));
    match put.await {
        Ok(put) => Ok(Some(put.into())),
        Err(
            StoreError::Precondition { .. }
            | StoreError::AlreadyExists { .. }
            // It was removed; there is nothing to replace.
            | StoreError::NotFound { .. },
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The term of an object, and its content.
fn parse(bytes: &Bytes) -> Option<(Term, Bytes)> {
    let head = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let end = head.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&head[..end]).ok()?;
    let term = Term::new(line.strip_prefix("term ")?.parse().ok()?)?;
    let is_plain = line == format!("term {term}");
    is_plain.then(|| (term, bytes.slice(end + 1..)))
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn term(number: u64) -> Term {
        Term::new(number).expect("a term")
    }

    async fn claimed(store: &Arc<InMemory>, number: u64) -> Result<Claimed, Error> {
        claim(Arc::clone(store) as _, Path::from("state"), term(number)).await
    }

    #[tokio::test]
    async fn a_claim_refuses_the_earlier_leader() {
        let store = Arc::new(InMemory::new());
        let mut old = claimed(&store, 7).await.expect("claimed");
        old.write(Bytes::from_static(b"paid 1"))
            .await
            .expect("written");
        let mut new = claimed(&store, 8).await.expect("claimed");
        assert_eq!(new.content(), "paid 1");
        let refused = old.write(Bytes::from_static(b"paid 2")).await;
        assert!(matches!(refused, Err(Error::Deposed(it)) if it.seen == Some(term(8))));
        // Nor does it claim it again.
        let refused = claimed(&store, 7).await;
        assert!(matches!(refused, Err(Error::Deposed(_))), "{refused:?}");
        new.write(Bytes::from_static(b"paid 3"))
            .await
            .expect("written");
        let again = claimed(&store, 8).await.expect("claimed");
        assert_eq!(again.content(), "paid 3");
    }

    #[tokio::test]
    async fn two_claims_of_one_term_do_not_overwrite_each_other() {
        let store = Arc::new(InMemory::new());
        let mut one = claimed(&store, 7).await.expect("claimed");
        let mut two = claimed(&store, 7).await.expect("claimed");
        one.write(Bytes::from_static(b"one"))
            .await
            .expect("written");
        let refused = two.write(Bytes::from_static(b"two")).await;
        assert!(matches!(refused, Err(Error::Conflict)), "{refused:?}");
        let refused = two.write(Bytes::from_static(b"two")).await;
        assert!(matches!(refused, Err(Error::Conflict)), "{refused:?}");
        assert_eq!(claimed(&store, 7).await.expect("claimed").content(), "one");
    }

    #[tokio::test]
    async fn what_has_no_term_is_left_alone() {
        let store = Arc::new(InMemory::new());
        let path = Path::from("state");
        for bytes in [
            "",
            "term 7",
            "term 07\n",
            "{}",
            "term x\n",
            &"term 1".repeat(99),
        ] {
            let put = store.put(&path, bytes.to_owned().into()).await;
            put.expect("written");
            let refused = claimed(&store, 9).await;
            assert!(
                matches!(refused, Err(Error::Damaged(_))),
                "{bytes:?}: {refused:?}"
            );
        }
        store.put(&path, "term 7\n".into()).await.expect("written");
        let mut claim = claimed(&store, 9).await.expect("claimed");
        // One that was removed is not made again by a write.
        store.delete(&path).await.expect("removed");
        let refused = claim.write(Bytes::from_static(b"x")).await;
        assert!(matches!(refused, Err(Error::Deposed(it)) if it.seen.is_none()));
    }
}
