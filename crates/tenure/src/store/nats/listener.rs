//! Listening to what the stream tells of its messages.
//!
//! A consumer of the stream, made when something is first watched and forgotten by
//! the server when nothing listens to it, is told of each new message without its
//! value: the key, and the number that is the register's version. Nothing is believed
//! of either. While there is no consumer (no right to make one, a server that is
//! away), or one has missed messages, nothing is lost but time: changes are looked
//! for all the same.

use std::fmt;
use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use tenure_core::time::Instant;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;

use super::bucket::Bucket;
use super::client::NatsClient;
use crate::clock;
use crate::error::StoreError;
use crate::store::{Key, Version};

/// How long a consumer may be silent: it is to say that it lives three times in that.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// When to try again to listen.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How many hints are handed on at a time.
const HINTS_MAX: usize = 256;
/// The header by which a consumer that is silent says what it has told last.
const LAST_TOLD: &str = "Nats-Last-Consumer";

/// What listens, once it is asked for hints.
#[derive(Default)]
pub(super) struct Listener {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    consumer: Option<Consumer>,
    /// Makes one, whether anybody waits or not: where a round trip takes longer than
    /// those who ask for hints wait, none would ever be made.
    making: JoinSet<Result<Subscriber, StoreError>>,
    /// When another may be made, after a trouble.
    again: Option<Instant>,
}

/// A consumer that tells.
struct Consumer {
    messages: Subscriber,
    /// How many it has told of.
    told: u64,
}

/// What a message of a consumer is.
#[derive(PartialEq, Eq, Debug)]
enum ConsumerMessage {
    Hint(Key, Version),
    /// Of nothing.
    Nothing,
    /// One was missed, or the consumer has ended.
    Gap,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

impl Listener {
    /// Waits for hints. This may be dropped and called again at any time: what a
    /// consumer has told waits for the next call.
    pub(super) async fn hints(
        &self,
        client: &NatsClient,
        bucket: Bucket<'_>,
    ) -> Vec<(Key, Option<Version>)> {
        let mut state = self.state.lock().await;
        loop {
            if let Some(consumer) = &mut state.consumer {
                let hints = consumer.hints(bucket).await;
                if !hints.is_empty() {
                    return hints;
                }
                state.consumer = None;
                state.again = Some(clock::boot().after(AGAIN_AFTER));
            }
            if let Some(again) = state.again {
                sleep(again.since(clock::boot())).await;
                state.again = None;
            }
            if state.making.is_empty() {
                let client = client.clone();
                state.making.spawn(async move {
                    let made = timeout(SILENCE_MAX, client.consume()).await;
                    made.unwrap_or_else(|_| Err(StoreError::unavailable("no answer in time")))
                });
            }
            let why = match state.making.join_next().await {
                Some(Ok(Ok(messages))) => {
                    state.consumer = Some(Consumer { messages, told: 0 });
                    continue;
                }
                Some(Ok(Err(error))) => error.to_string(),
                Some(Err(error)) => error.to_string(),
                None => continue,
            };
            tracing::debug!("no hints of changes: {why}");
            state.again = Some(clock::boot().after(AGAIN_AFTER));
        }
    }
}

impl Consumer {
    /// Waits for hints; none if it tells no more.
    async fn hints(&mut self, bucket: Bucket<'_>) -> Vec<(Key, Option<Version>)> {
        let mut hints = Vec::new();
        loop {
            let message = if hints.is_empty() {
                timeout(SILENCE_MAX, self.messages.next())
                    .await
                    .ok()
                    .flatten()
            } else {
                // What has come already is handed on together. This waits for nothing,
                // so that no hint is lost where this is dropped.
                tokio::select! {
                    biased;
                    message = self.messages.next() => message,
                    () = std::future::ready(()) => None,
                }
            };
            let Some(message) = message else {
                return hints;
            };
            match self.told(&message, bucket) {
                ConsumerMessage::Hint(key, version) => hints.push((key, Some(version))),
                ConsumerMessage::Nothing => {}
                ConsumerMessage::Gap => return hints,
            }
            if hints.len() >= HINTS_MAX {
                return hints;
            }
        }
    }

    fn told(&mut self, message: &Message, bucket: Bucket<'_>) -> ConsumerMessage {
        if let Some(status) = message.status {
            let headers = message.headers.as_ref();
            let last = headers.and_then(|headers| headers.get(LAST_TOLD));
            let last = last.and_then(|text| text.as_str().parse::<u64>().ok());
            let lives =
                status == StatusCode::IDLE_HEARTBEAT && last.is_none_or(|it| it == self.told);
            return if lives {
                ConsumerMessage::Nothing
            } else {
                ConsumerMessage::Gap
            };
        }
        let numbers = message.reply.as_ref().and_then(|reply| numbers(reply));
        let Some([in_stream, in_consumer]) = numbers else {
            return ConsumerMessage::Nothing;
        };
        if in_consumer != self.told + 1 {
            return ConsumerMessage::Gap;
        }
        self.told = in_consumer;
        match bucket.key(&message.subject) {
            Some(key) => ConsumerMessage::Hint(key, Version::from_u64(in_stream)),
            None => ConsumerMessage::Nothing,
        }
    }
}

/// The number of a message in its stream, and in what its consumer has told: from
/// where it would be acknowledged.
fn numbers(reply: &str) -> Option<[u64; 2]> {
    let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
    // Stream, consumer, deliveries and these; newer servers put two more in front.
    let first = if tokens.len() > 7 { 5 } else { 3 };
    let number = |at: usize| tokens.get(at)?.parse().ok();
    Some([number(first)?, number(first + 1)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_where_a_message_would_be_acknowledged() {
        let old = "$JS.ACK.KV_b.Xyz.1.70.7.1700000000000000000.0";
        assert_eq!(numbers(old), Some([70, 7]));
        let new = "$JS.ACK._.hash.KV_b.Xyz.1.70.7.1700000000000000000.0.random";
        assert_eq!(numbers(new), Some([70, 7]));
        for other in ["_INBOX.x", "$JS.ACK.", "$JS.ACK.a.b.1.x.7.1.0"] {
            assert_eq!(numbers(other), None, "{other}");
        }
    }
}
