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
//! it is up. After each change the window is judged by heartbeats alone that
//! were sent when it had taken effect.
//!
//! Answers to entries tell only what has arrived: they wait for a disk. So do
//! those to chunks of snapshots, which are paced as entries are: one is on its
//! way at a time, and is no larger than the window.
//!
//! # A link that becomes longer
//!
//! A link that takes longer from some moment on (another route) looks like a
//! queue. A queue can be told from it by making it shorter. So in each period of
//! [`MEASURED_EVERY`] timeouts the window is half as large for one timeout
//! (LEDBAT++ calls this a periodic slowdown). On a link that is full the delay is
//! in proportion to what is on its way. So where it was `d` with the whole
//! window and is `h` with half of it, the link alone takes `2h - d`: nothing if
//! the delay was all queue, and `d` if none of it was. If that is more than the
//! least delay, it is the new least, and a window of any size is tried again.
//!
//! On a link that is full it is never more than the link truly takes. Disturbed
//! answers may make it so. But it is at most `h`, half of a delay that the window
//! allows, and that is (least + a quarter of the timeout). So errors alone raise
//! the least to a quarter of the timeout at most, and the queue to a half.
//!
//! Peers may share a link. If one halved its window alone, it would take the
//! queue of the others for the length of the link; then its own would grow,
//! and so on. So all peers of a leader are measured at the same time, by when
//! its heartbeats are sent.

use alloc::collections::VecDeque;
use core::time::Duration;

use tenure_core::time::{Instant, nanos};

use super::super::config::Config;
use super::super::message::Reply;

/// Requests that are kept to be recognised by their answers. Of more only the
/// bytes are counted: a later answer tells of them as well.
const MARKS: usize = 256;

/// In election timeouts: how often links are measured. Rarely enough that half a
/// window costs little, often enough that a link that became longer is used
/// again soon.
const MEASURED_EVERY: u64 = 5;

/// No request yet.
const NOT_YET: u64 = u64::MAX;

/// The pace of one peer, in one leadership.
#[derive(Clone, Debug)]
pub(super) struct Pacing {
    /// Bytes that may be on their way.
    window: usize,
    /// Bytes sent so far, and how many of these are known to have arrived.
    sent: u64,
    arrived: u64,
    marks: VecDeque<Mark>,
    /// The last request that was sent.
    last: u64,
    /// Answers tell of a window that became smaller if they are to requests
    /// after this one, and of one that was used up since it became larger after
    /// that one; [`NOT_YET`] while none do.
    small_after: u64,
    full_after: u64,
    /// There was a queue once: until then the window doubles.
    has_queued: bool,
    /// The least delay of a heartbeat's answer, and the longest of the last ones.
    least: Option<Duration>,
    longest: Duration,
    /// The period of [`MEASURED_EVERY`] in which the last heartbeat that was
    /// answered was sent.
    period: u64,
    /// The window was used up in this period.
    is_used_up: bool,
    measurement: Option<Measurement>,
}

/// The window is half as large, to measure the link.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    /// The delay with the whole window, and the least one with half of it.
    whole: Duration,
    half: Option<Duration>,
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
            last: 0,
            small_after: 0,
            full_after: NOT_YET,
            has_queued: false,
            least: None,
            longest: Duration::ZERO,
            period: 0,
            is_used_up: false,
            measurement: None,
        }
    }

    /// Bytes that may be on their way at present.
    pub(super) const fn window(&self) -> usize {
        match self.measurement {
            Some(_) => self.window.div_ceil(2),
            None => self.window,
        }
    }

    /// How many bytes the next request may have; `None` if none may be sent.
    /// A request has at most a quarter of the window, so that the next one is
    /// under way while it is carried and answered; and about as much at least,
    /// or there would be many small ones.
    pub(super) fn room(&mut self, config: &Config) -> Option<usize> {
        self.free(4).map(|quarter| quarter.min(config.append_bytes))
    }

    /// The same of a request that goes alone, a chunk of a snapshot. It has nearly
    /// all of the window: if it had less, the window would never be used up, and
    /// would not grow.
    pub(super) fn room_alone(&mut self) -> Option<usize> {
        self.free(1).map(|whole| whole - whole / 8)
    }

    /// What is free of the window, and at most one of so many `parts` of it;
    /// `None` if that is less than a quarter of the window.
    fn free(&mut self, parts: usize) -> Option<usize> {
        let on_its_way = usize::try_from(self.sent - self.arrived).unwrap_or(usize::MAX);
        let window = self.window();
        let free = window.saturating_sub(on_its_way);
        let is_open = free > 0 && free >= window / 4;
        self.is_used_up |= !is_open;
        let took_effect = if is_open {
            &mut self.small_after
        } else {
            &mut self.full_after
        };
        if *took_effect == NOT_YET {
            *took_effect = self.last;
        }
        is_open.then_some(free.min(window.div_ceil(parts)))
    }

    /// Request `number` was sent, with so many bytes of entries or of a
    /// snapshot.
    pub(super) fn on_sent(&mut self, number: u64, bytes: usize, at: Instant) {
        self.last = number;
        self.sent += bytes as u64;
        if self.marks.len() < MARKS {
            let sent = self.sent;
            self.marks.push_back(Mark { number, sent, at });
        }
    }

    /// Request `number` was answered. Heartbeats are answered at once. Whether
    /// the window is another one now.
    pub(super) fn on_reply(
        &mut self,
        number: u64,
        reply: &Reply,
        now: Instant,
        config: &Config,
    ) -> bool {
        let before = self.window();
        let prompt = matches!(reply, Reply::Heard { .. });
        self.answered(number, prompt.then_some(now), config);
        self.window() != before
    }

    /// Request `number` was answered: what was sent before it has arrived.
    /// `prompt`: now, if the peer has answered as soon as it came.
    pub(super) fn answered(&mut self, number: u64, prompt: Option<Instant>, config: &Config) {
        let mut heard = None;
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.number <= number) {
            self.arrived = mark.sent;
            let now = prompt.filter(|_| mark.number == number);
            heard = now.map(|now| (mark.at, now.since(mark.at)));
        }
        if let Some((sent_at, delay)) = heard {
            let least = self.least.map_or(delay, |least| least.min(delay));
            self.least = Some(least);
            self.longest = delay.max(self.longest - self.longest / 4);
            self.measure(sent_at, delay, config);
            self.judge(number, delay, config);
        }
    }

    /// Begins and ends measurements, at the same times for all peers: by when
    /// their heartbeats were sent.
    fn measure(&mut self, sent_at: Instant, delay: Duration, config: &Config) {
        let timeout = nanos(config.election_timeout);
        let length = timeout.saturating_mul(MEASURED_EVERY).max(1);
        let (period, phase) = (sent_at.as_nanos() / length, sent_at.as_nanos() % length);
        if period != self.period {
            self.period = period;
            let is_used_up = core::mem::take(&mut self.is_used_up);
            let whole = self.longest;
            self.measurement = is_used_up.then_some(Measurement { whole, half: None });
        } else if let Some(measurement) = &mut self.measurement {
            // Until half of a timeout the queue may be that of before.
            if phase >= timeout {
                let Measurement { whole, half } = *measurement;
                self.measurement = None;
                self.full_after = NOT_YET;
                self.measured(whole, half);
            } else if phase >= timeout / 2 {
                let half = measurement.half.map_or(delay, |half| half.min(delay));
                measurement.half = Some(half);
            }
        }
    }

    /// What a measurement says of the link.
    fn measured(&mut self, whole: Duration, half: Option<Duration>) {
        // A delay that has grown says that something else has changed: a link
        // that became slower has a longer queue in half of the window.
        let Some(half) = half.filter(|half| self.is_used_up && *half <= whole) else {
            return;
        };
        let own = (half * 2).saturating_sub(whole).min(half);
        if self.least.is_none_or(|least| own > least) {
            self.least = Some(own);
            // Nothing is known of how much the longer link holds.
            self.has_queued = false;
        }
    }

    /// Heartbeat `number` was answered after so long.
    fn judge(&mut self, number: u64, delay: Duration, config: &Config) {
        let queue = delay.saturating_sub(self.least.unwrap_or(delay));
        self.has_queued |= queue >= config.election_timeout / 8;
        if number <= self.small_after {
            return;
        }
        if queue > config.election_timeout / 4 {
            self.resize((self.window / 2).max(least_window(config)));
        } else if queue < config.election_timeout / 8
            && number > self.full_after
            && self.measurement.is_none()
        {
            let more = if self.has_queued {
                self.window.div_ceil(4)
            } else {
                self.window
            };
            let most = config.append_bytes.saturating_mul(config.max_inflight);
            self.resize((self.window + more).min(most));
        }
    }

    const fn resize(&mut self, window: usize) {
        if window < self.window {
            self.small_after = NOT_YET;
        } else if window > self.window {
            self.full_after = NOT_YET;
        }
        self.window = window;
    }
}

/// The smallest window.
const fn least_window(config: &Config) -> usize {
    config.append_bytes.div_ceil(8)
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    const TIMEOUT: Duration = Duration::from_millis(250);

    /// What a leader sends to some peers over a link that they share: for each
    /// second the longest that a heartbeat took, and the bytes that arrived.
    fn run(
        peers: usize,
        bytes_a_milli: u64,
        round_trip: impl Fn(u64) -> u64,
        seconds: usize,
    ) -> Vec<(Duration, u64)> {
        let config = Config {
            election_timeout: TIMEOUT,
            ..Config::default()
        };
        let mut pacings = vec![Pacing::new(&config); peers];
        let (mut queue, mut answers) = (VecDeque::new(), VecDeque::new());
        let mut told = vec![(Duration::ZERO, 0); seconds];
        let (mut number, mut credit) = (0, 0);
        for now in 0..seconds as u64 * 1_000 {
            for (peer, pacing) in pacings.iter_mut().enumerate() {
                if now % 50 == 0 {
                    number += 1;
                    pacing.on_sent(number, 0, at(now));
                    queue.push_back((peer, number, 0, Some(now)));
                }
                while let Some(room) = pacing.room(&config) {
                    number += 1;
                    pacing.on_sent(number, room, at(now));
                    queue.push_back((peer, number, room as u64, None));
                }
            }
            credit += bytes_a_milli;
            while let Some(it) = queue.pop_front_if(|it| it.2 <= credit) {
                credit -= it.2;
                answers.push_back((now + round_trip(now), it));
            }
            if queue.is_empty() {
                credit = 0;
            }
            while let Some((_, it)) = answers.pop_front_if(|(due, _)| *due <= now) {
                let (peer, number, bytes, beat) = it;
                pacings[peer].answered(number, beat.map(|_| at(now)), &config);
                let (slowest, carried) = &mut told[(now / 1_000) as usize];
                let took = beat.map_or(0, |sent| now - sent);
                *slowest = Duration::from_millis(took).max(*slowest);
                *carried += bytes;
            }
        }
        told
    }

    fn percent(told: &[(Duration, u64)], bytes_a_milli: u64) -> u64 {
        let carried: u64 = told.iter().map(|(_, carried)| carried).sum();
        carried * 100 / (bytes_a_milli * 1_000 * told.len() as u64)
    }

    fn slowest(told: &[(Duration, u64)]) -> Duration {
        told.iter().map(|(took, _)| *took).max().expect("seconds")
    }

    /// What each of two followers has of 20 and 100 Mbit/s, 1 Gbit/s and 10
    /// Gbit/s, from the first moment of a leadership.
    #[test]
    fn heartbeats_are_in_time_on_a_link_that_is_kept_full() {
        for bytes_a_milli in [1_250, 6_250, 62_500, 625_000] {
            let told = run(1, bytes_a_milli, |_| 0, 30);
            let (first, later) = (slowest(&told[..1]), slowest(&told[1..]));
            assert!(
                first < Duration::from_millis(200) && later < Duration::from_millis(150),
                "{bytes_a_milli}: {first:?}, {later:?}"
            );
            let share = percent(&told, bytes_a_milli);
            assert!(share > 85, "{bytes_a_milli}: {share} of 100 were used");
        }
    }

    #[test]
    fn a_link_that_becomes_longer_is_used_again() {
        for (peers, bytes_a_milli) in [(1, 6_250), (1, 62_500), (2, 62_500), (4, 62_500)] {
            for longer in [20, 40, 50, 60] {
                let round_trip = |now| if now < 5_000 { 1 } else { longer };
                let told = run(peers, bytes_a_milli, round_trip, 60);
                let (took, share) = (slowest(&told), percent(&told[15..], bytes_a_milli));
                let case = format!("{peers}, {bytes_a_milli}, {longer}: {took:?}, {share}");
                assert!(took < Duration::from_millis(200) && share > 85, "{case}");
            }
        }
    }

    /// Nor is what disturbs answers: here a third of the time they wait for up to
    /// a fifth of the timeout.
    #[test]
    fn the_queue_of_peers_that_share_a_link_is_not_taken_for_its_length() {
        for peers in [2, 4, 6] {
            for bytes_a_milli in [12_500, 62_500, 125_000] {
                for stall in [0, 50] {
                    let round_trip = |now: u64| {
                        let hash = (now / 150).wrapping_mul(0x9e37_79b9).rotate_left(7);
                        let stalls = hash.is_multiple_of(3);
                        if stalls { 1 + stall } else { 1 }
                    };
                    let told = run(peers, bytes_a_milli, round_trip, 120);
                    let (took, share) = (slowest(&told), percent(&told, bytes_a_milli));
                    let case = format!("{peers}, {bytes_a_milli}, {stall}: {took:?}, {share}");
                    let most = Duration::from_millis(125 + stall);
                    assert!(took < most && share > 95, "{case}");
                }
            }
        }
    }

    #[test]
    fn a_peer_that_is_silent_costs_no_memory_and_an_answer_tells_of_all_before_it() {
        let config = Config::default();
        let mut pacing = Pacing::new(&config);
        pacing.on_sent(1, config.append_bytes, at(0));
        assert_eq!(pacing.room(&config), None);
        for number in 2..10_000 {
            pacing.on_sent(number, 0, at(number));
        }
        assert_eq!(pacing.marks.len(), MARKS);
        pacing.answered(9_999, Some(at(10_000)), &config);
        assert_eq!(pacing.room(&config), Some(least_window(&config) / 4));
    }
}
