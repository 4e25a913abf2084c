//! What an error of the server or of the connection lets us conclude.

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, SqlState};

use super::error_text::{PgError, causes, text};
use super::sql;
use crate::error::StoreError;
use crate::store::REPAIR;

/// An error while connecting: nothing was asked yet.
pub(super) fn connecting(server: &str, error: &Error) -> StoreError {
    let text = format!("{server}: {}", causes(error));
    match error.as_db_error().map(DbError::code) {
        // 28: wrong credentials. 3D: no such database. 42: not permitted.
        Some(code) if is_broken(code) => StoreError::broken(format!(
            "{text}; check the user, password and database in the store's URL (or $PGPASSWORD)"
        )),
        _ => match advice(&causes(error)) {
            Some(advice) => StoreError::broken(format!("{text}; {advice}")),
            None => StoreError::unavailable(text),
        },
    }
}

/// What a person must mend where the handshake has failed on this side.
fn advice(why: &str) -> Option<&'static str> {
    let all = [
        (
            "password missing",
            "the server asks for a password: give it in the store's URL, by password_file= or in \
             $PGPASSWORD",
        ),
        (
            "server does not support TLS",
            "turn TLS on there, or say sslmode=disable in the store's URL where nobody can listen",
        ),
        (
            "invalid peer certificate",
            "check the server's certificate, and sslrootcert= in the store's URL",
        ),
    ];
    let found = all.into_iter().find(|(words, _)| why.contains(words));
    found.map(|(_, advice)| advice)
}

/// An error in answer to a read: nothing is changed by a read.
pub(super) fn reading(server: &str, error: &PgError) -> StoreError {
    let text = answer(server, error);
    match error.as_db_error().map(DbError::code) {
        Some(code) if is_broken(code) => StoreError::broken(text),
        _ => StoreError::unavailable(text),
    }
}

/// An error in answer to a write.
pub(super) fn writing(server: &str, error: &PgError) -> StoreError {
    let text = answer(server, error);
    match error.as_db_error().map(DbError::code) {
        // The connection broke: the commit may have gone through.
        None => StoreError::unknown(text),
        // The server is going down: it may say so after the commit, while
        // waiting for a standby. Of a transaction nobody is sure of, neither
        // are we.
        Some(code) if code.code().starts_with("57P") => StoreError::unknown(text),
        Some(code) if code.code().starts_with("08") => StoreError::unknown(text),
        Some(code) if is_broken(code) => StoreError::broken(text),
        // Any other answer of the server means that it has rolled back.
        Some(_) => StoreError::unavailable(text),
    }
}

/// What the server has answered. Statements name the table that this process
/// has found. If it is not there any more it is not made again: this process
/// does not know which terms were used by others, so that takes a person.
fn answer(server: &str, error: &PgError) -> String {
    let text = format!("{server}: {}", text(error));
    let code = error.as_db_error().map(DbError::code);
    if code == Some(&SqlState::INVALID_TEXT_REPRESENTATION) && text.contains(sql::NOT_ABOVE) {
        return format!(
            "{text}; expected the table to give each write a version above the one before, found \
             that it did not; nothing was written: take away what sets the column version (a \
             trigger, a default); if its sequence was set back, set it above all versions in the \
             table with setval()"
        );
    }
    // Of a schema it is about the making of a table, which says by itself what to do.
    if code == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
        && text.contains("for table")
        && !text.contains("for table pg_")
    {
        return format!(
            "{text}; GRANT SELECT, INSERT, UPDATE, DELETE on that table to the user of the store's \
             URL (SELECT alone, if it only looks)"
        );
    }
    if code == Some(&SqlState::UNDEFINED_TABLE) {
        return format!(
            "{text}; expected the table that this process has used, found it gone: put it back; \
             if it is lost, `{REPAIR}` makes another"
        );
    }
    text
}

/// Whether a person must do something first.
fn is_broken(code: &SqlState) -> bool {
    let code = code.code();
    ["28", "3D", "3F", "42", "0A", "22"]
        .iter()
        .any(|class| code.starts_with(class))
}
