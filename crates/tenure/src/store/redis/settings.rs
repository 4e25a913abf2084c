//! The URL: which server or which sentinels, which prefix, how far to trust, and
//! what may be shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::redis::RedisConnectionInfo;

use super::tls::{Tls, TlsFiles};
use crate::error::StoreError;
use crate::store::{password, url_options};

/// What keys begin with, if nothing else is asked for.
const PREFIX: &str = "tenure:";
/// How many sentinels a URL may name.
const SENTINELS_MAX: usize = 16;
/// The port of a server that none is named for, and that of a sentinel.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// What a URL says.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) route: Route,
    /// How to speak TLS, if that is asked for.
    pub(super) tls: Option<Tls>,
    /// Who we are to the server, and which of its databases is meant.
    pub(super) login: RedisConnectionInfo,
    /// Who we are to sentinels.
    pub(super) sentinel_login: RedisConnectionInfo,
    /// What all keys are put behind.
    pub(super) prefix: String,
    pub(super) judge_by_store_clock: bool,
    pub(super) poll_every: Duration,
    /// What may be shown of it.
    shown: String,
}

/// How to find the server that takes writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// It is this one, `host:port`.
    Server(String),
    /// These know which it is, under this name.
    Sentinels(Vec<String>, String),
}

impl Route {
    /// The hosts that are connected to first.
    pub(super) fn hosts(&self) -> &[String] {
        match self {
            Self::Server(host) => std::slice::from_ref(host),
            Self::Sentinels(hosts, _) => hosts,
        }
    }
}

/// What the options say.
struct Options {
    prefix: String,
    judge_by_store_clock: bool,
    poll_every: Duration,
    files: TlsFiles,
    password_file: Option<PathBuf>,
    sentinel_password_file: Option<PathBuf>,
}

fn wrong(found: impl fmt::Display) -> StoreError {
    StoreError::broken(format!(
        "expected redis://[[user]:password@]host[:port][/database], or redis+sentinel:// with \
         host[:port],host[:port]…/name-of-the-primary[/database], rediss for TLS, perhaps with \
         options (prefix, password_file, sentinel_password_file, ca, cert, key, expiry, poll), \
         found {found}"
    ))
}

/// Text in which `%` and two hexadecimal digits stand for a byte.
fn unescape(text: &str) -> Result<String, StoreError> {
    url_options::unescape(text).map_err(wrong)
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(wrong("no // after the scheme"));
        };
        let (encrypted, by_sentinels) = match scheme {
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis+sentinel" => (false, true),
            "rediss+sentinel" => (true, true),
            _ => return Err(wrong(format_args!("the scheme {scheme:?}"))),
        };
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, place) = match address.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, address),
        };
        let options = Options::parse(query)?;
        if !encrypted && !options.files.is_empty() {
            return Err(wrong(format_args!("ca=, cert= or key= with {scheme}:")));
        }
        if !by_sentinels && options.sentinel_password_file.is_some() {
            return Err(wrong("sentinel_password_file= without sentinels"));
        }
        let (route, database) = route(place, by_sentinels)?;
        let login = login(user, options.password_file.as_deref())?.set_db(database);
        let mut sentinel_login = login_by(None, None)?;
        if let Some(file) = &options.sentinel_password_file {
            let password = password::secret(
                "sentinel_password_file",
                "a password",
                file,
                password::BYTES_MAX,
            )?;
            sentinel_login = sentinel_login.set_password(password);
        }
        let tls = encrypted.then(|| Tls::open(options.files)).transpose()?;
        Ok(Self {
            shown: shown(scheme, &route, database, &options.prefix),
            route,
            tls,
            login,
            sentinel_login,
            prefix: options.prefix,
            judge_by_store_clock: options.judge_by_store_clock,
            poll_every: options.poll_every,
        })
    }
}

impl Options {
    fn parse(query: &str) -> Result<Self, StoreError> {
        let mut options = Self {
            prefix: PREFIX.to_owned(),
            judge_by_store_clock: false,
            poll_every: Duration::from_millis(200),
            files: TlsFiles::default(),
            password_file: None,
            sentinel_password_file: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescape(value)?;
            match name {
                "prefix" => options.prefix = url_options::prefix(value)?,
                "expiry" => options.judge_by_store_clock = url_options::expiry(&value)?,
                "poll" => options.poll_every = url_options::poll(&value)?,
                "ca" => options.files.authorities = Some(value.into()),
                "cert" => options.files.certificate = Some(value.into()),
                "key" => options.files.key = Some(value.into()),
                "password_file" => options.password_file = Some(value.into()),
                "sentinel_password_file" => options.sentinel_password_file = Some(value.into()),
                _ => return Err(wrong(format_args!("the unknown option {name:?}"))),
            }
        }
        Ok(options)
    }
}

/// Where the server is, and the number of the database there.
fn route(place: &str, by_sentinels: bool) -> Result<(Route, i64), StoreError> {
    let mut parts = place.split('/');
    let hosts = parts.next().unwrap_or_default();
    let found = |host: &str, port| {
        let whole = url_options::with_port(host, port);
        whole.ok_or_else(|| wrong(format_args!("the host {host:?}")))
    };
    let route = if by_sentinels {
        let hosts = hosts.split(',').map(|host| found(host, SENTINEL_PORT));
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        if hosts.len() > SENTINELS_MAX {
            return Err(wrong(format_args!("{} sentinels", hosts.len())));
        }
        let name = unescape(parts.next().unwrap_or_default())?;
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(wrong("no name of the primary after the sentinels"));
        }
        Route::Sentinels(hosts, name)
    } else if hosts.contains(',') {
        // Two that take writes would be two stores.
        return Err(wrong(
            "several hosts, of which each may take writes; name the one, or sentinels, which \
             know it",
        ));
    } else {
        Route::Server(found(hosts, PORT)?)
    };
    let database = match parts.next() {
        None | Some("") => 0,
        Some(number) => match number.parse() {
            Ok(number @ 0..=i64::MAX) => number,
            _ => return Err(wrong(format_args!("the database {number:?}"))),
        },
    };
    match parts.next() {
        None => Ok((route, database)),
        Some(more) => Err(wrong(format_args!("{more:?} after the database"))),
    }
}

/// The user's name and password, which may be in a file.
fn login(text: Option<&str>, file: Option<&Path>) -> Result<RedisConnectionInfo, StoreError> {
    let Some(text) = text else {
        return login_by(None, file);
    };
    let (name, password) = match text.split_once(':') {
        Some((name, password)) => (name, Some(password)),
        None => (text, None),
    };
    let name = Some(unescape(name)?).filter(|name| !name.is_empty());
    match (password, file) {
        (Some(_), Some(_)) => Err(wrong("two passwords, one in a file")),
        (None, None) => Err(wrong("a user without a password")),
        (None, Some(_)) => login_by(name, file),
        (Some(password), None) => {
            let login = login_by(name, None)?;
            Ok(login.set_password(unescape(password)?))
        }
    }
}

fn login_by(name: Option<String>, file: Option<&Path>) -> Result<RedisConnectionInfo, StoreError> {
    let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(name) = name {
        login = login.set_username(name);
    }
    if let Some(file) = file {
        login = login.set_password(password::in_file(file)?);
    }
    Ok(login)
}

fn shown(scheme: &str, route: &Route, database: i64, prefix: &str) -> String {
    let mut shown = format!("{scheme}://{}", route.hosts().join(","));
    if let Route::Sentinels(_, name) = route {
        shown += &format!("/{name}");
    }
    if database != 0 {
        shown += &format!("/{database}");
    }
    if prefix != PREFIX {
        shown += &format!("?prefix={prefix}");
    }
    shown
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

    fn parsed(url: &str) -> Settings {
        Settings::parse(url).expect("a URL")
    }

    #[test]
    fn urls_say_server_database_prefix_and_user() {
        let url = "redis://u%40x:p%3Aw@[::1]:99/3?prefix=a%2Fb&expiry=store-clock&poll=50ms";
        let all = parsed(url);
        assert_eq!(all.route, Route::Server("[::1]:99".into()));
        assert_eq!((all.login.username(), all.login.db()), (Some("u@x"), 3));
        assert_eq!(all.login.password(), Some("p:w"));
        assert!(all.judge_by_store_clock);
        assert_eq!(all.poll_every, Duration::from_millis(50));
        // What is shown has no password.
        assert_eq!(format!("{all} {all:?}").matches("p:w").count(), 0);
        assert_eq!(all.to_string(), "redis://[::1]:99/3?prefix=a/b");
        let plain = parsed("redis://h/");
        assert_eq!(plain.route, Route::Server("h:6379".into()));
        assert_eq!(
            (plain.prefix.as_str(), plain.login.password()),
            (PREFIX, None)
        );
        // The usual form of a password without a user.
        let bare = parsed("redis://:secret@h");
        assert_eq!(bare.login.username(), None);
        assert_eq!(bare.login.password(), Some("secret"));
    }

    #[test]
    fn sentinels_are_asked_for_the_primary_of_a_name() {
        let all = parsed("redis+sentinel://u:p@h1,h2:7/main/2");
        let hosts = vec!["h1:26379".into(), "h2:7".into()];
        assert_eq!(all.route, Route::Sentinels(hosts, "main".into()));
        assert_eq!((all.login.db(), all.sentinel_login.password()), (2, None));
        assert_eq!(all.to_string(), "redis+sentinel://h1:26379,h2:7/main/2");
    }

    #[test]
    fn a_password_may_be_in_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("password");
        let file = path.display();
        std::fs::write(&path, "p:w @\n").expect("written");
        let mode = |mode| {
            let wanted = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, wanted).expect("a mode");
        };
        mode(0o600);
        let named = parsed(&format!("redis://u@h?password_file={file}"));
        assert_eq!(named.login.username(), Some("u"));
        assert_eq!(named.login.password(), Some("p:w @"));
        let bare = parsed(&format!(
            "redis+sentinel://h/m?password_file={file}&sentinel_password_file={file}"
        ));
        assert_eq!(bare.login.username(), None);
        assert_eq!(bare.login.password(), Some("p:w @"));
        assert_eq!(bare.sentinel_login.password(), Some("p:w @"));
        for url in [
            format!("redis://u:p@h?password_file={file}"),
            format!("redis://h?sentinel_password_file={file}"),
            format!("redis://u@h?password_file={file}.none"),
        ] {
            assert!(Settings::parse(&url).is_err(), "{url}");
        }
        let url = format!("redis+sentinel://h/m?sentinel_password_file={file}.none");
        let why = Settings::parse(&url).expect_err("no such file").to_string();
        assert!(why.starts_with("sentinel_password_file=: "), "{why}");
        mode(0o644);
        let refused = Settings::parse(&format!("redis://u@h?password_file={file}"));
        let why = refused.expect_err("others may read it").to_string();
        assert!(why.contains("found mode 644"), "{why}");
    }

    #[test]
    fn wrong_urls_say_what_was_expected() {
        let long = format!(
            "redis://h?prefix={}",
            "x".repeat(url_options::PREFIX_MAX + 1)
        );
        let many = vec!["h"; SENTINELS_MAX + 1].join(",");
        let many = format!("redis+sentinel://{many}/m");
        for url in [
            "redis:h",
            "redis://",
            "redis://h,g",
            "redis://h:port",
            "redis://h:70000",
            "redis://h/x",
            "redis://h/-1",
            "redis://h/0/1",
            "redis://user@h",
            "redis://h?prefx=x",
            "redis://h?prefix=%0a",
            "redis://h?prefix=%g0",
            "redis://h?expiry=never",
            "redis://h?poll=1ms",
            "redis://h?ca=/etc/ssl/cert.pem",
            "rediss://h?ca=/does/not/exist",
            "rediss://h?cert=/none",
            "redis+sentinel://h",
            "redis+sentinel://h/",
            "redis+sentinel://h,,g/m",
            "redis+sentinel://h/m/x",
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
