//! Faults of the line to the server: round trips that are long, or longer than the
//! lease, and answers of which the first half arrives.

use std::time::Duration;

use tenure::clock;
use tenure::store::{Expect, Key, Selector, Sighting, Stamp, Write, open};

use super::interface::Make;
use super::line::Line;
use super::scene::{LEASE, SOON, Scene, blocking, side_by_side};
use super::{databases, keys, objects, own, stand_ins};

/// How often connections are lost that new ones replace.
const LOSSES: usize = 5;
/// A client that looks three times whether a silent server leads, before it leaves the
/// connection, takes 1.75 s.
const LEFT_WITHIN: Duration = Duration::from_millis(1_500);
/// How often two answers are cut.
const ROUNDS: usize = 4;

const STORES: [(&str, Make); 11] = [
    ("postgres", databases::postgres),
    ("mysql", databases::mysql),
    ("redis", keys::redis),
    ("etcd", keys::etcd),
    ("nats", keys::nats),
    ("s3", objects::s3),
    ("gcs", objects::gcs),
    ("azure", objects::azure),
    ("consul", stand_ins::consul),
    ("kubernetes", stand_ins::kubernetes),
    ("tenure", own::tenure),
];

/// A long round trip.
const FAR: Duration = Duration::from_millis(700);
/// How often a register is read from there, while it is watched.
const FAR_READS: u32 = 8;

/// What the store says of a call that had too little time. That there was no answer is
/// known without it.
const LATE: &[&str] = &[
    "did not answer within",
    "no answer in time",
    "no connection to",
    "expected a lease of at least",
];

/// A first call, with all that has to be asked before it.
async fn is_reached_from_afar(store: &'static str, make: Make) {
    let subject = blocking(make);
    let (url, address) = (subject.url(), subject.address());
    let line = Line::before(address.clone()).await;
    line.delay(FAR / 2);
    let far = open(&line.url(&url, &address)).await.expect("a store");
    let (key, began) = (Key::new("anything").expect("a key"), clock::boot());
    let read = far.read(&key, SOON).await;
    read.unwrap_or_else(|error| panic!("{store}: {error}"));
    let took = clock::boot().since(began).as_secs_f64() / FAR.as_secs_f64();
    println!("{store}: read from afar after {took:.1} round trips of {FAR:?}");
    // What is watched is looked at more often at first than answers can come.
    let (mut watch, made) = (far.watch(Selector::Key(key.clone())), line.connections());
    for _ in 0..FAR_READS {
        far.read(&key, SOON).await.expect("a read");
    }
    let seen = async { while !matches!(watch.next().await, Sighting::State(..)) {} };
    let seen = tokio::time::timeout(SOON, seen).await;
    assert!(seen.is_ok(), "{store}: the watch shows nothing");
    let made = line.connections() - made;
    println!("{store}: {FAR_READS} reads and a watch from afar over {made} more connections");
    let most = match store {
        // Over their only connection.
        "etcd" | "nats" => 0,
        // One to listen, and the probes of it.
        "postgres" => 4,
        _ => 2,
    };
    assert!(made <= most, "{store}: {made}");
}

/// The shortest lease that a candidate takes, a tenth above it.
async fn is_led_from_afar(store: &'static str, make: Make) {
    let subject = blocking(make);
    let (url, address) = (subject.url(), subject.address());
    let line = Line::before(address.clone()).await;
    line.delay(LEASE.mul_f64(1.0 / 8.8) / 2);
    let url = line.url(&url, &address);
    let (scene, began) = (
        Scene::begin(format!("{store}, from afar"), [&url, &url]).await,
        clock::boot(),
    );
    scene.leads_above(0).await;
    scene.leads_since(clock::boot().after(2 * LEASE)).await;
    let took = clock::boot().since(began).as_secs_f64();
    let told = scene.ledger.past().told(0, &[""]).unwrap_or_default();
    println!("{store}, from afar: confirmed {took:.1} s after the start; told first: {told}");
}

async fn is_far_away_for_a_while(store: &'static str, make: Make) {
    let subject = blocking(make);
    let (url, address) = (subject.url(), subject.address());
    let line = Line::before(address.clone()).await;
    let url = line.url(&url, &address);
    let scene = Scene::begin(format!("{store}, far away"), [&url, &url]).await;
    scene.leads_above(0).await;
    let so_far = scene.told_so_far();
    // There and back: a lease and a half.
    line.delay(LEASE * 3 / 4);
    let told = scene.told(so_far, LATE).await;
    println!("{store}, far away: {told}");
    scene.is_vacant().await;
    let term = scene.ledger.past().term();
    scene.stays_vacant(3 * LEASE).await;
    line.delay(Duration::ZERO);
    let near = clock::boot();
    let next = scene.leads_above(term).await;
    let took = clock::boot().since(near).as_secs_f64();
    println!("{store}, far away: led in term {next} {took:.1} s after it was near again");
}

/// Connections of before and of that time stay mute; those of later work.
async fn is_reached_over_new_connections(store: &'static str, make: Make) {
    let subject = blocking(make);
    let (url, address) = (subject.url(), subject.address());
    let line = Line::before(address.clone()).await;
    let url = line.url(&url, &address);
    let scene = Scene::begin(format!("{store}, forgotten"), [&url, &url]).await;
    scene.leads_above(0).await;
    line.lose(true);
    scene.is_vacant().await;
    let term = scene.ledger.past().term();
    scene.stays_vacant(2 * LEASE).await;
    line.lose(false);
    let good = clock::boot();
    let next = scene.leads_above(term).await;
    let took = clock::boot().since(good);
    println!(
        "{store}, forgotten: led in term {next} {:.1} s after the line was good",
        took.as_secs_f64()
    );
    // Two seconds until it is asked again, and a lease: its watch was mute as well.
    assert!(took < Duration::from_secs(8), "{store}: {took:?}");
}

/// The server answers over new connections, and nothing comes over that of before.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lost_connection_to_a_server_of_ours_is_left_at_once() {
    let subject = blocking(own::tenure);
    let (url, address) = (subject.url(), subject.address());
    let line = Line::before(address.clone()).await;
    let store = open(&line.url(&url, &address)).await.expect("a store");
    let key = Key::new("anything").expect("a key");
    let mut expect = Expect::Absent;
    let mut took = Vec::new();
    for number in 0..=LOSSES {
        let write = Write {
            key: key.clone(),
            expect,
            value: vec![u8::try_from(number).expect("few")].into(),
            stamp: Stamp::Now,
        };
        let began = clock::boot();
        let written = store.compare_and_swap(write, SOON).await;
        took.push(clock::boot().since(began));
        expect = Expect::Version(written.expect("a write").version);
        line.lose(true);
        line.lose(false);
    }
    // The first was over a good one.
    took.remove(0);
    println!("written after {took:?}");
    // A busy machine may be late, but not each time.
    assert!(took.iter().any(|took| *took < LEFT_WITHIN), "{took:?}");
}

async fn loses_the_other_half_of_answers(store: &'static str, make: Make) {
    let subject = blocking(make);
    let (url, address) = (subject.url(), subject.address());
    let line = Line::before(address.clone()).await;
    let url = line.url(&url, &address);
    let scene = Scene::begin(format!("{store}, half answers"), [&url, &url]).await;
    let first = scene.leads_above(0).await;
    for _ in 0..ROUNDS {
        line.cut(2);
        let is_done = |_: &super::ledger::Past| (line.to_cut() == 0).then_some(());
        scene.ledger.until("two cuts", SOON, is_done).await;
        scene.leads_since(clock::boot()).await;
    }
    let told = scene.told(0, &[""]).await;
    let last = scene.ledger.past().term();
    println!("{store}, half answers: in terms {first} to {last}, told first: {told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_is_far_away_is_reached() {
    let scenes = STORES.into_iter();
    side_by_side(scenes.map(|(name, make)| (name, is_reached_from_afar(name, make)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_round_trips_are_a_lease() {
    let scenes = STORES.into_iter();
    side_by_side(scenes.map(|(name, make)| (name, is_led_from_afar(name, make)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn round_trips_that_are_longer_than_the_lease() {
    let scenes = STORES.into_iter();
    side_by_side(scenes.map(|(name, make)| (name, is_far_away_for_a_while(name, make)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn connections_that_a_middlebox_forgets_are_made_anew() {
    let scenes = STORES.into_iter();
    let scenes = scenes.map(|(name, make)| (name, is_reached_over_new_connections(name, make)));
    side_by_side(scenes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn half_an_answer() {
    let scenes = STORES.into_iter();
    side_by_side(scenes.map(|(name, make)| (name, loses_the_other_half_of_answers(name, make))))
        .await;
}
