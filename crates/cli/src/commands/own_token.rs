//! The token that the servers of a user share by themselves.
//!
//! A server without `--tokens`, that only this machine reaches, asks its
//! clients for a token all the same: else every user and every program of the
//! machine may do everything. The token is drawn once per user, under
//! `$XDG_STATE_HOME/tenure/token`, and a program that can read it there may do
//! everything; `tenure` finds it by itself ([`OwnToken`]).
//!
//! Clients of before know nothing of it. So it is asked for where nobody can
//! rely on its absence: by a server whose directory was empty when it was
//! first started, which a file in the directory says from then on.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use tenure_server::transport::OwnToken;
use tenure_server::{Config, draw_token};

use super::secret::{is_loopback, place_once};
use crate::failure::{Failure, usage};

/// The file in a data directory whose server asks for the token. Nothing is in
/// it.
const MARK: &str = "own-token";

/// The token that a server with these settings is to ask for, if there is one.
///
/// # Errors
/// If there is a place for it, and none can be read or written there that only this
/// user can have made; or if there is no place, and the directory says that it is to
/// ask for one.
pub(crate) fn of(settings: &Config) -> Result<Option<OwnToken>, Failure> {
    if settings.no_token || !is_meant(settings) {
        return Ok(None);
    }
    let mark = settings.data.join(MARK);
    let marked = fs::symlink_metadata(&mark).is_ok();
    // A log that cannot be read is refused when it is opened.
    if !marked && !matches!(tenure_server::wal::identity(&settings.data), Ok(None)) {
        let (data, mark) = (settings.data.display(), mark.display());
        tracing::warn!(
            "the data directory {data} was founded before servers asked for a token of their own, \
             so this one asks for none: every user of this machine may do everything. Make the \
             empty file {mark} to have it ask for the one that `tenure` finds by itself, or name \
             others by --tokens"
        );
        return Ok(None);
    }
    let Some(path) = OwnToken::path() else {
        let why = "this user has no home directory";
        if marked {
            return Err(no_place(why));
        }
        tracing::warn!("this server has no token of its own: {why}");
        return Ok(None);
    };
    match of_user(&path, marked)? {
        Ok(token) => {
            // A directory that cannot be written is named when it is opened.
            if let Err(error) = place_mark(&settings.data) {
                tracing::debug!("{}: {error}", settings.data.display());
            }
            Ok(Some(token))
        }
        // Without it every user of this machine may do everything, for good.
        Err(error) => Err(no_place(&format!("{}: {error}", path.display()))),
    }
}

/// Whether nothing else says who may call: there are no tokens, no
/// certificates of clients, and clients are all on this machine.
fn is_meant(settings: &Config) -> bool {
    let certificates = settings.tls.is_some() && settings.client_certificates;
    let here = [&*settings.listen, settings.advertised()];
    settings.tokens.is_none()
        && !settings.insecure
        && !certificates
        && here.iter().all(|address| is_loopback(address))
}

/// There can be no token.
fn no_place(why: &str) -> Failure {
    usage(format!(
        "expected a place for the token that the servers of this user share \
         ($XDG_STATE_HOME/tenure/token, or in ~/.local/state), found none: {why}; name one by \
         $XDG_STATE_HOME, name tokens by --tokens, or do without by --no-token"
    ))
}

/// The token of this user, which is drawn if there is none; why there can be
/// none.
///
/// # Errors
/// If what is there is none of this user alone.
fn of_user(path: &Path, marked: bool) -> Result<io::Result<OwnToken>, Failure> {
    // A link that leads nowhere is there, too.
    if fs::symlink_metadata(path).is_err() {
        if let Err(error) = draw(path) {
            return Ok(Err(error));
        }
        if marked {
            tracing::warn!(
                "{}: the token of this user was gone, and is drawn anew: servers that run ask for \
                 the former one until they are started again",
                path.display()
            );
        }
    }
    let read = OwnToken::read(path).and_then(|found| {
        found.ok_or_else(|| format!("{}: expected a file, found none", path.display()))
    });
    read.map(Ok).map_err(|why| {
        usage(format!(
            "{why}; mend it, or remove it to have another drawn; --tokens and --no-token do \
             without it"
        ))
    })
}

fn draw(path: &Path) -> io::Result<()> {
    place_once(path, format!("{}\n", draw_token()?).as_bytes(), false)?;
    // If it is lost with the machine's power, another is drawn. Nobody waits
    // for the disk, which may hang.
    let path = path.to_owned();
    let sync = move || File::open(path).and_then(|file| file.sync_all());
    std::thread::spawn(move || drop(sync()));
    Ok(())
}

/// Has the server of this directory ask for the token from now on.
pub(crate) fn place_mark(data: &Path) -> io::Result<()> {
    // It is synced with the directory, before anything is acknowledged there.
    place_once(&data.join(MARK), b"", false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn one_is_drawn_for_all_and_what_others_could_have_placed_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state/token");
        let mine = || of_user(&path, false).expect("sound").expect("drawn");
        assert_eq!(mine(), mine());
        let mode = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let refused = |words: &str| {
            let why = of_user(&path, true).expect_err("not sound").to_string();
            assert!(why.contains(words), "{words}: {why}");
        };
        mode(0o644);
        refused("with mode 644");
        mode(0o600);
        fs::write(&path, "short").expect("written");
        refused("expected a token of 16");
        fs::remove_file(&path).expect("it goes");
        symlink("nowhere", &path).expect("a link");
        refused("found none");
        fs::remove_file(&path).expect("it goes");
        fs::create_dir(&path).expect("a directory");
        refused("expected a plain file");
    }

    #[test]
    fn a_mark_is_placed_once_and_is_of_its_owner() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("data");
        for _ in 0..2 {
            place_mark(&data).expect("written");
            let found = fs::metadata(data.join(MARK)).expect("placed");
            assert_eq!(
                (found.len(), found.permissions().mode() & 0o777),
                (0, 0o600)
            );
        }
    }
}
