//! Hunts for planted bugs: a bug is caught by the first seed whose run a checker
//! objects to.
//!
//! How many seeds that takes is a matter of luck. The short form, which CI runs,
//! begins with the seed that caught the bug in the last long form, as the files in
//! `caught` have it. Where that seed catches it no more, because the simulator draws
//! anew or a checker has gone blind, the long form follows: nothing is taken for caught
//! that is not. The long form, `TENURE_HUNT=long`, hunts for each from seed 1 and writes
//! those files.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display, Write as _};
use std::sync::{Mutex, Once};
use std::{fs, panic, thread};

use tenure_sim::kernel::Violation;

/// The name of threads that simulate. Panics there are violations.
const SIMULATES: &str = "simulates";

/// Hunts for each bug on two threads, and gives the seeds that caught them. Where a
/// checker is named beside a bug, it looks alone. Each must be caught within
/// `runs_max` seeds. `simulator` is the name of their file.
pub(crate) fn all<B, C>(
    simulator: &str,
    runs_max: u64,
    bugs: Vec<(B, Option<C>)>,
    run: impl Fn(B, Option<C>, u64) -> Option<Box<Violation<C>>> + Sync,
) -> BTreeMap<String, u64>
where
    B: Copy + Debug + Send,
    C: Copy + Display + Send,
{
    tell_no_panics_of_simulations();
    let file = format!("{}/caught/{simulator}.txt", env!("CARGO_MANIFEST_DIR"));
    let long = std::env::var("TENURE_HUNT").is_ok_and(|form| form == "long");
    let known = if long {
        String::new()
    } else {
        fs::read_to_string(&file).expect("seeds")
    };
    let known: BTreeMap<&str, u64> = known.lines().map(seed).collect();
    let left = Mutex::new(bugs);
    let found = Mutex::new(BTreeMap::new());
    let hunt = || {
        while let Some((bug, only)) = { left.lock().expect("no panic").pop() } {
            let name = name(bug, only);
            let first = known.get(name.as_str()).copied();
            let mut seeds = first.into_iter().chain(1..=runs_max);
            let violation = seeds.find_map(|seed| run(bug, only, seed));
            found.lock().expect("no panic").insert(name, violation);
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            let named = thread::Builder::new().name(SIMULATES.to_owned());
            named.spawn_scoped(scope, hunt).expect("a thread");
        }
    });
    let caught = caught(found.into_inner().expect("no panic"));
    if long {
        let mut lines = String::new();
        for (name, seed) in &caught {
            writeln!(lines, "{name} {seed}").expect("memory");
        }
        fs::write(file, lines).expect("the seeds can be written");
    }
    caught
}

/// Prints a table, and gives the seeds. Every bug must have been caught.
fn caught<C: Display>(found: BTreeMap<String, Option<Box<Violation<C>>>>) -> BTreeMap<String, u64> {
    println!("| mistake | caught by | seed |\n|---|---|---|");
    let (mut caught, mut missed) = (BTreeMap::new(), Vec::new());
    for (name, violation) in found {
        match violation {
            Some(it) => {
                println!("| `{name}` | {} | {} |", it.check, it.seed);
                caught.insert(name, it.seed);
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "never caught: {missed:?}");
    caught
}

/// What the file calls a bug, or a bug that one checker is to see.
fn name(bug: impl Debug, only: Option<impl Display>) -> String {
    match only {
        None => format!("{bug:?}"),
        Some(check) => format!("{bug:?} {check}"),
    }
}

/// A line of the file: a name and its seed.
fn seed(line: &str) -> (&str, u64) {
    let (name, seed) = line.rsplit_once(' ').expect("a name and a seed");
    (name, seed.parse().expect("a seed"))
}

fn tell_no_panics_of_simulations() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() != Some(SIMULATES) {
                others(info);
            }
        }));
    });
}
