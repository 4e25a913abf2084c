//! Proposals that wait until the log has room for them, and whose turn it is: the
//! backpressure on writes, and fair queueing among those who write.
//!
//! The log is one queue: what is appended is sent and synced in its order. So
//! a leader appends no more than drains soon ([`super::admission_window`]), and
//! what is beyond waits here, where it delays no other caller. Every opener of
//! sessions (a token, or an address) has its turn, and among its sessions each
//! has; requests of one session keep their order, which their serials need. A
//! turn is worth [`QUANTUM`] bytes, and a request that is larger saves up for
//! as many turns (*deficit round robin*, Shreedhar and Varghese, 1995).
//!
//! A flow that comes anew begins with a turn: a small write waits for no large
//! one of another. It cannot begin anew at once: a flow that has become empty
//! keeps its place until all others have had a turn (as in *FQ-CoDel*, RFC 8290).
//!
//! Sessions of the servers themselves have no opener in common: each is a flow
//! of its own. Those that are not known are one flow together.
//!
//! The queue and the uncommitted entries share
//! [`Config::uncommitted_bytes`](super::super::config::Config::uncommitted_bytes).
//! An opener may hold here at most twice as much as it leaves for others.

use alloc::collections::{BTreeMap, VecDeque};

use super::super::entry::SessionId;
use super::super::session_owner::SessionOpener;
use super::types::ClientRequest;

/// Bytes that a turn is worth.
const QUANTUM: usize = 64 * 1024;

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) token: u64,
    pub(super) request: ClientRequest,
    /// That of the entry it would be.
    pub(super) weight: usize,
}

/// Whose request it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Flow {
    opener: Opener,
    /// 0 for what opens a session.
    session: SessionId,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Opener {
    Client(SessionOpener),
    /// A session of the servers themselves: this one alone.
    Alone(SessionId),
    /// Sessions that this state does not have, all together: their numbers may
    /// be made up, and one caller can make up many.
    Unknown,
}

impl Flow {
    /// A request of a session that there is not (any more, or yet).
    pub(super) const fn unknown(session: SessionId) -> Self {
        Self {
            opener: Opener::Unknown,
            session,
        }
    }

    /// A request of `session`, which `opener` has opened.
    pub(super) const fn new(opener: SessionOpener, session: SessionId) -> Self {
        let opener = match opener {
            SessionOpener::Server => Opener::Alone(session),
            opener => Opener::Client(opener),
        };
        Self { opener, session }
    }
}

/// Something whose turn may come.
trait RequestQueue: Default {
    /// How heavy is what comes next; `None` if nothing waits. It stays the
    /// same until it is taken, or something is added.
    fn next(&mut self) -> Option<usize>;

    /// Takes what comes next.
    fn pop(&mut self) -> Option<Waiting>;
}

/// The requests of one session.
type SessionQueue = VecDeque<Waiting>;

impl RequestQueue for SessionQueue {
    fn next(&mut self) -> Option<usize> {
        self.front().map(|it| it.weight)
    }

    fn pop(&mut self) -> Option<Waiting> {
        self.pop_front()
    }
}

/// Queues that take turns.
#[derive(Clone, Debug)]
struct Turns<K, Q> {
    queues: BTreeMap<K, Share<Q>>,
    /// Whose turn it is, first.
    order: VecDeque<K>,
}

#[derive(Clone, Default, Debug)]
struct Share<Q> {
    queue: Q,
    /// Bytes that it may still take.
    credit: usize,
    /// It was found empty at its turn, and the others have theirs since.
    found_empty: bool,
}

impl<K, Q> Default for Turns<K, Q> {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Ord + Copy, Q: RequestQueue> Turns<K, Q> {
    /// The queue of `key`, which is about to get something.
    fn queue_of(&mut self, key: K) -> &mut Q {
        let order = &mut self.order;
        let share = self.queues.entry(key).or_insert_with(|| {
            order.push_front(key);
            Share {
                credit: QUANTUM,
                ..Share::default()
            }
        });
        share.found_empty = false;
        &mut share.queue
    }
}

impl<K: Ord + Copy, Q: RequestQueue> RequestQueue for Turns<K, Q> {
    fn next(&mut self) -> Option<usize> {
        loop {
            let share = self.queues.get_mut(self.order.front()?)?;
            match share.queue.next() {
                Some(weight) if weight <= share.credit => return Some(weight),
                Some(_) => share.credit = share.credit.saturating_add(QUANTUM),
                None if !share.found_empty => share.found_empty = true,
                None => {
                    let gone = self.order.pop_front()?;
                    self.queues.remove(&gone);
                    continue;
                }
            }
            self.order.rotate_left(1);
        }
    }

    fn pop(&mut self) -> Option<Waiting> {
        let weight = self.next()?;
        let share = self.queues.get_mut(self.order.front()?)?;
        share.credit -= weight;
        share.queue.pop()
    }
}

/// What waits for room in the log.
#[derive(Clone, Default, Debug)]
pub(super) struct FairQueue {
    openers: Turns<Opener, Turns<SessionId, SessionQueue>>,
    /// Bytes of each opener.
    held: BTreeMap<Opener, usize>,
    /// How many requests of each session wait.
    sessions: BTreeMap<SessionId, usize>,
    len: usize,
    bytes: usize,
}

impl FairQueue {
    /// How many wait.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all of them.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a request of this session waits: then those after it do, too.
    pub(super) fn has(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Whether another request may wait, if there is room for so many bytes.
    pub(super) fn has_room(&self, flow: Flow, weight: usize, free: usize) -> bool {
        let held = self.held.get(&flow.opener).copied().unwrap_or(0);
        let left = free.checked_sub(weight);
        left.is_some_and(|left| held.saturating_add(weight) <= left.saturating_mul(2))
    }

    pub(super) fn push(&mut self, flow: Flow, waiting: Waiting) {
        self.len += 1;
        self.bytes += waiting.weight;
        *self.held.entry(flow.opener).or_default() += waiting.weight;
        *self.sessions.entry(flow.session).or_default() += 1;
        let sessions = self.openers.queue_of(flow.opener);
        sessions.queue_of(flow.session).push_back(waiting);
    }

    /// How heavy the next one is.
    pub(super) fn next(&mut self) -> Option<usize> {
        self.openers.next()
    }

    /// Takes it.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.openers.next()?;
        let opener = *self.openers.order.front()?;
        let sessions = &mut self.openers.queues.get_mut(&opener)?.queue;
        sessions.next()?;
        let session = *sessions.order.front()?;
        let taken = self.openers.pop()?;
        self.len -= 1;
        self.bytes -= taken.weight;
        subtract(&mut self.held, opener, taken.weight);
        subtract(&mut self.sessions, session, 1);
        Some(taken)
    }

    /// The tokens of all that wait.
    pub(super) fn into_tokens(self) -> impl Iterator<Item = u64> {
        let openers = self.openers.queues.into_values();
        let sessions = openers.flat_map(|it| it.queue.queues.into_values());
        let waiting = sessions.flat_map(|it| it.queue);
        waiting.map(|it| it.token)
    }
}

/// Takes `by` from what is counted for `key`, and forgets it at nothing.
fn subtract<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K, by: usize) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= by;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::super::session_owner::OpenSession;
    use super::*;

    const CLIENT: SessionOpener = SessionOpener::Token([1; 16]);
    const OTHER: SessionOpener = SessionOpener::Token([2; 16]);

    fn push(queue: &mut FairQueue, flow: Flow, token: u64, weight: usize) {
        let request = ClientRequest::Open(OpenSession::unowned(1));
        let waiting = Waiting {
            token,
            request,
            weight,
        };
        queue.push(flow, waiting);
    }

    fn all_of(queue: &mut FairQueue, most: usize) -> Vec<u64> {
        let tokens = core::iter::from_fn(|| queue.pop().map(|it| it.token));
        tokens.take(most).collect()
    }

    fn all(queue: &mut FairQueue) -> Vec<u64> {
        core::iter::from_fn(|| queue.pop().map(|it| it.token)).collect()
    }

    #[test]
    fn a_small_request_of_another_waits_for_no_large_one() {
        let mut queue = FairQueue::default();
        for token in 0..10 {
            push(&mut queue, Flow::new(CLIENT, 1), token, 1 << 20);
        }
        assert_eq!(queue.next(), Some(1 << 20));
        push(&mut queue, Flow::new(OTHER, 2), 10, 100);
        assert_eq!(queue.pop().map(|it| it.token), Some(10));
        push(&mut queue, Flow::new(CLIENT, 3), 11, 100);
        assert_eq!(queue.pop().map(|it| it.token), Some(11), "another session");
        assert_eq!(all(&mut queue), Vec::from_iter(0..10), "in their order");
        assert!(queue.is_empty());
        assert_eq!((queue.bytes(), queue.held.len()), (0, 0));
        assert!(queue.sessions.is_empty());
    }

    #[test]
    fn a_flow_that_comes_again_and_again_does_not_keep_others_out() {
        let mut queue = FairQueue::default();
        push(&mut queue, Flow::new(CLIENT, 1), 0, 1 << 20);
        let mut turns = 0;
        loop {
            turns += 1;
            push(&mut queue, Flow::new(OTHER, 2), turns, 1_000);
            let taken = queue.pop().expect("something waits");
            if taken.token == 0 {
                break;
            }
            assert!(turns < 1_100, "as much as the large one is enough");
        }
        assert!(turns > 1, "it has begun with a turn");
    }

    #[test]
    fn openers_share_by_bytes_however_many_sessions_they_have() {
        let mut queue = FairQueue::default();
        for session in 10..110 {
            for _ in 0..4 {
                push(&mut queue, Flow::new(CLIENT, session), 1, 50_000);
            }
        }
        for _ in 0..400 {
            push(&mut queue, Flow::new(OTHER, 2), 2, 5_000);
        }
        let mut bytes = [0; 3];
        while bytes[1] < 1_000_000 {
            let taken = queue.pop().expect("enough waits");
            bytes[taken.token as usize] += taken.weight;
        }
        let (one, other) = (bytes[1], bytes[2]);
        assert!(other.abs_diff(one) <= 2 * QUANTUM, "{one} and {other}");
    }

    #[test]
    fn there_is_room_for_others_however_much_one_brings() {
        let mut queue = FairQueue::default();
        let all = 64 << 20;
        let (one, other) = (Flow::new(CLIENT, 1), Flow::new(OTHER, 2));
        while queue.has_room(one, 1 << 20, all - queue.bytes()) {
            push(&mut queue, one, 1, 1 << 20);
        }
        assert_eq!(queue.bytes(), 42 << 20);
        assert!(queue.has_room(other, 1 << 20, all - queue.bytes()));
        assert!(!queue.has_room(other, 1 << 20, 1 << 20));
        assert_eq!(queue.into_tokens().count(), 42);
    }

    #[test]
    fn sessions_of_servers_have_no_opener_in_common() {
        let flow = |session| Flow::new(SessionOpener::Server, session);
        assert_ne!(flow(1).opener, flow(2).opener);
        assert_eq!(Flow::new(CLIENT, 1).opener, Flow::new(CLIENT, 2).opener);
    }

    /// However many numbers of sessions somebody makes up, their requests have
    /// one share of the turns and of the room.
    #[test]
    fn sessions_that_are_made_up_share_one_turn() {
        let mut queue = FairQueue::default();
        push(&mut queue, Flow::new(OTHER, 1), 7, 100);
        let all = 64 << 20;
        let mut made_up = 1_000;
        while queue.has_room(Flow::unknown(made_up), QUANTUM, all - queue.bytes()) {
            push(&mut queue, Flow::unknown(made_up), 1, QUANTUM);
            made_up += 1;
        }
        assert!(queue.bytes() <= 43 << 20, "{}", queue.bytes());
        let first: Vec<u64> = all_of(&mut queue, 3);
        assert!(first.contains(&7), "{first:?}");
    }
}
