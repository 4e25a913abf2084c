//! The URL: which directory, who else may use it, and on what kind of file system.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::StoreError;
use crate::store::{FileMode, url_options};

/// How often to look where the kernel does not tell of changes.
const POLL: Duration = Duration::from_millis(200);

/// What a URL says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Settings {
    pub(super) path: PathBuf,
    /// Who may use what is made here.
    pub(super) mode: FileMode,
    /// A cluster file system will do.
    pub(super) on_cluster: bool,
    /// How often to look where the kernel does not tell of changes.
    pub(super) poll: Duration,
}

fn wrong(found: impl fmt::Display) -> StoreError {
    StoreError::broken(format!(
        "expected file:///path/to/directory, perhaps with ?mode=0640 or ?mode=0660, \
         filesystem=cluster and poll=200ms, found {found}"
    ))
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url.strip_prefix("file:").unwrap_or(url);
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = place.strip_prefix("//").unwrap_or(place);
        if place.starts_with("//") && !path.starts_with('/') {
            return Err(wrong(
                "two slashes, which make a host of what is behind them: put three before a path \
                 from the root",
            ));
        }
        let path = unescape(path)?;
        if path.is_empty() {
            return Err(wrong("no path"));
        }
        let (mut mode, mut on_cluster, mut poll) = (FileMode::default(), false, POLL);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescape(value)?;
            match name {
                "mode" => mode = FileMode::parse(&value)?,
                "poll" => poll = url_options::poll(&value)?,
                "filesystem" => on_cluster = on_cluster_filesystem(&value)?,
                _ => return Err(wrong(format_args!("the unknown option {name:?}"))),
            }
        }
        // Where the process was when it began is where it looks later.
        let path = std::path::absolute(path).map_err(StoreError::broken)?;
        Ok(Self {
            path,
            mode,
            on_cluster,
            poll,
        })
    }
}

fn on_cluster_filesystem(value: &str) -> Result<bool, StoreError> {
    match value {
        "cluster" => Ok(true),
        "local" => Ok(false),
        _ => Err(StoreError::broken(format!(
            "filesystem=: expected local or cluster, found {value:?}"
        ))),
    }
}

/// Text in which `%` and two hexadecimal digits stand for a byte.
fn unescape(text: &str) -> Result<String, StoreError> {
    url_options::unescape(text).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_url_names_a_directory_and_who_may_use_it() {
        let plain = Settings::parse("file:///var/lib/tenure").expect("settings");
        assert_eq!(plain.path, Path::new("/var/lib/tenure"));
        assert_eq!(
            (plain.mode, plain.on_cluster, plain.poll),
            (FileMode::Owner, false, POLL)
        );
        let url = "file:///a%20b%3Fc?mode=0660&filesystem=cluster&poll=50ms";
        let all = Settings::parse(url).expect("settings");
        assert_eq!(all.path, Path::new("/a b?c"));
        assert_eq!(
            (all.mode, all.on_cluster, all.poll),
            (FileMode::GroupWrites, true, Duration::from_millis(50))
        );
        let here = Settings::parse("file:registers").expect("settings");
        assert!(here.path.is_absolute() && here.path.ends_with("registers"));
    }

    #[test]
    fn wrong_urls_are_refused_with_what_was_expected_and_found() {
        for (url, found) in [
            ("file:", "no path"),
            ("file://", "two slashes"),
            ("file://tmp/x", "two slashes"),
            ("file:///x?lock=off", "the unknown option \"lock\""),
            ("file:///x?mode=0777", "found mode=0777"),
            ("file:///x?filesystem=nfs", "expected local or cluster"),
            ("file:///x?poll=1ms", "poll=:"),
            ("file:///x%2", "a % without"),
        ] {
            let error = Settings::parse(url).expect_err(url).to_string();
            assert!(
                error.contains("expected") && error.contains(found),
                "{error}"
            );
        }
    }
}
