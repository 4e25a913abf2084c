//! `tenure restore`: a new cluster that begins with a backup.
//!
//! The whole file is read and checked before the directory is touched, so
//! what was cut short or damaged leaves nothing behind.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tenure::core::ids::Key;
use tenure::election::Config;
use tenure_alpo::{JUMP, ServerId};
use tenure_server::wal::WalError;
use tenure_server::{
    RestoreError, RestoreOptions, RestoredDirectory, begins_as_backup, read_backup,
};

use super::{own_token, secret};
use crate::Context;
use crate::args::Restore;
use crate::config::duration;
use crate::failure::{Failure, usage};
use crate::output::counted;

fn longest_lease(text: &str) -> Result<Duration, Failure> {
    match duration("--longest-lease", text)? {
        lease if lease <= Config::LEASE_MAX => Ok(lease),
        _ => Err(usage(format!(
            "--longest-lease: expected at most {} days, as of a lease, found {text:?}",
            Config::LEASE_MAX.as_secs() / (24 * 3_600)
        ))),
    }
}

pub(crate) fn restore(context: &Context, args: &Restore) -> Result<ExitCode, Failure> {
    let server = ServerId::new(args.id)
        .ok_or_else(|| usage("--id: expected the number of a server, from 1, found 0"))?;
    let file = args.file.display().to_string();
    let bytes = read(&args.file)?;
    let (summary, state) = read_backup(&bytes).with_context(|| file.clone())?;
    drop(bytes);
    let lease = args.longest_lease.as_deref().map(longest_lease);
    let options = RestoreOptions {
        times: args.times,
        term_step: args.term_step,
        longest_lease: lease.transpose()?,
    };
    // It is a new cluster, whose servers may all be on this machine.
    let shared = secret::shared()?;
    // A server in a directory without these asks other servers for no secret, and clients
    // for no token.
    let add_files = || match &shared {
        Some(shared) => {
            secret::keep(&args.data, shared).and_then(|()| own_token::place_mark(&args.data))
        }
        None => Ok(()),
    };
    let made = tenure_server::restore_with(state, &args.data, server, options, add_files);
    let made = made.map_err(failure)?;
    let (id, data, last) = (server.get(), args.data.display(), summary.last);
    let (life, step) = (made.last.id / JUMP, args.term_step);
    let next =
        format!("tenure serve --id {id} --peers {id}=HOST:PORT --data {data} --listen HOST:PORT");
    let text = format!(
        "{file}: cluster {} up to entry {} of term {}\n\
         {data}: server {id} of the new cluster {}, which begins with it at entry {}\n\
         {}\n\
         its numbers are of life {life} of this data, with --term-step {step}; a later restore, of \
         whatever backup of it, must come to a higher life (add --times where it does not) and \
         have no smaller --term-step\n\
         next: {next}\n\
         then grow it with tenure member add; the servers of the old cluster do not belong to it \
         and must stay off",
        summary.cluster,
        last.id,
        last.term.get(),
        made.identity.cluster,
        made.last.id,
        held(&made),
    );
    let named = |keys: &[Key]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    let object = json!({
        "file": file,
        "of_cluster": summary.cluster.to_string(),
        "last_id": last.id,
        "last_term": last.term.get(),
        "id": id,
        "data": data.to_string(),
        "cluster": made.identity.cluster.to_string(),
        "storage": made.identity.storage.to_string(),
        "begins_id": made.last.id,
        "begins_term": made.last.term.get(),
        "life": life,
        "term_step": step,
        "elections": made.elections,
        "groups": made.groups,
        "held_ms": u64::try_from(made.lease.as_millis()).unwrap_or(u64::MAX),
        "unread": named(&made.unread),
        "spent": named(&made.spent),
        "next": next,
    });
    context.output.line(&text, &object)?;
    Ok(ExitCode::SUCCESS)
}

/// Who has to wait for what.
fn held(made: &RestoredDirectory) -> String {
    let (elections, groups) = (
        counted(made.elections, "election"),
        counted(made.groups, "group"),
    );
    let mut text = format!(
        "{elections} and {groups} wait for {:?} once the new cluster runs, in case a leader of the \
         old one is still alive; give one that is not in the backup as long",
        made.lease
    );
    if let Some((key, lease)) = &made.longest
        && *lease == made.lease
    {
        text.push_str(&format!(
            "\nthat is the longest lease in the backup, of {key}; if no leader and no node had one \
             as long, restore again into an empty directory with --longest-lease"
        ));
    }
    for key in &made.spent {
        text.push_str(&format!(
            "\n{key}: expected a term that can be raised, found one too large; no candidate can \
             lead there any more: an election begins anew after tenure forget, a group under another name"
        ));
    }
    for key in &made.unread {
        text.push_str(&format!(
            "\n{key}: expected an election or a group, found something else; it is as it was"
        ));
    }
    text
}

/// What is in the file; a device or a pipe may never end.
fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let named = || {
        format!(
            "{}: expected a file that tenure backup has written",
            file.display()
        )
    };
    let found = fs::metadata(file).with_context(named)?;
    if !found.is_file() {
        return Err(usage(format!("{}, found no plain file", named())));
    }
    let mut file = fs::File::open(file).with_context(named)?;
    let mut bytes = Vec::new();
    let beginning = (&mut file).take(16).read_to_end(&mut bytes);
    beginning.with_context(named)?;
    if begins_as_backup(&bytes) {
        file.read_to_end(&mut bytes).with_context(named)?;
    }
    Ok(bytes)
}

/// A directory with a log in it is another than was meant.
fn failure(error: RestoreError) -> Failure {
    match error {
        RestoreError::Used { .. } => usage(format!("--data: {error}")),
        RestoreError::Disk(WalError::Shared { .. }) => usage(format!("--data: {error}")),
        other => Failure::Other(other.into()),
    }
}
