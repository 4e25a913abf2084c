//! One of supervisor and guardian is killed or stopped: the other ends CMD.
//!
//! In every case CMD ignores TERM and has left a process in a session of its
//! own behind, and each case is tried with a cgroup where one can be had, and
//! without.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use tenure::clock;
use tenure::core::time::Instant;

use crate::scene::{Cmd, Scene, assert_between, ended, hold, ms, send};

/// The latest a watchdog waits after `kill_at`; see `SLACK` in watchdog.rs.
const SLACK: std::time::Duration = std::time::Duration::from_millis(100);

struct Stage {
    scene: Scene,
    cmd: Cmd,
    held: Vec<OwnedFd>,
}

/// CMD and its detached grandchild, for as long as they run.
fn stage(env: &[(&str, &str)], drain: u64, kill: u64) -> Stage {
    let mut scene = Scene::with(env);
    let script = "trap '' TERM; deep=$(setsid sh -c 'sleep 1000 >/dev/null & echo $!')";
    let cmd = scene.script(ms(drain), ms(kill), script);
    let pids = [Some(cmd.pid), cmd.deep].into_iter().flatten();
    let held: Vec<_> = pids.filter_map(hold).collect();
    assert_eq!(held.len(), 2, "CMD and what it left");
    Stage { scene, cmd, held }
}

impl Stage {
    fn wait(&self) -> Instant {
        self.held.iter().for_each(ended);
        clock::boot()
    }
}

fn each_way(case: fn(&[(&str, &str)])) {
    case(&[]);
    case(&[("TENURE_CGROUP", "off")]);
}

#[test]
fn supervisor_killed() {
    each_way(|env| {
        let stage = stage(env, 60_000, 70_000);
        let guardian = hold(stage.cmd.guardian).expect("it lives");
        let killed = clock::boot();
        stage.scene.signal(Signal::KILL);
        assert_between(stage.wait(), killed, killed);
        ended(&guardian);
    });
}

#[test]
fn supervisor_stopped() {
    each_way(|env| {
        let stage = stage(env, 2_600, 3_300);
        stage.scene.signal(Signal::STOP);
        let kill = stage.cmd.times.kill;
        assert_between(stage.wait(), kill, kill);
    });
}

#[test]
fn guardian_killed() {
    each_way(|env| {
        let mut stage = stage(env, 60_000, 70_000);
        let killed = clock::boot();
        send(stage.cmd.guardian, Signal::KILL);
        assert_between(stage.wait(), killed, killed);
        let (_, status) = stage.scene.expect("Exited");
        assert_eq!(status, "Exited { status: Signal(9), asked: true }");
        let (_, why) = stage.scene.expect("Lost");
        assert_eq!(why, "Lost { why: \"the guardian ended by signal 9\" }");
        stage.scene.assert_nothing_left();
    });
}

#[test]
fn guardian_stopped() {
    each_way(|env| {
        let mut stage = stage(env, 2_600, 3_300);
        send(stage.cmd.guardian, Signal::STOP);
        let kill = stage.cmd.times.kill;
        assert_between(stage.wait(), kill, kill.after(SLACK));
        stage.scene.expect("Lost");
        stage.scene.assert_nothing_left();
    });
}

#[test]
fn a_stop_that_waits_for_the_guardian_gives_no_more_grace() {
    let mut scene = Scene::new();
    let later = "trap '' TERM; exec 8<&0; { read go <&8; sleep 0.7; echo later; } & :";
    let cmd = scene.script(ms(60_000), ms(70_000), later);
    send(cmd.guardian, Signal::STOP);
    let ordered = clock::boot();
    scene.say("stop", &["1500".into()]);
    let stdin = scene.stdin.as_mut().expect("piped");
    stdin.write_all(b"go\n").expect("it reads");
    scene.line("later");
    send(cmd.guardian, Signal::CONT);
    let (at, _) = scene.expect("Exited");
    assert_between(at, ordered.after(ms(1_500)), ordered.after(ms(1_500)));
    // By the guardian itself: it knew the time.
    scene.expect("Gone");
}

/// Four processes that move on every tenth of a second, each step in a session
/// of its own, and two that leave 4,500 dead behind each when they are told to.
const HOPPERS: &str = r#"trap '' TERM; exec 8<&0 9>"$LIFE"
    hop='sleep 0.1; setsid sh -c "$hop" & :'; export hop
    for i in 1 2 3 4; do setsid sh -c "$hop" & done
    flood() { read go <&8; n=0; while [ $n -lt 4500 ]; do (: &); n=$((n+1)); done; echo flooded; }
    flood & flood & :"#;

/// How late the last of the hoppers may end. It was seconds when the guardian
/// was killed before what was below it, and that is what this is about.
const LATE: std::time::Duration = std::time::Duration::from_secs(1);

#[test]
fn guardian_stopped_with_thousands_of_dead() {
    let path = std::env::temp_dir().join(format!("guard-life-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    let life = path.to_str().expect("a path");
    let mut scene = Scene::with(&[("TENURE_CGROUP", "off"), ("LIFE", life)]);
    // Whatever CMD starts has the other end, and closes it when it ends.
    let opened = std::thread::spawn(move || std::fs::File::open(path));
    let cmd = scene.script(ms(600_000), ms(700_000), HOPPERS);
    let mut life = opened.join().expect("a thread").expect("opened");
    send(cmd.guardian, Signal::STOP);
    let stdin = scene.stdin.as_mut().expect("piped");
    stdin.write_all(b"go\ngo\n").expect("they read");
    for _ in 0..2 {
        scene.line("flooded");
    }
    let killed = clock::boot();
    scene.say("kill", &[]);
    assert_eq!(life.read(&mut [0]).expect("nothing is said"), 0);
    let late = clock::boot().since(killed);
    assert!(late < LATE, "the last of them lived {late:?} too long");
    scene.expect("Lost");
    scene.assert_nothing_left();
}

#[test]
fn guardian_stopped_and_supervisor_killed() {
    each_way(|env| {
        let stage = stage(env, 60_000, 70_000);
        let guardian = hold(stage.cmd.guardian).expect("it lives");
        send(stage.cmd.guardian, Signal::STOP);
        let killed = clock::boot();
        stage.scene.signal(Signal::KILL);
        assert_between(stage.wait(), killed, killed);
        ended(&guardian);
    });
}

#[test]
fn guardian_stopped_while_standing_by() {
    let mut scene = Scene::new();
    let supervisor = scene.pid();
    let guardian = crate::scene::children(supervisor)
        .parse()
        .expect("its only child");
    send(guardian, Signal::STOP);
    let times = scene.start(ms(300), ms(700), &["echo", "started"]);
    let (at, _) = scene.expect("Lost");
    assert_between(at, times.kill, times.kill.after(SLACK));
    scene.assert_nothing_left();
}

#[test]
fn guardian_killed_while_standing_by() {
    let mut scene = Scene::new();
    let guardian = crate::scene::children(scene.pid())
        .parse()
        .expect("its only child");
    send(guardian, Signal::KILL);
    scene.expect("Lost");
    scene.assert_nothing_left();
}

#[test]
fn cmd_killed_from_outside() {
    each_way(|env| {
        let mut stage = stage(env, 60_000, 70_000);
        send(stage.cmd.pid, Signal::KILL);
        stage.scene.expect("Exited");
        stage.scene.expect("Gone");
        stage.wait();
        stage.scene.assert_nothing_left();
    });
}

#[test]
fn signals_for_a_whole_service_do_not_end_the_guardian() {
    let mut scene = Scene::new();
    let cmd = scene.script(ms(60_000), ms(70_000), "trap '' TERM");
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        send(cmd.guardian, signal);
    }
    scene.say("stop", &["300".into()]);
    let (_, status) = scene.expect("Exited");
    assert_eq!(status, "Exited { status: Signal(9), asked: true }");
    scene.expect("Gone");
}

#[test]
fn nonsense_on_the_channel_ends_the_guardian() {
    for bytes in [
        &[0xff; 64][..],
        &[1, 0, 0, 0, 77],
        &[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        let mut guardian = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .arg("__guardian")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .expect("a guardian");
        ours.write_all(bytes).expect("it reads");
        assert_eq!(guardian.wait().expect("it ends").code(), Some(1));
    }
}
