//! What was meant: a file, below the environment, below the flags.
//!
//! The file is TOML:
//!
//! ```toml
//! store = "postgres://db/app"
//! token-file = "/etc/app/token"   # for tenure://
//! log = "json"
//!
//! [run]                # for every election
//! lease = "10s"
//! name = "web-1"
//!
//! [elections.payroll]  # for this one; beats [run]
//! lease = "30s"
//!
//! [serve]              # for `tenure serve`, by the names of its flags
//! id = 1
//! peers = ["1=10.0.0.1:7500", "2=10.0.0.2:7500", "3=10.0.0.3:7500"]
//! tokens = "/etc/tenure/tokens.toml"
//! ```

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tenure::core::time::Drift;
use tenure::election::Priority;
use tenure::store::{Registry, Store};
use tenure::{Election, StoreError, election};

use crate::args::{self, LogFormat, Restart};
use crate::failure::{Failure, store_failure, usage};
use crate::guard;
use crate::settings_values::{self, DRIFT, DURATION};

/// A settings file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default, deserialize_with = "settings_values::store")]
    store: Option<String>,
    #[serde(rename = "token-file")]
    token_file: Option<PathBuf>,
    pub(crate) log: Option<LogFormat>,
    #[serde(default, deserialize_with = "settings_values::duration")]
    timeout: Option<Duration>,
    /// What `tenure serve` takes, by the names of its flags.
    #[cfg(feature = "tenure")]
    #[serde(default)]
    pub(crate) serve: args::Serve,
    #[serde(default)]
    run: RunFile,
    #[serde(default)]
    elections: BTreeMap<String, RunFile>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RunFile {
    #[serde(default, deserialize_with = "settings_values::duration")]
    lease: Option<Duration>,
    #[serde(default, deserialize_with = "settings_values::duration")]
    interval: Option<Duration>,
    #[serde(default, deserialize_with = "settings_values::duration")]
    grace: Option<Duration>,
    #[serde(default, deserialize_with = "settings_values::duration")]
    kill_margin: Option<Duration>,
    #[serde(default, deserialize_with = "settings_values::duration")]
    max_clock_skew: Option<Duration>,
    #[serde(default, deserialize_with = "settings_values::drift")]
    drift: Option<Drift>,
    name: Option<String>,
    #[serde(default)]
    advertise: Vec<String>,
    #[serde(default, deserialize_with = "settings_values::priority")]
    priority: Option<Priority>,
    #[serde(default)]
    with: With,
    restart: Option<Restart>,
}

/// The elections of `with`: a text as the flag has it, or a list of names.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected names of elections, as \"a,b\" or as [\"a\", \"b\"]"
)]
enum With {
    Text(String),
    List(Vec<String>),
}

impl Default for With {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl With {
    fn elections(&self) -> Vec<String> {
        match self {
            Self::Text(text) => text.split(',').map(str::to_owned).collect(),
            Self::List(names) => names.clone(),
        }
    }
}

impl File {
    /// Reads the file, if one was named.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = tenure::small::read_text(path)
            .map_err(|error| usage(format!("--config {}: {error}", path.display())))?;
        parse(&text).map_err(|why| usage(format!("--config {}: {why}", path.display())))
    }
}

/// What a file of settings says, or what is wrong with it: without a value
/// that is in it, since the wrong file may hold a secret.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text)
        .map_err(|error| tenure::small::misread(text, error.span(), error.message()))
}

/// The store's URL, if one was named.
pub(crate) fn given_store(common: &args::Common, file: &File) -> Option<String> {
    let url = common.store.clone().or_else(|| file.store.clone())?;
    Some(completed(url, common, file))
}

/// A store's URL with what options and the file of settings say of all stores: the
/// token's file and the format.
pub(crate) fn completed(url: String, common: &args::Common, file: &File) -> String {
    let token = common.token_file.as_ref().or(file.token_file.as_ref());
    let url = with_format(url, common);
    match token {
        Some(token) => with_token(url, token),
        None => url,
    }
}

/// A URL with the format that `--format` asks for.
fn with_format(url: String, common: &args::Common) -> String {
    let Some(format) = &common.format else {
        return url;
    };
    let option = format!("format={format}");
    // CMD of `tenure run` has the variable, and a URL in which it stands already. The
    // store refuses a URL that names two formats.
    if options(&url).any(|found| found == option) {
        return url;
    }
    and_option(&url, &option)
}

/// A URL that names the token's file too, if it is of a store that has use
/// for one and names none.
fn with_token(url: String, token: &Path) -> String {
    if !url.starts_with("tenure://") {
        return url;
    }
    let mut escaped = String::new();
    for byte in token.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
            escaped.push(char::from(*byte));
        } else {
            escaped.push_str(&format!("%{byte:02x}"));
        }
    }
    with_option(url, "token_file=", &escaped)
}

/// The format whose candidates judge by the calendar, as URLs name it.
const JUDGED_BY_CALENDAR: &str = "format=leaderelection-go";

/// Whether a URL has an option, such as `ttl=`.
fn has_option(url: &str, option: &str) -> bool {
    options(url).any(|it| it.starts_with(option))
}

fn options(url: &str) -> impl Iterator<Item = &str> {
    let options = url.split_once('?').map_or("", |(_, options)| options);
    options.split('&')
}

fn and_option(url: &str, option: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}{option}")
}

/// A URL with an option, if it has none of this name.
fn with_option(url: String, option: &str, value: &str) -> String {
    if has_option(&url, option) {
        return url;
    }
    and_option(&url, &format!("{option}{value}"))
}

/// A URL that says by how much clocks may differ, where a format needs it.
fn with_skew(url: String, skew: Option<Duration>) -> String {
    match skew {
        Some(skew) if has_option(&url, JUDGED_BY_CALENDAR) => {
            let millis = skew.as_nanos().div_ceil(1_000_000);
            with_option(url, "max_clock_skew=", &format!("{millis}ms"))
        }
        _ => url,
    }
}

/// The store's URL.
pub(crate) fn store_url(common: &args::Common, file: &File) -> Result<String, Failure> {
    match given_store(common, file) {
        Some(url) => Ok(url),
        None => Ok(with_format(
            tenure::store::default_url().map_err(store_failure)?,
            common,
        )),
    }
}

/// Opens the store that was meant, making it if it is missing, for a candidate that
/// was told by how much clocks may differ.
pub(crate) async fn open(
    common: &args::Common,
    file: &File,
    registry: &Registry,
    skew: Option<Duration>,
) -> Result<std::sync::Arc<dyn Store>, Failure> {
    let url = with_skew(store_url(common, file)?, skew);
    if given_store(common, file).is_none() {
        tracing::info!(
            "no --store: using {url}, which is this user's; for processes of other users, or \
             between machines, name one"
        );
    }
    let opened = registry.open(&url).await;
    opened.map_err(|error| not_opened(common, error))
}

/// Opens the store that was meant to look at it; makes nothing.
pub(crate) async fn open_existing(
    common: &args::Common,
    file: &File,
    registry: &Registry,
) -> Result<std::sync::Arc<dyn Store>, Failure> {
    let url = store_url(common, file)?;
    let opened = registry.open_existing(&url).await;
    opened.map_err(|error| not_opened(common, error))
}

/// Why a store was not opened. The format stands in the URL of the error, and not in
/// the one that was given.
fn not_opened(common: &args::Common, error: StoreError) -> Failure {
    match (&common.format, store_failure(error)) {
        (Some(format), Failure::Usage(why)) => Failure::Usage(format!("--format {format}: {why}")),
        (_, failure) => failure,
    }
}

/// How long to wait for a store's answer, if nothing else is said.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for a store's answer, if that is said.
pub(crate) fn timeout(common: &args::Common, file: &File) -> Result<Option<Duration>, Failure> {
    let typed = common.timeout.as_ref();
    let typed = typed.map(|text| duration("--timeout", text)).transpose()?;
    Ok(typed.or(file.timeout))
}

/// What `tenure run` does besides standing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlan {
    pub(crate) once: bool,
    pub(crate) restart: Restart,
}

/// By how much clocks may differ, as `tenure run` was told.
pub(crate) fn max_clock_skew(run: &args::Run, file: &File) -> Result<Option<Duration>, Failure> {
    let typed = run.times.max_clock_skew.as_ref();
    let named = file.elections.get(&run.election);
    let named = named.and_then(|named| named.max_clock_skew);
    let typed = typed.map(|text| duration("--max-clock-skew", text));
    Ok(typed.transpose()?.or(named).or(file.run.max_clock_skew))
}

/// A candidate as `tenure run` was asked to be one, with times that hold.
pub(crate) fn candidate(
    run: &args::Run,
    file: &File,
    store: std::sync::Arc<dyn Store>,
) -> Result<(election::Builder, RunPlan), Failure> {
    let named = file
        .elections
        .get(&run.election)
        .cloned()
        .unwrap_or_default();
    let builder = Election::builder(store, run.election.as_str());
    let mut builder = times(run, [&named, &file.run], builder)?;
    if let Some(skew) = max_clock_skew(run, file)? {
        builder = builder.max_clock_skew(skew);
    }
    let mut names = [&run.name, &named.name, &file.run.name].into_iter();
    if let Some(name) = names.find_map(Option::as_ref) {
        builder = builder.name(name.clone());
    }
    let others = [
        run.with.clone(),
        named.with.elections(),
        file.run.with.elections(),
    ];
    if let Some(others) = others.into_iter().find(|others| !others.is_empty()) {
        builder = others
            .into_iter()
            .fold(builder, election::Builder::affinity);
    }
    let addresses = [&run.advertise, &named.advertise, &file.run.advertise];
    if let Some(addresses) = addresses
        .into_iter()
        .find(|addresses| !addresses.is_empty())
    {
        builder = addresses
            .iter()
            .cloned()
            .fold(builder, election::Builder::address);
    }
    let typed = run.priority.as_deref().map(priority).transpose()?;
    if let Some(priority) = typed.or(named.priority).or(file.run.priority) {
        builder = builder.priority(priority);
    }
    check_margin(&builder)?;
    let restart = run
        .restart
        .or(named.restart)
        .or(file.run.restart)
        .unwrap_or(Restart::Always);
    Ok((
        builder,
        RunPlan {
            once: run.once,
            restart,
        },
    ))
}

/// Refuses times that do not hold, and a kill margin that a hung guardian
/// would use up: a second command could start before the first is killed.
fn check_margin(builder: &election::Builder) -> Result<(), Failure> {
    let config = builder.config().map_err(|error| usage(error.to_string()))?;
    let (margin, least, slack) = (config.kill_margin, guard::MARGIN_MIN, guard::SLACK);
    if margin >= least {
        return Ok(());
    }
    Err(usage(format!(
        "expected a kill margin >= {least:?} ({slack:?} until a hung guardian is killed + \
         {:?} for the killing), found {margin:?}: lengthen --kill-margin, or leave it out",
        least.saturating_sub(slack)
    )))
}

/// One time of a file's table.
type Field = fn(&RunFile) -> Option<Duration>;

/// The times that were typed or are in the file; of the tables of the file the first beats the
/// second.
fn times(
    run: &args::Run,
    files: [&RunFile; 2],
    mut builder: election::Builder,
) -> Result<election::Builder, Failure> {
    let typed = &run.times;
    let time = |flag: &str, typed: &Option<String>, pick: Field| {
        let typed = typed
            .as_ref()
            .map(|text| duration(flag, text))
            .transpose()?;
        Ok::<_, Failure>(typed.or_else(|| files.into_iter().find_map(pick)))
    };
    if let Some(lease) = time("--lease", &typed.lease, |file| file.lease)? {
        builder = builder.lease(lease);
    }
    if let Some(interval) = time("--interval", &typed.interval, |file| file.interval)? {
        builder = builder.interval(interval);
    }
    if let Some(grace) = time("--grace", &typed.grace, |file| file.grace)? {
        builder = builder.grace(grace);
    }
    if let Some(margin) = time("--kill-margin", &typed.kill_margin, |file| file.kill_margin)? {
        builder = builder.kill_margin(margin);
    }
    let typed = typed.drift.as_deref().map(drift).transpose()?;
    if let Some(drift) = typed.or_else(|| files.into_iter().find_map(|file| file.drift)) {
        builder = builder.drift(drift);
    }
    Ok(builder)
}

fn priority(text: &str) -> Result<Priority, Failure> {
    let parsed = text.parse().ok().and_then(Priority::new);
    parsed.ok_or_else(|| usage(format!("--priority: expected 0 to 10, found {text:?}")))
}

/// A rate as people write it, in percent or parts per million.
pub(crate) fn drift(text: &str) -> Result<Drift, Failure> {
    settings_values::parsed_drift(text)
        .ok_or_else(|| usage(format!("--drift: expected {DRIFT}, found {text:?}")))
}

/// A duration as people write it.
pub(crate) fn duration(flag: &str, text: &str) -> Result<Duration, Failure> {
    settings_values::parsed_duration(text)
        .map_err(|why| usage(format!("{flag}: expected {DURATION}, found {text:?}{why}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{File, drift, parse, with_skew, with_token};

    #[test]
    fn a_mistake_in_the_file_is_told_by_its_place_and_without_the_value() {
        for (text, place) in [
            ("log = 'json'\ntimeout = 'hunter2'", "line 2, column 11: "),
            ("store = 'hunter2'", "line 1, column 9: "),
            ("[run]\nlease = 'hunter2'", "line 2, column 9: "),
            ("[run]\nkill-margin = '-hunter2'", "line 2, column 15: "),
            ("[run]\ndrift = 'hunter2'", "line 2, column 9: "),
            ("[run]\npriority = 111", "line 2, column 12: "),
            ("[elections.x]\ninterval = 'hunter2'", "line 2, column 12: "),
            #[cfg(feature = "tenure")]
            ("[serve]\nheartbeat = 'hunter2'", "line 2, column 13: "),
            #[cfg(feature = "tenure")]
            (
                "[serve]\npeers = ['1=h:1', 'hunter2']",
                "line 2, column 9: ",
            ),
        ] {
            let why = parse::<File>(text).expect_err(text);
            assert!(
                why.starts_with(place) && why.contains("expected "),
                "{text}: {why}"
            );
            assert!(
                !why.contains("hunter2") && !why.contains("111"),
                "{text}: {why}"
            );
        }
    }

    #[test]
    fn a_bound_on_clocks_is_part_of_the_url_of_a_format() {
        let skew = Some(Duration::from_micros(1_500_001));
        for (url, wanted) in [
            (
                "gs://b?format=leaderelection-go",
                "gs://b?format=leaderelection-go&max_clock_skew=1501ms",
            ),
            (
                "gs://b?max_clock_skew=2s&format=leaderelection-go",
                "gs://b?max_clock_skew=2s&format=leaderelection-go",
            ),
            ("gs://b", "gs://b"),
        ] {
            assert_eq!(with_skew(url.to_owned(), skew), wanted);
            assert_eq!(with_skew(url.to_owned(), None), url);
        }
    }

    #[test]
    fn the_token_of_a_client_is_part_of_the_url() {
        let path = std::path::Path::new("/run/my token&");
        for (url, wanted) in [
            ("tenure://a:1", "tenure://a:1?token_file=/run/my%20token%26"),
            (
                "tenure://a:1?ttl=5s",
                "tenure://a:1?ttl=5s&token_file=/run/my%20token%26",
            ),
            ("tenure://a:1?token_file=x", "tenure://a:1?token_file=x"),
            ("sqlite:///x.db", "sqlite:///x.db"),
        ] {
            assert_eq!(with_token(url.to_owned(), path), wanted);
        }
    }

    #[test]
    fn rates_are_percent_or_parts_per_million() {
        for (text, ppm) in [
            ("1%", 10_000),
            ("10 %", 100_000),
            ("0.05%", 500),
            ("0.0001%", 1),
            ("200ppm", 200),
            ("0ppm", 0),
        ] {
            assert_eq!(drift(text).expect(text).ppm(), ppm, "{text}");
        }
        for text in [
            "", "%", "1", "ppm", "-1%", "10.1%", "0.00001%", "1.5ppm", "1e2ppm",
        ] {
            assert!(drift(text).is_err(), "{text}");
        }
    }
}
