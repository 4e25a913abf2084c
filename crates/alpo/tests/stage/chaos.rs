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

/// What is done, and how often by default. Each story draws its own taste:
/// some things it never does, some it does much more than others.
const DEEDS: [(&str, u64); 26] = [
    ("deliver to", 20),
    ("deliver from", 14),
    ("deliver", 14),
    ("calm", 4),
    ("run", 3),
    ("tick", 10),
    ("wait", 4),
    ("late", 4),
    ("propose", 10),
    ("read", 2),
    ("open", 1),
    ("slow", 3),
    ("sync", 3),
    ("fast", 1),
    ("crash", 3),
    ("restart", 4),
    ("drop", 2),
    ("duplicate", 2),
    ("release", 2),
    ("cut", 2),
    ("heal", 2),
    ("transfer", 1),
    ("change", 2),
    ("close", 1),
    ("rivals", 1),
    ("again", 1),
];

/// A script of so many commands.
pub(crate) fn script(seed: u64, commands: usize) -> String {
    let mut rng = Rng::from_seed(seed);
    let servers = rng.between(2, 5);
    let mut text = format!("cluster {servers} leader=s1 spare=1");
    if rng.chance(25) {
        text += " lease=on";
    }
    if rng.chance(33) {
        text += " log=1 kept=1 chunk=60";
    }
    if rng.chance(33) {
        text += " append=1";
    }
    text += "\n";
    let taste = DEEDS.map(|(deed, weight)| (deed, weight * [0, 1, 1, 5][rng.below(4) as usize]));
    let all = taste.iter().map(|(_, weight)| weight).sum::<u64>().max(1);
    for _ in 0..commands {
        let mut drawn = rng.below(all);
        let deed = taste.iter().find(|(_, weight)| {
            let found = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            found
        });
        let deed = deed.map_or("calm", |(deed, _)| deed);
        writeln!(text, "{}", command(&mut rng, servers, deed)).expect("memory");
    }
    text += "heal\nrelease\n";
    for id in 1..=servers + 1 {
        writeln!(text, "fast s{id}\nmaybe sync s{id}\nmaybe restart s{id}").expect("memory");
    }
    text + "run 20s\nagree\nstate\n---\n"
}

fn command(rng: &mut Rng, servers: u64, deed: &str) -> String {
    let one = format!("s{}", rng.between(1, servers));
    let other = format!("s{}", rng.between(1, servers + 1));
    let few = rng.between(1, 3);
    match deed {
        "deliver to" => format!("maybe deliver any {other} first={few}"),
        "deliver from" => format!("maybe deliver {one} any first={few}"),
        "deliver" => format!("maybe deliver first={}", few * few * few),
        "run" => format!("run {}ms", rng.between(1, 900)),
        "tick" => format!("maybe tick {one}"),
        "wait" => format!("wait {}ms", rng.between(1, 600)),
        "late" => format!("maybe late {other}"),
        "propose" => format!("maybe propose {one} v{few} serial={}", rng.between(1, 6)),
        "sync" => format!("maybe sync {one} first={few}"),
        "drop" => format!("maybe drop any {other} first={few}"),
        "duplicate" => format!("maybe duplicate {one} any first={few}"),
        "cut" if few == 1 => format!("cut {one} {other} oneway"),
        "transfer" => format!("maybe transfer {one} {other}"),
        "change" => {
            let what = ["admit", "promote", "remove"][few as usize - 1];
            format!("maybe change {one} {what} {other}")
        }
        "close" => format!("maybe close {one} {other}"),
        "again" => again(&one, &other),
        "rivals" => rivals(rng, servers, (&one, &other)),
        "slow" | "fast" | "cut" => format!("{deed} {one}"),
        "read" | "open" | "crash" | "restart" => format!("maybe {deed} {one}"),
        _ => deed.to_string(),
    }
}

/// Two stand in one term, and there is a voter that has voted for the first. It
/// is started anew before the other asks it; or what it said comes when both
/// stand in the next term. By chance alone either takes thousands of stories.
fn rivals(rng: &mut Rng, servers: u64, (one, other): (&str, &str)) -> String {
    let voter = format!("s{}", rng.between(1, servers));
    let anew = format!("maybe crash {voter}\nmaybe restart {voter}");
    let polls = "maybe deliver any any poll\nmaybe deliver any any would";
    let next = if rng.chance(50) {
        format!("{anew}\nmaybe tick {other}\nmaybe deliver {other} {voter} vote")
    } else {
        format!(
            "maybe hold {voter} {one} granted\nwait 600ms\nmaybe late {one}\nmaybe late {other}\n\
             {polls}\nmaybe deliver {other} {voter} vote\nmaybe deliver {voter} {other} granted\n\
             maybe release"
        )
    };
    format!(
        "{anew}\nmaybe tick {one}\nmaybe tick {other}\n{polls}\nmaybe deliver {one} {voter} vote\n\
         {next}"
    )
}

/// What was sent comes once more, after what was sent later.
fn again(one: &str, other: &str) -> String {
    format!(
        "maybe propose {one} v\nmaybe duplicate {one} {other} append\ncalm\nmaybe propose {one} w\n\
         calm\nmaybe release"
    )
}
