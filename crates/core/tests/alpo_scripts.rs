//! Runs the golden scripts of `tests/scripts/alpo`, one `#[test]` each.
//!
//! A script is a schedule of the replicated log: commands, and below `---`
//! the trace they made. Its name is the behaviour it shows, and its first
//! comment cites the clause of `docs/alpo.md`. `UPDATE_GOLDENFILES=1 cargo
//! test -p tenure-core --test alpo_scripts` writes the traces anew; read
//! every changed line before you commit it. The commands are described where
//! they are dispatched, in `alpo_stage::words`. The list of scripts is made
//! when this file is compiled: touch it after adding one.

mod alpo_stage;
#[path = "stage/args.rs"]
#[expect(dead_code, reason = "written for the election's scripts too")]
mod args;

use std::fs;
use std::path::Path;

test_each_file::test_each_path! { in "crates/core/tests/scripts/alpo" as alpo => script }

fn script(path: &Path) {
    let mut stage = alpo_stage::Stage::default();
    if let Err(error) = goldenscript::run(&mut stage, path) {
        panic!("{}: {error}", path.display());
    }
}

/// `H3`, `E4`, `R17`: a capital letter and a number.
fn clauses(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| {
        let number = word.trim_start_matches(['E', 'G', 'H', 'I', 'L', 'R', 'T', 'X']);
        let number = number.trim_end_matches(|c: char| c.is_ascii_lowercase());
        word.len() - number.len() >= 1 && !number.is_empty() && number.parse::<u8>().is_ok()
    })
}

/// Every script, with its name.
fn scripts() -> Vec<(String, String)> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/alpo");
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

/// Scripts that could not fail would show nothing: each of the design's
/// mistakes must change the trace of one of them, or break a rule in it. What
/// a damaged disk does is not told here.
#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_mistake_is_seen_in_a_script() {
    use tenure_core::alpo::Bug;
    let scripts = scripts();
    std::panic::set_hook(Box::new(|_| {}));
    let unseen: Vec<_> = Bug::ALL
        .into_iter()
        .filter(|bug| *bug != Bug::DamageCut)
        .filter(|bug| {
            !scripts.iter().any(|(_, text)| {
                let told = std::panic::catch_unwind(|| {
                    goldenscript::generate(&mut alpo_stage::Stage::with(*bug), text)
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

#[test]
fn random_stories_break_no_rule_and_end_in_agreement() {
    let stories = std::env::var("STORIES").ok().and_then(|n| n.parse().ok());
    for seed in 0..stories.unwrap_or(STORIES) {
        let script = alpo_stage::chaos::script(seed, 150);
        let told = goldenscript::generate(&mut alpo_stage::Stage::default(), &script);
        if let Err(error) = told {
            panic!("seed {seed}: {error}\n{script}");
        }
    }
}

#[test]
fn every_script_begins_with_a_clause() {
    for (name, text) in scripts() {
        let comment = text.lines().take_while(|line| line.starts_with('#'));
        let comment = comment.collect::<Vec<_>>().join(" ");
        assert!(clauses(&comment).next().is_some(), "{name} cites no clause");
    }
}
