//! What the other hosts of a URL say while a handshake with one of them goes on.

use std::time::Duration;

use tenure_core::time::Instant;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock;

/// How much longer a handshake may take for what the other hosts say. They are asked
/// while it goes on, so it takes longer only where one of them is silent.
pub(in crate::store) const OTHERS_WITHIN: Duration = Duration::from_millis(500);

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
