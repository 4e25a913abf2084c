//! Gives the decoders bytes that nobody would write.
//!
//! ```sh
//! cargo run --release -p tenure --example fuzz --no-default-features -- wal 600
//! cargo run --release -p tenure --example fuzz --no-default-features -- frame 600
//! ```
//!
//! Arguments: the target (`wal` or `frame`), seconds, and the seed (1). It
//! changes what is in `tests/corpus/TARGET/`, in half of the cases makes the
//! checksums right again, so that the inside is reached, and keeps what had an
//! outcome that was not seen before: those files belong into the repository,
//! where a test replays them. It has no instrumentation, so it needs no
//! special compiler; the outcomes, in words, are what guides it.

#![allow(clippy::print_stdout, reason = "an example that prints its figures")]

#[path = "../tests/wal/memory.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod memory;
#[path = "../tests/wal/model.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod model;
#[path = "../tests/corpus/targets.rs"]
mod targets;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure::clock;
use tenure::wal::{Options, Wal};
use tenure_core::alpo::codec::{crc32c, encode_frame};
use tenure_core::alpo::{
    Body, ClusterVersion, Compare, Envelope, Mark, Position, Rank, Reply, Request, ServerId,
};
use tenure_core::rng::Rng;

/// No input grows beyond this.
const BYTES_MAX: usize = 8192;
/// No more files than this are kept.
const FILES_MAX: usize = 400;

/// Inputs to begin with, so that an empty corpus will do.
fn seeds(target: &str, rng: &mut Rng) -> Vec<Vec<u8>> {
    (0..30)
        .map(|_| {
            if target == "wal" {
                segment(rng)
            } else {
                frame(rng)
            }
        })
        .collect()
}

fn segment(rng: &mut Rng) -> Vec<u8> {
    let disk = memory::Memory::new();
    let options = Options {
        segment_bytes: 4096,
    };
    let wal = Wal::create_on(Box::new(disk.clone()), &model::identity(), options);
    if let Ok(mut wal) = wal {
        let count = 1 + rng.below(4) as usize;
        for call in model::random_calls(rng, count).0 {
            let _ = wal.append(&call);
        }
    }
    let name = disk
        .files()
        .into_iter()
        .find(|name| name == targets::SEGMENT);
    name.map_or_else(Vec::new, |name| disk.bytes(&name))
}

fn frame(rng: &mut Rng) -> Vec<u8> {
    let last = Position::new(model::term(rng.below(300)), rng.below(1 << 40));
    let server = ServerId::new(1 + rng.below(300)).unwrap_or_else(|| model::identity().server);
    let rank = Rank { last, server };
    let entries = (0..rng.below(4))
        .map(|i| model::entry(i + 1, 3, b"something"))
        .collect();
    let request = |request| Body::Request { number: 5, request };
    let reply = |reply| Body::Reply {
        number: 5,
        asked_in: model::term(3),
        reply,
    };
    let mark = Mark { id: 256, hash: 9 };
    let body = match rng.below(13) {
        0 => request(Request::Poll { last }),
        1 => request(Request::Vote {
            last,
            transfer: rng.below(2) == 0,
        }),
        2 => request(Request::Defer { last }),
        3 | 4 => request(Request::Append {
            prev: last,
            entries,
            commit: 7,
            round: 8,
        }),
        5 => request(Request::Heartbeat {
            last,
            commit: 1,
            round: 2,
            time: 3,
            compare: Compare {
                at: 256,
                agreed: Some(mark),
            },
        }),
        6 => {
            let bytes = Arc::from(&b"chunk"[..]);
            request(Request::Install {
                last,
                offset: 0,
                bytes,
                total: 5,
                round: 1,
            })
        }
        7 => request(Request::TransferNow),
        8 => reply(Reply::Granted),
        11 => reply(Reply::Heard {
            matched: Some(3),
            last,
            round: 8,
            version: ClusterVersion::NEWEST,
            mark: Some(mark),
        }),
        9 => reply(Reply::LogIncomplete { last }),
        10 => reply(Reply::Led {
            leader: Some(rank.server),
        }),
        _ => reply(Reply::StaleTerm),
    };
    let envelope = Envelope {
        from: server,
        to: model::identity().server,
        term: last.term,
        body,
    };
    let mut bytes = Vec::new();
    encode_frame(&mut bytes, &envelope);
    bytes
}

/// One to eight changes, each small.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    for _ in 0..=rng.below(8) {
        let length = bytes.len() as u64;
        let at = rng.below(length) as usize;
        let edges = [0, 1, 0x7f, 0x80, 0xff, 0xa5];
        match rng.below(8) {
            _ if bytes.is_empty() => bytes.push(rng.below(256) as u8),
            0 | 1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes[at] = edges[rng.below(6) as usize],
            3 => bytes[at] = rng.below(256) as u8,
            4 => {
                let end = bytes.len().min(at + 1 + rng.below(600) as usize);
                bytes[at..end].fill(0);
            }
            5 => {
                let end = bytes.len().min(at + 1 + rng.below(9) as usize);
                bytes.drain(at..end);
            }
            6 => bytes.insert(at, rng.below(256) as u8),
            _ => {
                let from = rng.below(other.len() as u64) as usize;
                let part = &other[from..other.len().min(from + 1 + rng.below(64) as usize)];
                let end = bytes.len().min(at + part.len());
                bytes[at..end].copy_from_slice(&part[..end - at]);
            }
        }
    }
    bytes.truncate(BYTES_MAX);
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments
        .next()
        .ok_or("usage: fuzz wal|frame SECONDS [SEED]")?;
    let seconds: u64 = arguments.next().ok_or("for how many seconds?")?.parse()?;
    let seed: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(&target);
    std::fs::create_dir_all(&dir)?;
    let mut rng = Rng::from_seed(seed);
    let mut inputs = Vec::new();
    for file in std::fs::read_dir(&dir)? {
        inputs.push(std::fs::read(file?.path())?);
    }
    let kept_before = inputs.len();
    let mut seen: BTreeSet<String> = inputs.iter().map(|it| targets::run(&target, it)).collect();
    let mut fresh = seeds(&target, &mut rng);
    let (mut runs, mut kept) = (0_u64, 0);
    let began = clock::boot();
    while clock::boot().since(began) < Duration::from_secs(seconds) {
        let mut input = match fresh.pop() {
            Some(input) => input,
            None => {
                let pick = |rng: &mut Rng| rng.below(inputs.len() as u64) as usize;
                let mut input = inputs[pick(&mut rng)].clone();
                let other = pick(&mut rng);
                mutate(&mut input, &inputs[other], &mut rng);
                if rng.below(2) == 0 {
                    targets::mend(&target, &mut input);
                }
                input
            }
        };
        input.truncate(BYTES_MAX);
        // If the target panics, the file is the finding.
        let suspect = dir.join("suspect");
        let outcome = std::panic::catch_unwind(|| targets::run(&target, &input));
        let Ok(outcome) = outcome else {
            std::fs::write(&suspect, &input)?;
            return Err(format!("a promise is broken by {}", suspect.display()).into());
        };
        runs += 1;
        if seen.insert(outcome) && kept_before + kept < FILES_MAX {
            std::fs::write(dir.join(format!("{:08x}", crc32c(&input))), &input)?;
            inputs.push(input);
            kept += 1;
        } else if inputs.len() < 30 {
            inputs.push(input);
        }
    }
    println!(
        "{target}: {runs} inputs in {seconds} s, seed {seed}; {} outcomes, {kept} inputs kept \
         besides {kept_before}; nothing broken",
        seen.len()
    );
    Ok(())
}
