//! Runs the golden scripts of `tests/scripts`, one `#[test]` each.
//!
//! A script is a story of a group: commands, and below `---` the trace they
//! made. Its name is the behaviour it shows, and its first comment cites the
//! clause of `docs/design/groups.md`. `UPDATE_GOLDENFILES=1 cargo test -p tenure-group
//! --test all` writes the traces anew; read every changed line before
//! you commit it. The commands are described in `stage::words`. The list
//! of scripts is made when this file is compiled: touch it after adding one.

use std::fs;
use std::path::Path;

use crate::stage;

test_each_file::test_each_path! { in "crates/group/tests/scripts" as ha => script }

fn script(path: &Path) {
    let mut stage = stage::Stage::default();
    if let Err(error) = goldenscript::run(&mut stage, path) {
        panic!("{}: {error}", path.display());
    }
}

#[test]
fn every_script_cites_a_clause_and_no_workload_ever_runs_twice() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document =
        fs::read_to_string(home.join("../../docs/design/groups.md")).expect("the document");
    let entries = fs::read_dir(home.join("tests/scripts")).expect("a folder");
    let mut count = 0;
    for entry in entries {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a script");
        let name = path.file_name().expect("a name").to_string_lossy();
        let cited = text.lines().next().and_then(|line| line.split('§').nth(1));
        let cited = cited.unwrap_or_else(|| panic!("{name} cites no clause"));
        let section = cited.split(['.', ':', ',']).next().unwrap_or_default();
        let heading = format!("\n## {section}. ");
        assert!(document.contains(&heading), "{name} cites §{section}");
        assert!(!text.contains("!!"), "{name}: a workload ran twice");
        assert!(
            document.contains(&*name),
            "docs/design/groups.md does not name {name}"
        );
        count += 1;
    }
    assert!(count >= 21, "only {count} scripts");
}

/// A judge that waits twice breaks no rule, and only a script can tell of it:
/// healed worlds have more time than that. (The simulator catches all others.)
#[cfg(feature = "planted-bugs")]
#[test]
fn a_judge_that_waits_twice_is_seen_in_a_script() {
    use tenure_group::Bug;
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let name = "two_observers_write_the_same_death";
    let text = fs::read_to_string(home.join(name)).expect("a script");
    let told = goldenscript::generate(&mut stage::Stage::with(Bug::WaitsTwice), &text);
    assert_ne!(told.expect("it goes on"), text);
}
