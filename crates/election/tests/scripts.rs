//! Runs the golden scripts of `tests/scripts`, one `#[test]` each.
//!
//! A script is a story: commands, and below `---` the trace they made. Its
//! name is the behaviour it shows, and its first comment cites the clause of
//! `docs/design/election.md`. `UPDATE_GOLDENFILES=1 cargo test -p tenure-election`
//! writes the traces anew; read every changed line before you commit it.
//! The commands are described where they are dispatched, in `stage::words`
//! and `stage::tables`. The list of scripts is made when this file is
//! compiled: touch it after adding one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::stage;

/// How many random stories are told.
const SEEDS: u64 = 120;

test_each_file::test_each_path! { in "crates/election/tests/scripts/cas" as cas => script }
test_each_file::test_each_path! { in "crates/election/tests/scripts/election" as election => script }
test_each_file::test_each_path! { in "crates/election/tests/scripts/grant" as grant => script }
test_each_file::test_each_path! { in "crates/election/tests/scripts/observer" as observer => script }
test_each_file::test_each_path! { in "crates/election/tests/scripts/record" as record => script }
test_each_file::test_each_path! { in "crates/election/tests/scripts/validate" as validate => script }

fn script(path: &Path) {
    let mut stage = stage::Stage::new();
    if let Err(error) = goldenscript::run(&mut stage, path) {
        panic!("{}: {error}", path.display());
    }
}

/// Tells random stories until one goes wrong, and says how.
fn first_mishap(seeds: u64, extra: &str) -> Option<String> {
    (0..seeds).find_map(|seed| {
        let script = stage::chaos::script(seed, 120, extra);
        let trace = goldenscript::generate(&mut stage::Stage::new(), &script);
        let (why, trace) = match trace {
            Ok(trace) => (stage::chaos::check(&trace).err()?, trace),
            Err(error) => (error.to_string(), script),
        };
        Some(format!("seed {seed}: {why}\n{trace}"))
    })
}

#[test]
fn random_stories_never_have_two_leaders_and_end_with_one() {
    if let Some(mishap) = first_mishap(SEEDS, "") {
        panic!("{mishap}");
    }
}

/// A check that never caught anything is a decoration. The mistakes that are
/// missing here cost time or tell the wrong story, but elect nobody twice.
#[cfg(feature = "planted-bugs")]
#[test]
fn random_stories_catch_planted_mistakes() {
    use tenure_election::Bug;
    let caught = [
        Bug::DeadlineFromEnd,
        Bug::DriftForgotten,
        Bug::UnknownIsWon,
        Bug::TermReset,
        Bug::StaleVersion,
        Bug::JudgedByWall,
        Bug::RenewAfterDeadline,
        Bug::SequenceKept,
        Bug::SwapUnjudged,
        Bug::VacateUndrained,
    ];
    for bug in caught {
        let mishap = first_mishap(1_000, &format!("bug={bug:?}"));
        assert!(mishap.is_some(), "{bug:?} was not caught");
    }
}

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/election.md");
    fs::read_to_string(path).expect("the document is there")
}

/// Every script, as `folder/name`, with its text.
fn scripts() -> Vec<(String, String)> {
    let list = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).expect("a folder");
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    };
    let folders = list(&home()).into_iter();
    let files = folders.flat_map(|folder| list(&folder));
    files
        .map(|path| {
            let name = path
                .strip_prefix(home())
                .expect("below")
                .display()
                .to_string();
            (name, fs::read_to_string(path).expect("a script"))
        })
        .collect()
}

/// The clauses cited in a text: `4.2` of `§4.2`.
fn cited(text: &str) -> BTreeSet<String> {
    let number = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let number = &rest[..end.unwrap_or(rest.len())];
        number.trim_end_matches('.').to_string()
    };
    text.split('§').skip(1).map(number).collect()
}

/// The clauses there are: headings, and the numbered lines below them.
fn clauses(document: &str) -> BTreeSet<String> {
    let (mut clauses, mut section) = (BTreeSet::new(), String::new());
    for line in document.lines() {
        let heading = line
            .strip_prefix("## ")
            .or_else(|| line.strip_prefix("### "));
        let number = heading
            .unwrap_or(line)
            .split(' ')
            .next()
            .unwrap_or_default();
        let number = number.trim_end_matches('.');
        if number.is_empty() || !number.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        if heading.is_some() {
            section = number.to_string();
            clauses.insert(section.clone());
        } else {
            clauses.insert(format!("{section}.{number}"));
        }
    }
    clauses
}

#[test]
fn every_script_begins_with_a_clause_that_exists() {
    let clauses = clauses(&document());
    for (name, text) in scripts() {
        let comment = text.lines().take_while(|line| line.starts_with('#'));
        let cited = cited(&comment.collect::<String>());
        assert!(!cited.is_empty(), "{name} cites no clause");
        for clause in cited {
            assert!(clauses.contains(&clause), "{name} cites §{clause}");
        }
    }
}

#[test]
fn every_script_named_in_the_document_exists() {
    let (document, scripts) = (document(), scripts());
    let rows = document.lines().filter(|line| line.starts_with('|'));
    let named = rows.filter_map(|row| row.rsplit('|').nth(1));
    let named = named.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    for name in named.filter(|name| name.contains('_') && name.len() > 20) {
        let found = scripts
            .iter()
            .any(|(script, _)| script == name || script.strip_prefix("election/") == Some(name));
        assert!(found, "there is no script {name}");
    }
}
