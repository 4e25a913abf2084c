//! How soon another candidate leads when the leader resigns, against what the store
//! takes in the same run for a write and for the news of one.
//!
//! A take-over is two writes, the one that vacates the election and the one that wins
//! it, and the news of the first. The bound is three writes and that news, or one
//! interval where the store is looked at; what threads of this process take to hand
//! work to each other is measured beside it, and counts where a store is so quick that
//! it is of the same order.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Expect, Key, Selector, Sighting, Stamp, Store, Version, Watch, Write};
use tenure::{Election, Leadership, clock};
use tokio::time::timeout;

/// How many take-overs there are, and before each so many writes, of which the last is
/// waited for by a watch.
const TAKE_OVERS: usize = 21;
const WRITES: usize = 5;
/// How long anything may take.
const WITHIN: Duration = Duration::from_secs(20);
/// Between the leader's application, the thread of the elections and the next leader's
/// application work is handed over so often, at most.
const HAND_OVERS: u32 = 16;
/// A machine that others load may take so much longer than the bound, on average.
const SLACK: u32 = 2;

/// How a store notices what other processes write.
#[derive(Clone, Copy)]
pub(crate) enum Notices {
    /// It is told.
    ByWatch,
    /// It looks so often.
    ByPolls(Duration),
}

/// Measures, prints one line and judges it; `open` makes another handle of the store.
pub(crate) async fn measure(store: &str, notices: Notices, open: impl AsyncFn() -> Arc<dyn Store>) {
    let mut figures = Figures::default();
    let mut probe = Probe::begin(&open).await;
    let handles = [open().await, open().await];
    let stand = |number: usize| {
        let store = Arc::clone(&handles[number % 2]);
        let builder = Election::builder(store, "resigned").name(format!("candidate-{number}"));
        builder.start().expect("a candidate")
    };
    let mut leader = stand(0);
    let mut leadership = elected(&mut leader).await;
    for number in 1..=TAKE_OVERS {
        let mut next = stand(number);
        until_seen(&next, &leadership).await;
        probe.sample(&mut figures).await;
        let (view, resigned) = (leadership.view(), clock::boot());
        drop(leadership);
        leadership = elected(&mut next).await;
        figures.took_over.push(clock::boot().since(resigned));
        assert!(!view.is_valid() && leadership.is_valid() && leadership.term() > view.term());
        std::mem::replace(&mut leader, next).stop().await;
    }
    drop(leadership);
    leader.stop().await;
    figures.judge(store, notices);
}

async fn elected(election: &mut Election) -> Leadership {
    let elected = timeout(WITHIN, election.elected()).await;
    elected.expect("in time").expect("a leadership")
}

/// Waits until the candidate has seen who leads.
async fn until_seen(candidate: &Election, leadership: &Leadership) {
    let mut events = candidate.events();
    let leads = || {
        let seen = candidate.leader().and_then(|it| it.leader);
        seen.is_some_and(|it| it.term == leadership.term())
    };
    let seen = async {
        while !leads() {
            events.next().await.expect("it stands");
        }
    };
    timeout(WITHIN, seen).await.expect("to see who leads");
}

/// Writes to a register of its own, of the kind that elections have, and hears of it on
/// another handle.
struct Probe {
    writer: Arc<dyn Store>,
    key: Key,
    expect: Expect,
    watch: Watch,
    _reader: Arc<dyn Store>,
}

impl Probe {
    async fn begin(open: impl AsyncFn() -> Arc<dyn Store>) -> Self {
        let (writer, reader) = (open().await, open().await);
        let key = Key::new("elections/timed").expect("a key");
        let mut watch = reader.watch(Selector::Key(key.clone()));
        let up = async { while watch.next().await != Sighting::Live {} };
        timeout(WITHIN, up).await.expect("a watch");
        Self {
            writer,
            key,
            expect: Expect::Absent,
            watch,
            _reader: reader,
        }
    }

    async fn sample(&mut self, figures: &mut Figures) {
        let mut written = None;
        for _ in 0..WRITES {
            let write = Write {
                key: self.key.clone(),
                expect: self.expect.clone(),
                value: b"x".as_slice().into(),
                stamp: Stamp::Now,
            };
            let sent = clock::boot();
            let answer = self.writer.compare_and_swap(write, WITHIN).await;
            figures.wrote.push(clock::boot().since(sent));
            let version = answer.expect("a write").version;
            self.expect = Expect::Version(version.clone());
            written = Some((version, clock::boot()));
        }
        let (version, done) = written.expect("a write");
        let shown = async { while !shows(&self.watch.next().await, &version) {} };
        timeout(WITHIN, shown).await.expect("to hear of it");
        figures.noticed.push(clock::boot().since(done));
        let asked = clock::boot();
        let turn = tenure::drive::background().spawn(async {});
        turn.await.expect("the turn of the thread of the elections");
        figures.handed_over.push(clock::boot().since(asked));
    }
}

fn shows(seen: &Sighting, version: &Version) -> bool {
    matches!(seen, Sighting::State(_, Some(held)) if held.version == *version)
}

#[derive(Default)]
struct Figures {
    took_over: Vec<Duration>,
    wrote: Vec<Duration>,
    noticed: Vec<Duration>,
    handed_over: Vec<Duration>,
}

/// What so many of a hundred take at most.
fn percentile(figures: &mut [Duration], percent: usize) -> Duration {
    figures.sort_unstable();
    figures[(figures.len() - 1) * percent / 100]
}

fn mean(figures: &[Duration]) -> Duration {
    let count = u32::try_from(figures.len()).expect("fewer");
    figures.iter().sum::<Duration>() / count
}

impl Figures {
    fn judge(mut self, store: &str, notices: Notices) {
        let [wrote, wrote_p99] = [50, 99].map(|percent| percentile(&mut self.wrote, percent));
        let noticed = percentile(&mut self.noticed, 50);
        let [took, longest] = [50, 100].map(|percent| percentile(&mut self.took_over, percent));
        let handed_over = percentile(&mut self.handed_over, 50);
        let (how, news) = match notices {
            Notices::ByWatch => (format!("{noticed:.2?} by watch"), noticed),
            Notices::ByPolls(every) => (format!("{noticed:.2?} by a poll each {every:?}"), every),
        };
        let bound = 3 * wrote + news;
        let ratio = took.as_secs_f64() / bound.as_secs_f64();
        println!(
            "take-over | {store} | write {wrote:.2?} (p50), {wrote_p99:.2?} (p99) | noticed after \
             {how} | another leads after {took:.2?} (p50), {longest:.2?} (max) of {TAKE_OVERS} | \
             {ratio:.2} of 3 writes + 1 {} | a hand-over takes {handed_over:.2?}",
            match notices {
                Notices::ByWatch => "notification",
                Notices::ByPolls(_) => "poll",
            }
        );
        // On average: what steps take adds up only so, where some take far longer than
        // most, as they do on a machine that others load.
        let [wrote, noticed, handed_over, took] = [
            &self.wrote,
            &self.noticed,
            &self.handed_over,
            &self.took_over,
        ]
        .map(|figures| mean(figures));
        let news = match notices {
            Notices::ByWatch => noticed,
            Notices::ByPolls(every) => every,
        };
        let most = SLACK * (3 * wrote + news) + HAND_OVERS * handed_over;
        assert!(
            took <= most,
            "{store}: expected another to lead within {most:?} on average, found {took:?}: {:?}",
            self.took_over
        );
    }
}
