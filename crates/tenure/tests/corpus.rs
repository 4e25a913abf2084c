//! Bytes that the fuzzer once found worth keeping, replayed.

#[path = "wal/memory.rs"]
#[expect(dead_code, reason = "the other test uses the rest")]
mod memory;
#[path = "wal/model.rs"]
#[expect(dead_code, reason = "the other test uses the rest")]
mod model;
#[path = "corpus/targets.rs"]
mod targets;

use std::collections::BTreeSet;
use std::path::Path;

fn replay(target: &str) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(target);
    let mut seen = BTreeSet::new();
    for file in std::fs::read_dir(dir).expect("the corpus") {
        let bytes = std::fs::read(file.expect("a file").path()).expect("its bytes");
        seen.insert(targets::run(target, &bytes));
        let mut mended = bytes.clone();
        targets::mend(target, &mut mended);
        seen.insert(targets::run(target, &mended));
    }
    assert!(
        seen.len() >= 10,
        "the corpus of {target} shows little: {seen:?}"
    );
}

#[test]
fn segments() {
    replay("wal");
}

#[test]
fn frames() {
    replay("frame");
}
