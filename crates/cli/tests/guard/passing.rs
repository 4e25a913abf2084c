//! What goes into CMD and what comes out: streams, environment, signals,
//! descriptors, and how it ended.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use crate::guard::{ExitStatus, StartError};
use crate::scene::{Scene, ms};

fn run(argv: &[&str]) -> Scene {
    let mut scene = Scene::new();
    scene.start(ms(60_000), ms(70_000), argv);
    scene
}

#[test]
fn a_command_that_does_not_exist() {
    let mut scene = run(&["no-such-command-anywhere"]);
    assert_eq!(scene.expect("Refused").1, "Refused { why: NotFound(2) }");
    scene.expect("Gone");
    scene.assert_nothing_left();
    assert_eq!(StartError::NotFound(2).code(), 127);
}

#[test]
fn a_command_that_cannot_be_executed() {
    let file = std::env::temp_dir().join(format!("guard-plain-{}", std::process::id()));
    std::fs::write(&file, "#!/bin/sh\n").expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("set");
    let mut scene = run(&[file.to_str().expect("plain")]);
    assert_eq!(
        scene.expect("Refused").1,
        "Refused { why: NotExecutable(13) }"
    );
    scene.expect("Gone");
    let _ = std::fs::remove_file(&file);
    assert_eq!(StartError::NotExecutable(13).code(), 126);
}

#[test]
fn codes_and_signals_are_reported() {
    for (script, status) in [
        ("exit 0", ExitStatus::Code(0)),
        ("exit 42", ExitStatus::Code(42)),
        ("kill -USR2 $$", ExitStatus::Signal(12)),
    ] {
        let mut scene = run(&["sh", "-c", script]);
        let (started, _) = scene.expect("Started");
        let (exited, said) = scene.expect("Exited");
        assert_eq!(
            said,
            format!("Exited {{ status: {status:?}, asked: false }}")
        );
        assert!(started <= exited);
        scene.expect("Gone");
    }
    assert_eq!(
        (ExitStatus::Code(42).code(), ExitStatus::Signal(9).code()),
        (42, 137)
    );
}

#[test]
fn streams_pass_through() {
    let mut scene = run(&["sh", "-c", "cat; echo told >&2"]);
    let mut stdin = scene.stdin.take().expect("piped");
    writeln!(stdin, "asked").expect("CMD reads");
    drop(stdin);
    assert_eq!(scene.line("asked"), "asked");
    scene.expect("Exited { status: Code(0), asked: false }");
    scene.expect("Gone");
    scene.say("drop", &[]);
    assert_eq!(scene.stderr(), "told\n");
}

#[test]
fn the_environment_is_passed() {
    let mut scene = Scene::with(&[("GUARD_TEST_INHERITED", "so it is")]);
    let script = "echo got $GUARD_TEST_INHERITED, ${GUARD_TEST_MARK%%-*}";
    scene.start(ms(60_000), ms(70_000), &["sh", "-c", script]);
    assert_eq!(scene.line("got"), "got so it is, guard");
    scene.expect("Gone");
}

#[test]
fn no_descriptor_leaks() {
    let mut scene = run(&["sh", "-c", "ls -m /proc/$$/fd; :"]);
    // The shell's own, with no pipe of its making open; the supervisor has
    // more (see `Scene::with`).
    assert_eq!(scene.line("0"), "0, 1, 2");
    scene.expect("Gone");
}

#[test]
fn signals_are_as_they_should_be() {
    let mut scene = run(&["sed", "-n", "s/^Sig/mask Sig/p", "/proc/self/status"]);
    let mut mask = |name: &str| {
        let line = scene.line(&format!("mask {name}:"));
        let hex = line.split_whitespace().last().expect("a mask");
        u64::from_str_radix(hex, 16).expect("hexadecimal")
    };
    assert_eq!(mask("SigBlk"), 0, "nothing is blocked");
    let ignored = mask("SigIgn");
    for signal in [
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::PIPE,
        Signal::TERM,
        Signal::USR1,
        Signal::USR2,
        Signal::CHILD,
        Signal::CONT,
        Signal::WINCH,
    ] {
        let bit = 1_u64 << (signal.as_raw() - 1);
        assert_eq!(ignored & bit, 0, "{signal:?} is ignored");
    }
    assert_eq!(mask("SigCgt"), 0, "nothing is caught");
}

#[test]
fn signals_are_forwarded() {
    let mut scene = Scene::new();
    let script = "trap 'echo heard usr1' USR1; trap 'echo heard hup; exit 3' HUP; \
        echo up; while :; do sleep 1000 & wait; done";
    scene.start(ms(60_000), ms(70_000), &["sh", "-c", script]);
    scene.line("up");
    scene.signal(Signal::USR1);
    scene.line("heard usr1");
    scene.signal(Signal::HUP);
    scene.line("heard hup");
    scene.expect("Exited { status: Code(3), asked: false }");
    scene.expect("Gone");
}

#[test]
fn a_term_asks_to_stop_and_the_next_to_kill() {
    let mut scene = Scene::new();
    scene.script(ms(60_000), ms(70_000), "trap '' TERM INT");
    scene.signal(Signal::INT);
    scene.expect("Stop");
    scene.signal(Signal::TERM);
    scene.expect("Kill");
    scene.expect("Exited { status: Signal(9), asked: true }");
    scene.expect("Gone");
    scene.assert_nothing_left();
}
