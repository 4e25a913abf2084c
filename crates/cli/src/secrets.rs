//! Secrets where others can read them.
//!
//! Every user of a machine reads the command lines of all processes there
//! (`ps`), and a process cannot take back what was typed: to change its own
//! takes `unsafe`, and starting itself again without the secret comes too late
//! if another user looks at that moment. So a password on a command line is
//! refused, and the refusal says where it belongs.
//!
//! What a workload is given by `--env` lies in the store, where everybody who
//! may read the group's registers reads it. A name that looks like that of a
//! secret is warned of.

use std::ffi::{OsStr, OsString};

use crate::failure::{Failure, usage};

/// Schemes of stores whose URLs may have a password in them.
const WITH_PASSWORDS: [&str; 9] = [
    "postgres",
    "postgresql",
    "etcd",
    "mysql",
    "nats",
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
];

/// Refuses a command line that has a password in the URL of a store. What
/// comes after `--` is somebody else's.
pub(crate) fn refuse_typed(mut args: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let mut ours = std::iter::from_fn(|| args.next().filter(|arg| arg != "--"));
    let Some(scheme) = ours.find_map(|arg| password_in(&arg)) else {
        return Ok(());
    };
    let also = match scheme {
        "postgres" | "postgresql" => {
            ", or by $PGPASSWORD or a file of passwords ($PGPASSFILE, ~/.pgpass)"
        }
        "mysql" => ", or by $MYSQL_PWD",
        _ => "",
    };
    Err(usage(format!(
        "expected a store URL without a password on the command line, which every user of this \
         machine can read (`ps`), found one of {scheme}: with a password; give the whole URL by \
         $TENURE_STORE or by `store` in the file of --config, or the password alone by \
         ?password_file=FILE in the URL{also}"
    )))
}

/// The scheme of the URL in an argument, if it has a password.
fn password_in(arg: &OsStr) -> Option<&'static str> {
    let arg = arg.to_str()?;
    let flag = arg
        .split_once('=')
        .filter(|(flag, _)| flag.starts_with("--"));
    url_with_password(flag.map_or(arg, |(_, value)| value))
}

fn url_with_password(text: &str) -> Option<&'static str> {
    let (scheme, rest) = text.split_once("://")?;
    let scheme = WITH_PASSWORDS.into_iter().find(|it| *it == scheme)?;
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let login = match (address.rsplit_once('@'), query.split_once('@')) {
        (Some((login, _)), _) => login,
        // A password with a question mark in it: an @ behind an = is of an option.
        (None, Some((before, _))) if !before.contains('=') => address,
        _ => "",
    };
    let mut options = query.split('&');
    let found = login.split_once(':').is_some_and(|(_, it)| !it.is_empty())
        || options.any(|option| is_password(option.split('=').next().unwrap_or_default()));
    found.then_some(scheme)
}

/// Whether an option of a URL is called `password`, as the library of PostgreSQL reads its
/// name: `%` and two hexadecimal digits stand for a byte there.
fn is_password(name: &str) -> bool {
    let mut rest = name.as_bytes();
    let bytes = std::iter::from_fn(|| {
        let (first, after) = rest.split_first()?;
        rest = after;
        let is_escape = |two: &&[u8]| *first == b'%' && two.iter().all(u8::is_ascii_hexdigit);
        let digits = after.get(..2).filter(is_escape);
        let digits = digits.and_then(|two| std::str::from_utf8(two).ok());
        let Some(byte) = digits.and_then(|two| u8::from_str_radix(two, 16).ok()) else {
            return Some(*first);
        };
        rest = after.get(2..).unwrap_or_default();
        Some(byte)
    });
    bytes.eq(*b"password")
}

/// What is in the names of variables that hold secrets.
const SECRET_NAMES: [&str; 8] = [
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "SECRET",
    "TOKEN",
    "CREDENTIAL",
    "APIKEY",
    "KEY",
];

/// Whether a variable of a workload looks like a secret: by a word of its
/// name, or because its value is the URL of a store with a password.
pub(crate) fn is_secret(name: &str, value: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let mut words = name.split(|it: char| !it.is_ascii_alphanumeric());
    let tells = |word: &str| {
        SECRET_NAMES
            .iter()
            .any(|it| word == *it || word.strip_suffix('S') == Some(it) || ends(word, it))
    };
    // The path of a secret is not a secret.
    let elsewhere = ["_FILE", "_PATH"].iter().any(|it| name.ends_with(it));
    (!elsewhere && words.any(tells)) || url_with_password(value).is_some()
}

/// `PGPASSWORD` and `AUTHTOKEN` end so; `MONKEY` and `CWD` hold nothing.
fn ends(word: &str, secret: &str) -> bool {
    secret.len() > 3 && word.ends_with(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_on_a_command_line_is_refused() {
        let typed = |args: &[&str]| refuse_typed(args.iter().map(OsString::from));
        for args in [
            &["run", "x", "--store", "postgres://u:p@h/db"][..],
            &["--store=postgresql://u:p@h1,h2/db?table=x", "list"],
            &["list", "--store", "postgres:///db?host=h&password=p"],
            &["list", "--store", "postgres://u@h/db?%70assword=p"],
            &["list", "--store", "postgres://u@h/db?x=y&passwor%64=p"],
            &[
                "bench",
                "--compare",
                "sqlite:x",
                "postgres://u@h/db?p%61ssword=p",
            ],
            &["list", "--store", "postgres://u:p?p@h/db"],
            &["bench", "--compare", "etcd://u:p@h", "etcd://h"],
            &["list", "--store", "redis://:p@h/1"],
            &["list", "--store=rediss+sentinel://u:p@h1,h2/main"],
            &["list", "--store", "mysql://u:p@h/db"],
            &["list", "--store", "nats://u:p@h1,h2/bucket"],
        ] {
            let refused = typed(args).expect_err("a password").to_string();
            assert!(refused.contains("$TENURE_STORE"), "{refused}");
            assert!(refused.contains("password_file="), "{refused}");
            assert_eq!(refused.contains("postgres"), refused.contains("PGPASSFILE"));
            assert_eq!(refused.contains("mysql:"), refused.contains("$MYSQL_PWD"));
        }
        for args in [
            &["run", "x", "--store", "postgres://u@h/db?password_file=p"][..],
            &["run", "x", "--store", "postgres://u:@h/db"],
            &["run", "x", "--store", "postgres://h:5432/db?user=me@here"],
            &[
                "run",
                "x",
                "--store",
                "postgres://h/db?%70assword_file=p&%zz=x&%",
            ],
            &["run", "x", "--store", "etcd://[::1]:2379"],
            &["run", "x", "--store", "redis://u@h?password_file=p"],
            &["run", "x", "--store", "mysql://u@h/db?password_file=p"],
            &["run", "x", "--store", "nats://u@h?password_file=p"],
            &["run", "x", "--store", "nats://h?token_file=t&creds=c"],
            &["run", "x", "--store", "tenure://h:7400"],
            &["run", "x", "--", "psql", "postgres://u:p@h/db"],
        ] {
            typed(args).expect("no password of ours");
        }
    }

    #[test]
    fn secrets_are_told_by_their_names() {
        for name in [
            "PGPASSWORD",
            "db_password",
            "API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "TOKENS",
            "AuthToken",
        ] {
            assert!(is_secret(name, "x"), "{name}");
        }
        for name in [
            "RUST_LOG",
            "MONKEY",
            "KEYBOARD",
            "PGPASSFILE",
            "PGPASSWORD_FILE",
            "PWD",
            "TOKENIZER",
            "AUTHOR",
        ] {
            assert!(!is_secret(name, "x"), "{name}");
        }
        assert!(is_secret("DATABASE_URL", "postgres://u:p@h/db"));
        assert!(!is_secret("DATABASE_URL", "postgres://u@h/db"));
    }
}
