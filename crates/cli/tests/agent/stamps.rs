//! What workloads wrote down themselves, in one file for all nodes, and what
//! that proves.
//!
//! A workload appends a line when it begins, every [`BEAT_MS`], and when it
//! ends by TERM: `seconds kind workload/instance node fence process-id`. Two
//! runs of one instance must not overlap, and a later one never has a lower
//! fence. A time is read before its line is written, and by the process that
//! writes it, so what overlaps here has overlapped.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

/// How often a workload writes.
pub(crate) const BEAT_MS: u64 = 40;

/// From the first to the last line of one process.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Run {
    pub(crate) workload: String,
    pub(crate) node: String,
    pub(crate) fence: u64,
    pub(crate) pid: u64,
    pub(crate) first: f64,
    pub(crate) last: f64,
}

/// The file.
pub(crate) struct Stamps {
    directory: tempfile::TempDir,
}

impl Stamps {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("stamps"), "").expect("a file");
        Self { directory }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("stamps")
    }

    /// A script that writes lines until it is ended. It forks nothing, so
    /// that many of them can run at once.
    pub(crate) fn script(&self, first: &str) -> String {
        let path = self.path().display().to_string();
        let line = |kind: &str| {
            format!(
                "echo \"$EPOCHREALTIME {kind} $TENURE_WORKLOAD/$TENURE_INSTANCE $TENURE_NODE \
                 $TENURE_FENCE $$\" >> {path}"
            )
        };
        let (begin, beat, end) = (line("begin"), line("beat"), line("end"));
        let pause = format!("0.{BEAT_MS:03}");
        format!(
            "trap '{end}; exit 0' TERM; {first} {begin}; exec 9<> <(:); while :; do {beat}; read \
             -t {pause} -u 9; done",
            end = end.replace('\'', "'\\''"),
        )
    }

    /// The command that runs the script.
    pub(crate) fn command(&self) -> Vec<String> {
        ["bash", "-c", &self.script("")].map(str::to_owned).into()
    }

    /// One that does not end when it is told to.
    pub(crate) fn stubborn(&self) -> Vec<String> {
        let script = self.script("");
        let (_, rest) = script.split_once("TERM; ").expect("a trap");
        let script = format!("trap '' TERM; {rest}");
        ["bash", "-c", &script].map(str::to_owned).into()
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).expect("the stamps")
    }

    /// All runs, by their first lines.
    ///
    /// # Panics
    /// If anything overlaps, or a fence falls.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let runs = runs(&self.text());
        let wrong = wrong(&runs);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        runs
    }

    /// The workloads that have just written, and the node that each did last.
    pub(crate) fn fresh(&self) -> BTreeMap<String, String> {
        const TAIL: u64 = 256 << 10;
        let mut file = fs::File::open(self.path()).expect("the stamps");
        let length = file.metadata().expect("a file").len();
        let from = SeekFrom::Start(length.saturating_sub(TAIL));
        file.seek(from).expect("a file");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("text");
        let text = String::from_utf8_lossy(&bytes);
        let (first, since) = (usize::from(length > TAIL), now() - 0.6);
        let mut fresh = BTreeMap::new();
        for line in text.lines().skip(first) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [at, kind, workload, node, _, _] = words.as_slice() else {
                continue;
            };
            let recent = at.parse::<f64>().is_ok_and(|at| at > since);
            let name = workload.split('/').next().unwrap_or_default().to_owned();
            if *kind == "end" {
                fresh.remove(&name);
            } else if recent {
                fresh.insert(name, (*node).to_owned());
            }
        }
        fresh
    }

    /// The last run of a workload's first instance.
    pub(crate) fn last(&self, workload: &str) -> Option<Run> {
        let name = format!("{workload}/0");
        self.runs().into_iter().rfind(|run| run.workload == name)
    }

    /// The node on which a workload writes now, if it has just written.
    pub(crate) fn runs_on(&self, workload: &str) -> Option<String> {
        let run = self.last(workload)?;
        let fresh = now() - run.last < 0.5;
        fresh.then_some(run.node)
    }
}

/// Now, in seconds of the calendar.
pub(crate) fn now() -> f64 {
    tenure::clock::wall().as_millis() as f64 / 1_000.0
}

/// What the lines say, sorted by workload and time.
pub(crate) fn runs(text: &str) -> Vec<Run> {
    let mut runs: BTreeMap<(String, u64, u64), Run> = BTreeMap::new();
    // A line that a kill has cut short has no end.
    for line in text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, _, workload, node, fence, pid] = words.as_slice() else {
            panic!("a line of stamps: {line:?}");
        };
        let at: f64 = at.parse().expect("a time");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let (fence, pid) = (number(fence), number(pid));
        let run = Run {
            workload: (*workload).to_owned(),
            node: (*node).to_owned(),
            fence,
            pid,
            first: at,
            last: at,
        };
        let key = ((*workload).to_owned(), fence, pid);
        let run = runs.entry(key).or_insert(run);
        run.first = run.first.min(at);
        run.last = run.last.max(at);
    }
    let mut runs: Vec<Run> = runs.into_values().collect();
    runs.sort_by(|a, b| {
        let times = a.first.total_cmp(&b.first);
        a.workload.cmp(&b.workload).then(times)
    });
    runs
}

/// What must not be.
pub(crate) fn wrong(runs: &[Run]) -> Vec<String> {
    let mut wrong = Vec::new();
    for pair in runs.windows(2) {
        let [before, after] = pair else { continue };
        if before.workload != after.workload {
            continue;
        }
        if before.last >= after.first {
            wrong.push(format!("two at once: {before:?} {after:?}"));
        }
        // On one node a workload may be started again in the same view.
        if before.fence > after.fence || (before.fence == after.fence && before.node != after.node)
        {
            wrong.push(format!("the fence does not grow: {before:?} {after:?}"));
        }
    }
    wrong
}

#[test]
fn the_checker_sees_what_must_not_be() {
    let clean = "1.0 begin w/0 a 3 10\n1.5 beat w/0 a 3 10\n1.6 begin w/0 b 4 11\n1.7 begin w/1 a \
                 3 12\n1.8 beat w/0 b 4 11\n1.9 begin v/0 a 3 13\n2.0 begin w/0 b 4 14\n1.";
    assert_eq!(wrong(&runs(clean)), Vec::<String>::new());
    assert_eq!(runs(clean).len(), 5);
    let cases = [
        ("1.4 begin w/0 b 4 11", "two at once"),
        // Between two beats, and never seen by either.
        ("1.2 begin w/0 b 2 11", "two at once"),
        ("1.9 begin w/0 b 2 11", "fence does not grow"),
        ("1.9 begin w/0 b 3 11", "fence does not grow"),
    ];
    for (line, word) in cases {
        let text = format!("1.0 begin w/0 a 3 10\n1.5 beat w/0 a 3 10\n{line}\n");
        let wrong = wrong(&runs(&text));
        assert!(
            wrong.iter().any(|it| it.contains(word)),
            "{line}: {wrong:?}"
        );
    }
}
