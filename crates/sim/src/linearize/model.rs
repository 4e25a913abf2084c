//! One register as a sequential machine, for a checker that is not told
//! everything.
//!
//! Versions are ids of the replicated log. The checker does not predict them
//! (that would take the other entries of the log); it holds them to what is
//! true of any log: each successful swap of a register has a *higher* version
//! than the one before it, and a register shows the version of the swap that
//! wrote it.
//!
//! A swap that was never answered gets a version that nobody was told. It stays
//! open ([`Held::Unseen`]) and is settled by the first call that can only be
//! explained by it; a call that shows that it is *not* some version is
//! remembered too.
//!
//! A register that is bound to a session ([`Tie`]) takes no write from
//! another, so that a refusal is explained by that too; and the session's
//! end, whenever that is, writes what was said when it was bound, under a
//! version that nobody was told.
//!
//! Values and versions are small numbers here ([`Names`]): versions keep
//! their order, values only their equality.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::cas::{Bytes, Expect};
use tenure_core::ids::Version;

use super::history::{Answer, Call, Invocation};

/// A version, from 1 in the order of versions.
pub(super) type Mark = u32;

/// Stands for every value that nobody was ever shown.
pub(super) const ANY: u32 = u32::MAX;

/// What a call of the sequential machine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A read that found nothing.
    Nothing,
    /// A read that found this.
    Found { value: u32, version: Mark },
    /// A swap that took effect, with its version if it was told.
    Swapped {
        by: Writer,
        expect: Option<Mark>,
        value: u32,
        version: Option<Mark>,
        /// What the register is to hold when the session ends, if it is
        /// bound by this.
        last: Option<u32>,
    },
    /// A delete that took effect.
    Deleted { by: Writer, expect: Mark },
    /// A swap (or, of a version, a delete) that was refused.
    Refused { by: Writer, expect: Option<Mark> },
    /// The session is over.
    Ended { session: u32 },
    /// What no register answers, such as a version to a read.
    Nonsense,
}

impl Step {
    /// In which session that may bind the register it is taken, if in any.
    pub(super) const fn session(self) -> Option<u32> {
        match self {
            Self::Swapped { by, .. } | Self::Deleted { by, .. } | Self::Refused { by, .. } => {
                match by {
                    Writer::Session(0) | Writer::Note => None,
                    Writer::Session(session) => Some(session),
                }
            }
            Self::Ended { session } => Some(session),
            Self::Nothing | Self::Found { .. } | Self::Nonsense => None,
        }
    }
}

/// Who writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Writer {
    /// Somebody in this session; 0 is one that never binds the register.
    Session(u32),
    /// Anybody: a note leaves the register with whom it is bound to.
    Note,
}

/// To whom a register is bound.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Tie {
    pub(super) session: u32,
    /// What it is to hold when the session ends.
    pub(super) last: u32,
}

/// What the register may hold.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Held {
    Absent,
    Known {
        value: u32,
        version: Mark,
    },
    /// Written by a swap that was never answered: some version above the
    /// floor, but none of these.
    Unseen {
        value: u32,
        not: Vec<Mark>,
    },
}

/// A state of the machine.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct State {
    pub(super) held: Held,
    /// To whom it is bound, if it is.
    pub(super) tie: Option<Tie>,
    /// The highest version that is known to have been passed.
    pub(super) floor: Mark,
}

impl State {
    pub(super) const fn new() -> Self {
        Self {
            held: Held::Absent,
            tie: None,
            floor: 0,
        }
    }

    /// The state after `step`, `None` if it cannot be taken here. A step
    /// that was not answered is only ever taken for its effect: without one
    /// it is as if it never happened.
    pub(super) fn after(&self, step: Step) -> Option<Self> {
        match step {
            Step::Nothing => (self.held == Held::Absent).then(|| self.clone()),
            Step::Found { value, version } => {
                let settled = self.with_version(version)?;
                let same = matches!(settled.held, Held::Known { value: held, .. } if held == value);
                same.then_some(settled)
            }
            Step::Swapped { by, .. } | Step::Deleted { by, .. } if self.bars(by) => None,
            // Whatever it expected.
            Step::Refused { by, .. } if self.bars(by) => Some(self.clone()),
            Step::Swapped {
                by,
                expect,
                value,
                version,
                last,
            } => {
                let mut next = self.met(expect)?.written(value, version)?;
                if let Writer::Session(session) = by {
                    next.tie = last.map(|last| Tie { session, last });
                }
                Some(next)
            }
            Step::Deleted { expect, .. } => {
                let mut next = self.with_version(expect)?;
                next.held = Held::Absent;
                next.tie = None;
                Some(next)
            }
            Step::Refused { expect, .. } => self.refusing(expect),
            Step::Ended { session } => {
                let mut next = self.clone();
                if let Some(Tie { last, .. }) = self.tie.filter(|tie| tie.session == session) {
                    next = next.written(last, None)?;
                    next.tie = None;
                }
                Some(next)
            }
            Step::Nonsense => None,
        }
    }

    /// Whether the register is bound to another.
    fn bars(&self, by: Writer) -> bool {
        match (self.tie, by) {
            (Some(tie), Writer::Session(session)) => tie.session != session,
            (None, _) | (_, Writer::Note) => false,
        }
    }

    /// This state if it is as a swap expects.
    fn met(&self, expect: Option<Mark>) -> Option<Self> {
        match expect {
            None => (self.held == Held::Absent).then(|| self.clone()),
            Some(version) => self.with_version(version),
        }
    }

    /// This state if the register has this version.
    fn with_version(&self, wanted: Mark) -> Option<Self> {
        match &self.held {
            Held::Absent => None,
            Held::Known { version, .. } => (*version == wanted).then(|| self.clone()),
            Held::Unseen { value, not } => {
                let may_be = wanted > self.floor && !not.contains(&wanted);
                may_be.then_some(Self {
                    held: Held::Known {
                        value: *value,
                        version: wanted,
                    },
                    tie: self.tie,
                    floor: wanted,
                })
            }
        }
    }

    fn written(mut self, value: u32, version: Option<Mark>) -> Option<Self> {
        self.held = match version {
            None => Held::Unseen {
                value,
                not: Vec::new(),
            },
            Some(version) if version > self.floor => {
                self.floor = version;
                Held::Known { value, version }
            }
            Some(_) => return None,
        };
        Some(self)
    }

    /// This state if it is *not* as expected.
    fn refusing(&self, expect: Option<Mark>) -> Option<Self> {
        let mut next = self.clone();
        match (&mut next.held, expect) {
            (Held::Absent, None) => return None,
            (Held::Absent, Some(_)) | (Held::Known { .. } | Held::Unseen { .. }, None) => {}
            (Held::Known { version, .. }, Some(wanted)) if *version == wanted => return None,
            (Held::Known { .. }, Some(_)) => {}
            (Held::Unseen { not, .. }, Some(wanted)) => {
                if wanted > self.floor && !not.contains(&wanted) {
                    not.push(wanted);
                    not.sort_unstable();
                }
            }
        }
        Some(next)
    }
}

/// The values, versions and sessions of one register's calls, by number.
#[derive(Clone, Debug)]
pub(super) struct Names {
    values: Vec<Bytes>,
    versions: Vec<Version>,
    value_numbers: BTreeMap<Bytes, u32>,
    version_numbers: BTreeMap<Version, Mark>,
    /// Those that bind the register, from 1. All others are as one to it.
    sessions: BTreeMap<u64, u32>,
}

impl Names {
    pub(super) fn of<'a>(calls: impl Iterator<Item = &'a Call>) -> Self {
        let (mut values, mut versions) = (BTreeSet::new(), BTreeSet::new());
        let mut sessions = BTreeSet::new();
        for call in calls {
            if let Invocation::Bind { last, .. } = &call.invocation {
                values.insert(last.clone());
                sessions.insert(call.session);
            }
            match &call.invocation {
                Invocation::Read | Invocation::End => {}
                Invocation::Swap { expect, value }
                | Invocation::Note { expect, value }
                | Invocation::Bind { expect, value, .. } => {
                    values.insert(value.clone());
                    if let Expect::Version(version) = expect {
                        versions.insert(version.clone());
                    }
                }
                Invocation::Delete { expect } => {
                    versions.insert(expect.clone());
                }
            }
            match call.answer.as_ref().map(|(_, answer)| answer) {
                Some(Answer::Holds { value, version }) => {
                    values.insert(value.clone());
                    versions.insert(version.clone());
                }
                Some(Answer::Swapped(version)) => {
                    versions.insert(version.clone());
                }
                Some(Answer::Absent | Answer::Deleted | Answer::Conflict | Answer::Ended)
                | None => {}
            }
        }
        let values: Vec<_> = values.into_iter().collect();
        let versions: Vec<_> = versions.into_iter().collect();
        Self {
            value_numbers: values.iter().cloned().zip(0..).collect(),
            version_numbers: versions.iter().cloned().zip(1..).collect(),
            values,
            versions,
            sessions: sessions.into_iter().zip(1..).collect(),
        }
    }

    pub(super) fn value(&self, number: u32) -> &Bytes {
        &self.values[number as usize]
    }

    pub(super) fn version(&self, mark: Mark) -> &Version {
        &self.versions[mark as usize - 1]
    }

    /// The call as a step, if this was its answer; `None` for a read that was
    /// not answered, which can neither be wrong nor do anything.
    pub(super) fn step(&self, call: &Call, answer: Option<&Answer>) -> Option<Step> {
        let mark = |version: &Version| self.version_numbers[version];
        let session = self.sessions.get(&call.session).copied().unwrap_or(0);
        let by = Writer::Session(session);
        Some(match (&call.invocation, answer) {
            (Invocation::Read, None) => return None,
            (Invocation::Read, Some(Answer::Absent)) => Step::Nothing,
            (Invocation::Read, Some(Answer::Holds { value, version })) => Step::Found {
                value: self.value_numbers[value],
                version: mark(version),
            },
            (Invocation::Swap { expect, value }, answer) => {
                self.write(by, expect, (value, None), answer)
            }
            (Invocation::Note { expect, value }, answer) => {
                self.write(Writer::Note, expect, (value, None), answer)
            }
            (
                Invocation::Bind {
                    expect,
                    value,
                    last,
                },
                answer,
            ) => self.write(by, expect, (value, Some(last)), answer),
            (Invocation::Delete { expect }, None | Some(Answer::Deleted)) => Step::Deleted {
                by,
                expect: mark(expect),
            },
            (Invocation::Delete { expect }, Some(Answer::Conflict)) => Step::Refused {
                by,
                expect: Some(mark(expect)),
            },
            (Invocation::End, None | Some(Answer::Ended)) => Step::Ended { session },
            (Invocation::Read | Invocation::Delete { .. } | Invocation::End, Some(_)) => {
                Step::Nonsense
            }
        })
    }

    /// A write of a value, and perhaps of a last one.
    fn write(
        &self,
        by: Writer,
        expect: &Expect,
        (value, last): (&Bytes, Option<&Bytes>),
        answer: Option<&Answer>,
    ) -> Step {
        let mark = |version: &Version| self.version_numbers[version];
        let expect = match expect {
            Expect::Absent => None,
            Expect::Version(version) => Some(mark(version)),
        };
        let version = match answer {
            None => None,
            Some(Answer::Swapped(version)) => Some(mark(version)),
            Some(Answer::Conflict) => return Step::Refused { by, expect },
            Some(_) => return Step::Nonsense,
        };
        Step::Swapped {
            by,
            expect,
            value: self.value_numbers[value],
            version,
            last: last.map(|last| self.value_numbers[last]),
        }
    }
}
