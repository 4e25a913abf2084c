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

/// A bug must be caught within so many runs.
const RUNS_MAX: u64 = 10_000;
/// The name of threads that hunt. Panics of what they simulate are violations.
const HUNTER: &str = "hunter";

/// A bug, and how to try it.
pub(crate) struct Quarry<'a, C> {
    name: String,
    /// Runs one seed.
    run: Box<dyn Fn(u64) -> Option<Box<Violation<C>>> + Send + Sync + 'a>,
}

impl<'a, C> Quarry<'a, C> {
    pub(crate) fn new(
        bug: impl Debug,
        run: impl Fn(u64) -> Option<Box<Violation<C>>> + Send + Sync + 'a,
    ) -> Self {
        Self {
            name: format!("{bug:?}"),
            run: Box::new(run),
        }
    }

    /// The same bug, where one checker alone looks: a bug and a checker have one name.
    pub(crate) fn seen_by(self, check: impl Display) -> Self {
        Self {
            name: format!("{} {check}", self.name),
            ..self
        }
    }

    /// The violation by the seed that caught it last, or by the first that does.
    fn hunt(&self, known: Option<u64>) -> Option<Box<Violation<C>>> {
        let seeds = known.into_iter().chain(1..=RUNS_MAX);
        seeds.into_iter().find_map(&self.run)
    }
}

/// Hunts for all, on two threads, and gives the seeds that caught them. `simulator` is
/// the name of their file.
pub(crate) fn all<C: Display + Send>(
    simulator: &str,
    quarries: Vec<Quarry<'_, C>>,
) -> BTreeMap<String, u64> {
    tell_no_panics_of_hunters();
    let file = format!("{}/caught/{simulator}.txt", env!("CARGO_MANIFEST_DIR"));
    let long = std::env::var("TENURE_HUNT").is_ok_and(|form| form == "long");
    let known = if long {
        String::new()
    } else {
        fs::read_to_string(&file).expect("seeds")
    };
    let known: BTreeMap<&str, u64> = known.lines().map(seed).collect();
    let left = Mutex::new(quarries);
    let found = Mutex::new(BTreeMap::new());
    let hunter = || {
        while let Some(quarry) = { left.lock().expect("no panic").pop() } {
            let violation = quarry.hunt(known.get(quarry.name.as_str()).copied());
            found
                .lock()
                .expect("no panic")
                .insert(quarry.name, violation);
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            let named = thread::Builder::new().name(HUNTER.to_owned());
            named.spawn_scoped(scope, hunter).expect("a thread");
        }
    });
    println!("| mistake | caught by | seed |\n|---|---|---|");
    let (mut caught, mut missed) = (BTreeMap::new(), Vec::new());
    for (name, violation) in found.into_inner().expect("no panic") {
        match violation {
            Some(it) => {
                println!("| `{name}` | {} | {} |", it.check, it.seed);
                caught.insert(name, it.seed);
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "never caught: {missed:?}");
    if long {
        let mut lines = String::new();
        for (name, seed) in &caught {
            writeln!(lines, "{name} {seed}").expect("memory");
        }
        fs::write(file, lines).expect("the seeds can be written");
    }
    caught
}

/// A line of the file: the name of a quarry, and its seed.
fn seed(line: &str) -> (&str, u64) {
    let (name, seed) = line.rsplit_once(' ').expect("a name and a seed");
    (name, seed.parse().expect("a seed"))
}

fn tell_no_panics_of_hunters() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() != Some(HUNTER) {
                others(info);
            }
        }));
    });
}
