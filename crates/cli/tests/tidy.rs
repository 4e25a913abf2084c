//! The laws of the house that no compiler keeps.
//!
//! Each check is a function over the text of the tree, and each is tried
//! below on a text that breaks it: a check that cannot fail is no check.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The longest a source file may be.
const LINES_MAX: usize = 600;

/// The library's modules, lowest first; a module uses only those of lower
/// layers, or of its own.
const LAYERS: &[(&str, u32)] = &[
    ("error", 1),
    ("clock", 1),
    ("drive", 2),
    ("wal", 3),
    ("store", 4),
    ("election", 5),
    ("lib", 9),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace")
}

/// Every file that git would know, with its text, by path from the root.
fn tree() -> BTreeMap<String, String> {
    let root = root();
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .expect("git lists the tree");
    let names = String::from_utf8(listed.stdout).expect("paths in UTF-8");
    let text = |name: &str| Some((name.to_owned(), fs::read_to_string(root.join(name)).ok()?));
    names.lines().filter_map(text).collect()
}

fn sources(tree: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    tree.iter()
        .filter(|(name, _)| name.ends_with(".rs"))
        .map(|(name, text)| (&**name, &**text))
}

fn assert_none(law: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{law}\n  {}", breaches.join("\n  "));
}

/// A file begins with prose that says what it is.
fn undocumented(name: &str, text: &str) -> bool {
    !text.starts_with("//!") && !name.ends_with("build.rs")
}

/// What must not stay behind.
fn leftovers(text: &str) -> Option<&'static str> {
    const BANNED: &[&str] = &[
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("TO", "DO"),
        concat!("dbg", "!("),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[", "ignore"),
        concat!("should", "_panic"),
        concat!("..", "/shared"),
        concat!("/wo", "rk/"),
    ];
    BANNED
        .iter()
        .find(|banned| text.contains(**banned))
        .copied()
}

/// Reads of the system's clock outside the one file that may.
fn clock_reads(name: &str, text: &str) -> bool {
    let allowed = name == "crates/tenure/src/clock.rs";
    let reads = [
        concat!("Instant::", "now"),
        concat!("SystemTime::", "now"),
        concat!("clock_", "gettime"),
    ];
    let library = name.starts_with("crates/tenure/src/") || name.starts_with("crates/core/src/");
    let simulator = name.starts_with("crates/sim/src/");
    !allowed && (library || simulator) && reads.iter().any(|read| text.contains(read))
}

fn layer(module: &str) -> Option<u32> {
    LAYERS
        .iter()
        .find(|(name, _)| *name == module)
        .map(|(_, layer)| *layer)
}

/// Uses of a higher layer, as `(line, module)`.
fn upward_uses(name: &str, text: &str) -> Vec<String> {
    let Some(rest) = name.strip_prefix("crates/tenure/src/") else {
        return Vec::new();
    };
    let module = rest.split(['/', '.']).next().unwrap_or_default();
    let Some(own) = layer(module) else {
        return vec![format!("{name}: module {module} has no layer; give it one")];
    };
    let mut breaches = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
    {
        for used in line.split("crate::").skip(1) {
            let end = |c: char| !c.is_alphanumeric() && c != '_';
            let used = used.split(end).next().unwrap_or_default();
            if layer(used).is_some_and(|other| other > own) && !text.contains("cfg(test)") {
                breaches.push(format!("{name} (layer {own}) uses {used}"));
            }
        }
    }
    breaches
}

#[test]
fn every_file_says_what_it_is() {
    let tree = tree();
    let breaches: Vec<_> = sources(&tree)
        .filter(|(name, text)| undocumented(name, text))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_none(
        "expected a module doc (//!) on the first line of",
        &breaches,
    );
    assert!(undocumented("a.rs", "fn main() {}"));
}

#[test]
fn no_file_grows_beyond_a_walk() {
    let tree = tree();
    let breaches: Vec<_> = sources(&tree)
        .map(|(name, text)| (name, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(name, lines)| format!("{name}: {lines} lines, at most {LINES_MAX}"))
        .collect();
    assert_none("split these by idea", &breaches);
}

#[test]
fn nothing_is_left_over() {
    let tree = tree();
    let breaches: Vec<_> = tree
        .iter()
        .filter(|(name, _)| !name.ends_with(".lock") && !name.ends_with("tidy.rs"))
        .filter_map(|(name, text)| Some(format!("{name}: {}", leftovers(text)?)))
        .collect();
    assert_none("expected finished work, found", &breaches);
    assert_eq!(
        leftovers(concat!("// FIX", "ME: later")),
        Some(concat!("FIX", "ME"))
    );
}

#[test]
fn the_clock_is_read_in_one_file() {
    let tree = tree();
    let breaches: Vec<_> = sources(&tree)
        .filter(|(name, text)| clock_reads(name, text))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_none(
        "system time is read in clock.rs only, but also in",
        &breaches,
    );
    assert!(clock_reads(
        "crates/tenure/src/drive/mod.rs",
        concat!("Instant::", "now()")
    ));
    assert!(!clock_reads(
        "crates/tenure/src/clock.rs",
        concat!("clock_", "gettime")
    ));
}

#[test]
fn arrows_go_one_way() {
    let tree = tree();
    let breaches: Vec<_> = sources(&tree)
        .flat_map(|(name, text)| upward_uses(name, text))
        .collect();
    assert_none("a module uses only lower layers, but", &breaches);
    let bad = upward_uses(
        "crates/tenure/src/store/mod.rs",
        "use crate::election::Election;",
    );
    assert_eq!(bad.len(), 1);
    assert_eq!(
        upward_uses(
            "crates/tenure/src/election/a.rs",
            "use crate::store::Store;"
        )
        .len(),
        0
    );
    assert_eq!(upward_uses("crates/tenure/src/novelty.rs", "").len(), 1);
}

/// The dependency tree of a crate, a line each.
fn dependencies(package: &str) -> Vec<String> {
    let listed = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "-p",
            package,
            "-e",
            "normal",
            "--prefix",
            "none",
        ])
        .current_dir(root())
        .output()
        .expect("cargo prints the tree");
    assert!(
        listed.status.success(),
        "{}",
        String::from_utf8_lossy(&listed.stderr)
    );
    String::from_utf8_lossy(&listed.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_core_depends_on_nothing() {
    assert_eq!(
        dependencies("tenure-core").len(),
        1,
        "{:?}",
        dependencies("tenure-core")
    );
}

#[test]
fn the_simulator_depends_on_the_core_alone() {
    let found = dependencies("tenure-sim");
    let strangers: Vec<_> = found
        .iter()
        .filter(|line| !line.starts_with("tenure-"))
        .collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

#[test]
fn there_is_one_tls_stack() {
    let found = dependencies("tenure-cli");
    let banned = |line: &&String| line.starts_with("ring ") || line.starts_with("openssl ");
    assert_eq!(
        found.iter().find(banned),
        None,
        "rustls with aws-lc-rs is the one TLS stack"
    );
}

#[test]
fn the_released_binary_has_no_planted_bugs() {
    let listed = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "-p",
            "tenure-cli",
            "--all-features",
            "-e",
            "features,normal",
        ])
        .current_dir(root())
        .output()
        .expect("cargo prints the tree");
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(
        listed.status.success() && text.contains("tenure-core"),
        "{text}"
    );
    assert!(!text.contains("planted-bugs"), "{text}");
}

#[test]
fn every_document_has_one_title() {
    let tree = tree();
    let mut breaches = Vec::new();
    for (name, text) in tree.iter().filter(|(name, _)| name.ends_with(".md")) {
        let mut fenced = false;
        let mut titles = 0;
        for line in text.lines() {
            fenced ^= line.trim_start().starts_with("```");
            titles += usize::from(!fenced && line.starts_with("# "));
        }
        if titles != 1 {
            breaches.push(format!("{name}: {titles} titles"));
        }
    }
    assert_none("expected one title in", &breaches);
}
