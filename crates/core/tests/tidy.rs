//! The laws of the house that no compiler keeps.
//!
//! Each check is a function over the text of the tree, and each is tried
//! below on a text that breaks it: a check that cannot fail is no check.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/imports.rs"]
mod imports;

/// The longest a source file may be.
const LINES_MAX: usize = 1_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace")
}

/// Every file that git would know, with its text, by path from the root; but
/// for what the fuzzer has made up, which may be any text.
fn tree() -> BTreeMap<String, String> {
    let root = root();
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .expect("git lists the tree");
    let names = String::from_utf8(listed.stdout).expect("paths in UTF-8");
    let text = |name: &str| Some((name.to_owned(), fs::read_to_string(root.join(name)).ok()?));
    let written = names.lines().filter(|it| !it.starts_with("fuzz/corpus/"));
    let tree: BTreeMap<_, _> = written.filter_map(text).collect();
    // An empty tree keeps every law.
    assert!(
        tree.len() > 50,
        "expected a checkout that git can list, found {} files: {}",
        tree.len(),
        String::from_utf8_lossy(&listed.stderr)
    );
    tree
}

fn sources(tree: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    tree.iter()
        .filter(|(name, _)| name.ends_with(".rs") && !name.contains("/generated/"))
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
    let allowed = name == "crates/runtime/src/clock.rs";
    let reads = [
        concat!("Instant::", "now"),
        concat!("SystemTime::", "now"),
        concat!("clock_", "gettime"),
    ];
    let sources = name.starts_with("crates/") && name.contains("/src/");
    let timeless = sources && !name.starts_with("crates/cli/");
    !allowed && timeless && reads.iter().any(|read| text.contains(read))
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

/// The files of tests that nothing compiles, in a crate that lists its test binaries.
fn uncompiled(tree: &BTreeMap<String, String>, folder: &str) -> Vec<String> {
    let text = |name: &str| tree.get(name).map_or("", String::as_str);
    let manifest = text(&format!("{folder}/Cargo.toml"));
    let all = text(&format!("{folder}/tests/all.rs"));
    let tests = format!("{folder}/tests/");
    let names = tree.keys().filter_map(|path| {
        let path = path.strip_prefix(&tests)?.strip_suffix(".rs")?;
        let name = path.strip_suffix("/main").unwrap_or(path);
        (!name.contains('/')).then_some(name)
    });
    let is_compiled = |name: &str| {
        manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"))
            || all.lines().any(|line| line == format!("mod {name};"))
    };
    let forgotten = names.filter(|name| !is_compiled(name));
    forgotten.map(|name| format!("{tests}{name}")).collect()
}

#[test]
fn every_file_of_tests_is_compiled() {
    let mut tree = tree();
    let manifests = tree
        .iter()
        .filter(|(_, text)| text.contains("\nautotests = false\n"));
    let folders = manifests.filter_map(|(path, _)| path.strip_suffix("/Cargo.toml"));
    let folders: Vec<String> = folders.map(str::to_owned).collect();
    assert!(folders.len() >= 5, "{folders:?}");
    let breaches: Vec<_> = folders
        .iter()
        .flat_map(|it| uncompiled(&tree, it))
        .collect();
    assert_none("add these to all.rs there, or to Cargo.toml", &breaches);
    let folder = "crates/tenure";
    tree.insert(format!("{folder}/tests/forgotten.rs"), String::new());
    assert_eq!(uncompiled(&tree, folder), ["crates/tenure/tests/forgotten"]);
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
        "crates/runtime/src/drive/mod.rs",
        concat!("Instant::", "now()")
    ));
    assert!(!clock_reads(
        "crates/runtime/src/clock.rs",
        concat!("clock_", "gettime")
    ));
}

/// Files that import each other all the same, and why.
const CIRCLES: &[(&[&str], &str)] = &[(
    &[
        "crates/election/src/campaign/draining.rs",
        "crates/election/src/campaign/leading.rs",
        "crates/election/src/campaign/racing.rs",
        "crates/election/src/campaign/standby.rs",
        "crates/election/src/campaign/state.rs",
    ],
    "the states of a campaign consume themselves and return the next one, and a candidate comes \
     back to where it was: together they have 1,300 lines, too many for one file",
)];

/// The circles of imports between the sources of a crate, each file by its
/// path from the root; a file that imports itself is none.
fn circles(tree: &BTreeMap<String, String>, krate: &str) -> Vec<(Vec<String>, String)> {
    let folder = format!("crates/{krate}/src/");
    let files = sources(tree).filter_map(|(name, text)| Some((name.strip_prefix(&folder)?, text)));
    let imports = imports::imports(&files.collect());
    let told = |circle: Vec<&str>| {
        let ties = circle.iter().flat_map(|from| {
            let taken = imports[*from].iter();
            let taken = taken.filter(|(to, _)| circle.contains(&to.as_str()));
            taken.map(move |(to, names)| format!("\n    {from} takes {names:?} from {to}"))
        });
        let text = format!(
            "{folder}: {}{}",
            circle.join(", "),
            ties.collect::<String>()
        );
        let files = circle.iter().map(|it| format!("{folder}{it}"));
        (files.collect(), text)
    };
    imports::circles(&imports).into_iter().map(told).collect()
}

#[test]
fn no_files_import_each_other() {
    let mut tree = tree();
    let folders = tree.keys().filter_map(|it| it.strip_prefix("crates/"));
    let crates = folders.filter_map(|it| Some(it.split_once("/src/")?.0.to_owned()));
    let crates: BTreeSet<String> = crates.collect();
    assert!(crates.len() > 10, "{crates:?}");
    let found: Vec<_> = crates.iter().flat_map(|it| circles(&tree, it)).collect();
    let known = |files: &[String]| CIRCLES.iter().any(|(them, _)| files == *them);
    let breaches = found.iter().filter(|(files, _)| !known(files));
    let breaches: Vec<_> = breaches.map(|(_, text)| text.clone()).collect();
    assert_none("move what these take from each other below them", &breaches);
    let gone = CIRCLES
        .iter()
        .filter(|(them, _)| found.iter().all(|it| it.0 != *them));
    let gone: Vec<_> = gone.map(|it| format!("{it:?}")).collect();
    assert_none("expected the circle to be there, or not in the list", &gone);

    // One that is planted is found: `core/src/rng.rs` imports nothing.
    let clean = circles(&tree, "core");
    assert_eq!(clean, []);
    for (name, text) in [
        ("crates/core/src/rng.rs", "use super::time::Instant;"),
        ("crates/core/src/time.rs", "fn seed() -> crate::rng::Rng {}"),
    ] {
        let planted = format!("{}\n{text}\n", tree[name]);
        tree.insert(name.to_owned(), planted);
    }
    let planted = circles(&tree, "core");
    let [(files, _)] = &planted[..] else {
        panic!("expected one circle, found {planted:?}");
    };
    assert_eq!(
        files[..],
        ["crates/core/src/rng.rs", "crates/core/src/time.rs"]
    );
}

/// What the sources of a crate import, by their texts.
fn imported(files: &[(&str, &str)]) -> Vec<String> {
    let imports = imports::imports(&files.iter().copied().collect());
    let each = imports.iter().flat_map(|(from, taken)| {
        let taken = taken.iter();
        taken.map(move |(to, names)| format!("{from} {to} {names:?}"))
    });
    each.collect()
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let lib = ("lib.rs", "mod a;\nmod b;\npub use b::B;");
    let b = ("b.rs", "pub struct B;\npub fn make() {}");
    for text in [
        "use super::B;",
        "use crate::{b::{self as other, B}, a};",
        "use crate::b;\nfn it(_: b::B) {}",
        "use super::*;\nfn it() -> Vec<B> { Vec::new() }",
        "struct A(crate::b::B);",
        "mod inner { use super::super::b::B; }",
    ] {
        let found = imported(&[lib, ("a.rs", text), b]);
        assert_eq!(found, ["a.rs b.rs {\"B\"}"], "{text}");
    }
    for text in [
        "pub use super::b::B;",
        "#[cfg(test)]\nmod tests {\n    use super::super::B;\n}",
        "#[cfg(test)]\nuse super::B;\nstruct A;",
        "// use super::B;\n/* B */ const A: &str = \"super::B\"; // '\"'",
        "struct B;\nfn it<'a>(it: &'a str) -> B { B }",
        "fn it(make: u8) -> u8 { make }",
    ] {
        let found = imported(&[lib, ("a.rs", text), b]);
        assert_eq!(found, [""; 0], "{text}");
    }
}

/// What a crate depends on, a line each: with all features, or with those that
/// it has by itself.
fn dependencies_with(package: &str, all_features: bool) -> Vec<String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["tree", "--offline", "-p", package]);
    command.args(["-e", "normal", "--prefix", "none"]);
    if all_features {
        command.arg("--all-features");
    }
    let listed = command.current_dir(root()).output();
    let listed = listed.expect("cargo prints the tree");
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

fn dependencies(package: &str) -> Vec<String> {
    dependencies_with(package, true)
}

/// Those of the crates `named` that are among the dependencies.
fn among<'a>(found: &[String], named: &[&'a str]) -> Vec<&'a str> {
    let is = |name: &str| found.iter().any(|it| it.split(' ').next() == Some(name));
    named.iter().copied().filter(|name| is(name)).collect()
}

/// The crates, lowest first, as ARCHITECTURE.md lists them.
fn crates(map: &str) -> Vec<&str> {
    let lines = map.lines().filter(|line| line.starts_with("crates/"));
    lines
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect()
}

#[test]
fn a_crate_uses_only_earlier_ones() {
    let map = &tree()["ARCHITECTURE.md"];
    let crates = crates(map);
    assert!(crates.len() > 10, "{crates:?}");
    let mut breaches = Vec::new();
    for (at, name) in crates.iter().enumerate() {
        for later in among(&dependencies(name), &crates[at + 1..]) {
            breaches.push(format!("{name} uses {later}"));
        }
    }
    assert_none(
        "a crate uses only those above it in the map, but",
        &breaches,
    );
    assert_eq!(
        among(
            &dependencies("tenure-cli"),
            &["tenure-server", "tenure-alp"]
        ),
        ["tenure-server"]
    );
}

#[test]
fn a_server_uses_neither_the_library_nor_the_client() {
    let found = dependencies("tenure-server");
    assert_eq!(among(&found, &["tenure", "tenure-client"]), [""; 0]);
}

#[test]
fn an_election_on_sqlite_brings_no_server_along() {
    const HEAVY: &[&str] = &[
        "axum",
        "hyper",
        "tonic",
        "tonic-reflection",
        "prometheus-client",
        "rustls",
        "aws-lc-rs",
        "tenure-alpo",
        "tenure-api",
    ];
    assert_eq!(among(&dependencies_with("tenure", false), HEAVY), [""; 0]);
    let everything = among(&dependencies("tenure"), HEAVY);
    assert!(everything.contains(&"tonic"), "{everything:?}");
}

#[test]
fn the_core_depends_on_nothing() {
    let found = dependencies("tenure-core");
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn machines_and_the_simulator_depend_on_machines_alone() {
    for krate in [
        "tenure-election",
        "tenure-group",
        "tenure-alpo",
        "tenure-sim",
    ] {
        let found = dependencies(krate);
        let strangers: Vec<_> = found
            .iter()
            .filter(|line| !line.starts_with("tenure-"))
            .collect();
        assert!(strangers.is_empty(), "{krate}: {strangers:?}");
    }
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

/// The rights that a token may have, as the server reads them, of which the
/// threat model says nothing.
fn untold_rights(server: &str, model: &str) -> Vec<String> {
    let rights = server.split("struct Rights {").nth(1);
    let rights = rights.and_then(|it| it.split('}').next()).expect("rights");
    let lines = rights
        .lines()
        .map(str::trim)
        .filter(|it| !it.starts_with("//"));
    let lines = lines.map(|it| it.trim_start_matches("pub(super) "));
    let fields = lines.filter_map(|it| it.split_once(": "));
    let rights =
        fields.filter(|(name, _)| !["sha256", "name"].contains(name) && !name.starts_with("quota"));
    let told = |right: &str| {
        let row =
            |it: &str| it.starts_with("| a token with `") && it.contains(&format!("`{right}"));
        model.lines().any(row)
    };
    let untold = rights.filter(|(right, _)| !told(right));
    untold.map(|(right, _)| right.to_owned()).collect()
}

#[test]
fn each_right_of_a_token_is_in_the_threat_model() {
    let tree = tree();
    let server = &tree["crates/server/src/tokens/rights.rs"];
    let model = &tree["SECURITY.md"];
    assert_none(
        "expected a row of SECURITY.md",
        &untold_rights(server, model),
    );
    let wider = server.replace("struct Rights {", "struct Rights {\n    forge: bool,");
    assert_eq!(untold_rights(&wider, model), ["forge"]);
    assert_eq!(untold_rights(server, "").len(), 6);
}

/// The names in the table of scenarios, in `docs/design/groups.md`.
fn scenarios(text: &str) -> Vec<&str> {
    let table = text.split("| scenario | clause |").nth(1);
    let rows = table.unwrap_or_default().lines().skip(2);
    let rows = rows.take_while(|row| row.starts_with('|'));
    rows.filter_map(|row| row.split('`').nth(1)).collect()
}

#[test]
fn each_scenario_of_the_ha_manager_is_told_everywhere() {
    let tree = tree();
    let text = |name: &str| tree.get(name).map_or("", String::as_str);
    let names = scenarios(text("docs/design/groups.md"));
    assert_eq!(names.len(), 20, "{names:?}");
    let simulator = text("crates/sim/tests/ha.rs");
    let library = text("crates/cli/tests/ha/scenarios/mod.rs");
    let (_, library) = library.split_once("on_each_store! {").expect("a list");
    let mut breaches = Vec::new();
    for name in names {
        let script = format!("crates/group/tests/scripts/{name}");
        let told = [
            ("a script", tree.contains_key(&script)),
            ("the simulator", simulator.contains(&format!("fn {name}()"))),
            ("the library", library.lines().any(|it| it.trim() == name)),
        ];
        let missing = told.iter().filter(|(_, told)| !told);
        breaches.extend(missing.map(|(place, _)| format!("{name}: {place}")));
    }
    assert_none("expected each scenario to be told in", &breaches);
}
