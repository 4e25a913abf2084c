//! What is told while registers change.

use std::collections::BTreeMap;

use prometheus_client::metrics::counter::Counter;
use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::rng::Rng;
use tokio_stream::StreamExt as _;

use super::super::watch_queue::CutOff;
use super::super::watch_queue::WatchMessage;
use super::super::watch_queue::tests::counted;
use super::*;

type Held = BTreeMap<Key, Register>;

fn key(number: u64) -> Key {
    Key::new(&format!("k/{number:04}")).expect("a key")
}

fn put(registers: &mut Registers, key: Key, bytes: usize) {
    let expect = registers.read(&key);
    let expect = expect.map_or(Expect::Absent, |it| Expect::Version(it.version.clone()));
    let write = Write {
        key,
        expect,
        value: vec![7; bytes].into(),
        stamp: Stamp::Keep,
    };
    registers.compare_and_swap(write, None).expect("as read");
}

fn delete(registers: &mut Registers, key: &Key) {
    if let Some(held) = registers.read(key).cloned() {
        registers.delete(key, &held.version).expect("as read");
    }
}

/// Some changes, of which one in four deletes.
fn change(registers: &mut Registers, rng: &mut Rng, most: u64) {
    for _ in 0..rng.below(most + 1) {
        let key = key(rng.below(2_000));
        if rng.below(4) == 0 {
            delete(registers, &key);
        } else {
            put(registers, key, rng.below(600) as usize);
        }
    }
}

fn held(registers: &Registers, prefix: &str) -> Held {
    let all = registers.list(prefix);
    all.map(|(key, it)| (key.clone(), it.clone())).collect()
}

fn take(into: &mut Held, page: &InitialPage, heeds_deletions: bool) {
    for (key, register) in &page.registers {
        match register {
            Some(register) => drop(into.insert(key.clone(), register.clone())),
            None if heeds_deletions || !page.initial => drop(into.remove(key)),
            None => {}
        }
    }
}

fn begin(prefix: &str, registers: &Registers, after: Option<u64>) -> WatchStart {
    WatchStart {
        selector: Selector::Prefix(prefix.into()),
        first: after.is_none().then_some(registers.revision()),
        upto: None,
        told: after,
        deleted: BTreeSet::new(),
    }
}

/// Reads until all is known that is wanted: changes of this prefix, in order.
async fn read(
    news: &mut WatchReceiver,
    (known, wanted): (&mut Held, &Held),
    (prefix, mut told): (&str, u64),
) {
    while known != wanted {
        let Some(Ok(WatchMessage::Changes(batch))) = news.next().await else {
            panic!("expected changes");
        };
        for change in &batch.changes {
            assert!(change.revision > told && change.revision <= batch.revision);
            told = change.revision;
            assert!(change.key.as_str().starts_with(prefix));
            match &change.register {
                Some(register) => drop(known.insert(change.key.clone(), register.clone())),
                None => drop(known.remove(&change.key)),
            }
        }
    }
}

#[tokio::test]
async fn however_registers_change_meanwhile_each_watch_comes_to_what_is_there() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let mut registers = Registers::new(4_096);
        for number in 0..2_000 {
            put(&mut registers, key(number), rng.below(600) as usize);
        }
        let watchers = Arc::new(Watchers::new(10));
        watchers.begin(&registers);
        tokio::spawn(Arc::clone(&watchers).dispatch(Counter::default()));
        let prefix = if seed % 2 == 0 { "" } else { "k/1" };
        let mut begins = begin(prefix, &registers, None);
        // One that heeds what is deleted, and one of an earlier release.
        let (mut new, mut old) = (Held::new(), Held::new());
        let (mut revision, mut pages) = (0, 0);
        let (mut news, seat) = loop {
            let seen = begins.inspect(&registers, (&watchers, counted()));
            let seen = seen.expect("all is remembered");
            assert!(seen.page.initial && seen.page.revision >= revision);
            assert!(seen.page.registers.len() <= REGISTERS_MAX);
            assert_eq!(seen.page.began, seen.watch_queue.is_some());
            (revision, pages) = (seen.page.revision, pages + 1);
            take(&mut new, &seen.page, true);
            take(&mut old, &seen.page, false);
            if let Some(watch_queue) = seen.watch_queue {
                assert_eq!(new, held(&registers, prefix), "seed {seed}");
                let then = seen.then.unwrap_or_default();
                assert!(then.registers.is_empty() || then.revision > revision);
                take(&mut new, &then, true);
                take(&mut old, &then, false);
                assert_eq!(old, new, "seed {seed}");
                assert_eq!(new, held(&registers, prefix), "seed {seed}");
                break watch_queue;
            }
            change(&mut registers, &mut rng, 60);
            watchers.applied(&registers);
        };
        assert!(pages > 1);
        // It goes on from there, while it follows and by its place.
        let place = registers.revision();
        for _ in 0..5 {
            change(&mut registers, &mut rng, 100);
            watchers.applied(&registers);
        }
        let wanted = held(&registers, prefix);
        read(&mut news, (&mut new, &wanted), (prefix, place)).await;
        drop(seat);
        let mut resumed = begin(prefix, &registers, Some(place));
        loop {
            let seen = resumed.inspect(&registers, (&watchers, counted()));
            let seen = seen.expect("all is remembered");
            assert!(!seen.page.initial && !seen.page.began && seen.then.is_none());
            take(&mut old, &seen.page, true);
            if seen.watch_queue.is_some() {
                assert_eq!(seen.page.revision, registers.revision());
                break;
            }
        }
        assert_eq!(old, wanted, "seed {seed}");
    }
}

#[test]
fn a_page_is_bounded_and_who_comes_too_late_begins_again() {
    let mut registers = Registers::new(4_096);
    for number in 0..100 {
        put(&mut registers, key(number), 40_000);
    }
    let watchers = Arc::new(Watchers::new(10));
    let mut begins = begin("", &registers, None);
    let seen = begins.inspect(&registers, (&watchers, counted()));
    assert_eq!(seen.expect("a page").page.registers.len(), 2);
    // What was told changes, and so do registers that were not told.
    for _ in 0..3 {
        put(&mut registers, key(1), 40_000);
        put(&mut registers, key(50), 40_000);
    }
    let seen = begins.inspect(&registers, (&watchers, counted()));
    let page = seen.expect("a page").page;
    assert_eq!(page.registers.len(), 2, "its bytes are bounded too");
    assert!(page.registers.iter().all(|(it, _)| *it == key(1)));
    for _ in 0..5_000 {
        put(&mut registers, key(99), 1);
    }
    let late = begins.inspect(&registers, (&watchers, counted()));
    let now = registers.revision();
    assert_eq!(late.expect_err("forgotten"), WatchError::TooOld(now));
    // A place in the future is waited for.
    let seen = begin("", &registers, Some(now + 5)).inspect(&registers, (&watchers, counted()));
    let seen = seen.expect("a page");
    assert_eq!(
        (seen.page.registers.len(), seen.page.revision),
        (0, now + 5)
    );
    assert!(seen.watch_queue.is_some());
}

#[test]
fn too_many_deleted_registers_are_not_held() {
    let mut registers = Registers::new(100_000);
    let all = 3 * DELETED_MAX as u64;
    for number in 0..all {
        put(&mut registers, key(number), 0);
    }
    let watchers = Arc::new(Watchers::new(10));
    let mut begins = begin("", &registers, None);
    let mut inspect = |registers: &Registers| begins.inspect(registers, (&watchers, counted()));
    for _ in 0..all / REGISTERS_MAX as u64 - 1 {
        assert!(inspect(&registers).expect("a page").watch_queue.is_none());
    }
    for number in 0..all {
        delete(&mut registers, &key(number));
    }
    let refused = std::iter::repeat_with(|| inspect(&registers)).find_map(Result::err);
    assert_eq!(refused, Some(WatchError::TooOld(registers.revision())));
}

#[tokio::test]
async fn who_was_not_told_of_what_is_dropped_begins_again_and_others_go_on() {
    let mut registers = Registers::new(10_000);
    let watchers = Arc::new(Watchers::new(10));
    watchers.begin(&registers);
    let prefix = |text: &str| Selector::Prefix(text.into());
    let subscribe = |selector, since| watchers.subscribe(selector, since, counted());
    let (mut late, _one) = subscribe(prefix(""), 0).expect("a seat");
    // This one came with a place of a server that is ahead.
    let (mut ahead, _other) = subscribe(prefix(""), 5_000).expect("a seat");
    for number in 0..6_000 {
        put(&mut registers, key(number), 1);
    }
    // Nobody tells meanwhile, so the first of them are dropped.
    watchers.applied(&registers);
    let cut_off = Counter::default();
    tokio::spawn(Arc::clone(&watchers).dispatch(cut_off.clone()));
    assert!(matches!(
        late.next().await,
        Some(Ok(WatchMessage::Gap(6_000)))
    ));
    assert!(late.next().await.is_none());
    let mut told = 5_000;
    while told < 6_000 {
        let Some(Ok(WatchMessage::Changes(batch))) = ahead.next().await else {
            panic!("expected changes");
        };
        for change in &batch.changes {
            told += 1;
            assert_eq!(change.revision, told);
        }
    }
    // One that does not read is cut off, and counted.
    for _ in 0..300 {
        put(&mut registers, key(1), 1);
        watchers.applied(&registers);
        tokio::task::yield_now().await;
    }
    while cut_off.get() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(ahead.next().await, Some(Err(CutOff))));
}
