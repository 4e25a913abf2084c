//! The notation of the trace.
//!
//! A line is a time of the script, an actor and what happened. Times on an
//! actor's own clock are translated to the script's, so that a whole trace is
//! on one clock; leader ids are written as the actor's name and the number of
//! the incarnation, `a1`, `a2`.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::cas::{Expect, Register, Write};
use tenure_core::ids::LeaderId;
use tenure_core::time::Instant;
use tenure_election::{Event, Grant, Leader, LeaseState, Observation, Occupancy, Record, Request};

use super::actor::{Actor, Effect};

/// `6.65s`: at most three decimals, rounded down.
pub(crate) fn time(span: Duration) -> String {
    let text = format!("{}.{:03}", span.as_secs(), span.subsec_millis());
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}s")
}

/// Names for leader ids, in the order in which they appeared.
pub(crate) struct Ids(BTreeMap<LeaderId, String>);

impl Ids {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Names the present incarnation of an actor, if it is a new one.
    pub(crate) fn note(&mut self, id: LeaderId, actor: &str, incarnations: &mut u32) {
        self.0.entry(id).or_insert_with(|| {
            *incarnations += 1;
            format!("{actor}{incarnations}")
        });
    }

    pub(crate) fn name(&mut self, id: LeaderId, name: &str) {
        self.0.entry(id).or_insert_with(|| name.to_string());
    }

    pub(crate) fn show(&self, id: LeaderId) -> String {
        let unknown = || format!("{id}").chars().take(6).collect();
        self.0.get(&id).cloned().unwrap_or_else(unknown)
    }

    pub(crate) fn record(&self, record: &Record) -> String {
        let mut text = format!("term {} seq {}", record.term, record.sequence);
        if record.renewal != record.sequence {
            text += &format!(" renewal {}", record.renewal);
        }
        match &record.occupancy {
            Occupancy::Vacant { successor: None } => text += " vacant",
            Occupancy::Vacant {
                successor: Some(name),
            } => text += &format!(" vacant for {name}"),
            Occupancy::Held(holder) => {
                text += &format!(" by {}", self.show(holder.id));
                match &holder.request {
                    None => {}
                    Some(Request::Resign) => text += ", asked to resign",
                    Some(Request::Transfer(to)) => text += &format!(", asked to hand over to {to}"),
                }
            }
        }
        text
    }

    pub(crate) fn register(&self, register: Option<&Register>) -> String {
        let Some(register) = register else {
            return "nothing".to_string();
        };
        let version = &register.version;
        match Record::decode(&register.value) {
            Ok(record) => format!("{version} {}", self.record(&record)),
            Err(error) => format!("{version} no record, {error:?}"),
        }
    }

    pub(crate) fn write(&self, write: &Write) -> String {
        let expect = match &write.expect {
            Expect::Absent => "nothing".to_string(),
            Expect::Version(version) => version.to_string(),
        };
        let value = match Record::decode(&write.value) {
            Ok(record) => self.record(&record),
            Err(error) => format!("not a record: {error}"),
        };
        format!("write {value} over {expect}")
    }

    pub(crate) fn effect(&self, effect: &Effect) -> String {
        match effect {
            Effect::Read(reading) => self.register(reading.register.as_ref()),
            Effect::Wrote(Ok(version)) => version.to_string(),
            Effect::Confirmed(Ok(_)) => "alive".to_string(),
            Effect::Wrote(Err(failure)) | Effect::Confirmed(Err(failure)) => {
                failure.class.to_string()
            }
        }
    }

    fn leader(&self, leader: &Leader) -> String {
        format!("{} term {}", self.show(leader.id), leader.term)
    }

    pub(crate) fn observation(&self, actor: &Actor, seen: &Observation) -> String {
        let leader = seen.leader.as_ref();
        let mut text = leader.map_or_else(|| "nobody".to_string(), |leader| self.leader(leader));
        text += &format!(", {}", seen.certainty);
        if let Some(expires_at) = seen.expires_at {
            text += &format!(", over {}", moment(actor, expires_at));
        }
        text
    }

    pub(crate) fn event(&self, actor: &Actor, event: &Event) -> String {
        match event {
            Event::Elected { fence, grant } => format!(
                "ELECTED term {} as {}, {}",
                fence.term,
                self.show(fence.leader),
                show_grant(actor, *grant)
            ),
            Event::Renewed { term, grant } => {
                format!("renewed term {term}, {}", show_grant(actor, *grant))
            }
            Event::Draining { term, why, grant } => {
                format!("DRAINING term {term}: {why}; {}", show_grant(actor, *grant))
            }
            Event::Kill { term } => format!("KILL term {term}"),
            Event::Ousted { term, why } => format!("OUSTED term {term}: {why}"),
            Event::LeaderChanged(seen) => format!("leader is {}", self.observation(actor, seen)),
            Event::LeaderRenewed(seen) => {
                format!("leader renewed {}", self.observation(actor, seen))
            }
            Event::Trouble { failure, in_a_row } => {
                format!("trouble {in_a_row}: {}: {}", failure.class, failure.why)
            }
            Event::TermFell(regression) => {
                format!(
                    "FELL to term {} under {}",
                    regression.shown, regression.floor
                )
            }
            Event::Recovered => "recovered".to_string(),
            Event::Stopped => "STOPPED".to_string(),
            unknown => unreachable!("a script cannot show {unknown:?}"),
        }
    }

    pub(crate) fn lease_state(&self, actor: &Actor, lease_state: &LeaseState) -> String {
        match lease_state {
            LeaseState::Unknown => "not looked yet".to_string(),
            LeaseState::Corrupt => "unreadable".to_string(),
            LeaseState::Vacant { successor: None } => "vacant".to_string(),
            LeaseState::Vacant {
                successor: Some(name),
            } => format!("vacant for {name}"),
            LeaseState::Held { expires_at } => format!("held, over {}", moment(actor, *expires_at)),
            LeaseState::Expired(certainty) => format!("over, {certainty}"),
        }
    }
}

/// A time on an actor's clock, as the script's time.
pub(crate) fn moment(actor: &Actor, at: Instant) -> String {
    if at == Instant::MAX {
        "never".to_string()
    } else {
        time(actor.when(at))
    }
}

pub(crate) fn show_grant(actor: &Actor, grant: Grant) -> String {
    let at = |at| moment(actor, at);
    format!(
        "drain {} kill {} valid {}",
        at(grant.drain_at),
        at(grant.kill_at),
        at(grant.valid_until)
    )
}
