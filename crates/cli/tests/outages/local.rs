//! Stores of one machine, which have no server: a SQLite file and a directory of files.

use std::fs;
use std::path::PathBuf;

use super::interface::{Fault, Subject, never};

struct Path {
    directory: tempfile::TempDir,
    scheme: &'static str,
}

pub(crate) fn sqlite() -> Box<dyn Subject> {
    Box::new(Path::of("sqlite"))
}

pub(crate) fn file() -> Box<dyn Subject> {
    Box::new(Path::of("file"))
}

impl Path {
    fn of(scheme: &'static str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory, scheme }
    }

    fn place(&self) -> PathBuf {
        self.directory.path().join("registers")
    }
}

impl Subject for Path {
    fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.place().display())
    }

    fn address(&self) -> String {
        panic!("there is no server")
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Missing => {
                let gone = self.directory.path().join("gone");
                fs::rename(self.place(), gone).expect("moved");
                &["tenure repair ELECTION --create"]
            }
            Fault::Away | Fault::Emptied | Fault::Revoked => never(fault),
        }
    }

    // Another process makes it again, empty.
    fn relieve(&mut self, _: Fault) {}
}
