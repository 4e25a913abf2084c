//! The URL: which bucket, what objects' names begin with, where the server is,
//! and how often to look. It has no secrets: credentials come from the environment
//! or from the machine, so all of it may be shown.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use object_store::ClientOptions;
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use reqwest::Certificate;

use super::classify;
use super::http::Connector;
use crate::error::StoreError;
use crate::small;
use crate::store::{PollTimes, system_authorities};

/// The longest prefix, in bytes.
const PREFIX_MAX: usize = 256;
/// The longest name of a bucket that any provider gives.
const BUCKET_MAX: usize = 222;

/// Requests cost money: no more than one a second for what is watched, and one in
/// ten seconds where nothing happens.
const TIMES: PollTimes = PollTimes {
    floor: Duration::from_secs(1),
    ceiling: Duration::from_secs(10),
};

/// What the URLs of one kind of store look like.
#[derive(Debug)]
pub(super) struct Form {
    /// Before `://`.
    pub(super) scheme: &'static str,
    /// What a bucket is called there.
    pub(super) bucket: &'static str,
    /// The options that not all kinds have.
    pub(super) options: &'static [&'static str],
    /// Where credentials are found.
    pub(super) credentials: &'static str,
    /// The variables by which the library is told files of credentials.
    pub(super) files: &'static [&'static str],
    /// That of them whose file has a token which is sent as it is.
    pub(super) token_file: Option<&'static str>,
    /// How the names of the variables begin that the library reads.
    pub(super) variables: &'static [&'static str],
}

/// Refuses a device, a pipe and what is too long in place of the file that a variable
/// names: the library would read it without an end, on the thread that keeps leaderships
/// alive. A file that is not there yet may come.
fn check_file(variable: &str) -> Result<(), StoreError> {
    let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
        return Ok(());
    };
    match small::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let path = path.display();
            Err(StoreError::broken(format!("{variable}={path}: {error}")))
        }
        Err(error) => {
            // The library names neither when it fails to read it.
            tracing::warn!("{variable}={}: {error}", path.display());
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// Refuses variables that the library would send as they are, and cannot: it panics where a
/// header or an address has an end of a line in it.
fn check_variables(prefixes: &[&str]) -> Result<(), StoreError> {
    let read = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if read(&name) {
            check_sent(&name, &value)?;
        }
    }
    Ok(())
}

/// Refuses a token that the library sends as it stands in the file, with the end of the
/// line.
fn check_token(variable: &str) -> Result<(), StoreError> {
    let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
        return Ok(());
    };
    match small::read(&path) {
        Ok(bytes) => {
            let name = format!("{variable}={}", path.display());
            check_sent(&name, &String::from_utf8_lossy(&bytes))
        }
        Err(_) => Ok(()),
    }
}

/// The value is not repeated: it may be a secret.
fn check_sent(name: &str, value: &str) -> Result<(), StoreError> {
    let is_address = ["ENDPOINT", "_URL", "_URI"]
        .iter()
        .any(|it| name.contains(it));
    let is_wrong = |it: char| it.is_control() || (is_address && it == ' ');
    if value.contains(is_wrong) {
        return Err(StoreError::broken(format!(
            "{name}: expected a value on one line, found an end of a line or another control \
             character in it, or a space in an address; write it without (`printf %s`)"
        )));
    }
    Ok(())
}

/// What a URL says.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) bucket: String,
    /// May be empty.
    pub(super) prefix: Path,
    /// `http://…` or `https://…`, without a slash at its end.
    pub(super) endpoint: Option<String>,
    /// A file with credentials, instead of those of the environment.
    pub(super) credentials_file: Option<PathBuf>,
    /// The options that not all kinds have.
    own: BTreeMap<&'static str, String>,
    pub(super) times: PollTimes,
    /// Besides those of the system.
    authorities: Vec<Certificate>,
    /// What may be shown.
    shown: String,
}

impl Form {
    fn wrong(&self, found: impl fmt::Display) -> StoreError {
        let Self { scheme, bucket, .. } = self;
        let all = ["endpoint", "credentials_file", "ca", "poll", "poll_max"];
        let all = self.options.iter().chain(&all);
        let all: Vec<_> = all.map(|option| format!("{option}=")).collect();
        let all = all.join(", ");
        StoreError::broken(format!(
            "expected {scheme}://{bucket}[/prefix], perhaps with {all}, found {found}"
        ))
    }
}

impl Settings {
    pub(super) fn parse(url: &str, form: &Form) -> Result<Self, StoreError> {
        let wrong = |found: &dyn fmt::Display| form.wrong(found);
        let rest = url.strip_prefix(form.scheme);
        let rest = rest.and_then(|rest| rest.strip_prefix("://"));
        let rest = rest.ok_or_else(|| wrong(&"no // after the scheme"))?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        // Not repeated: it may be a secret.
        if address.contains('@') {
            let credentials = form.credentials;
            return Err(wrong(&format_args!(
                "a URL with an @; credentials are not for URLs: {credentials}"
            )));
        }
        let (bucket, prefix) = address.split_once('/').unwrap_or((address, ""));
        let mut settings = Self {
            bucket: checked_bucket(bucket, form)?,
            prefix: checked_prefix(prefix, form)?,
            endpoint: None,
            credentials_file: None,
            own: BTreeMap::new(),
            times: TIMES,
            authorities: Vec::new(),
            shown: String::new(),
        };
        let mut ceiling = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8();
            let value = value.map_err(|_| wrong(&"bytes behind % that are not UTF-8"))?;
            match name {
                "poll" => settings.times.floor = duration(name, &value)?,
                "poll_max" => ceiling = Some(duration(name, &value)?),
                "ca" => settings.authorities = authorities(FilePath::new(&*value))?,
                "endpoint" => settings.endpoint = Some(endpoint(&value)?),
                "credentials_file" => {
                    settings.credentials_file = Some(PathBuf::from(value.into_owned()));
                }
                _ => {
                    let mut known = form.options.iter();
                    let known = known.find(|it| **it == name);
                    let known =
                        known.ok_or_else(|| wrong(&format_args!("the unknown option {name:?}")));
                    settings.own.insert(known?, value.into_owned());
                }
            }
        }
        let floor = settings.times.floor;
        settings.times.ceiling = ceiling.unwrap_or_else(|| TIMES.ceiling.max(floor));
        if settings.times.ceiling < floor {
            return Err(wrong(&"a poll_max= below poll="));
        }
        if settings.credentials_file.is_none() {
            form.files.iter().try_for_each(|name| check_file(name))?;
            form.token_file.map_or(Ok(()), check_token)?;
        }
        check_variables(form.variables)?;
        settings.show(form);
        Ok(settings)
    }

    /// Writes down what may be shown: all that says which registers these are.
    fn show(&mut self, form: &Form) {
        self.shown = format!("{}://{}", form.scheme, self.bucket);
        if !self.prefix.is_root() {
            self.shown += &format!("/{}", self.prefix);
        }
        if let Some(endpoint) = &self.endpoint {
            self.shown += &format!("?endpoint={endpoint}");
        }
    }

    /// An option that not all kinds have.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.own.get(name).map(String::as_str)
    }

    /// The client that `build` makes, of how HTTP is spoken. Where the machine has
    /// no authorities, TLS cannot be spoken; without it they are not needed.
    pub(super) fn client<C>(
        &self,
        allow_http: bool,
        advice: &str,
        build: impl Fn(ClientOptions, Connector) -> object_store::Result<C>,
    ) -> Result<C, StoreError> {
        // The library reads them with each client, also for servers of credentials.
        system_authorities::check()?;
        let options = Connector::options(allow_http);
        let connector = Connector {
            authorities: self.authorities.clone(),
        };
        let built = match build(options.clone(), connector.clone()) {
            Err(_) if allow_http => build(options.with_no_system_certificates(true), connector),
            built => built,
        };
        built.map_err(|error| {
            let why = classify::words(&error);
            let advice = if why.contains("No CA certificates") {
                "install the system's authorities (ca-certificates), or name some by ca="
            } else {
                advice
            };
            StoreError::broken(format!("{self}: {why}; {advice}"))
        })
    }
}

fn checked_bucket(bucket: &str, form: &Form) -> Result<String, StoreError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=BUCKET_MAX).contains(&bucket.len()) && bucket.bytes().all(fits) {
        return Ok(bucket.to_owned());
    }
    Err(form.wrong(format_args!("the {} {bucket:?}", form.bucket)))
}

/// Segments that are neither empty nor dots, without characters of control.
fn checked_prefix(prefix: &str, form: &Form) -> Result<Path, StoreError> {
    let path = Path::from_url_path(prefix);
    let path = path.map_err(|error| form.wrong(format_args!("the prefix {prefix:?}: {error}")))?;
    let text = path.as_ref();
    if text.len() > PREFIX_MAX || text.chars().any(char::is_control) || text.contains('%') {
        return Err(form.wrong(format_args!(
            "the prefix {text:?}; expected at most {PREFIX_MAX} bytes without % and characters \
             of control"
        )));
    }
    Ok(path)
}

/// A time from 10 ms to an hour.
pub(super) fn duration(name: &str, value: &str) -> Result<Duration, StoreError> {
    let millis = match (value.strip_suffix("ms"), value.strip_suffix('s')) {
        (Some(millis), _) => millis.parse().ok(),
        (None, Some(seconds)) => seconds
            .parse()
            .ok()
            .and_then(|it: u64| it.checked_mul(1_000)),
        (None, None) => None,
    };
    match millis {
        Some(millis @ 10..=3_600_000) => Ok(Duration::from_millis(millis)),
        _ => Err(StoreError::broken(format!(
            "{name}=: expected 10ms to 3600s, found {value:?}"
        ))),
    }
}

fn endpoint(value: &str) -> Result<String, StoreError> {
    let rest = value
        .strip_prefix("https://")
        .or_else(|| value.strip_prefix("http://"));
    let fits = |rest: &str| !rest.is_empty() && !rest.contains(['@', '?', '#', ' ', ',']);
    match rest {
        Some(rest) if fits(rest) => Ok(value.trim_end_matches('/').to_owned()),
        // Not repeated: it may be a secret.
        Some(rest) if rest.contains(['@', '?']) => Err(StoreError::broken(
            "endpoint=: expected http://host:port or https://host:port, found one with an @ or a \
             question mark; credentials are not for URLs",
        )),
        _ => Err(StoreError::broken(format!(
            "endpoint=: expected http://host:port or https://host:port, found {value:?}"
        ))),
    }
}

/// The certificates in a file.
fn authorities(path: &FilePath) -> Result<Vec<Certificate>, StoreError> {
    let shown = path.display();
    let expected = format!("ca={shown}: expected a file of certificates in PEM");
    let pem = small::read(path);
    let pem = pem.map_err(|error| StoreError::broken(format!("{expected}: {error}")))?;
    let found = Certificate::from_pem_bundle(&pem)
        .map_err(|error| StoreError::broken(format!("{expected}: {error}")))?;
    if found.is_empty() {
        return Err(StoreError::broken(format!("{expected}, found none")));
    }
    Ok(found)
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form {
        scheme: "s3",
        bucket: "bucket",
        options: &["region", "path_style"],
        credentials: "use the environment",
        files: &[],
        token_file: None,
        variables: &[],
    };

    #[test]
    fn what_is_sent_is_on_one_line() {
        for (name, value) in [
            ("AWS_ACCESS_KEY_ID", "x\n"),
            ("AWS_SESSION_TOKEN", "x\u{1}y"),
            ("AWS_ENDPOINT_URL", "a b"),
        ] {
            let why = check_sent(name, value).expect_err("the library panics");
            let why = why.to_string();
            assert!(why.starts_with(name) && !why.contains(value), "{why}");
        }
        check_sent("AWS_CA_BUNDLE", "/my files/ca").expect("nothing is sent");
    }

    #[test]
    fn urls_say_bucket_prefix_and_server() {
        let url = "s3://b.1/a/b%20c/?endpoint=http://h:1/&region=eu-1&path_style=off&poll=50ms";
        let parsed = Settings::parse(url, &FORM).expect("a URL");
        assert_eq!(
            (parsed.bucket.as_str(), parsed.prefix.as_ref()),
            ("b.1", "a/b c")
        );
        assert_eq!(parsed.endpoint.as_deref(), Some("http://h:1"));
        assert_eq!(parsed.option("region"), Some("eu-1"));
        assert_eq!(parsed.times.floor, Duration::from_millis(50));
        assert_eq!(parsed.times.ceiling, TIMES.ceiling);
        assert_eq!(parsed.to_string(), "s3://b.1/a/b c?endpoint=http://h:1");
        let plain = Settings::parse("s3://bucket", &FORM).expect("a URL");
        assert_eq!(plain.to_string(), "s3://bucket");
        assert_eq!((plain.times, plain.option("region")), (TIMES, None));
        let slow = Settings::parse("s3://bucket?poll=60s", &FORM).expect("a URL");
        assert_eq!(slow.times.ceiling, Duration::from_secs(60));
    }

    #[test]
    fn wrong_urls_say_what_was_expected() {
        let long = format!("s3://b/{}", "x".repeat(PREFIX_MAX + 1));
        for url in [
            "s3:b",
            "s3://",
            "s3:///prefix",
            "s3://b ucket",
            "s3://b/a//b",
            "s3://b/../x",
            "s3://b/a%00",
            "s3://b/a%25",
            "s3://b/%ff",
            "s3://KEY:hunter2@b",
            "s3://b?endpoint=https://KEY:hunter2@h",
            "s3://b?endpoint=h:9000",
            "s3://b?endpoint=ftp://h",
            "s3://b?endpoint=http://",
            "s3://b?poll=0s",
            "s3://b?poll=fast",
            "s3://b?poll=20s&poll_max=10s",
            "s3://b?ca=/does/not/exist",
            "s3://b?ca=/dev/null",
            "s3://b?secret_access_key=x",
            &long,
        ] {
            let Err(StoreError::Broken(why)) = Settings::parse(url, &FORM) else {
                panic!("{url} was taken");
            };
            let why = why.to_string();
            assert!(why.contains("expected"), "{url}: {why}");
            assert!(!why.contains("hunter2"), "{why}");
        }
    }
}
