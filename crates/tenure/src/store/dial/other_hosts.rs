//! What the other hosts of a URL say while a handshake with one of them goes on.

use std::time::Duration;

use tenure_core::time::Instant;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock;
use crate::error::StoreError;

/// How much longer a handshake may take for what the other hosts say. They are asked
/// while it goes on, so it takes longer only where one of them is silent.
pub(in crate::store) const OTHERS_WITHIN: Duration = Duration::from_millis(500);

/// What a host has answered, if it can be compared. One that a person has to do something
/// about is warned of: it may take writes all the same.
pub(in crate::store) fn comparable<T>(host: &str, answer: Result<T, StoreError>) -> Option<T> {
    if let Err(StoreError::Broken(why)) = &answer {
        tracing::warn!("{host} is not compared with the other hosts of the store's URL: {why}");
    }
    answer.ok()
}

/// Asks each of the hosts but that of number `at`, to which the handshake goes. To be
/// called on the background thread.
#[cfg(any(feature = "consul", feature = "kubernetes", feature = "redis"))]
pub(in crate::store) fn ask_others<T, F>(
    hosts: &[String],
    at: usize,
    ask: impl Fn(usize) -> F,
) -> JoinSet<Option<(String, T)>>
where
    T: Send + 'static,
    F: Future<Output = Result<Option<T>, StoreError>> + Send + 'static,
{
    let mut asked = JoinSet::new();
    for (other, host) in hosts.iter().enumerate().filter(|(other, _)| *other != at) {
        let (host, answer) = (host.clone(), ask(other));
        asked.spawn(async move {
            let answer = comparable(&host, answer.await).flatten();
            answer.map(|answer| (host, answer))
        });
    }
    asked
}

/// The answers that come before `until`. A host that has not answered by then is not
/// waited for.
pub(in crate::store) async fn answers_of<T: 'static>(
    mut asked: JoinSet<Option<T>>,
    until: Instant,
) -> Vec<T> {
    let mut answers = Vec::new();
    while let Ok(Some(done)) = timeout(until.since(clock::boot()), asked.join_next()).await {
        answers.extend(done.ok().flatten());
    }
    answers
}
