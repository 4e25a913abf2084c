//! How clients get to the machine, and how many at once.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::HeaderMap;
use tenure_core::alpo::{Answer, Ask, Node, Refusal};
use tokio::sync::oneshot;

use super::config::Config;
use super::house::House;
use super::inbox::{Event, Inbox, Reply, Told};
use super::pages::Pages;
use super::shared::Shared;
use super::tokens::{Caller, Tokens};
use super::watchers::Watchers;
use crate::api::v1;

/// Everything that serves clients has one of these.
#[derive(Clone, Debug)]
pub(super) struct Door {
    pub(super) inbox: Arc<Inbox>,
    pub(super) shared: Arc<Shared>,
    pub(super) watchers: Arc<Watchers>,
    pub(super) house: Arc<House>,
    pub(super) tokens: Tokens,
    /// What keeps web pages out; with tokens there is no need.
    pub(super) pages: Option<Arc<Pages>>,
    pub(super) started: tenure_core::time::Instant,
    under_way: Arc<AtomicUsize>,
    most: usize,
    /// Sessions of one token, or of one address, at most.
    pub(super) sessions_each: u64,
}

/// Counts one request as under way until it is dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a question may go unanswered: longer than any election, so that
/// only a server that has come to a stop lets it pass.
const WITHIN: Duration = Duration::from_secs(60);

impl Door {
    pub(super) fn new(
        config: &Config,
        shared: &Arc<Shared>,
        inbox: &Arc<Inbox>,
        watchers: &Arc<Watchers>,
        tokens: Tokens,
    ) -> Self {
        Self {
            inbox: Arc::clone(inbox),
            shared: Arc::clone(shared),
            watchers: Arc::clone(watchers),
            house: Arc::default(),
            tokens,
            pages: Pages::new(config).map(Arc::new),
            started: crate::clock::boot(),
            under_way: Arc::default(),
            most: config.requests,
            sessions_each: config.sessions_each,
        }
    }

    /// Who calls, by what the call carries.
    pub(super) fn caller(&self, headers: &HeaderMap, address: IpAddr) -> Caller {
        self.tokens.caller(headers, address, &self.shared)
    }

    /// Leave to have one more request under way.
    pub(super) fn permit(&self) -> Option<Permit> {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(Arc::clone(&self.under_way));
        if before >= self.most {
            self.shared.metrics.refused();
            return None;
        }
        Some(permit)
    }

    /// Asks the machine and waits for its answer.
    pub(super) async fn ask(&self, ask: Ask) -> Told {
        let Some(_permit) = self.permit() else {
            let answer = Answer::Refused(Refusal::Busy);
            return Told { answer, at: None };
        };
        let (sender, answer) = oneshot::channel();
        self.inbox.put(Event::Asked(ask, Reply::One(sender)));
        Self::answer(answer).await
    }

    /// What came of something that was asked.
    pub(super) async fn answer(answer: oneshot::Receiver<Told>) -> Told {
        let answer = tokio::time::timeout(WITHIN, answer).await;
        let interrupted = Told {
            answer: Answer::Interrupted,
            at: None,
        };
        answer.ok().and_then(Result::ok).unwrap_or(interrupted)
    }

    /// Looks at the machine.
    ///
    /// # Errors
    /// [`v1::Cause::NotReady`] while there is none.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Node) -> T + Send + 'static,
    ) -> Result<T, v1::Error> {
        let (sender, seen) = oneshot::channel();
        self.inbox.put(Event::Look(Box::new(move |node| {
            if let Some(node) = node {
                let _ = sender.send(look(node));
            }
        })));
        seen.await.map_err(|_| v1::Error {
            cause: v1::Cause::NotReady.into(),
            message: self.shared.standing.borrow().waiting.clone(),
            ..v1::Error::default()
        })
    }
}
