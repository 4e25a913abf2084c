//! How a server stands, for whoever asks about its health.

use super::owner::Owner;
use super::shared::Standing;

impl Owner {
    /// Says how the server stands.
    pub(super) fn stand(&mut self) {
        let leader = self.node.leader();
        let removed = self.removal.text(self.node.identity());
        let set_back = self.shared.copies().set_back.clone();
        if leader.is_some() {
            self.waits.clear();
        }
        if leader != Some(self.node.id()) {
            self.lost.clear();
        }
        let sound = removed.is_none() && set_back.is_none();
        let standing = Standing {
            alive: true,
            // One that does not vote never doubts its leader.
            ready: leader.is_some() && sound && self.stopping.is_none(),
            leads: self.node.is_ready() && set_back.is_none(),
            removed: removed.is_some(),
            set_back: set_back.is_some(),
            leader,
            term: self.node.term(),
            waiting: match (removed, leader) {
                _ if self.stopping.is_some() => "this server stops".into(),
                _ if set_back.is_some() => set_back.unwrap_or_default(),
                (Some(text), _) => text,
                (None, Some(_)) => self.lost.clone(),
                (None, None) if !self.waits.is_empty() => self.waits.clone(),
                (None, None) => "no leader is known at the moment".into(),
            },
        };
        self.shared.standing.send_if_modified(|known| {
            let news = *known != standing;
            *known = standing;
            news
        });
    }
}
