//! Faults of a server and of what it keeps.

use std::time::Duration;

use tenure::clock;

use super::interface::{Fault, Make};
use super::scene::{FIRST, LEASE, SOON, Scene, blocking, opened_anew, side_by_side};
use super::{databases, keys, local, objects, own, stand_ins};

/// How long a server is away in mid term: three leases, or `TENURE_PAUSE_SECONDS`.
fn outage() -> Duration {
    let seconds = std::env::var("TENURE_PAUSE_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok());
    seconds.map_or(3 * LEASE, Duration::from_secs)
}

/// Away before the candidates begin, away for a moment, and away for long.
async fn comes_and_goes(store: &'static str, make: Make) {
    let mut subject = blocking(make);
    let words = blocking(|| subject.strike(Fault::Away));
    let url = subject.url();
    let what = format!("{store}, away at the start");
    let scene = Scene::begin(what, [&url, &url]).await;
    let told = scene.told(0, words).await;
    println!("{store}, away at the start: {told}");
    blocking(|| subject.relieve(Fault::Away));
    assert!(scene.is_led().await >= FIRST, "{store}");

    blocking(|| {
        subject.strike(Fault::Away);
        subject.relieve(Fault::Away);
    });
    let back = clock::boot();
    let term = scene.leads_since(back).await;
    let took = clock::boot().since(back).as_secs_f64();
    println!("{store}, restarted with its data: led in term {term} after {took:.1} s");

    let so_far = scene.told_so_far();
    blocking(|| subject.strike(Fault::Away));
    scene.told(so_far, words).await;
    scene.is_vacant().await;
    let term = scene.ledger.past().term();
    scene.stays_vacant(outage()).await;
    blocking(|| subject.relieve(Fault::Away));
    let back = clock::boot();
    let next = scene.leads_above(term).await;
    let took = clock::boot().since(back).as_secs_f64();
    println!(
        "{store}, away for {:?}: led in term {next} {took:.1} s after that",
        outage()
    );
}

/// Struck in mid term for so long that no leadership is left, and then mended.
async fn outlasts(store: &'static str, make: Make, fault: Fault) {
    let mut subject = blocking(make);
    let url = subject.url();
    let scene = Scene::begin(format!("{store}, {fault:?}"), [&url, &url]).await;
    assert!(scene.is_led().await >= FIRST, "{store}");
    let so_far = scene.told_so_far();
    let words = blocking(|| subject.strike(fault));
    let told = scene.told(so_far, words).await;
    println!("{store}, {fault:?}: {told}");
    scene.is_vacant().await;
    let term = scene.ledger.past().term();
    // No grant of before is left after that, by anybody's clock.
    scene.stays_vacant(2 * LEASE).await;
    blocking(|| subject.relieve(fault));
    if matches!(fault, Fault::Emptied | Fault::Missing) {
        opened_anew(&url).await;
    }
    let mended = clock::boot();
    let next = scene.leads_above(term).await;
    let took = clock::boot().since(mended).as_secs_f64();
    println!("{store}, {fault:?}: led in term {next} {took:.1} s after it was mended");
    assert!(clock::boot().since(mended) < SOON, "{store}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_is_away_at_the_start_and_in_mid_term() {
    let stores: [(_, Make); 11] = [
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
    let scenes = stores.into_iter();
    side_by_side(scenes.map(|(name, make)| (name, comes_and_goes(name, make)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_comes_back_without_its_data() {
    let stores: [(_, Make); 10] = [
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
    ];
    let scenes = stores.into_iter();
    side_by_side(scenes.map(|(name, make)| (name, outlasts(name, make, Fault::Emptied)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn credentials_that_are_revoked_in_mid_term() {
    let stores: [(_, Make); 10] = [
        ("postgres", databases::postgres),
        ("mysql", databases::mysql),
        ("redis", keys::redis),
        ("etcd", keys::etcd_with_users),
        ("nats", keys::nats_with_users),
        ("s3", objects::s3),
        ("gcs", objects::gcs_behind_a_proxy),
        ("azure", objects::azure),
        ("consul", stand_ins::consul),
        ("kubernetes", stand_ins::kubernetes),
    ];
    let scenes = stores.into_iter();
    side_by_side(scenes.map(|(name, make)| (name, outlasts(name, make, Fault::Revoked)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_table_a_stream_or_a_bucket_that_goes_missing() {
    let stores: [(_, Make); 9] = [
        ("postgres", databases::postgres),
        ("mysql", databases::mysql),
        ("nats", keys::nats),
        ("s3", objects::s3),
        ("gcs", objects::gcs),
        ("azure", objects::azure),
        ("kubernetes", stand_ins::kubernetes),
        ("sqlite", local::sqlite),
        ("file", local::file),
    ];
    let scenes = stores.into_iter();
    side_by_side(scenes.map(|(name, make)| (name, outlasts(name, make, Fault::Missing)))).await;
}
