//! The thread that writes.

use std::sync::mpsc::channel;

use tenure::wal::{Wal, WalError, Writer, verify_on};
use tenure_core::alpo::Batch;

use super::memory::{Failure, Memory};
use super::model::{SMALL, entry, identity};

fn batch(number: u64) -> Batch {
    Batch {
        number,
        entries: vec![entry(number, 1, b"something")],
        ..Batch::default()
    }
}

fn new_log(disk: &Memory) -> Wal {
    Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).expect("a new log")
}

#[test]
fn everything_is_reported_in_order_and_many_share_a_sync() {
    let disk = Memory::new();
    let wal = new_log(&disk);
    let (reports, reported) = channel();
    let (release, gate) = channel::<()>();
    // The first report waits, so that the rest piles up behind it.
    let writer = Writer::start(wal, move |result| {
        reports
            .send(result.expect("a sound disk"))
            .expect("the test listens");
        let _ = gate.recv();
    })
    .expect("a thread");
    writer.submit(batch(1)).expect("a sound disk");
    assert_eq!(reported.recv(), Ok(1));
    for number in 2..=100 {
        writer.submit(batch(number)).expect("a sound disk");
    }
    drop(release);
    let wal = writer.finish();
    let numbers: Vec<u64> = reported.iter().collect();
    assert_eq!(numbers, [100]);
    drop(wal);
    let (report, recovered) = verify_on(&disk).expect("a sound log");
    assert_eq!((report.groups, recovered.entries.len()), (2, 100));
}

#[test]
fn a_failure_is_reported_once_and_ends_the_thread() {
    let disk = Memory::new();
    let wal = new_log(&disk);
    disk.fail_at(disk.steps() + 2, Failure::Refused);
    let (reports, reported) = channel();
    let writer = Writer::start(wal, move |result| {
        reports
            .send(result.map_err(|error| error.to_string()))
            .expect("the test listens");
    })
    .expect("a thread");
    writer.submit(batch(1)).expect("nothing has failed yet");
    let error = reported
        .recv()
        .expect("a report")
        .expect_err("the sync fails");
    assert!(error.contains("could not sync"), "{error}");
    assert!(reported.recv().is_err(), "the thread has ended");
    assert_eq!(
        writer.submit(batch(2)).map_err(|ended| *ended.0),
        Err(batch(2))
    );
    let mut wal = writer.finish();
    assert!(matches!(
        wal.append(&[batch(2)]),
        Err(WalError::Poisoned { .. })
    ));
}
