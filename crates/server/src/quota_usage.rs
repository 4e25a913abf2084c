//! Quotas of registers: how much room they take, and who may take more.
//!
//! A register stays until it is deleted, on every server, so a client that may
//! write could fill the memory of all. A write that would take more room than a
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
//! A token that is no operator's and has no quota of its own takes no more than it
//! leaves: a register that is new, or grows, is refused if those that its token may
//! write would take more than is then left for all. So one token takes half at
//! most, of what is kept for elections and groups as well.
//!
//! The rule does not apply to tokens that may write everything. Writes that go on
//! in any case are refused by it only if the register is large and the token has a
//! sixteenth of all bytes already: without that it could pass the quota by
//! registers that were small when they were created.
//!
//! A command under way counts as if it were done. So those that are admitted
//! one after the other do not pass a quota together. What a leader does not
//! know of is what one before it had under way, and what was asked of it
//! before it was ready: a quota is passed by that, at most by the uncommitted
//! entries of a leader (64 MiB) for each of the two. By as much it is passed
//! where a register is deleted, or made smaller, and written again before that
//! was done: its room counts as taken until then, and is taken by others after.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use tenure_alpo::{
    ClientRequest, Fingerprint, Node, Operation, QuotaExceeded, Refusal, SessionId, SessionOpener,
    State,
};
use tenure_api::v1::{self, Cause};
use tenure_core::cas::{Change, Stamp, Write};
use tenure_core::ids::Key;
use tenure_group::Keys;

use super::errors::{error, name_of};

/// The most prefixes of which the room is counted. Those of one file of tokens
/// are half of that, so that there is room for those of the next.
const PREFIXES_MAX: usize = 2 * QUOTA_PREFIXES_MAX;
/// The most prefixes of the tokens of one file of which the room is counted.
pub(super) const QUOTA_PREFIXES_MAX: usize = 1_024;
/// How many registers are counted in one round, at most, of all prefixes.
const PAGE: usize = 2_048;

/// What the register of an election or of a node has room in, in bytes.
const ORDINARY: u64 = 2_048;

/// One part of so many of a quota of all is kept for elections and groups.
const RESERVED: u64 = 16;

/// An amount of room.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Size {
    /// Of keys, values and on-expiry values.
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

    const fn without(mut self, other: Self) -> Self {
        self.subtract(other);
        self
    }

    const fn fits(self, room: Self) -> bool {
        self.bytes <= room.bytes && self.registers <= room.registers
    }

    const fn subtract(&mut self, other: Self) {
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

/// How much the registers may take that one token may write, no matter who
/// wrote them.
#[derive(Debug)]
pub(super) struct Quota {
    /// The half of the token's hash that the log holds of it too.
    pub(super) token: Fingerprint,
    /// How many bytes; `None` if the file does not say, and they are no more
    /// than those that are left for all.
    bytes: Option<u64>,
    /// The same of their number.
    registers: Option<u64>,
    /// How the keys of these registers begin; none begins with another.
    pub(super) prefixes: Vec<String>,
}

impl Quota {
    pub(super) fn new(
        token: Fingerprint,
        (bytes, registers): (Option<u64>, Option<u64>),
        mut prefixes: Vec<String>,
    ) -> Self {
        prefixes.sort();
        prefixes.dedup_by(|later, earlier| later.starts_with(&**earlier));
        Self {
            token,
            bytes,
            registers,
            prefixes,
        }
    }

    /// Whether the file bounds neither.
    pub(super) const fn is_unset(&self) -> bool {
        self.bytes.is_none() && self.registers.is_none()
    }

    /// How much its registers may take where so much is left for all.
    fn room(&self, left: Size) -> Size {
        Size {
            bytes: self.bytes.unwrap_or(left.bytes),
            registers: self.registers.unwrap_or(left.registers),
        }
    }
}

/// What a command would write.
struct RequestedSpace {
    key: Key,
    /// By how much the room that is taken would grow.
    size: Size,
    /// What the register takes then, in bytes.
    after: u64,
    /// Whether it is of an election or of a group.
    reserved: bool,
    /// Whether it is done where a quota is taken.
    exempt: bool,
}

impl RequestedSpace {
    /// `None` if the command writes no register.
    fn of(state: &State, operation: &Operation) -> Option<Self> {
        let (write, last): (&Write, _) = match operation {
            Operation::Swap(write) if write.stamp == Stamp::Keep => {
                let kept = state.on_expiry_value(&write.key);
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
            after: after as u64,
            reserved,
            exempt: reserved && held.is_some(),
        })
    }
}

/// The registers of one prefix.
#[derive(Debug, Default)]
struct PrefixUsage {
    size: Size,
    /// By how much commands under way may make them grow.
    growing: Size,
    /// Up to which they were counted; `None` at the beginning.
    upto: Option<Key>,
    counted: bool,
}

impl PrefixUsage {
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

/// The session of a command, and its serial.
type CommandId = (SessionId, u64);

/// A command that was proposed, and not answered yet.
#[derive(Debug)]
struct UnderWay {
    /// How many times it was sent.
    sent: usize,
    key: Key,
    size: Size,
}

/// What registers take, and what commands under way may add.
#[derive(Debug)]
pub(super) struct QuotaUsage {
    /// What all together may take.
    most: Size,
    /// By session and serial: one that is sent again is done once.
    under_way: HashMap<CommandId, UnderWay>,
    /// By the token under which they were proposed.
    tokens: HashMap<u64, CommandId>,
    growing: Size,
    by_prefix: BTreeMap<String, PrefixUsage>,
    /// The last change that is counted below them.
    revision: u64,
}

impl QuotaUsage {
    pub(super) fn new(most: Size) -> Self {
        Self {
            most,
            under_way: HashMap::new(),
            tokens: HashMap::new(),
            growing: Size::default(),
            by_prefix: BTreeMap::new(),
            revision: 0,
        }
    }

    /// What is to be proposed for `request`: itself, and it is counted as under
    /// way until [`over`](Self::over); or that it is refused if it is new.
    pub(super) fn admit(
        &mut self,
        node: &Node,
        token: u64,
        request: ClientRequest,
        quota: Option<&Quota>,
    ) -> ClientRequest {
        let state = node.state();
        let ClientRequest::Command(command, claim) = request else {
            return request;
        };
        let wanted = RequestedSpace::of(state, &command.operation);
        let Some(wanted) = wanted.filter(|it| it.size != Size::default()) else {
            return ClientRequest::Command(command, claim);
        };
        // One that is not ready does not know what is there.
        if node.is_ready()
            && let Some(refusal) = self.refusal(state, &wanted, quota)
        {
            return ClientRequest::RefuseIfNew(Box::new((command, claim, refusal)));
        }
        let id = (command.session, command.serial);
        self.begin(token, id, (wanted.key, wanted.size));
        ClientRequest::Command(command, claim)
    }

    /// The command is under way, once more perhaps.
    fn begin(&mut self, token: u64, id: CommandId, (key, size): (Key, Size)) {
        self.tokens.insert(token, id);
        if let Some(under_way) = self.under_way.get_mut(&id) {
            under_way.sent += 1;
            return;
        }
        self.growing.add(size);
        for below in self.prefixes_of(&key) {
            below.growing.add(size);
        }
        let sent = 1;
        self.under_way.insert(id, UnderWay { sent, key, size });
    }

    /// The command was answered.
    pub(super) fn answered(&mut self, token: u64) {
        let Some(id) = self.tokens.remove(&token) else {
            return;
        };
        let Entry::Occupied(mut found) = self.under_way.entry(id) else {
            return;
        };
        found.get_mut().sent -= 1;
        if found.get().sent > 0 {
            return;
        }
        let UnderWay { key, size, .. } = found.remove();
        self.growing.subtract(size);
        for below in self.prefixes_of(&key) {
            below.growing.subtract(size);
        }
    }

    /// Those of which this key is one.
    fn prefixes_of(&mut self, key: &Key) -> impl Iterator<Item = &mut PrefixUsage> {
        let around = |prefix: &String| key.as_str().starts_with(&**prefix);
        let below = self.by_prefix.iter_mut();
        below.filter_map(move |(prefix, it)| around(prefix).then_some(it))
    }

    fn refusal(
        &mut self,
        state: &State,
        wanted: &RequestedSpace,
        quota: Option<&Quota>,
    ) -> Option<Refusal> {
        let mut all = Size::of(state);
        all.add(self.growing);
        let most = if wanted.reserved {
            self.most
        } else {
            self.most.unreserved()
        };
        let refused = judge(all, wanted.size, most).filter(|_| !wanted.exempt);
        if let Some(it) = refused {
            return Some(Refusal::QuotaExceeded(it));
        }
        let quota = quota?;
        if wanted.exempt && (quota.bytes.is_some() || wanted.after <= self.mean()) {
            return None;
        }
        all.add(wanted.size);
        let room = quota.room(most.without(all));
        // Its own are among all: there is no need to count them.
        if all.fits(room) {
            return None;
        }
        let Some(held) = self.held(state, quota) else {
            return (!wanted.exempt).then_some(Refusal::Busy);
        };
        let mut asked = wanted.size;
        if wanted.exempt {
            if held.bytes <= self.most.bytes / RESERVED {
                return None;
            }
            asked.registers = 0;
        }
        let refused = judge(held, asked, room)?;
        let said = if refused.number {
            quota.registers
        } else {
            quota.bytes
        };
        Some(Refusal::QuotaExceeded(QuotaExceeded {
            token: Some(quota.token),
            shared: said.is_none(),
            ..refused
        }))
    }

    /// As many bytes as there are for each register if there are as many as
    /// there may be, and no fewer than a record or a heartbeat takes: quotas of
    /// few bytes would make all of them large, and leaders fall.
    fn mean(&self) -> u64 {
        (self.most.bytes / self.most.registers.max(1)).max(ORDINARY)
    }

    /// What the registers take that the token of this quota may write; `None`
    /// if they are not counted yet.
    fn held(&mut self, state: &State, quota: &Quota) -> Option<Size> {
        self.follow(state, &quota.prefixes);
        let mut held = Size::default();
        for prefix in &quota.prefixes {
            let below = self.by_prefix.get(prefix).filter(|it| it.counted)?;
            held.add(below.size);
            held.add(below.growing);
        }
        Some(held)
    }

    /// Counts what is below these from now on.
    fn follow(&mut self, state: &State, prefixes: &[String]) {
        let new = prefixes
            .iter()
            .filter(|it| !self.by_prefix.contains_key(*it));
        let new: Vec<_> = new.cloned().collect();
        if self.by_prefix.len() + new.len() > PREFIXES_MAX {
            // Those of files of before are among them.
            self.by_prefix.clear();
        }
        self.changed(state);
        let mut begun = false;
        for prefix in new {
            let mut below = PrefixUsage::default();
            for UnderWay { key, size, .. } in self.under_way.values() {
                if key.as_str().starts_with(&*prefix) {
                    below.growing.add(*size);
                }
            }
            self.by_prefix.insert(prefix, below);
            begun = true;
        }
        if begun {
            self.count(state);
        }
    }

    fn count(&mut self, state: &State) {
        let mut page = PAGE;
        for (prefix, below) in &mut self.by_prefix {
            below.count(state, prefix, &mut page);
        }
    }

    /// Entries were applied, or there is time to count more. Whether there is
    /// more to count.
    pub(super) fn applied(&mut self, state: &State) -> bool {
        self.changed(state);
        self.count(state);
        self.by_prefix.values().any(|it| !it.counted)
    }

    fn changed(&mut self, state: &State) {
        let registers = state.registers();
        let since = std::mem::replace(&mut self.revision, registers.revision());
        if since == self.revision || self.by_prefix.is_empty() {
            return;
        }
        match registers.changes_after(since) {
            Ok(changes) => {
                for change in changes {
                    self.prefixes_of(&change.key)
                        .for_each(|it| it.changed(change));
                }
            }
            // A snapshot was taken over, or it was too much at once.
            Err(_) => self.by_prefix.values_mut().for_each(PrefixUsage::forget),
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

fn judge(held: Size, asked: Size, most: Size) -> Option<QuotaExceeded> {
    let over = |held: u64, asked: u64, most: u64, number| {
        (asked > 0 && held.saturating_add(asked) > most).then_some(QuotaExceeded {
            token: None,
            shared: false,
            number,
            held,
            asked,
            most,
        })
    };
    over(held.bytes, asked.bytes, most.bytes, false)
        .or_else(|| over(held.registers, asked.registers, most.registers, true))
}

/// What is said of a quota that is taken.
pub(super) fn no_room(why: &QuotaExceeded) -> v1::Error {
    let QuotaExceeded {
        held, asked, most, ..
    } = *why;
    let (what, flag) = if why.number {
        ("registers", "registers")
    } else {
        ("bytes of registers", "bytes")
    };
    let under_way = "what is under way included";
    let token = why.token.map(|half| name_of(&SessionOpener::Token(half)));
    let found = match token {
        Some(token) if why.shared => format!(
            "those that {token} may write take {held}, {under_way}, and that {most} would be left \
             for all clients. A token without quota_{flag} takes no more than it leaves: delete \
             some, give it quota_{flag} in the servers' files of tokens, or raise --quota-{flag} \
             of all servers"
        ),
        Some(token) => format!(
            "those that {token} may write take {held} of {most}, {under_way}: delete some, or \
             raise its quota_{flag} in the servers' files of tokens"
        ),
        None => format!(
            "those of all clients take {held} of {most}, {under_way}: delete some, or raise \
             --quota-{flag} of all servers (of which a sixteenth is kept for elections and groups)"
        ),
    };
    let text = format!("expected room for {asked} more {what}, found that {found}");
    v1::Error {
        quota: true,
        ..error(Cause::TooLarge, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_sent_again_counts_once() {
        let size = |bytes| Size {
            bytes,
            registers: 1,
        };
        let key = |name| Key::new(name).expect("a key");
        let mut usage = QuotaUsage::new(size(1_000));
        usage.begin(1, (7, 1), (key("a"), size(100)));
        // What the second time finds there does not matter.
        usage.begin(2, (7, 1), (key("a"), size(60)));
        usage.begin(3, (7, 2), (key("b"), size(10)));
        assert_eq!((usage.growing.bytes, usage.growing.registers), (110, 2));
        usage.answered(1);
        assert_eq!((usage.growing.bytes, usage.growing.registers), (110, 2));
        usage.answered(2);
        assert_eq!((usage.growing.bytes, usage.growing.registers), (10, 1));
        usage.answered(3);
        usage.answered(3);
        assert_eq!(usage.growing, Size::default());
        assert!(usage.under_way.is_empty() && usage.tokens.is_empty());
    }
}
