//! Which messages of other servers the event loop takes.
//!
//! Who may say anything at all is judged when it connects (`trust`). Here is
//! what is judged of each message, by what the machine knows at that moment:
//! [`Node::admit`](tenure_alpo::Node::admit).

use tenure_alpo::{Envelope, Input, StorageId};
use tenure_core::Machine as _;
use tenure_runtime::clock;

use super::event_loop::EventLoop;

impl EventLoop {
    /// Another server says something. What cannot be, and what contradicts
    /// what is known here without being a member's word, ends here.
    pub(super) fn received(&mut self, mut envelope: Envelope, storage: StorageId) {
        if let Err(objection) = self.node.admit(&mut envelope, storage) {
            self.shared.metrics.unheeded.inc();
            let server = envelope.from;
            if self
                .shared
                .objections
                .should_log(server, "objection", clock::boot())
            {
                tracing::warn!(server = server.get(), "a message is rejected: {objection}");
            } else {
                tracing::debug!(server = server.get(), "a message is rejected: {objection}");
            }
            return;
        }
        self.removal.received(&envelope);
        let input = Input::Received { envelope, storage };
        self.node.handle(clock::now(), input);
    }

    /// The log may have a later version than before.
    pub(super) fn update_version(&mut self) {
        let version = self.node.state().version();
        if *self.shared.version.borrow() == version {
            return;
        }
        self.shared.version.send_replace(version);
        let secret = self.shared.secret.as_ref();
        if secret.is_some_and(|it| !it.optional) && self.shared.proven_only() {
            self.peers.proven_only(&self.members);
        }
    }
}
