//! The stores that real processes share: private servers, files, a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::store::{Expect, Key, Stamp, Write, open};

#[cfg(feature = "nats")]
use super::nats;
use super::secrets::secret_file;
use super::{etcd, mariadb, memory_directory, objects, poll_until, postgres, redis, servers};

/// See the [module](self).
pub(crate) enum Shared {
    Sqlite(tempfile::TempDir),
    File(tempfile::TempDir),
    Postgres(Box<postgres::Postgres>),
    MariaDb(Box<mariadb::MariaDb>),
    Etcd(etcd::Etcd),
    Redis(Box<redis::Redis>),
    #[cfg(feature = "nats")]
    Nats(nats::Nats),
    /// SeaweedFS.
    S3(Box<objects::Server>),
    Cluster(servers::Cluster),
}

impl Shared {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(memory_directory())
    }

    pub(crate) fn directory() -> Self {
        Self::File(memory_directory())
    }

    pub(crate) fn postgres() -> Self {
        Self::Postgres(Box::new(postgres::Postgres::start()))
    }

    /// One that syncs what it acknowledges, as the documents ask for.
    pub(crate) fn mariadb() -> Self {
        let server = mariadb::MariaDb::start_with(&[
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-flush-method=fsync",
        ]);
        secret_file(&server.directory().join("password"), mariadb::PASSWORD);
        Self::MariaDb(Box::new(server))
    }

    /// So many servers of etcd.
    pub(crate) fn etcd(count: usize) -> Self {
        Self::Etcd(etcd::Etcd::start(count))
    }

    pub(crate) fn redis() -> Self {
        Self::Redis(Box::new(redis::Redis::start()))
    }

    /// So many servers of NATS.
    #[cfg(feature = "nats")]
    pub(crate) fn nats(count: usize) -> Self {
        Self::Nats(match count {
            1 => nats::Nats::start(),
            _ => nats::Nats::cluster(count),
        })
    }

    pub(crate) fn s3() -> Self {
        let server = objects::Server::seaweed();
        let text = "[default]\naws_access_key_id = tenure\naws_secret_access_key = tenure-secret\n";
        secret_file(&server.directory().join("credentials"), text);
        Self::S3(Box::new(server))
    }

    /// Three `tenure serve`.
    pub(crate) fn cluster() -> Self {
        Self::Cluster(servers::Cluster::start())
    }

    /// Without passwords, which are refused on a command line.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(_) => format!("sqlite://{}", self.file().display()),
            Self::File(_) => format!("file://{}", self.file().display()),
            Self::Postgres(server) => server.url_to_type(),
            Self::MariaDb(server) => {
                let file = server.directory().join("password");
                let url = server.url_without_password();
                format!("{url}?password_file={}", file.display())
            }
            Self::Etcd(servers) => servers.url(),
            Self::Redis(server) => server.url(),
            #[cfg(feature = "nats")]
            Self::Nats(servers) => servers.url(),
            // By default what is watched is looked at once a second, to save requests:
            // half of the leases that are used here.
            Self::S3(server) => format!(
                "s3://bucket/a?endpoint={}&credentials_file={}&poll=200ms",
                server.endpoint(),
                server.directory().join("credentials").display()
            ),
            Self::Cluster(servers) => servers.url(),
        }
    }

    /// The file of a SQLite store, or the directory of a store of files.
    pub(crate) fn file(&self) -> PathBuf {
        match self {
            Self::Sqlite(directory) => directory.path().join("tenure.db"),
            Self::File(directory) => directory.path().join("registers"),
            _ => panic!("{} is no file", self.url()),
        }
    }

    /// A directory on the disk that it uses.
    pub(crate) fn disk(&self) -> &Path {
        match self {
            Self::Sqlite(directory) | Self::File(directory) => directory.path(),
            Self::Postgres(server) => server.directory(),
            Self::MariaDb(server) => server.directory(),
            Self::Etcd(servers) => servers.directory(),
            Self::Redis(server) => server.directory(),
            #[cfg(feature = "nats")]
            Self::Nats(servers) => servers.directory(),
            Self::S3(server) => server.directory(),
            Self::Cluster(servers) => servers.directory.path(),
        }
    }

    /// Whether processes find the changes of others by looking.
    pub(crate) fn is_polled(&self) -> bool {
        match self {
            Self::MariaDb(_) | Self::Redis(_) | Self::S3(_) => true,
            #[cfg(feature = "nats")]
            Self::Nats(_) => true,
            _ => false,
        }
    }

    /// Servers of NATS have to elect a leader of the stream, and those of SeaweedFS to
    /// find each other.
    pub(crate) fn says_too_early_that_it_serves(&self) -> bool {
        match self {
            Self::S3(_) => true,
            #[cfg(feature = "nats")]
            Self::Nats(_) => true,
            _ => false,
        }
    }

    /// Waits until it takes a write, some time after its servers say that they serve.
    pub(crate) fn await_write(&self) {
        let url = self.url();
        let written = || block_on(write(&url)).then_some(());
        poll_until(Duration::from_secs(60), written).expect("a write");
    }
}

/// Writes a register that belongs to no election.
async fn write(url: &str) -> bool {
    let within = Duration::from_secs(2);
    let store = open(url).await.expect("a store");
    let key = Key::new("tries/write").expect("a key");
    let Ok(reading) = store.read(&key, within).await else {
        return false;
    };
    let held = reading.register.map(|held| held.version);
    let write = Write {
        key,
        expect: held.map_or(Expect::Absent, Expect::Version),
        value: (*b"tried").into(),
        stamp: Stamp::Now,
    };
    store.compare_and_swap(write, within).await.is_ok()
}

/// Calls of a library that waits, from a test that does not.
pub(crate) fn block_on<T>(calls: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(calls)
}
