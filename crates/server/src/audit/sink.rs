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
//! `FILE.kept`, of which there is one older as well. The oldest is `FILE.8`
//! meanwhile, and each write copies from [`KEEP_BYTES`] of it: lines that wait
//! must not find their room taken while a whole file is read. Lines are not synced: the
//! last ones may be missing when the machine has lost its power.
//!
//! A file that is deleted or moved away stays open, and what is written
//! to it is not found under its name. So the name is looked at before a write,
//! once in [`LOOK_EVERY`], and the file is begun anew where it leads elsewhere.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
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
/// From how much of the file that goes one write copies.
const KEEP_BYTES: u64 = 64 << 10;
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
    /// From where operators' lines are copied.
    pub(super) keeping: Option<Keeping>,
}

impl Sink {
    pub(super) const fn new(to: AuditTo) -> Self {
        Self {
            to,
            file: None,
            torn: false,
            looked: None,
            complained: None,
            keeping: None,
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
            self.rotate(&path)?;
            self.open()?;
        }
        self.keep(&path, KEEP_BYTES);
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

    /// Makes room for a new file; the oldest goes.
    fn rotate(&mut self, path: &Path) -> io::Result<()> {
        let older = |age| beside(path, age);
        // What an earlier start, or the file before, has left.
        if self.keeping.is_none() {
            self.begin_keeping(path);
        }
        self.keep(path, u64::MAX);
        for age in (0..=OLDER_FILES).rev() {
            rename(&older(age), &older(age + 1))?;
        }
        self.begin_keeping(path);
        Ok(())
    }

    fn begin_keeping(&mut self, path: &Path) {
        match Keeping::begin(path) {
            Ok(keeping) => self.keeping = keeping,
            Err(error) => not_kept(path, &error),
        }
    }

    /// Copies from so many bytes more of the file that goes, which is deleted
    /// at its end. The disk may be full, or refuse this one. The lines that
    /// wait are written all the same.
    fn keep(&mut self, path: &Path, most: u64) {
        let Some(keeping) = &mut self.keeping else {
            return;
        };
        let kept = keeping.step(most);
        let is_over = match &kept {
            Ok(is_over) => *is_over,
            Err(error) => {
                not_kept(path, error);
                true
            }
        };
        if is_over {
            self.keeping = None;
            // One that stays is copied from again, when the next file goes.
            drop(fs::remove_file(beside(path, OLDER_FILES + 1)));
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

fn not_kept(path: &Path, error: &io::Error) {
    tracing::warn!(
        "--audit {}: what operators did is not kept from the oldest file, which goes: {error}",
        path.display()
    );
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

/// A file that goes, and from which what operators have done is copied.
pub(super) struct Keeping {
    goes: BufReader<File>,
    kept: PathBuf,
}

impl Keeping {
    /// Of the file of which this one is the path, if there is one.
    fn begin(path: &Path) -> io::Result<Option<Self>> {
        match File::open(beside(path, OLDER_FILES + 1)) {
            Ok(goes) => Ok(Some(Self {
                goes: BufReader::new(goes),
                kept: with(path, ".kept"),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Copies from about so many bytes more; whether there are none.
    fn step(&mut self, most: u64) -> io::Result<bool> {
        let (mut read, mut operators, mut line) = (0, Vec::new(), Vec::new());
        let mut is_over = false;
        while read < most && !is_over {
            line.clear();
            // A file of another origin may have no ends of lines.
            let mut more = (&mut self.goes).take(FILE_BYTES);
            let bytes = more.read_until(b'\n', &mut line)?;
            is_over = bytes == 0;
            read += bytes as u64;
            if is_operators_text(&line) {
                operators.extend_from_slice(&line);
            }
        }
        if !operators.is_empty() {
            append(&self.kept, &operators)?;
        }
        Ok(is_over)
    }
}

fn append(kept: &Path, operators: &[u8]) -> io::Result<()> {
    let full = fs::metadata(kept).is_ok_and(|it| it.len() + operators.len() as u64 > FILE_BYTES);
    if full {
        rename(kept, &with(kept, ".1"))?;
    }
    let mut options = OpenOptions::new();
    let mut file = options.create(true).append(true).mode(0o600).open(kept)?;
    file.write_all(operators)
}

/// Whether a line of a file is about what operators have done. Of those about
/// elections it is seen without decoding them: a quote in what a caller has
/// said has a backslash before it.
fn is_operators_text(line: &[u8]) -> bool {
    let of_elections = contains(line, br#""event":"election_"#);
    !of_elections && serde_json::from_slice(line).is_ok_and(|it| is_operators(&it))
}

fn contains(line: &[u8], text: &[u8]) -> bool {
    line.windows(text.len()).any(|it| it == text)
}

/// Whether a line is about something that was done, and that is not for
/// candidates to do.
pub(super) fn is_operators(line: &Map<String, Value>) -> bool {
    let says = |field: &str| line.get(field).and_then(Value::as_str).unwrap_or_default();
    let of_clients = says("event").starts_with("election_")
        || matches!(says("event"), "repeated" | "lost")
        || matches!(says("result"), "refused" | "conflict")
            && line.get("by").is_none_or(|by| !by.is_null());
    !of_clients
}
