//! The load and its record against stores that go wrong on purpose: what a
//! benchmark hides, it must be seen to find.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::store::{Expect, Key, Memory, Store, Write, Written};
use tenure::{StoreError, clock};

use super::intercepted::{Answer, Intercepted, Interceptor};
use super::load::{self, Pace};
use super::record::Record;
use super::work::{Kind, Mix, Registers, Work};

const WITHIN: Duration = Duration::from_secs(5);

/// How a write goes.
enum Fate {
    /// As it should.
    Done,
    /// Later than the others.
    After(Duration),
    /// It fails; whether it happened all the same.
    Fails(StoreError, bool),
}

/// Has writes, counted from 0, go as a test says.
struct Moody<F> {
    writes: AtomicU64,
    on_write: F,
}

impl<F: Fn(u64, &Write) -> Fate + Send + Sync + 'static> Interceptor for Moody<F> {
    fn swap<'a>(
        &'a self,
        store: &'a dyn Store,
        write: Write,
        within: Duration,
    ) -> Answer<'a, Written> {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            // A memory store never waits; real ones do.
            tokio::task::yield_now().await;
            match (self.on_write)(number, &write) {
                Fate::Done => store.compare_and_swap(write, within).await,
                Fate::After(long) => {
                    tokio::time::sleep(long).await;
                    store.compare_and_swap(write, within).await
                }
                Fate::Fails(error, happens) => {
                    if happens {
                        store.compare_and_swap(write, within).await?;
                    }
                    Err(error)
                }
            }
        })
    }
}

fn moody(on_write: impl Fn(u64, &Write) -> Fate + Send + Sync + 'static) -> Arc<dyn Store> {
    let writes = AtomicU64::new(0);
    Intercepted::new(Arc::new(Memory::new()), Moody { writes, on_write })
}

fn client(store: &Arc<dyn Store>, name: &str, reads: f64) -> Work {
    let mix = Mix {
        reads,
        value: b"value".as_slice().into(),
        within: WITHIN,
    };
    let keys = vec![Key::new(name).expect("a key")];
    Work::Registers(Registers::new(Arc::clone(store), keys, mix, 7))
}

async fn measured(clients: &mut Vec<Work>, pace: Pace, millis: u64) -> Record {
    for client in &mut *clients {
        client.set_up().await.expect("to set up");
    }
    let record = Record::new(Duration::from_millis(100));
    let lasting = Duration::from_millis(millis);
    let measured = load::run(clients, record, pace, lasting).await;
    measured.expect("a run")
}

/// One write in a second stands still for 400 ms.
fn stalls() -> Arc<dyn Store> {
    moody(|number, _| match number {
        20 => Fate::After(Duration::from_millis(400)),
        _ => Fate::Done,
    })
}

#[tokio::test]
async fn an_open_loop_counts_those_who_would_have_waited() {
    let period = Duration::from_millis(5);
    let mut clients = vec![client(&stalls(), "a", 0.0)];
    let record = measured(&mut clients, Pace::Open(period), 1_000).await;
    // 200 were due, 80 of them during the stall.
    assert_eq!(record.count(Kind::Write) + record.missed, 200);
    let latencies = record.latencies(Kind::Write).expect("latencies");
    let waited = latencies.len() - latencies.count_between(0, 50_000_000);
    assert!(waited >= 55, "{waited} waited 50 ms or more");
    assert!(record.longest_gap >= Duration::from_millis(400));
    // The same stall is one slow write to a closed loop, which is why its
    // latencies prove little.
    let mut clients = vec![client(&stalls(), "a", 0.0)];
    let record = measured(&mut clients, Pace::Closed, 1_000).await;
    let latencies = record.latencies(Kind::Write).expect("latencies");
    let waited = latencies.len() - latencies.count_between(0, 300_000_000);
    assert!((1..5).contains(&waited), "{waited} waited 300 ms or more");
}

#[tokio::test]
async fn an_open_loop_that_cannot_keep_up_says_so() {
    let slow = moody(|number, _| match number {
        0 => Fate::Done,
        _ => Fate::After(Duration::from_millis(20)),
    });
    let mut clients = vec![client(&slow, "a", 0.0)];
    let record = measured(&mut clients, Pace::Open(Duration::from_millis(2)), 400).await;
    let begun = record.count(Kind::Write);
    assert!(begun <= 20, "{begun} of 20 ms each in 400 ms");
    assert_eq!(begun + record.missed, 200);
}

#[tokio::test]
async fn failures_are_counted_by_class_and_settled_by_reading() {
    let store = moody(|number, _| match number {
        10 => Fate::Fails(StoreError::unknown("lost"), true),
        20 => Fate::Fails(StoreError::unknown("lost"), false),
        30 => Fate::Fails(StoreError::unavailable("away"), false),
        _ => Fate::Done,
    });
    let mut clients = vec![client(&store, "a", 0.0)];
    let record = measured(&mut clients, Pace::Closed, 2_000).await;
    // A conflict would mean that an unknown write was taken for a "no", or
    // for a "yes".
    assert_eq!(record.failures, [0, 1, 2, 0]);
    assert_eq!(record.failed.len(), 3);
    assert_eq!(record.count(Kind::Read), 2, "one for each unknown write");
    assert!(record.count(Kind::Write) > 30);
    for mut client in clients {
        assert_eq!(client.tear_down().await, 0);
    }
    let page = store.list("", None, WITHIN).await.expect("a page");
    assert_eq!(page.registers, [], "what was made is deleted");
}

#[tokio::test]
async fn what_only_a_person_can_mend_ends_the_run() {
    let store = moody(|number, _| match number {
        5 => Fate::Fails(StoreError::broken("expected another table"), false),
        _ => Fate::Done,
    });
    let mut clients = vec![client(&store, "a", 0.0), client(&store, "b", 0.0)];
    for client in &mut clients {
        client.set_up().await.expect("to set up");
    }
    let (record, began) = (Record::new(Duration::from_millis(100)), clock::boot());
    let ended = load::run(&mut clients, record, Pace::Closed, Duration::from_secs(60)).await;
    assert!(ended.is_err(), "{ended:?}");
    assert!(clock::boot().since(began) < Duration::from_secs(30));
    // Both are there to be cleaned up after.
    assert_eq!(clients.len(), 2);
}

#[tokio::test]
async fn reads_and_writes_are_mixed_as_asked() {
    let store = moody(|_, write| {
        // Only the first write of a register may find it absent.
        assert_eq!(write.key.as_str(), "a");
        match write.expect {
            Expect::Absent | Expect::Version(_) => Fate::Done,
        }
    });
    let mut clients = vec![client(&store, "a", 0.75)];
    let record = measured(&mut clients, Pace::Closed, 300).await;
    let (reads, writes) = (record.count(Kind::Read), record.count(Kind::Write));
    let share = reads as f64 / (reads + writes) as f64;
    assert!(
        reads + writes > 1_000 && (0.7..0.8).contains(&share),
        "{reads} {writes}"
    );
    assert_eq!(record.failures, [0; 4]);
}
