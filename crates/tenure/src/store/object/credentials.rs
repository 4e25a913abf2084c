//! Credentials that are used on while no new ones can be had.
//!
//! Those of an instance or a container end after some hours. The client asks for new ones
//! five minutes before that, and each call would wait for the answer: while the server
//! that gives them is away no leader could renew, with good credentials at hand. So they
//! are asked for beside the calls, and a call goes on with what there is. Credentials
//! that have ended are refused by the store itself.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use object_store::{CredentialProvider, Result};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::classify;
use crate::store::panics;

/// How long a call waits for new credentials while it has some. Those that are not due
/// yet come at once.
const WAIT_MAX: Duration = Duration::from_millis(200);
/// How long new ones are waited for before they are asked for again.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Gives what `source` gives, and the last of it while that gives nothing.
pub(super) struct Kept<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    source: Arc<dyn CredentialProvider<Credential = T>>,
    state: Mutex<State<T>>,
}

struct State<T> {
    last: Option<Arc<T>>,
    /// Asks for others.
    asking: Option<AbortHandle>,
    has_failed: bool,
}

impl<T: Send + Sync + 'static> Kept<T> {
    pub(super) fn new(source: Arc<dyn CredentialProvider<Credential = T>>) -> Self {
        let state = State {
            last: None,
            asking: None,
            has_failed: false,
        };
        Self {
            shared: Arc::new(Shared {
                source,
                state: Mutex::new(state),
            }),
        }
    }

    async fn get(&self) -> Result<Arc<T>> {
        let (last, asked) = {
            let mut state = self.shared.state();
            let last = state.last.clone();
            let is_asking = state.asking.as_ref().is_some_and(|it| !it.is_finished());
            match last {
                Some(last) if is_asking => return Ok(last),
                // Nothing can be done without.
                None => (None, None),
                Some(last) => {
                    let shared = Arc::clone(&self.shared);
                    let asked = tokio::spawn(async move { shared.ask().await });
                    state.asking = Some(asked.abort_handle());
                    (Some(last), Some(asked))
                }
            }
        };
        let (Some(last), Some(asked)) = (last, asked) else {
            let first = caught(self.shared.source.get_credential()).await?;
            self.shared.state().last = Some(Arc::clone(&first));
            return Ok(first);
        };
        match timeout(WAIT_MAX, asked).await {
            Ok(Ok(Some(new))) => Ok(new),
            _ => Ok(last),
        }
    }
}

/// Asks for credentials. A panic on the way is an error of it: the library panics where a
/// token is said to live for longer than its clock can tell.
async fn caught<T>(asking: impl Future<Output = Result<T>>) -> Result<T> {
    let asked = panics::caught(async { Ok(asking.await) }).await;
    asked.unwrap_or_else(|panic| {
        Err(object_store::Error::Generic {
            store: "credentials",
            source: panic.into(),
        })
    })
}

impl<T> Shared<T> {
    /// Asks the source; says once that it gives nothing.
    async fn ask(&self) -> Option<Arc<T>> {
        let why = match timeout(ANSWER_WITHIN, caught(self.source.get_credential())).await {
            Ok(Ok(new)) => {
                let mut state = self.state();
                state.last = Some(Arc::clone(&new));
                state.has_failed = false;
                return Some(new);
            }
            Ok(Err(error)) => classify::words(&error),
            Err(_) => format!("no answer within {} s", ANSWER_WITHIN.as_secs()),
        };
        if !std::mem::replace(&mut self.state().has_failed, true) {
            tracing::warn!("no new credentials, the last ones are used on: {why}");
        }
        None
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync + 'static> CredentialProvider for Kept<T> {
    type Credential = T;

    fn get_credential<'a, 'b>(&'a self) -> Pin<Box<dyn Future<Output = Result<Arc<T>>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.get())
    }
}

/// Without the credentials.
impl<T> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// What a source does when it is asked next.
    #[derive(Clone, Copy, Debug)]
    enum Next {
        Gives(u32),
        Fails,
        Panics,
        IsMute,
    }

    #[derive(Debug)]
    struct Source(Mutex<Next>);

    impl Source {
        fn then(&self, next: Next) {
            *self.0.lock().expect("no panic") = next;
        }
    }

    impl CredentialProvider for Source {
        type Credential = u32;

        fn get_credential<'a, 'b>(
            &'a self,
        ) -> Pin<Box<dyn Future<Output = Result<Arc<u32>>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            let next = *self.0.lock().expect("no panic");
            Box::pin(async move {
                match next {
                    Next::Gives(what) => Ok(Arc::new(what)),
                    Next::Fails => Err(object_store::Error::NotImplemented {
                        operation: "to give some".into(),
                        implementer: "it is away".into(),
                    }),
                    Next::Panics => panic!("overflow when adding duration to instant"),
                    Next::IsMute => pending().await,
                }
            })
        }
    }

    #[tokio::test]
    async fn the_last_credentials_are_used_while_no_others_come() {
        let source = Arc::new(Source(Mutex::new(Next::Fails)));
        let kept = Kept::new(Arc::clone(&source) as Arc<dyn CredentialProvider<Credential = u32>>);
        for next in [Next::Fails, Next::Panics] {
            source.then(next);
            assert!(kept.get().await.is_err(), "there are none yet");
        }
        for (next, given) in [
            (Next::Gives(1), 1),
            (Next::Fails, 1),
            (Next::Panics, 1),
            (Next::Gives(2), 2),
            (Next::IsMute, 2),
            // One asks still.
            (Next::Gives(3), 2),
        ] {
            source.then(next);
            let got = timeout(WAIT_MAX * 5, kept.get()).await.expect("soon");
            assert_eq!(*got.expect("some"), given, "{next:?}");
        }
        let asking = kept.shared.state().asking.take().expect("a task");
        asking.abort();
        assert_eq!(*kept.get().await.expect("some"), 3);
    }
}
