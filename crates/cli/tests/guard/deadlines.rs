//! What happens at `drain_at` and `kill_at`, and how they move.

use tenure::clock;

use crate::scene::{Scene, assert_between, end_of, ms};

/// Ignores TERM, as does everything it starts.
const DEAF: &str = "trap '' TERM";

fn extend(
    scene: &mut Scene,
    drain: tenure::core::time::Instant,
    kill: tenure::core::time::Instant,
) {
    scene.say(
        "extend",
        &[drain.as_nanos().to_string(), kill.as_nanos().to_string()],
    );
    scene.expect("did extend");
}

#[test]
fn term_at_drain_at() {
    let mut scene = Scene::new();
    let cmd = scene.script(ms(2_500), ms(20_000), "");
    let (at, status) = scene.expect("Exited");
    assert_eq!(status, "Exited { status: Signal(15), asked: true }");
    assert_between(at, cmd.times.drain, cmd.times.drain);
    scene.expect("Gone");
    scene.assert_nothing_left();
}

#[test]
fn kill_at_kill_at() {
    let mut scene = Scene::new();
    let cmd = scene.script(ms(2_600), ms(3_300), DEAF);
    let (at, status) = scene.expect("Exited");
    assert_eq!(status, "Exited { status: Signal(9), asked: true }");
    assert_between(at, cmd.times.kill, cmd.times.kill);
    scene.expect("Gone");
    scene.assert_nothing_left();
}

#[test]
fn an_extension_postpones_both() {
    let mut scene = Scene::new();
    let cmd = scene.script(ms(2_500), ms(2_900), DEAF);
    let (drain, kill) = (
        cmd.times.drain.after(ms(500)),
        cmd.times.kill.after(ms(800)),
    );
    extend(&mut scene, drain, kill);
    let (at, status) = scene.expect("Exited");
    assert_eq!(status, "Exited { status: Signal(9), asked: true }");
    assert_between(at, kill, kill);
}

#[test]
fn an_extension_postpones_the_term() {
    let mut scene = Scene::new();
    let cmd = scene.script(ms(2_500), ms(2_900), "");
    let drain = cmd.times.drain.after(ms(700));
    extend(&mut scene, drain, drain.after(ms(20_000)));
    let (at, status) = scene.expect("Exited");
    assert_eq!(status, "Exited { status: Signal(15), asked: true }");
    assert_between(at, drain, drain);
}

#[test]
fn an_earlier_extension_is_ignored() {
    let mut scene = Scene::new();
    let cmd = scene.script(ms(2_500), ms(2_900), "");
    extend(&mut scene, clock::boot(), clock::boot());
    let (at, _) = scene.expect("Exited");
    assert_between(at, cmd.times.drain, cmd.times.drain);
}

#[test]
fn an_extension_after_the_term_comes_too_late() {
    let mut scene = Scene::new();
    // Its own words say that drain_at has passed.
    let script = "trap 'echo termed' TERM; echo up; while :; do sleep 1000 & wait; done";
    let times = scene.start(ms(2_500), ms(4_500), &["sh", "-c", script]);
    scene.line("termed");
    let later = times.kill.after(ms(60_000));
    extend(&mut scene, later, later);
    let (at, status) = scene.expect("Exited");
    assert_eq!(status, "Exited { status: Signal(9), asked: true }");
    assert_between(at, times.kill, times.kill);
}

#[test]
fn a_late_go_ahead_starts_nothing() {
    let mut scene = Scene::new();
    scene.start(ms(0), ms(20_000), &["echo", "started"]);
    let (_, why) = scene.expect("Refused");
    assert_eq!(why, "Refused { why: Late }");
    scene.expect("Gone");
    scene.assert_nothing_left();
}

#[test]
fn stop_terminates_then_kills_after_the_grace() {
    let mut scene = Scene::new();
    scene.script(ms(60_000), ms(70_000), DEAF);
    let asked = clock::boot();
    scene.say("stop", &["400".into()]);
    let (at, status) = scene.expect("Exited");
    assert_eq!(status, "Exited { status: Signal(9), asked: true }");
    assert_between(at, asked.after(ms(400)), asked.after(ms(400)));
    scene.expect("Gone");
}

#[test]
fn a_stop_outlasts_the_lease_only_if_it_is_extended() {
    let mut scene = Scene::new();
    let cmd = scene.script(ms(2_500), ms(3_000), DEAF);
    scene.say("stop", &["60000".into()]);
    scene.expect("did stop");
    let (drain, kill) = (
        cmd.times.drain.after(ms(700)),
        cmd.times.kill.after(ms(700)),
    );
    extend(&mut scene, drain, kill);
    let (at, _) = scene.expect("Exited");
    assert_between(at, kill, kill);
}

#[test]
fn stop_and_kill_are_prompt() {
    for (order, words, status) in [
        (
            "stop",
            &["60000".to_owned()][..],
            "Exited { status: Signal(15), asked: true }",
        ),
        ("kill", &[], "Exited { status: Signal(9), asked: true }"),
    ] {
        let mut scene = Scene::new();
        scene.script(ms(60_000), ms(70_000), "");
        let asked = clock::boot();
        scene.say(order, words);
        let (at, said) = scene.expect("Exited");
        assert_eq!(said, status);
        assert_between(at, asked, asked);
        scene.expect("Gone");
        scene.assert_nothing_left();
    }
}

#[test]
fn a_stop_before_the_start_ends_the_guardian() {
    for order in ["stop", "kill"] {
        let mut scene = Scene::new();
        scene.say(order, &["1000".into()]);
        scene.expect("Gone");
        scene.start(ms(60_000), ms(60_000), &["echo", "started"]);
        scene.assert_nothing_left();
    }
}

#[test]
fn a_stopped_cmd_hears_the_term() {
    let mut scene = Scene::new();
    let cmd = scene.script(ms(2_500), ms(20_000), "");
    crate::scene::send(cmd.pid, rustix::process::Signal::STOP);
    let (at, status) = scene.expect("Exited");
    assert_eq!(status, "Exited { status: Signal(15), asked: true }");
    assert_between(at, cmd.times.drain, cmd.times.drain);
}

#[test]
fn dropping_the_handle_kills() {
    let mut scene = Scene::new();
    let cmd = scene.script(ms(60_000), ms(70_000), DEAF);
    let asked = clock::boot();
    scene.say("drop", &[]);
    assert_between(end_of(cmd.pid), asked, asked);
    assert_eq!(scene.marked(), Vec::<i32>::new());
}
