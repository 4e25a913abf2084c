//! The URL: what is ours, what is PostgreSQL's, and what may be shown.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::error::StoreError;

/// How changes are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Noticing {
    /// By LISTEN, or by polling where that proves not to work.
    Auto,
    /// By LISTEN only.
    Listen,
    /// By polling only.
    Poll,
}

/// How far the server's certificate is checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Trust {
    /// Not at all: encrypted, but to whom is not known (`sslmode=prefer` and
    /// `require`, as PostgreSQL's own clients do).
    Anybody,
    /// Its chain and its name, by the system's authorities
    /// (`sslmode=verify-full`).
    System,
    /// The same, by the authorities in this file (`sslrootcert=`).
    File(PathBuf),
}

/// What a URL says.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) config: Config,
    pub(super) table: Table,
    pub(super) judge_by_store_clock: bool,
    pub(super) noticing: Noticing,
    pub(super) poll_every: Duration,
    pub(super) trust: Trust,
    /// Whether a missing table is made.
    pub(super) may_create: bool,
}

/// The name of the table, and of the channel that tells of its changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Table {
    /// Perhaps with a schema before it; safe to stand in a statement.
    pub(super) name: String,
}

impl Table {
    fn parse(name: &str) -> Result<Self, StoreError> {
        let part = |part: &str| {
            let mut letters = part.bytes();
            letters
                .next()
                .is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
                && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
                && part.len() <= 63
        };
        let parts: Vec<_> = name.split('.').collect();
        if parts.len() <= 2 && parts.iter().all(|name| part(name)) {
            return Ok(Self {
                name: name.to_owned(),
            });
        }
        Err(StoreError::broken(format!(
            "table=: expected lower-case letters, digits and underscores, perhaps with a schema \
             before a dot, found {name:?}"
        )))
    }

    /// The channel of notifications.
    pub(super) fn channel(&self) -> String {
        self.name.replace('.', "_")
    }
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let mut settings = Self {
            config: Config::new(),
            table: Table {
                name: "tenure_register".into(),
            },
            judge_by_store_clock: false,
            noticing: Noticing::Auto,
            poll_every: Duration::from_millis(200),
            trust: Trust::Anybody,
            may_create: true,
        };
        let mut theirs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "table" => settings.table = Table::parse(value)?,
                "expiry" => settings.judge_by_store_clock = expiry(value)?,
                "watch" => settings.noticing = noticing(value)?,
                "poll" => settings.poll_every = poll(value)?,
                "sslrootcert" => settings.trust = Trust::File(PathBuf::from(value)),
                "sslmode" if value == "verify-full" => {
                    theirs.push("sslmode=require".to_owned());
                    if settings.trust == Trust::Anybody {
                        settings.trust = Trust::System;
                    }
                }
                _ => theirs.push(pair.to_owned()),
            }
        }
        let address = format!("{address}?{}", theirs.join("&"));
        settings.config = Config::from_str(&address).map_err(|error| {
            StoreError::broken(format!(
                "expected postgres://user:password@host:port/database, with options of \
                 PostgreSQL or of tenure (table, expiry, watch, poll, sslrootcert): {}",
                super::classify::text(&error)
            ))
        })?;
        settings.complete();
        Ok(settings)
    }

    /// Fills in from the usual environment, and insists on what is safe.
    fn complete(&mut self) {
        let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if self.config.get_user().is_none()
            && let Some(user) = named("PGUSER")
        {
            self.config.user(user);
        }
        if self.config.get_password().is_none()
            && let Some(password) = named("PGPASSWORD")
        {
            self.config.password(password);
        }
        if self.config.get_application_name().is_none() {
            self.config.application_name("tenure");
        }
        if self.trust != Trust::Anybody && self.config.get_ssl_mode() == SslMode::Prefer {
            self.config.ssl_mode(SslMode::Require);
        }
        // A standby may lag: what it says is not what was acknowledged.
        self.config
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        self.config.keepalives_idle(Duration::from_secs(5));
        self.config.tcp_user_timeout(Duration::from_secs(10));
    }
}

fn expiry(value: &str) -> Result<bool, StoreError> {
    match value {
        "store-clock" => Ok(true),
        "silence" => Ok(false),
        _ => Err(StoreError::broken(format!(
            "expiry=: expected store-clock or silence, found {value:?}"
        ))),
    }
}

fn noticing(value: &str) -> Result<Noticing, StoreError> {
    match value {
        "auto" => Ok(Noticing::Auto),
        "listen" => Ok(Noticing::Listen),
        "poll" => Ok(Noticing::Poll),
        _ => Err(StoreError::broken(format!(
            "watch=: expected auto, listen or poll, found {value:?}"
        ))),
    }
}

fn poll(value: &str) -> Result<Duration, StoreError> {
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

/// Without the password.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        if let Some(user) = self.config.get_user() {
            write!(f, "{user}@")?;
        }
        let ports = self.config.get_ports();
        for (at, host) in self.config.get_hosts().iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match host {
                Host::Tcp(host) => write!(f, "{comma}{host}")?,
                Host::Unix(path) => write!(f, "{comma}{}", path.display())?,
            }
            if let Some(port) = ports.get(at).or_else(|| ports.first()) {
                write!(f, ":{port}")?;
            }
        }
        write!(f, "/{}", self.config.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
