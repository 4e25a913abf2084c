//! How long it takes until the workloads of a node that died, or was drained,
//! run elsewhere: three agents, a lease of 2 s, a cluster of three servers.
//!
//! A time ends with the first line that the workload writes on its new node,
//! so its start (bash) is part of it.

use super::common::median;
use super::number;
use super::stamps::now;
use super::town::Town;

const LEASE: f64 = 2.0;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// How many times.
fn rounds() -> u64 {
    number("TENURE_TAKEOVERS").unwrap_or(2)
}

fn print(what: &str, figures: &mut [f64]) {
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

/// Has `node` have all workloads, and nobody else.
fn deploy(town: &Town, node: &str) {
    for name in NAMES {
        town.deploy(name, &["--node", node]);
    }
    town.all_run(&NAMES, |it| it == node);
}

fn undeploy(town: &Town) {
    for name in NAMES {
        town.done(&["undeploy", name]);
    }
}

#[test]
fn figures_of_kills() {
    let town = Town::cluster();
    let flags = ["--quorum", "2"];
    let [mut one, _two, _three] = ["one", "two", "three"].map(|name| town.node(name, &flags));
    let (mut firsts, mut all) = (Vec::new(), Vec::new());
    for _ in 0..rounds() {
        deploy(&town, "one");
        let killed = now();
        one.perish();
        town.all_run(&NAMES, |node| node != "one");
        let mut took = NAMES.map(|name| town.stamps.last(name).expect("it runs").first - killed);
        took.sort_by(f64::total_cmp);
        firsts.push(took[0]);
        all.push(took[NAMES.len() - 1]);
        // The lease, a tenth of it as jitter, and the rounds of calls.
        assert!(took[NAMES.len() - 1] < LEASE * 1.2 + 1.5, "{took:?}");
        undeploy(&town);
        one = town.node("one", &flags);
    }
    town.stamps.runs();
    print(
        "a node killed, until the first of its workloads runs elsewhere",
        &mut firsts,
    );
    print("a node killed, until all four do", &mut all);
}

#[test]
fn figures_of_drains() {
    let town = Town::cluster();
    let [mut one, _two, _three] = ["one", "two", "three"].map(|name| town.node(name, &[]));
    let (mut gaps, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..rounds() {
        deploy(&town, "one");
        let began = now();
        town.done(&["drain", "one", "--via", "two"]);
        town.all_run(&NAMES, |node| node != "one");
        let runs = town.stamps.runs();
        for name in NAMES {
            let mut own = runs
                .iter()
                .filter(|run| run.workload == format!("{name}/0"))
                .rev();
            let (after, before) = (own.next().expect("one"), own.next().expect("one before"));
            gaps.push(after.first - before.last);
        }
        let last = NAMES.map(|name| town.stamps.last(name).expect("it runs").first);
        whole.push(last.into_iter().fold(0.0, f64::max) - began);
        assert_eq!(one.ends(), 0);
        undeploy(&town);
        one = town.node("one", &[]);
    }
    print("a node drained, how long a workload did not run", &mut gaps);
    print("a node drained, until all four run elsewhere", &mut whole);
}
