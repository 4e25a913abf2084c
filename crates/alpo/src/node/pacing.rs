//! Flow control (etcd: `Inflights`): how much of the log, or of a snapshot, may
//! be on its way to one peer.
//!
//! Heartbeats share a connection with entries, and what is sent before them
//! arrives before them. So entries on their way must be fewer than the link
//! carries in a part of the election timeout, or heartbeats come too late:
//! then the leader hears no majority and steps down, and followers stand,
//! although every server and every link works. How much that is no server knows
//! beforehand: a link may carry 10 MB a second or 10 GB.
//!
//! A peer answers a heartbeat as soon as it arrives. Its answer says two
//! things. *What has arrived*: all that was sent before it. *How long the queue
//! is*: by how much the answer took longer than the fastest one of this
//! leadership, whose delay is that of the link alone.
//!
//! If that is more than a quarter of the timeout, half as much may be on its
//! way from now on; if the queue is short and the window was used up, a quarter
//! more, or twice as much as long as there never was a queue (slow start). It
//! begins with the least. So an empty link is filled within some heartbeats, and
//! its queue stays below about half of a timeout. This is how Vegas and LEDBAT pace
//! a connection; a loss says nothing here, since a connection loses nothing while
//! it is up.
//!
//! Answers to entries tell only what has arrived: they wait for a disk. So do
//! those to chunks of snapshots, which are paced as entries are: one is on its
//! way at a time, and is no larger than the window.
//!
//! A link that becomes slower by itself in one leadership (another route, by
//! more than a quarter of the timeout) looks like a queue. Then entries go in
//! the smallest window until there is another leader.

use alloc::collections::VecDeque;
use core::time::Duration;

use tenure_core::time::Instant;

use super::super::config::Config;
use super::super::message::Reply;

/// Requests that are kept to be recognised by their answers. Of more only the
/// bytes are counted: a later answer tells of them as well.
const MARKS: usize = 256;

/// The pace of one peer, in one leadership.
#[derive(Clone, Debug)]
pub(super) struct Pacing {
    /// Bytes that may be on their way.
    window: usize,
    /// Bytes sent so far, and how many of these are known to have arrived.
    sent: u64,
    arrived: u64,
    marks: VecDeque<Mark>,
    /// The least delay of a heartbeat's answer.
    least: Option<Duration>,
    /// The window was used up since it was judged last.
    is_used_up: bool,
    /// There was a queue once: until then the window doubles.
    has_queued: bool,
    /// The last request before the window was halved: answers up to this one
    /// tell of the queue of before.
    halved_at: u64,
}

/// A request on its way.
#[derive(Clone, Debug)]
struct Mark {
    number: u64,
    /// With all that was sent before it.
    sent: u64,
    at: Instant,
}

impl Pacing {
    pub(super) const fn new(config: &Config) -> Self {
        Self {
            // The least: nothing is known of the link yet, and what is sent too
            // much in the first moment costs the leadership.
            window: least_window(config),
            sent: 0,
            arrived: 0,
            marks: VecDeque::new(),
            least: None,
            is_used_up: false,
            has_queued: false,
            halved_at: 0,
        }
    }

    /// How many bytes the next request may have; `None` if none may be sent.
    /// It is not cut to what is left of the window: that would make many small
    /// ones of it.
    pub(super) fn room(&mut self, config: &Config) -> Option<usize> {
        let is_open = self.sent - self.arrived < self.window as u64;
        self.is_used_up |= !is_open;
        is_open.then_some(self.window.min(config.append_bytes))
    }

    /// Request `number` was sent, with so many bytes of entries or of a
    /// snapshot.
    pub(super) fn sends(&mut self, number: u64, bytes: usize, at: Instant) {
        self.sent += bytes as u64;
        if self.marks.len() < MARKS {
            let sent = self.sent;
            self.marks.push_back(Mark { number, sent, at });
        }
    }

    /// Request `number` was answered. Heartbeats are answered at once.
    pub(super) fn hears(&mut self, number: u64, reply: &Reply, now: Instant, config: &Config) {
        let prompt = matches!(reply, Reply::Heard { .. });
        self.answered(number, prompt.then_some(now), config);
    }

    /// Request `number` was answered: what was sent before it has arrived.
    /// `prompt`: now, if the peer has answered as soon as it came.
    fn answered(&mut self, number: u64, prompt: Option<Instant>, config: &Config) {
        let mut delay = None;
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.number <= number) {
            self.arrived = mark.sent;
            let now = prompt.filter(|_| mark.number == number);
            delay = now.map(|now| now.since(mark.at));
        }
        if let Some(delay) = delay {
            self.judge(number, delay, config);
        }
    }

    /// Heartbeat `number` was answered after so long.
    fn judge(&mut self, number: u64, delay: Duration, config: &Config) {
        let least = self.least.map_or(delay, |least| least.min(delay));
        self.least = Some(least);
        let queue = delay - least;
        self.has_queued |= queue >= config.timeout / 8;
        if queue > config.timeout / 4 {
            if number > self.halved_at {
                self.window = (self.window / 2).max(least_window(config));
                self.halved_at = self.marks.back().map_or(number, |mark| mark.number);
            }
        } else if queue < config.timeout / 8 && self.is_used_up {
            let most = config.append_bytes.saturating_mul(config.window);
            let more = if self.has_queued {
                self.window.div_ceil(4)
            } else {
                self.window
            };
            self.window = (self.window + more).min(most);
        }
        self.is_used_up = false;
    }
}

/// The smallest window.
const fn least_window(config: &Config) -> usize {
    config.append_bytes.div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// A link that carries so many bytes a millisecond, for as many
    /// milliseconds; a heartbeat every 50. The longest that one took, in the
    /// first second and after it, and the bytes that went through.
    fn run(bytes_a_milli: u64, millis: u64) -> ([Duration; 2], u64) {
        let config = Config {
            timeout: Duration::from_millis(250),
            ..Config::default()
        };
        let mut pacing = Pacing::new(&config);
        let (mut queue, mut carried) = (VecDeque::new(), 0);
        let (mut number, mut slowest, mut credit) = (0, [Duration::ZERO; 2], 0);
        for now in 0..millis {
            if now % 50 == 0 {
                number += 1;
                pacing.sends(number, 0, at(now));
                queue.push_back((number, 0, Some(now)));
            }
            while let Some(room) = pacing.room(&config) {
                number += 1;
                pacing.sends(number, room, at(now));
                queue.push_back((number, room as u64, None));
            }
            credit += bytes_a_milli;
            while let Some((number, bytes, beat)) = queue.pop_front_if(|it| it.1 <= credit) {
                credit -= bytes;
                carried += bytes;
                match beat {
                    Some(sent) => {
                        pacing.answered(number, Some(at(now)), &config);
                        let took = Duration::from_millis(now - sent);
                        let slowest = &mut slowest[usize::from(now >= 1_000)];
                        *slowest = took.max(*slowest);
                    }
                    None => pacing.answered(number, None, &config),
                }
            }
            if queue.is_empty() {
                credit = 0;
            }
        }
        (slowest, carried)
    }

    /// What two followers share of 20 and 100 Mbit/s, 1 Gbit/s and 10 Gbit/s,
    /// from the first moment of a leadership.
    #[test]
    fn heartbeats_are_in_time_on_a_link_that_is_kept_full() {
        for bytes_a_milli in [1_250, 6_250, 62_500, 625_000] {
            let ([at_first, slowest], carried) = run(bytes_a_milli, 10_000);
            assert!(
                at_first < Duration::from_millis(200) && slowest < Duration::from_millis(150),
                "{bytes_a_milli}: {at_first:?}, {slowest:?}"
            );
            let share = carried * 100 / (bytes_a_milli * 10_000);
            assert!(share > 85, "{bytes_a_milli}: {share} of 100 were used");
        }
    }

    #[test]
    fn a_peer_that_is_silent_costs_no_memory_and_an_answer_tells_of_all_before_it() {
        let config = Config::default();
        let mut pacing = Pacing::new(&config);
        pacing.sends(1, config.append_bytes, at(0));
        assert_eq!(pacing.room(&config), None);
        for number in 2..10_000 {
            pacing.sends(number, 0, at(number));
        }
        assert_eq!(pacing.marks.len(), MARKS);
        pacing.answered(9_999, Some(at(10_000)), &config);
        assert_eq!(pacing.room(&config), Some(least_window(&config)));
    }
}
