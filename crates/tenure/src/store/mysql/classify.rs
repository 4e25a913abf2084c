//! What an error of the server or of the connection lets us conclude.
//!
//! Each statement is a transaction of its own, and an error of one that was not yet
//! committing means that it was rolled back. Errors that a server also gives while a
//! commit is under way (it shuts down, the connection or the statement is killed, the
//! binary log fails) say neither, and neither does one that is not known here.

use mysql_async::{DriverError, Error};

use crate::error::{StoreError, quoted};
use crate::store::REPAIR;

/// There is such a row already.
const DUPLICATE: u16 = 1062;
/// The server is not a part of its cluster (Galera).
const CUT_OFF: u16 = 1047;
/// A lock was waited for too long: of a row, or of all tables.
const LOCK_WAIT: u16 = 1205;
/// It rolled a transaction back, which waited for another one and the other way round.
const DEADLOCK: u16 = 1213;
/// The user lacks a right on the table.
const NO_RIGHT: u16 = 1142;
/// The user lacks it on a column.
const NO_RIGHT_ON_COLUMN: u16 = 1143;
/// There is no such table.
const NO_TABLE: u16 = 1146;
/// Too many handshakes from this host have failed (`max_connect_errors`).
const BLOCKED: u16 = 1129;
/// Writing in place, a server has been told to take no writes: by an option, as a
/// whole, or in this session.
const READ_ONLY: [u16; 3] = [1290, 1836, 1792];

/// Rolled back, and worth another try: no disk (1021), too many connections (1040),
/// not a part of the cluster (1047, which is said before a statement begins), the
/// table is full (1114), limits of the user (1203, 1226), a lock was waited for too
/// long (1205), a deadlock or a certificate that was refused (1213), a trigger of
/// others (1644), a group of servers that refuses the commit (3101).
const ROLLED_BACK: [u16; 10] = [
    1021, 1040, CUT_OFF, 1114, 1203, LOCK_WAIT, DEADLOCK, 1226, 1644, 3101,
];

/// A person must do something: the user or the password (1044, 1045, 1130, 1251, 1524,
/// 1698, 1820, 1862, 3118, 4151), no such database (1046, 1049), no right (1142, 1143,
/// 1227, 1370), a table of another shape (1048, 1054, 1146, 1264, 1364, 1366, 1406,
/// 1690), a statement that the server does not know (1064, 1193, 1231, 1286), one that
/// is too long for it (1153), a binary log that takes no such statement (1665).
const FOR_A_PERSON: [u16; 27] = [
    1044, 1045, 1046, 1048, 1049, 1054, 1064, 1130, NO_RIGHT, 1143, 1146, 1153, 1193, 1227, 1231,
    1251, 1264, 1286, 1364, 1366, 1370, 1406, 1524, 1665, 1690, 1698, 1820,
];
const ALSO_FOR_A_PERSON: [u16; 3] = [1862, 3118, 4151];

fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Server(server) => Some(server.code),
        _ => None,
    }
}

fn is_for_a_person(code: u16) -> bool {
    FOR_A_PERSON.contains(&code) || ALSO_FOR_A_PERSON.contains(&code)
}

/// What went wrong, in the words of the server.
pub(super) fn text(server: &str, error: &Error) -> String {
    match error {
        Error::Server(said) => {
            let more = match said.code {
                CUT_OFF => "; it is cut off from its cluster",
                _ => "",
            };
            let words = quoted(&said.message);
            format!("{server}: {words} ({}){more}", said.code)
        }
        Error::Io(why) => format!("{server}: {}", quoted(&why.to_string())),
        other => format!("{server}: {}", quoted(&other.to_string())),
    }
}

/// Whether the connection can go on after this error: the server has answered.
pub(super) fn is_of_the_statement(error: &Error) -> bool {
    // It shuts down, or has ended the connection.
    code(error)
        .is_some_and(|code| ![1053, 1152, 1153, 1158, 1159, 1160, 1161, 1927].contains(&code))
}

/// Whether the server has stopped to take writes, or is cut off from its cluster.
pub(super) fn is_of_another_server(error: &Error) -> bool {
    code(error).is_some_and(|code| READ_ONLY.contains(&code) || code == CUT_OFF)
}

/// Whether the server gave the statement up because another session held a lock.
pub(super) fn waited_for_a_lock(error: &Error) -> bool {
    code(error) == Some(LOCK_WAIT)
}

/// Whether the server rolled the statement back, for a deadlock.
pub(super) fn is_deadlock(error: &Error) -> bool {
    code(error) == Some(DEADLOCK)
}

/// Whether a row is there already.
pub(super) fn is_duplicate(error: &Error) -> bool {
    code(error) == Some(DUPLICATE)
}

/// An error while connecting: nothing was asked yet.
pub(super) fn connecting(server: &str, error: &Error) -> StoreError {
    let said = text(server, error);
    let needs_a_person = match error {
        Error::Server(server) => is_for_a_person(server.code),
        // The server asks for what this client does not do.
        Error::Driver(driver) => matches!(
            driver,
            DriverError::UnknownAuthPlugin { .. }
                | DriverError::NoClientSslFlagFromServer
                | DriverError::CleartextPluginDisabled
                | DriverError::MysqlOldPasswordDisabled
        ),
        _ => false,
    };
    if needs_a_person {
        return StoreError::broken(format!(
            "{said}; check the user, password, database and tls= in the store's URL (or \
             $MYSQL_PWD), and the user's rights"
        ));
    }
    if code(error) == Some(BLOCKED) {
        return StoreError::broken(format!(
            "{said}; the server counts handshakes that fail and then keeps their host out: mend \
             what has failed there, run `mariadb-admin flush-hosts` (`mysqladmin flush-hosts`), \
             and set max_connect_errors higher"
        ));
    }
    // Of TLS: it is not tried in vain until the server keeps this host out.
    if matches!(error, Error::Io(_)) && said.contains("invalid peer certificate") {
        return StoreError::broken(format!(
            "{said}; check the server's certificate, and ca= in the store's URL"
        ));
    }
    StoreError::unavailable(said)
}

/// An error in answer to a reading, or to a statement that does no harm: nothing that
/// counts was changed.
pub(super) fn reading(server: &str, error: &Error) -> StoreError {
    let said = answer(server, error);
    match code(error) {
        Some(code) if is_for_a_person(code) => StoreError::broken(said),
        _ => StoreError::unavailable(said),
    }
}

/// An error in answer to a write.
pub(super) fn writing(server: &str, error: &Error) -> StoreError {
    let said = answer(server, error);
    match code(error) {
        Some(code) if is_for_a_person(code) => StoreError::broken(said),
        Some(code) if ROLLED_BACK.contains(&code) || READ_ONLY.contains(&code) => {
            StoreError::unavailable(said)
        }
        _ => StoreError::unknown(said),
    }
}

/// What the server has answered. A table that this process has found, and that is not
/// there any more, is not made again: this process does not know which terms were
/// used by others, so that takes a person.
fn answer(server: &str, error: &Error) -> String {
    let said = text(server, error);
    match code(error) {
        Some(NO_TABLE) => format!(
            "{said}; expected the table that this process has used, found it gone: put it back; \
             if it is lost, `{REPAIR}` makes another"
        ),
        // One to make a table comes with what to run.
        Some(NO_RIGHT | NO_RIGHT_ON_COLUMN) if !said.contains("CREATE command") => format!(
            "{said}; GRANT SELECT, INSERT, UPDATE, DELETE on that table to the user of the store's \
             URL (SELECT alone, if it only looks)"
        ),
        _ => said,
    }
}

#[cfg(test)]
mod tests {
    use mysql_async::ServerError;

    use super::*;

    fn server(code: u16) -> Error {
        Error::Server(ServerError {
            code,
            message: "words".into(),
            state: "HY000".into(),
        })
    }

    #[test]
    fn a_right_that_is_missing_is_told_with_what_to_grant() {
        let denied = |command: &str| {
            let said = ServerError {
                code: NO_RIGHT,
                message: format!("{command} command denied to user u for table t"),
                state: "42000".into(),
            };
            writing("s", &Error::Server(said)).to_string()
        };
        assert!(denied("UPDATE").contains("GRANT SELECT, INSERT"));
        assert!(!denied("CREATE").contains("GRANT"));
    }

    #[test]
    fn only_what_is_rolled_back_for_certain_counts_as_not_done() {
        for code in [1205, 1213, 1290, 1836, 1047] {
            let class = writing("s", &server(code));
            assert!(matches!(class, StoreError::Unavailable(_)), "{code}");
        }
        // Killed, shutting down, an error while committing, one not known here.
        for code in [1053, 1180, 1317, 1927, 1969, 9999] {
            let class = writing("s", &server(code));
            assert!(matches!(class, StoreError::Unknown(_)), "{code}");
            assert!(matches!(
                reading("s", &server(code)),
                StoreError::Unavailable(_)
            ));
        }
        let closed = Error::Driver(DriverError::ConnectionClosed);
        assert!(matches!(writing("s", &closed), StoreError::Unknown(_)));
        for code in [1045, 1049, 1142, 1146, 1862] {
            assert!(matches!(writing("s", &server(code)), StoreError::Broken(_)));
            assert!(matches!(
                connecting("s", &server(code)),
                StoreError::Broken(_)
            ));
        }
    }

    #[test]
    fn words_of_a_server_move_no_cursor() {
        let error = Error::Server(ServerError {
            code: 1,
            message: "a\x1b[2Jb".into(),
            state: String::new(),
        });
        assert!(!text("s", &error).contains('\x1b'));
    }
}
