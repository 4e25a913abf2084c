//! What has changed in the file of tokens, for the notes of who changed what.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::super::audit::Audit;
use super::rights::Rights;
use super::table::{Fingerprint, Table};

/// What was read of the file before.
#[derive(Default)]
pub(super) struct Readings {
    table: Arc<Table>,
    /// What was wrong with it last.
    wrong: String,
}

impl Readings {
    /// Notes which tokens have come, gone, or changed.
    pub(super) fn note(&mut self, file: &Path, read: &Result<Arc<Table>, String>, audit: &Audit) {
        let table = match read {
            Ok(table) => table,
            // A file that is wrong is looked at every second.
            Err(why) if self.wrong == *why => return,
            Err(why) => {
                self.wrong.clone_from(why);
                let about = json!({ "file": file.display().to_string() });
                return audit.note("tokens", about, Err(why));
            }
        };
        self.wrong.clear();
        let find = |table: &Table, name: &str| {
            let mut all = table.0.iter();
            all.find(|(_, it)| it.name == name)
                .map(|(_, it)| Arc::clone(it))
        };
        let not_in = |one: &Table, other: &Table| {
            let gone = one
                .0
                .iter()
                .filter(|(_, it)| find(other, &it.name).is_none());
            gone.map(|(_, it)| Arc::clone(it)).collect::<Vec<_>>()
        };
        let other = |(_, it): &&(Fingerprint, Arc<Rights>)| {
            let before = find(&self.table, &it.name);
            before.is_some_and(|before| before.sha256 != it.sha256 || before.shown() != it.shown())
        };
        let changed = table.0.iter().filter(other).map(|(_, it)| &**it);
        let about = json!({
            "file": file.display().to_string(),
            "added": not_in(table, &self.table).iter().map(|it| it.shown()).collect::<Vec<_>>(),
            "removed": not_in(&self.table, table).iter().map(|it| &*it.name).collect::<Vec<_>>(),
            "changed": changed.map(Rights::shown).collect::<Vec<_>>(),
        });
        audit.note("tokens", about, Ok(()));
        self.table = Arc::clone(table);
    }
}
