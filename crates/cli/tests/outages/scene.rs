//! Two candidates of one election, and several such scenes side by side.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use tenure::core::time::Instant;
use tenure::election::Event;
use tenure::store::{Key, Store, open};
use tenure::{Election, Term, clock};
use tokio::task::{JoinSet, block_in_place};

use super::ledger::Ledger;

/// The lease of all candidates.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// How long anything may take that only needs its turn.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// In which term the first leads: so that a store that begins anew would begin below.
pub(crate) const FIRST: u64 = 8;

/// See the [module](self). Its candidates end when it is dropped.
pub(crate) struct Scene {
    pub(crate) ledger: Arc<Ledger>,
    candidates: JoinSet<()>,
}

async fn stand(who: &'static str, store: Arc<dyn Store>, ledger: Arc<Ledger>) {
    let builder = Election::builder(store, "payroll").name(who).lease(LEASE);
    let builder = builder.floor(Term::new(FIRST - 1).expect("a term"));
    let mut election = builder.start().expect("a candidate");
    let mut events = election.events();
    let lead = async {
        while let Some(leadership) = election.elected().await {
            ledger.elected(who, &leadership);
            // Its work ends when it has to and not before.
            let _ = leadership.guard(pending::<()>()).await;
        }
    };
    let listen = async {
        while let Some(event) = events.next().await {
            match event {
                Event::Trouble { failure, .. } => {
                    ledger.heard(who, format!("{}: {}", failure.class, failure.why));
                }
                Event::Elected { fence, .. } => ledger.saw(who, fence.term.get()),
                Event::LeaderChanged(seen) => {
                    let term = seen.leader.map_or(0, |leader| leader.term.get());
                    ledger.saw(who, term);
                }
                _ => {}
            }
        }
    };
    tokio::join!(lead, listen);
}

impl Scene {
    /// Two candidates, each with a store of its own, of these URLs.
    pub(crate) async fn begin(what: String, urls: [&str; 2]) -> Self {
        let ledger = Ledger::begin(what);
        let candidates = JoinSet::new();
        let mut scene = Self { ledger, candidates };
        for (who, url) in ["a", "b"].into_iter().zip(urls) {
            scene.join(who, url).await;
        }
        scene
    }

    /// One more candidate.
    pub(crate) async fn join(&mut self, who: &'static str, url: &str) {
        let store = open(url).await.expect("a store");
        let ledger = Arc::clone(&self.ledger);
        self.candidates.spawn(stand(who, store, ledger));
    }

    /// Waits until somebody leads in a term above this one.
    pub(crate) async fn leads_above(&self, term: u64) -> u64 {
        let what = format!("a leader above term {term}");
        let above = |now: &u64| *now > term;
        let look = |past: &super::ledger::Past| {
            past.leader()?;
            Some(past.term()).filter(above)
        };
        self.ledger.until(&what, SOON, look).await
    }

    /// Waits until somebody leads whose term both candidates have seen.
    pub(crate) async fn is_led(&self) -> u64 {
        let look = |past: &super::ledger::Past| {
            past.leader()?;
            Some(past.term()).filter(|term| past.is_known(*term))
        };
        self.ledger
            .until("a leader whom all know", SOON, look)
            .await
    }

    /// Waits until the store has confirmed somebody's leadership at a call that began
    /// after this.
    pub(crate) async fn leads_since(&self, since: Instant) -> u64 {
        let look = |past: &super::ledger::Past| past.confirmed_after(since);
        self.ledger
            .until("a leader that is confirmed", SOON, look)
            .await
    }

    /// Waits until nobody leads, which is due a lease after the fault.
    pub(crate) async fn is_vacant(&self) {
        let look = |past: &super::ledger::Past| past.leader().is_none().then_some(());
        // The rest is for a candidate that is elected by a call that was under way.
        self.ledger.until("no leader", 3 * LEASE, look).await;
    }

    /// Waits until a candidate has said one of these words, since so much was told.
    pub(crate) async fn told(&self, before: usize, words: &[&str]) -> String {
        let what = format!("one of {words:?}");
        let look = |past: &super::ledger::Past| past.told(before, words);
        self.ledger.until(&what, SOON, look).await
    }

    pub(crate) fn told_so_far(&self) -> usize {
        self.ledger.past().told_so_far()
    }

    /// For as long nobody may lead. The time itself is what is tried.
    pub(crate) async fn stays_vacant(&self, time: Duration) {
        let (over, term) = (clock::boot().after(time), self.ledger.past().term());
        let look = |past: &super::ledger::Past| {
            assert_eq!((past.leader(), past.term()), (None, term), "somebody leads");
            (clock::boot() >= over).then_some(())
        };
        self.ledger.until("the end", 2 * time + SOON, look).await;
    }
}

/// What another process that is started does: it makes the table, the file or the
/// stream where there is none, which those that have used one never do.
pub(crate) async fn opened_anew(url: &str) {
    let store = open(url).await.expect("a store");
    let key = Key::new("anything").expect("a key");
    let until = clock::boot().after(SOON);
    while let Err(why) = store.read(&key, Duration::from_secs(5)).await {
        assert!(clock::boot() < until, "{why}");
        tokio::task::yield_now().await;
    }
}

/// Runs what blocks, without keeping others from their turn.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    block_in_place(work)
}

/// Runs all of these at the same time, and fails with the names of those that failed.
pub(crate) async fn side_by_side(
    scenes: impl Iterator<Item = (&'static str, impl Future<Output = ()> + Send + 'static)>,
) {
    let mut running = JoinSet::new();
    for (name, scene) in scenes {
        running.spawn(async move {
            // Its own task, whose panic is an answer.
            (name, tokio::spawn(scene).await.is_ok())
        });
    }
    let mut failed = Vec::new();
    while let Some(ended) = running.join_next().await {
        let (name, is_done) = ended.expect("no panic here");
        if !is_done {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "failed on {failed:?}, as told above");
}
