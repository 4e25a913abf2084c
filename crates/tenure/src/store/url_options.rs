//! What URLs of several stores have in common: hosts with ports, text with escapes,
//! and the options that mean the same in each.

#[cfg(any(
    feature = "file",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
use std::time::Duration;

use crate::error::StoreError;

/// A host with its port, which is `otherwise` if the text names none; `None` if the
/// text is no host.
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "kubernetes",
    feature = "nats",
    feature = "redis"
))]
pub(super) fn with_port(host: &str, otherwise: u16) -> Option<String> {
    let bare = host.strip_prefix('[').map_or(host, |inside| {
        // The colons of an IPv6 address are not those of a port.
        inside.split_once(']').map_or(inside, |(_, after)| after)
    });
    let fits = |host: &str| !host.is_empty() && !host.contains(['/', '@', ' ']);
    match bare.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() && fits(host) => Some(host.to_owned()),
        None if fits(host) => Some(format!("{host}:{otherwise}")),
        _ => None,
    }
}

/// Text in which `%` and two hexadecimal digits stand for a byte.
///
/// # Errors
/// What was found that is no such text.
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "file",
    feature = "kubernetes",
    feature = "mysql",
    feature = "nats",
    feature = "redis"
))]
pub(super) fn unescape(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        // A sign would be taken for one, too.
        let digits = after
            .get(..2)
            .filter(|two| two.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(byte.ok_or("a % without two hexadecimal digits after it")?);
        rest = after.get(2..).unwrap_or_default();
    }
    String::from_utf8(bytes).map_err(|_| "bytes behind % that are not UTF-8")
}

/// The longest prefix of keys, in bytes.
#[cfg(any(feature = "consul", feature = "etcd", feature = "redis"))]
pub(super) const PREFIX_MAX: usize = 256;

/// What keys stand behind.
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(super) fn prefix(prefix: String) -> Result<String, StoreError> {
    if prefix.len() <= PREFIX_MAX && !prefix.chars().any(char::is_control) {
        return Ok(prefix);
    }
    Err(StoreError::broken(format!(
        "prefix=: expected at most {PREFIX_MAX} bytes without control characters, found \
         {prefix:?}"
    )))
}

/// Whether an option (`tls=`) is on.
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "kubernetes",
    feature = "mysql",
    feature = "nats"
))]
pub(super) fn on(option: &str, value: &str) -> Result<bool, StoreError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(StoreError::broken(format!(
            "{option}=: expected on or off, found {value:?}"
        ))),
    }
}

/// Whether TLS is spoken, by `tls=` and by the options that name files for it: naming
/// one asks for TLS.
///
/// # Errors
/// If `tls=off` stands beside such a file.
#[cfg(any(feature = "consul", feature = "etcd", feature = "nats"))]
pub(super) fn tls(on: Option<bool>, files: &[(&str, bool)]) -> Result<bool, StoreError> {
    refuse_files_without_tls(on, files)?;
    Ok(on == Some(true) || files.iter().any(|(_, is_named)| *is_named))
}

/// Refuses `tls=off` beside a file for TLS: without TLS a secret would be sent in the
/// clear to a server that was to prove who it is.
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "kubernetes",
    feature = "nats"
))]
pub(super) fn refuse_files_without_tls(
    on: Option<bool>,
    files: &[(&str, bool)],
) -> Result<(), StoreError> {
    let named = files.iter().find(|(_, is_named)| *is_named);
    match (on, named) {
        (Some(false), Some((option, _))) => Err(StoreError::broken(format!(
            "expected TLS where {option}= names a file for it, found tls=off; leave one of the two \
             out of the store's URL"
        ))),
        _ => Ok(()),
    }
}

/// Whether grants are judged by the store's clock although it may step.
#[cfg(any(
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
pub(super) fn expiry(value: &str) -> Result<bool, StoreError> {
    match value {
        "store-clock" => Ok(true),
        "silence" => Ok(false),
        _ => Err(StoreError::broken(format!(
            "expiry=: expected store-clock or silence, found {value:?}"
        ))),
    }
}

/// How often to look for changes.
#[cfg(any(
    feature = "file",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
pub(super) fn poll(value: &str) -> Result<Duration, StoreError> {
    let millis = value
        .strip_suffix("ms")
        .and_then(|number| number.parse().ok());
    match millis {
        Some(millis @ 10..=60_000) => Ok(Duration::from_millis(millis)),
        _ => Err(StoreError::broken(format!(
            "poll=: expected 10ms to 60000ms, found {value:?}"
        ))),
    }
}
