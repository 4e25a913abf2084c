//! What users have asked for, and what has become of it.

use std::collections::BTreeMap;

use tenure_core::ids::Name;
use tenure_group::{Digest, Request, Spec};

/// What was asked for.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) p: usize,
    pub(super) group: Name,
    pub(super) request: Request,
    /// It is in the view.
    pub(super) effective: bool,
    pub(super) answered: bool,
    /// The agent that was asked has crashed since.
    pub(super) orphan: bool,
    /// It was asked before the store lost something, or so soon after that
    /// news of what was lost were still on their way: what has become of it
    /// cannot be said.
    pub(super) lost: bool,
}

/// What was asked for, by ticket.
#[derive(Debug, Default)]
pub(super) struct Users {
    pub(super) tickets: BTreeMap<u64, Ticket>,
    /// What has been deployed so far, in order.
    pub(super) digests: Vec<Digest>,
    pub(super) names: u64,
}

impl Users {
    /// A deployment has taken effect: by which request? No two have the same
    /// name and digest.
    pub(super) fn deployed(
        &mut self,
        p: usize,
        group: &Name,
        workload: &Name,
        digest: &Digest,
    ) -> Option<Spec> {
        let mut tickets = self.tickets.values_mut();
        let asked = tickets.find(|ticket| {
            let names = matches!(
                &ticket.request,
                Request::Deploy(spec, _) if spec.name == *workload && spec.digest == *digest
            );
            let open = !ticket.effective || ticket.lost;
            names && ticket.p == p && ticket.group == *group && open
        })?;
        asked.effective = true;
        match &asked.request {
            Request::Deploy(spec, _) => Some(spec.clone()),
            _ => None,
        }
    }

    /// Whether anybody asked to undeploy that.
    pub(super) fn undeployed(&self, group: &Name, workload: &Name) -> bool {
        let mut tickets = self.tickets.values();
        tickets.any(|ticket| {
            ticket.group == *group
                && matches!(&ticket.request, Request::Undeploy(name) if name == workload)
        })
    }

    /// Nobody is told anything by an agent that has crashed.
    pub(super) fn forget(&mut self, p: usize) {
        for ticket in self.tickets.values_mut().filter(|ticket| ticket.p == p) {
            ticket.orphan = true;
        }
    }
}
