//! The bearer token: in a file that somebody keeps fresh, or fixed.
//!
//! The kubelet writes a pod's token anew long before it ends, so a file is read again
//! after a minute, and at once when the server says that a token is not good any more.
//! A file that cannot be read leaves the token that was read last.
//!
//! Others may read such a file: the kubelet gives it mode 0644, in a volume that only
//! the pod has. So its mode is not looked at.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderValue;
use tenure_core::time::Instant;

use crate::error::StoreError;
use crate::store::password;
use crate::{clock, drive};

/// How long a token is used before its file is read again, as client-go does.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// What stands before the token in its header.
const BEARER: &str = "Bearer ";
/// The longest token, in bytes.
const BYTES_MAX: usize = 64 * 1024;

/// A token, or none. Clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Token(Option<Arc<Source>>);

struct Source {
    /// None if the token is fixed.
    file: Option<PathBuf>,
    inner: Mutex<Read>,
}

#[derive(Clone)]
struct Read {
    header: HeaderValue,
    at: Instant,
}

impl Token {
    /// The token in a file, which is read again.
    pub(super) fn in_file(path: &Path) -> Result<Self, StoreError> {
        let header = read(path)?;
        Ok(Self::of(Some(path.to_owned()), header))
    }

    /// This token, for ever.
    pub(super) fn fixed(token: &str) -> Result<Self, StoreError> {
        Ok(Self::of(None, header("a kubeconfig", token)?))
    }

    fn of(file: Option<PathBuf>, header: HeaderValue) -> Self {
        let at = clock::boot();
        let inner = Mutex::new(Read { header, at });
        Self(Some(Arc::new(Source { file, inner })))
    }

    /// The header to send, if there is a token.
    pub(super) async fn header(&self) -> Option<HeaderValue> {
        let source = self.0.as_ref()?;
        let last = source.lock().clone();
        if clock::boot().since(last.at) < READ_AGAIN {
            return Some(last.header);
        }
        Some(source.read_again().await.unwrap_or(last.header))
    }

    /// The header to send after this one was refused; `None` if there is no other.
    pub(super) async fn after(&self, refused: Option<&HeaderValue>) -> Option<HeaderValue> {
        let source = self.0.as_ref()?;
        let header = source.read_again().await?;
        (Some(&header) != refused).then_some(header)
    }

    /// What a server says, without the token.
    pub(super) fn hidden(&self, said: &[u8]) -> Vec<u8> {
        let Some(source) = &self.0 else {
            return said.to_vec();
        };
        let header = source.lock().header.clone();
        let token = header.as_bytes().strip_prefix(BEARER.as_bytes());
        password::hidden(said, token.unwrap_or(header.as_bytes()))
    }
}

impl Source {
    fn lock(&self) -> MutexGuard<'_, Read> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file, if there is one, where that may take its time.
    async fn read_again(&self) -> Option<HeaderValue> {
        let path = self.file.clone()?;
        let reading = drive::background().spawn_blocking(move || read(&path));
        let read = reading.await.ok()?;
        let mut inner = self.lock();
        // Not again with each call, whatever came of it.
        inner.at = clock::boot();
        match read {
            Ok(header) => {
                inner.header = header.clone();
                Some(header)
            }
            Err(error) => {
                tracing::warn!("{error}; the token that was read before stays in use");
                None
            }
        }
    }
}

fn read(path: &Path) -> Result<HeaderValue, StoreError> {
    let text = super::files::read("token_file", path)?;
    header(&path.display().to_string(), &String::from_utf8_lossy(&text))
}

/// The header of a token. It is not repeated in errors: it is a secret.
fn header(source: &str, token: &str) -> Result<HeaderValue, StoreError> {
    let wrong = || StoreError::broken(format!("{source}: expected a token, found other text"));
    let token = token.trim();
    if token.is_empty() || token.len() > BYTES_MAX {
        return Err(wrong());
    }
    let mut header = HeaderValue::from_str(&format!("{BEARER}{token}")).map_err(|_| wrong())?;
    header.set_sensitive(true);
    Ok(header)
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a token" } else { "none" })
    }
}
