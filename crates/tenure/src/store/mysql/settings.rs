//! The URL: which servers, as which user, in which table, how far to trust, and
//! what may be shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mysql_async::{ClientIdentity, SslOpts};

use super::heartbeat_sql::Tables;
use crate::error::StoreError;
use crate::store::heartbeats::Options as Heartbeats;
use crate::store::{password, pem_files, system_authorities, url_options};

/// The table, if nothing else is asked for.
const TABLE: &str = "tenure_register";
/// The longest name that a server takes for a table, in bytes.
const TABLE_MAX: usize = 64;
/// The same of a table of heartbeats, after which that of the notes is named.
const HEARTBEATS_MAX: usize = TABLE_MAX - "_tenure".len();
/// How many servers a URL may name.
const SERVERS_MAX: usize = 16;
/// The port of a server that none is named for.
const PORT: u16 = 3306;

/// What a URL says.
#[derive(Clone)]
pub(super) struct Settings {
    /// In the order of the URL: the first that takes writes is used.
    pub(super) servers: Vec<Server>,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) database: String,
    /// Safe to stand in a statement, between backticks.
    pub(super) table: String,
    pub(super) judge_by_store_clock: bool,
    /// Watches look no more often than this.
    pub(super) poll_every: Duration,
    /// Without it a connection is not encrypted.
    pub(super) tls: Option<SslOpts>,
    /// Whether a missing table is made.
    pub(super) may_create: bool,
    /// Whether the table is one of heartbeats.
    pub(super) heartbeats: Heartbeats,
    /// What may be shown of it.
    shown: String,
}

/// One of the servers of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Server {
    /// A name or an address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What the options say about TLS.
#[derive(Default)]
struct Tls {
    on: Option<bool>,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

fn wrong(found: impl fmt::Display) -> StoreError {
    StoreError::broken(format!(
        "expected mysql://user[:password]@host[:port][,host[:port]…]/database, perhaps with \
         ?table=, expiry=, poll=, password_file=, tls=on, ca=, cert=, key=, and format=hpc with \
         heartbeat_timeout=, found {found}"
    ))
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url
            .strip_prefix("mysql://")
            .ok_or_else(|| wrong("no // after mysql:"))?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, place) = address
            .rsplit_once('@')
            .ok_or_else(|| wrong("no user before @"))?;
        let (hosts, database) = place
            .split_once('/')
            .ok_or_else(|| wrong("no database after the hosts"))?;
        let database = decoded(database)?;
        if database.is_empty() || database.chars().any(char::is_control) {
            return Err(wrong(format_args!("the database {database:?}")));
        }
        let servers = hosts.split(',').map(server);
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        if servers.len() > SERVERS_MAX {
            return Err(wrong(format_args!("{} hosts", servers.len())));
        }
        let mut settings = Self {
            servers,
            user: String::new(),
            password: None,
            database,
            table: TABLE.to_owned(),
            judge_by_store_clock: false,
            poll_every: Duration::from_millis(200),
            tls: None,
            may_create: true,
            heartbeats: Heartbeats::default(),
            shown: String::new(),
        };
        let file = settings.take_options(query)?;
        settings.take_login(login, file.as_deref())?;
        settings.shown = settings.without_secrets();
        Ok(settings)
    }

    /// Takes what stands behind the question mark; the file of the password, if
    /// there is one.
    fn take_options(&mut self, query: &str) -> Result<Option<PathBuf>, StoreError> {
        let (mut tls, mut file) = (Tls::default(), None);
        let (mut named, mut expiry) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value)?;
            match name {
                "table" => named = Some(table(value)?),
                "expiry" => expiry = Some(url_options::expiry(&value)?),
                "poll" => self.poll_every = url_options::poll(&value)?,
                "password_file" => file = Some(PathBuf::from(value)),
                "tls" => tls.on = Some(url_options::on("tls", &value)?),
                "ca" => tls.authorities = Some(value.into()),
                "cert" => tls.certificate = Some(value.into()),
                "key" => tls.key = Some(value.into()),
                "format" | "heartbeat_timeout" => drop(self.heartbeats.take(name, &value)?),
                _ => return Err(wrong(format_args!("the unknown option {name:?}"))),
            }
        }
        self.tls = tls.options()?;
        self.heartbeats.check()?;
        let of_format = self.heartbeats.is_asked;
        if of_format && named.as_ref().is_some_and(|it| it.len() > HEARTBEATS_MAX) {
            return Err(StoreError::broken(format!(
                "table=: expected at most {HEARTBEATS_MAX} letters with format=hpc, found more"
            )));
        }
        if let Some(table) = named {
            self.table = table;
        } else if of_format {
            self.table = self.heartbeats.table().to_owned();
        }
        let by_store_clock = of_format && self.heartbeats.judge_by_store_clock;
        self.judge_by_store_clock = expiry.unwrap_or(by_store_clock);
        Ok(file)
    }

    /// Takes the user and the password, which may be in a file, or in the variable
    /// of the client's own programs.
    fn take_login(&mut self, login: &str, file: Option<&Path>) -> Result<(), StoreError> {
        let (user, typed) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        self.user = decoded(user)?;
        if self.user.is_empty() {
            return Err(wrong("no user before @"));
        }
        self.password = match (typed, file) {
            (Some(_), Some(_)) => return Err(wrong("two passwords, one in a file")),
            (Some(password), None) => Some(decoded(password)?),
            (None, Some(file)) => Some(password::in_file(file)?),
            (None, None) => std::env::var("MYSQL_PWD").ok(),
        };
        Ok(())
    }

    fn without_secrets(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(Server::to_string).collect();
        let mut shown = format!(
            "mysql://{}@{}/{}",
            self.user,
            servers.join(","),
            self.database
        );
        if self.heartbeats.is_asked {
            shown += &format!("?format=hpc&table={}", self.table);
        } else if self.table != TABLE {
            shown += &format!("?table={}", self.table);
        }
        shown
    }

    /// The table of notes beside that of the heartbeats.
    pub(super) fn notes(&self) -> String {
        format!("{}_tenure", self.table)
    }

    /// Both.
    pub(super) fn tables<'a>(&'a self, notes: &'a str) -> Tables<'a> {
        Tables {
            beats: &self.table,
            notes,
        }
    }
}

/// A host, perhaps with a port; an IPv6 address stands in brackets.
fn server(text: &str) -> Result<Server, StoreError> {
    let refused = || wrong(format_args!("the host {text:?}"));
    let (host, rest) = match text.strip_prefix('[') {
        Some(inside) => inside.split_once(']').ok_or_else(refused)?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| refused())?,
        None if rest.is_empty() => PORT,
        None => return Err(refused()),
    };
    if host.is_empty() || port == 0 || host.contains(['/', '@', ' ', '[']) {
        return Err(refused());
    }
    Ok(Server {
        host: host.to_owned(),
        port,
    })
}

/// A name that means the same on servers that fold case and on those that do not.
fn table(name: String) -> Result<String, StoreError> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let mut bytes = name.bytes();
    let fits = name.len() <= TABLE_MAX
        && bytes.next().is_some_and(is_letter)
        && bytes.all(|byte| is_letter(byte) || byte.is_ascii_digit());
    if fits {
        return Ok(name);
    }
    Err(StoreError::broken(format!(
        "table=: expected at most {TABLE_MAX} lower-case letters, digits and underscores, found \
         {name:?}"
    )))
}

impl Tls {
    /// The TLS options of the client, `None` without TLS. Naming a file turns TLS on.
    fn options(&self) -> Result<Option<SslOpts>, StoreError> {
        let files = [&self.authorities, &self.certificate, &self.key];
        let is_named = files.iter().any(|file| file.is_some());
        match self.on {
            Some(false) if is_named => return Err(wrong("tls=off beside ca=, cert= or key=")),
            Some(false) => return Ok(None),
            None if !is_named => return Ok(None),
            Some(true) | None => {}
        }
        let authorities: Vec<_> = match &self.authorities {
            Some(path) => pem_files::certificates("ca", path)?,
            None => {
                system_authorities::check()?;
                rustls_native_certs::load_native_certs().certs
            }
        };
        if authorities.is_empty() {
            return Err(wrong(
                "no authority of this system to check certificates by; name a file of some by ca=",
            ));
        }
        let authorities = authorities.iter().map(|it| it.to_vec().into());
        // The client brings authorities of its own along; an operator who takes
        // one out of the system's means these connections as well.
        let options = SslOpts::default()
            .with_disable_built_in_roots(true)
            .with_root_certs(authorities.collect());
        match (&self.certificate, &self.key) {
            (None, None) => Ok(Some(options)),
            (Some(certificate), Some(key)) => {
                let (certificate, key) = pem_files::identity(certificate, key)?;
                let identity = ClientIdentity::new(certificate.into(), key.into());
                Ok(Some(options.with_client_identity(Some(identity))))
            }
            _ => Err(wrong("one of cert= and key= without the other")),
        }
    }
}

fn decoded(text: &str) -> Result<String, StoreError> {
    url_options::unescape(text).map_err(wrong)
}

/// Without the password.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
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
    fn urls_say_servers_user_database_and_table() {
        let url =
            "mysql://u%40x:p%3Aw@h1,[::1]:99,h3:7/d%2Fb?table=t1&poll=50ms&expiry=store-clock";
        let parsed = Settings::parse(url).expect("a URL");
        let server = |host: &str, port| Server {
            host: host.into(),
            port,
        };
        assert_eq!(
            parsed.servers,
            [server("h1", 3306), server("::1", 99), server("h3", 7)]
        );
        assert_eq!(parsed.user, "u@x");
        assert_eq!(parsed.password.as_deref(), Some("p:w"));
        assert_eq!(parsed.database, "d/b");
        assert_eq!(parsed.poll_every, Duration::from_millis(50));
        assert!(parsed.judge_by_store_clock && parsed.tls.is_none());
        // What is shown has no password.
        let shown = "mysql://u@x@h1:3306,[::1]:99,h3:7/d/b?table=t1";
        assert_eq!(parsed.to_string(), shown);
        assert_eq!(format!("{parsed:?}"), shown);
        let plain = Settings::parse("mysql://u:@h/db").expect("a URL");
        assert_eq!(
            (plain.password.as_deref(), &*plain.table),
            (Some(""), TABLE)
        );
    }

    #[test]
    fn a_password_may_be_in_a_file_that_others_cannot_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("password");
        let file = path.display();
        std::fs::write(&path, "p:w @\n").expect("written");
        let mode = |mode| {
            let wanted = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, wanted).expect("a mode");
        };
        mode(0o600);
        let url = format!("mysql://u@h/db?password_file={file}");
        let parsed = Settings::parse(&url).expect("a URL");
        assert_eq!(parsed.password.as_deref(), Some("p:w @"));
        let both = format!("mysql://u:p@h/db?password_file={file}");
        assert!(Settings::parse(&both).is_err());
        mode(0o644);
        let why = Settings::parse(&url).expect_err("others may read it");
        assert!(why.to_string().contains("found mode 644"), "{why}");
    }

    #[test]
    fn wrong_urls_say_what_was_expected() {
        let long = format!("mysql://u@h/db?table={}", "x".repeat(TABLE_MAX + 1));
        let many = format!("mysql://u@{}/db", vec!["h"; SERVERS_MAX + 1].join(","));
        for url in [
            "mysql:h",
            "mysql://h/db",
            "mysql://@h/db",
            "mysql://u@h",
            "mysql://u@h/",
            "mysql://u@/db",
            "mysql://u@h,,g/db",
            "mysql://u@h:port/db",
            "mysql://u@h:0/db",
            "mysql://u@h:70000/db",
            "mysql://u@[::1/db",
            "mysql://u@[::1]9/db",
            "mysql://u@h/db?tabel=x",
            "mysql://u@h/db?table=X",
            "mysql://u@h/db?table=1x",
            "mysql://u@h/db?table=a%60b",
            "mysql://u@h/db?expiry=never",
            "mysql://u@h/db?poll=1s",
            "mysql://u@h/db%0a",
            "mysql://u@h/db%g0",
            "mysql://u@h/db%+1",
            "mysql://u@h/db%ff",
            "mysql://u@h/db?tls=maybe",
            "mysql://u@h/db?tls=off&ca=/dev/null",
            "mysql://u@h/db?cert=/none",
            "mysql://u@h/db?ca=/does/not/exist",
            &long,
            &many,
        ] {
            let refused = Settings::parse(url);
            let Err(StoreError::Broken(why)) = refused else {
                panic!("{url} was taken: {refused:?}");
            };
            assert!(why.to_string().contains("expected"), "{url}: {why}");
        }
    }
}
