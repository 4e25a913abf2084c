//! The fuzzer's workspace goes with the tree: it tries the very versions that
//! are released, and can be built. Only the text is looked at, since to build it
//! takes minutes and a C++ compiler.

use std::collections::BTreeSet;

use crate::{locked, parsed};

#[test]
fn the_fuzzer_takes_the_versions_that_are_released() {
    let own = ["tenure-fuzz ", "libfuzzer-sys ", "arbitrary "];
    let (root, fuzz) = (parsed("Cargo.lock"), parsed("fuzz/Cargo.lock"));
    let (root, fuzz) = (locked(&root), locked(&fuzz));
    assert!(fuzz.len() > 100, "expected a lock, found {}", fuzz.len());
    let others = fuzz.keys().filter(|it| !root.contains_key(*it));
    let others = others.filter(|it| !own.iter().any(|own| it.starts_with(own)));
    let others: Vec<_> = others.collect();
    assert!(
        others.is_empty(),
        "expected the versions of Cargo.lock in fuzz/Cargo.lock, found {others:?}: see CONTRIBUTING.md"
    );
}

#[test]
fn the_fuzzer_has_what_the_command_line_is_built_from() {
    let (cli, fuzz) = (parsed("crates/cli/Cargo.toml"), parsed("fuzz/Cargo.toml"));
    let names = |it: &toml::Table, part: &str| -> BTreeSet<String> {
        it[part].as_table().expect(part).keys().cloned().collect()
    };
    let mut wanted = names(&cli, "dependencies");
    wanted.insert("libfuzzer-sys".to_owned());
    assert_eq!(names(&fuzz, "dependencies"), wanted);
    for (name, value) in cli["dependencies"].as_table().expect("dependencies") {
        if !name.starts_with("tenure") {
            assert_eq!(&fuzz["dependencies"][name], value, "{name}");
        }
    }
    // What a feature of the command line turns on, the fuzzer can turn on too.
    let missing: Vec<_> = names(&cli, "features")
        .difference(&names(&fuzz, "features"))
        .cloned()
        .collect();
    assert_eq!(missing, ["full"]);
}
