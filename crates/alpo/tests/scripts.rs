//! Runs the golden scripts of `tests/scripts`, one `#[test]` each.
//!
//! A script is a schedule of the replicated log: commands, and below `---`
//! the trace they made. Its name is the behaviour it shows, and its first
//! comment cites the clause of `docs/design/alpo.md`. `UPDATE_GOLDENFILES=1 cargo
//! test -p tenure-alpo --test all` writes the traces anew; read
//! every changed line before you commit it. The commands are described where
//! they are dispatched, in `stage::words`. The list of scripts is made
//! when this file is compiled: touch it after adding one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::stage;

test_each_file::test_each_path! { in "crates/alpo/tests/scripts" as alpo => script }

fn script(path: &Path) {
    let mut stage = stage::Stage::default();
    if let Err(error) = goldenscript::run(&mut stage, path) {
        panic!("{}: {error}", path.display());
    }
}

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/alpo.md");
    fs::read_to_string(path).expect("the document is there")
}

/// The clauses cited in a text: `H3`, `R17`, and `E4` of `E4e`.
fn clauses(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.map(|word| word.trim_end_matches(|c: char| c.is_ascii_lowercase()));
    let cites = |word: &&str| {
        let number = word.strip_prefix(|c: char| c.is_ascii_uppercase());
        number.is_some_and(|number| number.parse::<u8>().is_ok())
    };
    words.filter(cites).collect()
}

/// Every script, with its name.
fn scripts() -> Vec<(String, String)> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let entries = fs::read_dir(home).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut scripts: Vec<_> = paths
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy();
            let text = fs::read_to_string(&path).expect("a script");
            (name.into_owned(), text)
        })
        .collect();
    scripts.sort();
    scripts
}

/// Mistakes that no running server can make, so that no script can tell of
/// them: each is caught by the test named beside it.
#[cfg(feature = "planted-bugs")]
const MADE_ELSEWHERE: [(tenure_alpo::Bug, &str); 8] = {
    use tenure_alpo::Bug;
    [
        // A disk that is opened.
        (Bug::DamageCut, "the simulator of clusters"),
        // Servers that are blank.
        (Bug::FoundByMajority, "founding.rs"),
        (Bug::FoundUnpromised, "founding.rs"),
        (Bug::WipedVotes, "founding.rs"),
        // Who is let in.
        (Bug::CloneCounted, "starts.rs"),
        // What is encoded or decoded while a server goes on; scripts do both at
        // once.
        (Bug::SnapshotOvertaken, "the simulator of clusters"),
        (Bug::InstallOvertaken, "the simulator of clusters"),
        // A backup that is restored.
        (Bug::RestoredInPlace, "state/restore.rs"),
    ]
};

/// Scripts that could not fail would show nothing: each of the design's
/// mistakes must change the trace of one of them, or break a rule in it.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_mistake_is_seen_in_a_script() {
    use tenure_alpo::Bug;
    let scripts = scripts();
    std::panic::set_hook(Box::new(|_| {}));
    let unseen: Vec<_> = Bug::ALL
        .iter()
        .copied()
        .filter(|bug| MADE_ELSEWHERE.iter().all(|(other, _)| other != bug))
        .filter(|bug| {
            !scripts.iter().any(|(_, text)| {
                let told = std::panic::catch_unwind(|| {
                    goldenscript::generate(&mut stage::Stage::with(*bug), text)
                });
                !matches!(told, Ok(Ok(told)) if told == *text)
            })
        })
        .collect();
    let _ = std::panic::take_hook();
    assert!(unseen.is_empty(), "no script notices {unseen:?}");
}

/// How many random stories are told.
const STORIES: u64 = 300;

/// How long each is.
const COMMANDS: usize = 200;

#[test]
fn random_stories_break_no_rule_and_end_in_agreement() {
    let stories = std::env::var("STORIES").ok().and_then(|n| n.parse().ok());
    for seed in 0..stories.unwrap_or(STORIES) {
        let script = stage::chaos::script(seed, COMMANDS);
        let told = goldenscript::generate(&mut stage::Stage::default(), &script);
        if let Err(error) = told {
            panic!("seed {seed}: {error}\n{script}");
        }
    }
}

/// A check that never caught anything is a decoration. The mistakes that are
/// missing here cost time, or need a longer story than is told by chance: the
/// scripts and the simulator see them.
#[cfg(feature = "planted-bugs")]
#[test]
fn random_stories_catch_planted_mistakes() {
    use tenure_alpo::Bug;
    let caught = [
        Bug::VoteForgotten,
        Bug::TermForgotten,
        Bug::StaleVotes,
        Bug::CommitUnverified,
        Bug::LastIdMatches,
        Bug::TailUnsearched,
        Bug::AckUnsynced,
        Bug::DuplicateTruncates,
        Bug::HalfIsMajority,
        Bug::ReadBeforeNoOp,
        Bug::AppliedEarly,
    ];
    for bug in caught {
        let goes_wrong = |seed| {
            let script = stage::chaos::script(seed, COMMANDS);
            let told = std::panic::catch_unwind(|| {
                goldenscript::generate(&mut stage::Stage::with(bug), &script)
            });
            !matches!(told, Ok(Ok(_)))
        };
        assert!((0..1_000).any(goes_wrong), "{bug:?} was not caught");
    }
}

/// The clauses there are: the first cells of the document's tables.
fn numbered(document: &str) -> BTreeSet<&str> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" |").next());
    cells.flat_map(clauses).collect()
}

#[test]
fn every_script_begins_with_a_clause_that_exists() {
    let document = document();
    let known = numbered(&document);
    for (name, text) in scripts() {
        let comment = text.lines().take_while(|line| line.starts_with('#'));
        let comment = comment.collect::<Vec<_>>().join(" ");
        let cited = clauses(&comment);
        assert!(!cited.is_empty(), "{name} cites no clause");
        let unknown: Vec<_> = cited.difference(&known).collect();
        assert!(unknown.is_empty(), "{name} cites {unknown:?}");
    }
}

#[test]
fn every_hole_and_every_requirement_has_a_script() {
    let document = document();
    let scripts = scripts();
    for clause in numbered(&document) {
        let (kind, number) = clause.split_at(1);
        let prefix = format!("{}{number:0>2}_", kind.to_ascii_lowercase());
        let found = scripts.iter().any(|(name, _)| name.starts_with(&prefix));
        assert!(found || !"HR".contains(kind), "{clause} has no script");
    }
}

#[test]
fn every_script_named_in_the_document_exists() {
    let (document, scripts) = (document(), scripts());
    let named = document.split('`').skip(1).step_by(2);
    for name in
        named.filter(|name| name.starts_with('r') && name[1..].starts_with(char::is_numeric))
    {
        let found = name.ends_with('…') || scripts.iter().any(|(script, _)| script == name);
        assert!(found, "there is no script {name}");
    }
}
