//! What an error of the server or of the connection lets us conclude.
//!
//! An error that the server answers a script with means that the register is as it
//! was: a script writes it last (`write.lua`), and the server tells of what it
//! refuses before it begins. An error of the connection tells nothing of a write.

use ::redis::{RedisError, ServerError};

use crate::error::{StoreError, quoted};

/// What came of a call that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// It changes nothing.
    Read,
    /// It may change something.
    Write,
}

/// The connection failed while an answer was due.
pub(super) fn broken_line(server: &str, call: Call, error: &RedisError) -> StoreError {
    let text = format!("{server}: {}", quoted(&error.to_string()));
    match call {
        Call::Read => StoreError::unavailable(text),
        Call::Write => StoreError::unknown(text),
    }
}

/// Whether another connection may reach a server that does better: this one takes
/// no writes, or wants to be told again who we are.
pub(super) fn is_suspect(error: &ServerError) -> bool {
    ["READONLY", "MASTERDOWN", "NOAUTH"].contains(&error.code())
}

/// What the server has answered: nothing was done.
pub(super) fn refused(server: &str, error: &ServerError) -> StoreError {
    let (code, details) = (error.code(), error.details().unwrap_or_default());
    let text = format!("{server}: {}", quoted(&format!("{code} {details}")));
    // Before version 7 an error within a script is told behind other words.
    let is = |wanted: &str| code == wanted || (code == "ERR" && details.contains(wanted));
    let advice = if ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|it| is(it)) {
        "check the user and password in the store's URL, and what the user may do \
         (docs/reference/stores.md, Redis)"
    } else if code == "ERR" && details.contains("The user executing the script can't") {
        // The server does not say which.
        "a command of the store's script, or one of its keys, is not allowed to this user: give \
         it the rights that docs/reference/stores.md lists (Redis, Rights)"
    } else if is("WRONGTYPE") {
        "expected the keys `count` and `names` behind the store's prefix to be its own, found \
         one of another type; name another prefix=, or delete that key"
    } else if is("COUNTER") {
        "expected a counter in step with the server's clock, found one that somebody has set; \
         stop every candidate and delete that key and the registers"
    } else if ["MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN"]
        .iter()
        .any(|it| is(it))
    {
        "expected a server without cluster mode, found one that has it"
    } else if code == "ERR" && ["unknown command", "DB index"].iter().any(|it| is(it)) {
        "expected a server of Redis 5 or later, or Valkey, that has the database of the store's \
         URL and lets scripts run"
    } else {
        // Loading, busy, no memory, no disk, not enough replicas, a replica.
        return StoreError::unavailable(text);
    };
    StoreError::broken(format!("{text}; {advice}"))
}

/// An error while logging in. The library takes each refusal for one of the password;
/// `refusal` has the server's own words.
pub(super) fn logging_in(error: &RedisError, refusal: Option<&str>) -> StoreError {
    let passes = ["ERR max number of clients", "LOADING", "BUSY", "MASTERDOWN"];
    match refusal {
        Some(words) if passes.iter().any(|it| words.starts_with(it)) => {
            StoreError::unavailable(quoted(words))
        }
        _ => connecting(error),
    }
}

/// An error while connecting: nothing was asked yet.
pub(super) fn connecting(error: &RedisError) -> StoreError {
    let text = quoted(&error.to_string());
    let code = error.code().unwrap_or_default();
    let of_credentials = error.kind() == ::redis::ErrorKind::AuthenticationFailed
        || ["NOAUTH", "WRONGPASS", "NOPERM"].contains(&code);
    if of_credentials {
        return StoreError::broken(format!(
            "{text}; check the user and password in the store's URL"
        ));
    }
    if text.contains("DB index is out of range") || text.contains("switch database") {
        return StoreError::broken(format!(
            "{text}; expected the server to have the database in the store's URL; see \
             `databases` in its configuration"
        ));
    }
    // It says why and closes, and what is sent meanwhile fails before that is read.
    if error.is_connection_dropped() && !error.is_connection_refusal() {
        return StoreError::unavailable(format!(
            "{text}; expected an answer to the first question, found the connection closed, as \
             by a server whose maxclients is reached"
        ));
    }
    StoreError::unavailable(text)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn answered(code: &str, details: &str) -> ServerError {
        let error = ::redis::make_extension_error(code.into(), Some(details.into()));
        let all = error.into_server_errors().expect("an error of a server");
        all.first().expect("one").1.clone()
    }

    #[test]
    fn a_server_that_closes_at_once_is_told_of() {
        for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset] {
            let error = connecting(&io::Error::from(kind).into());
            assert!(error.to_string().contains("maxclients"), "{error}");
        }
        let refused = connecting(&io::Error::from(io::ErrorKind::ConnectionRefused).into());
        assert!(!refused.to_string().contains("maxclients"), "{refused}");
    }

    #[test]
    fn a_server_that_is_full_or_loads_does_not_refuse_the_password() {
        let error: RedisError = (
            ::redis::ErrorKind::AuthenticationFailed,
            "Password authentication failed",
        )
            .into();
        for words in [
            "ERR max number of clients reached",
            "LOADING Redis is loading",
        ] {
            let told = logging_in(&error, Some(words));
            assert!(matches!(told, StoreError::Unavailable(_)), "{told:?}");
            assert!(told.to_string().contains(words), "{told}");
        }
        for words in [None, Some("WRONGPASS invalid username-password pair")] {
            let told = logging_in(&error, words);
            assert!(matches!(told, StoreError::Broken(_)), "{told:?}");
        }
    }

    #[test]
    fn what_a_server_refuses_was_not_done() {
        for (code, details) in [
            ("READONLY", "You can't write against a read only replica."),
            ("LOADING", "Redis is loading the dataset in memory"),
            ("BUSY", "Redis is busy running a script."),
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("MISCONF", "Errors writing to the AOF file"),
            ("NOREPLICAS", "Not enough good replicas to write."),
            ("ERR", "Error running script: @user_script:1: -READONLY no"),
        ] {
            let error = refused("redis", &answered(code, details));
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        }
        for (code, details) in [
            ("NOAUTH", "Authentication required."),
            ("NOPERM", "this user has no permissions to run 'evalsha'"),
            (
                "ERR",
                "The user executing the script can't run this command or subcommand script: 9b, on \
                 @user_script:5.",
            ),
            (
                "WRONGTYPE",
                "Operation against a key holding the wrong kind",
            ),
            (
                "ERR",
                "Error running script: WRONGTYPE Operation against a key",
            ),
            ("COUNTER", "tenure:count is too high"),
            ("MOVED", "3999 127.0.0.1:6381"),
            ("ERR", "unknown command 'EVALSHA'"),
        ] {
            let error = refused("redis", &answered(code, details));
            assert!(matches!(error, StoreError::Broken(_)), "{error:?}");
        }
        assert!(is_suspect(&answered("READONLY", "")));
        assert!(!is_suspect(&answered("OOM", "")));
    }

    #[test]
    fn a_line_that_breaks_leaves_a_write_unknown() {
        let broke = RedisError::from(io::Error::other("reset"));
        let write = broken_line("redis", Call::Write, &broke);
        assert!(matches!(write, StoreError::Unknown(_)), "{write:?}");
        let read = broken_line("redis", Call::Read, &broke);
        assert!(matches!(read, StoreError::Unavailable(_)), "{read:?}");
    }
}
