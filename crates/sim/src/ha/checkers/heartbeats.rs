//! Heartbeat registers: written by their node, swapped to dead after the
//! lease has passed in true time, and never created again.

use super::HeartbeatRecord;
use tenure_core::cas::Register;
use tenure_group::{Heartbeat, NodeId};

use super::{Finding, Writer};
use crate::ha::world::World;

impl World {
    pub(super) fn check_heart(
        &mut self,
        writer: Writer,
        id: NodeId,
        register: Option<&Register>,
    ) -> Finding {
        let now = self.now;
        let known = self.checker_state.heartbeats.get(&id).cloned();
        let Some(register) = register else {
            if let Some(heartbeat_record) = self.checker_state.heartbeats.get_mut(&id) {
                heartbeat_record.exists = false;
            }
            return Ok(());
        };
        let beat = Heartbeat::decode(&register.value).map_err(|error| error.to_string())?;
        let heartbeat_record = HeartbeatRecord {
            sequence: beat.sequence,
            beat_at: known.as_ref().map_or(now, |known| known.beat_at),
            dead: beat.dead.is_some(),
            exists: true,
        };
        let heartbeat_record = match beat.dead {
            Some(_) => heartbeat_record,
            None => HeartbeatRecord {
                beat_at: now,
                ..heartbeat_record
            },
        };
        let created_again = known.as_ref().is_some_and(|known| {
            // A creation that was lost on its way may land late.
            !known.exists && beat.sequence > known.sequence
        });
        self.checker_state.heartbeats.insert(id, heartbeat_record);
        if created_again && self.checker_state.members.contains(&id) {
            return Err(format!("the heartbeat of {id} was created again"));
        }
        if beat.dead.is_some() {
            self.checker_state.gone.insert(id);
        } else {
            self.checker_state.landed.insert(id, now);
        }
        let own = self.owner(id) == Some(writer.p);
        if beat.dead.is_none() {
            if !own {
                return Err(format!("it beats for {id}"));
            }
            return Ok(());
        }
        if own {
            return self.check_given_up(writer.p, id);
        }
        let since = known.map_or(0, |known| now - known.beat_at);
        if since < beat.lease.as_nanos() as u64 {
            return Err(format!(
                "it judges {id} dead {since} ns after a beat, under a lease of {:?}",
                beat.lease
            ));
        }
        Ok(())
    }

    /// A node says itself that an id it had is dead: nothing may run under
    /// it.
    fn check_given_up(&self, p: usize, id: NodeId) -> Finding {
        let works = self.agents[p].works.values();
        let left = works.filter(|work| work.id == id).count();
        match left {
            0 => Ok(()),
            left => Err(format!("it gives up {id} while {left} workloads run")),
        }
    }
}
