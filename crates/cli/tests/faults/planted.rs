//! Harm that is made up, to see that it would be noticed.
//!
//! A calm cluster is used by the same clients as in a storm. What they wrote
//! down is judged to be good, and then one thing in it is changed at a time,
//! to what a broken cluster would have made of it.

use std::time::Duration;

use tenure::core::cas::{Bytes, Expect};
use tenure::core::ids::{Key, Version};
use tenure_sim::linearize::{Answer, Invocation};

use crate::healed::end_of_log;
use crate::load::Load;
use crate::network::Network;
use crate::record::{Inner, Log, Record};
use crate::room::within;
use crate::servers::{Servers, until};

fn assert_harm(inner: &Inner, log: &Log, said: &str) {
    let why = inner.judge(log).expect_err("it is harm");
    assert!(why.contains(said), "expected {said:?}, found {why}");
}

#[test]
fn a_write_that_was_acknowledged_and_lost() {
    let record = Record::new();
    let key = Key::new("x").expect("a good key");
    let write = |expect: Expect, value: &str, version: u64| {
        let invocation = Invocation::Swap {
            expect,
            value: Bytes::from(value.as_bytes()),
        };
        let call = record.invokes(1, &key, invocation);
        record.hears(call, Ok(Answer::Swapped(Version::from_u64(version))));
    };
    write(Expect::Absent, "one", 5);
    write(Expect::Version(Version::from_u64(5)), "two", 6);
    assert!(record.copy().judge(&Log::new()).is_ok());
    // Another leader lacks the second.
    let call = record.invokes(2, &key, Invocation::Read);
    let lost = Answer::Holds {
        value: Bytes::from(&b"one"[..]),
        version: Version::from_u64(5),
    };
    record.hears(call, Ok(lost));
    assert_harm(&record.copy(), &Log::new(), "register x: no order");
}

#[test]
fn a_refusal_that_was_a_lie() {
    let record = Record::new();
    let payload = Bytes::from(&b"an order"[..]);
    record.appends(1, 1, &payload);
    let log = vec![(1, payload)];
    assert!(record.copy().judge(&log).is_ok(), "nobody knows: it may be");
    let refused = Err(tenure_client::Error::Unavailable("no leader".into()));
    record.appended(1, 1, &refused, 1);
    assert_harm(&record.copy(), &log, "nobody asked for");
}

#[test]
fn harm_done_to_what_a_real_cluster_said() {
    let name = "planted::harm_done_to_what_a_real_cluster_said";
    within(name, async |room| {
        let servers = Servers::found(3, Network::proxied(room, 3).await).await;
        let url = servers.url();
        let load = Load::start(&url, 7, Duration::from_millis(4));
        let enough = async || {
            let written = load.record.counts().done > 40;
            (written && end_of_log(&url, &Record::new()).await > 40).then_some(())
        };
        until("a log to do harm to", enough).await;
        let (record, log) = load
            .end(async |record| end_of_log(&url, record).await)
            .await;
        let good = record.copy();
        good.judge(&log).expect("nothing went wrong");
        let middle = log.len() / 2;
        assert!(middle > 10, "expected a log, found {} entries", log.len());

        let mut lost = log.clone();
        lost.remove(middle);
        assert_harm(&good, &lost, "expected entry");
        let mut short = log.clone();
        short.truncate(middle);
        assert_harm(&good, &short, "was lost");
        let mut doubled = log.clone();
        doubled.push((log.len() as u64 + 1, log[middle].1.clone()));
        assert_harm(&good, &doubled, "stands in the log twice");
        let mut swapped = log.clone();
        swapped[middle].1 = log[middle + 1].1.clone();
        swapped[middle + 1].1 = log[middle].1.clone();
        assert_harm(&good, &swapped, "was lost");

        // A read that was answered by what stood there long before.
        let mut stale = good.clone();
        let changed = |it: &Key, not: &Version| {
            good.history.calls().any(|(_, call)| {
                let other = match &call.answer {
                    Some((_, Answer::Swapped(other))) => other != not,
                    Some((_, Answer::Deleted)) => true,
                    _ => false,
                };
                call.key == *it && other
            })
        };
        let written =
            good.history
                .calls()
                .find_map(|(_, call)| match (&call.invocation, &call.answer) {
                    (Invocation::Swap { value, .. }, Some((_, Answer::Swapped(version))))
                        if changed(&call.key, version) =>
                    {
                        Some((call.key.clone(), value.clone(), version.clone()))
                    }
                    _ => None,
                });
        let (key, value, version) = written.expect("a register that was changed again");
        let late = stale.history.invoke(u64::MAX, 99, key, Invocation::Read);
        let answer = Answer::Holds { value, version };
        stale.history.answer(u64::MAX, late, answer);
        assert_harm(&stale, &log, "no order");
    });
}
