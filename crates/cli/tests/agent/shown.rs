//! Agents that are shown another boot id, none, or another clock; and groups
//! whose store gives out an older view. Real mounts and time namespaces.

use std::process::Command;
use std::time::Duration;

use tenure::store::{Expect, Stamp, Write, open};

use super::common::poll_until;
use super::fixture::{Agent, Fixture, PATIENCE};

/// For restarts, which a busy machine must make in time.
const LONG: [&str; 2] = ["--lease", "8s"];

/// What hides the boot id, as containers and `ProcSubset=pid` do.
const HIDDEN: &str = "mount -t tmpfs none /proc/sys/kernel/random";
/// What shows another one, as sandboxes do: always the same.
const FOREIGN: &str = "mount -t tmpfs none /proc/sys/kernel/random && \
                       echo 0d9cf3a2-6b0f-4f6e-9d1a-8a4a2f3b5c6d \
                       > /proc/sys/kernel/random/boot_id";

/// A clock that is ahead by a day.
const AHEAD: [&str; 7] = [
    "unshare",
    "--time",
    "--boottime",
    "86400",
    "--monotonic",
    "86400",
    "--",
];

/// What begins a command that is shown that.
fn masked(mask: &str) -> Vec<String> {
    let script = format!("{mask} && exec \"$@\"");
    let mut words = vec!["unshare", "--mount"];
    if !rustix::process::geteuid().is_root() {
        words.push("--map-root-user");
    }
    words.extend(["sh", "-c", &script, "sh"]);
    words.into_iter().map(str::to_owned).collect()
}

/// Whether this machine lets a test do so.
fn can(test: &str, prefix: &[&str]) -> bool {
    let (program, words) = prefix.split_first().expect("a command");
    let probe = Command::new(program).args(words).arg("true").output();
    let can = probe.is_ok_and(|output| output.status.success());
    if !can {
        super::print(&format!(
            "\n*** {test}: NO NAMESPACES HERE, nothing was tried with {prefix:?}.\n"
        ));
    }
    can
}

/// Kills an agent, starts it again where `prefix` says, and waits for a word.
fn again(fixture: &Fixture, mut agent: Agent, prefix: &[&str], word: &str) -> Agent {
    agent.kill();
    let again = fixture.start_in(prefix, &agent.name, &LONG);
    again.wait_for_log(word);
    again
}

/// The agent ends what its earlier incarnation has left, joins under another id, and
/// judges other nodes by their silence alone.
fn does_not_go_on(first: &[&str], second: &[&str]) {
    let fixture = Fixture::sqlite();
    let one = fixture.start_in(first, "one", &LONG);
    one.wait_for_log("joined as");
    let two = fixture.node("two", &LONG);
    fixture.deploy("a", &["--node", "one"]);
    let id = one.id();
    let one = again(
        &fixture,
        one,
        second,
        "ending 1 workload of an earlier incarnation",
    );
    poll_until(PATIENCE, || (one.id() != id).then_some(())).expect("another id");
    fixture.all_run(&["a"], |_| true);
    // For longer than a lease: a node that was judged without its silence
    // would be dead by now.
    let settled = || {
        let run = fixture.stamps.last("a")?;
        (run.last - run.first > 9.0).then_some(())
    };
    poll_until(PATIENCE, settled).expect("it runs on");
    let (said, other) = (one.log_text(), two.log_text());
    assert!(!said.contains("going on as"), "{said}");
    assert!(!said.contains("two has died"), "{said}");
    assert!(!other.contains("everything is ended"), "{other}");
    fixture.stamps.runs();
}

#[test]
fn an_agent_that_is_shown_a_foreign_boot_id_does_not_go_on() {
    let foreign = masked(FOREIGN);
    let foreign: Vec<&str> = foreign.iter().map(String::as_str).collect();
    if can("a foreign boot id", &foreign) {
        does_not_go_on(&[], &foreign);
    }
}

/// Not even from one that could read none either: who knows which clocks those
/// are.
#[test]
fn an_agent_that_cannot_read_its_boot_id_does_not_go_on() {
    let hidden = masked(HIDDEN);
    let hidden: Vec<&str> = hidden.iter().map(String::as_str).collect();
    if can("a hidden boot id", &hidden) {
        does_not_go_on(&hidden, &hidden);
    }
}

/// The rightful case in a sandbox: the same id is shown to both lives.
#[test]
fn an_agent_that_is_shown_the_same_boot_id_goes_on() {
    let foreign = masked(FOREIGN);
    let foreign: Vec<&str> = foreign.iter().map(String::as_str).collect();
    if !can("the same boot id", &foreign) {
        return;
    }
    let fixture = Fixture::sqlite();
    let one = fixture.start_in(&foreign, "one", &LONG);
    one.wait_for_log("joined as");
    fixture.deploy("a", &[]);
    let before = fixture.stamps.last("a").expect("it runs");
    let _one = again(&fixture, one, &foreign, "going on as");
    let until = before.last + 9.0;
    let later = || fixture.stamps.last("a").filter(|run| run.last > until);
    let after = poll_until(PATIENCE, later).expect("it runs on");
    assert_eq!((before.pid, before.fence), (after.pid, after.fence));
    fixture.stamps.runs();
}

/// An agent whose clock is a day ahead of that of its earlier incarnation. The shim
/// of that life would keep what runs for a day longer than the lease.
#[test]
fn an_agent_on_another_clock_has_a_shim_of_its_own() {
    if !can("another clock", &AHEAD) {
        return;
    }
    let fixture = Fixture::sqlite();
    let (one, _two) = (fixture.node("one", &LONG), fixture.node("two", &LONG));
    let id = one.id();
    let one = again(&fixture, one, &AHEAD, "one of group town");
    poll_until(PATIENCE, || (one.id() != id).then_some(())).expect("another id");
    fixture.deploy_as("a", &["--node", "one"], &fixture.stamps.stubborn());
    assert_eq!(fixture.writes("a").node, "one");
    one.stop();
    // The checker sees two at once, should the first one live too long.
    fixture.all_run(&["a"], |node| node == "two");
    let settled = || {
        let run = fixture.stamps.last("a").filter(|run| run.node == "two")?;
        (run.last - run.first > 0.5).then_some(())
    };
    poll_until(PATIENCE, settled).expect("it runs on");
    fixture.stamps.runs();
}

/// Reads the view, or puts this one in the place of what is there, as a store
/// does that was restored from a backup.
fn view(url: &str, put: Option<tenure::store::Bytes>) -> tenure::store::Bytes {
    let within = Duration::from_secs(5);
    let asking = async {
        let store = open(url).await.expect("a store");
        let key = tenure::ha::Keys::of(tenure::Name::new("town").expect("a name")).view();
        loop {
            let read = store.read(&key, within).await.expect("read");
            let register = read.register.expect("a view");
            let Some(value) = put.clone() else {
                return register.value;
            };
            let write = Write {
                key: key.clone(),
                expect: Expect::Version(register.version),
                value,
                stamp: Stamp::Now,
            };
            // A node may have written between the read and this.
            if store.compare_and_swap(write, within).await.is_ok() {
                return register.value;
            }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(asking)
}

/// What went with it is named, and fences go on above those that were seen.
#[test]
fn an_older_view_that_comes_back_is_told_and_raised() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &[]);
    fixture.deploy("mail", &[]);
    let old = view(&fixture.url(), None);
    fixture.deploy("pay", &[]);
    let fence = fixture.stamps.last("pay").expect("it runs").fence;
    view(&fixture.url(), Some(old));
    one.wait_for_log("1 workload went with it: pay; deploy them again");
    // It goes on where it was, with what the older view has.
    fixture.deploy("pay", &[]);
    let again = || fixture.stamps.last("pay").filter(|run| run.fence > fence);
    poll_until(PATIENCE, again).expect("it runs again, with a higher fence");
    fixture.all_run(&["mail", "pay"], |_| true);
    assert!(
        !one.log_text().contains("everything is ended"),
        "{}",
        one.log_text()
    );
    fixture.stamps.runs();
}
