//! Handshakes with several hosts at a time. The first one that succeeds is used.

use std::time::Duration;

use tenure_core::time::Instant;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::error::{StoreError, about};
use crate::store::panics::caught;

/// How long one host may take for its whole handshake. A distant server with
/// TLS and a password takes ten round trips.
pub(in crate::store) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(20);
/// How long a host may keep silent before the next one is tried beside it.
pub(super) const NEXT_HOST_AFTER: Duration = Duration::from_secs(2);
/// How soon a host that has refused is asked again, and how late at most.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(250);
pub(super) const AGAIN_AFTER_MAX: Duration = Duration::from_secs(1);

/// Whether what keeps silent is asked again beside the handshake that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store) enum Repeats {
    /// A host has two handshakes at most: one that waits for as long as a handshake may,
    /// since the host may be distant, and one that is given up for the next after
    /// [`NEXT_HOST_AFTER`] for each host. Only that one reaches a host that has forgotten
    /// the other, or whose name means another address since.
    OfSilentOnes,
    /// For the addresses of a host: the host as a whole is asked again.
    Never,
}

/// Tries what `order` names, each beside the one before it if that keeps
/// silent, and again what refuses meanwhile; the first that succeeds. `tell` hears
/// what is begun, and how it failed. To be called on the background thread.
pub(in crate::store) async fn race<K, T, F>(
    order: impl Iterator<Item = K>,
    repeats: Repeats,
    connect_to: impl Fn(K) -> F,
    mut tell: impl FnMut(K, Option<&StoreError>),
) -> Option<(K, T)>
where
    K: Copy + Send + 'static,
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let mut hosts = Hosts::of(order, repeats);
    let mut handshakes = JoinSet::new();
    let begin = |it: Handshake, host: K, handshakes: &mut JoinSet<_>| {
        let handshake = caught(connect_to(host));
        handshakes.spawn(async move { (timeout(HANDSHAKE_WITHIN, handshake).await, it) })
    };
    loop {
        let now = clock::boot();
        while let Some(it) = hosts.due(now) {
            let host = hosts.all.get(it.host)?.name;
            if it.kind == Kind::First {
                tell(host, None);
            }
            let task = begin(it, host, &mut handshakes);
            hosts.begun(it, task);
        }
        let due = hosts.next_due();
        let (it, error, is_refused) = tokio::select! {
            ended = handshakes.join_next() => match ended {
                Some(Ok((Ok(Ok(connected)), it))) => {
                    return Some((hosts.all.get(it.host)?.name, connected));
                }
                Some(Ok((Ok(Err(error)), it))) => {
                    let is_refused = matches!(error, StoreError::Unavailable(_));
                    (it, error, is_refused)
                }
                Some(Ok((Err(_), it))) => {
                    let why = format!("no answer within {}", about(HANDSHAKE_WITHIN));
                    (it, StoreError::unavailable(why), false)
                }
                // It was given up for another, or the runtime ends.
                Some(Err(_)) => continue,
                None => return None,
            },
            () = sleep(due.map_or(HANDSHAKE_WITHIN, |due| due.since(now))) => continue,
        };
        let name = hosts.all.get(it.host)?.name;
        tell(name, Some(&error));
        let is_broken = matches!(error, StoreError::Broken(_));
        hosts.ended(it, is_broken, is_refused, clock::boot());
        if hosts.are_done() {
            return None;
        }
    }
}

/// A handshake with the host of this number.
#[derive(Clone, Copy, Debug)]
struct Handshake {
    host: usize,
    kind: Kind,
    /// How long after a refusal the host is asked again.
    again_after: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The first one with its host.
    First,
    /// After a refusal.
    Again,
    /// Beside another one that waits.
    Repeat,
}

/// A host, and what was begun with it.
struct Tried<K> {
    name: K,
    /// How many handshakes wait, but for the repeat.
    waiting: u32,
    /// Whether the first handshake waits: nothing has come of this host yet.
    first_waits: bool,
    repeat: Option<AbortHandle>,
    /// Set once a person must mend something: a wrong password is not tried until the
    /// account is locked.
    is_broken: bool,
}

/// Which host is asked when.
struct Hosts<K> {
    all: Vec<Tried<K>>,
    repeats: Repeats,
    /// How many had their first handshake.
    begun: usize,
    /// The host whose turn to be asked again it is.
    turn: usize,
    next_at: Instant,
    refused: Vec<(Instant, Handshake)>,
}

impl<K> Hosts<K> {
    fn of(order: impl Iterator<Item = K>, repeats: Repeats) -> Self {
        let tried = |name| Tried {
            name,
            waiting: 0,
            first_waits: false,
            repeat: None,
            is_broken: false,
        };
        Self {
            all: order.map(tried).collect(),
            repeats,
            begun: 0,
            turn: 0,
            next_at: clock::boot(),
            refused: Vec::new(),
        }
    }

    /// What is to be begun now.
    fn due(&mut self, now: Instant) -> Option<Handshake> {
        if let Some(at) = self.refused.iter().position(|(at, _)| *at <= now) {
            return Some(self.refused.swap_remove(at).1);
        }
        if self.next_at > now {
            return None;
        }
        self.next_at = now.after(NEXT_HOST_AFTER);
        let (host, kind) = if self.begun < self.all.len() {
            self.begun += 1;
            (self.begun - 1, Kind::First)
        } else {
            (self.silent()?, Kind::Repeat)
        };
        Some(Handshake {
            host,
            kind,
            again_after: AGAIN_AFTER,
        })
    }

    /// The next host that keeps silent, in turn.
    fn silent(&mut self) -> Option<usize> {
        if self.repeats == Repeats::Never {
            return None;
        }
        let count = self.all.len();
        let mut turns = (self.turn..self.turn + count).map(|turn| turn % count);
        let host = turns.find(|&host| {
            let host = self.all.get(host);
            host.is_some_and(|it| it.waiting > 0 && !it.is_broken)
        })?;
        self.turn = host + 1;
        Some(host)
    }

    /// When something is due next.
    fn next_due(&self) -> Option<Instant> {
        let next = self.begun < self.all.len() || self.repeats == Repeats::OfSilentOnes;
        let due = self.refused.iter().map(|(at, _)| *at);
        due.chain(next.then_some(self.next_at)).min()
    }

    fn begun(&mut self, it: Handshake, task: AbortHandle) {
        let Some(host) = self.all.get_mut(it.host) else {
            return;
        };
        host.first_waits |= it.kind == Kind::First;
        if it.kind != Kind::Repeat {
            host.waiting += 1;
        } else if let Some(before) = host.repeat.replace(task) {
            before.abort();
        }
    }

    fn ended(&mut self, it: Handshake, is_broken: bool, is_refused: bool, now: Instant) {
        let Some(host) = self.all.get_mut(it.host) else {
            return;
        };
        host.is_broken |= is_broken;
        if it.kind == Kind::Repeat {
            return;
        }
        host.waiting -= 1;
        host.first_waits &= it.kind != Kind::First;
        if is_refused {
            let again = Handshake {
                kind: Kind::Again,
                again_after: (it.again_after * 2).min(AGAIN_AFTER_MAX),
                ..it
            };
            self.refused.push((now.after(it.again_after), again));
        }
        if self.begun < self.all.len() {
            self.next_at = now;
        }
    }

    /// Whether something has come of each host. Handshakes with hosts that have refused
    /// before are not waited for: where refusals take long there may always be one.
    fn are_done(&self) -> bool {
        self.begun >= self.all.len() && self.all.iter().all(|it| !it.first_waits)
    }
}
