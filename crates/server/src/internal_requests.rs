//! Requests under the server's own session. They are apart from the session
//! itself (`internal_session.rs`), because the handle that they need holds it.

use std::sync::Arc;
use std::time::Duration;

use tenure_alpo::{
    Answer, ClientRequest, Command, MAX_WINDOW, OpenSession, Operation, Outcome, OwnershipProof,
    Refusal,
};
use tokio::sync::oneshot;

use super::handle::ServerHandle;
use super::inbox::{Event, ReplyTo, TimedAnswer};
use super::internal_session::{InternalSession, Open, UnderWay};
use super::quota_usage::Quota;

/// How long a session lives without being used.
const TTL: Duration = Duration::from_secs(600);

impl InternalSession {
    /// Does `operation` under a number of the server's own.
    pub(super) async fn run(
        &self,
        handle: &ServerHandle,
        operation: Operation,
        quota: Option<&Arc<Quota>>,
    ) -> TimedAnswer {
        let Some(_permit) = handle.permit() else {
            return refused(Refusal::Busy);
        };
        loop {
            let (sender, answer) = oneshot::channel();
            let sent = self.with(|open| {
                let open = open.as_mut()?;
                if open.under_way >= MAX_WINDOW / 2 {
                    return Some(Err(open.session));
                }
                let command = Command {
                    session: open.session,
                    serial: open.next,
                    outstanding: open.next,
                    operation: operation.clone(),
                };
                open.next += 1;
                open.under_way += 1;
                // Under the lock, so that serials arrive in their order.
                let (request, reply) = (
                    ClientRequest::Command(command, open.proof),
                    ReplyTo::InternalSession(sender),
                );
                handle
                    .inbox
                    .put(Event::ClientRequest(request, quota.cloned(), reply));
                Some(Ok(open.session))
            });
            match sent {
                Some(Ok(session)) => {
                    // The caller may give up while this waits.
                    let counted = UnderWay {
                        internal_session: self,
                        session,
                    };
                    let told = ServerHandle::answer(answer).await;
                    drop(counted);
                    if !self.done(session, &told.answer) {
                        return told;
                    }
                }
                Some(Err(_)) => {
                    handle.shared.metrics.refused();
                    return refused(Refusal::Busy);
                }
                None => {
                    if let Err(told) = self.open(handle).await {
                        return told;
                    }
                }
            }
        }
    }

    async fn open(&self, handle: &ServerHandle) -> Result<(), TimedAnswer> {
        let _alone = self.opening.lock().await;
        if self.with(|open| open.is_some()) {
            return Ok(());
        }
        let ttl = u64::try_from(TTL.as_nanos()).unwrap_or(u64::MAX);
        // What stands in the log for the secret of a session that needs none.
        let mut drawn = [0; 16];
        if getrandom::fill(&mut drawn).is_err() {
            return Err(refused(Refusal::Busy));
        }
        let mut opening = OpenSession::unowned(ttl);
        opening.owner.secret = Some(drawn);
        let told = handle.submit_open(opening).await;
        let Answer::Done(Outcome::Opened(session)) = told.answer else {
            return Err(told);
        };
        self.with(|open| {
            *open = Some(Open {
                session,
                proof: OwnershipProof::of_secret(drawn),
                next: 1,
                under_way: 0,
            });
        });
        Ok(())
    }
}

fn refused(refusal: Refusal) -> TimedAnswer {
    TimedAnswer::from(Answer::Refused(refusal))
}
