//! The tokens of a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::super::quota_usage::QUOTA_PREFIXES_MAX;
use super::rights::{Rights, shown};

/// The most tokens a file may name.
pub(super) const TOKENS_MAX: usize = 1_024;

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) type Fingerprint = [u8; 32];

pub(super) fn digest(token: &[u8]) -> Fingerprint {
    Sha256::digest(token).into()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tokens: BTreeMap<String, Rights>,
}

/// All tokens of a file.
#[derive(Debug, Default)]
pub(super) struct Table(pub(super) Vec<(Fingerprint, Arc<Rights>)>);

impl Table {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = tenure_runtime::small::read_text(path);
        let text = text.map_err(|why| format!("{}: {why}", path.display()))?;
        // A full disk, or an editor that has just begun to write.
        if text.trim().is_empty() {
            return Err(format!(
                "{}: expected tokens, found an empty file; write `[tokens]` if there are to be none",
                path.display()
            ));
        }
        Self::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text)
            .map_err(|why| tenure_runtime::small::misread(text, why.span(), why.message()))?;
        if file.tokens.len() > TOKENS_MAX {
            let found = file.tokens.len();
            return Err(format!(
                "expected at most {TOKENS_MAX} tokens, found {found}"
            ));
        }
        let mut names: BTreeMap<Fingerprint, String> = BTreeMap::new();
        let mut all = Vec::new();
        let mut below = 0;
        for (name, mut rights) in file.tokens {
            let Some(fingerprint) = parse_fingerprint(&rights.sha256) else {
                return Err(format!(
                    "tokens.{}: expected sha256 to be the 64 hexadecimal digits that `tenure \
                     token` prints, found {} characters that are not",
                    shown(&name),
                    rights.sha256.chars().count()
                ));
            };
            if let Some(other) = names.insert(fingerprint, name.clone()) {
                return Err(format!(
                    "expected each token once, found that of {} again as {}",
                    shown(&other),
                    shown(&name)
                ));
            }
            if let Err(why) = rights.check() {
                return Err(format!("tokens.{}: {why}", shown(&name)));
            }
            rights.name = name;
            rights.quota = rights.limited(&fingerprint);
            let said = rights.quota.as_ref().filter(|it| !it.is_unset());
            below += said.map_or(0, |it| it.prefixes.len());
            all.push((fingerprint, rights));
        }
        if below > QUOTA_PREFIXES_MAX {
            return Err(format!(
                "expected at most {QUOTA_PREFIXES_MAX} prefixes of all tokens with a quota \
                 together, found {below}"
            ));
        }
        count_within(QUOTA_PREFIXES_MAX, &mut all);
        let all = all.into_iter().map(|(it, rights)| (it, Arc::new(rights)));
        Ok(Self(all.collect()))
    }

    /// Says whose registers are not counted, if there are such.
    pub(super) fn warn_of_uncounted(&self, file: &Path) {
        let mut uncounted = self.0.iter().filter(|(_, rights)| rights.quota_dropped);
        let Some((_, first)) = uncounted.next() else {
            return;
        };
        let (file, others) = (file.display(), uncounted.count());
        tracing::warn!(
            "{file}: expected at most {QUOTA_PREFIXES_MAX} different prefixes of all tokens that \
             are no operators', found more: the token {} and {others} others may take all the room \
             that registers have; give these tokens fewer prefixes, or the most important \
             ones quota_registers and quota_bytes",
            shown(&first.name)
        );
    }

    /// Whose token this is. Compares with every one, in a time that does not
    /// depend on how much of one is right.
    pub(super) fn find(&self, wanted: &Fingerprint) -> Option<&Arc<Rights>> {
        let mut found = None;
        for (fingerprint, rights) in &self.0 {
            if bool::from(fingerprint.ct_eq(wanted)) {
                found = Some(rights);
            }
        }
        found
    }
}

/// Leaves out the quotas of those whose prefixes are too many to be counted,
/// and for which the file says none.
pub(super) fn count_within(most: usize, all: &mut [(Fingerprint, Rights)]) {
    let mut counted = BTreeSet::new();
    for said in [true, false] {
        for (_, rights) in all.iter_mut() {
            let Some(quota) = rights.quota.as_ref().filter(|it| it.is_unset() != said) else {
                continue;
            };
            let prefixes = quota.prefixes.iter();
            let new = prefixes.filter(|it| !counted.contains(*it)).count();
            if said || counted.len() + new <= most {
                counted.extend(quota.prefixes.iter().cloned());
            } else {
                (rights.quota, rights.quota_dropped) = (None, true);
            }
        }
    }
}

fn parse_fingerprint(text: &str) -> Option<Fingerprint> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}
