//! The file that an audit is written to, or standard error.
//!
//! A file that is there already is written only if it begins as an audit does:
//! who names the wrong file must not lose what is in it. A line that a full
//! disk or a crash has cut stays as it is, and the next one begins anew.
//!
//! A file that has [`FILE_BYTES`] is renamed to `FILE.1`, that one to `FILE.2`
//! and so on; of these there are [`OLDER_FILES`]. Who may campaign can fill all
//! of them with elections in minutes. So before the oldest goes, what only the
//! server and admins can have done ([`is_operators`]) is copied from it to
//! `FILE.kept`, of which there is one older as well. Lines are not synced: the
//! last ones may be missing when the machine has lost its power.
//!
//! A file that is deleted or moved away stays open, and what is written
//! to it is not found under its name. So the name is looked at before a write,
//! once in [`LOOK_EVERY`], and the file is begun anew where it leads elsewhere.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde_json::{Map, Value};
use tenure_core::time::Instant;
use tenure_runtime::clock;

/// Where to write who changed what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AuditTo {
    /// To standard error, among the log.
    Stderr,
    /// To this file, which is made for its owner alone.
    File(PathBuf),
}

/// The largest file, in bytes.
pub(super) const FILE_BYTES: u64 = 16 << 20;
/// How many older ones are kept.
pub(super) const OLDER_FILES: u32 = 7;
/// How much of a file that is there is looked at.
const BEGINNING_BYTES: u64 = 64 << 10;
/// With what each line begins: its fields are sorted.
const BEGINNING: &[u8] = br#"{"about":"#;
/// How often it is looked whether the file has its name still, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it is said that lines are lost, at most.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Where the lines go.
pub(super) struct Sink {
    to: AuditTo,
    pub(super) file: Option<(File, u64)>,
    /// The last line may not be whole.
    pub(super) torn: bool,
    /// When the file's name was looked at last.
    pub(super) looked: Option<Instant>,
    pub(super) complained: Option<Instant>,
}

impl Sink {
    pub(super) const fn new(to: AuditTo) -> Self {
        Self {
            to,
            file: None,
            torn: false,
            looked: None,
            complained: None,
        }
    }

    pub(super) fn open(&mut self) -> io::Result<()> {
        if let AuditTo::File(path) = &self.to {
            let mut options = OpenOptions::new();
            // A pipe would wait for its reader.
            let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
            let flags = i32::try_from(flags).map_err(io::Error::other)?;
            options.create(true).read(true).append(true).mode(0o600);
            let file = options.custom_flags(flags).open(path)?;
            let found = file.metadata()?;
            if !found.is_file() {
                let why = "expected a plain file, found a directory, a device or a pipe";
                return Err(io::Error::other(why));
            }
            let bytes = found.len();
            if !is_audit(&file)? {
                let why = "expected a new file, an empty one, or one that an earlier start has \
                           written as an audit, found a file with other content; name another one";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            self.torn = is_torn(&file, bytes)?;
            self.file = Some((file, bytes));
        }
        Ok(())
    }

    pub(super) fn write(&mut self, text: &str) -> io::Result<()> {
        let AuditTo::File(path) = &self.to else {
            return io::stderr().lock().write_all(text.as_bytes());
        };
        let path = path.clone();
        self.leave_if_gone(&path);
        if self.file.is_none() {
            self.open()?;
        }
        let more = text.len() as u64;
        if let Some((_, bytes)) = &self.file
            && *bytes > 0
            && *bytes + more > FILE_BYTES
        {
            // Otherwise one that cannot be renamed would grow without a bound.
            rotate(&path)?;
            self.open()?;
        }
        let torn = if self.torn { "\n" } else { "" };
        let Some((file, bytes)) = &mut self.file else {
            return Ok(());
        };
        let written = file.write_all(format!("{torn}{text}").as_bytes());
        *bytes += more + torn.len() as u64;
        self.torn = written.is_err();
        if self.torn {
            self.file = None;
        }
        written
    }

    /// Writes no more to a file that has another name by now, or none.
    fn leave_if_gone(&mut self, path: &Path) {
        let now = clock::boot();
        let recently = self.looked.is_some_and(|at| now.since(at) < LOOK_EVERY);
        if recently || self.file.is_none() {
            return;
        }
        self.looked = Some(now);
        let gone = |(file, _): &mut (File, u64)| !has_name(file, path);
        if self.file.take_if(gone).is_some() {
            tracing::warn!(
                "--audit {}: the file was deleted, moved away or replaced while it was written; \
                 it is begun anew, and what was noted before, up to a second ago, went with the \
                 other",
                path.display()
            );
        }
    }

    pub(super) fn complain(&mut self, error: &io::Error) {
        let now = clock::boot();
        let recently = self
            .complained
            .is_some_and(|at| now.since(at) < COMPLAIN_EVERY);
        if !recently {
            self.complained = Some(now);
            let to = match &self.to {
                AuditTo::Stderr => "stderr".to_owned(),
                AuditTo::File(path) => path.display().to_string(),
            };
            tracing::warn!("--audit {to}: what was done is not noted, only counted: {error}");
        }
    }
}

/// Whether this name leads to this file still, as far as can be told.
fn has_name(file: &File, path: &Path) -> bool {
    let place = |it: &fs::Metadata| (it.dev(), it.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => place(&open) == place(&named),
        (Ok(_), Err(error)) => error.kind() != io::ErrorKind::NotFound,
        (Err(_), _) => true,
    }
}

/// Whether a file has nothing in it, or begins as an audit does. Its first line
/// may have been cut.
fn is_audit(file: &File) -> io::Result<bool> {
    let mut found = Vec::new();
    file.take(BEGINNING_BYTES).read_to_end(&mut found)?;
    let line = found.split(|byte| *byte == b'\n').find(|it| !it.is_empty());
    let Some(line) = line else {
        return Ok(true);
    };
    if line.starts_with(BEGINNING) || BEGINNING.starts_with(line) {
        return Ok(true);
    }
    // The program that has put it there may have sorted the fields otherwise.
    let line: Option<Map<String, Value>> = serde_json::from_slice(line).ok();
    let fields = ["at_ms", "server", "event", "by", "about", "result"];
    Ok(line.is_some_and(|line| fields.iter().all(|field| line.contains_key(*field))))
}

/// Whether the last line of a file is not whole.
fn is_torn(file: &File, bytes: u64) -> io::Result<bool> {
    let Some(last) = bytes.checked_sub(1) else {
        return Ok(false);
    };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte != *b"\n")
}

/// Makes room for a new file; the oldest goes.
fn rotate(path: &Path) -> io::Result<()> {
    let older = |age| beside(path, age);
    // The disk may be full, or refuse this one. The new file is begun all the
    // same: what is not renamed now would be renamed again, and push out more.
    if let Err(error) = keep_operators(&older(OLDER_FILES), &with(path, ".kept")) {
        tracing::warn!(
            "--audit {}: what operators did is not kept from the oldest file, which goes: {error}",
            path.display()
        );
    }
    for age in (0..OLDER_FILES).rev() {
        rename(&older(age), &older(age + 1))?;
    }
    Ok(())
}

/// The file of this age; the one that is written has none.
fn beside(path: &Path, age: u32) -> PathBuf {
    match age {
        0 => path.to_owned(),
        age => with(path, &format!(".{age}")),
    }
}

fn with(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    PathBuf::from(name)
}

/// Renames a file, if it is there.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Copies from a file that goes what operators have done.
fn keep_operators(goes: &Path, kept: &Path) -> io::Result<()> {
    let text = match fs::read(goes) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let operators: Vec<&[u8]> = lines.filter(|line| is_operators(line)).collect();
    let operators = operators.concat();
    let full = fs::metadata(kept).is_ok_and(|it| it.len() + operators.len() as u64 > FILE_BYTES);
    if full {
        rename(kept, &with(kept, ".1"))?;
    }
    let mut options = OpenOptions::new();
    let mut file = options.create(true).append(true).mode(0o600).open(kept)?;
    file.write_all(&operators)
}

/// Whether a line is about something that was done, and that is not for
/// candidates to do.
fn is_operators(line: &[u8]) -> bool {
    let Ok(line) = serde_json::from_slice::<Map<String, Value>>(line) else {
        return false;
    };
    let says = |field: &str| line.get(field).and_then(Value::as_str).unwrap_or_default();
    let of_clients = says("event").starts_with("election_")
        || matches!(says("event"), "repeated" | "lost")
        || matches!(says("result"), "refused" | "conflict") && !line["by"].is_null();
    !of_clients
}
