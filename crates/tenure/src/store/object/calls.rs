//! Requests to a bucket, with what became of each told by what the caller does next.
//!
//! A server that ignores conditions would let two lead. So each process tries them on
//! an object of its own before its first write.

use std::fmt;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error as ClientError, ObjectMeta, PutPayload};
use tokio::sync::{OnceCell, Semaphore};

use super::bucket::{Bucket, Condition};
use super::classify::{self, Call, classify};
use super::settings::Settings;
use crate::error::StoreError;

/// The most objects that a listing takes in: some 100 MB of names.
const LISTED_MAX: usize = 250_000;

/// The requests to one bucket. Clones are the same.
#[derive(Clone)]
pub(super) struct Calls {
    bucket: Arc<dyn Bucket>,
    /// What may be shown of the URL.
    shown: Arc<str>,
    /// An object that is no register's.
    probe: Path,
    /// Set once it is known that the server heeds conditions.
    heeds_conditions: Arc<OnceCell<()>>,
    /// The turn to find that out.
    trial: Arc<Semaphore>,
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Without the credentials.
impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Calls {
    /// Conditions are tried on the object `probe`.
    pub(super) fn new(bucket: Arc<dyn Bucket>, settings: &Settings, probe: Path) -> Self {
        Self {
            bucket,
            shown: settings.to_string().into(),
            probe,
            heeds_conditions: Arc::default(),
            trial: Arc::new(Semaphore::new(1)),
        }
    }

    fn class(&self, error: &ClientError, call: Call) -> StoreError {
        classify(&self.shown, error, call)
    }

    /// Fails if there are no credentials to sign a request with.
    async fn sign(&self) -> Result<(), StoreError> {
        let credentials = self.bucket.credentials().await;
        credentials.map_err(|error| {
            let (why, advice) = (classify::words(&error), self.bucket.advice());
            StoreError::unavailable(format!("{self}: no credentials: {why}; {advice}"))
        })
    }

    /// What is in an object of at most so many bytes, and its tag.
    pub(super) async fn get(
        &self,
        object: &Path,
        bytes_max: usize,
    ) -> Result<Option<(Vec<u8>, String)>, StoreError> {
        self.sign().await?;
        let got = match self.bucket.read(object, bytes_max).await {
            Ok(got) => got,
            Err(error @ ClientError::NotFound { .. }) => {
                return match self.class(&error, Call::Write) {
                    no_bucket @ StoreError::Broken(_) => Err(no_bucket),
                    _ => Ok(None),
                };
            }
            Err(error) => return Err(self.class(&error, Call::Read)),
        };
        let Some(bytes) = got.bytes else {
            return Err(StoreError::broken(format!(
                "{self}: expected a register of at most {bytes_max} bytes in {object}, found an \
                 object of {}; delete it",
                got.size
            )));
        };
        Ok(Some((bytes, self.tag(got.tag)?)))
    }

    fn tag(&self, tag: Option<String>) -> Result<String, StoreError> {
        tag.ok_or_else(|| {
            let name = self.bucket.tag_name();
            StoreError::broken(format!(
                "{self}: expected {name} with each object, found none; use a server that gives \
                 them, without a proxy that changes answers"
            ))
        })
    }

    /// Stores bytes on a condition, once it is known that conditions are heeded; gives
    /// the new tag.
    pub(super) async fn put(
        &self,
        object: &Path,
        payload: PutPayload,
        condition: Condition<'_>,
    ) -> Result<String, StoreError> {
        self.sign().await?;
        self.know_conditions().await?;
        self.put_untried(object, payload, condition).await
    }

    /// Tries conditions unless that was done. The trial takes several round trips, which
    /// may be more than the caller waits for. So it goes on without its caller, one at a
    /// time.
    async fn know_conditions(&self) -> Result<(), StoreError> {
        if self.heeds_conditions.get().is_some() {
            return Ok(());
        }
        let turn = Arc::clone(&self.trial).acquire_owned().await;
        let turn = turn.map_err(StoreError::unavailable)?;
        let calls = self.clone();
        let trial = tokio::spawn(async move {
            let _turn = turn;
            let tried = calls
                .heeds_conditions
                .get_or_try_init(|| calls.try_conditions());
            tried.await.map(drop)
        });
        trial.await.map_err(StoreError::unavailable)?
    }

    async fn put_untried(
        &self,
        object: &Path,
        payload: PutPayload,
        condition: Condition<'_>,
    ) -> Result<String, StoreError> {
        // What no server can have given cannot be sent, either.
        let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        if let Condition::Tag(tag) = condition
            && !tag.bytes().all(is_plain)
        {
            return Err(StoreError::Conflict);
        }
        let stored = self.bucket.write(object, payload, condition).await;
        let tag = stored.map_err(|error| self.class(&error, Call::Write))?;
        // If there is none it is written, and under which tag is not known.
        self.tag(tag).map_err(StoreError::unknown)
    }

    /// Fails unless the server refuses what is not as expected. Nothing of a
    /// register is written.
    async fn try_conditions(&self) -> Result<(), StoreError> {
        let refuses = async |condition| {
            let payload = PutPayload::from_static(b"tenure tries conditions here\n");
            match self.put_untried(&self.probe, payload, condition).await {
                Err(StoreError::Conflict) => Ok(true),
                Ok(_) => Ok(false),
                // The write that waits for this was not sent.
                Err(StoreError::Unknown(why)) => Err(StoreError::Unavailable(why)),
                Err(other) => Err(other),
            }
        };
        // The first one may make it.
        let creates_once = refuses(Condition::Absent).await? || refuses(Condition::Absent).await?;
        if creates_once && refuses(Condition::Tag(self.bucket.stranger())).await? {
            return Ok(());
        }
        Err(StoreError::unfit(format!(
            "{self}: expected a server that refuses a write whose {} does not hold, found one \
             that carried it out; two would lead: use another server, or a newer one",
            self.bucket.condition_name()
        )))
    }

    /// All objects whose names begin so.
    pub(super) async fn listed(&self, beginning: &str) -> Result<Vec<ObjectMeta>, StoreError> {
        self.sign().await?;
        let (mut found, mut token) = (Vec::new(), None);
        loop {
            let page = self.bucket.page(beginning, token).await;
            let (objects, next) = page.map_err(|error| self.class(&error, Call::Read))?;
            found.extend(objects);
            if found.len() > LISTED_MAX {
                return Err(StoreError::broken(format!(
                    "{self}: expected at most {LISTED_MAX} objects below {beginning:?}, found \
                     more; give this store a prefix or a bucket of its own"
                )));
            }
            if next.is_none() {
                return Ok(found);
            }
            token = next;
        }
    }
}
