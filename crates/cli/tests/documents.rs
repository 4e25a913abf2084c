//! The documents lead somewhere: each link to a file or a heading of the
//! repository is good, each document is in the index, and each command is in
//! the reference.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every Markdown file that git would know, by its path from the root.
fn documents() -> BTreeMap<String, String> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.md",
        ])
        .current_dir(root())
        .output()
        .expect("git lists the tree");
    let names = String::from_utf8(listed.stdout).expect("paths in UTF-8");
    let text = |name: &str| Some((name.to_owned(), fs::read_to_string(root().join(name)).ok()?));
    let documents: BTreeMap<_, _> = names.lines().filter_map(text).collect();
    assert!(documents.len() > 20, "{:?}", documents.keys());
    documents
}

/// The lines outside of blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// What a link to each heading ends with, as GitHub makes it.
fn anchors(text: &str) -> BTreeSet<String> {
    let titles = prose(text).filter(|line| line.starts_with('#'));
    let titles = titles.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
    let anchor = |title: String| title.chars().filter(kept).collect::<String>();
    titles.map(|it| anchor(it).replace(' ', "-")).collect()
}

/// What the links of a text lead to.
fn links(text: &str) -> Vec<&str> {
    let after = prose(text).flat_map(|line| line.split("](").skip(1));
    let targets = after.filter_map(|rest| rest.split(')').next());
    targets.filter(|it| !it.contains("://")).collect()
}

/// The path of a link, from the root.
fn resolved(from: &str, link: &str) -> String {
    let folder = Path::new(from).parent().expect("a file");
    let mut path = PathBuf::new();
    for part in folder.join(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path.display().to_string()
}

/// The links that lead nowhere.
fn dead(documents: &BTreeMap<String, String>, there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut dead = Vec::new();
    for (name, text) in documents {
        for link in links(text) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = match path {
                "" => name.clone(),
                path => resolved(name, path),
            };
            let headings = documents.get(&path).map(|text| anchors(text));
            let good = there(&path)
                && (anchor.is_empty() || headings.is_some_and(|it| it.contains(anchor)));
            if !good {
                dead.push(format!("{name}: {link}"));
            }
        }
    }
    dead
}

#[test]
fn every_link_leads_somewhere() {
    let documents = documents();
    let there = |path: &str| root().join(path).exists();
    assert_eq!(dead(&documents, there), [""; 0]);
    // The check sees those that do not.
    let page = "# A page\n[a](b.md) [b](#a-page) [c](#c) [d](../x/c.md#e)\n```\n[f](g)\n```\n";
    let planted = BTreeMap::from([("x/a.md".to_owned(), page.to_owned())]);
    let found = dead(&planted, |path| ["x/a.md", "x/c.md"].contains(&path));
    assert_eq!(found, ["x/a.md: b.md", "x/a.md: #c", "x/a.md: ../x/c.md#e"]);
}

#[test]
fn every_document_is_in_the_index() {
    let documents = documents();
    let index = links(&documents["docs/README.md"]);
    let index = index.into_iter().map(|it| resolved("docs/README.md", it));
    let index: BTreeSet<_> = index.collect();
    let left_out = documents.keys().filter(|it| it.starts_with("docs/"));
    let left_out = left_out.filter(|it| *it != "docs/README.md" && !index.contains(*it));
    assert_eq!(left_out.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn every_command_is_in_the_reference() {
    let said = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .arg("--help")
        .output()
        .expect("tenure runs");
    let said = String::from_utf8(said.stdout).expect("text");
    let commands = said.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| line.starts_with("  "));
    // What is wrapped is indented further.
    let names = commands.filter_map(|line| line[2..].split(' ').next());
    let names = names.filter(|name| !name.is_empty());
    let names: Vec<_> = names.collect();
    assert!(names.contains(&"run") && names.len() > 10, "{names:?}");
    let reference = &documents()["docs/reference/commands.md"];
    let told = |name: &&&str| reference.contains(&format!("| `tenure {name}"));
    let untold: Vec<_> = names.iter().filter(|name| !told(name)).collect();
    assert!(untold.is_empty(), "{untold:?}");
}

/// The README's first command, `cargo run -- run …`, names no binary.
#[test]
fn cargo_run_in_the_root_finds_one_binary() {
    let told = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let default = list(&told["workspace_default_members"]);
    let packages = list(&told["packages"]).into_iter();
    let packages = packages.filter(|package| default.contains(&package["id"]));
    let targets = packages.flat_map(|package| list(&package["targets"]));
    let binaries = targets.filter(|target| list(&target["kind"]).contains(&"bin".into()));
    let names: Vec<_> = binaries.map(|target| target["name"].clone()).collect();
    assert_eq!(names, ["tenure"]);
}
