//! `?format=hpc`: candidates of Tenure and programs of HPC Pack HA in one table.

#![allow(clippy::print_stdout, reason = "how long it took is of interest")]

#[path = "../common/mariadb.rs"]
mod mariadb;
#[path = "../common/ports.rs"]
mod ports;
#[path = "../common/postgres.rs"]
mod postgres;
#[path = "../common/stopped.rs"]
mod stopped;

mod contract;
mod foreign;
mod rows;
mod tables;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foreign::{Database, I, T, uuid};
use tenure::core::time::Instant;
use tenure::store::Store;
use tenure::{Election, Leadership, clock};
use tokio::time::{sleep, timeout};

pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A candidate with the times of the programs.
pub(crate) async fn candidate(database: &Database, election: &str, name: &str) -> Election {
    let store = tenure::store::open(&database.url()).await.expect("a store");
    stand(store, election, name)
}

fn stand(store: Arc<dyn Store>, election: &str, name: &str) -> Election {
    let builder = Election::builder(store, election).name(name).lease(T);
    let builder = builder.interval(I).grace(Duration::from_millis(300));
    builder.start().expect("a candidate")
}

pub(crate) async fn led(election: &mut Election) -> Leadership {
    let led = timeout(SOON, election.elected()).await;
    led.expect("in time").expect("a leadership")
}

/// Runs what blocks where it keeps no task waiting.
async fn apart<O: Send + 'static>(
    database: &Arc<Database>,
    work: impl FnOnce(&Database) -> O + Send + 'static,
) -> O {
    let database = Arc::clone(database);
    let done = tokio::task::spawn_blocking(move || work(&database)).await;
    done.expect("it did not panic")
}

async fn take_over_from_each_other(database: Database) {
    let database = Arc::new(database);
    // Makes the tables.
    let made = tenure::store::open(&database.url()).await.expect("a store");
    made.list("elections/", None, SOON).await.expect("a list");
    assert!(apart(&database, |it| it.update_heart_beat(&uuid(1), "payroll")).await);

    // It beats: nobody else leads. Then it is dead after T, and not before.
    let mut ours = candidate(&database, "payroll", "ours").await;
    let beats = apart(&database, |it| {
        it.beat_for(T * 2, &uuid(1), "payroll");
        clock::boot()
    });
    let (leadership, last_beat) = tokio::join!(led(&mut ours), beats);
    let waited = leadership.grant().start.since(last_beat.before(I));
    println!("taken over {waited:?} after the last heartbeat at the latest");
    // The last heartbeat was at most I and a call before `last_beat`.
    assert!(leadership.grant().start > last_beat, "while it was alive");
    assert!(waited < T * 2, "{waited:?}");
    assert_eq!(leadership.term().get(), 2);

    // Its row is ours, and a program sees it as one of its own.
    let shown = apart(&database, |it| it.get_primary("payroll")).await;
    let id = leadership.fence().leader.to_string();
    assert_eq!(shown.map(|it| it.replace('-', "")), Some(id));
    assert!(!apart(&database, |it| it.update_heart_beat(&uuid(2), "payroll")).await);
    // A heartbeat that has seen the row before the last renewal is discarded.
    let seen = apart(&database, |it| it.row("payroll"))
        .await
        .expect("a row");
    leadership.extended().await.expect("a renewal");
    let late = apart(&database, move |it| {
        let own = seen.0.clone();
        it.update_over(Some(&seen), &own, "payroll")
    });
    assert!(!late.await, "the later heartbeat is discarded");

    // Resigned: a program takes it at once, and is followed in the next term.
    drop(leadership);
    ours.stop().await;
    assert_eq!(apart(&database, |it| it.get_primary("payroll")).await, None);
    assert!(apart(&database, |it| it.update_heart_beat(&uuid(2), "payroll")).await);
    let mut again = candidate(&database, "payroll", "again").await;
    apart(&database, |it| it.beat_for(T, &uuid(2), "payroll")).await;
    let followed = again.leader().expect("it was read");
    let leader = followed.leader.expect("a leader");
    assert_eq!((leader.term.get(), leader.name.as_str()), (3, "their-host"));
    assert_eq!(leader.id.to_string(), uuid(2).replace('-', ""));
    // Another program takes over from that one and is followed in a term of its own.
    let third = apart(&database, |it| {
        let since = clock::boot();
        let mut tries = 0;
        while !it.update_over(it.row("payroll").as_ref(), &uuid(3), "payroll") {
            tries += 1;
            if clock::boot().since(since) > SOON {
                return None;
            }
            if it.get_primary("payroll").is_some_and(|it| it != uuid(2)) {
                // A candidate of Tenure was quicker.
                return None;
            }
        }
        Some(tries)
    });
    let (led, third) = tokio::join!(led(&mut again), third);
    let expected = if third.is_some() { 5 } else { 4 };
    assert_eq!(led.term().get(), expected, "{third:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_programs_and_candidates_take_over_from_each_other() {
    take_over_from_each_other(Database::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_programs_and_candidates_take_over_from_each_other() {
    take_over_from_each_other(Database::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_programs_and_candidates_take_over_from_each_other() {
    take_over_from_each_other(Database::mysql()).await;
}

/// When each leader acted first and last, by what it believed itself.
#[derive(Default)]
struct Acts(Mutex<BTreeMap<String, (Instant, Instant)>>);

impl Acts {
    fn act(&self, who: &str) {
        let now = clock::boot();
        let mut acts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        acts.entry(who.to_owned()).or_insert((now, now)).1 = now;
    }

    /// How many programs, and how many candidates of Tenure, have led.
    fn led(&self) -> (usize, usize) {
        let acts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = acts.keys().filter(|who| who.contains("-1111-")).count();
        (theirs, acts.len() - theirs)
    }

    fn both_have_led(&self) -> bool {
        let (theirs, ours) = self.led();
        theirs > 0 && ours > 0
    }

    /// All of them, one after the other.
    fn in_order(&self) -> Vec<(String, (Instant, Instant))> {
        let acts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut acts: Vec<_> = acts.clone().into_iter().collect();
        acts.sort_by_key(|(_, (first, _))| *first);
        for pair in acts.windows(2) {
            let [before, after] = pair else {
                unreachable!("pairs")
            };
            assert!(before.1.1 < after.1.0, "two lead: {before:?} {after:?}");
        }
        acts
    }
}

/// The algorithm of the source, until it has led so long; then it ends, and is begun
/// again under another id.
fn program(database: &Database, acts: &Acts, first: u64, over: &AtomicBool) {
    let mut number = first;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let me = uuid(number);
        let mut led_since: Option<Instant> = None;
        loop {
            std::thread::park_timeout(I);
            let asked = clock::boot();
            let primary = database.get_primary("payroll");
            let believes_until = asked.after(T - I);
            match primary {
                Some(primary) if primary == me => {
                    let since = *led_since.get_or_insert(asked);
                    if clock::boot() < believes_until {
                        acts.act(&me);
                    }
                    if clock::boot().since(since) > T * 2 || over.load(Ordering::Relaxed) {
                        break;
                    }
                    database.update_heart_beat(&me, "payroll");
                }
                // Anything but its own id: it ends and is begun again.
                _ if led_since.is_some() => break,
                Some(_) => {}
                None => drop(database.update_heart_beat(&me, "payroll")),
            }
            if over.load(Ordering::Relaxed) {
                break;
            }
        }
    }
}

/// Stands until it is over, and returns its terms. When it has led it stands again only
/// after a program has led: candidates of Tenure hear at once that a leader has resigned,
/// and programs ask each `I`, so programs would seldom be first.
async fn stands(database: &Database, acts: &Acts, name: &str, over: &AtomicBool) -> Vec<u64> {
    let mut terms = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let mut election = candidate(database, "payroll", name).await;
        while !over.load(Ordering::Relaxed) {
            let Ok(Some(led)) = timeout(I, election.elected()).await else {
                continue;
            };
            terms.push(led.term().get());
            let until = clock::boot().after(T);
            while led.is_valid() && clock::boot() < until {
                acts.act(&format!("{name} in term {}", led.term()));
                sleep(Duration::from_millis(5)).await;
            }
            break;
        }
        let (before, _) = acts.led();
        election.stop().await;
        while acts.led().0 == before && !over.load(Ordering::Relaxed) {
            sleep(I).await;
        }
    }
    terms
}

async fn lead_one_at_a_time(database: Database) {
    const FOR: Duration = Duration::from_secs(20);
    let (database, acts) = (Arc::new(database), Arc::new(Acts::default()));
    let over = Arc::new(AtomicBool::new(false));
    let made = tenure::store::open(&database.url()).await.expect("a store");
    made.list("elections/", None, SOON).await.expect("a list");
    let programs = [0x100, 0x200].map(|first| {
        let (acts, over) = (Arc::clone(&acts), Arc::clone(&over));
        let database = Arc::clone(&database);
        tokio::task::spawn_blocking(move || program(&database, &acts, first, &over))
    });
    let candidates = ["a", "b"].map(|name| {
        let (acts, over) = (Arc::clone(&acts), Arc::clone(&over));
        let database = Arc::clone(&database);
        tokio::spawn(async move { stands(&database, &acts, name, &over).await })
    });
    sleep(FOR).await;
    // Under load it may take longer.
    let mut rounds = 0;
    while !acts.both_have_led() && rounds < 200 {
        rounds += 1;
        sleep(I).await;
    }
    over.store(true, Ordering::Relaxed);
    for program in programs {
        program.await.expect("it did not panic");
    }
    let mut terms = Vec::new();
    for candidate in candidates {
        let of_one = candidate.await.expect("it did not panic");
        assert!(of_one.is_sorted_by(|one, next| one < next), "{of_one:?}");
        terms.extend(of_one);
    }
    let leaders = acts.in_order();
    terms.sort_unstable();
    println!("{} leaders, of ours in {terms:?}", leaders.len());
    assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
    assert!(acts.both_have_led(), "both have led: {leaders:?}");
    // In the order in which they led the terms of ours rise, by one for each leader of
    // theirs as well.
    let mut last = 0;
    for (who, _) in &leaders {
        match who.split_once(" in term ") {
            None => last += 1,
            Some((_, term)) => {
                let term: u64 = term.parse().expect("a term");
                assert!(term > last, "{leaders:?}");
                last = term;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_one_leads_at_a_time() {
    lead_one_at_a_time(Database::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_one_leads_at_a_time() {
    lead_one_at_a_time(Database::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql_one_leads_at_a_time() {
    lead_one_at_a_time(Database::mysql()).await;
}
