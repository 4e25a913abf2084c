//! Users: they deploy, undeploy, move and drain through agents at random, and
//! remember what they asked for and what they were told.

use tenure_core::ids::Name;
use tenure_group::{Command, Input, Refusal, Request, Spec};

use super::checkers::Check;
use super::events::GroupEvent;
use super::swarm::name;
use super::tickets::Ticket;
use super::world::World;
use crate::clock::pick;

impl World {
    pub(super) fn schedule_request(&mut self) {
        let mean = self.swarm.requests * (self.swarm.lease / 1_000);
        let at = self.now + self.rng.between(1, 2 * mean);
        self.queue.push(at, GroupEvent::Request);
    }

    pub(super) fn somebody_asks(&mut self) {
        if !self.faulty() {
            return;
        }
        self.schedule_request();
        let p = self.rng.below(self.agents.len() as u64) as usize;
        if !self.agents[p].runs() {
            return;
        }
        if let Some(request) = self.draw_request(p) {
            self.request(p, request);
            if self.swarm.naps > 0 && self.rng.chance(self.swarm.naps) {
                // While the view is being written.
                let at = self.now + self.rng.between(0, 8 * self.swarm.net.1);
                self.queue.push(at, GroupEvent::Nap(p));
            }
        } else {
            self.draw_farewell(p);
        }
    }

    /// Asks `p` for something.
    pub(super) fn request(&mut self, p: usize, request: Request) -> u64 {
        let ticket = self.number();
        self.stats.requests += 1;
        let group = self.agents[p].config.group.clone();
        self.users.tickets.insert(
            ticket,
            Ticket {
                p,
                group,
                request: request.clone(),
                effective: false,
                answered: false,
                orphan: false,
                lost: self.store.store_damage.excuses(self.now),
            },
        );
        self.command(p, Command::Ask { ticket, request });
        ticket
    }

    pub(super) fn command(&mut self, p: usize, command: Command) {
        let (life, input) = (self.agents[p].life, Input::Command(command));
        self.queue
            .push(self.now, GroupEvent::Mail { p, life, input });
    }

    fn draw_request(&mut self, p: usize) -> Option<Request> {
        let group = self.agents[p].config.group.clone();
        let view = self.checker_state.views.get(&group).cloned()?;
        let names: Vec<Name> = view.workloads.keys().cloned().collect();
        let members: Vec<_> = view.members.iter().map(|member| member.id).collect();
        let dice = self.rng.below(100);
        if dice < 50 || names.is_empty() {
            if names.len() >= 20 * self.agents.len() {
                return None;
            }
            let spec = self.draw_spec();
            let on = match self.rng.below(10) {
                0..=4 => self.agents[p].node().map(tenure_group::Node::id),
                5..=7 if spec.ha => None,
                _ if members.is_empty() => None,
                _ => Some(*pick(&mut self.rng, &members)),
            };
            return Some(Request::Deploy(spec, on));
        }
        let workload = pick(&mut self.rng, &names).clone();
        match dice {
            50..=74 => Some(Request::Undeploy(workload)),
            75..=89 if !members.is_empty() => {
                Some(Request::Move(workload, *pick(&mut self.rng, &members)))
            }
            90..=92 if members.len() > 1 => Some(Request::Drain(*pick(&mut self.rng, &members))),
            _ => None,
        }
    }

    /// A workload; now and then under a name that was used before.
    pub(super) fn draw_spec(&mut self) -> Spec {
        let used = self.users.names;
        let again = used > 0 && self.rng.chance(10);
        let number = if again {
            self.rng.between(1, used)
        } else {
            self.users.names += 1;
            self.users.names
        };
        let digest = self.draw_digest(!again);
        let mut spec = Spec::new(name(&format!("w{number}")), digest);
        if !self.swarm.bare {
            spec.content = Some(super::contents::content(&spec.digest));
        }
        spec.instances = self.rng.between(1, 4) as u32;
        spec.ha = self.rng.chance(80);
        spec.order = self.rng.below(3) as u32;
        if self.swarm.picky && self.rng.chance(40) {
            spec.needs = vec![name("zone=a")];
        }
        spec
    }

    /// An agent is told to leave, or to drain; it comes back later.
    fn draw_farewell(&mut self, p: usize) {
        if self.agents[p].leaving || !self.rng.chance(40) {
            return;
        }
        self.agents[p].leaving = true;
        self.stats.farewells += 1;
        let command = if self.rng.chance(50) {
            Command::Leave
        } else {
            Command::Drain
        };
        self.trace_note(Some(p), || format!("is told to {command:?}"));
        self.command(p, command);
    }

    /// An agent has answered.
    pub(super) fn answered(&mut self, p: usize, number: u64, refused: Option<Refusal>) {
        let Some(ticket) = self.users.tickets.get_mut(&number) else {
            return;
        };
        let again = std::mem::replace(&mut ticket.answered, true);
        let ticket = ticket.clone();
        // What is deployed and undeployed in one step is never seen.
        let deploy = match &ticket.request {
            Request::Deploy(spec, _) => !self.users.undeployed(&ticket.group, &spec.name),
            _ => false,
        };
        let finding = match (&refused, ticket.effective) {
            _ if again => Err(format!("it answers request {number} twice")),
            _ if ticket.lost => Ok(()),
            (None, false) if deploy => Err(format!("it did not do {:?}", ticket.request)),
            (Some(why), true) if *why != Refusal::Leaving => {
                Err(format!("it did {:?}, and says: {why}", ticket.request))
            }
            _ => Ok(()),
        };
        if refused.is_some() {
            self.stats.refused += 1;
        }
        self.judge(Check::Commands, Some(p), finding);
    }
}
