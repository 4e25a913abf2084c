//! A password in a file of its own (`password_file=`), instead of in the URL:
//! it stands on no command line, and in no variable. And secrets in what servers
//! say.

#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
use std::path::Path;

#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
use crate::error::StoreError;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
use crate::small;

/// The longest password, or token, that is read, in bytes.
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
pub(super) const BYTES_MAX: u64 = 4_096;

/// A shorter secret is not looked for in what servers say: words of theirs have it by
/// chance.
#[cfg(any(feature = "consul", feature = "kubernetes"))]
const HIDDEN_MIN: usize = 4;

/// What a server says, with `***` in place of this secret. A server, or a proxy before it,
/// that is there to find mistakes repeats requests, and errors are logged.
#[cfg(any(feature = "consul", feature = "kubernetes"))]
pub(super) fn hidden(said: &[u8], secret: &[u8]) -> Vec<u8> {
    if secret.len() < HIDDEN_MIN {
        return said.to_vec();
    }
    let (said, secret) = (
        String::from_utf8_lossy(said),
        String::from_utf8_lossy(secret),
    );
    said.replace(&*secret, "***").into_bytes()
}

/// The password in a file that holds nothing else; the end of its line does
/// not count.
///
/// # Errors
/// If the file cannot be read, others may read it, or it is empty.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
pub(super) fn in_file(path: &Path) -> Result<String, StoreError> {
    secret("password_file", "a password", path, BYTES_MAX)
}

/// The secret in a file that this option names.
///
/// # Errors
/// The same.
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
pub(super) fn secret(
    option: &str,
    what: &str,
    path: &Path,
    bytes_max: u64,
) -> Result<String, StoreError> {
    let wrong = |why: String| StoreError::broken(format!("{option}=: {why}"));
    let bytes = small::read_secret(path, bytes_max).map_err(wrong)?;
    let text = String::from_utf8(bytes).unwrap_or_default();
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() {
        let path = path.display();
        return Err(wrong(format!(
            "{path}: expected {what} in UTF-8, found none"
        )));
    }
    Ok(secret.to_owned())
}

#[cfg(all(test, any(feature = "consul", feature = "kubernetes")))]
mod tests {
    use super::hidden;

    #[test]
    fn what_a_server_says_has_no_secret_in_it() {
        let said = |said: &str, secret: &str| {
            let hidden = hidden(said.as_bytes(), secret.as_bytes());
            String::from_utf8(hidden).expect("text")
        };
        assert_eq!(
            said("GET /x: Bearer hunter2, again hunter2", "hunter2"),
            "GET /x: Bearer ***, again ***"
        );
        assert_eq!(said("nothing", "hunter2"), "nothing");
        assert_eq!(said("no token", "no"), "no token");
    }
}
