//! Servers whose clock steps: an hour on, and an hour back. They are shown another
//! calendar by `clock.c`, which is compiled here and preloaded. (libfaketime would do
//! it, too, but for Redis, whose allocator looks at a clock before libfaketime is ready.)
//!
//! No rule of the default looks at that clock (`docs/design/election.md` §3): the leader
//! stays, and one that is cut off is followed by another after a lease, not an hour
//! later and not before. Where candidates are told to go by that clock a step on ends a
//! grant that lives, as the documents say, so only steps back are tried: a stamp that is
//! ahead of its clock is judged by silence.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tenure::clock;

use super::line::Line;
use super::mariadb::MariaDb;
use super::postgres::Postgres;
use super::redis::Redis;
use super::scene::{SOON, Scene, blocking, side_by_side};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/outages/clock.c");
const HOUR: i64 = 3_600;
/// By how much a step may be off, in seconds: what passes between two looks.
const SLACK: f64 = 120.0;

type Variables = Vec<(String, String)>;

/// A clock that a server is shown in place of the machine's calendar.
struct Clock {
    directory: tempfile::TempDir,
}

impl Clock {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // The server may run as another user.
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), mode).expect("a mode");
        let clock = Self { directory };
        clock.set(0);
        clock
    }

    /// So many seconds beside the machine's.
    fn set(&self, seconds: i64) {
        let (file, new) = (self.file(), self.directory.path().join("new"));
        fs::write(&new, format!("{seconds:+}\n")).expect("written");
        fs::rename(new, file).expect("in its place");
    }

    /// By how much it is off now.
    fn off(&self) -> i64 {
        let text = fs::read_to_string(self.file()).expect("a clock");
        text.trim().parse().expect("seconds")
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("clock")
    }

    /// What a server has to have in its environment.
    fn environment(&self) -> Variables {
        let library = self.directory.path().join("clock.so");
        let compiled = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .args([library.as_path(), Path::new(SOURCE)])
            .status();
        assert!(compiled.expect("a C compiler").success());
        let shown = |path: &Path| path.display().to_string();
        vec![
            ("LD_PRELOAD".to_owned(), shown(&library)),
            ("CLOCK_OFFSET".to_owned(), shown(&self.file())),
        ]
    }
}

/// A server that says what time it has.
trait Timed: Send {
    fn url(&self) -> String;
    fn address(&self) -> String;
    /// Seconds since 1970.
    fn now(&self) -> f64;
}

impl Timed for Postgres {
    fn url(&self) -> String {
        self.url()
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    fn now(&self) -> f64 {
        let said = self.sql("SELECT extract(epoch FROM clock_timestamp())");
        said.parse().expect("seconds")
    }
}

impl Timed for MariaDb {
    fn url(&self) -> String {
        self.url()
    }

    fn address(&self) -> String {
        self.host()
    }

    fn now(&self) -> f64 {
        let said = self.sql("SELECT UNIX_TIMESTAMP(SYSDATE(6))");
        said.parse().expect("seconds")
    }
}

impl Timed for Redis {
    fn url(&self) -> String {
        self.url()
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    fn now(&self) -> f64 {
        let said = self.cli(&["TIME"]);
        let seconds = said.lines().next().expect("seconds");
        seconds.parse().expect("seconds")
    }
}

type Start = fn(Variables) -> Box<dyn Timed>;

const STORES: [(&str, Start); 3] = [
    ("postgres", |variables| {
        Box::new(Postgres::start_in(variables))
    }),
    ("mysql", |variables| Box::new(MariaDb::start_in(variables))),
    ("redis", |variables| Box::new(Redis::start_in(variables))),
];

/// `option` is a part of the URL.
async fn goes_on_beside_a_clock_that_steps(
    store: &'static str,
    start: Start,
    option: &'static str,
    steps: &'static [i64],
) {
    let clock = Clock::new();
    let server = blocking(|| start(clock.environment()));
    let lines = [
        Line::before(server.address()).await,
        Line::before(server.address()).await,
    ];
    let [a, b] = lines
        .each_ref()
        .map(|line| line.url(&server.url(), &server.address()) + option);
    let scene = Scene::begin(format!("{store}{option}, a clock that steps"), [&a, &b]).await;
    scene.leads_above(0).await;
    for &step in steps {
        let (before, now) = blocking(|| {
            let before = server.now();
            clock.set(clock.off() + step);
            (before, server.now())
        });
        #[expect(clippy::cast_precision_loss, reason = "an hour")]
        let missed = now - before - step as f64;
        assert!(missed.abs() < SLACK, "{store}: from {before} to {now}");
        let stepped = clock::boot();
        let term = scene.leads_since(stepped).await;
        // Who leads now is cut off, and the other one has to judge.
        let leader = scene.ledger.past().leader().expect("a leader");
        let line = &lines[usize::from(leader == "b")];
        line.hold(true);
        let cut = clock::boot();
        let next = scene.leads_above(term).await;
        let took = clock::boot().since(cut).as_secs_f64();
        line.hold(false);
        println!(
            "{store}{option}, a step of {step} s: term {next} {took:.1} s after term {term} was cut"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_clock_of_the_server_that_steps_an_hour_each_way() {
    let default = STORES.into_iter().map(|(name, start)| {
        let steps = &[HOUR, -HOUR, -HOUR, HOUR];
        (
            name,
            goes_on_beside_a_clock_that_steps(name, start, "", steps),
        )
    });
    let by_clock = STORES.into_iter().map(|(name, start)| {
        let (option, steps) = ("?expiry=store-clock", &[-HOUR, -HOUR]);
        (
            name,
            goes_on_beside_a_clock_that_steps(name, start, option, steps),
        )
    });
    side_by_side(default.chain(by_clock)).await;
}

/// What the documents warn of, and what the ledger is for. The leader is cut off, so that
/// it does not renew its stamp; its lease runs on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_lead_by_a_clock_that_steps_on_and_the_ledger_notices() {
    let clock = Clock::new();
    let server = blocking(|| Redis::start_in(clock.environment()));
    let url = format!("{}?expiry=store-clock", server.url());
    let line = Line::before(server.address()).await;
    let cut = line.url(&url, &server.address());
    let mut scene = Scene::begin("a step on".to_owned(), [&cut, &cut]).await;
    scene.is_led().await;
    line.hold(true);
    clock.set(HOUR);
    scene.join("c", &url).await;
    let harm = scene.ledger.harm(SOON).await;
    assert!(harm.contains("c in term"), "{harm}");
}

/// A clock that is never looked at may step.
#[tokio::test]
async fn the_other_stores_look_at_no_clock_of_a_server() {
    for url in [
        "etcd://127.0.0.1:1",
        "nats://127.0.0.1:1",
        "s3://bucket/a?endpoint=http://127.0.0.1:1&region=r",
        "gs://bucket/a?endpoint=http://127.0.0.1:1",
        "consul://127.0.0.1:1",
        "kubernetes://127.0.0.1:1/n?tls=off",
    ] {
        let store = tenure::open(url).await;
        let clock = store.expect("no server is asked").features().clock;
        assert_eq!(clock, tenure::store::Clock::None, "{url}");
    }
}
