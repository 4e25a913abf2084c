//! The registers (§2 of `docs/design/election.md`) against a model so naive that it
//! can be believed at sight: a list of everything that ever took effect.

use tenure_core::cas::{Bytes, Change, Expect, MAX_VALUE_BYTES, Register, Registers, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, StoreTime};

/// Everything that ever took effect, oldest first.
#[derive(Default)]
struct Model(Vec<Change>);

impl Model {
    fn read(&self, key: &Key) -> Option<&Register> {
        let last = self.0.iter().rev().find(|change| change.key == *key);
        last.and_then(|change| change.register.as_ref())
    }

    fn happened(&mut self, key: &Key, register: Option<Register>) {
        let bytes = |it: Option<&Register>| it.map_or(0, |it| it.value.len() + key.as_str().len());
        let before = self.0.iter().rfind(|change| change.key == *key);
        let before = before.and_then(|change| change.register.as_ref());
        let (created, before) = (before.is_none(), bytes(before));
        self.0.push(Change {
            revision: self.0.len() as u64 + 1,
            key: key.clone(),
            grown: bytes(register.as_ref()) as i64 - before as i64,
            register,
            created,
        });
    }

    fn list(&self, prefix: &str) -> Vec<(Key, Register)> {
        let mut keys: Vec<&Key> = self.0.iter().map(|change| &change.key).collect();
        keys.sort();
        keys.dedup();
        let wanted = keys
            .into_iter()
            .filter(|key| key.as_str().starts_with(prefix));
        wanted
            .filter_map(|key| Some((key.clone(), self.read(key)?.clone())))
            .collect()
    }
}

const KEPT: usize = 16;

#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..20 {
        let mut rng = Rng::from_seed(seed);
        let (mut registers, mut model) = (Registers::new(KEPT), Model::default());
        for step in 0..400 {
            operate(&mut rng, &mut registers, &mut model, step);
            compare(&mut rng, &registers, &model);
        }
    }
}

fn any_key(rng: &mut Rng) -> Key {
    let keys = ["a", "a/1", "a/2", "b", "elections/x"];
    Key::new(keys[rng.below(keys.len() as u64) as usize]).expect("a good key")
}

/// The present version, an old one, or one that never was.
fn any_version(rng: &mut Rng, model: &Model, key: &Key) -> Version {
    match (rng.below(4), model.read(key)) {
        (0, _) => Version::from_u64(rng.between(0, model.0.len() as u64 + 2)),
        (_, Some(register)) => register.version.clone(),
        (_, None) => Version::from_u64(1),
    }
}

fn operate(rng: &mut Rng, registers: &mut Registers, model: &mut Model, step: u64) {
    let key = any_key(rng);
    let version = any_version(rng, model, &key);
    let held = model.read(&key).cloned();
    if rng.chance(20) {
        let fits = held.is_some_and(|held| held.version == version);
        let deleted = registers.delete(&key, &version);
        assert_eq!(deleted.is_ok(), fits);
        if fits {
            model.happened(&key, None);
        }
        return;
    }
    let expect = match rng.chance(40) {
        true => Expect::Absent,
        false => Expect::Version(version),
    };
    let stamp = match rng.chance(30) {
        true => Stamp::Keep,
        false => Stamp::Now,
    };
    let now = rng.chance(80).then_some(StoreTime {
        clock: ClockId::default(),
        nanos: step,
    });
    let value = Bytes::from(step.to_be_bytes());
    let fits = match (&expect, &held) {
        (Expect::Absent, held) => held.is_none(),
        (Expect::Version(version), held) => {
            held.as_ref().is_some_and(|held| held.version == *version)
        }
    };
    let write = Write {
        key: key.clone(),
        expect,
        value: value.clone(),
        stamp,
    };
    let written = registers.compare_and_swap(write, now);
    assert_eq!(written.is_ok(), fits);
    if let Ok(version) = written {
        let stamp = match stamp {
            Stamp::Now => now,
            Stamp::Keep => held.and_then(|held| held.stamp),
        };
        model.happened(
            &key,
            Some(Register {
                value,
                version,
                stamp,
            }),
        );
    }
}

fn compare(rng: &mut Rng, registers: &Registers, model: &Model) {
    let key = any_key(rng);
    assert_eq!(registers.read(&key), model.read(&key));
    assert_eq!(registers.revision(), model.0.len() as u64);
    for prefix in ["", "a", "a/", "elections/", "zzz"] {
        let listed = registers.list(prefix);
        let listed: Vec<_> = listed
            .map(|(key, held)| (key.clone(), held.clone()))
            .collect();
        assert_eq!(listed, model.list(prefix), "{prefix}");
    }
    let after = rng.between(0, model.0.len() as u64 + 1);
    let expected = model.0.iter().skip(after as usize);
    let forgotten = model.0.len().saturating_sub(KEPT) as u64;
    match registers.changes_after(after) {
        Ok(changes) => {
            assert!(after >= forgotten);
            assert!(changes.eq(expected));
        }
        Err(_) => assert!(after < forgotten),
    }
}

#[test]
fn no_version_is_ever_used_twice() {
    let mut registers = Registers::new(0);
    let key = Key::new("k").expect("a good key");
    let mut used = Vec::new();
    for _ in 0..50 {
        let write = Write {
            key: key.clone(),
            expect: Expect::Absent,
            value: Bytes::from(*b"the same"),
            stamp: Stamp::Now,
        };
        let version = registers.compare_and_swap(write, None).expect("absent");
        assert!(!used.contains(&version));
        registers.delete(&key, &version).expect("just written");
        used.push(version);
    }
}

#[test]
fn without_a_change_log_every_reader_is_too_late() {
    let mut registers = Registers::new(0);
    assert_eq!(registers.changes_after(0).map(Iterator::count), Ok(0));
    let write = Write {
        key: Key::new("k").expect("a good key"),
        expect: Expect::Absent,
        value: Bytes::from(*b"x"),
        stamp: Stamp::Now,
    };
    registers.compare_and_swap(write, None).expect("absent");
    assert!(registers.changes_after(0).is_err());
    assert_eq!(registers.changes_after(1).map(Iterator::count), Ok(0));
}

#[test]
fn the_change_log_keeps_few_large_values() {
    let mut registers = Registers::new(4_096);
    let value: Bytes = vec![0; MAX_VALUE_BYTES].into();
    let mut expect = Expect::Absent;
    for _ in 0..200 {
        let write = Write {
            key: Key::new("large").expect("a good key"),
            expect,
            value: value.clone(),
            stamp: Stamp::Keep,
        };
        let version = registers
            .compare_and_swap(write, None)
            .expect("as expected");
        expect = Expect::Version(version);
    }
    // 32 MiB of a quarter of a MiB each.
    assert_eq!(registers.changes_after(72).map(Iterator::count), Ok(128));
    assert!(registers.changes_after(71).is_err());
}
