//! One register as a sequential machine, for a checker that is not told
//! everything.
//!
//! Versions are ids of the replicated log. The checker does not predict them
//! (that would take the other entries of the log); it holds them to what is
//! true of any log: each successful swap of a register has a *higher* version
//! than the one before it, and a register shows the version of the swap that
//! wrote it. A swap that was never answered gets a version that nobody was
//! told. It stays open ([`Held::Unseen`]) and is settled by the first call
//! that can only be explained by it; a call that shows that it is *not* some
//! version is remembered too.
//!
//! Values and versions are small numbers here ([`Names`]): versions keep
//! their order, values only their equality.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::cas::{Bytes, Expect};
use tenure_core::ids::Version;

use super::history::{Answer, Ask, Call};

/// A version, from 1 in the order of versions.
pub(super) type Mark = u32;

/// What a call of the sequential machine is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A read that found nothing.
    Nothing,
    /// A read that found this.
    Found { value: u32, version: Mark },
    /// A swap that took effect, with its version if it was told.
    Swapped {
        expect: Option<Mark>,
        value: u32,
        version: Option<Mark>,
    },
    /// A delete that took effect.
    Deleted { expect: Mark },
    /// A swap (or, of a version, a delete) that was refused.
    Refused { expect: Option<Mark> },
    /// What no register answers, such as a version to a read.
    Nonsense,
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
    /// The highest version that is known to have been passed.
    pub(super) floor: Mark,
}

impl State {
    pub(super) const fn new() -> Self {
        Self {
            held: Held::Absent,
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
            Step::Swapped {
                expect,
                value,
                version,
            } => self.met(expect)?.written(value, version),
            Step::Deleted { expect } => {
                let mut next = self.with_version(expect)?;
                next.held = Held::Absent;
                Some(next)
            }
            Step::Refused { expect } => self.refusing(expect),
            Step::Nonsense => None,
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

/// The values and versions of one register's calls, by number.
#[derive(Clone, Debug)]
pub(super) struct Names {
    values: Vec<Bytes>,
    versions: Vec<Version>,
    value_numbers: BTreeMap<Bytes, u32>,
    version_numbers: BTreeMap<Version, Mark>,
}

impl Names {
    pub(super) fn of<'a>(calls: impl Iterator<Item = &'a Call>) -> Self {
        let (mut values, mut versions) = (BTreeSet::new(), BTreeSet::new());
        for call in calls {
            match &call.ask {
                Ask::Read => {}
                Ask::Swap { expect, value } => {
                    values.insert(value.clone());
                    if let Expect::Version(version) = expect {
                        versions.insert(version.clone());
                    }
                }
                Ask::Delete { expect } => {
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
                Some(Answer::Absent | Answer::Deleted | Answer::Conflict) | None => {}
            }
        }
        let values: Vec<_> = values.into_iter().collect();
        let versions: Vec<_> = versions.into_iter().collect();
        Self {
            value_numbers: values.iter().cloned().zip(0..).collect(),
            version_numbers: versions.iter().cloned().zip(1..).collect(),
            values,
            versions,
        }
    }

    pub(super) fn value(&self, number: u32) -> &Bytes {
        &self.values[number as usize]
    }

    pub(super) fn version(&self, mark: Mark) -> &Version {
        &self.versions[mark as usize - 1]
    }

    /// The call as a step; `None` for a read that was not answered, which
    /// can neither be wrong nor do anything.
    pub(super) fn step(&self, ask: &Ask, answer: Option<&Answer>) -> Option<Step> {
        let mark = |version: &Version| self.version_numbers[version];
        let expected = |expect: &Expect| match expect {
            Expect::Absent => None,
            Expect::Version(version) => Some(mark(version)),
        };
        Some(match (ask, answer) {
            (Ask::Read, None) => return None,
            (Ask::Read, Some(Answer::Absent)) => Step::Nothing,
            (Ask::Read, Some(Answer::Holds { value, version })) => Step::Found {
                value: self.value_numbers[value],
                version: mark(version),
            },
            (Ask::Swap { expect, value }, None) => Step::Swapped {
                expect: expected(expect),
                value: self.value_numbers[value],
                version: None,
            },
            (Ask::Swap { expect, value }, Some(Answer::Swapped(version))) => Step::Swapped {
                expect: expected(expect),
                value: self.value_numbers[value],
                version: Some(mark(version)),
            },
            (Ask::Swap { expect, .. }, Some(Answer::Conflict)) => Step::Refused {
                expect: expected(expect),
            },
            (Ask::Delete { expect }, None | Some(Answer::Deleted)) => Step::Deleted {
                expect: mark(expect),
            },
            (Ask::Delete { expect }, Some(Answer::Conflict)) => Step::Refused {
                expect: Some(mark(expect)),
            },
            (Ask::Read | Ask::Swap { .. } | Ask::Delete { .. }, Some(_)) => Step::Nonsense,
        })
    }
}
