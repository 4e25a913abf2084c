//! The URL: what is ours, what is PostgreSQL's, and what may be shown.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};

use super::passfile::{Login, PassFile};
use crate::error::StoreError;
use crate::store::heartbeats::Options as Heartbeats;
use crate::store::{password, url_options};

/// How many hosts a URL may name.
const SERVERS_MAX: usize = 16;

/// How changes are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WatchMode {
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
    /// In the order of the URL.
    pub(super) servers: Vec<Server>,
    pub(super) table: TableName,
    pub(super) judge_by_store_clock: bool,
    pub(super) watch_mode: WatchMode,
    pub(super) poll_every: Duration,
    pub(super) trust: Trust,
    /// Whether a missing table is made.
    pub(super) may_create: bool,
    /// Whether the table is one of heartbeats.
    pub(super) heartbeats: Heartbeats,
}

/// One of the hosts of a URL.
#[derive(Clone)]
pub(super) struct Server {
    /// What it is called in errors; the whole URL if it is the only one.
    pub(super) label: String,
    pub(super) host: Host,
    /// Where it is, if the URL says (`hostaddr=`).
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    /// All but which host.
    common: Config,
}

impl Server {
    /// How to connect to it at this address, if it is one that has some.
    pub(super) fn config_at(&self, address: Option<IpAddr>) -> Config {
        let mut config = self.common.clone();
        match &self.host {
            Host::Tcp(name) => config.host(name),
            Host::Unix(path) => config.host_path(path),
        };
        if let Some(address) = address {
            config.hostaddr(address);
        }
        config.port(self.port);
        config
    }
}

/// The table that a URL asks for: its name, and perhaps the schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TableName {
    /// As the URL has it; safe to stand in a statement.
    pub(super) name: String,
}

impl TableName {
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
        // Schemas of the server's own: `pg_temp` is another one in each session.
        if parts.len() == 2 && name.starts_with("pg_") {
            return Err(StoreError::broken(format!(
                "table=: expected a schema that lasts and is for users, found one of \
                 PostgreSQL's own in {name:?}"
            )));
        }
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

    /// The schema, if the URL names one, and the name without it.
    pub(super) fn parts(&self) -> (Option<&str>, &str) {
        match self.name.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, &self.name),
        }
    }

    /// The channel that every change is told on, by name and version alone.
    pub(super) fn channel(&self) -> String {
        self.name.replace('.', "_")
    }
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let mut settings = Self {
            config: Config::new(),
            servers: Vec::new(),
            table: TableName {
                name: "tenure_register".into(),
            },
            judge_by_store_clock: false,
            watch_mode: WatchMode::Auto,
            poll_every: Duration::from_millis(200),
            trust: Trust::Anybody,
            may_create: true,
            heartbeats: Heartbeats::default(),
        };
        let (mut theirs, mut file) = (Vec::new(), None);
        let (mut table, mut expiry) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "table" => table = Some(TableName::parse(value)?),
                "expiry" => expiry = Some(url_options::expiry(value)?),
                "watch" => settings.watch_mode = watch_mode(value)?,
                "poll" => settings.poll_every = url_options::poll(value)?,
                "password_file" => file = Some(PathBuf::from(value)),
                "sslrootcert" => settings.trust = Trust::File(PathBuf::from(value)),
                "sslmode" if value == "verify-full" => {
                    theirs.push("sslmode=require".to_owned());
                    if settings.trust == Trust::Anybody {
                        settings.trust = Trust::System;
                    }
                }
                "format" | "heartbeat_timeout" => drop(settings.heartbeats.take(key, value)?),
                _ => theirs.push(pair.to_owned()),
            }
        }
        settings.format(table, expiry)?;
        let address = format!("{address}?{}", theirs.join("&"));
        settings.config = Config::from_str(&address).map_err(|error| {
            StoreError::broken(format!(
                "expected postgres://user:password@host:port/database, with options of \
                 PostgreSQL or of tenure (table, expiry, watch, poll, sslrootcert, \
                 password_file): {}",
                super::error_text::causes(&error)
            ))
        })?;
        if let Some(file) = file {
            if settings.config.get_password().is_some() {
                return Err(StoreError::broken(
                    "expected a password in the URL, or in the file of password_file=, found both",
                ));
            }
            settings.config.password(password::in_file(&file)?);
        }
        settings.complete()?;
        settings.servers = servers(&settings)?;
        Ok(settings)
    }

    /// What depends on the format.
    fn format(&mut self, table: Option<TableName>, expiry: Option<bool>) -> Result<(), StoreError> {
        let heartbeats = &self.heartbeats;
        heartbeats.check()?;
        let of_format = heartbeats.is_asked.then(|| TableName {
            name: heartbeats.table().to_owned(),
        });
        if let Some(table) = table.or(of_format) {
            self.table = table;
        }
        let of_format = heartbeats.is_asked && heartbeats.judge_by_store_clock;
        self.judge_by_store_clock = expiry.unwrap_or(of_format);
        Ok(())
    }

    /// The number of the server to begin with.
    pub(super) fn first(&self) -> usize {
        match self.config.get_load_balance_hosts() {
            LoadBalanceHosts::Random => getrandom::u64().map_or(0, |drawn| {
                usize::try_from(drawn % self.servers.len() as u64).unwrap_or(0)
            }),
            _ => 0,
        }
    }

    /// Fills in from the usual environment, and insists on what is safe.
    fn complete(&mut self) -> Result<(), StoreError> {
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
        if self.trust != Trust::Anybody {
            self.require_tls()?;
        }
        // A standby may lag: what it says is not what was acknowledged.
        self.config
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        self.config.keepalives_idle(Duration::from_secs(5));
        self.config.tcp_user_timeout(Duration::from_secs(10));
        Ok(())
    }

    /// A certificate is to be checked, so there has to be one. Without TLS a password
    /// would be sent in the clear to any server.
    fn require_tls(&mut self) -> Result<(), StoreError> {
        match self.config.get_ssl_mode() {
            SslMode::Disable => Err(StoreError::broken(
                "expected TLS where sslrootcert= or sslmode=verify-full asks for a certificate, \
                 found sslmode=disable; leave one of the two out of the store's URL",
            )),
            SslMode::Prefer => {
                self.config.ssl_mode(SslMode::Require);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The hosts of a URL, each with all that it says of them together.
fn servers(settings: &Settings) -> Result<Vec<Server>, StoreError> {
    let config = &settings.config;
    let (hosts, addresses, ports) = (
        config.get_hosts(),
        config.get_hostaddrs(),
        config.get_ports(),
    );
    let count = hosts.len().max(addresses.len());
    let fits = |found: usize| found <= 1 || found == count;
    let whole = (hosts.is_empty() || addresses.is_empty() || hosts.len() == addresses.len())
        && fits(ports.len());
    if count == 0 || count > SERVERS_MAX || !whole {
        return Err(StoreError::broken(format!(
            "expected 1 to {SERVERS_MAX} hosts, with as many ports (or one, or none) and as many \
             addresses (hostaddr=, or none), found {} hosts, {} ports and {} addresses",
            hosts.len(),
            ports.len(),
            addresses.len()
        )));
    }
    let common = without_hosts(config);
    let file = match config.get_password() {
        Some(_) => PassFile::default(),
        None => PassFile::of_user(),
    };
    let one = |at: usize| {
        let address = addresses.get(at).copied();
        let port = ports.get(at).or_else(|| ports.first()).copied();
        let (host, port) = (hosts.get(at).cloned(), port.unwrap_or(5432));
        let numeric = || address.map_or_else(String::new, |it| it.to_string());
        let host = host.unwrap_or_else(|| Host::Tcp(numeric()));
        let label = match &host {
            _ if count == 1 => settings.to_string(),
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}:{port}", path.display()),
        };
        let mut common = common.clone();
        if let Some(password) = file.find(&login(config, &host, &port.to_string())) {
            common.password(password);
        }
        Server {
            label,
            host,
            address,
            port,
            common,
        }
    };
    Ok((0..count).map(one).collect())
}

/// Where the client's own libraries take a socket of this machine to be.
const SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// What a line of the file of passwords has to say to be about this server.
fn login<'a>(config: &'a Config, host: &'a Host, port: &'a str) -> Login<'a> {
    let user = config.get_user().unwrap_or_default();
    Login {
        host: match host {
            Host::Tcp(name) => name,
            Host::Unix(path) => match path.to_str().unwrap_or_default() {
                usual if SOCKETS.contains(&usual) => "localhost",
                other => other,
            },
        },
        port,
        database: config.get_dbname().unwrap_or(user),
        user,
    }
}

/// The same configuration for no host at all. The client's own has no way to
/// take hosts out, so what else there is goes into a new one.
fn without_hosts(config: &Config) -> Config {
    let mut new = Config::new();
    if let Some(user) = config.get_user() {
        new.user(user);
    }
    if let Some(password) = config.get_password() {
        new.password(password);
    }
    if let Some(name) = config.get_dbname() {
        new.dbname(name);
    }
    if let Some(options) = config.get_options() {
        new.options(options);
    }
    if let Some(name) = config.get_application_name() {
        new.application_name(name);
    }
    if let Some(within) = config.get_connect_timeout() {
        new.connect_timeout(*within);
    }
    if let Some(within) = config.get_tcp_user_timeout() {
        new.tcp_user_timeout(*within);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        new.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        new.keepalives_retries(retries);
    }
    new.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .target_session_attrs(config.get_target_session_attrs());
    new
}

fn watch_mode(value: &str) -> Result<WatchMode, StoreError> {
    match value {
        "auto" => Ok(WatchMode::Auto),
        "listen" => Ok(WatchMode::Listen),
        "poll" => Ok(WatchMode::Poll),
        _ => Err(StoreError::broken(format!(
            "watch=: expected auto, listen or poll, found {value:?}"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_of_a_url_has_all_that_is_said_of_them_together() {
        let url = "postgres://u:p@h1:1,h2:2/db?connect_timeout=3&application_name=x\
                   &sslmode=require&keepalives_retries=4&options=-c%20a%3Db&channel_binding=disable";
        let settings = Settings::parse(url).expect("a URL");
        let whole = &settings.config;
        let [first, second] = settings.servers.as_slice() else {
            panic!("two servers");
        };
        assert_eq!(
            (first.label.as_str(), second.label.as_str()),
            ("h1:1", "h2:2")
        );
        // Nothing that was asked for is lost on the way: with the hosts put
        // back it is what the whole URL says.
        let mut again = second.common.clone();
        again.host("h1").host("h2").port(1).port(2);
        assert_eq!(again, *whole);
    }

    #[test]
    fn what_checks_a_certificate_asks_for_tls() {
        let mode = |options: &str| {
            let parsed = Settings::parse(&format!("postgres://u:p@h/db?{options}"))?;
            assert_ne!(parsed.trust, Trust::Anybody, "{options}");
            let servers = &parsed.servers;
            assert!(
                servers
                    .iter()
                    .all(|it| it.common.get_ssl_mode() == parsed.config.get_ssl_mode())
            );
            Ok::<_, StoreError>(parsed.config.get_ssl_mode())
        };
        for options in [
            "sslrootcert=ca.pem",
            "sslmode=prefer&sslrootcert=ca.pem",
            "sslrootcert=ca.pem&sslmode=prefer",
            "sslrootcert=ca.pem&sslmode=require",
            "sslmode=verify-full",
            "sslmode=verify-full&sslmode=prefer",
        ] {
            assert_eq!(mode(options).expect("a URL"), SslMode::Require, "{options}");
        }
        for options in [
            "sslmode=disable&sslrootcert=ca.pem",
            "sslrootcert=ca.pem&sslmode=disable",
            "sslrootcert=ca.pem&%73slmode=disable",
            "sslmode=verify-full&sslmode=disable",
        ] {
            let Err(StoreError::Broken(why)) = mode(options) else {
                panic!("{options} was taken");
            };
            let why = why.to_string();
            assert!(why.contains("found sslmode=disable"), "{options}: {why}");
        }
        // PostgreSQL's own clients have it; this one speaks plain text for no mode but
        // `disable` and `prefer`.
        assert!(mode("sslmode=allow&sslrootcert=ca.pem").is_err());
    }

    #[test]
    fn a_url_without_a_host_or_with_ports_that_do_not_fit_is_refused() {
        for url in ["postgres:///db", "postgres://u@h1:1,h2:2,h3/db?port=7"] {
            let Err(StoreError::Broken(why)) = Settings::parse(url) else {
                panic!("{url} was taken");
            };
            assert!(why.to_string().contains("expected 1 to 16 hosts"), "{why}");
        }
    }
}
