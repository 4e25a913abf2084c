//! What the event loop does about a disk that was set back: its own, or a
//! member's.

use tenure_alpo::{CopyEvidence, LogId, ServerId};

use super::data;
use super::directory_copies::set_back;
use super::event_loop::EventLoop;

impl EventLoop {
    /// Another server remembers that this disk has promised more than is on
    /// it. From here on this server takes part in nothing; its directory says
    /// so after this process has ended, too.
    pub(super) fn set_back(&mut self, why: String) {
        if self.shared.copies().set_back.is_some() {
            return;
        }
        data::write_set_back(&self.data, &why);
        tracing::warn!("this server takes part in nothing any more: {why}");
        self.shared.copies().set_back = Some(why);
        let mut local_server = self.shared.local_server();
        local_server.edition += 1;
        let edition = local_server.edition;
        drop(local_server);
        self.peers.fall_silent();
        // Those that are connected come again, and are refused.
        self.shared.edition.send_replace(edition);
        self.update_health();
    }

    /// A member lacks entries that it has acknowledged to this leader. It is
    /// told so when it greets again, which it must to be heeded.
    pub(super) fn found_set_back(
        &mut self,
        server: ServerId,
        (acknowledged, found): (LogId, LogId),
    ) {
        self.shared.metrics.set_back.inc();
        let term = self.node.term();
        let trace = CopyEvidence::Disk {
            known: (term, acknowledged),
            found: (term, found),
        };
        let why = set_back(server, trace);
        tracing::warn!("a member is not counted any more: {why}");
        self.lost = why;
        if let Some(member) = self.members.get(server) {
            let who = (server, member.storage);
            let mut copies = self.shared.copies();
            copies.starts.acknowledged(who, term, acknowledged);
            copies.starts.expel(who);
        }
        self.update_health();
    }
}
