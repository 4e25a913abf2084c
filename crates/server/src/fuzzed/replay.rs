//! What the fuzzer found worth keeping, replayed. (`crates/cli` takes this
//! file too.)

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// As few inputs as a corpus never has: one that is nearly empty shows that
/// files were lost.
const LEAST: usize = 10;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

/// The names of all corpora, sorted.
pub(crate) fn corpora() -> Vec<String> {
    let listed = fs::read_dir(directory()).expect("fuzz/corpus");
    let name = |it: fs::DirEntry| it.file_name().into_string().expect("text");
    let mut names: Vec<_> = listed.map(|it| name(it.expect("an entry"))).collect();
    names.sort();
    names
}

/// Gives a target everything in its corpus, and names what breaks a promise.
pub(crate) fn replay((name, target): (&str, fn(&[u8]))) {
    let directory = directory().join(name);
    let listed = fs::read_dir(&directory).expect(name);
    let mut files: Vec<_> = listed.map(|it| it.expect("an entry").path()).collect();
    files.sort();
    let count = files.len();
    assert!(
        count >= LEAST,
        "expected a corpus in {}, found {count} files",
        directory.display()
    );
    files.retain(|file| {
        let bytes = fs::read(file).expect("a readable file");
        catch_unwind(|| target(&bytes)).is_err()
    });
    assert!(files.is_empty(), "{name} breaks a promise at {files:?}");
}
