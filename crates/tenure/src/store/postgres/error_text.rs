//! An error of the server or of the connection as a text.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use crate::error::quoted;

/// The error with its causes, in one line.
pub(super) fn text(error: &Error) -> String {
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
