//! What people write in a form of its own: times and rates; and what the file of settings
//! says in such a form.
//!
//! Values of the file are judged while it is read. So a mistake is told with its line and
//! column, and without the value: the file that was named may be the wrong one, and hold a
//! secret.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};
use tenure::core::time::Drift;
use tenure::election::Priority;

/// What is said to be expected of a rate.
pub(crate) const DRIFT: &str = "a rate like 1%, 0.05% or 200ppm, at most 10%";

/// A rate as people write it, in percent or parts per million, if it is one.
pub(crate) fn parsed_drift(text: &str) -> Option<Drift> {
    let trimmed = text.trim();
    let ppm = if let Some(percent) = trimmed.strip_suffix('%') {
        parts(percent.trim(), 4)
    } else {
        let ppm = trimmed.strip_suffix("ppm");
        ppm.and_then(|ppm| parts(ppm.trim(), 0))
    };
    ppm.and_then(Drift::from_ppm)
}

/// A decimal number times ten to the power of `places`, if that is whole.
fn parts(number: &str, places: usize) -> Option<u32> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > places {
        return None;
    }
    format!("{whole}{part:0<places$}").parse().ok()
}

/// What is said to be expected of a duration.
pub(crate) const DURATION: &str = "a duration like 10s, 500ms or 2m";

/// A duration as people write it, or what is to be said behind it of why it is none.
pub(crate) fn parsed_duration(text: &str) -> Result<Duration, &'static str> {
    if text.trim_start().starts_with('-') {
        return Err(" (time does not run backwards)");
    }
    match humantime::parse_duration(text) {
        Ok(parsed) if parsed.is_zero() => Err(" (expected more than nothing)"),
        Ok(parsed) => Ok(parsed),
        Err(_) => Err(""),
    }
}

/// A text that this judge takes; what it is to be, if not.
fn judged<'de, D: Deserializer<'de>, T>(
    file: D,
    judge: impl FnOnce(&str) -> Option<T>,
    expected: &str,
) -> Result<(String, T), D::Error> {
    let text = String::deserialize(file)?;
    let judged = judge(&text)
        .ok_or_else(|| D::Error::custom(format!("expected {expected}, found something else")))?;
    Ok((text, judged))
}

/// A duration.
pub(crate) fn duration<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Duration>, D::Error> {
    let (_, duration) = judged(file, |text| parsed_duration(text).ok(), DURATION)?;
    Ok(Some(duration))
}

/// A duration, as it is written.
#[cfg(feature = "tenure")]
pub(crate) fn duration_text<'de, D: Deserializer<'de>>(
    file: D,
) -> Result<Option<String>, D::Error> {
    let (text, _) = judged(file, |text| parsed_duration(text).ok(), DURATION)?;
    Ok(Some(text))
}

/// A rate.
pub(crate) fn drift<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Drift>, D::Error> {
    let (_, drift) = judged(file, parsed_drift, DRIFT)?;
    Ok(Some(drift))
}

/// A priority.
pub(crate) fn priority<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Priority>, D::Error> {
    let number = u8::deserialize(file)?;
    match Priority::new(number) {
        Some(priority) => Ok(Some(priority)),
        None => Err(D::Error::custom("expected 0 to 10, found another number")),
    }
}

/// The URL of a store: no more than that it is one.
pub(crate) fn store<'de, D: Deserializer<'de>>(file: D) -> Result<Option<String>, D::Error> {
    let has_scheme = |text: &str| text.contains(':').then_some(());
    let (url, ()) = judged(file, has_scheme, "a store URL, such as sqlite:///path")?;
    Ok(Some(url))
}

/// Where each server is.
#[cfg(feature = "tenure")]
pub(crate) fn peers<'de, D: Deserializer<'de>>(file: D) -> Result<Vec<String>, D::Error> {
    let peers = Vec::<String>::deserialize(file)?;
    let is_peer = |peer: &String| {
        let number = peer.split_once('=').map(|(number, _)| number);
        number.is_some_and(|it| it.parse::<u64>().is_ok())
    };
    match peers.iter().all(is_peer) {
        true => Ok(peers),
        false => Err(D::Error::custom(
            "expected ID=HOST:PORT for each server, found something else",
        )),
    }
}
