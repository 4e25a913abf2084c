//! What the clients of a benchmark do, one step at a time.
//!
//! Whatever is measured is a variant of [`Work`]: it says what it did, how
//! many operations that was, and how it ended. When steps are taken, and what
//! is written down of them, is no business of the work's.

use std::sync::Arc;
use std::time::Duration;

use tenure::StoreError;
use tenure::store::{Bytes, Expect, Key, Stamp, Store, Version, Write};

/// What a step was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A linearizable read.
    Read,
    /// A durable write.
    Write,
    /// An entry appended to the log; the latency is that of the call which
    /// brought it along.
    Append,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Append];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Write => "writes",
            Self::Append => "appends",
        }
    }
}

/// A step that was taken.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) kind: Kind,
    /// How many operations it was: a batch counts as what is in it.
    pub(super) count: u64,
    pub(super) result: Result<(), StoreError>,
}

/// One client's work.
#[derive(Debug)]
pub(super) enum Work {
    /// Reads and compare-and-swaps of registers that nobody else writes.
    Registers(Registers),
    /// Appends to the log of a cluster.
    #[cfg(feature = "cluster")]
    Appends(Appends),
}

impl Work {
    /// Makes what the steps need.
    pub(super) async fn set_up(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Registers(registers) => registers.set_up().await,
            #[cfg(feature = "cluster")]
            Self::Appends(_) => Ok(()),
        }
    }

    /// Takes a step.
    pub(super) async fn step(&mut self) -> Done {
        match self {
            Self::Registers(registers) => registers.step().await,
            #[cfg(feature = "cluster")]
            Self::Appends(appends) => appends.step().await,
        }
    }

    /// Removes what it has made, as far as that can be removed; how much of
    /// it had to stay.
    pub(super) async fn tear_down(&mut self) -> u64 {
        match self {
            Self::Registers(registers) => registers.tear_down().await,
            // A log forgets by itself.
            #[cfg(feature = "cluster")]
            Self::Appends(_) => 0,
        }
    }
}

/// The share of reads, and what is written.
#[derive(Clone, Debug)]
pub struct Mix {
    /// The share of reads, 0 to 1.
    pub reads: f64,
    /// What is written.
    pub value: Bytes,
    /// How long a call may take.
    pub within: Duration,
}

/// What a client knows of a register of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Known {
    At(Version),
    Absent,
    /// A write went wrong: it has to be read.
    Unsure,
}

/// A client with registers of its own, which it uses in turn. Each write
/// expects the version that the last one made, so that every write is a
/// compare-and-swap that must succeed; a conflict means that something is
/// wrong.
#[derive(Debug)]
pub(super) struct Registers {
    store: Arc<dyn Store>,
    registers: Vec<(Key, Known)>,
    next: usize,
    mix: Mix,
    random: u64,
}

impl Registers {
    pub(super) fn new(store: Arc<dyn Store>, keys: Vec<Key>, mix: Mix, seed: u64) -> Self {
        Self {
            store,
            registers: keys.into_iter().map(|key| (key, Known::Absent)).collect(),
            next: 0,
            mix,
            random: seed,
        }
    }

    async fn set_up(&mut self) -> Result<(), StoreError> {
        for (key, known) in &mut self.registers {
            *known = Known::At(put(&*self.store, key, Expect::Absent, &self.mix).await?);
        }
        Ok(())
    }

    async fn step(&mut self) -> Done {
        let reads = self.reads();
        self.next = (self.next + 1) % self.registers.len().max(1);
        let Some((key, known)) = self.registers.get_mut(self.next) else {
            let result = Err(StoreError::broken("expected a client with a register"));
            return done(Kind::Write, result);
        };
        // A register of which nobody knows is read, whatever was drawn.
        if reads || *known == Known::Unsure {
            let found = self.store.read(key, self.mix.within).await;
            let result = found.map(|found| {
                let held = found.register;
                *known = held.map_or(Known::Absent, |held| Known::At(held.version));
            });
            return done(Kind::Read, result);
        }
        let expect = match known {
            Known::At(version) => Expect::Version(version.clone()),
            Known::Absent | Known::Unsure => Expect::Absent,
        };
        let result = match put(&*self.store, key, expect, &self.mix).await {
            Ok(version) => {
                *known = Known::At(version);
                Ok(())
            }
            Err(error) => {
                // Of what was certainly not written the version is the same.
                if !matches!(error, StoreError::Unavailable(_)) {
                    *known = Known::Unsure;
                }
                Err(error)
            }
        };
        done(Kind::Write, result)
    }

    /// Whether the next step is a read (splitmix64).
    fn reads(&mut self) -> bool {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // The upper 32 bits as a number below 1.
        let drawn = f64::from(u32::try_from(mixed >> 32).unwrap_or(u32::MAX)) / 4_294_967_296.0;
        drawn < self.mix.reads
    }

    async fn tear_down(&mut self) -> u64 {
        let mut left = 0;
        for (key, known) in &mut self.registers {
            let found = match known {
                Known::At(version) => Some(version.clone()),
                Known::Absent => continue,
                Known::Unsure => {
                    let found = self.store.read(key, self.mix.within).await.ok();
                    found
                        .and_then(|found| found.register)
                        .map(|held| held.version)
                }
            };
            let deleted = match &found {
                Some(version) => self.store.delete(key, version, self.mix.within).await,
                None => Err(StoreError::Conflict),
            };
            left += u64::from(deleted.is_err());
        }
        left
    }
}

/// A client that appends batches to the log, one call after the other, each
/// entry once.
#[cfg(feature = "cluster")]
#[derive(Debug)]
pub(super) struct Appends {
    client: tenure_client::Client,
    entries: usize,
    entry: Bytes,
}

#[cfg(feature = "cluster")]
impl Appends {
    pub(super) const fn new(client: tenure_client::Client, entries: usize, entry: Bytes) -> Self {
        Self {
            client,
            entries,
            entry,
        }
    }

    async fn step(&mut self) -> Done {
        let batch = (0..self.entries).map(|_| self.entry.to_vec());
        let numbers = self.client.append_many(batch).await;
        Done {
            kind: Kind::Append,
            count: self.entries as u64,
            result: numbers.map(drop).map_err(StoreError::from),
        }
    }
}

fn done(kind: Kind, result: Result<(), StoreError>) -> Done {
    Done {
        kind,
        count: 1,
        result,
    }
}

async fn put(
    store: &dyn Store,
    key: &Key,
    expect: Expect,
    mix: &Mix,
) -> Result<Version, StoreError> {
    let write = Write {
        key: key.clone(),
        expect,
        value: mix.value.clone(),
        stamp: Stamp::Now,
    };
    let written = store.compare_and_swap(write, mix.within).await?;
    Ok(written.version)
}
