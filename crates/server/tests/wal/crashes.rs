//! Whatever the disk does and whenever the power goes: everything that was
//! acknowledged comes back, and what comes back is a state that was there.

use tenure_alpo::Batch;
use tenure_core::rng::Rng;
use tenure_server::wal::{Disk as _, Wal, WalError};

use super::memory::{Failure, Memory};
use super::model::{Model, SMALL, brief, identity, random_calls};

/// Runs calls until one fails; how many were acknowledged, and the error.
fn run(disk: &Memory, calls: &[Vec<Batch>]) -> (usize, Option<WalError>) {
    let mut wal = match Wal::create_on(Box::new(disk.clone()), &identity(), SMALL) {
        Ok(wal) => wal,
        Err(error) => return (0, Some(error)),
    };
    for (done, call) in calls.iter().enumerate() {
        if let Err(error) = wal.append(call) {
            let again = wal.append(&calls[0]);
            assert!(matches!(again, Err(WalError::Poisoned { .. })), "{again:?}");
            return (done, Some(error));
        }
    }
    (calls.len(), None)
}

/// Opens what a crash left and checks it; which of the states it was, or
/// `None` if the making of the log was not complete.
fn reopen(disk: &Memory, models: &[Model], acknowledged: usize, what: &str) -> Option<usize> {
    match Wal::open_on(Box::new(disk.clone()), &identity(), SMALL) {
        Ok((_, recovered)) => {
            let last = models.len().min(acknowledged + 2);
            let found = (acknowledged..last).find(|i| models[*i].recovered == recovered);
            assert!(
                found.is_some(),
                "{what}: {acknowledged} were acknowledged, found {}",
                brief(&recovered)
            );
            found
        }
        Err(WalError::Misplaced(_)) if acknowledged == 0 => {
            let made = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL);
            assert!(made.is_ok(), "{what}: {made:?}");
            None
        }
        Err(error) => panic!("{what}: a crash is no damage, but: {error}"),
    }
}

#[test]
fn batches_come_back() {
    for seed in 0..200 {
        let mut rng = Rng::from_seed(seed);
        let (calls, models) = random_calls(&mut rng, 30);
        let disk = Memory::new();
        let (done, error) = run(&disk, &calls);
        assert!(error.is_none(), "seed {seed}: {error:?}");
        assert_eq!(
            reopen(&disk, &models, done, &format!("seed {seed}")),
            Some(done)
        );
    }
}

#[test]
fn a_log_goes_on_after_each_of_many_restarts() {
    for seed in 0..50 {
        let mut rng = Rng::from_seed(seed);
        let (calls, models) = random_calls(&mut rng, 40);
        let disk = Memory::new();
        let made = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL);
        drop(made.expect("a new log"));
        for (call, model) in calls.iter().zip(&models) {
            let opened = Wal::open_on(Box::new(disk.clone()), &identity(), SMALL);
            let (mut wal, recovered) = opened.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!(recovered, model.recovered, "seed {seed}");
            wal.append(call)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    }
}

/// Every step of a run fails in every way, and then the process is killed or
/// the power is lost, and that again while the log is opened.
#[test]
fn every_step_may_fail() {
    for seed in 0..6 {
        let mut rng = Rng::from_seed(seed);
        let (calls, models) = random_calls(&mut rng, 12);
        let whole = Memory::new();
        run(&whole, &calls);
        for step in 1..=whole.steps() {
            for failure in [Failure::Refused, Failure::Half, Failure::Forgotten] {
                let what = format!("seed {seed}, step {step}, {failure:?}");
                let disk = Memory::new();
                disk.fail_at(step, failure);
                let (done, _) = run(&disk, &calls);
                reopen(
                    &disk.after_kill(),
                    &models,
                    done,
                    &format!("{what}, killed"),
                );
                for loss in 0..6 {
                    let after = disk.after_power_loss(&mut rng);
                    reopen(&after, &models, done, &format!("{what}, power loss {loss}"));
                }
                // What an opening gave back was durable, however soon the
                // power goes after it.
                let killed = disk.after_kill();
                if let Some(found) = reopen(&killed, &models, done, &what) {
                    let after = killed.after_power_loss(&mut rng);
                    let what = format!("{what}, opened, power loss");
                    assert_eq!(reopen(&after, &models, found, &what), Some(found));
                }
            }
        }
    }
}

/// Power is lost while a log that was torn is being mended.
#[test]
fn opening_may_be_cut_short() {
    for seed in 0..200 {
        let mut rng = Rng::from_seed(seed);
        let (calls, models) = random_calls(&mut rng, 10);
        let whole = Memory::new();
        run(&whole, &calls);
        let disk = Memory::new();
        disk.fail_at(1 + rng.below(whole.steps()), Failure::Half);
        let (done, _) = run(&disk, &calls);
        let torn = disk.after_power_loss(&mut rng);
        for step in 1..8 {
            let disk = torn.after_kill();
            disk.fail_at(disk.steps() + step, Failure::Half);
            drop(Wal::open_on(Box::new(disk.clone()), &identity(), SMALL));
            let what = format!("seed {seed}, mending cut at {step}");
            reopen(&disk.after_power_loss(&mut rng), &models, done, &what);
        }
    }
}

/// The system loses a write and says so once: the cache still shows it.
#[test]
fn a_failed_sync_is_final() {
    let mut rng = Rng::from_seed(1);
    let (calls, models) = random_calls(&mut rng, 5);
    let whole = Memory::new();
    run(&whole, &calls);
    let mut lost = 0;
    for step in 1..=whole.steps() {
        let disk = Memory::new();
        disk.fail_at(step, Failure::Forgotten);
        let (done, error) = run(&disk, &calls);
        let Some(error) = error else { continue };
        lost += u32::from(error.to_string().contains("sync"));
        reopen(&disk.after_kill(), &models, done, &format!("step {step}"));
    }
    assert!(lost > 5, "only {lost} syncs failed");
}

#[test]
fn the_disk_may_fill_at_any_byte() {
    for seed in 0..2 {
        let mut rng = Rng::from_seed(seed);
        let (calls, models) = random_calls(&mut rng, 6);
        let mut room = 0;
        loop {
            let disk = Memory::new();
            disk.set_room(Some(room));
            let (done, error) = run(&disk, &calls);
            let what = format!("seed {seed}, room for {room} bytes");
            let Some(error) = error else { break };
            let text = error.to_string();
            assert!(
                text.contains("disk is full: free some space") && text.contains("/memory/"),
                "{what}: {text}"
            );
            reopen(&disk.after_kill(), &models, done, &what);
            reopen(&disk.after_power_loss(&mut rng), &models, done, &what);
            room += 1;
        }
        assert!(room > 5000, "the run wrote {room} bytes");
    }
}

/// A write that was cut short at any byte of it, on a disk without sectors.
#[test]
fn the_newest_write_may_end_at_any_byte() {
    let mut rng = Rng::from_seed(3);
    let (calls, models) = random_calls(&mut rng, 12);
    let disk = Memory::new();
    for count in 1..=calls.len() {
        let disk_before = disk.copy();
        let disk_after = Memory::new();
        run(&disk_before, &calls[..count - 1]);
        run(&disk_after, &calls[..count]);
        let last = |disk: &Memory| {
            disk.files()
                .into_iter()
                .rfind(|name| name.ends_with(".wal"))
                .expect("a segment")
        };
        let name = last(&disk_after);
        if name != last(&disk_before) {
            continue;
        }
        let (old, new) = (disk_before.bytes(&name), disk_after.bytes(&name));
        for end in 0..new.len() {
            if old[end] == new[end] {
                continue;
            }
            let torn = disk_after.copy();
            torn.put(&name, [&new[..end], &old[end..]].concat());
            let what = format!("call {count} cut at byte {end}");
            assert_eq!(reopen(&torn, &models, count - 1, &what), Some(count - 1));
        }
    }
}

#[test]
fn an_empty_call_writes_nothing() {
    let disk = Memory::new();
    let mut wal = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).expect("a new log");
    let steps = disk.steps();
    wal.append(&[]).expect("nothing to do");
    wal.append(&[Batch::default()]).expect("nothing to do");
    assert_eq!(disk.steps(), steps);
    assert_eq!(disk.path(""), wal.directory());
}
