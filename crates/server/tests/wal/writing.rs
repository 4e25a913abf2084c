//! The thread that writes.

use std::sync::mpsc::channel;

use tenure_alpo::Batch;
use tenure_server::wal::{InlineWrite, Wal, WalError, Writer, verify_on};

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

#[test]
fn a_panic_of_the_thread_is_reported_as_a_failure() {
    let wal = new_log(&Memory::new());
    let (reports, reported) = channel();
    let writer = Writer::start(wal, move |result| {
        let failed = result.is_err();
        reports.send(result).expect("the test listens");
        assert!(failed, "planted: a report that panics");
    })
    .expect("a thread");
    writer.submit(batch(1)).expect("nothing has failed yet");
    assert!(matches!(reported.recv(), Ok(Ok(1))));
    let told = reported.recv().expect("a second report");
    assert!(matches!(told, Err(WalError::Poisoned { .. })), "{told:?}");
    writer.submit(batch(2)).expect_err("the thread has ended");
}

/// What is to be written here, once `attempt` gets it: on a busy machine a disk in memory
/// is slow at times.
fn when_quick(attempt: &mut impl FnMut() -> Option<InlineWrite>) -> InlineWrite {
    let found = (0..10_000).find_map(|_| attempt());
    found.expect("a disk in memory that is quick")
}

#[test]
fn a_quick_disk_is_waited_for_unless_something_waits_already() {
    let disk = Memory::new();
    let wal = new_log(&disk);
    let (reports, reported) = channel();
    let (release, gate) = channel::<()>();
    let writer = Writer::start(wal, move |result| {
        reports.send(result).expect("the test listens");
        let _ = gate.recv();
    })
    .expect("a thread");
    let mut number = 0;
    let mut next = || {
        number += 1;
        batch(number)
    };
    // The writer has not measured the disk yet. A batch that is reported may count as
    // waiting for a moment longer.
    let mut queued = 0;
    let mut attempt = || {
        let batch = next();
        let number = batch.number;
        let here = writer.here(batch).expect("a sound disk");
        if here.is_none() {
            queued += 1;
            assert_eq!(reported.recv().expect("a report").ok(), Some(number));
            release.send(()).expect("the thread waits");
        }
        here
    };
    // It is known for more than one write.
    let twice = (0..10).any(|_| {
        let first = when_quick(&mut attempt).write(|| ());
        first.expect("a sound disk");
        let second = attempt().map(|here| here.write(|| ()).expect("a sound disk"));
        second.is_some()
    });
    assert!(twice, "each was the only one");

    // What is handed over while one is written here comes after it.
    let here = when_quick(&mut attempt);
    assert!(queued >= 64, "after {queued}");
    let written = here.write(|| {
        writer.submit(next()).expect("a sound disk");
        assert!(reported.try_recv().is_err(), "it has overtaken");
    });
    written.expect("a sound disk");
    assert!(reported.recv().expect("a report").is_ok());
    release.send(()).expect("the thread waits");

    // The thread is held up with one of them: the next one queues behind it.
    writer.submit(next()).expect("a sound disk");
    assert!(reported.recv().expect("a report").is_ok());
    assert!(writer.here(next()).expect("a sound disk").is_none());
    drop(release);
    drop(writer.finish());
    let (_, recovered) = verify_on(&disk).expect("a sound log");
    assert_eq!(recovered.entries.len() as u64, number);
}

#[test]
fn a_failure_of_a_write_here_is_told_at_once_and_everything_after_fails() {
    let disk = Memory::new();
    let wal = new_log(&disk);
    let (reports, reported) = channel();
    let writer = Writer::start(wal, move |result| {
        reports
            .send(result.map_err(|error| error.to_string()))
            .expect("the test listens");
    })
    .expect("a thread");
    let mut number = 0;
    let mut attempt = || {
        number += 1;
        let here = writer.here(batch(number)).expect("a sound disk");
        if here.is_none() {
            assert_eq!(reported.recv(), Ok(Ok(number)));
        }
        here
    };
    let here = when_quick(&mut attempt);
    disk.fail_at(disk.steps() + 1, Failure::Refused);
    assert!(here.write(|| ()).is_err());
    writer
        .submit(batch(number + 1))
        .expect("it has not noticed");
    assert!(reported.recv().expect("a report").is_err());
}
