//! What the project is built from, and what it says of that: `deny.toml` is
//! kept, and the bill of materials beside the released binary is complete.
//!
//! Left out: advisories, whose database is not in the tree, and packages that
//! only other platforms take; `cargo deny` looks at both (CONTRIBUTING.md).

mod bill;
mod deny;
mod fuzz;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).expect(name)
}

fn parsed(name: &str) -> toml::Table {
    read(name).parse().expect(name)
}

fn output(command: &mut Command) -> String {
    let done = command.current_dir(root()).output().expect("it runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
    String::from_utf8(done.stdout).expect("text")
}

/// The packages of a dependency tree, "NAME VERSION", with their licences.
/// `cargo tree` resolves features as a build does. `cargo metadata` does not:
/// it also lists what only features that are off would take.
fn packages(args: &[&str]) -> BTreeMap<String, String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--prefix", "none"]);
    let text = output(tree.args(["--format", "{p}|{l}"]).args(args));
    let package = |line: &str| {
        let (package, licence) = line.split_once('|').expect("a licence");
        let mut words = package.split(' ');
        let name = words.next().expect("a name");
        let version = words.next().and_then(|it| it.strip_prefix('v'));
        let name = format!("{name} {}", version.expect("a version"));
        // A package whose dependencies were printed before has a mark.
        let licence = licence.trim_end_matches("(*)").trim_end();
        (name, licence.to_owned())
    };
    let lines = text.lines().filter(|it| !it.is_empty());
    lines.map(package).collect()
}

/// The packages of Cargo.lock, "NAME VERSION", with their entries.
fn locked(lock: &toml::Table) -> BTreeMap<String, &toml::Table> {
    let entries = lock["package"].as_array().expect("packages");
    let entries = entries.iter().map(|it| it.as_table().expect("a package"));
    let named = entries.map(|it| {
        let of = |key: &str| it[key].as_str().expect("text");
        (format!("{} {}", of("name"), of("version")), it)
    });
    named.collect()
}
