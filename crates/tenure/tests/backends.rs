//! Backends as a stranger may write them, with their mistakes.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure::core::cas::Registers;
use tenure::election::{Event, Observer};
use tenure::store::{
    Backend, Key, Memory, PAGE_MAX, Page, PollTimes, Polled, Reading, Selector, Sighting, Store,
    Version, Write, Written, conformance,
};
use tenure::{Election, Name, StoreError, clock, election};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

const WITHIN: Duration = Duration::from_secs(20);

/// What is wrong with a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// It hints without ever waiting.
    HintsAtOnce,
    /// Its versions shrink.
    VersionsShrink,
    /// Its first listing panics, and its first hints.
    Panics,
}

/// What happens to a backend, for its test.
#[derive(PartialEq, Eq, Debug)]
enum BackendEvent {
    Hints,
    Dropped,
}

/// Registers in memory, with a mistake.
#[derive(Debug)]
struct Mistaken {
    mistake: Mistake,
    registers: Mutex<Registers>,
    told: UnboundedSender<BackendEvent>,
    /// Whether it was asked before for a page, and for hints.
    asked: [AtomicBool; 2],
}

impl Mistaken {
    fn store(
        mistake: Mistake,
        times: PollTimes,
    ) -> (Arc<dyn Store>, UnboundedReceiver<BackendEvent>) {
        let (told, hears) = unbounded_channel();
        let backend = Self {
            mistake,
            registers: Mutex::new(Registers::new(100)),
            told,
            asked: Default::default(),
        };
        (Arc::new(Polled::new(backend, times)), hears)
    }

    async fn page(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let registers = self.registers();
        let mut listed = registers.list_after(prefix, after);
        let mut page = Page::default();
        for (key, register) in listed.by_ref().take(PAGE_MAX) {
            page.registers.push((key.clone(), register.clone()));
        }
        if listed.next().is_some() {
            page.more_after = page.registers.last().map(|(key, _)| key.clone());
        }
        Ok(page)
    }

    /// Panics when it is called for the first time.
    fn panics_first(&self, of: usize) {
        let before = self.asked[of].swap(true, Ordering::Relaxed);
        assert!(before || self.mistake != Mistake::Panics, "planted");
    }

    fn registers(&self) -> MutexGuard<'_, Registers> {
        self.registers.lock().expect("no panic")
    }
}

impl Drop for Mistaken {
    fn drop(&mut self) {
        let _ = self.told.send(BackendEvent::Dropped);
    }
}

impl fmt::Display for Mistaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mistaken:")
    }
}

impl Backend for Mistaken {
    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        Ok(Reading {
            register: self.registers().read(key).cloned(),
            ..Reading::default()
        })
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let mut registers = self.registers();
        let count = registers.revision() + 1;
        let version = Version::from_u64(match self.mistake {
            Mistake::VersionsShrink => u64::MAX - count,
            Mistake::HintsAtOnce | Mistake::Panics => count,
        });
        let written = registers.swap_as(write.clone(), None, version);
        let version = written.map_err(|_| StoreError::Conflict)?;
        Ok(Written { version, now: None })
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let deleted = self.registers().delete(key, expected);
        deleted.map_err(|_| StoreError::Conflict)
    }

    fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send {
        self.panics_first(0);
        self.page(prefix, after)
    }

    async fn hints(&self) -> Vec<(Key, Option<Version>)> {
        let _ = self.told.send(BackendEvent::Hints);
        match self.mistake {
            Mistake::HintsAtOnce => Vec::new(),
            Mistake::VersionsShrink => std::future::pending().await,
            Mistake::Panics => {
                self.panics_first(1);
                std::future::pending().await
            }
        }
    }
}

/// Waits until the leader that is observed has renewed so often.
async fn renewed(observer: &mut Observer, times: u32) {
    let mut renewals = 0;
    while renewals < times {
        let event = timeout(WITHIN, observer.next()).await;
        if let Some(Event::LeaderRenewed(_)) = event.expect("in time") {
            renewals += 1;
        }
    }
}

/// A leader in another store of this process, with one who sees its renewals.
async fn leader_elsewhere() -> (Election, tenure::Leadership, Observer) {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let builder = Election::builder(Arc::clone(&memory), "elsewhere");
    // A busy machine may keep it waiting.
    let builder = builder.lease(Duration::from_secs(4));
    let mut election = builder.start().expect("a candidate");
    let leadership = election.elected().await.expect("a leadership");
    let name = Name::new("elsewhere").expect("a name");
    let observer = election::watch(memory, name, true);
    (election, leadership, observer)
}

#[tokio::test]
async fn hints_that_never_wait_stop_no_election_and_end_with_their_store() {
    const HINTS: u32 = 20;
    let (_election, leadership, mut observer) = leader_elsewhere().await;
    let (store, mut told) = Mistaken::store(Mistake::HintsAtOnce, PollTimes::default());
    let watch = store.watch(Selector::Prefix(String::new()));
    let began = clock::boot();
    for _ in 0..HINTS {
        let hints = timeout(WITHIN, told.recv()).await;
        assert_eq!(hints.expect("in time"), Some(BackendEvent::Hints));
    }
    let took = clock::boot().since(began);
    assert!(took >= Duration::from_millis(10) * (HINTS - 1), "{took:?}");
    renewed(&mut observer, 3).await;
    assert!(leadership.is_valid());
    // While there is a watch: it is the store that ends this.
    drop(store);
    let ended = async { while told.recv().await.expect("it tells") != BackendEvent::Dropped {} };
    timeout(WITHIN, ended).await.expect("it is dropped");
    drop(watch);
}

/// The first look panics, and the hints after it. The second look finds everything.
#[tokio::test]
async fn a_backend_that_panics_in_a_watch_ends_no_watch() {
    let (store, _told) = Mistaken::store(Mistake::Panics, PollTimes::default());
    let mut watch = store.watch(Selector::Prefix(String::new()));
    // A reader that is late may miss that it was down, but not that it is up.
    let live = async { while !matches!(watch.next().await, Sighting::Live) {} };
    timeout(WITHIN, live).await.expect("in time");
}

#[tokio::test]
async fn the_conformance_suite_finds_versions_that_shrink() {
    let (store, _told) = Mistaken::store(Mistake::VersionsShrink, PollTimes::default());
    let tried = tokio::spawn(async move { conformance::all(&store, "try/").await });
    let panicked = tried.await.expect_err("a panic").into_panic();
    let said = panicked.downcast::<String>().expect("a message");
    assert!(said.contains("versions of one key that grow"), "{said}");
}
