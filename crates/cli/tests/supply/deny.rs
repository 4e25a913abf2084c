//! `deny.toml` is kept: licences, bans and sources.
//!
//! The same file is read by cargo-deny, which is the long form: to build it
//! takes minutes, and no package of a registry brings a recent one.

use std::collections::{BTreeMap, BTreeSet};

use crate::{locked, packages, parsed};

/// The texts of a list in deny.toml.
fn texts<'a>(deny: &'a toml::Table, section: &str, key: &str) -> Vec<&'a str> {
    let list = deny[section][key].as_array().expect("a list");
    list.iter().map(|it| it.as_str().expect("text")).collect()
}

/// Words and brackets of an SPDX expression. An older way to write OR is a
/// slash.
fn words(expression: &str) -> Vec<String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    let spaced = spaced.replace('/', " OR ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// Whether an SPDX expression can be kept with the licences that are allowed,
/// and which licences it names. What is no expression cannot.
fn keeps(expression: &str, allowed: &[&str]) -> (bool, BTreeSet<String>) {
    let words = words(expression);
    let mut named = BTreeSet::new();
    let judged = either(&words, allowed, &mut named);
    (judged == Some((true, &[])), named)
}

/// Whether what begins here can be kept, and what follows it.
type Judged<'a> = Option<(bool, &'a [String])>;

fn either<'a>(words: &'a [String], allowed: &[&str], named: &mut BTreeSet<String>) -> Judged<'a> {
    let (mut kept, mut rest) = both(words, allowed, named)?;
    while let Some(more) = rest.strip_prefix(&["OR".to_owned()]) {
        let (also, after) = both(more, allowed, named)?;
        (kept, rest) = (kept | also, after);
    }
    Some((kept, rest))
}

fn both<'a>(words: &'a [String], allowed: &[&str], named: &mut BTreeSet<String>) -> Judged<'a> {
    let (mut kept, mut rest) = one(words, allowed, named)?;
    while let Some(more) = rest.strip_prefix(&["AND".to_owned()]) {
        let (also, after) = one(more, allowed, named)?;
        (kept, rest) = (kept & also, after);
    }
    Some((kept, rest))
}

fn one<'a>(words: &'a [String], allowed: &[&str], named: &mut BTreeSet<String>) -> Judged<'a> {
    match words {
        [open, inside @ ..] if open == "(" => {
            let (kept, rest) = either(inside, allowed, named)?;
            let rest = rest.strip_prefix(&[")".to_owned()])?;
            Some((kept, rest))
        }
        [word, ..] if ["OR", "AND", "WITH", ")"].contains(&word.as_str()) => None,
        // An exception makes another licence, to be allowed by itself.
        [licence, with, exception, rest @ ..] if with == "WITH" => {
            let whole = format!("{licence} WITH {exception}");
            let kept = allowed.contains(&whole.as_str());
            named.insert(whole);
            Some((kept, rest))
        }
        [licence, rest @ ..] => {
            named.insert(licence.clone());
            Some((allowed.contains(&licence.as_str()), rest))
        }
        [] => None,
    }
}

/// The licences that are not allowed, and what is allowed and not needed.
fn unlicensed(packages: &BTreeMap<String, String>, deny: &toml::Table) -> Vec<String> {
    let allowed = texts(deny, "licenses", "allow");
    let mut breaches = Vec::new();
    let mut met = BTreeSet::new();
    for (package, expression) in packages {
        let (kept, named) = keeps(expression, &allowed);
        met.extend(named);
        if !kept {
            breaches.push(format!("{package}: {expression:?} is not allowed"));
        }
    }
    let unmet = allowed.iter().filter(|it| !met.contains(**it));
    breaches.extend(unmet.map(|it| format!("{it} is allowed, and nothing has it")));
    breaches
}

fn banned(packages: &BTreeMap<String, String>, deny: &toml::Table) -> Vec<String> {
    let list = deny["bans"]["deny"].as_array().expect("a list");
    let mut breaches = Vec::new();
    for ban in list {
        let name = ban["crate"].as_str().expect("a name");
        let found = packages.keys();
        let found = found.filter(|it| it.split(' ').next() == Some(name));
        breaches.extend(found.map(|it| format!("{it}: {}", ban["reason"])));
    }
    breaches
}

/// Packages of Cargo.lock, those of all platforms, that are neither our own nor
/// of a registry that is allowed, or have no checksum.
fn strangers(lock: &toml::Table, own: &BTreeSet<String>, deny: &toml::Table) -> Vec<String> {
    assert_eq!(deny["sources"]["unknown-registry"].as_str(), Some("deny"));
    assert_eq!(deny["sources"]["unknown-git"].as_str(), Some("deny"));
    let registries = texts(deny, "sources", "allow-registry");
    let known = |(package, entry): &(&String, &&toml::Table)| match entry.get("source") {
        None => own.contains(package.as_str()),
        Some(source) => {
            let source = source.as_str().unwrap_or_default();
            let registry = source.strip_prefix("registry+").unwrap_or_default();
            registries.contains(&registry) && entry.contains_key("checksum")
        }
    };
    let packages = locked(lock);
    let strangers = packages.iter().filter(|it| !known(it));
    strangers
        .map(|(package, entry)| format!("{package}: {:?}", entry.get("source")))
        .collect()
}

/// Everything that any feature of any member takes, for its tests too.
fn everything() -> BTreeMap<String, String> {
    let kinds = "normal,build,dev";
    let found = packages(&["--workspace", "--all-features", "--edges", kinds]);
    assert!(found.len() > 200, "{found:?}");
    found
}

/// The members of the workspace, by their manifests.
fn members() -> BTreeSet<String> {
    let workspace = parsed("Cargo.toml");
    let version = workspace["workspace"]["package"]["version"].as_str();
    let folders = workspace["workspace"]["members"].as_array();
    let folders = folders.expect("members").iter();
    let member = |folder: &toml::Value| {
        let manifest = parsed(&format!("{}/Cargo.toml", folder.as_str().expect("text")));
        let name = manifest["package"]["name"].as_str().expect("a name");
        format!("{name} {}", version.expect("a version"))
    };
    folders.map(member).collect()
}

fn with(
    packages: &BTreeMap<String, String>,
    name: &str,
    licence: &str,
) -> BTreeMap<String, String> {
    let mut planted = packages.clone();
    planted.insert(name.to_owned(), licence.to_owned());
    planted
}

#[test]
fn licences_and_bans_are_kept() {
    let deny = parsed("deny.toml");
    let found = everything();
    assert_eq!(unlicensed(&found, &deny), Vec::<String>::new());
    assert_eq!(banned(&found, &deny), Vec::<String>::new());

    for licence in [
        "GPL-3.0-only",
        "MIT AND GPL-2.0",
        "",
        "MIT OR",
        "(MIT",
        "MIT ISC",
    ] {
        let planted = with(&found, "planted 1.0.0", licence);
        assert_eq!(unlicensed(&planted, &deny).len(), 1, "{licence}");
    }
    for licence in [
        "GPL-3.0-only OR MIT",
        "MIT/GPL-2.0",
        "MIT AND (ISC OR GPL-2.0)",
    ] {
        let planted = with(&found, "planted 1.0.0", licence);
        assert_eq!(unlicensed(&planted, &deny).len(), 0, "{licence}");
    }
    let mut wider = deny.clone();
    let allow = wider["licenses"]["allow"].as_array_mut().expect("a list");
    allow.push("GPL-3.0-only".into());
    assert_eq!(unlicensed(&found, &wider).len(), 1);

    let planted = with(&found, "ring 0.17.14", "MIT");
    assert_eq!(banned(&planted, &deny).len(), 1);
    let planted = with(&found, "ringbuffer 0.1.0", "MIT");
    assert_eq!(banned(&planted, &deny).len(), 0);
}

#[test]
fn every_package_is_ours_or_of_the_registry() {
    let (deny, lock, own) = (parsed("deny.toml"), parsed("Cargo.lock"), members());
    assert_eq!(strangers(&lock, &own, &deny), Vec::<String>::new());

    let planted = |entry: &str| {
        let mut lock = lock.clone();
        let packages = lock["package"].as_array_mut().expect("packages");
        packages.push(toml::Value::Table(entry.parse().expect("an entry")));
        strangers(&lock, &own, &deny).len()
    };
    let registry = "registry+https://github.com/rust-lang/crates.io-index";
    let entry = |source: &str| format!("name = \"a\"\nversion = \"1.0.0\"\n{source}");
    assert_eq!(planted(&entry("")), 1);
    assert_eq!(
        planted(&entry("source = \"git+https://example.org/a#1\"")),
        1
    );
    assert_eq!(
        planted(&entry(
            "source = \"registry+https://example.org\"\nchecksum = \"1\""
        )),
        1
    );
    assert_eq!(planted(&entry(&format!("source = \"{registry}\""))), 1);
    assert_eq!(
        planted(&entry(&format!(
            "source = \"{registry}\"\nchecksum = \"1\""
        ))),
        0
    );
}
