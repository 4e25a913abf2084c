//! All that greedy clients and strangers can do, at once, against three
//! servers with clients that behave: these are served, and their leaders stay.
//!
//! CI runs it for seconds and with the binary of the tests. The long form
//! judges a released binary by the times that are promised:
//!
//! ```sh
//! TENURE_ATTACKED=target/…/release/tenure TENURE_DENIAL_SECONDS=300 \
//!     cargo test -p tenure-cli --features full --test denial -- --nocapture
//! ```

#![allow(clippy::print_stderr, reason = "it tells what it measured")]

#[path = "../common/attacked.rs"]
mod attacked;
mod attacks;
#[path = "../common/mod.rs"]
mod common;
mod honest;

use std::fmt::Write as _;
use std::time::Duration;

use attacked::{attacked, growth, resident, runtime};
use common::servers::{Cluster, Heard, answer, call_with, objects};
use common::{TENURE, poll_until};
use honest::{Elections, Times};
use serde_json::Value;

const MIB: u64 = 1024 * 1024;
/// What a server may take beyond its state.
const MEMORY: u64 = 512 * MIB;
/// The registers that exist before, and that each watch begins with.
const REGISTERS: u64 = 12_800;

/// How long the attacks last, and what may come of them.
struct Form {
    lasts: Duration,
    election_timeout: &'static str,
    lease: Duration,
    /// In 99 of 100 cases.
    call: Duration,
    probe: Duration,
}

impl Form {
    /// A build for tests takes ten times as long for everything, and in CI
    /// other tests have run before.
    fn of_environment() -> Self {
        match std::env::var("TENURE_DENIAL_SECONDS") {
            Ok(seconds) => Self {
                lasts: Duration::from_secs(seconds.parse().expect("seconds")),
                election_timeout: "1s",
                lease: Duration::from_secs(5),
                call: Duration::from_millis(50),
                probe: Duration::from_millis(100),
            },
            Err(_) => Self {
                lasts: Duration::from_secs(10),
                election_timeout: "8s",
                lease: Duration::from_secs(20),
                call: Duration::from_secs(10),
                probe: Duration::from_secs(5),
            },
        }
    }
}

/// Three servers with tokens: some for those who attack, one for those who
/// behave, one for who operates.
struct Servers {
    cluster: Cluster,
    heard: Vec<Heard>,
}

impl Servers {
    fn start(form: &Form) -> Self {
        let mut cluster = Cluster::apart();
        let file = |name: &str| cluster.directory.path().join(name).display().to_string();
        let mut tokens = String::new();
        let greedy = "log = \"append\"\nwrite = [\"greedy/\"]\nread = [\"\"]";
        let honest = "log = \"append\"\nwrite = [\"honest/\"]\ncampaign = [\"denial-\"]";
        let greedy = attacks::TOKENS.map(|it| (it, greedy));
        let others = [("honest", honest), ("operator", "admin = true")];
        for (name, rights) in greedy.into_iter().chain(others) {
            let sha256 = tenure_server::fingerprint(name);
            writeln!(tokens, "[tokens.{name}]\nsha256 = \"{sha256}\"\n{rights}").expect("text");
            std::fs::write(file(name), name).expect("written");
        }
        std::fs::write(file("tokens"), tokens).expect("written");
        cluster.args = ["--election-timeout", form.election_timeout, "--tokens"]
            .map(str::to_owned)
            .into();
        cluster.args.push(file("tokens"));
        let start = |id| Heard::start(cluster.loud(&attacked(), id));
        let heard = (1..=3).map(start).collect();
        let servers = Self { cluster, heard };
        poll_until(common::servers::SOON, || servers.leader()).expect("a leader");
        servers
    }

    fn url(&self, token: &str) -> String {
        let file = self.cluster.directory.path().join(token);
        format!("{}?token_file={}", self.cluster.url(), file.display())
    }

    fn status(&self) -> Vec<Value> {
        objects(&["status", "--json", "--store", &self.url("operator")])
    }

    /// Which server leads, from 0, and in which term.
    fn leader(&self) -> Option<(usize, u64)> {
        let status = self.status();
        let leader = status.iter().find(|it| it["role"] == "leader")?;
        let id = usize::try_from(leader["id"].as_u64()?).ok()?;
        Some((id - 1, leader["term"].as_u64()?))
    }

    /// What the servers have said, and why they closed connections, where something
    /// else came than expected.
    fn said(&self) -> String {
        let mut all = String::new();
        for (heard, client) in self.heard.iter().zip(&self.cluster.clients) {
            let operator = "Authorization: Bearer operator\r\n";
            let metrics = answer(call_with(client, "GET /metrics", operator, ""));
            let closed = metrics.lines().filter(|it| it.contains("_closed_total{"));
            let said = heard.all();
            let lines = said.iter().map(String::as_str).chain(closed);
            lines.for_each(|it| writeln!(all, "{it}").expect("text"));
        }
        all
    }
}

#[test]
fn nobody_who_behaves_suffers_from_all_attacks_at_once() {
    let form = Form::of_environment();
    attacks::open_files();
    let servers = Servers::start(&form);
    let (leader, term) = servers.leader().expect("a leader");
    let clients = &servers.cluster.clients;
    let calm = runtime();
    calm.block_on(honest::prepare(&servers.url("honest"), REGISTERS));
    let before: Vec<_> = servers.heard.iter().map(|it| resident(it.id())).collect();

    let elections = calm.block_on(Elections::start(&servers.url("honest"), form.lease));
    let calls = calm.block_on(honest::Calls::start(&servers.url("honest")));
    let probes = honest::Probes::start(clients);
    // Without an attack.
    std::thread::sleep(form.lasts / 10);
    let unharmed = [calls.times(), probes.times()].map(Times::take);

    let peers: Vec<_> = servers.cluster.peers.split(',').collect();
    let peers: Vec<_> = peers.iter().filter_map(|it| it.split_once('=')).collect();
    let peers: Vec<_> = peers.iter().map(|(_, it)| (*it).to_owned()).collect();
    let attacking = attacks::Attacks::start((clients, &peers), leader, form.lasts);
    let made = attacking.end();
    let [called, probed] = [calls.times(), probes.times()].map(Times::take);
    let lost = elections.lost();
    drop((calls, probes));
    let grew = servers.heard.iter().zip(&before);
    let grew: Vec<_> = grew
        .map(|(it, before)| growth(it.id(), *before) / MIB)
        .collect();
    let after = servers.leader();

    eprintln!("attacks: {made}");
    eprintln!("before them: calls {}, probes {}", unharmed[0], unharmed[1]);
    eprintln!("under them: calls {called}, probes {probed}");
    eprintln!("elections lost: {lost}; memory beyond before: {grew:?} MiB");
    eprintln!("leader and term: {:?}, then {after:?}", (leader, term));
    let holds = after == Some((leader, term))
        && lost == 0
        && called.failed() + probed.failed() == 0
        && grew.iter().all(|it| it * MIB < MEMORY)
        && called.worst_of_100() < form.call
        && probed.worst_of_100() < form.probe;
    assert!(holds, "the servers said: {}", servers.said());
    drop(elections);
    assert!(attacked() != TENURE || made.all_were_tried(), "{made}");
}
