//! Directories that were set back to an earlier copy, or of which there are
//! two.
//!
//! What others remember of a disk gives it away ([`KnownStarts`]). This module asks
//! them: each greeting of the second form is judged, and what comes on a
//! connection is heeded only as long as its start is the one that was let in.
//! Who is refused so hears why, and then takes no part in anything any more:
//! it drops its connections, refuses those that come, and says to people how it comes
//! back as a new disk. It writes that down in its directory (`set-back`), for
//! its counter grows with each start, and would hide what was found.
//!
//! A server that greets in the first form says neither its start nor how far
//! its disk has come, and is let in as it always was.

use std::net::IpAddr;
use std::sync::{MutexGuard, PoisonError};

use tenure_alpo::{CopyEvidence, Node, ServerId, Start, StartVerdict, StorageId};
use tenure_core::time::Instant;
use tenure_runtime::clock;

use super::log_rate_limit::LogRateLimit;
use super::shared::{Copies, Shared};
use crate::transport::{Greeting, GreetingAnswer, PeerKeepAlive};

/// After how many election timeouts people are told of a second process that
/// waits for the first one: one that was only restarted is let in before.
const SILENT_TIMEOUTS: u32 = 4;

/// What people are to do about a disk that was set back.
fn advice(server: ServerId) -> String {
    let id = server.get();
    format!(
        "The data directory of server {id} was set back to an earlier copy, or two servers use \
         copies of it; what it has promised since is gone, so it must not count. If another \
         server {id} runs, stop this one and leave it off. Otherwise stop it, run `tenure member \
         remove {id}`, start it with an empty --data, run the `tenure member add {id} --storage …` \
         that it prints, and, so that it counts, `tenure member promote {id}`"
    )
}

/// What is said to a server whose disk was set back, and of it.
pub(super) fn set_back(server: ServerId, trace: CopyEvidence) -> String {
    format!("{trace} of server {}. {}", server.get(), advice(server))
}

impl Shared {
    pub(super) fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a server that greets so is not let in, if its disk is the cause.
    pub(super) fn judge_start(&self, greeting: &Greeting, now: Instant) -> Option<GreetingAnswer> {
        let local_server = self.local_server();
        let mut copies = self.copies();
        if let Some(why) = &copies.set_back {
            let own = local_server.hello.server.get();
            let reason = format!("server {own} takes part in nothing: {why}");
            return Some(GreetingAnswer::Refused(reason));
        }
        // Who is blank has promised nothing.
        let (hello, details) = (&greeting.hello, greeting.details?);
        hello.cluster?;
        let who = (hello.server, hello.storage);
        let timeout = std::time::Duration::from_nanos(local_server.settings.timeout);
        let says = (details.start, details.disk_progress);
        let at = (now, timeout);
        match copies.starts.greeted(who, says, &local_server.members, at) {
            StartVerdict::Accepted => None,
            StartVerdict::SetBack(trace) => {
                let why = set_back(hello.server, trace);
                Some(GreetingAnswer::SetBack(local_server.hello.storage, why))
            }
            StartVerdict::WaitFor(since) => {
                let id = hello.server.get();
                let mut reason = format!(
                    "expected one process with the disk of server {id}, found a second one: it is \
                     let in when nothing was heard of the first for {timeout:?}"
                );
                if since > timeout * SILENT_TIMEOUTS {
                    reason = format!("{reason}. {}", advice(hello.server));
                }
                Some(GreetingAnswer::Later(reason))
            }
        }
    }

    /// Something came from a server that was let in with this start. Whether
    /// it is still heeded.
    pub(super) fn hears(
        &self,
        who: (ServerId, StorageId),
        start: Option<Start>,
        keep_alive: Option<PeerKeepAlive>,
        now: Instant,
    ) -> bool {
        let disk_progress = keep_alive.map(|keep_alive| keep_alive.disk_progress);
        start.is_none_or(|start| self.copies().starts.heard(who, start, disk_progress, now))
    }

    /// A leader knows how far the disks of others have come.
    pub(super) fn acknowledged(&self, node: &Node) {
        let mut copies = None;
        for (who, id) in node.acknowledged() {
            let copies = copies.get_or_insert_with(|| self.copies());
            copies.starts.acknowledged(who, node.term(), id);
        }
    }
}

/// Says to people what is wrong with the disk of who came, once.
pub(super) fn tell(log_rate_limit: &LogRateLimit, from: IpAddr, answer: &GreetingAnswer) {
    let why = match answer {
        GreetingAnswer::SetBack(_, why) => why,
        GreetingAnswer::Later(why) if is_lasting(why) => why,
        GreetingAnswer::Welcome(_) | GreetingAnswer::Refused(_) | GreetingAnswer::Later(_) => {
            return;
        }
    };
    if log_rate_limit.should_log(from, why, clock::boot()) {
        tracing::warn!(%from, "not let in as a server: {why}");
    }
}

/// Whether people should hear of a second process that waits.
pub(super) fn is_lasting(reason: &str) -> bool {
    reason.contains("tenure member remove")
}
