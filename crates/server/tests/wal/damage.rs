//! What was acknowledged and is damaged is refused, never cut.

use tenure_alpo::Recovered;
use tenure_core::rng::Rng;
use tenure_server::wal::{Wal, WalError, verify_on};

use super::memory::Memory;
use super::model::{Model, SMALL, brief, covers, entry, identity, random_calls};

fn written(seed: u64, calls: usize) -> (Memory, Model) {
    let disk = Memory::new();
    let (calls, models) = random_calls(&mut Rng::from_seed(seed), calls);
    let mut wal = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).expect("a new log");
    for call in &calls {
        wal.append(call).expect("a sound disk");
    }
    (disk, models.last().expect("a model").clone())
}

fn read(disk: &Memory) -> Result<Recovered, WalError> {
    verify_on(disk).map(|(_, recovered)| recovered)
}

/// Every single bit of a small log, everything in it acknowledged.
#[test]
fn no_flipped_bit_loses_anything() {
    let (mut refused, mut harmless) = (0, 0);
    for (seed, calls) in [(5, 9), (11, 4), (12, 2)] {
        let (disk, model) = written(seed, calls);
        let files = disk.files();
        assert!(files.len() > 1);
        for name in files {
            for at in 0..disk.bytes(&name).len() {
                for bit in 0..8 {
                    disk.flip(&name, at, 1 << bit);
                    match read(&disk) {
                        Ok(found) => {
                            let what = format!("seed {seed}: {name} byte {at} bit {bit}");
                            assert!(
                                covers(&found, &model.recovered),
                                "{what}: {}",
                                brief(&found)
                            );
                            harmless += 1;
                        }
                        Err(error) => {
                            let text = error.to_string();
                            assert!(text.contains("/memory/"), "{text}");
                            refused += 1;
                        }
                    }
                    disk.flip(&name, at, 1 << bit);
                }
            }
        }
    }
    assert!(
        refused > 20_000 && harmless > 1_000,
        "{refused} refused, {harmless} harmless"
    );
}

/// The same for bytes, with every log opened in earnest.
#[test]
fn no_changed_byte_loses_anything() {
    for seed in 0..8 {
        let (disk, model) = written(seed, 6);
        let mut rng = Rng::from_seed(seed);
        for name in disk.files() {
            let length = disk.bytes(&name).len();
            for _ in 0..length.min(400) {
                let at = rng.below(length as u64) as usize;
                let copy = disk.copy();
                // Two bits at least, and never to zero: a zero is what a
                // write leaves that did not come to its end.
                let bits = 1 + rng.below(255) as u8;
                if disk.bytes(&name)[at] == bits {
                    continue;
                }
                copy.flip(&name, at, bits);
                if let Ok((_, found)) = Wal::open_on(Box::new(copy), &identity(), SMALL) {
                    assert!(
                        covers(&found, &model.recovered),
                        "seed {seed}: {name} byte {at}: {}",
                        brief(&found)
                    );
                }
            }
        }
    }
}

/// A file that has become shorter is not what a crash leaves.
#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let (disk, model) = written(5, 9);
    for name in disk.files() {
        let bytes = disk.bytes(&name);
        for end in 0..bytes.len() {
            let cut = disk.copy();
            cut.put(&name, bytes[..end].to_vec());
            match Wal::open_on(Box::new(cut), &identity(), SMALL) {
                // A spare snapshot, or one that the log can do without.
                Ok((_, found)) => {
                    assert!(
                        name.ends_with(".snap"),
                        "{name} cut at {end} was not noticed"
                    );
                    assert!(covers(&found, &model.recovered), "{}", brief(&found));
                }
                Err(error) => assert!(error.to_string().contains(&name), "{error}"),
            }
        }
    }
}

/// Damage in the middle of what one write wrote is seen for what it is, also
/// when the group has sectors that are zeros by right.
#[test]
fn zeros_of_a_user_are_no_tear() {
    let disk = Memory::new();
    let mut wal = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).expect("a new log");
    let batch = tenure_alpo::Batch {
        number: 1,
        entries: vec![entry(1, 1, &[0; 1800]), entry(2, 1, &[7; 300])],
        ..Default::default()
    };
    wal.append(&[batch]).expect("a sound disk");
    let name = disk
        .files()
        .into_iter()
        .find(|name| name.ends_with(".wal"))
        .expect("a segment");
    // Inside of the zeros of the first entry.
    disk.flip(&name, 512 + 600, 1);
    let error = read(&disk).expect_err("damage");
    assert!(matches!(error, WalError::Damaged(_)), "{error}");
    disk.flip(&name, 512 + 600, 1);
    // In the second entry, while the zeros of the first are as they were.
    disk.flip(&name, 512 + 2000, 1);
    let error = read(&disk).expect_err("damage");
    assert!(matches!(error, WalError::Damaged(_)), "{error}");
}

/// A hole in the newest write is a tear; the same hole with a later write
/// behind it is damage.
#[test]
fn what_stands_behind_decides() {
    let disk = Memory::new();
    let mut wal = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).expect("a new log");
    let batch = |number: u64| tenure_alpo::Batch {
        number,
        entries: vec![entry(number, 1, &[7; 1200])],
        ..Default::default()
    };
    wal.append(&[batch(1)]).expect("a sound disk");
    let name = disk
        .files()
        .into_iter()
        .find(|name| name.ends_with(".wal"))
        .expect("a segment");
    for hole in [512, 1024, 1536] {
        let torn = disk.copy();
        let mut bytes = torn.bytes(&name);
        bytes[hole..hole + 512].fill(0);
        torn.put(&name, bytes);
        assert_eq!(
            read(&torn).expect("a tear").entries.len(),
            0,
            "hole at {hole}"
        );
    }
    wal.append(&[batch(2)]).expect("a sound disk");
    for hole in [512, 1024, 1536] {
        let damaged = disk.copy();
        let mut bytes = damaged.bytes(&name);
        bytes[hole..hole + 512].fill(0);
        damaged.put(&name, bytes);
        let error = read(&damaged).expect_err("damage");
        let text = error.to_string();
        assert!(
            text.contains("had been acknowledged") && text.contains(&name),
            "{text}"
        );
    }
}
