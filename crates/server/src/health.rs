//! The health of a server, as probes and operators see it.
//!
//! Left out: `sd_notify`. A unit of systemd counts as started when the process
//! runs (`Type=exec`), and not when the server is ready; `/readyz` says that.

use super::event_loop::EventLoop;
use super::removal::by_own_log;
use super::shared::HealthStatus;

impl EventLoop {
    /// Makes the health status anew, and announces it if it has changed.
    pub(super) fn update_health(&mut self) {
        let leader = self.node.leader();
        let removed = self.removal.text(self.node.identity());
        let set_back = self.shared.copies().set_back.clone();
        // Why it takes no part in the cluster, though it runs.
        let own = || by_own_log(&self.node).filter(|_| leader.is_none());
        let out = set_back.clone().or_else(|| removed.clone()).or_else(own);
        let refused = self.refusals.text(&self.members);
        let refused = refused.filter(|_| leader.is_none());
        let barred = refused.is_some() && self.refusals.excludes_from_majority(&self.members);
        if leader != Some(self.node.id()) {
            self.lost.clear();
        }
        let full = self.quota_usage.full(self.node.state());
        let sound = removed.is_none() && set_back.is_none();
        let health_status = HealthStatus {
            alive: true,
            // One that does not vote never doubts its leader.
            ready: leader.is_some() && sound && self.stopping.is_none(),
            leads: self.node.is_ready() && set_back.is_none(),
            removed: removed.is_some(),
            set_back: set_back.is_some(),
            excluded: out.is_some() || barred,
            leader,
            term: self.node.term(),
            full,
            waiting: match (out.or(refused), leader) {
                _ if self.stopping.is_some() => "this server stops".into(),
                (Some(why), _) => why,
                (None, Some(_)) => self.lost.clone(),
                (None, None) => "no leader is known at the moment".into(),
            },
        };
        self.shared.health_status.send_if_modified(|known| {
            let news = *known != health_status;
            if known.full.is_empty() && !health_status.full.is_empty() {
                tracing::warn!("{}", health_status.full);
            } else if health_status.full.is_empty() && !known.full.is_empty() {
                tracing::info!("registers have room again");
            }
            *known = health_status;
            news
        });
    }
}
