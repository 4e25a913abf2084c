//! Reports what becomes of the connections that this server dials: to its log,
//! its metrics and the event loop.

use std::sync::Arc;

use tenure_alpo::ServerId;
use tenure_runtime::clock;

use super::directory_copies;
use super::inbox::{Event, Inbox};
use super::incompatibility::judge;
use super::log_rate_limit::{DialLogLimit, UNREACHED};
use super::metrics::DialFailure;
use super::shared::Shared;
use super::trust;
use crate::transport::{GreetingAnswer, GreetingReply, Introduced, LinkEvent, Side};

/// How much is logged of an answer without proof, in characters.
const UNPROVEN_CHARS: usize = 200;

/// Says what becomes of the connections to one server.
pub(super) struct DialReporter {
    pub(super) server: ServerId,
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) log_limit: DialLogLimit,
    /// Where this server is not let in, if that was said last.
    pub(super) refused: Option<String>,
}

impl DialReporter {
    /// Whether to use the connection.
    pub(super) fn tell(&mut self, address: &str, event: LinkEvent) -> bool {
        let server = self.server;
        match event {
            LinkEvent::Up(introduced) => {
                return self.up(address, *introduced);
            }
            LinkEvent::Unwelcome(answered) => self.unwelcome(address, *answered),
            LinkEvent::Untrusted(why) => self.report(address, &why, DialFailure::Untrusted),
            LinkEvent::Elsewhere(why) => self.report(address, &why, DialFailure::OtherServer),
            LinkEvent::Failed(why) => {
                self.shared.metrics.undialled(DialFailure::Unreached);
                // Of several addresses another one may refuse it.
                if self.refused.as_deref() == Some(address) {
                    self.told(None);
                }
                let server = server.get();
                tracing::debug!(server, "not reached: {address}: {why}");
                if self.log_limit.should_log_unreached(clock::boot()) {
                    tracing::warn!(
                        server,
                        "not reached for {UNREACHED:?}, and still trying: {address}: {why}"
                    );
                }
            }
            LinkEvent::Down => drop(self.shared.local_server().connected.remove(&server)),
        }
        false
    }

    /// The server at the other end has answered with a greeting of its own.
    fn up(&mut self, address: &str, introduced: Introduced) -> bool {
        let server = self.server;
        let proven = match trust::proof(&self.shared, &introduced, Side::Acceptor) {
            Ok(proven) => proven,
            Err(why) => {
                self.report(address, &why, DialFailure::Untrusted);
                return false;
            }
        };
        let Introduced { greeting, form, .. } = introduced;
        let storage = greeting.hello.storage;
        match judge(&self.shared, &greeting, form) {
            None | Some(GreetingAnswer::Welcome(_)) => {}
            Some(GreetingAnswer::Later(why)) => {
                self.later(address, &why);
                return false;
            }
            Some(GreetingAnswer::Refused(why) | GreetingAnswer::SetBack(_, why)) => {
                self.report(address, &why, DialFailure::Stranger);
                return false;
            }
        }
        let mut local_server = self.shared.local_server();
        local_server.connected.insert(server, storage);
        if proven {
            local_server.unproven.remove(&server);
        } else {
            local_server.unproven.insert(server);
        }
        drop(local_server);
        self.log_limit.reset();
        self.told(None);
        tracing::debug!(server = server.get(), "connected");
        let dialled = true;
        self.inbox.put(Event::Greeted {
            greeting: Box::new(greeting),
            dialled,
        });
        true
    }

    /// The server that is there refuses this one. What it says is acted on
    /// only if it has proven to be that server; and that the disk of this one
    /// was set back, which takes this server out for good, is believed of
    /// members alone: a server that was removed, or never admitted, has a
    /// certificate too. It is no loss if a member is not known as one here,
    /// because this server's log is old: it goes on refusing, and that is what
    /// keeps this server from counting.
    fn unwelcome(&mut self, address: &str, answered: GreetingReply) {
        let proven = trust::proof_of_answer(&self.shared, self.server, &answered);
        let secret = self.shared.secret.is_some();
        let believed = proven.is_ok_and(|proven| proven || !secret);
        match answered.answer {
            GreetingAnswer::Welcome(_) => {}
            GreetingAnswer::Refused(why)
            | GreetingAnswer::Later(why)
            | GreetingAnswer::SetBack(_, why)
                if !believed =>
            {
                // What is there may say anything, and much.
                let why: String = why.chars().take(UNPROVEN_CHARS).collect();
                let why = format!("{why} (this was not proven to be said by that server)");
                self.report(address, &why, DialFailure::Untrusted);
            }
            GreetingAnswer::Refused(why) => self.report(address, &why, DialFailure::Refused),
            GreetingAnswer::Later(why) => self.later(address, &why),
            GreetingAnswer::SetBack(storage, why) => {
                self.report(address, &why, DialFailure::Refused);
                if self.shared.local_server().is_member(self.server, storage) {
                    self.inbox.put(Event::SetBack(why));
                }
            }
        }
    }

    /// One of two processes waits for the other. A restart alone is no news.
    fn later(&mut self, address: &str, why: &str) {
        if directory_copies::is_lasting(why) {
            self.report(address, why, DialFailure::Refused);
        } else {
            let server = self.server.get();
            tracing::debug!(server, "not connected yet: {address}: {why}");
        }
    }

    /// People see why this server is not let in, as long as that is so.
    pub(super) fn told(&mut self, refusal: Option<(&str, &str)>) {
        self.refused = refusal.map(|(address, _)| address.to_owned());
        let (by, why) = (self.server, refusal.map(|(_, why)| why.to_owned()));
        self.inbox.put(Event::Refused { by, why });
    }

    /// What an operator has to mend is counted each time, and logged if it is new.
    fn report(&mut self, address: &str, why: &str, reason: DialFailure) {
        self.shared.metrics.undialled(reason);
        self.told(Some((address, why)));
        if self.log_limit.should_log(address, why, clock::boot()) {
            tracing::warn!(
                server = self.server.get(),
                "not connected: {address}: {why}"
            );
        }
    }
}
