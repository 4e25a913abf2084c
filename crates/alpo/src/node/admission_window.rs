//! How much of the log may be uncommitted before proposals wait their turn.
//!
//! An entry waits for all before it: for their bytes on the slowest way to a
//! majority, a link or a disk. So the leader appends no more than commits
//! within a part of a second, and keeps the rest where it can still choose
//! ([`super::fair_queue`]). The leader does not know beforehand how much that is.
//!
//! The delay from appending an entry to committing it says how long the queue
//! before it was; the least delay of this leadership is that of an empty one.
//! If the queue is longer than [`LONG`] the window becomes half as large; if it
//! is shorter than [`SHORT`], and proposals had to wait, larger by a quarter.
//! Each time the next judgement is made of an entry that was appended after it.
//! So a way of any speed is kept busy, and what is appended to a full window is
//! committed about [`LONG`] later, if syncs and round trips take no time. A
//! queue between the two is left alone for [`PATIENCE`] judgements.
//!
//! It is never more than one and a half of what may be on its way to a majority
//! ([`super::pacing`]). More would wait for the links. Their windows begin small
//! and grow only as fast as heartbeats are answered: at a round trip of 300 ms the
//! first megabyte of a leadership takes two seconds, and so does what comes after
//! it. With less, entries of half a link's window would go one by one, and that
//! window would not be used up, and not grow.
//!
//! Each time the window became half as large, the delay tells a queue from a
//! way that has become longer (a slower disk, another route), as in
//! [`super::pacing`]: where it was `d` with the whole window and is `h` with half
//! of it, the way alone takes `2h - d`. That is believed where it is most of `h`:
//! on a slow link one entry is much of a queue, and what a halving of five
//! entries leaves varies by as much.
//!
//! [`super::pacing`] does the same for each link, for the sake of heartbeats,
//! and by the election timeout. This window bounds how long clients wait, so it is
//! measured in time, and not in timeouts.

use core::time::Duration;

use tenure_core::time::nanos;

use super::super::config::Config;
use super::super::entry::LogTime;
use super::super::ids::LogId;

/// A queue that takes longer than this is too long.
const LONG: Duration = Duration::from_millis(250);
/// One that takes less than this may be longer.
const SHORT: Duration = Duration::from_millis(125);
/// After so many judgements in a row that find a queue between [`SHORT`] and [`LONG`] the
/// window is halved: what is taken for a queue may be the delay of the link.
const PATIENCE: u32 = 8;

/// The window of one leadership.
#[derive(Clone, Debug, Default)]
pub(super) struct AdmissionWindow {
    /// Bytes of entries that may be uncommitted; 0 before the first is asked
    /// for.
    bytes: usize,
    /// The least delay.
    least: Option<LogTime>,
    /// Proposals had to wait since it was judged last.
    is_used_up: bool,
    /// Commits up to this entry say nothing about the present window.
    judged_at: LogId,
    /// The delay before the window became half as large just now.
    whole: Option<LogTime>,
    /// How often the queue was neither long nor short.
    between: u32,
    /// What may be on its way to a majority; `None` if the links to one bound
    /// nothing, since there are none.
    on_the_way: Option<usize>,
}

impl AdmissionWindow {
    /// Bytes of entries that may be uncommitted.
    pub(super) fn bytes(&self, config: &Config) -> usize {
        match self.bytes {
            0 => config.append_bytes.saturating_mul(2),
            bytes => bytes,
        }
        .min(self.of_links())
        .min(config.uncommitted_bytes)
    }

    /// What the links to a majority bound it to.
    fn of_links(&self) -> usize {
        let bound = |it: usize| it.saturating_add(it / 2);
        self.on_the_way.map_or(usize::MAX, bound)
    }

    /// So much may be on its way to a majority from now on.
    pub(super) const fn bound_by_links(&mut self, on_the_way: Option<usize>) {
        self.on_the_way = on_the_way;
    }

    /// A proposal waits.
    pub(super) const fn note_wait(&mut self) {
        self.is_used_up = true;
    }

    /// Entry `id` was committed so long after it was appended; `last` was
    /// appended last.
    pub(super) fn committed(&mut self, id: LogId, delay: LogTime, last: LogId, config: &Config) {
        let mut least = self.least.map_or(delay, |least| least.min(delay));
        if id > self.judged_at {
            least = least.max(self.measured(delay).unwrap_or(0));
            self.judge(delay, delay - least, last, config);
        }
        self.least = Some(least);
    }

    /// How long the way takes without a queue, if the window has become half as
    /// large just now and the delay since then tells.
    fn measured(&mut self, delay: LogTime) -> Option<LogTime> {
        let whole = self.whole.take()?;
        // A delay that has grown says that something else has changed: a link
        // that became slower has a longer queue in half of the window.
        if delay > whole + whole / 8 {
            return None;
        }
        let own = (delay * 2).saturating_sub(whole).min(delay);
        (own > delay / 4 * 3).then_some(own)
    }

    /// Resizes the window by an entry that was appended under it. `delay` is the
    /// time until it was committed, `queue` what of that the queue took.
    fn judge(&mut self, delay: LogTime, queue: LogTime, last: LogId, config: &Config) {
        let (bytes, floor) = (self.bytes(config), config.append_bytes.div_ceil(8));
        if queue > nanos(LONG) || self.between == PATIENCE {
            self.bytes = (bytes / 2).max(floor);
            self.whole = Some(delay);
            self.between = 0;
        } else if !self.is_used_up {
            return;
        } else if queue < nanos(SHORT) {
            self.bytes = bytes.saturating_add(bytes.div_ceil(4));
            self.between = 0;
        } else {
            self.between += 1;
        }
        self.bytes = self.bytes(config);
        self.is_used_up = false;
        self.judged_at = last;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use tenure_core::time::Instant;

    use super::super::pacing::Pacing;
    use super::*;

    const MILLI: LogTime = 1_000_000;

    /// A way that takes `own` for itself, and carries so many bytes a
    /// millisecond; the window is always full. What went through in so many
    /// judgements, in percent of what the way carries, and the longest delay of
    /// the later half.
    fn run(window: &mut AdmissionWindow, own: LogTime, bytes_a_milli: u64, times: u64) -> [u64; 2] {
        let config = Config::default();
        let (mut carried, mut took, mut longest) = (0, 0, 0);
        for time in 0..times {
            window.note_wait();
            let bytes = window.bytes(&config) as u64;
            let delay = own.max(bytes * MILLI / bytes_a_milli);
            let id = window.judged_at + 1;
            window.committed(id, delay, id, &config);
            carried += bytes;
            took += delay;
            if time >= times / 2 {
                longest = longest.max(delay);
            }
        }
        [
            carried * 100 * MILLI / (took * bytes_a_milli),
            longest / MILLI,
        ]
    }

    #[test]
    fn it_follows_the_delay_and_only_what_tells_of_it() {
        let config = Config::default();
        let mut window = AdmissionWindow::default();
        let first = window.bytes(&config);
        window.committed(1, 5 * MILLI, 1, &config);
        assert_eq!(window.bytes(&config), first, "nothing has waited");
        window.note_wait();
        window.committed(2, 5 * MILLI, 10, &config);
        assert_eq!(window.bytes(&config), first + first / 4);
        window.note_wait();
        window.committed(10, 5 * MILLI, 20, &config);
        assert_eq!(window.bytes(&config), first + first / 4, "of before");
        window.committed(11, 300 * MILLI, 20, &config);
        assert_eq!(window.bytes(&config), (first + first / 4) / 2);
    }

    #[test]
    fn a_way_of_any_speed_is_kept_busy_and_its_queue_short() {
        for bytes_a_milli in [200, 1_250, 12_500, 125_000] {
            let mut window = AdmissionWindow::default();
            // The first entry of a leadership has nothing before it.
            window.committed(1, 5 * MILLI, 1, &Config::default());
            let [share, longest] = run(&mut window, 5 * MILLI, bytes_a_milli, 200);
            // The smallest window may be a long queue.
            let most = 330.max(2 * 65_536 / bytes_a_milli);
            assert!(
                share > 95 && longest <= most,
                "{bytes_a_milli}: {share}, {longest}"
            );
        }
    }

    /// The queue of before takes longer on it, also half of it.
    #[test]
    fn a_way_that_becomes_slower_is_not_longer() {
        let config = Config::default();
        let mut window = AdmissionWindow {
            bytes: config.append_bytes,
            ..AdmissionWindow::default()
        };
        for (id, delay, last) in [(1, 5, 1), (2, 300, 10), (11, 600, 20)] {
            window.committed(id, delay * MILLI, last, &config);
        }
        assert_eq!(window.bytes(&config), config.append_bytes / 4);
    }

    #[test]
    fn a_way_that_becomes_longer_is_no_queue() {
        for own in [100, 150, 200, 260, 300, 600, 2_000] {
            let mut window = AdmissionWindow::default();
            run(&mut window, 5 * MILLI, 6_000, 200);
            // Of this some is what it takes to notice.
            let [share, longest] = run(&mut window, own * MILLI, 6_000, 200);
            assert!(
                share > 80 && longest <= own + own / 4 + 330,
                "{own}: {share}, {longest}"
            );
        }
    }
    /// A flow of writes without end from the first moment of a leadership, over a
    /// link of `round_trip` milliseconds to the only follower: the longest time
    /// from appending an entry to committing it, in milliseconds.
    fn longest_of_first_flow(round_trip: u64) -> u64 {
        const ENTRY: usize = 4_096;
        let config = Config {
            election_timeout: Duration::from_secs(2),
            heartbeat: Duration::from_millis(400),
            ..Config::default()
        };
        let mut window = AdmissionWindow::default();
        let mut pacing = Pacing::new(&config);
        window.bound_by_links(Some(pacing.window()));
        // When the uncommitted entries were appended, and what was sent of them:
        // number, arrival of the answer, entries (none: a heartbeat).
        let (mut uncommitted, mut answers) = (VecDeque::new(), VecDeque::new());
        let (mut number, mut unsent, mut committed, mut longest) = (0, 0, 0, 0);
        for now in 0..20_000 {
            let at = Instant::from_nanos(now * MILLI);
            while let Some((number, _, entries)) = answers.pop_front_if(|(_, due, _)| *due <= now) {
                pacing.answered(number, (entries == 0).then_some(at), &config);
                window.bound_by_links(Some(pacing.window()));
                for appended in uncommitted.drain(..entries) {
                    committed += 1;
                    let last = committed + (unsent + entries) as LogId;
                    window.committed(committed, (now - appended) * MILLI, last, &config);
                    longest = longest.max(now - appended);
                }
            }
            while (uncommitted.len() + 1) * ENTRY <= window.bytes(&config) {
                uncommitted.push_back(now);
                unsent += 1;
            }
            window.note_wait();
            if now % 400 == 0 {
                number += 1;
                pacing.on_sent(number, 0, at);
                answers.push_back((number, now + round_trip, 0));
            }
            while unsent > 0
                && let Some(room) = pacing.room(&config)
            {
                let entries = unsent.min(room.div_ceil(ENTRY));
                number += 1;
                unsent -= entries;
                pacing.on_sent(number, entries * ENTRY, at);
                answers.push_back((number, now + round_trip, entries));
            }
        }
        longest
    }

    /// Without [`AdmissionWindow::bound_by_links`] it is 1,800 ms at 300.
    #[test]
    fn the_first_flow_of_a_leadership_does_not_wait_for_its_link() {
        let told = [1, 50, 150, 300].map(|it| (it, longest_of_first_flow(it)));
        let in_time = |(round_trip, longest): &(u64, u64)| *longest <= (3 * round_trip).max(250);
        assert!(told.iter().all(in_time), "{told:?}");
    }
}
