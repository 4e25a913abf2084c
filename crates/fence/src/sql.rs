//! A fence in a database: one row for each election, which every transaction of
//! a leader locks just before it commits.
//!
//! The rules are statements, so any driver in any language can follow them
//! ([`POSTGRES`], [`MYSQL`], [`SQLITE`]). The modules `postgres`, `mysql` and
//! `sqlite` of this crate (by features of these names) run them by the drivers
//! that the stores of `tenure` use.
//!
//! ```text
//! a new leader      BEGIN; record; recorded; COMMIT       before it reads anything
//! each transaction  BEGIN; …; check; COMMIT               refused unless one row passed
//! ```
//!
//! # Why a leader that is too late commits nothing
//!
//! Let a leader of term 7 have a transaction under way, and a leader of term 8
//! record its term in the same row. The *record* writes the row, so it needs
//! the row for itself. The *check* locks the row against writes until the
//! transaction has ended. One of them is first.
//!
//! *The check is first.* Then the record waits until the transaction of term 7
//! has ended. The leader of term 8 reads nothing before its record is
//! committed, so it reads all that this transaction did. It is an earlier
//! transaction, not a late one.
//!
//! *The record is first.* Then the check waits until the record is committed,
//! and must see it. A plain `SELECT` does not: under snapshot isolation it sees
//! the row as it was when the transaction began. A statement that locks does:
//!
//! * PostgreSQL, `READ COMMITTED`: a locking statement that has waited for a
//!   row reads its newest version and evaluates its condition again. No row
//!   has term 7 any more.
//! * PostgreSQL, `REPEATABLE READ` and `SERIALIZABLE`: to lock a row that was
//!   changed since the snapshot fails with *could not serialize access*
//!   (40001), and the transaction with it.
//! * MySQL and MariaDB (InnoDB), at any level: a locking read reads the newest
//!   committed version, not the snapshot. (MariaDB with
//!   `innodb_snapshot_isolation` fails with error 1020 instead.)
//! * SQLite: one transaction writes at a time. The check is a write, so from
//!   the check to the end of the transaction no other process records a term;
//!   and a transaction whose snapshot is not the newest cannot begin to write
//!   (`SQLITE_BUSY_SNAPSHOT`).
//!
//! So the check finds no row or fails, and both mean: do not commit. A row that
//! is not there (a table that was restored, emptied or never filled) has not
//! term 7 either, so nothing passes by an accident of that kind.
//!
//! The check has to be the last statement before `COMMIT` for one reason alone:
//! the earlier it is, the longer a successor waits for the row.
//!
//! # How long a stopped leader keeps its successor waiting
//!
//! A process that is stopped in mid transaction keeps its locks until its
//! session ends. Two limits bound this, and each leader sets both for its
//! session, since they must hold for the one that is stopped
//! ([`limit_postgres`], [`limit_mysql`]): the server ends a session that is
//! idle for too long, and a statement that waits for a lock for longer fails.
//! SQLite has no server, so nothing ends such a transaction: the successor
//! waits until the stopped process goes on, or is killed.
//!
//! # Left out
//!
//! *A cluster of Galera.* A locking read locks on one server alone. There the
//! check has to be a write, which is certified with the others:
//! [`Statements::check_by_update`]. A commit that loses fails with the error of
//! a deadlock (1213).
//! *Standbys.* A fail-over to one that lacks the record forgets it.

use std::time::Duration;

use crate::{Deposed, Term};

/// The statements of one kind of database. Parameters are the name of the
/// election, then the term (where there are two).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Statements {
    /// Makes the table, if it is missing.
    pub create: &'static str,
    /// Raises the row to a term. In a transaction of its own, with the next.
    pub record: &'static str,
    /// The term of the row after that, by its name: another one than was
    /// recorded is a higher one, and its leader is refused.
    pub recorded: &'static str,
    /// Passes (returns a row, or changes one) if the row has this term.
    pub check: &'static str,
    /// The same by a write: for a cluster of Galera. Transactions that check
    /// so wait for each other.
    pub check_by_update: &'static str,
}

/// For PostgreSQL. The user needs the rights `SELECT`, `INSERT` and `UPDATE`.
pub const POSTGRES: Statements = Statements {
    create: "CREATE TABLE IF NOT EXISTS tenure_fence (\
             name text PRIMARY KEY, \
             term bigint NOT NULL, \
             passed bigint NOT NULL DEFAULT 0)",
    record: "INSERT INTO tenure_fence AS f (name, term) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET term = GREATEST(f.term, EXCLUDED.term)",
    recorded: "SELECT term FROM tenure_fence WHERE name = $1 FOR UPDATE",
    check: "SELECT 1 FROM tenure_fence WHERE name = $1 AND term = $2 FOR SHARE",
    check_by_update: "UPDATE tenure_fence SET passed = passed + 1 WHERE name = $1 AND term = $2",
};

/// For MySQL and MariaDB. The table is one of InnoDB: other engines know no
/// transactions.
pub const MYSQL: Statements = Statements {
    create: "CREATE TABLE IF NOT EXISTS tenure_fence (\
             name VARBINARY(255) PRIMARY KEY, \
             term BIGINT NOT NULL, \
             passed BIGINT NOT NULL DEFAULT 0) ENGINE=InnoDB",
    record: "INSERT INTO tenure_fence (name, term) VALUES (?, ?) \
             ON DUPLICATE KEY UPDATE term = GREATEST(term, VALUES(term))",
    recorded: "SELECT term FROM tenure_fence WHERE name = ? FOR UPDATE",
    // MariaDB has no `FOR SHARE`.
    check: "SELECT 1 FROM tenure_fence WHERE name = ? AND term = ? LOCK IN SHARE MODE",
    check_by_update: "UPDATE tenure_fence SET passed = passed + 1 WHERE name = ? AND term = ?",
};

/// For SQLite. The table is in the file that the transaction writes to.
pub const SQLITE: Statements = Statements {
    create: "CREATE TABLE IF NOT EXISTS tenure_fence (\
             name TEXT PRIMARY KEY NOT NULL, \
             term INTEGER NOT NULL, \
             passed INTEGER NOT NULL DEFAULT 0)",
    record: "INSERT INTO tenure_fence (name, term) VALUES (?1, ?2) \
             ON CONFLICT (name) DO UPDATE SET term = max(term, excluded.term)",
    recorded: "SELECT term FROM tenure_fence WHERE name = ?1",
    check: SQLITE_CHECK,
    check_by_update: SQLITE_CHECK,
};

const SQLITE_CHECK: &str =
    "UPDATE tenure_fence SET passed = passed + 1 WHERE name = ?1 AND term = ?2";

/// Who writes: a leader of an election, by its term.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guard {
    name: String,
    term: Term,
}

impl Guard {
    /// Of the leader of this term. `name` is that of the election, at most 255
    /// bytes; all that one transaction writes goes by one of them.
    pub fn new(name: impl Into<String>, term: Term) -> Self {
        Self {
            name: name.into(),
            term,
        }
    }

    /// The name of the row.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The term.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The term as databases have it.
    pub fn number(&self) -> i64 {
        // A term fits by its definition.
        i64::try_from(self.term.get()).unwrap_or(i64::MAX)
    }

    /// Refused, by a row that has this term (or is not there).
    pub fn refused(&self, seen: Option<i64>) -> Deposed {
        let seen = seen.and_then(|it| u64::try_from(it).ok());
        Deposed {
            term: self.term,
            seen: seen.and_then(Term::new),
        }
    }
}

/// Why a transaction was not committed, by what its caller does next.
#[derive(Debug, thiserror::Error)]
pub enum Error<E> {
    /// A later leader has recorded its term; nothing was committed. Stop.
    #[error(transparent)]
    Deposed(#[from] Deposed),
    /// Nothing was committed. Do the whole transaction again.
    #[error("nothing was committed: {0}")]
    Failed(E),
    /// The commit was sent and not answered as it should be. Look.
    #[error("it is not known whether this was committed: {0}")]
    Unknown(E),
}

/// What a leader's session of PostgreSQL sets first: the server ends it when it
/// has been idle in a transaction for `idle`, and a statement waits for a lock
/// for twice as long.
///
/// A session that the server sends rows to is not idle. So read what is large
/// before the transaction writes.
pub fn limit_postgres(idle: Duration) -> [String; 2] {
    let idle = idle.as_millis().max(1);
    [
        format!("SET idle_in_transaction_session_timeout = {idle}"),
        format!("SET lock_timeout = {}", idle.saturating_mul(2)),
    ]
}

/// The same for MySQL and MariaDB, in whole seconds (at least one). The server
/// ends each session that is idle for so long, in a transaction or not.
pub fn limit_mysql(idle: Duration) -> [String; 2] {
    let idle = idle.as_secs().max(1);
    [
        format!("SET SESSION wait_timeout = {idle}"),
        format!(
            "SET SESSION innodb_lock_wait_timeout = {}",
            idle.saturating_mul(2)
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_in_the_units_of_the_servers() {
        assert_eq!(
            limit_postgres(Duration::from_millis(1_500)),
            [
                "SET idle_in_transaction_session_timeout = 1500",
                "SET lock_timeout = 3000"
            ]
        );
        // Zero would be no limit.
        assert_eq!(
            limit_mysql(Duration::from_millis(10)),
            [
                "SET SESSION wait_timeout = 1",
                "SET SESSION innodb_lock_wait_timeout = 2"
            ]
        );
        assert!(limit_postgres(Duration::ZERO)[0].ends_with("= 1"));
    }
}
