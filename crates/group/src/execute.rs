//! Executes the plan: starts, stops and kills workloads here (§6).

use alloc::vec::Vec;

use tenure_core::ids::Name;
use tenure_core::time::Instant;

use super::Bug;
use super::node::{Node, Stage};
use super::reconcile::{Action, Job, Phase, Times, reconcile};
use super::types::{Order, Output, Run};

impl Node {
    /// Starts, stops and kills what is due.
    pub(super) fn work(&mut self) {
        let now = self.context.now;
        let kill_at = self.grant().map_or(now, |grant| grant.kill_at);
        let adopt = self.context.config.plant.is(Bug::AdoptAcross);
        let open = self.is_open();
        let due = self.replan || self.was_open != open || self.jobs.is_retry_due(now);
        (self.replan, self.was_open) = (false, open);
        let actions = match (self.stage, self.view_sync.view()) {
            // Until a heartbeat succeeds the guardian alone keeps the work.
            (Stage::Resuming, _) => Vec::new(),
            _ if !due => Vec::new(),
            (Stage::Fenced | Stage::Joining, _) if adopt => Vec::new(),
            (_, Some(view)) => {
                let plant = self.context.config.plant;
                // No fence that this node hands out is below an epoch that it
                // has seen: first the view is raised (§1.4).
                let fallen = self.view_sync.has_fallen(plant) && !plant.is(Bug::FenceBelow);
                let times = Times {
                    now,
                    open,
                    may_start: !self.unsettled && !fallen,
                };
                reconcile(view, self.context.me, &self.jobs, times, plant)
            }
            (Stage::Member, None) => Vec::new(),
            (_, None) => self.jobs.jobs.keys().cloned().map(Action::Stop).collect(),
        };
        for action in actions {
            match action {
                Action::Start(name) => self.deploy(name, kill_at),
                Action::Stop(name) => self.undeploy(&name, kill_at),
            }
        }
        for job in self.jobs.jobs.values_mut() {
            if let Phase::Stopping { kill_at, killed } = &mut job.phase
                && now >= *kill_at
                && !*killed
            {
                *killed = true;
                self.context
                    .outputs
                    .push_back(Output::Kill { run: job.run });
            }
        }
    }

    fn deploy(&mut self, name: Name, kill_at: Instant) {
        let Some(view) = self.view_sync.view() else {
            return;
        };
        let Some(assignment) = view.workloads.get(&name) else {
            return;
        };
        self.last_run += 1;
        let order = Order {
            run: Run(self.last_run),
            name: name.clone(),
            digest: assignment.digest.clone(),
            instances: assignment.instances,
            fence: view.epoch,
            kill_at,
        };
        let job = Job {
            run: order.run,
            digest: order.digest.clone(),
            instances: order.instances,
            fence: order.fence,
            phase: Phase::Starting,
        };
        self.jobs.jobs.insert(name, job);
        self.context.outputs.push_back(Output::Deploy(order));
    }

    /// Tells a job to stop: it gets its grace, but never beyond the grant.
    fn undeploy(&mut self, name: &Name, kill_at: Instant) {
        let Some(job) = self.jobs.jobs.get_mut(name) else {
            return;
        };
        if matches!(job.phase, Phase::Stopping { .. }) {
            return;
        }
        let kill_at = self
            .context
            .now
            .after(self.context.config.grace)
            .min(kill_at);
        job.phase = Phase::Stopping {
            kill_at,
            killed: false,
        };
        self.context
            .outputs
            .push_back(Output::Undeploy { run: job.run });
    }
}
