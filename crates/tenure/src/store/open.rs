//! From a URL to a store.

#[cfg(feature = "sqlite")]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use super::Store;
#[cfg(feature = "sqlite")]
use crate::drive;
use crate::error::StoreError;
use crate::small;

/// Schemes of stores that are planned and not in this version.
const PLANNED: &[&str] = &[
    "mysql", "file", "s3", "gs", "az", "nats", "redis", "consul", "k8s",
];

/// Opens the store that `url` names:
///
/// * `memory:` registers in this process;
/// * `sqlite:///path/to.db` a file on this machine;
/// * `postgres://user:password@host:5432/database` a PostgreSQL server, with
///   the options of `docs/reference/stores.md` in the query string;
/// * `etcd://host:2379,host:2379` the servers of an etcd cluster, with its
///   options there too.
/// * `tenure://h1:7400,h2:7400,h3:7400` a cluster of `tenure serve`.
///
/// It can be awaited on any executor. A file is opened; a server is only
/// connected to by the first call, so that one that is away for the moment
/// keeps nobody from starting.
///
/// # Errors
/// [`StoreError::Broken`] if the URL is wrong or a person must do something
/// about the file first, [`StoreError::Unavailable`] if the file is locked or
/// its disk full.
pub async fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    opened(url, Missing::Made).await
}

/// Opens the store that `url` names, and makes nothing: where a SQLite file
/// or a table of PostgreSQL is missing, calls fail as unavailable until
/// somebody has made it. To look at what there is; a SQLite file may be one
/// that this user may only read.
///
/// # Errors
/// [`StoreError::Broken`] if the URL is wrong.
pub async fn open_existing(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    opened(url, Missing::Missed).await
}

/// What becomes of a store that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    allow(dead_code, reason = "other stores are never missing")
)]
enum Missing {
    Made,
    Missed,
}

#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    allow(unused_variables, reason = "other stores are never missing")
)]
async fn opened(url: &str, missing: Missing) -> Result<Arc<dyn Store>, StoreError> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" if rest.is_empty() => Ok(Arc::new(super::Memory::new())),
        #[cfg(feature = "sqlite")]
        "sqlite" => open_sqlite(rest, missing).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(match missing {
            Missing::Made => super::Postgres::new(url)?,
            Missing::Missed => super::Postgres::existing(url)?,
        })),
        #[cfg(feature = "etcd")]
        "etcd" => Ok(Arc::new(super::Etcd::new(url)?)),
        #[cfg(feature = "cluster")]
        "tenure" => Ok(Arc::new(super::Tenure::new(url)?)),
        _ => Err(unknown(url, scheme)),
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(rest: &str, missing: Missing) -> Result<Arc<dyn Store>, StoreError> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let (path, mode) = match path.split_once("?mode=") {
        Some((path, mode)) => (path, super::FileMode::parse(mode)?),
        None => (path, super::FileMode::default()),
    };
    if path.is_empty() || path.contains('?') {
        return Err(StoreError::broken(format!(
            "expected sqlite:///path/to/file.db, with no option but mode=, found sqlite:{rest}"
        )));
    }
    // Opening waits for the disk; not on the caller's executor, which need not
    // be tokio's either.
    let path = PathBuf::from(path);
    let opening = drive::background().spawn_blocking(move || match missing {
        Missing::Made => {
            make_default_directory(&path)?;
            super::Sqlite::open_with(path, mode)
        }
        Missing::Missed => super::Sqlite::existing(path),
    });
    let opened = opening.await;
    Ok(Arc::new(opened.map_err(StoreError::unavailable)??))
}

/// Schemes that a build may lack, and the feature that brings each.
const OPTIONAL: &[(&str, &str, bool)] = &[
    ("sqlite", "sqlite", cfg!(feature = "sqlite")),
    ("postgres", "postgres", cfg!(feature = "postgres")),
    ("postgresql", "postgres", cfg!(feature = "postgres")),
    ("etcd", "etcd", cfg!(feature = "etcd")),
    ("tenure", "tenure", cfg!(feature = "cluster")),
];

fn unknown(url: &str, scheme: &str) -> StoreError {
    let known = [
        "memory:",
        "sqlite:///path",
        "postgres://user@host/database",
        "etcd://host:2379",
        "tenure://host:port,host:port",
    ];
    let known = known.join(", ");
    let lacking = |(name, _, built): &&(&str, &str, bool)| *name == scheme && !built;
    if let Some((_, feature, _)) = OPTIONAL.iter().find(lacking) {
        return StoreError::broken(format!(
            "expected a build with the store {scheme}:, found one without; build tenure with \
             `--features {feature}` (or `--features full`)"
        ));
    }
    if PLANNED.contains(&scheme) {
        return StoreError::broken(format!(
            "expected one of {known}, found {scheme}:, which this version does not have yet"
        ));
    }
    if url.contains(':') {
        StoreError::broken(format!(
            "expected a store URL, one of {known}, found the unknown scheme {scheme:?}"
        ))
    } else {
        StoreError::broken(format!(
            "expected a store URL, one of {known}, found {url:?}"
        ))
    }
}

/// The store for those who name none: a SQLite file in the user's state
/// directory, which coordinates the processes of this user on this machine.
/// Other users, and those with other variables, have another. Makes nothing.
///
/// # Errors
/// [`StoreError::Broken`] if there is no such directory.
pub fn default_url() -> Result<String, StoreError> {
    let path = default_path().ok_or_else(|| {
        StoreError::broken(
            "expected --store, $TENURE_STORE, or a home directory for the default store, found \
             none of them",
        )
    })?;
    Ok(format!("sqlite://{}", path.display()))
}

fn default_path() -> Option<PathBuf> {
    small::state_home().map(|state| state.join("tenure/tenure.db"))
}

/// Makes the directory of the default store, before the store is made there.
#[cfg(feature = "sqlite")]
fn make_default_directory(path: &Path) -> Result<(), StoreError> {
    let (Some(directory), true) = (path.parent(), default_path().as_deref() == Some(path)) else {
        return Ok(());
    };
    std::fs::create_dir_all(directory).map_err(|error| {
        StoreError::broken(format!(
            "expected to make {} for the default store: {error}; name another with --store",
            directory.display()
        ))
    })
}
