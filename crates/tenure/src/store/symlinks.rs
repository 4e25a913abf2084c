//! Symbolic links on the way to a store of files.
//!
//! Who owns a link can make it lead elsewhere at any time, and with it every
//! process that opens the store next: two lead. In a directory where others
//! may make files somebody can put a link under the name of a store that is
//! to be. So a link counts only if it is this user's or root's.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
#[cfg(feature = "sqlite")]
use std::path::PathBuf;

use rustix::process::geteuid;

use crate::error::StoreError;

/// How many links in a row are followed, as by the kernel.
#[cfg(feature = "sqlite")]
const LINKS_MAX: usize = 40;

/// Refuses a path with a link that somebody else can turn.
pub(super) fn check(path: &Path) -> Result<(), StoreError> {
    let Ok(path) = std::path::absolute(path) else {
        // Who opens it says why.
        return Ok(());
    };
    let me = geteuid().as_raw();
    for part in path.ancestors() {
        let Ok(found) = fs::symlink_metadata(part) else {
            continue;
        };
        let owner = found.uid();
        if found.is_symlink() && ![me, 0].contains(&owner) {
            return Err(StoreError::broken(format!(
                "expected symbolic links of user {me} or of root alone, found {} of user {owner}, \
                 who can turn it at any time: two processes would use two stores, and two would \
                 lead; name the store itself, or make the link your own",
                part.display()
            )));
        }
    }
    Ok(())
}

/// What a path leads to, also if nothing is there yet.
#[cfg(feature = "sqlite")]
pub(super) fn target(path: &Path) -> PathBuf {
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(next) = fs::read_link(&at) else {
            break;
        };
        at = at.parent().unwrap_or(&at).join(next);
    }
    at
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[cfg(feature = "sqlite")]
    #[test]
    fn links_are_followed_to_what_is_not_there_yet() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("inner")).expect("a directory");
        symlink("inner/second", at("first")).expect("a link");
        symlink(at("file"), at("inner/second")).expect("a link");
        assert_eq!(target(&at("first")), at("file"));
        assert_eq!(target(&at("file")), at("file"));
        symlink("circle", at("circle")).expect("a link");
        target(&at("circle"));
        check(&at("first")).expect("they are our own");
    }

    #[test]
    fn a_link_of_somebody_else_is_refused_wherever_it_stands() {
        const OTHER: u32 = 4_711;
        if !geteuid().is_root() {
            // Nobody else can give a link away.
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("inner")).expect("a directory");
        for (link, path) in [("file", "file"), ("way", "way/file")] {
            symlink("inner", at(link)).expect("a link");
            std::os::unix::fs::lchown(at(link), Some(OTHER), None).expect("given away");
            let refused = check(&at(path)).expect_err("it is another's");
            assert!(refused.to_string().contains("user 4711"), "{refused}");
        }
    }
}
