//! Everything CMD started ends, however it tries to get away.

use rustix::process::Signal;
use tenure::clock;

use crate::scene::{PATIENCE, Scene, ms, send};

fn each_way(case: fn(&mut Scene)) {
    case(&mut Scene::new());
    case(&mut Scene::with(&[("TENURE_CGROUP", "off")]));
}

/// 200 processes, each in a session of its own and each orphaned.
const FLOOD: &str = "i=0; while [ $i -lt 200 ]; do \
    setsid sh -c 'sleep 1000 & :'; i=$((i+1)); done";

/// A process that moves on 500 times: forks, leaves its session, ends.
const HOP: &str = "hop='n=$1; [ $n -gt 0 ] || exec sleep 1000; \
    setsid sh -c \"$hop\" sh $((n-1)) & :'; export hop; sh -c \"$hop\" sh 500";

#[test]
fn what_cmd_leaves_ends_with_it() {
    each_way(|scene| {
        let script = "setsid sh -c 'sleep 1000 & :'; exit 7";
        scene.start(ms(60_000), ms(70_000), &["sh", "-c", script]);
        let (_, status) = scene.expect("Exited");
        assert_eq!(status, "Exited { status: Code(7), asked: false }");
        scene.expect("Gone");
        scene.assert_nothing_left();
    });
}

#[test]
fn a_flood_is_reaped_by_the_guardian() {
    each_way(|scene| {
        scene.script(ms(60_000), ms(70_000), FLOOD);
        // A process in the middle of its exec shows no environment.
        let until = clock::boot().after(PATIENCE);
        while scene.marked().len() <= 150 {
            assert!(clock::boot() < until, "the flood is there");
        }
        scene.say("kill", &[]);
        scene.expect_last();
        scene.assert_nothing_left();
    });
}

#[test]
fn a_flood_is_reaped_by_the_supervisor() {
    each_way(|scene| {
        let cmd = scene.script(ms(60_000), ms(70_000), FLOOD);
        send(cmd.guardian, Signal::KILL);
        scene.expect("Lost");
        scene.assert_nothing_left();
    });
}

#[test]
fn a_process_that_moves_on_and_on_is_caught() {
    each_way(|scene| {
        scene.script(ms(60_000), ms(70_000), HOP);
        scene.say("stop", &["0".into()]);
        scene.expect_last();
        scene.assert_nothing_left();
    });
}

#[test]
fn the_cgroup_is_removed() {
    let mut scene = Scene::new();
    scene.start(
        ms(60_000),
        ms(70_000),
        &["sh", "-c", "sed -n 's/^0::/group /p' /proc/self/cgroup"],
    );
    let line = scene.line("group ");
    scene.expect("Gone");
    // Where none could be had the group is the test's own, and stays.
    if let Some(path) = line
        .strip_prefix("group /")
        .filter(|path| path.contains("tenure-"))
    {
        for mount in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            assert!(
                !std::path::Path::new(mount).join(path).exists(),
                "{path} is left"
            );
        }
    }
}
