//! What a caller asks for, from when it is asked until it is answered. The audit
//! begins such notes here, so that it takes nothing from callers itself.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tenure_api::v1::{self, Cause};
use tenure_core::ids::Key;
use tenure_election::{Occupancy, Record, Request};

use super::super::tokens::Caller;
use super::{Audit, Room, Trail};

impl Audit {
    /// Begins to note what a caller asks for.
    pub(crate) fn begin(
        &self,
        event: &str,
        caller: &Caller,
        about: impl FnOnce() -> Value,
    ) -> Option<Entry> {
        let handle = self.0.as_ref()?;
        let by = json!({ "token": caller.name(), "address": caller.address().to_string() });
        Some(Entry {
            line: Some(handle.0.line(event, by, about())),
            trail: Arc::clone(&handle.0),
            room: if caller.is_admin() {
                Room::Operators
            } else {
                Room::Clients
            },
        })
    }

    /// The same of a write, if it changes who leads an election, or asks for
    /// that. Renewals do neither.
    pub(crate) fn begin_swap(&self, caller: &Caller, swap: &v1::Swap) -> Option<Entry> {
        self.0.as_ref()?;
        let (event, about) = election_event(swap)?;
        self.begin(event, caller, || about)
    }

    /// The same of a deletion, if it is of the register of an election.
    pub(crate) fn begin_delete(&self, caller: &Caller, key: &str) -> Option<Entry> {
        let election = key.strip_prefix(Key::ELECTIONS)?;
        self.begin(
            "election_deleted",
            caller,
            || json!({ "election": election }),
        )
    }
}

/// What a write to the register of an election does to its leadership.
pub(super) fn election_event(swap: &v1::Swap) -> Option<(&'static str, Value)> {
    let election = swap.key.strip_prefix(Key::ELECTIONS)?;
    let Ok(record) = Record::decode(&swap.value) else {
        return Some(("election_overwritten", json!({ "election": election })));
    };
    let term = record.term.get();
    match &record.occupancy {
        Occupancy::Vacant { successor } => {
            let successor = successor.as_ref().map(ToString::to_string);
            let about = json!({ "election": election, "term": term, "successor": successor });
            Some(("election_resigned", about))
        }
        Occupancy::Held(holder) => {
            let mut about = json!({
                "election": election,
                "term": term,
                "leader": holder.name.as_str(),
                "leader_id": holder.id.to_string(),
            });
            match &holder.request {
                // A note beside what the holder has written.
                Some(request) if swap.keep_stamp => {
                    if let Request::Transfer(to) = request {
                        about["to"] = to.as_str().into();
                    }
                    Some(("election_asked", about))
                }
                _ if record.acquired_at == record.renewed_at => Some(("election_taken", about)),
                _ => None,
            }
        }
    }
}

/// Something that was asked for and is not answered yet. If it never is, that
/// is noted.
pub(crate) struct Entry {
    pub(super) trail: Arc<Trail>,
    /// `None` once it is written.
    pub(super) line: Option<Map<String, Value>>,
    pub(super) room: Room,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entry")
    }
}

impl Entry {
    /// What came of it; `Ok(false)` if another caller was first.
    pub(crate) fn ends(mut self, result: Result<bool, &v1::Error>) {
        let Some(mut line) = self.line.take() else {
            return;
        };
        let word = match result {
            Ok(true) => "done",
            Ok(false) => "conflict",
            Err(why) => match why.cause() {
                // The caller goes there.
                Cause::NotLeader | Cause::NotReady => return,
                Cause::Interrupted => "unknown",
                _ => "refused",
            },
        };
        line.insert("result".into(), word.into());
        if let Err(why) = result {
            line.insert("cause".into(), why.cause().as_str_name().into());
            line.insert("message".into(), why.message.as_str().into());
        }
        let idle = matches!(word, "conflict" | "refused");
        if !idle || self.trail.is_told(&line) {
            self.trail.put(line, self.room);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(mut line) = self.line.take() {
            line.insert("result".into(), "unknown".into());
            self.trail.put(line, self.room);
        }
    }
}

/// Ends the note of something that is done, or refused; `was_first` unless
/// somebody else was.
pub(crate) fn end<T>(
    entry: Option<Entry>,
    result: &Result<T, v1::Error>,
    was_first: impl FnOnce(&T) -> bool,
) {
    if let Some(entry) = entry {
        entry.ends(result.as_ref().map(was_first));
    }
}
