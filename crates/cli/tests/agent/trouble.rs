//! Workloads and people that do what they should not.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::json;

use super::common::poll_until;
use super::fixture::{Fixture, PATIENCE, files_below};
use super::pressure::Pressure;
use super::stamps::now;

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn what_people_get_wrong_is_told() {
    let fixture = Fixture::sqlite();
    let path = fixture.directory.path();
    let (code, said) = fixture.fails(&["deploy", "a", "--", "true"]);
    assert_eq!(code, 2);
    assert!(said.contains("expected an agent of group town"), "{said}");
    let (code, said) = fixture.fails(&["ps"]);
    assert!(code == 1 && said.contains("no store there"), "{said}");
    fixture.make_store();
    let (code, said) = fixture.fails(&["ps"]);
    assert!(code == 1 && said.contains("none called town"), "{said}");
    let _one = fixture.node("one", &["--quorum", "1"]);
    let mut second = fixture.start("two", &["--quorum", "3"]);
    assert_eq!(second.wait_for_exit(), 2);
    let said = second.log_text();
    assert!(said.contains("quorum of the group, 1, found 3"), "{said}");
    let mut namesake = fixture.start("one", &["--quorum", "1"]);
    // Such a one may be about to end: a service manager tries again.
    assert_eq!(namesake.wait_for_exit(), 1);
    let said = namesake.log_text();
    assert!(said.contains("only agent of this name"), "{said}");
    fs::write(path.join("bad.json"), "{\"a\": ").expect("a file");
    fs::write(path.join("bad.toml"), "[[workload]]\nname = \"a\"\n").expect("a file");
    let file = |name: &str| path.join(name).display().to_string();
    let (json, toml) = (file("bad.json"), file("bad.toml"));
    let cases: [(&[&str], i32, &str); 12] = [
        (&["node", "--store", "memory:"], 2, "no other process sees"),
        (
            &["node", "--name", "x", "--metrics", "x"],
            2,
            "name an address",
        ),
        (
            &["deploy", "a", "--config", &json, "--", "true"],
            2,
            "expected JSON",
        ),
        (&["deploy", "--file", &toml], 2, "command"),
        (
            &["deploy", "a", "--node", "six", "--", "true"],
            1,
            "a node of the group (one), found six",
        ),
        (
            &["deploy", "a", "--instances", "0", "--", "true"],
            2,
            "1 to 100 instances",
        ),
        (
            &["deploy", "a b", "--env", "x", "--", "true"],
            2,
            "KEY=VALUE",
        ),
        (&["deploy", "a", "--"], 2, "CMD"),
        (&["undeploy", "a"], 1, "a workload of the group, found a"),
        (&["drain", "six"], 1, "found six"),
        (&["logs", "a"], 2, "expected output of a"),
        (&["node", "--quorum", "257"], 2, "at most 256"),
    ];
    for (args, code, word) in cases {
        let (found, said) = fixture.fails(args);
        assert_eq!(found, code, "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
    }
    fixture.deploy("a", &[]);
    let (_, said) = fixture.fails(&["deploy", "a", "--", "true"]);
    assert!(said.contains("expected a new name"), "{said}");
    fs::set_permissions(fixture.state(), fs::Permissions::from_mode(0o755)).expect("opened");
    let (code, said) = fixture.fails(&["node", "--name", "three", "--quorum", "1"]);
    assert!(code == 2 && said.contains("closed to others"), "{said}");
}

/// What would reach the command as another value than was written, or not at all.
#[test]
fn a_workload_that_cannot_be_handed_on_as_written_is_refused() {
    let fixture = Fixture::sqlite();
    let file = fixture.directory.path().join("w.toml");
    let text = "[[workload]]\nname = \"a\"\ncommand = [\"true\"]\nconfig = { a = 1979-05-27 }\n";
    fs::write(&file, text).expect("a file");
    let (code, said) = fixture.fails(&["deploy", "--file", &file.display().to_string()]);
    assert!(
        code == 2 && said.contains("line 4, column 16: config: expected values that JSON has"),
        "{said}"
    );
    for name in ["TENURE_FENCE", "TENURE_INSTANCE"] {
        let env = format!("{name}=99");
        let (code, said) = fixture.fails(&["deploy", "a", "--env", &env, "--", "true"]);
        let found = format!("that the agent sets, found {name};");
        assert!(code == 2 && said.contains(&found), "{said}");
    }
}

#[test]
fn an_agent_that_is_stopped_is_asked_nothing() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &[]);
    one.stop();
    let (code, said) = fixture.fails(&["deploy", "a", "--", "sleep", "1000"]);
    assert!(code == 1 && said.contains("nothing was asked"), "{said}");
    // Another one on this machine will do.
    let two = fixture.node("two", &[]);
    fixture.deploy("b", &["--node", "two"]);
    // For longer than its lease: only then has it to end everything.
    two.wait_for_log("has died");
    one.signal(rustix::process::Signal::CONT);
    one.wait_for_log("everything is ended");
    fixture.done(&["undeploy", "b"]);
    assert_eq!(fixture.workload("a"), None, "it was asked after all");
}

#[test]
fn an_agent_that_never_joined_ends_when_it_is_asked_to() {
    let fixture = Fixture::sqlite();
    let nobody = "tenure://127.0.0.1:1";
    let mut one = fixture.start("one", &["--store", nobody]);
    one.wait_for_log("node one of group town");
    let said = one.wait_for_log("onnection refused");
    assert!(said.contains("tenure://127.0.0.1:1: "), "{said}");
    one.signal(rustix::process::Signal::TERM);
    assert_eq!(one.wait_for_exit(), 0, "{}", one.log_text());
    one.wait_for_log("asked to stop before it had joined");
}

#[test]
fn only_its_user_reaches_an_agent_and_what_it_keeps() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &["--metrics", "127.0.0.1:0"]);
    fixture.deploy("a", &[]);
    let node = fixture.state().join("town/one");
    for directory in [fixture.state(), node.clone(), node.join("logs")] {
        let mode = fs::metadata(&directory)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{}", directory.display());
    }
    for file in ["control.sock", "steward.sock", "agent.lock", "logs/a/0.log"] {
        let mode = fs::metadata(node.join(file))
            .expect(file)
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{file}");
    }
    drop(one);
}

#[test]
fn a_workload_that_would_not_start_is_tried_elsewhere_until_it_does() {
    let fixture = Fixture::sqlite();
    let (_one, _two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    let command = fixture.directory.path().join("late");
    let shown = command.display().to_string();
    let (code, said) = fixture.fails(&["deploy", "a", "--node", "one", "--", &shown]);
    assert!(code == 1 && said.contains("command not found"), "{said}");
    // It is there, but may not be run.
    fs::write(
        &command,
        format!("#!/bin/bash\n{}", fixture.stamps.script("")),
    )
    .expect("a file");
    let failing = fixture.shows("a", |it| {
        let why = it["why"].as_str().unwrap_or_default();
        why.contains("cannot be executed") && it["nodes_failed"].as_u64() >= Some(1)
    });
    assert_eq!(failing["state"], "failing");
    fs::set_permissions(&command, fs::Permissions::from_mode(0o700)).expect("allowed");
    fixture.all_run(&["a"], |_| true);
    // It is forgiven when it has run for a while.
    fixture.shows("a", |it| it["state"] == "running");
}

#[test]
fn a_workload_that_ends_soon_has_not_started_and_one_that_ends_later_is_restarted() {
    let fixture = Fixture::sqlite();
    let _one = fixture.node("one", &[]);
    let (code, said) = fixture.fails(&["deploy", "a", "--", "bash", "-c", "exit 3"]);
    assert!(code == 1 && said.contains("exited with code 3"), "{said}");
    fixture.done(&["undeploy", "a"]);
    let script = fixture.stamps.script("( sleep 2; kill -9 $$ ) &");
    fixture.deploy_as("b", &[], &words(&["bash", "-c", &script]));
    let shown = fixture.shows("b", |it| it["restarts"].as_u64() >= Some(2));
    assert_eq!(shown["why"], "ended by signal 9");
    assert_eq!(shown["failed_starts"], 0);
    // Done is done, by the policy.
    let done = ["--restart", "on-failure", "--ready", "10ms"];
    fixture.deploy_as("c", &done, &words(&["bash", "-c", "sleep 0.2; exit 0"]));
    poll_until(PATIENCE, || fixture.workload("c").is_none().then_some(())).expect("undeployed");
    // However soon that is.
    for number in 0..5 {
        let name = format!("quick-{number}");
        fixture.deploy_as(&name, &["--restart", "never"], &words(&["true"]));
        poll_until(PATIENCE, || fixture.workload(&name).is_none().then_some(()))
            .expect("undeployed");
    }
    let once = ["--restart", "never", "--ready", "10ms"];
    fixture.deploy_as("d", &once, &words(&["bash", "-c", "sleep 0.2; exit 9"]));
    poll_until(PATIENCE, || fixture.workload("d").is_none().then_some(())).expect("undeployed");
}

#[test]
fn a_workload_that_does_not_stop_is_killed_and_all_it_forked_with_it() {
    let fixture = Fixture::sqlite();
    let _one = fixture.node("one", &[]);
    fixture.deploy_as("a", &[], &fixture.stamps.stubborn());
    let (asked, pressure) = (now(), Pressure::begin());
    fixture.done(&["undeploy", "a"]);
    let (took, late) = (now() - asked, pressure.allows());
    assert!(
        (0.4..0.4 + late).contains(&took),
        "the grace is 0.4 s, it took {took} s, and may be {late} s late"
    );
    let path = fixture.directory.path().join("forked");
    let shown = path.display().to_string();
    let away = format!(
        "(setsid bash -c 'while :; do date +%s.%N >> {shown}; sleep 0.05; done' &) ; sleep 1000"
    );
    fixture.deploy_as("b", &[], &words(&["bash", "-c", &away]));
    poll_until(PATIENCE, || path.exists().then_some(())).expect("it has forked");
    fixture.done(&["undeploy", "b"]);
    let ended = now();
    poll_until(Duration::from_secs(1), || {
        (now() > ended + 0.5).then_some(())
    });
    let text = fs::read_to_string(&path).expect("it wrote");
    // A line that a kill has cut short has no end.
    let (whole, _) = text.rsplit_once('\n').expect("a line");
    let last = whole.lines().last().expect("a line");
    let last: f64 = last.parse().expect("a time");
    assert!(
        last <= ended + 0.001,
        "what it forked lives {} s longer",
        last - ended
    );
}

#[test]
fn a_flood_of_output_is_bounded_and_its_end_can_be_read() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &["--log-bytes", "20000", "--log-files", "2"]);
    let script = format!(
        "yes flood | head -c 5000000; echo the end; {}",
        fixture.stamps.script("")
    );
    fixture.deploy_as("a", &[], &words(&["bash", "-c", &script]));
    fixture.all_run(&["a"], |_| true);
    let logs = || fixture.done(&["logs", "a", "-n", "1"]);
    poll_until(PATIENCE, || logs().contains("the end").then_some(())).expect("the end");
    let files = files_below(&fixture.state().join("town/one/logs"));
    assert_eq!(files.len(), 3, "{files:?}");
    assert!(files.iter().all(|(_, size)| *size <= 20_000), "{files:?}");
    assert!(fixture.done(&["logs", "a"]).len() <= 60_000);
    drop(one);
}

#[test]
fn wishes_are_kept() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &["--label", "zone=a", "--max", "2"]);
    let two = fixture.node("two", &["--label", "zone=b"]);
    let config = fixture.directory.path().join("config.json");
    fs::write(&config, "{\"to\": [1, 2]}").expect("a file");
    let config = config.display().to_string();
    let out = fixture.directory.path().join("seen").display().to_string();
    let script = fixture.stamps.script(&format!(
        "echo \"$TENURE_WORKLOAD_CONFIG $TENURE_GROUP $TENURE_INSTANCES $EXTRA\" > {out};"
    ));
    let flags = [
        "--needs",
        "zone=b",
        "--config",
        &config,
        "--env",
        "EXTRA=more",
    ];
    fixture.deploy_as("a", &flags, &words(&["bash", "-c", &script]));
    // It writes its stamps after that.
    assert_eq!(fixture.writes("a").node, "two");
    let seen = fs::read_to_string(out).expect("it wrote");
    assert_eq!(seen, "{\"to\":[1,2]} town 1 more\n");
    for name in ["b", "c"] {
        fixture.deploy(name, &["--node", "one"]);
    }
    let (_, said) = fixture.fails(&["deploy", "d", "--node", "one", "--", "true"]);
    assert!(said.contains("is full"), "{said}");
    // In order: the second is begun when the first runs.
    let file = fixture.directory.path().join("all.toml");
    let table = |name: &str, order: u32| {
        let command = json!(fixture.stamps.command());
        format!(
            "[[workload]]\nname = \"{name}\"\norder = {order}\nready = \"2s\"\nneeds = [\"zone=b\"]\ncommand = {command}\n"
        )
    };
    fs::write(&file, format!("{}{}", table("late", 2), table("early", 1))).expect("a file");
    fixture.done(&["deploy", "--no-wait", "--file", &file.display().to_string()]);
    fixture.all_run(&["early", "late"], |node| node == "two");
    // Both start anew when their node does, the lower one first.
    let last = || ["early", "late"].map(|name| fixture.stamps.last(name).expect("it ran"));
    let before = last();
    drop(two);
    let _two = fixture.node("two", &["--label", "zone=b"]);
    let anew = || {
        let after = last();
        let mut both = before.iter().zip(&after);
        both.all(|(old, new)| old.pid != new.pid).then_some(after)
    };
    let [early, late] = poll_until(PATIENCE, anew).expect("both start anew");
    let gap = late.first - early.first;
    // Two seconds, less what the earlier one was late to write.
    assert!(gap > 0.5, "the order is not kept: {early:?} {late:?}");
    drop(one);
}

/// What fits nowhere keeps nothing else of its file from running.
#[test]
fn all_of_a_file_is_deployed_before_any_of_it_is_waited_for() {
    let fixture = Fixture::sqlite();
    let _one = fixture.node("one", &["--label", "zone=a"]);
    let table = |name: &str, more: &str, command: &[String]| {
        let command = json!(command);
        format!("[[workload]]\nname = \"{name}\"\n{more}\ncommand = {command}\n")
    };
    let own = fixture.stamps.command();
    let text = [
        table("nowhere", "needs = [\"zone=c\"]", &own),
        table("fails", "", &words(&["bash", "-c", "exit 3"])),
        table("fine", "", &own),
    ];
    let file = fixture.directory.path().join("all.toml");
    fs::write(&file, text.concat()).expect("a file");
    let (out, err) = (path(&fixture, "out"), path(&fixture, "err"));
    let mut deploy = fixture
        .command(&["deploy", "--file", &file.display().to_string()])
        .stdout(fs::File::create(&out).expect("a file"))
        .stderr(fs::File::create(&err).expect("a file"))
        .spawn()
        .expect("it runs");
    let says = |file: &std::path::Path, text: &str| {
        let said = || fs::read_to_string(file).unwrap_or_default();
        let heard = poll_until(PATIENCE, || said().contains(text).then_some(()));
        assert!(heard.is_some(), "{text}: {}", said());
    };
    says(&out, "fine runs on one");
    says(&err, "fails would not start on one: exited with code 3");
    says(
        &err,
        "nowhere: waiting: no live HA node has the label zone=c",
    );
    let shown = fixture.workload("nowhere").expect("it is there");
    assert_eq!(shown["why"], "no live HA node has the label zone=c");
    assert!(deploy.try_wait().expect("a child").is_none(), "it waits");
    let _two = fixture.node("two", &["--label", "zone=c"]);
    says(&out, "nowhere runs on two");
    assert_eq!(deploy.wait().expect("it ends").code(), Some(1));
    says(&err, "1 of 3 workloads failed");
}

fn path(fixture: &Fixture, name: &str) -> std::path::PathBuf {
    fixture.directory.path().join(name)
}

#[test]
fn a_group_all_of_whose_agents_are_dead_is_not_shown_as_if_it_ran() {
    let fixture = Fixture::sqlite();
    let mut one = fixture.node("one", &[]);
    fixture.deploy("a", &[]);
    assert_eq!(fixture.member("one").expect("it is there")["state"], "ha");
    one.kill_all();
    // Nobody is there to judge it.
    fixture.shows("a", |it| it["state"] == "unknown");
    let shown = fixture.member("one").expect("it is there");
    assert_eq!(shown["state"], "silent");
    assert!(shown["silent_ms"].as_u64() >= shown["lease_ms"].as_u64());
    let shown = fixture.done(&["ps"]);
    let group = shown.lines().next().unwrap_or_default();
    assert!(group.ends_with(" (1 silent)"), "{shown}");
    // They insist on their quorum although nobody lives; the way out is told.
    let (code, said) = fixture.fails(&["node", "--name", "two", "--quorum", "1"]);
    assert!(code == 2 && said.contains("one (silent for "), "{said}");
    assert!(said.contains("one agent with --quorum 0"), "{said}");
}

#[test]
fn a_group_is_watched_and_measured() {
    let fixture = Fixture::sqlite();
    let [port] = super::common::servers::free();
    let one = fixture.node("one", &["--metrics", &port]);
    one.wait_for_log(&format!("metrics at http://{port}/metrics"));
    let mut busy = fixture.start("busy", &["--metrics", &port]);
    assert_eq!(busy.wait_for_exit(), 1, "{}", busy.log_text());
    let out = fixture.directory.path().join("watched");
    let file = fs::File::create(&out).expect("a file");
    let mut watch = fixture
        .command(&["watch", "--group", "town"])
        .stdout(file)
        .spawn()
        .expect("it runs");
    let says = |text: &str| {
        let said = || {
            fs::read_to_string(&out)
                .ok()
                .filter(|said| said.contains(text))
        };
        poll_until(PATIENCE, said)
            .unwrap_or_else(|| panic!("{text}: {:?}", fs::read_to_string(&out)));
    };
    says("one has joined");
    fixture.deploy("a", &[]);
    says("a is assigned to one");
    let mut two = fixture.node("two", &[]);
    says("two has joined");
    two.kill_all();
    says("two has died");
    fixture.done(&["undeploy", "a"]);
    says("a is gone");
    // With the time, as a person needs it who looks later.
    says("Z town 1: one has joined");
    watch.kill().expect("it runs");
    watch.wait().expect("it ends");
    let page = metrics(&port);
    for row in [
        "tenure_node_member 1",
        "tenure_node_starts_total 1",
        "tenure_node_deaths_seen_total 1",
        "tenure_node_workloads_running 0",
    ] {
        assert!(page.contains(row), "{row}: {page}");
    }
    drop(one);
}

fn metrics(address: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("asked");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("answered");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    page
}
