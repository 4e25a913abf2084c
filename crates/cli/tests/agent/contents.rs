//! Content of workloads in the store (`docs/design/groups.md` §1.11), with real agents:
//! what is undeployed leaves nothing behind, and is deployed again at any time.

use std::io::Write as _;
use std::time::Duration;

use super::common::poll_until;
use super::fixture::{Fixture, PATIENCE};

/// The registers of content that the store has.
fn contents(url: &str) -> Vec<String> {
    let listing = async {
        let store = tenure::store::open(url).await.expect("a store");
        let keys = tenure::ha::Keys::of(tenure::Name::new("town").expect("a name"));
        let within = Duration::from_secs(5);
        let page = store.list(&keys.contents(), None, within).await;
        let registers = page.expect("a page").registers;
        let keys = registers.iter().map(|(key, _)| key.as_str().to_owned());
        keys.collect()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(listing)
}

/// Waits until so many are left; gives them.
fn left(fixture: &Fixture, count: usize) -> Vec<String> {
    let fits = || Some(contents(&fixture.url())).filter(|contents| contents.len() == count);
    let left = poll_until(PATIENCE, fits);
    left.unwrap_or_else(|| panic!("not {count}: {:?}", contents(&fixture.url())))
}

fn what_is_undeployed_leaves_nothing_behind(fixture: &Fixture) {
    let short = ["--lease", "2s"];
    let (_one, _two) = (fixture.node("one", &short), fixture.node("two", &short));
    let sleep = ["sleep", "1000"].map(str::to_owned);
    fixture.deploy_as("mail", &["--node", "one"], &sleep);
    fixture.deploy_as("post", &["--node", "two"], &sleep);
    let other = ["sleep", "2000"].map(str::to_owned);
    fixture.deploy_as("pay", &["--node", "two"], &other);
    let all = contents(&fixture.url());
    assert_eq!(all.len(), 2, "two of them are the same: {all:?}");
    // One workload after the other, of one content and at any moment of the
    // collector, which looks again after each of them.
    for round in 0..12 {
        fixture.done(&["undeploy", "pay"]);
        let node = if round % 2 == 0 { "one" } else { "two" };
        fixture.deploy_as("pay", &["--node", node], &other);
    }
    fixture.done(&["undeploy", "pay"]);
    fixture.done(&["undeploy", "mail"]);
    let rest = left(fixture, 1);
    assert!(all.contains(&rest[0]), "{all:?}, then {rest:?}");
    fixture.shows("post", |it| it["state"] == "running");
    fixture.done(&["undeploy", "post"]);
    left(fixture, 0);
    fixture.deploy_as("post", &["--node", "one"], &sleep);
    assert_eq!(contents(&fixture.url()), rest, "the same is back");
}

#[test]
fn what_is_undeployed_leaves_nothing_behind_on_sqlite() {
    what_is_undeployed_leaves_nothing_behind(&Fixture::sqlite());
}

#[test]
fn what_is_undeployed_leaves_nothing_behind_on_postgres() {
    what_is_undeployed_leaves_nothing_behind(&Fixture::postgres());
}

#[test]
fn what_is_undeployed_leaves_nothing_behind_on_etcd() {
    what_is_undeployed_leaves_nothing_behind(&Fixture::etcd());
}

#[test]
fn what_is_undeployed_leaves_nothing_behind_on_a_cluster() {
    what_is_undeployed_leaves_nothing_behind(&Fixture::cluster());
}

/// The release before this one, if there is one here.
fn before() -> Option<String> {
    let found = std::env::var("TENURE_BEFORE").ok();
    if found.is_none() {
        // Not `eprintln!`: of a test that passes the harness shows none of it.
        let said = b"NOT TRIED: a group with an agent of an older release, since $TENURE_BEFORE \
                     names no binary of it; ./test.sh builds one\n";
        std::io::stderr().write_all(said).expect("a stderr");
    }
    found
}

/// An older agent does not touch what it finds, so nothing is collected while
/// the view has one; and what it deploys, now and after, runs.
#[test]
fn a_group_with_an_older_agent_collects_nothing_and_loses_nothing() {
    let Some(before) = before() else { return };
    let fixture = Fixture::postgres();
    let short = ["--lease", "2s"];
    let _one = fixture.node("one", &short);
    // Its own name is what `sh` calls the first word.
    let script = format!("exec {before} \"$@\"");
    let older = || {
        let agent = fixture.start_in(&["sh", "-c", &script], "old", &short);
        let joined = || fixture.member("old");
        poll_until(PATIENCE, joined).unwrap_or_else(|| panic!("{}", agent.log_text()));
        agent
    };
    let asked_of_old = |args: &[&str]| {
        let mut command = fixture.command(args);
        let words: Vec<_> = command.get_args().map(std::ffi::OsStr::to_owned).collect();
        let envs: Vec<_> = command.get_envs().collect();
        let envs = envs
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
        let envs: Vec<_> = envs.collect();
        command = std::process::Command::new(&before);
        let output = command.args(words).envs(envs).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
    };
    let mut old = older();
    let sleep = ["sleep", "1000"].map(str::to_owned);
    let by_old = [
        "deploy", "pay", "--via", "old", "--node", "old", "--", "sleep", "1000",
    ];
    fixture.deploy_as("pay", &["--via", "one", "--node", "one"], &sleep);
    let all = contents(&fixture.url());
    fixture.done(&["undeploy", "pay", "--via", "one"]);
    // Without the older agent it would go within three leases.
    let gone = || contents(&fixture.url()).is_empty().then_some(());
    assert_eq!(poll_until(Duration::from_secs(9), gone), None, "it went");
    asked_of_old(&by_old);
    fixture.shows("pay", |it| it["state"] == "running");
    asked_of_old(&["undeploy", "pay", "--via", "old"]);
    old.kill_all();
    left(&fixture, 0);
    let _old = older();
    asked_of_old(&by_old);
    fixture.shows("pay", |it| it["state"] == "running");
    assert_eq!(contents(&fixture.url()), all, "the same is back");
}
