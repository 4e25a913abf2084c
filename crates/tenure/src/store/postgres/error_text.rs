//! An error of the server or of the connection as a text.

use std::error::Error as _;
use std::ops::Deref;

use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use crate::error::quoted;

/// Why a statement has no answer, or an error for one.
#[derive(Debug)]
pub(super) struct PgError {
    error: Error,
    /// How the connection ended. The library tells those that wait for answers that it
    /// has, and not how.
    end: Option<String>,
}

impl PgError {
    pub(super) fn new(error: Error, end: Option<String>) -> Self {
        let end = end.filter(|_| error.is_closed());
        Self { error, end }
    }
}

impl From<Error> for PgError {
    fn from(error: Error) -> Self {
        Self::new(error, None)
    }
}

impl Deref for PgError {
    type Target = Error;

    fn deref(&self) -> &Error {
        &self.error
    }
}

/// The error with its causes, in one line.
pub(super) fn text(error: &PgError) -> String {
    if let Some(end) = &error.end {
        return end.clone();
    }
    causes(error)
}

/// The same of an error of the library.
pub(super) fn causes(error: &Error) -> String {
    if let Some(db) = error.as_db_error() {
        return describe(db);
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    quoted(&text)
}

fn describe(error: &DbError) -> String {
    // Each by itself, so that a long message leaves the code to be seen.
    let (message, code) = (quoted(error.message()), quoted(error.code().code()));
    let mut text = format!("{message} (SQLSTATE {code})");
    for more in [error.detail(), error.hint()].into_iter().flatten() {
        text = format!("{text}; {}", quoted(more));
    }
    text
}
