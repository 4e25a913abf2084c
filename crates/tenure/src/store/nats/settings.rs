//! The URL: which servers, which bucket, who we are, how far to trust, and what may
//! be shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::bucket::Bucket;
use crate::error::StoreError;
use crate::store::{password, url_options};

/// The bucket, if none is named.
const BUCKET: &str = "tenure";
/// The longest name of a bucket.
const BUCKET_MAX: usize = 128;
/// How many servers a URL may name.
const SERVERS_MAX: usize = 16;
/// The port of a server that none is named for.
const PORT: u16 = 4222;
/// The longest file of credentials that is read, in bytes.
const CREDENTIALS_BYTES_MAX: u64 = 64 * 1_024;

/// What a URL says.
#[derive(Clone)]
pub(super) struct Settings {
    /// `host:port` of each, in the order of the URL: the first that answers is used.
    pub(super) hosts: Vec<String>,
    pub(super) login: Login,
    /// How to speak TLS, if that is asked for.
    pub(super) tls: Option<Tls>,
    bucket: String,
    /// How many replicas a bucket is made with, if that is asked for.
    pub(super) replicas: Option<u8>,
    pub(super) poll_every: Duration,
    /// What may be shown of it.
    shown: String,
}

/// Who we are to the servers.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Login {
    Nobody,
    /// A name and a password.
    User(String, String),
    Token(String),
    /// The text of a file of credentials: a token of the user's, and the key that
    /// signs for it.
    Credentials(String),
}

/// The files that TLS takes. They are read with each connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tls {
    /// Without one, the system's.
    pub(super) authorities: Option<PathBuf>,
    /// Our certificate and key.
    pub(super) own: Option<(PathBuf, PathBuf)>,
}

/// The options of a URL.
struct Options {
    tls: Option<bool>,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    password_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    credentials: Option<PathBuf>,
    replicas: Option<u8>,
    poll_every: Duration,
}

fn wrong(found: impl fmt::Display) -> StoreError {
    StoreError::broken(format!(
        "expected nats://[user[:password]@]host:port[,host:port…][/bucket], perhaps with \
         password_file=, token_file= or creds=, tls=on, ca=, cert= and key=, replicas= and poll=, \
         found {found}"
    ))
}

fn unescape(text: &str) -> Result<String, StoreError> {
    url_options::unescape(text).map_err(wrong)
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url
            .strip_prefix("nats://")
            .ok_or_else(|| wrong("no // after nats:"))?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, place) = match address.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, address),
        };
        let (hosts, bucket) = place.split_once('/').unwrap_or((place, ""));
        let with_port = |host| {
            let whole = url_options::with_port(host, PORT);
            whole.ok_or_else(|| wrong(format_args!("the host {host:?}")))
        };
        let hosts = hosts.split(',').map(with_port);
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        if hosts.len() > SERVERS_MAX {
            return Err(wrong(format_args!("{} hosts", hosts.len())));
        }
        let bucket = checked_bucket(bucket)?;
        let options = Options::parse(query)?;
        Ok(Self {
            login: options.login(user)?,
            tls: options.tls()?,
            replicas: options.replicas,
            poll_every: options.poll_every,
            shown: format!("nats://{}/{bucket}", hosts.join(",")),
            hosts,
            bucket,
        })
    }

    pub(super) fn bucket(&self) -> Bucket<'_> {
        Bucket(&self.bucket)
    }
}

fn checked_bucket(bucket: &str) -> Result<String, StoreError> {
    if bucket.is_empty() {
        return Ok(BUCKET.to_owned());
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if bucket.len() <= BUCKET_MAX && bucket.bytes().all(fits) {
        return Ok(bucket.to_owned());
    }
    Err(wrong(format_args!(
        "the bucket {bucket:?}; expected at most {BUCKET_MAX} letters, digits, - and _"
    )))
}

impl Options {
    fn parse(query: &str) -> Result<Self, StoreError> {
        let mut options = Self {
            tls: None,
            authorities: None,
            certificate: None,
            key: None,
            password_file: None,
            token_file: None,
            credentials: None,
            replicas: None,
            poll_every: Duration::from_millis(200),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescape(value)?;
            match name {
                "tls" => options.tls = Some(url_options::on(name, &value)?),
                "ca" => options.authorities = Some(value.into()),
                "cert" => options.certificate = Some(value.into()),
                "key" => options.key = Some(value.into()),
                "password_file" => options.password_file = Some(value.into()),
                "token_file" => options.token_file = Some(value.into()),
                "creds" => options.credentials = Some(value.into()),
                "replicas" => options.replicas = Some(replicas(&value)?),
                "poll" => options.poll_every = url_options::poll(&value)?,
                _ => return Err(wrong(format_args!("the unknown option {name:?}"))),
            }
        }
        Ok(options)
    }

    /// Who we are, by one of the ways to say it.
    fn login(&self, user: Option<&str>) -> Result<Login, StoreError> {
        let files = [&self.password_file, &self.token_file, &self.credentials];
        let named = files.iter().filter(|file| file.is_some()).count();
        let parts = user.map(|user| {
            user.split_once(':')
                .map_or((user, None), |(a, b)| (a, Some(b)))
        });
        match (parts, named) {
            (None, 0) => Ok(Login::Nobody),
            (Some((name, Some(password))), 0) => {
                Ok(Login::User(unescape(name)?, unescape(password)?))
            }
            (Some((_, None)), 0) => Err(wrong(
                "a user without a password (a token goes into a file, by token_file=)",
            )),
            (Some((name, None)), 1) => match &self.password_file {
                Some(file) => Ok(Login::User(unescape(name)?, password::in_file(file)?)),
                None => Err(wrong(
                    "a user, and token_file= or creds=, which name another",
                )),
            },
            (None, 1) => match (&self.token_file, &self.credentials) {
                (Some(file), _) => Ok(Login::Token(password::secret(
                    "token_file",
                    "a token",
                    file,
                    password::BYTES_MAX,
                )?)),
                (None, Some(file)) => Ok(Login::Credentials(password::secret(
                    "creds",
                    "credentials",
                    file,
                    CREDENTIALS_BYTES_MAX,
                )?)),
                (None, None) => Err(wrong("a password_file= without a user before @")),
            },
            _ => Err(wrong(
                "more than one of a password, password_file=, token_file= and creds=",
            )),
        }
    }

    /// What TLS takes, if it is asked for; naming a file asks for it.
    fn tls(&self) -> Result<Option<Tls>, StoreError> {
        let files = [
            ("ca", &self.authorities),
            ("cert", &self.certificate),
            ("key", &self.key),
        ];
        let named = files.map(|(option, file)| (option, file.is_some()));
        let is_on = url_options::tls(self.tls, &named)?;
        for (option, file) in &files {
            if let Some(file) = file {
                check_pem(option, file)?;
            }
        }
        let own = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => return Err(wrong("one of cert= and key= without the other")),
        };
        Ok(is_on.then(|| Tls {
            authorities: self.authorities.clone(),
            own,
        }))
    }
}

fn replicas(value: &str) -> Result<u8, StoreError> {
    match value.parse() {
        Ok(number @ (1 | 3 | 5)) => Ok(number),
        _ => Err(StoreError::broken(format!(
            "replicas=: expected 1, 3 or 5, found {value:?}"
        ))),
    }
}

/// Reads a file that the library will read, to say now what is wrong with it.
fn check_pem(option: &str, path: &Path) -> Result<(), StoreError> {
    let expected = format!("{option}={}: expected a file in PEM", path.display());
    let pem = crate::small::read_text(path)
        .map_err(|error| StoreError::broken(format!("{expected}: {error}")))?;
    if pem.contains("-----BEGIN ") {
        return Ok(());
    }
    Err(StoreError::broken(format!("{expected}, found another")))
}

/// Without secrets.
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

    fn user(name: &str, password: &str) -> Login {
        Login::User(name.into(), password.into())
    }

    #[test]
    fn urls_say_servers_bucket_and_user() {
        let all = parsed("nats://u%40x:p%3Aw@h1,[::1]:99/web-1?replicas=5&poll=50ms&tls=on");
        assert_eq!(all.hosts, ["h1:4222", "[::1]:99"]);
        assert!(all.login == user("u@x", "p:w"));
        assert_eq!(all.bucket().stream(), "KV_web-1");
        assert_eq!(all.replicas, Some(5));
        assert_eq!(all.poll_every, Duration::from_millis(50));
        assert!(all.tls.is_some());
        // What is shown has no password.
        assert_eq!(format!("{all} {all:?}").matches("p:w").count(), 0);
        assert_eq!(all.to_string(), "nats://h1:4222,[::1]:99/web-1");
        let plain = parsed("nats://h/");
        assert_eq!(plain.to_string(), "nats://h:4222/tenure");
        assert!(plain.login == Login::Nobody && plain.tls.is_none());
    }

    #[test]
    fn secrets_may_be_in_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        let file = path.display();
        std::fs::write(&path, "p:w @\n").expect("written");
        let mode = |mode| {
            let wanted = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, wanted).expect("a mode");
        };
        mode(0o600);
        let login = |url: String| parsed(&url).login;
        assert!(login(format!("nats://u@h?password_file={file}")) == user("u", "p:w @"));
        assert!(login(format!("nats://h?token_file={file}")) == Login::Token("p:w @".into()));
        assert!(login(format!("nats://h?creds={file}")) == Login::Credentials("p:w @".into()));
        for url in [
            format!("nats://u:p@h?password_file={file}"),
            format!("nats://h?password_file={file}"),
            format!("nats://u@h?token_file={file}"),
            format!("nats://u:p@h?creds={file}"),
            format!("nats://h?creds={file}&token_file={file}"),
            format!("nats://h?token_file={file}.none"),
            // It is no file in PEM.
            format!("nats://h?ca={file}"),
        ] {
            assert!(Settings::parse(&url).is_err(), "{url}");
        }
        mode(0o644);
        let refused = Settings::parse(&format!("nats://h?creds={file}"));
        let why = refused.expect_err("others may read it").to_string();
        assert!(why.contains("found mode 644"), "{why}");
    }

    #[test]
    fn wrong_urls_say_what_was_expected() {
        let many = format!("nats://{}", vec!["h"; SERVERS_MAX + 1].join(","));
        let long = format!("nats://h/{}", "b".repeat(BUCKET_MAX + 1));
        for url in [
            "nats:h",
            "nats://",
            "nats://h,,g",
            "nats://h:port",
            "nats://h:70000",
            "nats://h/a.b",
            "nats://h/a/b",
            "nats://h/>",
            "nats://token@h",
            "nats://h?bucket=x",
            "nats://h?token=x",
            "nats://h?tls=maybe",
            "nats://h?tls=off&ca=/x",
            "nats://h?cert=/x&key=/y&tls=off",
            "nats://h?replicas=2",
            "nats://h?replicas=many",
            "nats://h?poll=1ms",
            "nats://h?ca=/does/not/exist",
            "nats://h?cert=/none",
            "nats://u:%g0@h",
            &many,
            &long,
        ] {
            let refused = Settings::parse(url);
            let Err(StoreError::Broken(why)) = refused else {
                panic!("{url} was taken: {refused:?}");
            };
            let why = why.to_string();
            assert!(why.contains("expected"), "{url}: {why}");
            assert_eq!(
                url.contains("tls=off"),
                why.contains("found tls=off"),
                "{why}"
            );
        }
    }
}
