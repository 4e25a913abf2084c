//! Reading in all ways: pages, the user log, without asking who leads, and
//! by following changes from server to server.
//!
//! `checkers/reads` says what must be true of it.

use tenure_alpo::{LogId, Node, Query, QueryResult, Status};
use tenure_core::cas::{Change, TooOld};
use tenure_core::rng::Rng;

use super::checkers::{Check, Verdict, broken};
use super::world::World;

/// What a client asks that only reads: mostly for one register.
pub(super) fn any_query(rng: &mut Rng, register: impl FnOnce(&mut Rng) -> Query) -> Query {
    let count = rng.between(1, 6) as usize;
    match rng.below(10) {
        0 | 1 => Query::List {
            prefix: ["", "k", "b"][rng.below(3) as usize].to_string(),
            after: None,
            count,
        },
        2 => Query::UserLog {
            from: rng.between(1, 60),
            count,
        },
        3 => Query::Barrier,
        _ => register(rng),
    }
}

impl World {
    /// A server starts, or its state was replaced as a whole. Who followed it
    /// has to begin again.
    pub(super) fn begins_with(&mut self, server: usize) {
        if let Some(node) = &self.hosts[server].node {
            let state = node.state();
            self.readers.make_room(server);
            self.readers.base[server] = (state.registers().revision(), state.applied().id);
        }
        self.readers.has_term(server, self.now);
        self.leave(server);
    }

    fn leave(&mut self, server: usize) {
        let watch = &mut self.readers.watch;
        watch.at.take_if(|(at, _)| *at == server);
    }

    /// A leader has answered a read that was asked when `known` entries were
    /// committed.
    pub(super) fn judge_read(&self, known: LogId, query: &Query, found: &QueryResult) -> Verdict {
        let moments = (known, self.committed.len());
        let past = &self.committed.past;
        if past.explains(moments, query, found, &self.committed.everything) {
            return Ok(());
        }
        let detail = format!(
            "{query:?} found {found:?}, at no moment from entry {} to {}",
            moments.0, moments.1
        );
        broken(Check::Reads, detail)
    }

    /// Somebody reads from any server, or follows changes there.
    pub(super) fn read_aside(&mut self) -> Verdict {
        let server = self.rng.below(self.swarm.servers as u64) as usize;
        if self.hosts[server].paused_until > self.now {
            return Ok(());
        }
        match self.rng.below(100) {
            0..6 => self.read_stale(server),
            6..8 => {
                self.readers.watch.at = None;
                Ok(())
            }
            8..20 if self.readers.watch.at.is_none() => self.follow(server),
            _ => Ok(()),
        }
    }

    /// A read of what a server has applied, whichever server leads, with its
    /// label.
    fn read_stale(&mut self, server: usize) -> Verdict {
        let register = |_: &mut Rng| Query::Barrier;
        let query = any_query(&mut self.rng, register);
        let Some(node) = &self.hosts[server].node else {
            return Ok(());
        };
        self.stats.stale_reads += 1;
        let applied = node.state().applied().id;
        let found = node.state().find(query.clone(), 0);
        let (past, everything) = (&self.committed.past, &self.committed.everything);
        if !past.explains((applied, applied), &query, &found, everything) {
            let detail = format!("{} applied {applied}, {query:?}: {found:?}", node.id());
            return broken(Check::Reads, detail);
        }
        self.judge_age(server, node)
    }

    /// As new as it says. Of a leader that is certain: all that was committed
    /// before is there. Any other can only tell of what its leader has said;
    /// but who leads does not speak for the terms before its own until it has
    /// all of them.
    fn judge_age(&self, server: usize, node: &Node) -> Verdict {
        let Some(fresh) = node.fresh_at() else {
            return Ok(());
        };
        // Clocks round.
        let fresh = self.hosts[server].true_time(fresh).saturating_sub(1_000);
        let applied = node.state().applied().id;
        let due = if node.status() == Status::Leader && node.is_ready() {
            self.committed.past.committed_before(fresh)
        } else if fresh > self.readers.since[server] {
            self.committed.before_term(node.term())
        } else {
            0
        };
        if applied < due {
            let age = (self.now - fresh) / 1_000_000;
            let detail = format!(
                "{} ({:?}, term {}) applied {applied} and says it is {age} ms old, when {due} \
                 had been committed",
                node.id(),
                node.status(),
                node.term(),
            );
            return broken(Check::Reads, detail);
        }
        Ok(())
    }

    /// The watch goes on at a server, from the last change or the last entry
    /// that it knows.
    fn follow(&mut self, server: usize) -> Verdict {
        let by_id = self.rng.chance(50);
        let host = &self.hosts[server];
        let Some(node) = &host.node else {
            return Ok(());
        };
        let (watch, state) = (&self.readers.watch, node.state());
        if by_id && watch.id > state.applied().id {
            // It is told that this server is behind.
            return Ok(());
        }
        self.stats.watches += 1;
        if by_id {
            let told = state.revision_at(watch.id);
            let kept = self.committed.past.steps(watch.id, state.applied().id);
            let gone = kept >= self.swarm.limits.changes || watch.id < self.readers.base[server].1;
            match told {
                Ok(revision) if revision == watch.seen => {}
                Err(TooOld) if gone => return self.begin_watch(server),
                told => {
                    let detail = format!(
                        "{} says {told:?} of entry {}, after which there were {} changes",
                        node.id(),
                        watch.id,
                        watch.seen
                    );
                    return broken(Check::Watches, detail);
                }
            }
        }
        self.readers.watch.at = Some((server, host.epoch));
        self.tell_watch(server)
    }

    /// A server has applied something; the watch at it is told.
    pub(super) fn tell_watch(&mut self, server: usize) -> Verdict {
        let host = &self.hosts[server];
        let watch = &mut self.readers.watch;
        let Some(node) = host
            .node
            .as_ref()
            .filter(|_| watch.at == Some((server, host.epoch)))
        else {
            return Ok(());
        };
        let registers = node.state().registers();
        let revision = registers.revision();
        let Ok(told) = registers.changes_after(watch.seen) else {
            let most = self.swarm.limits.changes;
            let gone = revision - watch.seen > most || watch.seen < self.readers.base[server].0;
            if gone {
                return self.begin_watch(server);
            }
            let detail = format!(
                "{} says that changes after {} are gone; it has had {revision}, begins with {:?} \
                 and keeps {most}",
                node.id(),
                watch.seen,
                self.readers.base[server],
            );
            return broken(Check::Watches, detail);
        };
        let due = self.committed.past.changes_after(watch.seen);
        let due = &due[..due.len().min(revision.saturating_sub(watch.seen) as usize)];
        let told: Vec<&Change> = told.collect();
        if !told
            .iter()
            .copied()
            .eq(due.iter().map(|(_, change)| change))
        {
            let due: Vec<_> = due.iter().map(|(_, change)| change.revision).collect();
            let told: Vec<_> = told.iter().map(|change| change.revision).collect();
            let detail = format!("{} tells changes {told:?} where {due:?} are due", node.id());
            return broken(Check::Watches, detail);
        }
        self.stats.told += told.len() as u64;
        watch.seen = watch.seen.max(revision);
        watch.id = watch.id.max(node.state().applied().id);
        Ok(())
    }

    /// What the watch wants is gone. It begins with the registers as they are.
    fn begin_watch(&mut self, server: usize) -> Verdict {
        self.stats.compacted += 1;
        let host = &self.hosts[server];
        let Some(node) = &host.node else {
            return Ok(());
        };
        let state = node.state();
        let (watch, applied) = (&mut self.readers.watch, state.applied().id);
        watch.seen = state.registers().revision();
        watch.id = applied;
        watch.at = Some((server, host.epoch));
        let due = self.committed.past.revision_at(applied);
        if watch.seen != due {
            let (seen, id) = (watch.seen, node.id());
            let detail = format!("{id} counts {seen} changes up to {applied}, and not {due}");
            return broken(Check::Watches, detail);
        }
        Ok(())
    }
}
