//! Nobody races for an election while the holder that it judged over is valid.
//!
//! The compare-and-swap would stop most such races, which is why exclusivity
//! alone does not notice them. But a verdict against a valid holder is wrong
//! whatever becomes of it: on another store, or a moment later, it wins.

use tenure_core::cas::{Expect, Write};
use tenure_election::Record;

use super::{Exclusivity, Finding, Terms};
use crate::clock::TrueTime;

/// Looks at a write as it is sent.
pub(crate) fn race(
    write: &Write,
    election: usize,
    now: TrueTime,
    terms: &Terms,
    leaderships: &Exclusivity,
) -> Finding {
    let Expect::Version(version) = &write.expect else {
        return Ok(());
    };
    let Some(judged) = terms
        .by_version(version)
        .filter(|entry| entry.holder.is_some())
    else {
        return Ok(());
    };
    let Ok(sent) = Record::decode(&write.value) else {
        return Err("sent something that is not a record".into());
    };
    let new = sent.holder().map(|holder| holder.id);
    if new.is_none() || new == judged.holder {
        return Ok(());
    }
    let valid = leaderships
        .valid(election, now)
        .find(|(_, held)| held.term == judged.term);
    match valid {
        None => Ok(()),
        Some((_, held)) => Err(format!(
            "races for term {} while the holder of term {} is valid for {} ns more",
            sent.term,
            held.term,
            held.until - now
        )),
    }
}
