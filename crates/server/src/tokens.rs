//! Who may do what: tokens, and the rights that belong to them.
//!
//! A token is a secret that a call carries (`authorization: Bearer …`). The
//! server knows none of them: its file names the SHA-256 of each, so a user who
//! reads the file can do nothing with it. That is enough, without salt and
//! without a slow hash, because tokens are not passwords: they are drawn at
//! random, 256 bits long, and cannot be guessed by trying.
//!
//! ```toml
//! [tokens.payroll]
//! sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! campaign = ["payroll"]      # elections whose names begin so
//! read = ["config/"]          # registers whose keys begin so
//! write = ["state/payroll/"]
//! log = "append"              # or "read"
//!
//! [tokens.agent]
//! sha256 = "…"
//! operate = ["web"]           # the group of this name
//!
//! [tokens.operator]
//! sha256 = "…"
//! admin = true                # everything
//! ```
//!
//! A prefix is a beginning of text and nothing more: `payroll` is also the
//! beginning of `payroll-2`, and `""` of everything. `operate` alone holds
//! whole names: who writes a group's registers runs commands on all of its
//! machines (`rights`).
//!
//! The file is read again when it changes, and streams that are open ask
//! again with every message: a token that is taken out is good for nothing a
//! second later.

mod changes;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzed;
mod own;
mod source;
mod table;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use tenure_api::v1;

use self::changes::Readings;
use self::own::Own;
use self::own::Stranger;
use self::source::Source;
use self::table::{Fingerprint, Table, digest, hexadecimal};
use super::account::{CallerAccount, CallerId};
use super::audit::Audit;
use super::config::Config;
use super::connection_limit::ConnectionClass;
use super::errors::error;
use super::metrics::DeniedReason;
use super::quota_usage::Quota;
use super::shared::Shared;
use super::write_access::warn_if_others_may_write;
use crate::transport::{Arrival, FilesError, Reloaded};

mod rights;

use rights::denied;

pub(super) use rights::{Need, Rights};

/// The longest token that is looked at, in bytes.
const TOKEN_BYTES_MAX: usize = 1_024;

/// What the file of a server names in place of `token`: the SHA-256 of its
/// bytes, in 64 hexadecimal digits.
pub fn fingerprint(token: &str) -> String {
    hexadecimal(&digest(token.as_bytes()))
}

/// Draws a token: 256 random bits as text.
///
/// # Errors
/// If the system gives no random bytes.
pub fn draw_token() -> std::io::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|why| std::io::Error::other(why.to_string()))?;
    Ok(format!("tenure_{}", hexadecimal(&bytes)))
}

/// What a user who may write a file of tokens can do.
pub const TOKENS_DANGER: &str = "give any token every right";

/// Checks the text of a file of tokens.
///
/// # Errors
/// What was expected and what was found.
pub fn check_tokens(text: &str) -> Result<(), String> {
    Table::parse(text).map(drop)
}

/// The tokens that a server knows; `None`: everybody may do everything.
#[derive(Clone, Debug)]
pub(super) struct Tokens(Option<Source>);

impl Tokens {
    /// Reads the file; without one, the user's own token is asked for, if
    /// there is one, and else everybody may do everything.
    /// Each change of the file is noted.
    pub(super) fn open(config: &Config, audit: &Audit) -> Result<Self, FilesError> {
        let Some(file) = config.tokens.clone() else {
            let own = config.own_token.as_ref().map(Own::new);
            return Ok(Self(own.map(|own| Source::Own(Arc::new(own)))));
        };
        let (files, named) = (vec![file.clone()], file.clone());
        let (audit, read) = (audit.clone(), Mutex::new(Readings::default()));
        let make = move || {
            let table = Table::read(&file).map(Arc::new);
            let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
            read.note(&file, &table, &audit);
            let table = table?;
            for (_, rights) in &table.0 {
                if let Some(text) = rights.outdated() {
                    tracing::warn!("{}: {text}", file.display());
                }
            }
            table.warn_of_uncounted(&file);
            Ok(table)
        };
        let known = Reloaded::open("tokens", files, make)?;
        // It has just answered.
        warn_if_others_may_write(&named, TOKENS_DANGER);
        Ok(Self(Some(Source::File(Arc::new(known)))))
    }

    /// Who calls, by what the call carries.
    pub(super) fn caller(
        &self,
        headers: &HeaderMap,
        (address, arrival): (IpAddr, Option<Arrival>),
        shared: &Arc<Shared>,
    ) -> Caller {
        let Some(known) = &self.0 else {
            return Caller::new(Who::NoTokensNeeded, address);
        };
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (value, more) = (values.next(), values.next());
        let token = value.map(|value| bearer(value.as_bytes()));
        let shown = match (token, more) {
            (Some(Some(token)), None) => known.shown(token, arrival),
            (None, None) => Err(Stranger::unknown(known, "found none")),
            _ => Err(Stranger::unknown(known, "found something else")),
        };
        let shared = Arc::clone(shared);
        let who = match shown {
            Ok(fingerprint) => Who::Bearer(Bearer {
                tokens: known.clone(),
                fingerprint,
                shared,
                known: None,
            }),
            Err(stranger) => Who::Unauthenticated(stranger, shared),
        };
        Caller::new(who, address)
    }

    /// What the token is called whose fingerprint begins so; its digits if
    /// the file has none.
    pub(super) fn name_of(&self, beginning: &[u8]) -> String {
        let table = self.0.as_ref().map(Source::current);
        let mut known = table.iter().flat_map(|table| table.0.iter());
        let found = known.find(|(fingerprint, _)| fingerprint.starts_with(beginning));
        match found {
            Some((_, rights)) => rights.name.clone(),
            None => hexadecimal(beginning),
        }
    }
}

/// The token in a header.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    let good = scheme.eq_ignore_ascii_case(b"bearer ")
        && (1..=TOKEN_BYTES_MAX).contains(&token.len())
        && token.iter().all(u8::is_ascii_graphic);
    good.then_some(token)
}

/// Who calls.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    who: Who,
    address: IpAddr,
    /// Where what it makes this server hold is counted, and whether it has
    /// room that is kept.
    place: Option<(Arc<CallerAccount>, bool)>,
}

#[derive(Clone, Debug)]
enum Who {
    /// This server knows no tokens: every caller may do everything.
    NoTokensNeeded,
    Unauthenticated(Stranger, Arc<Shared>),
    Bearer(Bearer),
}

#[derive(Clone, Debug)]
struct Bearer {
    tokens: Source,
    fingerprint: Fingerprint,
    shared: Arc<Shared>,
    /// Whose token it is, by this table.
    known: Option<(Arc<Table>, Arc<Rights>)>,
}

impl Bearer {
    fn rights(&self) -> Option<Arc<Rights>> {
        let table = self.tokens.current();
        match &self.known {
            Some((of, rights)) if Arc::ptr_eq(of, &table) => Some(Arc::clone(rights)),
            _ => table.find(&self.fingerprint).cloned(),
        }
    }
}

/// Whose token was found last, and in which table.
#[derive(Debug)]
pub(super) struct Known {
    fingerprint: Fingerprint,
    table: Arc<Table>,
    rights: Arc<Rights>,
}

impl Caller {
    const fn new(who: Who, address: IpAddr) -> Self {
        Self {
            who,
            address,
            place: None,
        }
    }

    /// Looks whose token it is, unless it is that of `last` and the table is
    /// still the same.
    pub(super) fn recognise(&mut self, last: &mut Option<Known>) {
        let Who::Bearer(it) = &mut self.who else {
            return;
        };
        let table = it.tokens.current();
        let is_last =
            |last: &Known| last.fingerprint == it.fingerprint && Arc::ptr_eq(&last.table, &table);
        if !last.as_ref().is_some_and(is_last) {
            let found = table.find(&it.fingerprint).cloned();
            *last = found.map(|rights| Known {
                fingerprint: it.fingerprint,
                table,
                rights,
            });
        }
        let known = last.as_ref();
        it.known = known.map(|last| (Arc::clone(&last.table), Arc::clone(&last.rights)));
    }

    /// As whom it is counted: as its token, if that is known.
    pub(super) fn caller_id(&self) -> CallerId {
        match &self.who {
            Who::Bearer(Bearer {
                fingerprint,
                known: Some((_, rights)),
                ..
            }) => CallerId::Token(*fingerprint, rights.name.clone()),
            _ => CallerId::address(self.address),
        }
    }

    /// Whether it is counted as that one.
    pub(super) fn is(&self, caller_id: &CallerId) -> bool {
        match (&self.who, caller_id) {
            (Who::Bearer(it), CallerId::Token(fingerprint, _)) if it.known.is_some() => {
                it.fingerprint == *fingerprint
            }
            (Who::Bearer(it), CallerId::Address(_)) if it.known.is_some() => false,
            _ => CallerId::address(self.address) == *caller_id,
        }
    }

    /// It is counted there.
    pub(super) fn seated(self, place: Arc<CallerAccount>, kept: bool) -> Self {
        let place = Some((place, kept));
        Self { place, ..self }
    }

    /// Where it is counted, and whether it has room that is kept.
    pub(super) const fn place(&self) -> Option<&(Arc<CallerAccount>, bool)> {
        self.place.as_ref()
    }

    /// Where the call comes from.
    pub(super) const fn address(&self) -> IpAddr {
        self.address
    }

    /// The hash of the token, known or not, that the call carries.
    pub(super) const fn fingerprint(&self) -> Option<&Fingerprint> {
        match &self.who {
            Who::Bearer(it) => Some(&it.fingerprint),
            Who::NoTokensNeeded | Who::Unauthenticated(..) => None,
        }
    }

    /// Whether it is known, or nobody has to be.
    pub(super) fn is_known(&self) -> bool {
        self.class() != ConnectionClass::Stranger
    }

    /// What its connection has proven by this call.
    pub(super) fn class(&self) -> ConnectionClass {
        match &self.who {
            Who::NoTokensNeeded => ConnectionClass::Known,
            Who::Unauthenticated(..) => ConnectionClass::Stranger,
            Who::Bearer(it) => match it.rights() {
                Some(rights) if rights.admin && !it.tokens.is_own() => ConnectionClass::Admin,
                Some(_) => ConnectionClass::Known,
                None => ConnectionClass::Stranger,
            },
        }
    }

    /// Whether its token is one of operators, for whom there is room where
    /// there is none for others. The user's own is everybody's who calls.
    pub(super) fn is_admin(&self) -> bool {
        self.class() == ConnectionClass::Admin
    }

    /// How much the registers may take that it may write, if that is bounded.
    pub(super) fn quota(&self) -> Option<Arc<Quota>> {
        match &self.who {
            Who::Bearer(it) => it.rights()?.quota.clone(),
            Who::NoTokensNeeded | Who::Unauthenticated(..) => None,
        }
    }

    /// What its token is called, if it is known.
    pub(super) fn name(&self) -> Option<String> {
        match &self.who {
            Who::Bearer(it) => it.rights().map(|it| it.name.clone()),
            Who::NoTokensNeeded | Who::Unauthenticated(..) => None,
        }
    }

    /// What this caller may do now.
    ///
    /// # Errors
    /// [`v1::Cause::Unauthenticated`] if it is not known.
    pub(super) fn granted(&self) -> Result<Granted, v1::Error> {
        let (stranger, shared) = match &self.who {
            Who::NoTokensNeeded => return Ok(Granted(None)),
            Who::Unauthenticated(stranger, shared) => (*stranger, shared),
            Who::Bearer(it) => match it.rights() {
                Some(rights) => return Ok(Granted(Some((rights, Arc::clone(&it.shared))))),
                None => {
                    let found = "found one that this server does not know";
                    (Stranger::unknown(&it.tokens, found), &it.shared)
                }
            },
        };
        shared.metrics.bar(DeniedReason::Unauthenticated);
        let Stranger {
            expected, found, ..
        } = stranger;
        Err(error(stranger.cause, format!("{expected}, {found}")))
    }

    /// Whether this caller may do that now.
    ///
    /// # Errors
    /// [`v1::Cause::Unauthenticated`] if it is not known, [`v1::Cause::Denied`] if
    /// its token has not the right.
    pub(super) fn may(&self, need: Need<'_>) -> Result<(), v1::Error> {
        self.granted()?.may(need)
    }
}

/// What a caller may do, for a moment.
#[derive(Debug)]
pub(super) struct Granted(Option<(Arc<Rights>, Arc<Shared>)>);

impl Granted {
    /// See [`Caller::quota`].
    pub(super) fn quota(&self) -> Option<Arc<Quota>> {
        self.0.as_ref()?.0.quota.clone()
    }

    /// See [`Caller::may`].
    pub(super) fn may(&self, need: Need<'_>) -> Result<(), v1::Error> {
        match &self.0 {
            Some((rights, _)) if !rights.allow(need) => Err(self.denied(need)),
            _ => Ok(()),
        }
    }

    /// What it may do, if that is not everything.
    pub(super) fn limited(&self) -> Option<&Arc<Rights>> {
        self.0.as_ref().map(|it| &it.0).filter(|it| !it.admin)
    }

    /// Why it is refused, which is counted.
    pub(super) fn denied(&self, need: Need<'_>) -> v1::Error {
        if let Some((_, shared)) = &self.0 {
            shared.metrics.bar(DeniedReason::Denied);
        }
        denied(self.0.as_ref().map_or("", |(it, _)| &it.name), need)
    }
}

#[cfg(test)]
mod tests;
