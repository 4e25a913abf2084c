//! The bill of materials that `dist/sbom.sh` prints names each package of the
//! released binary, with version, licence and checksum.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::{locked, output, packages, parsed, root};

fn printed() -> String {
    output(&mut Command::new(root().join("dist/sbom.sh")))
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_default()
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().map_or(&[], Vec::as_slice)
}

/// The components that are packages, "NAME VERSION", the binary's own included.
fn components(bill: &Value) -> BTreeMap<String, &Value> {
    let all = list(bill, "components").iter();
    let all = all.chain([&bill["metadata"]["component"]]);
    let of_cargo = all.filter(|it| text(it, "purl").starts_with("pkg:cargo/"));
    let named = of_cargo.map(|it| (format!("{} {}", text(it, "name"), text(it, "version")), it));
    named.collect()
}

/// What is missing in the bill, or wrong, a line each.
fn breaches(
    bill: &Value,
    linked: &BTreeSet<String>,
    built: &BTreeMap<String, String>,
    lock: &toml::Table,
) -> Vec<String> {
    let (found, locked) = (components(bill), locked(lock));
    let mut breaches = Vec::new();
    for (package, licence) in built {
        let Some(component) = found.get(package) else {
            breaches.push(format!("{package} is missing"));
            continue;
        };
        let expected = licence.replace(" / ", "/").replace('/', " OR ");
        let said = list(component, "licenses").first();
        if said.map(|it| text(it, "expression")) != Some(&expected) || expected.is_empty() {
            breaches.push(format!(
                "{package}: expected licence {expected}, found {said:?}"
            ));
        }
        let checksum = locked[package]
            .get("checksum")
            .and_then(toml::Value::as_str);
        let said = list(component, "hashes").first();
        if said.map(|it| text(it, "content")) != checksum {
            breaches.push(format!(
                "{package}: expected checksum {checksum:?}, found {said:?}"
            ));
        }
        let (name, version) = package.split_once(' ').expect("a version");
        if text(component, "purl") != format!("pkg:cargo/{name}@{version}") {
            breaches.push(format!("{package}: {}", text(component, "purl")));
        }
        let scope = if linked.contains(package) {
            "required"
        } else {
            "excluded"
        };
        if text(component, "type") == "library" && text(component, "scope") != scope {
            breaches.push(format!("{package}: expected scope {scope}"));
        }
    }
    let extra = found.keys().filter(|it| !built.contains_key(*it));
    breaches.extend(extra.map(|it| format!("{it} is not built")));
    breaches.extend(dangling(bill, &found));
    for other in ["sqlite", "aws-lc", "glibc", "rust-std"] {
        let all = list(bill, "components").iter();
        if !all
            .clone()
            .any(|it| text(it, "name") == other && !text(it, "version").is_empty())
        {
            breaches.push(format!("{other} has no version"));
        }
    }
    breaches
}

/// References to what is not there, and components without dependencies told.
fn dangling(bill: &Value, found: &BTreeMap<String, &Value>) -> Vec<String> {
    let known: BTreeSet<&str> = found.values().map(|it| text(it, "bom-ref")).collect();
    let dependencies = list(bill, "dependencies");
    let told: BTreeSet<&str> = dependencies.iter().map(|it| text(it, "ref")).collect();
    let needed = dependencies.iter().flat_map(|it| list(it, "dependsOn"));
    let needed: BTreeSet<&str> = needed.filter_map(Value::as_str).collect();
    let top = text(&bill["metadata"]["component"], "bom-ref");
    let mut breaches = Vec::new();
    for it in known.symmetric_difference(&told) {
        breaches.push(format!("{it} is not in components and dependencies both"));
    }
    for it in known
        .iter()
        .filter(|it| **it != top && !needed.contains(**it))
    {
        breaches.push(format!("nothing depends on {it}"));
    }
    for it in needed.difference(&known) {
        breaches.push(format!("{it} is needed, and no component"));
    }
    breaches
}

#[test]
fn each_package_is_in_the_bill_of_materials() {
    let printed = printed();
    assert_eq!(printed, self::printed(), "expected the same each time");
    let bill: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(text(&bill, "bomFormat"), "CycloneDX");

    let of = |edges| {
        packages(&[
            "--package",
            "tenure-cli",
            "--features",
            "full",
            "--edges",
            edges,
        ])
    };
    let (linked, built) = (of("normal,no-proc-macro"), of("normal,build"));
    assert!(linked.len() > 100 && built.len() > linked.len());
    let linked: BTreeSet<String> = linked.into_keys().collect();
    let lock = parsed("Cargo.lock");
    let judged = |bill: &Value| breaches(bill, &linked, &built, &lock);
    assert_eq!(judged(&bill), Vec::<String>::new());

    // It would notice.
    let plant = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut bill = bill.clone();
        change(bill["components"].as_array_mut().expect("components"));
        judged(&bill).len()
    };
    let at = |name: &str, all: &[Value]| all.iter().position(|it| text(it, "name") == name);
    let tokio = |all: &[Value]| at("tokio", all).expect("tokio");
    assert!(plant(&|all| drop(all.remove(tokio(all)))) > 0);
    for (key, value) in [
        ("version", "0.0.1".into()),
        ("scope", "excluded".into()),
        ("licenses", serde_json::json!([{"expression": "ISC"}])),
        ("hashes", serde_json::json!([])),
        ("purl", "pkg:cargo/tokio@0.0.1".into()),
        ("bom-ref", "another".into()),
    ] {
        let changed = plant(&|all| {
            let tokio = tokio(all);
            all[tokio][key] = Value::clone(&value);
        });
        assert!(changed > 0, "{key}");
    }
    let no_version = plant(&|all| {
        let glibc = at("glibc", all).expect("glibc");
        all[glibc]["version"] = "".into();
    });
    assert!(no_version > 0);
}
