//! Runs the golden scripts of `tests/scripts`, one `#[test]` each.
//!
//! A script is a story: commands, and below `---` the trace they made. Its
//! name is the behaviour it shows, and its first comment cites the clause of
//! `docs/election.md`. `UPDATE_GOLDENFILES=1 cargo test -p tenure-core`
//! writes the traces anew; read every changed line before you commit it.
//! The commands are described where they are dispatched, in `stage::words`.

mod stage;

use std::path::Path;

test_each_file::test_each_path! { in "crates/core/tests/scripts" => script }

fn script(path: &Path) {
    let mut stage = stage::Stage::new();
    if let Err(error) = goldenscript::run(&mut stage, path) {
        panic!("{}: {error}", path.display());
    }
}
