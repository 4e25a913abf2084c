//! Quotas of registers: how much room they take, and who may take more.
//!
//! A register stays until it is deleted, on every server, so whoever may write
//! could fill the memory of all. A write that would take more room than a
//! quota has left is refused by the leader before it is proposed. It is never
//! refused when entries are applied: there every server must do the same, and
//! quotas are settings of each.
//!
//! What goes on where a quota is taken: deletes, keep-alives, writes that take
//! no more room than what they replace, and all writes to registers of
//! elections and groups that are there. So leaders renew, hand over and are
//! replaced, and workloads move. The last sixteenth is kept for new registers
//! of elections and groups: a node that comes back joins its group again,
//! however much others write.
//!
//! A command under way counts as if it were done. So those that are admitted
//! one after the other do not pass a quota together. What a leader does not
//! know of is what one before it had under way, and what was asked of it
//! before it was ready: a quota is passed by that, at most by the uncommitted
//! entries of a leader (64 MiB) for each of the two.

use std::collections::{BTreeMap, HashMap};

use tenure_core::alpo::{Ask, Fingerprint, NoRoom, Node, Opener, Operation, Refusal, State};
use tenure_core::cas::{Change, Stamp, Write};
use tenure_core::ha::Keys;
use tenure_core::ids::Key;

use super::errors::{error, name_of};
use crate::api::v1::{self, Cause};

/// The most prefixes of which the room is counted. Those of one file of tokens
/// are half of that, so that there is room for those of the next.
const PREFIXES_MAX: usize = 2 * QUOTA_PREFIXES_MAX;
/// The most prefixes that the tokens of one file have, of those with quotas.
pub(super) const QUOTA_PREFIXES_MAX: usize = 1_024;
/// How many registers are counted in one round, at most, of all prefixes.
const PAGE: usize = 2_048;

/// One part of so many of a quota of all is kept for elections and groups.
const RESERVED: u64 = 16;

/// An amount of room.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Size {
    /// Of keys, values and last wills.
    pub(super) bytes: u64,
    pub(super) registers: u64,
}

impl Size {
    const fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.registers = self.registers.saturating_add(other.registers);
    }

    /// Without what is kept for elections and groups.
    const fn unreserved(self) -> Self {
        Self {
            bytes: self.bytes - self.bytes / RESERVED,
            registers: self.registers - self.registers / RESERVED,
        }
    }

    const fn take(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.registers = self.registers.saturating_sub(other.registers);
    }

    /// What all registers take.
    pub(super) fn of(state: &State) -> Self {
        Self {
            bytes: state.register_bytes(),
            registers: state.registers().len() as u64,
        }
    }
}

/// How much the registers may take that one token may write, whoever wrote
/// them.
#[derive(Debug)]
pub(super) struct Quota {
    /// The half of the token's hash that the log holds of it too.
    pub(super) token: Fingerprint,
    pub(super) most: Size,
    /// How the keys of these registers begin; none begins with another.
    pub(super) prefixes: Vec<String>,
}

impl Quota {
    pub(super) fn new(token: Fingerprint, most: Size, mut prefixes: Vec<String>) -> Self {
        prefixes.sort();
        prefixes.dedup_by(|later, earlier| later.starts_with(&**earlier));
        Self {
            token,
            most,
            prefixes,
        }
    }
}

/// What a command would write.
struct Wanted {
    key: Key,
    /// By how much the room that is taken would grow.
    size: Size,
    /// Whether it is of an election or of a group.
    reserved: bool,
    /// Whether it is done in any case.
    exempt: bool,
}

impl Wanted {
    /// `None` if the command writes no register.
    fn of(state: &State, operation: &Operation) -> Option<Self> {
        let (write, last): (&Write, _) = match operation {
            Operation::Swap(write) if write.stamp == Stamp::Keep => {
                let kept = state.last_will(&write.key);
                (write, kept.map_or(0, |it| it.len()))
            }
            Operation::Swap(write) => (write, 0),
            Operation::Bind(bind) => (&bind.write, bind.last.len()),
            Operation::Append(_)
            | Operation::Delete(_)
            | Operation::KeepAlive
            | Operation::Close => return None,
        };
        let key = &write.key;
        let held = state.registers().read(key);
        // One that expects something else replaces nothing that is known.
        let replaced = held.filter(|it| write.expect.is_met_by(Some(it)));
        let before = replaced.map_or(0, |it| state.weight(key, it));
        let after = key.as_str().len() + write.value.len() + last;
        let size = Size {
            bytes: after.saturating_sub(before) as u64,
            registers: u64::from(replaced.is_none()),
        };
        let kept = [Key::ELECTIONS, Keys::PREFIX];
        let reserved = kept.iter().any(|it| key.as_str().starts_with(it));
        Some(Self {
            key: key.clone(),
            size,
            reserved,
            exempt: reserved && held.is_some(),
        })
    }
}

/// The registers of one prefix.
#[derive(Debug, Default)]
struct Below {
    size: Size,
    /// By how much commands under way may make them grow.
    growing: Size,
    /// Up to which they were counted; `None` at the beginning.
    upto: Option<Key>,
    counted: bool,
}

impl Below {
    /// Those up to there are counted, and what happens to them is told.
    fn changed(&mut self, change: &Change) {
        if !self.counted && self.upto.as_ref().is_none_or(|upto| change.key > *upto) {
            return;
        }
        self.size.bytes = self.size.bytes.saturating_add_signed(change.grown);
        if change.register.is_none() {
            self.size.registers = self.size.registers.saturating_sub(1);
        } else if change.created {
            self.size.registers += 1;
        }
    }

    /// Counts some more, at most `page`, which it lowers.
    fn count(&mut self, state: &State, prefix: &str, page: &mut usize) {
        if self.counted || *page == 0 {
            return;
        }
        let after = self.upto.clone();
        let mut left = state.registers().list_after(prefix, after.as_ref());
        for (key, register) in left.by_ref().take(*page) {
            *page -= 1;
            self.size.add(Size {
                bytes: state.weight(key, register) as u64,
                registers: 1,
            });
            self.upto = Some(key.clone());
        }
        self.counted = left.next().is_none();
    }

    fn forget(&mut self) {
        (self.size, self.upto, self.counted) = (Size::default(), None, false);
    }
}

/// What registers take, and what commands under way may add.
#[derive(Debug)]
pub(super) struct Space {
    /// What all together may take.
    most: Size,
    under_way: HashMap<u64, (Key, Size)>,
    growing: Size,
    below: BTreeMap<String, Below>,
    /// The last change that is counted below them.
    revision: u64,
}

impl Space {
    pub(super) fn new(most: Size) -> Self {
        Self {
            most,
            under_way: HashMap::new(),
            growing: Size::default(),
            below: BTreeMap::new(),
            revision: 0,
        }
    }

    /// What is to be proposed for `ask`: itself, and it is counted as under
    /// way until [`over`](Self::over); or that it is refused if it is new.
    pub(super) fn admit(
        &mut self,
        node: &Node,
        token: u64,
        ask: Ask,
        quota: Option<&Quota>,
    ) -> Ask {
        let state = node.state();
        let Ask::Command(command, claim) = ask else {
            return ask;
        };
        let wanted = Wanted::of(state, &command.operation);
        let Some(wanted) = wanted.filter(|it| it.size != Size::default()) else {
            return Ask::Command(command, claim);
        };
        // One that is not ready does not know what is there.
        let judged = !wanted.exempt && node.is_ready();
        if judged && let Some(refusal) = self.refusal(state, &wanted, quota) {
            return Ask::Repeat(Box::new((command, claim, refusal)));
        }
        self.growing.add(wanted.size);
        for below in self.around(&wanted.key) {
            below.growing.add(wanted.size);
        }
        self.under_way.insert(token, (wanted.key, wanted.size));
        Ask::Command(command, claim)
    }

    /// The command was answered.
    pub(super) fn over(&mut self, token: u64) {
        let Some((key, size)) = self.under_way.remove(&token) else {
            return;
        };
        self.growing.take(size);
        for below in self.around(&key) {
            below.growing.take(size);
        }
    }

    /// Those of which this key is one.
    fn around(&mut self, key: &Key) -> impl Iterator<Item = &mut Below> {
        let around = |prefix: &String| key.as_str().starts_with(&**prefix);
        let below = self.below.iter_mut();
        below.filter_map(move |(prefix, it)| around(prefix).then_some(it))
    }

    fn refusal(
        &mut self,
        state: &State,
        wanted: &Wanted,
        quota: Option<&Quota>,
    ) -> Option<Refusal> {
        let mut held = Size::of(state);
        held.add(self.growing);
        let most = if wanted.reserved {
            self.most
        } else {
            self.most.unreserved()
        };
        if let Some(refusal) = judge(None, held, wanted.size, most) {
            return Some(refusal);
        }
        let quota = quota?;
        self.follow(state, &quota.prefixes);
        let mut held = Size::default();
        for prefix in &quota.prefixes {
            let below = self.below.get(prefix).filter(|it| it.counted);
            let Some(below) = below else {
                return Some(Refusal::Busy);
            };
            held.add(below.size);
            held.add(below.growing);
        }
        judge(Some(quota.token), held, wanted.size, quota.most)
    }

    /// Counts what is below these from now on.
    fn follow(&mut self, state: &State, prefixes: &[String]) {
        let new = prefixes.iter().filter(|it| !self.below.contains_key(*it));
        let new: Vec<_> = new.cloned().collect();
        if self.below.len() + new.len() > PREFIXES_MAX {
            // Those of files of before are among them.
            self.below.clear();
        }
        self.changed(state);
        let mut begun = false;
        for prefix in new {
            let mut below = Below::default();
            for (key, size) in self.under_way.values() {
                if key.as_str().starts_with(&*prefix) {
                    below.growing.add(*size);
                }
            }
            self.below.insert(prefix, below);
            begun = true;
        }
        if begun {
            self.count(state);
        }
    }

    fn count(&mut self, state: &State) {
        let mut page = PAGE;
        for (prefix, below) in &mut self.below {
            below.count(state, prefix, &mut page);
        }
    }

    /// Entries were applied, or there is time to count more. Whether there is
    /// more to count.
    pub(super) fn applied(&mut self, state: &State) -> bool {
        self.changed(state);
        self.count(state);
        self.below.values().any(|it| !it.counted)
    }

    fn changed(&mut self, state: &State) {
        let registers = state.registers();
        let since = std::mem::replace(&mut self.revision, registers.revision());
        if since == self.revision || self.below.is_empty() {
            return;
        }
        match registers.changes_after(since) {
            Ok(changes) => {
                for change in changes {
                    self.around(&change.key).for_each(|it| it.changed(change));
                }
            }
            // A snapshot was taken over, or it was too much at once.
            Err(_) => self.below.values_mut().for_each(Below::forget),
        }
    }

    /// That a quota of all is nearly taken, for people; empty if it is not.
    pub(super) fn full(&self, state: &State) -> String {
        let (held, most) = (Size::of(state), self.most);
        let nearly = |held: u64, most: u64| held >= most - most / 8;
        let mut found = Vec::new();
        if nearly(held.bytes, most.bytes) {
            let (held, most) = (held.bytes, most.bytes);
            found.push(format!("{held} of {most} bytes (--quota-bytes)"));
        }
        if nearly(held.registers, most.registers) {
            let (held, most) = (held.registers, most.registers);
            found.push(format!("{held} of {most} in number (--quota-registers)"));
        }
        if found.is_empty() {
            return String::new();
        }
        let found = found.join(" and ");
        format!(
            "registers take {found}: writes that need more than there is are refused; delete \
             some, or give all servers a higher quota"
        )
    }
}

fn judge(token: Option<Fingerprint>, held: Size, asked: Size, most: Size) -> Option<Refusal> {
    let over = |held: u64, asked: u64, most: u64, number| {
        (asked > 0 && held.saturating_add(asked) > most).then_some(Refusal::NoRoom(NoRoom {
            token,
            number,
            held,
            asked,
            most,
        }))
    };
    over(held.bytes, asked.bytes, most.bytes, false)
        .or_else(|| over(held.registers, asked.registers, most.registers, true))
}

/// What is said of a quota that is taken.
pub(super) fn no_room(why: &NoRoom) -> v1::Error {
    let NoRoom {
        held, asked, most, ..
    } = *why;
    let (what, flag) = if why.number {
        ("registers", "registers")
    } else {
        ("bytes of registers", "bytes")
    };
    let (whose, quota) = match why.token {
        Some(half) => (
            format!("those that {} may write", name_of(&Opener::Token(half))),
            format!("its quota_{flag} in the servers' files of tokens"),
        ),
        None => (
            "those of all clients".to_owned(),
            format!(
                "--quota-{flag} of all servers (of which a sixteenth is kept for elections and \
                 groups)"
            ),
        ),
    };
    v1::Error {
        quota: true,
        ..error(
            Cause::TooLarge,
            format!(
                "expected room for {asked} more {what}, found that {whose} take {held} of {most}, \
                 what is under way included: delete some, or raise {quota}"
            ),
        )
    }
}
