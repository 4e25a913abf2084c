//! A program of HPC Pack HA, in plain SQL by a client that is none of ours: `sqlite3`
//! of Python, `psql` or `mariadb`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure::clock;

use super::mariadb::MariaDb;
use super::postgres::Postgres;

/// T of all programs here.
pub(crate) const T: Duration = Duration::from_secs(3);
/// I of all programs here.
pub(crate) const I: Duration = Duration::from_millis(400);

const PYTHON: &str = "\
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
for statement in sys.stdin:
    for row in database.execute(statement):
        print('|'.join('' if it is None else str(it) for it in row))
    print('.', flush=True)
";

/// An interpreter that carries out a statement a line.
pub(crate) struct Python {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Python {
    fn start(file: &PathBuf) -> Self {
        let mut process = Command::new("python3")
            .args(["-c", PYTHON])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        Self {
            to: process.stdin.take().expect("its input"),
            from: BufReader::new(process.stdout.take().expect("its output")),
            process,
        }
    }

    fn sql(&mut self, statement: &str) -> String {
        writeln!(self.to, "{statement}").expect("it reads");
        let mut rows = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.from.read_line(&mut line).expect("it answers");
            assert!(read > 0, "it refused {statement}");
            match line.trim_end() {
                "." => return rows.join("\n"),
                row => rows.push(row.to_owned()),
            }
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A database with a heartbeat table.
pub(crate) enum Database {
    /// With its interpreter, once there is one.
    Sqlite(tempfile::TempDir, Mutex<Option<Python>>),
    Postgres(Box<Postgres>),
    MySql(Box<MariaDb>),
}

impl Database {
    pub(crate) fn sqlite() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::Sqlite(directory.expect("a directory"), Mutex::default())
    }

    pub(crate) fn postgres() -> Self {
        Self::Postgres(Box::new(Postgres::start()))
    }

    pub(crate) fn mysql() -> Self {
        Self::MySql(Box::new(MariaDb::start()))
    }

    fn file(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join("heartbeats.db")
    }

    pub(crate) fn url_with(&self, options: &str) -> String {
        let base = match self {
            Self::Sqlite(directory, _) => format!("sqlite://{}?", Self::file(directory).display()),
            Self::Postgres(server) => match server.url() {
                url if url.contains('?') => format!("{url}&"),
                url => format!("{url}?"),
            },
            Self::MySql(server) => format!("{}?", server.url()),
        };
        format!("{base}{options}")
    }

    pub(crate) fn url(&self) -> String {
        self.url_with("format=hpc&heartbeat_timeout=3s&poll=50ms")
    }

    /// Runs a statement over a connection of its own; the lines of the answer.
    pub(crate) fn sql(&self, statement: &str) -> String {
        match self {
            Self::Postgres(server) => server.sql(statement),
            Self::MySql(server) => server.sql(statement),
            Self::Sqlite(directory, python) => {
                let mut python = python.lock().unwrap_or_else(PoisonError::into_inner);
                let python = python.get_or_insert_with(|| Python::start(&Self::file(directory)));
                python.sql(statement)
            }
        }
    }

    /// `ha_time`, in UTC.
    pub(crate) fn ha_time(&self) -> &'static str {
        match self {
            Self::Sqlite(..) => "strftime('%Y-%m-%d %H:%M:%f', 'now')",
            Self::Postgres(_) => "(clock_timestamp() AT TIME ZONE 'UTC')",
            Self::MySql(_) => "UTC_TIMESTAMP(3)",
        }
    }

    /// `ha_time - timestamp`, in seconds.
    fn age(&self) -> &'static str {
        match self {
            Self::Sqlite(..) => "((julianday('now') - julianday(timestamp)) * 86400.0)",
            Self::Postgres(_) => {
                "extract(epoch from (clock_timestamp() AT TIME ZONE 'UTC') - timestamp)"
            }
            Self::MySql(_) => "(TIMESTAMPDIFF(MICROSECOND, timestamp, UTC_TIMESTAMP(6)) / 1e6)",
        }
    }

    /// The row of a type: its uuid and timestamp.
    pub(crate) fn row(&self, utype: &str) -> Option<(String, String)> {
        let columns = match self {
            // Its client prints tabulators, and what begins with one is trimmed.
            Self::MySql(_) => "CONCAT(uuid, '|', timestamp)",
            Self::Sqlite(..) | Self::Postgres(_) => "uuid, timestamp",
        };
        let found = self.sql(&format!(
            "SELECT {columns} FROM heartbeattable WHERE utype = '{utype}'"
        ));
        let (uuid, timestamp) = found.split_once('|')?;
        Some((uuid.to_owned(), timestamp.to_owned()))
    }

    /// Who is primary of a type.
    pub(crate) fn get_primary(&self, utype: &str) -> Option<String> {
        let found = self.sql(&format!(
            "SELECT uuid FROM heartbeattable WHERE utype = '{utype}' AND {} <= {}",
            self.age(),
            T.as_secs_f64()
        ));
        (!found.is_empty()).then_some(found)
    }

    /// Whether the row became `{uuid, utype, ha_time}`: where `seen` was the row, and was
    /// this uuid's own or older than T.
    pub(crate) fn update_over(
        &self,
        seen: Option<&(String, String)>,
        uuid: &str,
        utype: &str,
    ) -> bool {
        let now = self.ha_time();
        let change = match seen {
            None => format!(
                "INTO heartbeattable (uuid, utype, uname, timestamp) VALUES \
                 ('{uuid}', '{utype}', 'their-host', {now})"
            ),
            Some((old_uuid, old_timestamp)) => format!(
                "UPDATE heartbeattable SET uuid = '{uuid}', uname = 'their-host', \
                 timestamp = {now} WHERE utype = '{utype}' AND uuid = '{old_uuid}' AND \
                 timestamp = '{old_timestamp}' AND (uuid = '{uuid}' OR {} > {})",
                self.age(),
                T.as_secs_f64()
            ),
        };
        match (self, seen) {
            (Self::MySql(_), None) => {
                self.sql(&format!("INSERT IGNORE {change}; SELECT ROW_COUNT()")) == "1"
            }
            (Self::MySql(_), Some(_)) => self.sql(&format!("{change}; SELECT ROW_COUNT()")) == "1",
            (_, None) => {
                let insert = format!("INSERT {change} ON CONFLICT DO NOTHING RETURNING uuid");
                self.sql(&insert) == uuid
            }
            (_, Some(_)) => self.sql(&format!("{change} RETURNING uuid")) == uuid,
        }
    }

    pub(crate) fn update_heart_beat(&self, uuid: &str, utype: &str) -> bool {
        self.update_over(self.row(utype).as_ref(), uuid, utype)
    }

    /// Beats for so long, once every I.
    pub(crate) fn beat_for(&self, time: Duration, uuid: &str, utype: &str) {
        let until = clock::boot().after(time);
        while clock::boot() < until {
            assert!(self.update_heart_beat(uuid, utype), "{uuid} lost {utype}");
            std::thread::park_timeout(I);
        }
    }
}

/// An id like those that programs draw.
pub(crate) fn uuid(number: u64) -> String {
    format!("{number:08x}-1111-4222-8333-444455556666")
}
