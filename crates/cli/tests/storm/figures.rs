//! How long it takes until the workloads of a node that died, or was drained,
//! run elsewhere: three agents, a lease of 2 s, a cluster of three servers.
//!
//! A time ends with the first line that the workload writes on its new node,
//! so its start (bash) is part of it.

use std::time::Duration;

use super::common::{descendants, median, poll_until};
use super::fixture::{Agent, Fixture, PATIENCE};
use super::number;
use super::pressure::Pressure;
use super::stamps::now;

const LEASE: f64 = 2.0;
/// The lease, lengthened by the drift of 1 %, and half a second for the news,
/// the five round trips and the start of a workload. The successor lives, so no
/// node waits for a jitter. A node is killed after its last heartbeat.
const BOUND: f64 = LEASE * 1.01 + 0.5;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// How many times.
fn rounds() -> u64 {
    number("TENURE_TAKEOVERS").unwrap_or(2)
}

fn print(what: &str, figures: &mut [f64]) {
    if figures.is_empty() {
        return println!("{what}: never");
    }
    let middle = median(figures);
    let (least, most) = (figures[0], figures[figures.len() - 1]);
    println!(
        "{what}: median {:.0} ms, from {:.0} to {:.0} ms, over {}",
        middle * 1e3,
        least * 1e3,
        most * 1e3,
        figures.len()
    );
}

/// Has `one` have all workloads. `None` if the nodes were fenced meanwhile,
/// because the store did not answer for longer than so short a lease lets
/// them wait: then there is nothing to be measured.
fn deploy(fixture: &Fixture, agents: [&Agent; 3]) -> Option<()> {
    // Those that were fenced before are called as those that they are now.
    let settled = || {
        let nodes = fixture.ps().into_iter().filter(|it| it["type"] == "node");
        (nodes.count() == agents.len()).then_some(())
    };
    poll_until(PATIENCE, settled).expect("three nodes");
    let before = fences(agents);
    for name in NAMES {
        let command = fixture.stamps.command();
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let args = [&["deploy", name, "--node", "one", "--"], &command[..]].concat();
        let deployed = fixture.run(&args);
        if !deployed.status.success() && fences(agents) > before {
            return None;
        }
        let said = String::from_utf8_lossy(&deployed.stderr);
        assert!(deployed.status.success(), "{args:?}: {said}");
    }
    let there = || {
        let fenced = fences(agents) > before;
        let runs = |name: &&str| fixture.stamps.runs_on(name).as_deref() == Some("one");
        (fenced || NAMES.iter().all(runs)).then_some(!fenced)
    };
    let there = poll_until(PATIENCE, there).expect("they run on one");
    there.then_some(())
}

/// How often these were fenced so far.
fn fences(agents: [&Agent; 3]) -> usize {
    let fenced = |agent: &Agent| agent.log_text().matches("everything is ended").count();
    agents.into_iter().map(fenced).sum()
}

fn undeploy(fixture: &Fixture) {
    for name in NAMES {
        let gone = || {
            fixture.run(&["undeploy", name]);
            fixture.workload(name).is_none().then_some(())
        };
        poll_until(PATIENCE, gone).expect("it is gone");
    }
}

/// Takes note of a round that did not count; there must not be many.
fn lose(lost: &mut u64) {
    *lost += 1;
    println!("the store was away, and all nodes were fenced: once more");
    assert!(*lost <= rounds() + 3, "the store is away too often");
}

fn kills(store: &str, fixture: &Fixture) {
    let flags = ["--quorum", "2", "--lease", "2s"];
    let [mut one, two, three] = ["one", "two", "three"].map(|name| fixture.node(name, &flags));
    let (mut firsts, mut all, mut lost) = (Vec::new(), Vec::new(), 0);
    while (firsts.len() as u64) < rounds() {
        if deploy(fixture, [&one, &two, &three]).is_none() {
            lose(&mut lost);
            undeploy(fixture);
            continue;
        }
        let before = fences([&one, &two, &three]);
        let (killed, pressure) = (now(), Pressure::begin());
        one.kill_all();
        fixture.all_run(&NAMES, |node| node != "one");
        let late = pressure.allows();
        let mut took = NAMES.map(|name| fixture.stamps.last(name).expect("it runs").first - killed);
        took.sort_by(f64::total_cmp);
        if fences([&one, &two, &three]) > before {
            lose(&mut lost);
        } else {
            firsts.push(took[0]);
            all.push(took[NAMES.len() - 1]);
            assert!(
                took[NAMES.len() - 1] < LEASE * 1.01 + late,
                "{took:?}, and may be {late} s late"
            );
        }
        undeploy(fixture);
        one = fixture.node("one", &flags);
    }
    fixture.stamps.runs();
    println!(
        "{store}: the bound of docs/design/groups.md §3.7 is {:.0} ms",
        BOUND * 1e3
    );
    if firsts.len() >= 20 {
        let middle = median(&mut firsts);
        assert!(middle <= BOUND, "{middle} s, the median of {firsts:?}");
    }
    print(
        &format!("{store}: a node killed, until the first of its workloads runs elsewhere"),
        &mut firsts,
    );
    print(&format!("{store}: until all four do"), &mut all);
}

/// On the cluster, or on what `TENURE_FIGURES_ON` names.
#[test]
fn figures_of_kills() {
    let store = std::env::var("TENURE_FIGURES_ON").unwrap_or_else(|_| "cluster".into());
    let fixture = match store.as_str() {
        "sqlite" => Fixture::sqlite(),
        "postgres" => Fixture::postgres(),
        "cluster" => Fixture::cluster(),
        other => panic!("expected cluster, sqlite or postgres, found {other}"),
    };
    kills(&store, &fixture);
}

#[test]
fn figures_of_drains() {
    let fixture = Fixture::cluster();
    let [mut one, two, three] =
        ["one", "two", "three"].map(|name| fixture.node(name, &["--lease", "2s"]));
    let (mut gaps, mut whole) = (Vec::new(), Vec::new());
    // A cluster that changes its leader meanwhile answers nobody for a while.
    let (mut disturbed, mut lost) = (Vec::new(), 0);
    while ((whole.len() + disturbed.len()) as u64) < rounds() {
        if deploy(&fixture, [&one, &two, &three]).is_none() {
            lose(&mut lost);
            undeploy(&fixture);
            continue;
        }
        let term = fixture.term();
        let began = now();
        fixture.done(&["drain", "one", "--via", "two"]);
        fixture.all_run(&NAMES, |node| node != "one");
        let runs = fixture.stamps.runs();
        for name in NAMES {
            let mut own = runs
                .iter()
                .filter(|run| run.workload == format!("{name}/0"))
                .rev();
            let (after, before) = (own.next().expect("one"), own.next().expect("one before"));
            gaps.push(after.first - before.last);
        }
        let last = NAMES.map(|name| fixture.stamps.last(name).expect("it runs").first);
        let took = last.into_iter().fold(0.0, f64::max) - began;
        assert_eq!(one.wait_for_exit(), 0);
        if fixture.term() == term {
            whole.push(took);
        } else {
            disturbed.push(took);
        }
        undeploy(&fixture);
        one = fixture.node("one", &["--lease", "2s"]);
    }
    print("a node drained, how long a workload did not run", &mut gaps);
    print("a node drained, until all four run elsewhere", &mut whole);
    print(
        "the same while the cluster changed its leader",
        &mut disturbed,
    );
}

/// The processor time of these processes so far, in seconds.
fn processor_time(pids: &[u32]) -> f64 {
    let ticks = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some(number(11)? + number(12)?)
    };
    let hertz = rustix::param::clock_ticks_per_second() as f64;
    pids.iter().filter_map(ticks).sum::<f64>() / hertz
}

/// How often registers were changed so far, as a server says.
fn changes(fixture: &Fixture) -> f64 {
    use std::io::{Read as _, Write as _};
    let url = fixture.url();
    let address = url.trim_start_matches("tenure://");
    let address = address.split(',').next().expect("an address");
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("asked");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("answered");
    let row = page
        .lines()
        .find_map(|line| line.strip_prefix("tenure_revision "));
    let row = row.unwrap_or_else(|| panic!("{page}"));
    row.trim().parse().expect("a number")
}

/// The processes below one.
fn below(pid: u32) -> Vec<u32> {
    let all = descendants(pid).into_iter();
    all.filter_map(|(pid, _)| u32::try_from(pid).ok()).collect()
}

/// Kills one of them, and waits until all runs again.
fn loses_one(fixture: &Fixture, mut one: Agent, workloads: u64) {
    let name = one.name.clone();
    let shown = || {
        fixture
            .ps()
            .into_iter()
            .filter(|it| it["type"] == "workload")
    };
    let held = shown().filter(|it| it["node"] == name.as_str()).count();
    let killed = now();
    one.kill_all();
    let moved = || {
        let fits = |it: &serde_json::Value| it["state"] == "running" && it["node"] != name.as_str();
        (shown().filter(fits).count() as u64 == workloads).then_some(())
    };
    poll_until(Duration::from_secs(60), moved).expect("all run");
    let took = now() - killed;
    println!("one killed: its {held} workloads run on the others, as ps says, after {took:.1} s");
}

/// What many agents cost that have nothing to do: the long form has 20 agents
/// and 200 workloads.
#[test]
fn figures_of_scale() {
    let agents = number("TENURE_AGENTS").unwrap_or(4);
    let workloads = number("TENURE_WORKLOADS").unwrap_or(8);
    let fixture = Fixture::cluster();
    let mut nodes: Vec<_> = (0..agents)
        .map(|node| fixture.start(&format!("n{node}"), &["--spread", "--lease", "2s"]))
        .collect();
    for node in &nodes {
        node.wait_for_log("joined as");
    }
    let file = fixture.directory.path().join("all.toml");
    let table = |number: u64| {
        format!("[[workload]]\nname = \"w{number}\"\ncommand = [\"sleep\", \"100000\"]\n")
    };
    let text: String = (0..workloads).map(table).collect();
    std::fs::write(&file, text).expect("a file");
    let began = now();
    let file = file.display().to_string();
    fixture.done(&["deploy", "--no-wait", "--file", &file]);
    let all = || (fixture.running().len() as u64 == workloads).then_some(());
    poll_until(Duration::from_secs(120), all).expect("all run");
    println!(
        "{workloads} workloads on {agents} agents: all run after {:.1} s",
        now() - began
    );
    let own: Vec<u32> = nodes.iter().map(|node| node.process.id()).collect();
    let held: Vec<u32> = own.iter().flat_map(|pid| below(*pid)).collect();
    let servers: Vec<u32> = fixture
        .servers()
        .iter()
        .map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
        .collect();
    let measure = || {
        [
            processor_time(&own),
            processor_time(&held),
            processor_time(&servers),
            changes(&fixture),
        ]
    };
    let (before, from) = (measure(), now());
    poll_until(Duration::from_secs(60), || {
        (now() - from > 5.0).then_some(())
    });
    let (after, span) = (measure(), now() - from);
    let [agent, below, server, swaps] =
        std::array::from_fn(|it| (after[it] - before[it]) / span / agents as f64);
    println!(
        "per agent and second: {swaps:.2} changes of registers; processor time {:.1} ms of the \
         agent, {:.1} ms of all it runs, {:.1} ms of the three servers",
        agent * 1e3,
        below * 1e3,
        server * 1e3
    );
    let one = nodes.pop().expect("one");
    loses_one(&fixture, one, workloads);
    // A beat each fifth of the lease, and little else.
    assert!(swaps < 4.0, "{swaps} changes per agent and second");
}
