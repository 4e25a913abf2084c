//! Verdicts: who may be judged dead, when, and by whom.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::StoreError;
use tenure::clock;
use tenure::core::time::Instant;
use tenure::ha::{Event, Heartbeat};
use tenure::store::{Key, Page, Reading, Selector, Sighting, Store, Watch, Write, Written};
use tokio::sync::{Notify, watch};

use super::deployed;
use crate::intercepted::{Answer, Intercepted, Interceptor};
use crate::town::{Town, heard, sees, work};

/// The heartbeat that is about to be written, if it is one.
fn beat(write: &Write) -> Option<Heartbeat> {
    let own = write.key.as_str().contains("/nodes/");
    own.then(|| Heartbeat::decode(&write.value).expect("a heartbeat"))
}

fn cut_if(cut: bool) -> Result<(), StoreError> {
    match cut {
        true => Err(StoreError::unavailable("the line is cut")),
        false => Ok(()),
    }
}

/// Cuts a node off its store.
#[derive(Debug, Default)]
struct Scissors(AtomicBool);

impl Interceptor for Scissors {
    fn check(&self, _: Option<&Write>) -> Result<(), StoreError> {
        cut_if(self.0.load(Ordering::SeqCst))
    }
}

pub(super) async fn partitioned_node_stops_its_work_before_the_chosen_node_starts_it(town: Town) {
    let line = Intercepted::new(town.store().await, Scissors::default());
    let a = town.node_by(Arc::clone(&line) as Arc<dyn Store>, "a").await;
    let b = town.node("b").await;
    deployed(&a, work("one")).await;
    let (old, mut events) = (a.id(), a.events());
    line.interceptor.0.store(true, Ordering::SeqCst);
    let fenced = |event: &Event| matches!(event, Event::Fenced { id, .. } if *id == old);
    heard(&mut events, fenced).await;
    town.ledger.until("one", Some("b")).await;
    let stays = town.ledger.stays("one");
    assert!(
        stays[0].to.is_some_and(|to| to < stays[1].from),
        "{stays:?}"
    );
    line.interceptor.0.store(false, Ordering::SeqCst);
    // It comes back as another node.
    heard(
        &mut events,
        |event| matches!(event, Event::Joined { id, .. } if *id != old),
    )
    .await;
    assert_eq!(town.ledger.stays("one").len(), 2);
    town.close([a, b]).await;
}

/// Where judges wait until there are two of them, each about to write the
/// same death.
#[derive(Debug, Default)]
struct Bench {
    waiting: watch::Sender<u32>,
    landed: AtomicU64,
    conflicts: AtomicU64,
    unknown: AtomicU64,
}

#[derive(Debug)]
struct Judge(Arc<Bench>);

impl Judge {
    /// Whether there are two at once, in time.
    async fn is_joined(&self, within: Duration) -> bool {
        let mut waiting = self.0.waiting.subscribe();
        self.0.waiting.send_modify(|count| *count += 1);
        let both = waiting.wait_for(|count| *count >= 2);
        let met = tokio::time::timeout(within / 2, both).await.is_ok();
        if !met {
            self.0.waiting.send_modify(|count| *count -= 1);
        }
        met
    }
}

impl Interceptor for Judge {
    fn swap<'a>(
        &'a self,
        store: &'a dyn Store,
        write: Write,
        within: Duration,
    ) -> Answer<'a, Written> {
        let dead = beat(&write).is_some_and(|beat| beat.dead.is_some());
        Box::pin(async move {
            if !dead {
                return store.compare_and_swap(write, within).await;
            }
            if !self.is_joined(within).await {
                return Err(StoreError::unavailable("nobody else judges yet"));
            }
            let written = store.compare_and_swap(write, within / 2).await;
            let fared = match &written {
                Ok(_) => &self.0.landed,
                Err(StoreError::Conflict) => &self.0.conflicts,
                Err(_) => &self.0.unknown,
            };
            fared.fetch_add(1, Ordering::SeqCst);
            written
        })
    }
}

pub(super) async fn two_observers_write_the_same_death(town: Town) {
    let a = town.node("a").await;
    let bench = Arc::new(Bench::default());
    let judge = async |name: &str| {
        let judge = Judge(Arc::clone(&bench));
        town.node_by(Intercepted::new(town.store().await, judge), name)
            .await
    };
    let (b, c) = (judge("b").await, judge("c").await);
    deployed(&a, work("one")).await;
    let old = a.id();
    drop(a);
    town.ledger.until_that("one", |node| node != "a").await;
    for node in [&b, &c] {
        sees(node, |group_state| {
            let view = group_state.view.as_ref();
            view.is_some_and(|view| view.member(old).is_none())
        })
        .await;
    }
    let fared = [&bench.landed, &bench.conflicts, &bench.unknown];
    let fared = fared.map(|count| count.load(Ordering::SeqCst));
    let [landed, conflicts, unknown] = fared;
    // One verdict stands, and the other has met it, unless the store was too
    // slow to say so.
    assert!(landed <= 1 && conflicts <= 1, "{fared:?}");
    assert!(landed + conflicts == 2 || unknown > 0, "{fared:?}");
    assert_eq!(town.ledger.stays("one").len(), 2);
    town.close([b, c]).await;
}

/// Shows for ever what a list has shown first, beside a watch that says
/// nothing: only a fresh read tells the truth.
#[derive(Debug, Default)]
struct Stale {
    page: Mutex<Option<Page>>,
    feeds: Mutex<Vec<tenure::store::Feed>>,
    reads: AtomicU64,
    read: Notify,
}

impl Interceptor for Stale {
    fn list<'a>(
        &'a self,
        store: &'a dyn Store,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> Answer<'a, Page> {
        Box::pin(async move {
            let kept = self.page.lock().expect("nobody panics").clone();
            if let Some(page) = kept {
                return Ok(page);
            }
            let page = store.list(prefix, after, within).await?;
            // Worth keeping once somebody else is in it.
            if page.registers.len() > 1 {
                *self.page.lock().expect("nobody panics") = Some(page.clone());
            }
            Ok(page)
        })
    }

    fn read<'a>(
        &'a self,
        store: &'a dyn Store,
        key: &'a Key,
        within: Duration,
    ) -> Answer<'a, Reading> {
        if key.as_str().contains("/nodes/") {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.read.notify_one();
        }
        store.read(key, within)
    }

    fn watch(&self, _: &dyn Store, selector: Selector) -> Watch {
        let (feed, watch) = Watch::new(selector);
        feed.send(Sighting::Live);
        self.feeds.lock().expect("nobody panics").push(feed);
        watch
    }
}

pub(super) async fn verdict_from_a_stale_watch_does_not_stand(town: Town) {
    let a = town.node("a").await;
    let line = Intercepted::new(town.store().await, Stale::default());
    let b = town.node_by(Arc::clone(&line) as Arc<dyn Store>, "b").await;
    deployed(&a, work("one")).await;
    let (id, mut events) = (a.id(), b.events());
    let doubted = async {
        // It had its doubts twice, and asked each time.
        while line.interceptor.reads.load(Ordering::SeqCst) < 2 {
            line.interceptor.read.notified().await;
        }
        // What follows from the second answer has followed after a beat more.
        tokio::time::timeout(town.lease(), std::future::pending::<()>()).await
    };
    let died = |event: &Event| matches!(event, Event::NodeDied { .. });
    tokio::select! {
        before = heard(&mut events, died) => panic!("it was judged by old news: {before:?}"),
        _ = doubted => {}
    }
    let view = sees(&b, |group_state| group_state.view.is_some())
        .await
        .view;
    let view = view.expect("it has looked");
    assert!(view.member(id).is_some(), "{view:?}");
    assert_eq!((a.id(), town.ledger.stays("one").len()), (id, 1));
    town.close([a, b]).await;
}

/// Keeps one beat back, and lets nothing else pass from then on.
#[derive(Debug, Default)]
struct Slow {
    on: AtomicBool,
    late: Mutex<Option<Write>>,
}

impl Interceptor for Slow {
    fn swap<'a>(
        &'a self,
        store: &'a dyn Store,
        write: Write,
        within: Duration,
    ) -> Answer<'a, Written> {
        if self.on.load(Ordering::SeqCst) && beat(&write).is_some() {
            *self.late.lock().expect("nobody panics") = Some(write);
            let unknown = StoreError::unknown("it may come yet");
            return Box::pin(std::future::ready(Err(unknown)));
        }
        store.compare_and_swap(write, within)
    }

    fn check(&self, _: Option<&Write>) -> Result<(), StoreError> {
        let cut = self.late.lock().expect("nobody panics").is_some();
        cut_if(cut)
    }
}

/// Lets the late beat land just before the verdict does.
#[derive(Debug)]
struct Overtaken {
    by: Arc<Intercepted<Slow>>,
    /// When it landed.
    landed: Mutex<Option<Instant>>,
    /// Whether a verdict that came after it has stood.
    stood: AtomicBool,
}

impl Interceptor for Overtaken {
    fn swap<'a>(
        &'a self,
        store: &'a dyn Store,
        write: Write,
        within: Duration,
    ) -> Answer<'a, Written> {
        let dead = beat(&write).is_some_and(|beat| beat.dead.is_some());
        Box::pin(async move {
            let first = self.landed.lock().expect("nobody panics").is_none();
            if !dead || !first {
                return store.compare_and_swap(write, within).await;
            }
            let late = self
                .by
                .interceptor
                .late
                .lock()
                .expect("nobody panics")
                .clone();
            let late = late.expect("only the silent one is judged");
            match store.compare_and_swap(late, within / 2).await {
                // Or it has landed before, when the store was slow to say so.
                Ok(_) | Err(StoreError::Conflict) => {}
                Err(error) => return Err(StoreError::unavailable(error)),
            }
            *self.landed.lock().expect("nobody panics") = Some(clock::boot());
            let written = store.compare_and_swap(write, within / 2).await;
            self.stood.fetch_or(written.is_ok(), Ordering::SeqCst);
            written
        })
    }
}

pub(super) async fn a_late_heartbeat_cancels_a_verdict(town: Town) {
    let slow = Intercepted::new(town.store().await, Slow::default());
    let a = town.node_by(Arc::clone(&slow) as Arc<dyn Store>, "a").await;
    deployed(&a, work("one")).await;
    let overtaken = Overtaken {
        by: Arc::clone(&slow),
        landed: Mutex::default(),
        stood: AtomicBool::default(),
    };
    let line = Intercepted::new(town.store().await, overtaken);
    let b = town.node_by(Arc::clone(&line) as Arc<dyn Store>, "b").await;
    let (old, mut events) = (a.id(), b.events());
    slow.interceptor.on.store(true, Ordering::SeqCst);
    let died = |event: &Event| matches!(event, Event::NodeDied { id, .. } if *id == old);
    heard(&mut events, died).await;
    let judged = clock::boot();
    let landed = line
        .interceptor
        .landed
        .lock()
        .expect("nobody panics")
        .take();
    let landed = landed.expect("a verdict was written");
    let stood = line.interceptor.stood.load(Ordering::SeqCst);
    assert!(!stood, "a verdict on an older beat has stood");
    // The silence was counted anew, from the late beat on.
    let silent = judged.since(landed);
    assert!(silent >= town.lease(), "judged after {silent:?}");
    town.ledger.until("one", Some("b")).await;
    assert_eq!(town.ledger.stays("one").len(), 2);
    town.close([a, b]).await;
}
