//! What a log should give back, and batches at random.

use std::sync::Arc;

use tenure_alpo::{
    Batch, ClusterId, Command, Entry, HardState, Identity, Operation, Payload, Position, Rank,
    Recovered, ServerId, Snapshot, StorageId, Vote,
};
use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_server::wal::Options;

/// Segments so short that every run sees several.
pub(crate) const SMALL: Options = Options {
    segment_bytes: 4096,
};

pub(crate) fn identity() -> Identity {
    Identity {
        cluster: ClusterId::from_u128(0xc1),
        server: ServerId::new(7).expect("a number"),
        storage: StorageId::from_u128(0x5702_a6e0_0000_0000_dead_beef_0000_0001),
    }
}

pub(crate) fn term(number: u64) -> Term {
    Term::new(number).expect("a term")
}

pub(crate) fn entry(id: u64, at: u64, payload: &[u8]) -> Entry {
    Entry {
        id,
        term: term(at),
        time: id * 1000,
        payload: Payload::Command(Command {
            session: 1,
            serial: id,
            outstanding: 1,
            operation: Operation::Append(payload.into()),
        }),
    }
}

/// Everything of a log that is in memory.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Model {
    pub(crate) number: u64,
    pub(crate) recovered: Recovered,
}

impl Model {
    pub(crate) fn last(&self) -> Position {
        let snapshot = self.recovered.snapshot.as_ref().map(|s| s.last);
        let entry = self.recovered.entries.last().map(Entry::position);
        entry.or(snapshot).unwrap_or_default()
    }

    fn base(&self) -> u64 {
        self.recovered.snapshot.as_ref().map_or(0, |s| s.last.id)
    }

    /// What a batch does, as its documentation says.
    pub(crate) fn apply(&mut self, batch: &Batch) {
        self.number = batch.number;
        let it = &mut self.recovered;
        if let Some(hard) = batch.hard {
            it.hard = hard;
        }
        if let Some(snapshot) = &batch.snapshot {
            if batch.reset {
                it.entries.clear();
            } else {
                it.entries.retain(|entry| entry.id > snapshot.last.id);
            }
            it.committed = snapshot.last.id;
            it.snapshot = Some(snapshot.clone());
        }
        if let Some(from) = batch.truncate {
            it.entries.retain(|entry| entry.id < from);
        }
        it.entries.extend(batch.entries.iter().cloned());
    }

    /// A batch that may follow.
    pub(crate) fn random_batch(&self, rng: &mut Rng) -> Batch {
        let mut batch = Batch {
            number: self.number + 1,
            ..Batch::default()
        };
        let mut after = self.clone();
        let now = self.last().term.get().max(self.recovered.hard.term.get());
        if rng.below(3) == 0 {
            let server = ServerId::new(1 + rng.below(5)).expect("a number");
            let last = self.last();
            batch.hard = Some(HardState {
                term: term(now + rng.below(2)),
                last_reign: self.last().term,
                vote: (rng.below(2) == 0).then(|| Vote {
                    rank: Rank { last, server },
                    storage: (rng.below(2) == 0).then(|| identity().storage),
                }),
            });
        }
        let entries = &self.recovered.entries;
        match rng.below(8) {
            0 if !entries.is_empty() => {
                let index = rng.below(entries.len() as u64) as usize;
                batch.snapshot = Some(snapshot(entries[index].position(), rng));
            }
            1 if rng.below(3) == 0 => {
                let id = self.base() + 1 + rng.below(30);
                batch.snapshot = Some(snapshot(Position::new(term(now + 1), id), rng));
                batch.reset = true;
            }
            2 if !entries.is_empty() => {
                let keep = rng.below(entries.len() as u64 + 1);
                batch.truncate = Some(entries[0].id + keep);
            }
            _ => {}
        }
        after.apply(&batch);
        let at = now.max(after.last().term.get()).max(1);
        for _ in 0..rng.below(4) {
            let id = after.last().id + 1;
            let size = [0, 3, 100, 600, 1500][rng.below(5) as usize];
            // Zeros too: they look like sectors that were never written.
            let fill = [0, 1, 0xff][rng.below(3) as usize];
            let entry = entry(id, at, &vec![fill; size]);
            after.recovered.entries.push(entry.clone());
            batch.entries.push(entry);
        }
        batch
    }
}

/// Whether what was found has everything that `wanted` has: the same, or an
/// older snapshot and the entries since.
pub(crate) fn covers(found: &Recovered, wanted: &Recovered) -> bool {
    if found.snapshot == wanted.snapshot {
        return found == wanted;
    }
    let base = |it: &Recovered| it.snapshot.as_ref().map_or(0, |s| s.last.id);
    let gapless = found
        .entries
        .iter()
        .zip(base(found) + 1..)
        .all(|(e, id)| e.id == id);
    let end = |it: &Recovered| it.entries.last().map_or_else(|| base(it), |entry| entry.id);
    found.hard == wanted.hard
        && base(found) < base(wanted)
        && gapless
        && end(found) == end(wanted)
        && found.entries.ends_with(&wanted.entries)
}

/// In short, for messages.
pub(crate) fn brief(it: &Recovered) -> String {
    let positions: Vec<_> = it.entries.iter().map(Entry::position).collect();
    let snapshot = it.snapshot.as_ref().map(|s| (s.last, s.bytes.len()));
    format!(
        "{:?}, snapshot {snapshot:?}, entries {positions:?}",
        it.hard
    )
}

fn snapshot(last: Position, rng: &mut Rng) -> Snapshot {
    let bytes = vec![rng.below(256) as u8; 1 + rng.below(700) as usize];
    Snapshot {
        last,
        bytes: Arc::new(bytes),
    }
}

/// Calls of `append`, each with a few batches, and the model after each; the
/// first model is before all of them.
pub(crate) fn random_calls(rng: &mut Rng, calls: usize) -> (Vec<Vec<Batch>>, Vec<Model>) {
    let mut model = Model::default();
    let mut models = vec![model.clone()];
    let mut all = Vec::new();
    for _ in 0..calls {
        let mut call = Vec::new();
        for _ in 0..1 + rng.below(3) {
            let batch = model.random_batch(rng);
            model.apply(&batch);
            call.push(batch);
        }
        all.push(call);
        models.push(model.clone());
    }
    (all, models)
}
