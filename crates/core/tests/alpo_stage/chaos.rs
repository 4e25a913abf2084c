//! Scripts drawn at random: everything that a script can do to a cluster, in
//! an order that nobody thought of, and at the end peace. The rules are
//! checked after every step as always; in the end somebody must lead, and
//! all must agree with it.
//!
//! The simulator runs whole clusters on one time line and for long; here
//! messages, disks and timers are moved one by one, with no regard for time,
//! so that the odd orders are as likely as the usual ones.

use std::fmt::Write;

use tenure_core::rng::Rng;

/// A script of so many commands.
pub(crate) fn script(seed: u64, commands: usize) -> String {
    let mut rng = Rng::from_seed(seed);
    let servers = rng.between(2, 5);
    let leases = rng.between(0, 3) == 0;
    let compact = rng.between(0, 2) == 0;
    let mut text = format!("cluster {servers} leader=s1 spare=1");
    if leases {
        text += " lease=on";
    }
    if compact {
        text += " log=1 kept=1 chunk=60";
    }
    text += "\n";
    for _ in 0..commands {
        let line = command(&mut rng, servers);
        writeln!(text, "{line}").expect("memory");
    }
    text += "heal\nmaybe release\n";
    for id in 1..=servers + 1 {
        writeln!(
            text,
            "fast s{id}\nmaybe sync s{id}\nresume s{id}\nmaybe restart s{id}"
        )
        .expect("memory");
    }
    text + "run 40s\nagree\nstate\n---\n"
}

fn command(rng: &mut Rng, servers: u64) -> String {
    let one = format!("s{}", rng.between(1, servers));
    let other = format!("s{}", rng.between(1, servers + 1));
    let few = rng.between(1, 3);
    match rng.between(0, 99) {
        0..=24 => format!("maybe deliver any {other} first={few}"),
        25..=44 => format!("maybe deliver {one} any first={few}"),
        45..=52 => format!("maybe deliver first={}", few * 4),
        53..=59 => format!("maybe tick {one}"),
        60..=63 => format!("wait {}ms", rng.between(1, 400)),
        64..=66 => format!("maybe late {other}"),
        67..=73 => format!("maybe propose {one} v{} serial={}", few, rng.between(1, 6)),
        74..=75 => format!("maybe read {one}"),
        76 => format!("maybe open {one}"),
        77..=78 => format!("slow {one}"),
        79..=80 => format!("maybe sync {one} first={few}"),
        81 => format!("fast {one}"),
        82..=83 => format!("maybe crash {one}"),
        84..=86 => format!("maybe restart {one}"),
        87 => format!("maybe drop any {other} first={few}"),
        88..=89 => format!("maybe duplicate {one} any first={few}"),
        90 => format!("maybe hold {one} any first={few}"),
        91 => "release".to_string(),
        92 => format!("cut {one}"),
        93 => format!("cut {one} {other} oneway"),
        94 => "heal".to_string(),
        95 => format!("maybe transfer {one} {other}"),
        96 => {
            let what = ["admit", "promote", "remove"][few as usize - 1];
            format!("maybe change {one} {what} {other}")
        }
        97 => format!("maybe close {one} {other}"),
        98 => format!("run {}ms", rng.between(1, 900)),
        _ => "calm".to_string(),
    }
}
