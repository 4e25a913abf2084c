//! Content of workloads in registers of their own: written before the view
//! names it, and deleted when no workload of the view needs it (garbage collection; §1.3,
//! §1.11).
//!
//! A deploy *touches* its content: it writes the bytes, whether or not they
//! are there, and so gives the register a version that no register had
//! before. It goes into a draft of the view only while its touch *holds*. A
//! touch holds from before it was sent on, as long as this node has seen every
//! epoch since, and in none of them a new mark on that digest. A touch that
//! does not hold is made again.
//!
//! The *collector* is the first node of the view that does not drain. It lists
//! the registers of content, a page at a time. What no workload names, and what
//! has kept its version for a span, is *judged*. The collector marks judged
//! digests in the view, by a compare-and-swap of the view.
//!
//! After that swap has succeeded it deletes the register, with the version that
//! it judged before it sent the swap as a precondition. Then it takes the mark
//! away. It never deletes by the mark of another node, and never adds a mark to
//! a digest that has one.
//!
//! # Why is the content of every named digest there?
//!
//! Let a swap from view `w` name the digest `d` by a touch that holds and has
//! written version `u`. Suppose that a deletion of `d` takes effect after the
//! touch. It has a precondition, so its version `x` was judged when the touch
//! had been written, or later. Its mark was swapped in after that, as epoch
//! `m`, from a view without the mark.
//!
//! * `m` is at most `w`: `m` is later than the touch, and so later than the
//!   epoch that was known before the touch was sent. This node has seen every
//!   epoch from that one to `w`, so it has seen the mark appear. The touch
//!   did not hold, and the swap was not sent.
//! * `m` is later than `w`: as long as the view names `d` no node adds the
//!   mark, and without the mark the deletion is not sent. So the view has
//!   stopped naming `d` before.
//!
//! No clock takes part. The span only keeps the collector from disturbing
//! deploys that are under way.
//!
//! # Nodes of before
//!
//! A node of before this rule writes content only if it is not there, and
//! knows no marks. So content is collected only while every line of the view
//! says that its node keeps the rule ([`SERIALS`]). While a mark stands, such
//! a node cannot read the view, and so cannot join.

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use tenure_core::call::{Call, Failure, FailureClass, Pending};
use tenure_core::cas::{Bytes, Expect, Reading};
use tenure_core::ids::{Key, Version};
use tenure_core::time::Instant;

use super::context::Context;
use super::edit::Draft;
use super::types::KeyPage;
use super::view::{MARKS_MAX, SERIALS, View};
use super::{Bug, Digest, NodeId};

/// The most contents that are written at a time.
const TOUCHES_MAX: usize = 16;

/// How many spans pass between two looks at all content, when the last look
/// found nothing to collect.
const REST: u32 = 10;

/// What deploys wait for: content that is being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Uploads {
    items: BTreeMap<Digest, Item>,
    failures: u32,
}

#[derive(Clone, Debug)]
struct Item {
    content: Bytes,
    stage: Stage,
    /// What the last touch expected, and whether it met a conflict and the
    /// register has not been read since.
    sent: Expect,
    conflicted: bool,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Due(Instant),
    Reading(Pending),
    /// Whether the touch will hold, as far as is known.
    Writing(Pending, bool),
    /// The touch holds.
    Touched,
}

impl Uploads {
    /// Whether the touch of that content holds.
    pub(super) fn holds(&self, digest: &Digest) -> bool {
        let item = self.items.get(digest);
        item.is_some_and(|item| matches!(item.stage, Stage::Touched))
    }

    /// Whether the last call failed.
    pub(super) const fn fails(&self) -> bool {
        self.failures > 0
    }

    /// Forgets all: the node has no place in the view.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// There is another view than `before`.
    pub(super) fn another_view(
        &mut self,
        context: &Context,
        before: Option<&View>,
        now: Option<&View>,
    ) {
        let seen = match (before, now) {
            (Some(before), Some(now)) if now.epoch == before.epoch + 1 => Some((before, now)),
            _ => None,
        };
        for (digest, item) in &mut self.items {
            // A mark that stood already was swapped in before the touch was
            // sent, so its deletion has an older version.
            let new = |(before, now): (&View, &View)| {
                now.marks.contains(digest) && !before.marks.contains(digest)
            };
            if seen.is_some_and(|seen| !new(seen)) || context.config.plant.is(Bug::MarkOverlooked) {
                continue;
            }
            match &mut item.stage {
                Stage::Writing(_, holds) => *holds = false,
                Stage::Touched => item.stage = Stage::Due(context.now),
                Stage::Due(_) | Stage::Reading(_) => {}
            }
        }
    }

    /// Does what time has made due for the content that deploys wait for.
    pub(super) fn advance<'a>(
        &mut self,
        context: &mut Context,
        wanted: impl Iterator<Item = (&'a Digest, &'a Bytes)>,
    ) {
        let wanted: BTreeMap<&Digest, &Bytes> = wanted.take(TOUCHES_MAX).collect();
        self.items.retain(|digest, _| wanted.contains_key(digest));
        if wanted.is_empty() {
            self.failures = 0;
        }
        for (digest, content) in wanted {
            let item = self.items.entry(digest.clone()).or_insert_with(|| Item {
                content: content.clone(),
                stage: Stage::Due(context.now),
                sent: Expect::Absent,
                conflicted: false,
            });
            match item.stage {
                Stage::Due(at) if context.now >= at => {
                    item.stage = Stage::Reading(context.read(context.keys.content(digest)));
                }
                Stage::Reading(pending) | Stage::Writing(pending, _)
                    if pending.is_given_up(context.now) =>
                {
                    item.fail(context, &mut self.failures, &Failure::no_answer());
                }
                _ => {}
            }
        }
    }

    /// The answer to a read of content.
    pub(super) fn read(
        &mut self,
        context: &mut Context,
        call: Call,
        result: &Result<Reading, Failure>,
    ) {
        let asked =
            |item: &Item| matches!(item.stage, Stage::Reading(pending) if pending.call == call);
        let found = self.items.iter_mut().find(|(_, item)| asked(item));
        let Some((digest, item)) = found else {
            return;
        };
        match result {
            Ok(reading) => {
                let register = reading.register.as_ref();
                if register.is_some() && context.config.plant.is(Bug::ContentUntouched) {
                    item.stage = Stage::Touched;
                    return;
                }
                // What is there under this name with other bytes is damaged,
                // and is mended by the way.
                let expect =
                    register.map_or(Expect::Absent, |it| Expect::Version(it.version.clone()));
                let key = context.keys.content(digest);
                let conflicted = core::mem::take(&mut item.conflicted);
                if conflicted && item.sent == expect {
                    // No race: the store refuses to write it.
                    let refused = Failure::refused(&key, reading);
                    return item.fail(context, &mut self.failures, &refused);
                }
                item.sent = expect.clone();
                item.stage = Stage::Writing(context.write(key, expect, item.content.clone()), true);
            }
            Err(failure) => item.fail(context, &mut self.failures, failure),
        }
    }

    /// The answer to a touch; whether it holds.
    pub(super) fn wrote(
        &mut self,
        context: &mut Context,
        call: Call,
        result: &Result<Version, Failure>,
    ) -> bool {
        let mut items = self.items.values_mut();
        let found = items.find_map(|item| match item.stage {
            Stage::Writing(pending, holds) if pending.call == call => Some((item, holds)),
            _ => None,
        });
        let Some((item, holds)) = found else {
            return false;
        };
        match result {
            Ok(_) => {
                self.failures = 0;
                item.stage = if holds {
                    Stage::Touched
                } else {
                    Stage::Due(context.now)
                };
                holds
            }
            // Another node has touched it, or deleted it.
            Err(failure) if failure.class == FailureClass::Conflict => {
                item.stage = Stage::Due(context.now);
                item.conflicted = true;
                false
            }
            Err(failure) => {
                item.fail(context, &mut self.failures, failure);
                false
            }
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        let at = self.items.values().map(|item| match item.stage {
            Stage::Due(at) => at,
            Stage::Reading(pending) | Stage::Writing(pending, _) => pending.give_up_at,
            Stage::Touched => Instant::MAX,
        });
        at.min().unwrap_or(Instant::MAX)
    }
}

impl Item {
    fn fail(&mut self, context: &mut Context, failures: &mut u32, failure: &Failure) {
        *failures = failures.saturating_add(1);
        let pause = context.trouble(failure, *failures);
        self.stage = Stage::Due(context.now.after(pause));
    }
}

/// Judges, marks and deletes content that no workload needs.
#[derive(Clone, Debug)]
pub(super) struct Collector {
    /// Whether this node is the one.
    on: bool,
    look: Look,
    /// After which register the page begins that is looked at.
    after: Option<Key>,
    /// What no workload named on that page: the version, and since when it
    /// was seen so.
    peers: BTreeMap<Digest, (Version, Instant)>,
    /// Whether this round over all pages has met something to collect.
    found: bool,
    /// Judged, to be marked by a draft.
    judged: BTreeMap<Digest, Version>,
    /// Marked by the draft that is on its way.
    drafted: BTreeMap<Digest, Version>,
    /// Marked by a swap of this node that has succeeded, to be deleted.
    marked: BTreeMap<Digest, Version>,
    deleting: Option<(Digest, Pending)>,
    delete_at: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Look {
    At(Instant),
    Page(Pending),
}

impl Collector {
    pub(super) const fn new() -> Self {
        Self {
            on: false,
            look: Look::At(Instant::ZERO),
            after: None,
            peers: BTreeMap::new(),
            found: false,
            judged: BTreeMap::new(),
            drafted: BTreeMap::new(),
            marked: BTreeMap::new(),
            deleting: None,
            delete_at: Instant::ZERO,
        }
    }

    /// Forgets all. What is on its way has its version as a precondition, and
    /// the next collector takes the marks away.
    pub(super) fn clear(&mut self) {
        if self.on {
            *self = Self::new();
        }
    }

    /// There is another view than `before`. What a workload has stopped
    /// naming is looked at soon.
    pub(super) fn another_view(
        &mut self,
        context: &Context,
        before: Option<&View>,
        now: Option<&View>,
    ) {
        let (true, Some(before), Some(now)) = (self.on, before, now) else {
            return;
        };
        let gone = |name| !now.workloads.contains_key(name);
        if let Look::At(at) = self.look
            && before.workloads.keys().any(gone)
        {
            self.look = Look::At(at.min(context.now.after(span(context))));
        }
    }

    /// Does what time has made due; whether there is something to draft.
    pub(super) fn advance(&mut self, context: &mut Context, view: &View) -> bool {
        // One node alone saves calls. Safety does not need it.
        let first = view.members.iter().find(|member| !member.draining);
        let knows = |id: NodeId, serial: u64| id == context.me || serial >= SERIALS;
        let all = view.members.iter().all(|it| knows(it.id, it.serial));
        if !all || first.is_none_or(|first| first.id != context.me) {
            self.clear();
            return false;
        }
        if !self.on {
            (self.on, self.look) = (true, Look::At(context.now.after(span(context))));
        }
        match self.look {
            Look::At(at) if context.now >= at => {
                self.look = Look::Page(context.page(self.after.clone()));
            }
            Look::Page(pending) if pending.is_given_up(context.now) => self.look_later(context),
            _ => {}
        }
        if let Some((_, pending)) = &self.deleting
            && pending.is_given_up(context.now)
        {
            self.delete_again(context);
        }
        if context.config.plant.is(Bug::MarkOfAnother) {
            let judged = self.judged.clone().into_iter();
            let stands = judged.filter(|(it, _)| view.marks.contains(it));
            self.marked.extend(stands);
        }
        self.delete(context, view);
        let free = |it: &Digest| !view.marks.contains(it) && !names(view, it);
        self.is_done_with(view) || self.judged.keys().any(free)
    }

    /// Whether marks stand by which this node deletes nothing, or nothing more.
    fn is_done_with(&self, view: &View) -> bool {
        self.marked.is_empty() && !view.marks.is_empty()
    }

    fn look_later(&mut self, context: &Context) {
        self.look = Look::At(context.now.after(pace(context)));
    }

    /// Deletes what is marked, one after the other.
    fn delete(&mut self, context: &mut Context, view: &View) {
        if self.deleting.is_some() || context.now < self.delete_at {
            return;
        }
        let alone = context.config.plant.is(Bug::CollectedByAge);
        // A deploy takes the mark away. Its touch has made another version, so
        // the deletion would fail.
        self.marked.retain(|it, _| alone || view.marks.contains(it));
        if let Some((digest, version)) = self.marked.first_key_value() {
            let key = context.keys.content(digest);
            let pending = context.delete(key, version.clone());
            self.deleting = Some((digest.clone(), pending));
        }
    }

    /// It is not known whether it was deleted. The mark stays until it is:
    /// what is on its way might take effect later.
    fn delete_again(&mut self, context: &Context) {
        self.deleting = None;
        self.delete_at = context.now.after(context.config.interval);
    }

    /// The answer to a deletion.
    pub(super) fn deleted(&mut self, context: &Context, call: Call, result: &Result<(), Failure>) {
        let ours = |(_, pending): &mut (Digest, Pending)| pending.call == call;
        let Some((digest, _)) = self.deleting.take_if(ours) else {
            return;
        };
        match result {
            Err(failure) if failure.class != FailureClass::Conflict => self.delete_again(context),
            // It is gone, or has another version for ever.
            Ok(()) | Err(_) => {
                self.marked.remove(&digest);
                self.peers.remove(&digest);
            }
        }
    }

    /// A page of the registers of content.
    pub(super) fn paged(
        &mut self,
        context: &Context,
        view: &View,
        call: Call,
        result: &Result<KeyPage, Failure>,
    ) {
        match self.look {
            Look::Page(pending) if pending.call == call => {}
            _ => return,
        }
        let Ok(page) = result else {
            return self.look_later(context);
        };
        let plant = context.config.plant;
        let seen = core::mem::take(&mut self.peers);
        let named: BTreeSet<&Digest> = view.workloads.values().map(|it| &it.digest).collect();
        for (key, version) in &page.registers {
            let Some(digest) = context.keys.digest(key).filter(|it| !named.contains(it)) else {
                continue;
            };
            let since = seen.get(&digest).filter(|(known, _)| {
                // Age alone: that it was touched meanwhile counts for nothing.
                known == version || plant.is(Bug::CollectedByAge)
            });
            let since = since.map_or(context.now, |(_, since)| *since);
            self.peers.insert(digest, (version.clone(), since));
        }
        let old = |since: &Instant| context.now >= since.after(span(context));
        let due = self.peers.iter().filter(|(_, (_, since))| old(since));
        let due = due.map(|(digest, (version, _))| (digest.clone(), version.clone()));
        self.judged = due.take(MARKS_MAX).collect();
        let again = !self.judged.is_empty() || (seen.is_empty() && !self.peers.is_empty());
        if plant.is(Bug::CollectedByAge) {
            self.marked = core::mem::take(&mut self.judged);
        }
        self.found |= !self.peers.is_empty();
        if again {
            return self.look_later(context);
        }
        // Nothing more to be done here: the next page, or a rest.
        self.peers.clear();
        let last = page.registers.last().filter(|_| page.more);
        self.after = last.map(|(key, _)| key.clone());
        let rest = if self.after.is_some() {
            context.config.interval
        } else if core::mem::take(&mut self.found) {
            pace(context)
        } else {
            pace(context) * REST
        };
        self.look = Look::At(context.now.after(rest));
    }

    /// What a draft says of marks: what was judged is marked, and all others go
    /// when this node has deleted what it marked itself.
    pub(super) fn draft(&mut self, draft: &mut Draft) {
        self.drafted.clear();
        if !self.on {
            return;
        }
        let marks = draft.view().marks.clone();
        if self.is_done_with(draft.view()) {
            draft.unmark_all();
        }
        for (digest, version) in &self.judged {
            let free = !marks.contains(digest) && !names(draft.view(), digest);
            if free && draft.mark(digest) {
                self.drafted.insert(digest.clone(), version.clone());
            }
        }
    }

    /// The swap of the last draft has ended. Only if it is known to have
    /// succeeded are its marks this node's own.
    pub(super) fn swapped(&mut self, succeeded: bool) {
        let drafted = core::mem::take(&mut self.drafted);
        if succeeded && !drafted.is_empty() {
            self.judged.clear();
            self.marked.extend(drafted);
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        if !self.on {
            return Instant::MAX;
        }
        let look = match self.look {
            Look::At(at) => at,
            Look::Page(pending) => pending.give_up_at,
        };
        let delete = match &self.deleting {
            Some((_, pending)) => pending.give_up_at,
            None if self.marked.is_empty() => Instant::MAX,
            None => self.delete_at,
        };
        look.min(delete)
    }
}

/// Whether a workload of the view is made from that content.
fn names(view: &View, digest: &Digest) -> bool {
    view.workloads.values().any(|it| it.digest == *digest)
}

/// How long content must have kept its version before it is judged.
fn span(context: &Context) -> Duration {
    context.config.drift.lengthen(context.config.keep)
}

/// How long between two looks.
fn pace(context: &Context) -> Duration {
    span(context).max(context.config.interval)
}
