//! What can be done to the registers of an open directory.
//!
//! Why is nothing that was acknowledged lost, and no version given twice, wherever a
//! process is killed or the power fails? A write is, under the lock: read, compare,
//! write the new file and sync it, rename, and sync the directory before the answer.
//!
//! * Before the rename the register is as it was, and no answer was given.
//! * After the rename it is new for all who read. It may be gone after a power cut as
//!   long as the directory was not synced; no answer was given until then, and who
//!   reads it syncs the directory before *its* answer (`synced_states.rs`).
//! * The next write counts on from what it reads. A power cut that takes the count
//!   back does not bring a version back: each has 64 random bits.
//!
//! A deletion raises the floor first, in a file of its own that is synced as any
//! other, and then removes the file. In between there are both, which is no harm. A
//! register that is made anew counts on from the floor, so that its versions are
//! higher than those of all that were deleted, and watches can tell old news from new.
//!
//! A file that is none of ours is never written over.

use std::io;

use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::time::StoreTime;

use super::directory::{self, Opened, Place};
use super::files::{self, Failed, Read, STORE};
use super::record::{self, Record};
use crate::error::StoreError;
use crate::store::names::{self, Named};
use crate::store::{Key, PAGE_MAX, Page, Register, Version};

/// What a key leads to.
#[derive(Debug)]
pub(super) enum Found {
    Absent,
    Register(Record),
    /// A file, as far as it could be read, that is no register of this key; what was
    /// found.
    Garbage(Vec<u8>, String),
}

/// A directory that is open, and where it is.
#[derive(Clone, Copy)]
pub(super) struct Registers<'a> {
    pub(super) place: &'a Place,
    pub(super) directory: &'a Opened,
}

impl Registers<'_> {
    /// What there is under a key.
    pub(super) fn find(&self, key: &Key) -> io::Result<Found> {
        Ok(match self.find_named(&names::name(key))? {
            Found::Register(record) if record.key != *key => {
                let found = format!("a register of the key {}", record.key);
                Found::Garbage(record.encode(), found)
            }
            found => found,
        })
    }

    fn find_named(&self, name: &str) -> io::Result<Found> {
        Ok(match files::read(&self.directory.file, name)? {
            Read::Absent => Found::Absent,
            Read::Odd(what) => Found::Garbage(Vec::new(), what.to_owned()),
            Read::Bytes(bytes) => match Record::decode(&bytes) {
                Ok(record) => Found::Register(record),
                Err(found) => Found::Garbage(bytes, found),
            },
        })
    }

    /// The register of a key.
    pub(super) fn read(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        match self.find(key).map_err(|error| self.unavailable(&error))? {
            Found::Absent => Ok(None),
            Found::Register(record) => Ok(Some(record)),
            Found::Garbage(_, found) => Err(self.garbage(key, &found)),
        }
    }

    /// Carries out a compare-and-swap, which takes place at `now`. It is durable when
    /// the directory is synced.
    pub(super) fn write(
        &self,
        write: &Write,
        now: Option<StoreTime>,
    ) -> Result<Register, StoreError> {
        let held = self.read(&write.key)?;
        let fits = match (&write.expect, &held) {
            (Expect::Absent, None) => true,
            (Expect::Version(expected), Some(held)) => *expected == held.version(),
            (Expect::Absent, Some(_)) | (Expect::Version(_), None) => false,
        };
        if !fits {
            return Err(StoreError::Conflict);
        }
        let count = match &held {
            Some(held) => held.count,
            None => self.floor()?,
        };
        let stamp = match write.stamp {
            Stamp::Now => now,
            Stamp::Keep => held.and_then(|held| held.stamp),
        };
        let next = self.after(count)?;
        let record = Record::new(write.key.clone(), next, stamp, write.value.clone())?;
        self.put(&names::name(&write.key), &record.encode())?;
        Ok(record.register())
    }

    /// Deletes by version.
    pub(super) fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let held = self.read(key)?;
        let held = held.filter(|held| held.version() == *expected);
        let held = held.ok_or(StoreError::Conflict)?;
        if self.floor()? < held.count {
            self.put(STORE, &record::encode_floor(held.count))?;
            // The floor is on disk before the file is gone.
            let synced = self.directory.file.sync_all();
            synced.map_err(|error| self.unavailable(&error))?;
        }
        let removed = files::remove(&self.directory.file, &names::name(key));
        removed.map_err(|error| self.failed(Failed::Before(error)))
    }

    /// A page of the registers whose keys begin with `prefix`. One that cannot be read
    /// is shown with its bytes, and with a version that no write can expect.
    pub(super) fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let unavailable = |error: io::Error| self.unavailable(&error);
        let beginning = names::beginning(prefix);
        let mut keys = Vec::new();
        for name in files::names(&self.directory.file).map_err(unavailable)? {
            if !name.starts_with(&beginning) {
                continue;
            }
            let key = match names::named(&name) {
                Named::Register(key) => key,
                Named::Foreign => continue,
                Named::Hashed => match self.find_named(&name).map_err(unavailable)? {
                    Found::Register(record) if names::name(&record.key) == name => record.key,
                    _ => continue,
                },
            };
            if key.as_str().starts_with(prefix) && after.is_none_or(|after| key > *after) {
                keys.push(key);
            }
        }
        keys.sort_unstable();
        let mut page = Page::default();
        for key in keys {
            if page.registers.len() == PAGE_MAX {
                page.more_after = page.registers.last().map(|(key, _)| key.clone());
                break;
            }
            if let Some(register) = self.shown(&key).map_err(unavailable)? {
                page.registers.push((key, register));
            }
        }
        Ok(page)
    }

    /// A register as listings and watches show it: what is none, with its bytes.
    pub(super) fn shown(&self, key: &Key) -> io::Result<Option<Register>> {
        Ok(match self.find(key)? {
            Found::Absent => None,
            Found::Register(record) => Some(record.register()),
            Found::Garbage(bytes, _) => Some(Register {
                value: bytes.into(),
                version: Version::from_bytes(b"no register"),
                stamp: None,
            }),
        })
    }

    fn floor(&self) -> Result<u64, StoreError> {
        let floor = directory::read_floor(self.place, self.directory)?;
        floor.ok_or_else(|| {
            StoreError::unavailable(format!(
                "expected {} as it was in use here, found =store removed; put it back",
                self.place.path().display()
            ))
        })
    }

    fn after(&self, count: u64) -> Result<u64, StoreError> {
        count.checked_add(1).ok_or_else(|| {
            StoreError::broken(format!(
                "expected counts below {count} in {}, found it; put a copy back",
                self.place.path().display()
            ))
        })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let put = files::put(&self.directory.file, name, bytes, self.place.settings.mode);
        put.map_err(|failed| self.failed(failed))
    }

    fn failed(&self, failed: Failed) -> StoreError {
        match failed {
            Failed::Before(error) => self.unavailable(&error),
            Failed::Unknown(error) => self.unknown(&error),
        }
    }

    pub(super) fn unavailable(&self, error: &io::Error) -> StoreError {
        files::unavailable(self.place.path(), error)
    }

    pub(super) fn unknown(&self, error: &io::Error) -> StoreError {
        StoreError::unknown(format!("{}: {error}", self.place.path().display()))
    }

    fn garbage(&self, key: &Key, found: &str) -> StoreError {
        let file = self.place.path().join(names::name(key));
        let wanted = format!("be the register {key} (format 1)");
        let mend = "stop every candidate, put a copy of the file back or move it away, and raise \
                    the term with `tenure repair ELECTION --term-above N`";
        files::broken(&file, &wanted, found, mend)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::directory::Directory;
    use super::super::settings::Settings;
    use super::*;
    use crate::clock;

    /// A store in a directory of its own.
    fn with_registers<T>(check: impl FnOnce(Registers<'_>, &std::path::Path) -> T) -> T {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("store");
        let settings = Settings::parse(&format!("file://{}", path.display())).expect("settings");
        let place = Place::new(settings);
        let mut directory = Directory::open_or_make(&place).expect("a store");
        let registers = Registers {
            place: &place,
            directory: directory.current().expect("it is open"),
        };
        check(registers, &path)
    }

    fn key(text: &str) -> Key {
        Key::new(text).expect("a key")
    }

    fn put(registers: Registers<'_>, name: &str, expect: Expect) -> Version {
        let write = Write {
            key: key(name),
            expect,
            value: b"value".as_slice().into(),
            stamp: Stamp::Now,
        };
        let written = registers.write(&write, clock::shared());
        written.expect("a write").version
    }

    #[test]
    fn what_is_made_anew_has_a_higher_version_than_all_that_was_deleted() {
        with_registers(|registers, _| {
            let mut last = put(registers, "a", Expect::Absent);
            for _ in 0..9 {
                let next = put(registers, "a", Expect::Version(last.clone()));
                assert!(next > last);
                last = next;
            }
            let other = put(registers, "b", Expect::Absent);
            registers.delete(&key("b"), &other).expect("to delete");
            registers.delete(&key("a"), &last).expect("to delete");
            assert!(put(registers, "a", Expect::Absent) > last);
            assert!(put(registers, "b", Expect::Absent) > other);
        });
    }

    #[test]
    fn what_a_killed_process_left_is_no_register_and_in_nobodys_way() {
        with_registers(|registers, path| {
            let first = put(registers, "a", Expect::Absent);
            // In the middle of a write, and with the floor raised before a deletion.
            fs::write(path.join(files::NEW), "half a regis").expect("a file");
            fs::write(path.join(STORE), record::encode_floor(77)).expect("a file");
            let page = registers.list("", None).expect("a page");
            assert_eq!(page.registers.len(), 1);
            let next = put(registers, "a", Expect::Version(first));
            registers.delete(&key("a"), &next).expect("to delete");
            let floor = directory::read_floor(registers.place, registers.directory);
            assert_eq!(floor.expect("a floor"), Some(77), "it never falls");
        });
    }

    #[test]
    fn what_keeps_writes_out_is_named() {
        with_registers(|registers, path| {
            fs::create_dir(path.join(files::NEW)).expect("a directory");
            let write = Write {
                key: key("a"),
                expect: Expect::Absent,
                value: b"value".as_slice().into(),
                stamp: Stamp::Now,
            };
            let refused = registers.write(&write, clock::shared());
            let refused = refused.expect_err("it is in the way");
            assert!(refused.to_string().contains("=new, which"), "{refused}");
        });
    }

    #[test]
    fn what_is_no_register_is_told_and_never_written_over() {
        with_registers(|registers, path| {
            let version = put(registers, "good", Expect::Absent);
            let other = path.join(names::name(&key("good")));
            let there = |name: &str| path.join(names::name(&key(name)));
            fs::write(there("text"), "garbage").expect("a file");
            fs::write(there("empty"), "").expect("a file");
            fs::copy(&other, there("copied")).expect("a copy");
            fs::create_dir(there("folder")).expect("a directory");
            std::os::unix::fs::symlink(&other, there("linked")).expect("a link");
            rustix::fs::mknodat(
                rustix::fs::CWD,
                there("pipe"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_raw_mode(0o600),
                0,
            )
            .expect("a pipe");
            for (name, found) in [
                ("text", "begins with \"garbage\""),
                ("empty", "an empty file"),
                ("copied", "a register of the key good"),
                ("folder", "a directory"),
                ("linked", "a symbolic link"),
                ("pipe", "a directory, a device or a pipe"),
            ] {
                for expect in [Expect::Absent, Expect::Version(version.clone())] {
                    let write = Write {
                        key: key(name),
                        expect,
                        value: b"x".as_slice().into(),
                        stamp: Stamp::Now,
                    };
                    let refused = registers.write(&write, None).expect_err("no register");
                    let told = refused.to_string();
                    assert!(matches!(refused, StoreError::Broken(_)), "{refused:?}");
                    assert!(told.contains(found) && told.contains("expected"), "{told}");
                }
                let refused = registers.delete(&key(name), &version);
                assert!(matches!(refused, Err(StoreError::Broken(_))), "{refused:?}");
            }
            let page = registers.list("", None).expect("a page");
            let names: Vec<_> = page.registers.iter().map(|(key, _)| key.as_str()).collect();
            let all = [
                "copied", "empty", "folder", "good", "linked", "pipe", "text",
            ];
            assert_eq!(names, all, "they trouble no other");
            put(registers, "good", Expect::Version(version));
        });
    }
}
