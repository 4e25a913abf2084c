//! The agent's side of the control socket: a connection has one request and the
//! command that waits for it.
//!
//! An agent that has taken a request does it or refuses it, also when the command
//! has gone. The request may be on its way to the store at that moment, where it
//! cannot be taken back; so it cannot be taken back at any moment. Only an agent
//! that ends forgets a request that is not *in the view* yet. What comes after
//! that, until the workload runs or has ended, is waited for only while the
//! command waits.
//!
//! A command waits until its request is done. If something keeps the agent from
//! its group (the store does not answer, the view cannot be read), the agent
//! tells the command so. It ends the command with that reason when the trouble
//! has lasted for the command's `--timeout`, or when no view has had the request
//! for as long. Without trouble the command waits without a limit: a quorum may
//! take days.
//!
//! Limits: [`CONNECTIONS_MAX`] commands are served at a time, more wait.
//! [`PENDING_MAX`] requests may be pending, those of commands that have gone
//! included; more are refused.
//!
//! A connection has its place among the commands before its request has come. So
//! a process that connects and says nothing could keep the place, and 64 of them
//! could keep out every command. A connection whose request has not come whole
//! within [`REQUEST_WITHIN`] is closed. While a connection waits for a place,
//! each of the others has [`REQUEST_WITHIN_WHEN_FULL`], which is less than the
//! time that the command waits for its greeting.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::control::{Answer, DEFAULT_TIMEOUT, RequestEnvelope};
use super::log_rate_limit::LogRateLimit;
use super::messages::Connection;
use super::peer_check::check_peer;
use super::pending_request::PendingRequest;
use super::request_handler::{RequestFailure, RequestHandler, RequestResult, Trouble};

/// How many commands are served at a time.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// How many requests may be pending: not in the view yet, and not refused.
pub(super) const PENDING_MAX: usize = 1_024;
/// How long a request may take to come whole. A `tenure drain` that names no node
/// is greeted by each agent of the group before it asks one, and waits for each
/// that does not greet: 3 s.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// The same while all places are taken and another connection waits for one.
const REQUEST_WITHIN_WHEN_FULL: Duration = Duration::from_secs(1);
/// The agent tells a command after so long that no view has its request yet,
/// although nothing has failed.
const NOTE_AFTER: Duration = Duration::from_secs(1);
/// What the agent says then.
const NOT_IN_VIEW: &str = "no view has it yet: the store is slow to answer, or does not";

/// Serves until this is dropped.
pub(super) async fn serve(listener: UnixListener, handler: Arc<RequestHandler>) {
    let is_full = watch::Sender::new(false);
    let log_rate_limit = Arc::new(LogRateLimit::default());
    let strangers = LogRateLimit::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors: those that are open will end.
                tracing::warn!("the control socket: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(stream) = refuse_stranger(stream, &strangers) else {
            continue;
        };
        let permits = Arc::clone(&handler.connection_permits);
        is_full.send_replace(permits.available_permits() == 0);
        let Ok(connection_permit) = permits.acquire_owned().await else {
            return;
        };
        is_full.send_replace(false);
        let (handler, is_full) = (Arc::clone(&handler), is_full.subscribe());
        let log_rate_limit = Arc::clone(&log_rate_limit);
        tokio::spawn(async move {
            let mut connection = Connection::new(stream);
            match first_request(&mut connection, is_full, REQUEST_WITHIN).await {
                Ok(Some(request)) => {
                    serve_request(connection, request, &handler, connection_permit).await;
                }
                Ok(None) => {}
                Err(FirstRequestError::Misread(text)) => refuse(connection, text, true).await,
                Err(FirstRequestError::Late(text)) => {
                    if log_rate_limit.should_log(clock::boot()) {
                        tracing::warn!(
                            "a connection to the control socket is closed: {text}; what else is \
                             closed for this within a minute is not logged"
                        );
                    }
                    refuse(connection, text, false).await;
                }
            }
        });
    }
}

/// The stream, unless another user than the agent's or root is at its other end.
/// The agent sends that user the reason, does not wait until it is read, and gives the
/// connection no place.
fn refuse_stranger(stream: UnixStream, log_rate_limit: &LogRateLimit) -> Option<UnixStream> {
    let Err(refused) = check_peer(&stream) else {
        return Some(stream);
    };
    if log_rate_limit.should_log(clock::boot()) {
        tracing::warn!(
            "a connection to the control socket is refused: {refused}; close the agent's \
             directory to others again (chmod 700). What else is refused for this within a \
             minute is not logged"
        );
    }
    let text = refused.advice();
    Connection::new(stream).send_last(&Answer::Failed {
        text,
        usage: true,
        gave_up: false,
    });
    None
}

/// Why a connection has no request.
enum FirstRequestError {
    Misread(String),
    Late(String),
}

/// Greets, and reads the request; `None` at the end of the connection. The
/// request may take `within` to come, and no more than
/// [`REQUEST_WITHIN_WHEN_FULL`] while another connection waits for a place.
async fn first_request(
    connection: &mut Connection,
    mut is_full: watch::Receiver<bool>,
    within: Duration,
) -> Result<Option<RequestEnvelope>, FirstRequestError> {
    connection.queue(&Answer::Hello);
    let crowded = REQUEST_WITHIN_WHEN_FULL.min(within);
    let out = async {
        tokio::time::sleep(crowded).await;
        // Without a sender no connection comes any more.
        tokio::select! {
            Ok(_) = is_full.wait_for(|is_full| *is_full) => format!(
                "expected a whole request within {crowded:?} while all {CONNECTIONS_MAX} places \
                 for commands are taken and another command waits, found none; ask again"
            ),
            () = tokio::time::sleep(within.saturating_sub(crowded)) => format!(
                "expected a whole request within {within:?}, found none; ask again"
            ),
        }
    };
    tokio::select! {
        biased;
        request = connection.next() => request.map_err(|error| {
            let text = format!("expected a request that this version understands: {error}");
            FirstRequestError::Misread(text)
        }),
        text = out => Err(FirstRequestError::Late(text)),
    }
}

async fn serve_request(
    mut connection: Connection,
    RequestEnvelope { within_ms, request }: RequestEnvelope,
    handler: &RequestHandler,
    connection_permit: OwnedSemaphorePermit,
) {
    let Ok(pending_permit) = Arc::clone(&handler.pending_permits).try_acquire_owned() else {
        let text = format!(
            "expected at most {PENDING_MAX} requests at a time, found that so many wait for the \
             store; ask again when it answers"
        );
        return refuse(connection, text, false).await;
    };
    let asked = request.to_string();
    let within = within_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis);
    let (pending, mut notes) = PendingRequest::new();
    let mut work = std::pin::pin!(handler.handle(request, &pending));
    let last = {
        let mut timed_out = std::pin::pin!(handler.wait_for_timeout(&pending, within));
        loop {
            tokio::select! {
                answer = &mut work => break Some(last_answer(answer)),
                Some(text) = notes.recv() => connection.queue(&Answer::Note { text }),
                RequestFailure { text, usage } = &mut timed_out => {
                    while let Ok(text) = notes.try_recv() {
                        connection.queue(&Answer::Note { text });
                    }
                    let gave_up = true;
                    connection.queue(&Answer::Failed { text, usage, gave_up });
                    let _ = connection.flush().await;
                    break None;
                }
                // A command sends nothing more. Its end is the end of waiting.
                more = connection.next::<RequestEnvelope>() => if !matches!(more, Ok(Some(_))) {
                    break None;
                },
            }
        }
    };
    if let Some(last) = last {
        while let Ok(text) = notes.try_recv() {
            connection.queue(&Answer::Note { text });
        }
        connection.queue(&last);
        let _ = connection.flush().await;
        return;
    }
    drop((connection, connection_permit, notes));
    let mut in_view = pending.in_view.subscribe();
    tokio::select! {
        biased;
        _ = in_view.wait_for(|in_view| *in_view) => {}
        answer = work => if let Err(RequestFailure { text, .. }) = answer {
            tracing::warn!("`{asked}`, for which nobody waits any more, was not done: {text}");
        },
    }
    drop(pending_permit);
}

async fn refuse(mut connection: Connection, text: String, usage: bool) {
    let gave_up = false;
    connection.queue(&Answer::Failed {
        text,
        usage,
        gave_up,
    });
    let _ = connection.flush().await;
}

fn last_answer(answer: RequestResult) -> Answer {
    match answer {
        Ok((text, object)) => Answer::Done { text, object },
        Err(RequestFailure { text, usage }) => Answer::Failed {
            text,
            usage,
            gave_up: false,
        },
    }
}

impl RequestHandler {
    /// Notes what keeps the agent from its group. Returns when that has lasted too
    /// long, or when the request has not got into the view for as long.
    async fn wait_for_timeout(&self, pending: &PendingRequest, within: Duration) -> RequestFailure {
        let mut trouble = self.trouble.subscribe();
        let mut in_view = pending.in_view.subscribe();
        let (mut since, mut slow) = (None, false);
        loop {
            let seen = trouble.borrow_and_update().clone();
            let is_in_view = *in_view.borrow_and_update();
            if let Some(Trouble { why, .. }) = &seen {
                pending.send_note_once(&format!("waiting: {why}"));
            }
            since = if is_in_view && seen.is_none() {
                None
            } else {
                since.or_else(|| Some(clock::boot()))
            };
            let over = async {
                match since {
                    Some(since) => {
                        tokio::time::sleep(since.after(within).since(clock::boot())).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The handler and the pending request hold the senders.
                _ = trouble.changed() => {}
                _ = in_view.changed() => {}
                () = tokio::time::sleep(NOTE_AFTER), if !is_in_view && !slow => {
                    slow = true;
                    if self.manager.group_state().borrow().member && seen.is_none() {
                        pending.send_note_once(&format!("waiting: {NOT_IN_VIEW}"));
                    }
                }
                () = over => return self.timeout_failure(seen, is_in_view, within),
            }
        }
    }

    fn timeout_failure(
        &self,
        trouble: Option<Trouble>,
        in_view: bool,
        within: Duration,
    ) -> RequestFailure {
        let usage = trouble.as_ref().is_some_and(|it| it.broken);
        let member = self.manager.group_state().borrow().member;
        let found = match (trouble, member) {
            (Some(trouble), _) => trouble.why,
            (None, false) => "the agent has not joined its group yet".to_owned(),
            (None, true) => NOT_IN_VIEW.to_owned(),
        };
        let then = if in_view {
            "it is in the view; see `tenure ps`"
        } else {
            "it is not taken back: the agent does or refuses it when that is over, unless it \
             ends before; see `tenure ps`"
        };
        let text = format!(
            "expected the agent to reach its group within {within:?} (--timeout), found: {found}; \
             {then}"
        );
        RequestFailure { text, usage }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_request_that_does_not_come_whole_is_waited_for_no_longer() {
        let is_full = watch::Sender::new(false);
        for sent in ["", "{\"ask\": \"drain\", "] {
            let (one, mut two) = UnixStream::pair().expect("a pair");
            two.write_all(sent.as_bytes()).await.expect("sent");
            let mut one = Connection::new(one);
            let within = Duration::from_millis(20);
            let found = first_request(&mut one, is_full.subscribe(), within).await;
            let Err(FirstRequestError::Late(text)) = found else {
                panic!("it is taken for a request: {sent}");
            };
            assert!(text.contains("whole request within 20ms"), "{text}");
        }
    }
}
