//! How fast is the log, next to the least that any log would do?
//!
//! ```sh
//! cargo run --release -p tenure-server --example wal_speed -- DIR [MIB]
//! ```
//!
//! In `DIR`, for batches of 1, 16 and 256 entries of 100 bytes, each durable
//! before the next: the log against a loop of one `write` and one `fdatasync`
//! of the same bytes to a file that was preallocated in the same way. The two
//! take turns, so that what else the machine does hits both. Then a log of
//! `MIB` (1024) is written and read back from the page cache.

#![allow(clippy::print_stdout, reason = "an example that prints its figures")]

use std::error::Error;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::time::ClockId;
use tenure::clock;
use tenure_alpo::codec::encode_entry;
use tenure_alpo::{
    Batch, ClusterId, Command, Entry, Identity, Operation, Payload, ServerId, StorageId,
};
use tenure_core::ids::Term;
use tenure_server::wal::{Options, Wal};

/// How often the two take turns, and how many appends a turn has.
const TURNS: usize = 20;
const APPENDS: usize = 50;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn identity() -> Outcome<Identity> {
    Ok(Identity {
        cluster: ClusterId::from_u128(1),
        server: ServerId::new(1).ok_or("a server")?,
        storage: StorageId::from_u128(2),
    })
}

fn entry(id: u64) -> Entry {
    Entry {
        id,
        term: Term::default(),
        time: id,
        payload: Payload::Command(Command {
            session: 1,
            serial: id,
            outstanding: id,
            operation: Operation::Append([id as u8 | 1; 100].as_slice().into()),
        }),
    }
}

fn batch(first: u64, entries: u64) -> Batch {
    Batch {
        number: first,
        entries: (first..first + entries).map(entry).collect(),
        ..Batch::default()
    }
}

/// What an append of `entries` comes to, when written as plain bytes.
fn bytes(entries: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in &batch(1_000_000, entries).entries {
        bytes.extend_from_slice(&[7; 9]);
        encode_entry(&mut bytes, entry);
    }
    bytes
}

fn timed(work: impl FnOnce() -> Outcome<()>) -> Outcome<Duration> {
    let began = clock::boot();
    work()?;
    Ok(clock::boot().since(began))
}

fn appends(dir: &Path, entries: u64) -> Outcome<()> {
    let log = dir.join(format!("log-{entries}"));
    let mut wal = Wal::create(&log, &identity()?, Options::default())?;
    let plain = bytes(entries);
    let path = dir.join(format!("plain-{entries}"));
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .open(&path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 64 << 20)?;
    file.sync_all()?;
    let (mut next, mut offset) = (1, 0);
    let (mut ours, mut theirs) = (Duration::ZERO, Duration::ZERO);
    let mut ratios = Vec::new();
    // The first turn warms both up and does not count.
    for turn in 0..=TURNS {
        let batches: Vec<_> = (0..APPENDS as u64)
            .map(|i| batch(next + i * entries, entries))
            .collect();
        next += APPENDS as u64 * entries;
        let one = timed(|| {
            for batch in &batches {
                wal.append(std::slice::from_ref(batch))?;
            }
            Ok(())
        })?;
        let other = timed(|| {
            for _ in 0..APPENDS {
                if offset + plain.len() as u64 > 64 << 20 {
                    offset = 0;
                }
                file.write_all_at(&plain, offset)?;
                file.sync_data()?;
                offset += plain.len() as u64;
            }
            Ok(())
        })?;
        if turn > 0 {
            ours += one;
            theirs += other;
            ratios.push(other.as_secs_f64() / one.as_secs_f64());
        }
    }
    ratios.sort_by(f64::total_cmp);
    let count = (TURNS * APPENDS) as f64;
    println!(
        "{entries:>4} entries, {:>6} bytes: log {:>7.1} us, write + fdatasync {:>7.1} us: {:>5.1} % \
         (turns: median {:.1} %, worst {:.1} %)",
        plain.len(),
        ours.as_secs_f64() * 1e6 / count,
        theirs.as_secs_f64() * 1e6 / count,
        theirs.as_secs_f64() / ours.as_secs_f64() * 100.0,
        ratios[ratios.len() / 2] * 100.0,
        ratios[0] * 100.0,
    );
    Ok(())
}

/// What this thread has had of the processor, and the whole process: on a
/// busy machine they say more than the time that passed.
fn processor_seconds() -> (f64, f64) {
    let of = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    (of(ClockId::ThreadCPUTime), of(ClockId::ProcessCPUTime))
}

fn recovery(dir: &Path, mib: u64) -> Outcome<()> {
    let log = dir.join("log-big");
    let mut wal = Wal::create(&log, &identity()?, Options::default())?;
    let mut next = 1;
    let mut written = 0;
    while written < mib << 20 {
        let batch = batch(next, 4096);
        next += 4096;
        wal.append(&[batch])?;
        written += bytes(4096).len() as u64;
    }
    drop(wal);
    let mut read = 0;
    for file in std::fs::read_dir(&log)? {
        // Also brings it all into the page cache.
        read += std::fs::read(file?.path())?.len();
    }
    for round in 1..=3 {
        let mut found = 0;
        // Given back after the clock was stopped: a server keeps it.
        let mut kept = None;
        let (own, all) = processor_seconds();
        let took = timed(|| {
            let (_, recovered) = Wal::open(&log, &identity()?, Options::default())?;
            found = recovered.entries.len() as u64;
            kept = Some(recovered);
            Ok(())
        })?;
        let (own_after, all_after) = processor_seconds();
        let (own, all) = (own_after - own, all_after - all);
        assert_eq!(found, next - 1, "every entry comes back");
        drop(kept);
        let mib = read as f64 / f64::from(1 << 20);
        println!(
            "recovery {round}: {found} entries, {mib:.0} MiB in {:.2} s: {:.0} MiB/s \
             (processor time: {own:.2} s to take in, {:.2} s to read and decode)",
            took.as_secs_f64(),
            mib / took.as_secs_f64(),
            all - own,
        );
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: wal_speed DIR [MIB]")?;
    let mib = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    std::fs::create_dir_all(&dir)?;
    let scratch = Path::new(&dir).join("wal-speed");
    std::fs::create_dir(&scratch)?;
    for entries in [1, 16, 256] {
        appends(&scratch, entries)?;
    }
    recovery(&scratch, mib)?;
    std::fs::remove_dir_all(&scratch)?;
    Ok(())
}
