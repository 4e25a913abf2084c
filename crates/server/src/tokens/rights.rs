//! What a token allows.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tenure_api::v1::{self, Cause};
use tenure_core::ids::Key;
use tenure_election::Record;
use tenure_group::Keys;
use tenure_runtime::error::{cut, plain};

use super::super::caller_proof::half;
use super::super::errors::error;
use super::super::quota_usage::Quota;

/// The most prefixes of one right of one token.
pub(super) const PREFIXES_MAX: usize = 64;

/// What may be done with the user log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LogRight {
    #[default]
    None,
    Read,
    Append,
}

/// What the file says of one token.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rights {
    pub(super) sha256: String,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default)]
    write: Vec<String>,
    #[serde(default)]
    campaign: Vec<String>,
    /// Names of groups; with `*` at the end all that begin so. `None` if the
    /// file says nothing: then `write` covers groups too, for this release.
    operate: Option<Vec<String>>,
    /// How many bytes the registers may take that it may write.
    quota_bytes: Option<u64>,
    /// How many there may be.
    quota_registers: Option<u64>,
    #[serde(default)]
    log: LogRight,
    #[serde(default)]
    pub(super) admin: bool,
    /// What it is called.
    #[serde(skip)]
    pub(super) name: String,
    #[serde(skip)]
    pub(super) quota: Option<Arc<Quota>>,
    /// Whether it has none since its prefixes are too many.
    #[serde(skip)]
    pub(super) quota_dropped: bool,
}

/// What a call needs to be allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need<'a> {
    /// To be known.
    Token,
    /// To read registers: the one of this key, or all that begin so.
    Read(&'a str),
    /// To write this.
    Swap(&'a v1::Swap),
    /// To delete the register of this key.
    Delete(&'a str),
    /// To have a session: for a token that may change anything.
    Session,
    /// To keep the register of this key bound to a session.
    Hold(&'a str),
    /// To read the user log.
    ReadLog,
    /// To append to it.
    Append,
    /// To operate the cluster.
    Admin,
}

impl Rights {
    /// Those of a token that is in no file and may do everything.
    pub(crate) fn everything(name: &str) -> Self {
        Self {
            sha256: String::new(),
            read: Vec::new(),
            write: Vec::new(),
            campaign: Vec::new(),
            operate: None,
            quota_bytes: None,
            quota_registers: None,
            log: LogRight::Append,
            admin: true,
            name: name.to_owned(),
            quota: None,
            quota_dropped: false,
        }
    }

    /// What it may do, for people: not whose token it is.
    pub(super) fn shown(&self) -> Value {
        json!({
            "name": self.name,
            "read": self.read,
            "write": self.write,
            "campaign": self.campaign,
            "operate": self.operate,
            "log": match self.log {
                LogRight::None => None,
                LogRight::Read => Some("read"),
                LogRight::Append => Some("append"),
            },
            "admin": self.admin,
            "quota_bytes": self.quota_bytes,
            "quota_registers": self.quota_registers,
        })
    }

    /// What is wrong with them, without a value of the file.
    pub(super) fn check(&self) -> Result<(), String> {
        let operate = self.operate.as_deref().unwrap_or_default();
        for prefixes in [&self.read, &self.write, &self.campaign, operate] {
            if prefixes.len() > PREFIXES_MAX {
                let found = prefixes.len();
                return Err(format!(
                    "expected at most {PREFIXES_MAX} prefixes, found {found}"
                ));
            }
        }
        let inner = |it: &str| it.strip_suffix('*').unwrap_or(it).contains('*');
        if operate.iter().any(|it| inner(it)) {
            return Err(
                "expected operate to hold names of groups with a star at the end or with none, \
                 found one elsewhere: there it would stand for itself"
                    .to_owned(),
            );
        }
        if operate.iter().any(|it| it.is_empty() || it.contains('/')) {
            return Err(
                "expected operate to hold names of groups, which have no slash, found something \
                 else; \"*\" is for all groups"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// What `write` allows that the next release does not, and the line that
    /// keeps it; `None` if there is nothing.
    pub(super) fn outdated(&self) -> Option<String> {
        if self.operate.is_some() || self.admin {
            return None;
        }
        let groups: Vec<_> = self.write.iter().filter_map(|it| groups(it)).collect();
        if groups.is_empty() {
            return None;
        }
        let line = format!("operate = {groups:?}");
        let name = shown(&self.name);
        Some(format!(
            "the token {name} may write the registers of groups (ha/), and so run commands on machines \
             of agents, by its right write alone. The next release asks for a right of its own: \
             add {line} to [tokens.{name}] if it is to have that right, and operate = [] if not"
        ))
    }

    /// How much the registers that it may write may take; `None` if that is
    /// not bounded.
    pub(super) fn limited(&self, fingerprint: &[u8; 32]) -> Option<Arc<Quota>> {
        let unsaid = self.quota_bytes.is_none() && self.quota_registers.is_none();
        let everything = self.admin || self.write.iter().any(String::is_empty);
        if unsaid && everything {
            return None;
        }
        let unbounded = everything.then_some(u64::MAX);
        let most = (
            self.quota_bytes.or(unbounded),
            self.quota_registers.or(unbounded),
        );
        let elections = self.campaign.iter();
        let elections = elections.map(|it| format!("{}{it}", Key::ELECTIONS));
        let groups = self.operate.iter().flatten();
        let groups = groups.map(|it| match it.strip_suffix('*') {
            Some(begin) => format!("{}{begin}", Keys::PREFIX),
            None => format!("{}{it}/", Keys::PREFIX),
        });
        let all = self.admin.then(String::new);
        let prefixes = self.write.iter().cloned().chain(elections);
        let prefixes: Vec<_> = prefixes.chain(groups).chain(all).collect();
        // It writes no register.
        if unsaid && prefixes.is_empty() {
            return None;
        }
        Some(Arc::new(Quota::new(half(fingerprint), most, prefixes)))
    }

    pub(super) fn allow(&self, need: Need<'_>) -> bool {
        if self.admin {
            return true;
        }
        match need {
            Need::Token => true,
            Need::Read(key) => {
                begins(&self.read, key)
                    || begins(&self.write, key)
                    || self.operates(key)
                    || election(key).is_some_and(|name| begins(&self.campaign, name))
            }
            Need::Swap(swap) => self.writes(&swap.key) || self.allow_campaign(swap),
            Need::Delete(key) => self.writes(key),
            Need::Session => {
                let operate = self.operate.as_deref().unwrap_or_default();
                let all = [&self.write, &self.campaign, operate];
                self.log == LogRight::Append || all.iter().any(|it| !it.is_empty())
            }
            Need::Hold(key) => self.may_hold(key),
            Need::ReadLog => self.log >= LogRight::Read,
            Need::Append => self.log == LogRight::Append,
            Need::Admin => false,
        }
    }

    /// Whether the register of this key may stay bound to a session of its.
    pub(crate) fn may_hold(&self, key: &str) -> bool {
        self.admin
            || self.writes(key)
            || election(key).is_some_and(|name| begins(&self.campaign, name))
    }

    /// Whether it may write and delete the register of this key, whatever is
    /// in it. A client that writes below `ha/` runs commands on all machines of
    /// a group, so `write` does not reach there. In this release it still does
    /// for a token without a line `operate`, however old its file is.
    fn writes(&self, key: &str) -> bool {
        let by_write = !key.starts_with(Keys::PREFIX) || self.operate.is_none();
        self.operates(key) || (by_write && begins(&self.write, key))
    }

    /// Whether the key, or all that begin so, are of groups that it operates.
    fn operates(&self, key: &str) -> bool {
        let covers = |wanted: &str, group: &str| match wanted.strip_suffix('*') {
            Some(begin) => group.starts_with(begin),
            None => group == wanted,
        };
        let operate = self.operate.as_deref().unwrap_or_default();
        group(key).is_some_and(|group| operate.iter().any(|it| covers(it, group)))
    }

    /// A token that may campaign writes records of elections and nothing else.
    fn allow_campaign(&self, swap: &v1::Swap) -> bool {
        let last = swap.at_end.as_ref().map(|it| &it.value);
        let mut values = std::iter::once(&swap.value).chain(last);
        election(&swap.key).is_some_and(|name| {
            let of_it = |value: &bytes::Bytes| {
                Record::decode(value).is_ok_and(|it| it.election.as_str() == name)
            };
            begins(&self.campaign, name) && values.all(of_it)
        })
    }
}

/// The election whose register has this key.
fn election(key: &str) -> Option<&str> {
    key.strip_prefix(Key::ELECTIONS)
}

/// The group of whose registers this key is one, or the beginning of some.
fn group(key: &str) -> Option<&str> {
    let (group, _) = key.strip_prefix(Keys::PREFIX)?.split_once('/')?;
    Some(group)
}

/// Which groups' registers begin with this prefix, as `operate` names them.
fn groups(prefix: &str) -> Option<String> {
    if let Some(group) = group(prefix) {
        return Some(group.to_owned());
    }
    match prefix.strip_prefix(Keys::PREFIX) {
        Some(begin) => Some(format!("{begin}*")),
        None => Keys::PREFIX.starts_with(prefix).then(|| "*".to_owned()),
    }
}

fn begins(prefixes: &[String], text: &str) -> bool {
    prefixes.iter().any(|prefix| text.starts_with(&**prefix))
}

/// Why the token of this name is refused.
pub(super) fn denied(name: &str, need: Need<'_>) -> v1::Error {
    let write = |key: &str| match (group(key), key.starts_with(Keys::PREFIX)) {
        (Some(group), _) => format!("the right to operate the group {:?}", cut(group)),
        (None, true) => format!("the right admin, to write {:?}", cut(key)),
        (None, false) => format!("the right to write {:?}", cut(key)),
    };
    let right = match need {
        Need::Token => "any right".to_owned(),
        Need::Read(key) => format!("the right to read {:?}", cut(key)),
        Need::Swap(swap) => match election(&swap.key) {
            Some(name) => format!(
                "the right to write {:?}, or to campaign in {:?} with a record of it, which has \
                 at most 16 addresses and 16 KiB of params",
                cut(&swap.key),
                cut(name)
            ),
            None => write(&swap.key),
        },
        Need::Delete(key) => write(key),
        Need::Session => "the right to change anything".to_owned(),
        Need::Hold(key) => match election(key) {
            Some(name) => format!(
                "the right to write {:?}, or to campaign in {:?}, which is bound to the session",
                cut(key),
                cut(name)
            ),
            None => format!("{}, which is bound to the session", write(key)),
        },
        Need::ReadLog => "the right to read the log".to_owned(),
        Need::Append => "the right to append to the log".to_owned(),
        Need::Admin => "the right admin".to_owned(),
    };
    error(
        Cause::Denied,
        format!("expected a token with {right}, found {name}, which has it not"),
    )
}

/// The name of a token as it is shown to people, whatever the file says.
pub(super) fn shown(name: &str) -> String {
    plain(cut(name))
}
