//! From a URL to a store: which schemes there are, and what opens each.

use std::collections::BTreeMap;
use std::fmt;
#[cfg(feature = "sqlite")]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "sqlite")]
use super::heartbeats::Options as Heartbeats;
use super::{BoxFuture, Store};
#[cfg(feature = "sqlite")]
use crate::drive;
use crate::error::StoreError;
use crate::small;

/// Opens the store that `url` names:
///
/// * `memory:` registers in this process;
/// * `sqlite:///path/to.db` a file on this machine;
/// * `file:///path/to/directory` a directory on this machine, with a file for each
///   register;
/// * `postgres://user:password@host:5432/database` a PostgreSQL server, with
///   the options of `docs/reference/stores.md` in the query string;
/// * `etcd://host:2379,host:2379` the servers of an etcd cluster, with its
///   options there too.
/// * `redis://user:password@host:6379` a server of Redis or Valkey, or by
///   `redis+sentinel://host,host/name` the one that sentinels name; `rediss` with
///   TLS;
/// * `nats://host:4222,host/bucket` a bucket of NATS JetStream;
/// * `consul://host:8500,host` the keys of a datacenter of Consul;
/// * `kubernetes://` Leases and ConfigMaps in a namespace of the cluster that this
///   runs in, or of another (`?kubeconfig=…`, `kubernetes://host:6443/namespace`);
/// * `mysql://user@host:3306,host2/database` servers of MySQL or MariaDB, with
///   theirs.
/// * `s3://bucket/prefix` objects in a bucket of S3, or of a server that speaks its
///   protocol (`?endpoint=…`);
/// * `az://container/prefix` objects in a container of Azure's Blob service;
/// * `gs://bucket/prefix` objects in a bucket of Google Cloud Storage;
/// * `tenure://h1:7400,h2:7400,h3:7400` a cluster of `tenure serve`.
///
/// It can be awaited on any executor. A file is opened; a server is only
/// connected to by the first call, so that one that is away for the moment
/// keeps nobody from starting. A [`Registry`] opens stores of other schemes too.
///
/// # Errors
/// [`StoreError::Broken`] if the URL is wrong or a person must do something
/// about the file first, [`StoreError::Unavailable`] if the file is locked or
/// its disk full.
pub async fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    Registry::new().open(url).await
}

/// Opens the store that `url` names, and makes nothing: where a SQLite file
/// or a table of PostgreSQL is missing, calls fail as unavailable until
/// somebody has made it. To look at what there is; a SQLite file may be one
/// that this user may only read.
///
/// # Errors
/// [`StoreError::Broken`] if the URL is wrong.
pub async fn open_existing(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    Registry::new().open_existing(url).await
}

/// What opening a store does where there is none yet: no file, no table, no
/// bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfMissing {
    /// Makes it, at the latest with the first write.
    Create,
    /// Makes nothing: calls fail as unavailable until somebody has made it.
    Fail,
}

/// What opening a store gives.
pub type Opened = Result<Arc<dyn Store>, StoreError>;

/// Opens the stores of one scheme.
type Opener = dyn Fn(&str, IfMissing) -> BoxFuture<'static, Opened> + Send + Sync;

/// The stores that can be opened, by the schemes of their URLs: those of this
/// build, and those that a program adds.
///
/// ```
/// # use std::sync::Arc;
/// # use tenure::store::{Memory, Registry, Store};
/// # async fn demo() -> Result<(), tenure::StoreError> {
/// let registry = Registry::new().with("ours", "ours://host", |_url, _if_missing| {
///     Box::pin(async { Ok(Arc::new(Memory::new()) as Arc<dyn Store>) })
/// });
/// let store = registry.open("ours://host").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Registry {
    schemes: BTreeMap<&'static str, Scheme>,
}

#[derive(Clone)]
struct Scheme {
    /// A URL, as errors show it.
    example: &'static str,
    opener: Arc<Opener>,
}

impl Registry {
    /// The stores of this build.
    #[must_use]
    pub fn new() -> Self {
        let empty = Self {
            schemes: BTreeMap::new(),
        };
        let all = empty.with("memory", "memory:", |url, _| {
            let known = url == "memory:";
            let url = url.to_owned();
            Box::pin(async move {
                if !known {
                    let found = format!("expected memory: and nothing after it, found {url}");
                    return Err(StoreError::broken(found));
                }
                Ok(Arc::new(super::Memory::new()) as Arc<dyn Store>)
            })
        });
        #[cfg(feature = "sqlite")]
        let all = all.with("sqlite", "sqlite:///path", |url, if_missing| {
            let rest = url.strip_prefix("sqlite:").unwrap_or(url).to_owned();
            Box::pin(async move { open_sqlite(&rest, if_missing).await })
        });
        #[cfg(feature = "file")]
        let all = all.with("file", "file:///path/to/directory", |url, if_missing| {
            Box::pin(open_file(url.to_owned(), if_missing))
        });
        #[cfg(feature = "postgres")]
        let all = {
            let opener = |url: &str, if_missing| -> BoxFuture<'static, Opened> {
                let opened = super::Postgres::open(url, if_missing == IfMissing::Create);
                Box::pin(std::future::ready(opened))
            };
            let example = "postgres://user@host/database";
            let all = all.with("postgres", example, opener);
            all.with("postgresql", example, opener)
        };
        #[cfg(feature = "etcd")]
        let all = all.with("etcd", "etcd://host:2379", |url, _| {
            ready(super::Etcd::new(url))
        });
        #[cfg(feature = "redis")]
        let all = super::redis::SCHEMES.into_iter().fold(all, |all, scheme| {
            all.with(scheme, "redis://host:6379", |url, _| {
                ready(super::Redis::store(url))
            })
        });
        #[cfg(feature = "mysql")]
        let all = all.with("mysql", "mysql://user@host/database", |url, if_missing| {
            let opened = super::mysql::opener::open(url, if_missing == IfMissing::Create);
            Box::pin(std::future::ready(opened)) as BoxFuture<'static, Opened>
        });
        #[cfg(feature = "nats")]
        let all = all.with("nats", "nats://host:4222/bucket", |url, if_missing| {
            ready(super::nats::open(url, if_missing == IfMissing::Create))
        });
        #[cfg(feature = "consul")]
        let all = all.with("consul", "consul://host:8500", |url, _| {
            ready(super::consul::open(url))
        });
        #[cfg(feature = "kubernetes")]
        let all = all.with("kubernetes", "kubernetes://", |url, _| {
            ready(super::kubernetes::open(url))
        });
        #[cfg(any(feature = "azure", feature = "gcs", feature = "s3"))]
        let all = all.with_object_stores();
        #[cfg(feature = "cluster")]
        let all = all.with("tenure", "tenure://host:port,host:port", |url, _| {
            ready(super::Tenure::new(url))
        });
        all
    }

    #[cfg(any(feature = "azure", feature = "gcs", feature = "s3"))]
    fn with_object_stores(self) -> Self {
        #[cfg(feature = "s3")]
        let all = self.with("s3", "s3://bucket/prefix", |url, _| {
            ready(super::object::open_s3(url))
        });
        #[cfg(not(feature = "s3"))]
        let all = self;
        #[cfg(feature = "azure")]
        let all = all.with("az", "az://container/prefix", |url, _| {
            ready(super::object::open_az(url))
        });
        #[cfg(feature = "gcs")]
        let all = super::object::GCS_SCHEMES
            .into_iter()
            .fold(all, |all, scheme| {
                all.with(scheme, "gs://bucket/prefix", |url, _| {
                    Box::pin(std::future::ready(super::object::open_gcs(url)))
                })
            });
        all
    }

    /// Adds the stores of a scheme, or replaces them. `example` is a URL of such
    /// a store, for errors. `opener` gets the whole URL; it checks it, and
    /// leaves connecting to the first call.
    #[must_use]
    pub fn with(
        mut self,
        scheme: &'static str,
        example: &'static str,
        opener: impl Fn(&str, IfMissing) -> BoxFuture<'static, Opened> + Send + Sync + 'static,
    ) -> Self {
        let opener: Arc<Opener> = Arc::new(opener);
        self.schemes.insert(scheme, Scheme { example, opener });
        self
    }

    /// Opens the store that `url` names, as [`open`] does.
    ///
    /// # Errors
    /// As of [`open`].
    pub async fn open(&self, url: &str) -> Opened {
        self.opened(url, IfMissing::Create).await
    }

    /// Opens the store that `url` names and makes nothing, as [`open_existing`]
    /// does.
    ///
    /// # Errors
    /// As of [`open_existing`].
    pub async fn open_existing(&self, url: &str) -> Opened {
        self.opened(url, IfMissing::Fail).await
    }

    async fn opened(&self, url: &str, if_missing: IfMissing) -> Opened {
        let found = url.split_once(':');
        match found.and_then(|(scheme, _)| self.schemes.get(scheme)) {
            Some(scheme) => {
                check_password(url)?;
                (scheme.opener)(url, if_missing).await
            }
            None => Err(self.unknown(url)),
        }
    }

    /// The error for a URL whose scheme is none of these.
    fn unknown(&self, url: &str) -> StoreError {
        let mut known: Vec<_> = self.schemes.values().map(|it| it.example).collect();
        known.dedup();
        let known = known.join(", ");
        // What is no URL may be the parameters of a connection, with a password.
        let is_plain = |text: &str| {
            text.bytes()
                .all(|it| it.is_ascii_alphanumeric() || b"+-./_".contains(&it))
        };
        let (scheme, is_url) = url
            .split_once(':')
            .map_or((url, false), |(scheme, _)| (scheme, true));
        if !is_plain(scheme) {
            return StoreError::broken(format!(
                "expected a store URL, one of {known}, found a text that does not begin with \
                 a scheme"
            ));
        }
        if !is_url {
            let advice = self.schemes.get(url);
            let advice = advice.map_or_else(String::new, |it| format!("; say {}", it.example));
            return StoreError::broken(format!(
                "expected a store URL, one of {known}, found {url:?}{advice}"
            ));
        }
        if let Some((_, feature)) = OPTIONAL.iter().find(|(name, _)| *name == scheme) {
            return StoreError::broken(format!(
                "expected a build with the store {scheme}:, found one without; build tenure with \
                 `--features {feature}` (or `--features full`)"
            ));
        }
        StoreError::broken(format!(
            "expected a store URL, one of {known}, found the unknown scheme {scheme:?}"
        ))
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.schemes.keys()).finish()
    }
}

/// Refuses a password that is no longer one where it ends: what comes behind would be
/// taken for a host or an option, and told of.
fn check_password(url: &str) -> Result<(), StoreError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok(());
    };
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let hosts = address.split('/').next().unwrap_or_default();
    let mut names = query.split('&').map(|it| it.split('=').next());
    // No store has such an option.
    let is_torn = names.any(|name| name.is_some_and(|it| it.contains('@')));
    if is_torn || (scheme.starts_with("postgres") && hosts.matches('@').count() > 1) {
        return Err(StoreError::broken(
            "expected one @ in the store's URL, behind the user and the password (where the store \
             has them), found another one, or one behind a question mark; in a password write @ \
             as %40, ? as %3F and / as %2F",
        ));
    }
    Ok(())
}

/// What opening gives that waits for nothing.
#[cfg(any(
    feature = "etcd",
    feature = "redis",
    feature = "nats",
    feature = "consul",
    feature = "kubernetes",
    feature = "cluster",
    feature = "s3",
    feature = "azure"
))]
fn ready(opened: Result<impl Store, StoreError>) -> BoxFuture<'static, Opened> {
    let opened = opened.map(|store| Arc::new(store) as Arc<dyn Store>);
    Box::pin(std::future::ready(opened))
}

/// Schemes that a build may lack, and the feature that brings each.
const OPTIONAL: &[(&str, &str)] = &[
    ("sqlite", "sqlite"),
    ("file", "file"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("etcd", "etcd"),
    ("mysql", "mysql"),
    ("nats", "nats"),
    ("consul", "consul"),
    ("kubernetes", "kubernetes"),
    ("s3", "s3"),
    ("az", "azure"),
    ("gs", "gcs"),
    ("gcs", "gcs"),
    ("tenure", "tenure"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+sentinel", "redis"),
    ("rediss+sentinel", "redis"),
];

#[cfg(feature = "file")]
async fn open_file(url: String, if_missing: IfMissing) -> Opened {
    let opened = super::file::open(&url, if_missing == IfMissing::Create).await?;
    Ok(Arc::new(opened))
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(rest: &str, if_missing: IfMissing) -> Result<Arc<dyn Store>, StoreError> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let (mut mode, mut heartbeats) = (super::FileMode::default(), Heartbeats::default());
    let mut known = !path.is_empty();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("mode", value) => mode = super::FileMode::parse(value)?,
            (key, value) => known &= heartbeats.take(key, value)?,
        }
    }
    if !known {
        return Err(StoreError::broken(format!(
            "expected sqlite:///path/to/file.db, with no options but mode= and format= (with it \
             table=, heartbeat_timeout=, expiry= and poll=), found sqlite:{rest}"
        )));
    }
    heartbeats.check()?;
    // Opening waits for the disk; not on the caller's executor, which need not
    // be tokio's either.
    let path = PathBuf::from(path);
    super::sqlite::refuse_memory(&path)?;
    if heartbeats.is_asked {
        let make = if_missing == IfMissing::Create;
        let opening = drive::background()
            .spawn_blocking(move || super::sqlite::heartbeats::open(path, mode, heartbeats, make));
        return Ok(Arc::new(opening.await.map_err(StoreError::unavailable)??));
    }
    let opening = drive::background().spawn_blocking(move || match if_missing {
        IfMissing::Create => {
            make_default_directory(&path)?;
            super::Sqlite::open_with(path, mode)
        }
        IfMissing::Fail => super::Sqlite::existing(path),
    });
    let opened = opening.await;
    Ok(Arc::new(opened.map_err(StoreError::unavailable)??))
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
    use std::os::unix::fs::DirBuilderExt as _;
    let (Some(directory), true) = (path.parent(), default_path().as_deref() == Some(path)) else {
        return Ok(());
    };
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(directory);
    made.map_err(|error| {
        StoreError::broken(format!(
            "expected to make {} for the default store: {error}; name another with --store",
            directory.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It may be the parameters of a connection.
    #[test]
    fn a_text_that_is_no_url_is_not_shown() {
        let registry = Registry::new();
        for text in [
            "host=127.0.0.1 password=hunter2",
            "host=[::1] password=hunter2",
            "u:hunter2@h/db",
        ] {
            let said = registry.unknown(text).to_string();
            let is_shown = said.contains("hunter2");
            assert!(said.contains("expected a store URL") && !is_shown, "{said}");
        }
        for name in ["/tmp/tenure.db", "pay"] {
            let said = registry.unknown(name).to_string();
            assert!(said.contains(name), "{said}");
        }
        let said = registry.unknown("memory").to_string();
        assert!(said.ends_with("found \"memory\"; say memory:"), "{said}");
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_database_of_sqlite_in_memory_is_refused_and_makes_no_file() {
        for url in [
            "sqlite::memory:",
            "sqlite://:memory:",
            "sqlite::memory:?format=hpc",
        ] {
            let refused = Registry::new().open(url).await.expect_err("no file");
            let said = refused.to_string();
            assert!(said.contains("the store memory:"), "{said}");
        }
        assert!(crate::store::Sqlite::open(":memory:").is_err());
        assert!(!Path::new(":memory:").exists());
    }

    #[test]
    fn a_password_that_is_torn_is_refused_and_not_shown() {
        for url in [
            "redis://u:pa?hunter2@h/0",
            "nats://u:pa?poll=1s&hunter2@h/0",
            "postgres://u:pa@hunter2@h/db",
            "postgresql://u:pa?hunter2@h/db",
            "consul://u:pa?hunter2@h:8500",
            "kubernetes://u:pa?hunter2@h/ns",
            "tenure://u:pa?hunter2@h:7400",
        ] {
            let refused = check_password(url).expect_err("a torn password");
            let said = refused.to_string();
            assert!(said.contains("%40") && !said.contains("hunter2"), "{said}");
        }
        for url in [
            "redis://u:p%3F@h/0?password_file=/run/credentials/tenure-run@a.service/p",
            "mysql://u:p@w@h/db",
            "kubernetes://?context=me@here",
            "sqlite:a@b?x@y",
            "sqlite://a@b?sync=x@y",
        ] {
            assert!(check_password(url).is_ok(), "{url}");
        }
    }
}
