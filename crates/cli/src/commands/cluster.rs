//! `tenure status`, `member`, `snapshot` and `backup`: operating a cluster.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tenure_api::v1;
use tenure_client::{Client, Error, ServerStatus};

use crate::failure::{Failure, usage};
use crate::{Context, args, config};

/// How long a server may take for a snapshot, without `--timeout`.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(120);

/// A client of the cluster that `--store` names.
pub(super) fn client(context: &Context) -> Result<Client, Failure> {
    let url = config::given_store(&context.common, &context.file);
    let expected = "expected --store tenure://host:port,host:port,… (or $TENURE_STORE)";
    let url = url.ok_or_else(|| usage(format!("{expected}, found none")))?;
    if !url.starts_with("tenure:") {
        let scheme = url.split(':').next().unwrap_or_default();
        return Err(usage(format!(
            "{expected}, found a store of another kind, {scheme}:"
        )));
    }
    let client = Client::open(&url).map_err(failure)?;
    Ok(client.with_timeout(context.timeout))
}

/// What a failed call means for the exit code: what a person must mend is
/// usage.
pub(super) fn failure(error: Error) -> Failure {
    match error {
        Error::Refused {
            cause:
                v1::Cause::Invalid
                | v1::Cause::TooLarge
                | v1::Cause::Denied
                | v1::Cause::Unauthenticated,
            message,
        } => usage(message),
        error => Failure::Other(error.into()),
    }
}

pub(crate) async fn status(context: &Context) -> Result<ExitCode, Failure> {
    let servers = client(context)?.status().await;
    let reached = servers.iter().filter_map(|it| it.status.as_ref().ok());
    let commit = reached.clone().map(|it| it.commit).max().unwrap_or(0);
    let led = reached.clone().any(leads);
    let mut rows = vec![HEADER.map(str::to_owned)];
    rows.extend(servers.iter().map(|it| row(it, commit, led)));
    let objects: Vec<Value> = servers.iter().map(|it| object(it, commit)).collect();
    context.output.table(&rows, &objects)?;
    of_one_cluster(&servers)?;
    if led {
        return Ok(ExitCode::SUCCESS);
    }
    let unconfirmed = reached.clone().find(|it| it.confirmed == Some(false));
    Err(Failure::Other(unconfirmed.map_or_else(
        || {
            anyhow::anyhow!(
                "expected a server that leads, found none among the {} that answered",
                reached.clone().count()
            )
        },
        |it| {
            anyhow::anyhow!(
                "expected a server that leads, found server {} alone, {}; start those that do \
                 not answer, or look at the network between them",
                it.id,
                unconfirmed_for(it)
            )
        },
    )))
}

/// One that lost its disk, and was started with itself alone in `--peers`, is
/// a cluster of its own.
fn of_one_cluster(servers: &[ServerStatus]) -> Result<(), Failure> {
    let mut known = servers.iter().filter_map(|it| {
        let cluster = it.status.as_ref().ok()?.cluster.as_str();
        (!cluster.is_empty()).then_some((&it.address, cluster))
    });
    let Some((one, first)) = known.next() else {
        return Ok(());
    };
    let Some((two, second)) = known.find(|(_, cluster)| *cluster != first) else {
        return Ok(());
    };
    Err(Failure::Other(anyhow::anyhow!(
        "expected servers of one cluster, found {one} of cluster {first} and {two} of cluster \
         {second}: stop the servers of the one that should not be, or take them out of the URL"
    )))
}

/// Whether it leads, and a majority has said so just now. A server of an
/// earlier release is believed: it does not know whether it was confirmed.
fn leads(status: &v1::StatusResponse) -> bool {
    status.role() == v1::Role::Leader && status.confirmed != Some(false)
}

fn unconfirmed_for(status: &v1::StatusResponse) -> String {
    match status.confirmed_age_millis {
        Some(age) if age < u64::MAX => format!("which no majority has confirmed for {age} ms"),
        _ => "which no majority has confirmed yet".into(),
    }
}

const HEADER: [&str; 11] = [
    "ID", "ROLE", "TERM", "REIGN", "VOTE", "RANK", "COMMIT", "LAG", "SESSIONS", "ADDRESS", "NOTE",
];

/// `commit` is the furthest that anybody knows of: a server that is cut off
/// does not know how far the others have gone without it. Unless somebody is
/// `led` by whom that is known, nobody knows.
fn row(server: &ServerStatus, commit: u64, led: bool) -> [String; 11] {
    let id = server
        .id
        .map_or_else(|| "?".to_owned(), |id| id.to_string());
    let address = server.address.clone();
    let nothing = || "-".to_owned();
    match &server.status {
        Ok(it) => [
            id,
            part(it).to_owned(),
            it.term.to_string(),
            it.last_reign.to_string(),
            it.vote.map_or_else(nothing, |vote| vote.to_string()),
            it.rank.as_ref().map_or_else(nothing, rank),
            it.commit.to_string(),
            if led {
                commit.saturating_sub(it.applied).to_string()
            } else {
                "?".to_owned()
            },
            it.sessions.to_string(),
            address,
            if it.confirmed == Some(false) {
                unconfirmed_for(it)
            } else if it.waiting.is_empty() {
                it.full.clone()
            } else {
                it.waiting.clone()
            },
        ],
        Err(why) => {
            let mut row = HEADER.map(|_| nothing());
            (row[0], row[1]) = (id, UNREACHABLE.to_owned());
            (row[9], row[10]) = (address, why.clone());
            row
        }
    }
}

/// In the order in which ranks are compared.
fn rank(rank: &v1::Rank) -> String {
    let v1::Rank {
        last_log_term,
        last_log_id,
        server,
    } = rank;
    format!("{last_log_term}/{last_log_id}/{server}")
}

const UNREACHABLE: &str = "unreachable";

const fn role(role: v1::Role) -> &'static str {
    match role {
        v1::Role::Leader => "leader",
        v1::Role::Candidate => "candidate",
        v1::Role::Passive => "passive",
        v1::Role::Learner => "learner",
        v1::Role::Blank => "blank",
        v1::Role::Halted => "halted",
        v1::Role::Unspecified => "unknown",
    }
}

/// What it is in its cluster, for people.
fn part(status: &v1::StatusResponse) -> &'static str {
    if status.confirmed == Some(false) {
        "leader?"
    } else if status.excluded && status.role() != v1::Role::Blank {
        // What its own log says of it is old.
        "excluded"
    } else if status.role() == v1::Role::Passive {
        // What Raft and etcd call it; `--json` keeps ALPO's word.
        "follower"
    } else {
        role(status.role())
    }
}

fn object(server: &ServerStatus, commit: u64) -> Value {
    let it = match &server.status {
        Ok(it) => it,
        Err(why) => {
            return json!({
                "id": server.id, "role": UNREACHABLE, "address": server.address, "error": why,
            });
        }
    };
    json!({
        "id": it.id,
        "role": role(it.role()),
        "confirmed": it.confirmed,
        "confirmed_age_millis": it.confirmed_age_millis,
        "address": server.address,
        "ready": it.ready,
        "removed": it.removed,
        "excluded": it.excluded,
        "term": it.term,
        "last_reign": it.last_reign,
        "leader": it.leader,
        "vote": it.vote,
        "rank": it.rank.as_ref().map(rank_object),
        "last_log_term": it.last_log_term,
        "last_log_id": it.last_log_id,
        "durable": it.durable,
        "commit": it.commit,
        "applied": it.applied,
        "lag": it.lag,
        "behind": commit.saturating_sub(it.applied),
        "snapshot": it.snapshot,
        "cluster": it.cluster,
        "storage": it.storage,
        "version": it.version,
        "cluster_version": it.cluster_version,
        "speaks": it.speaks,
        "sessions": it.sessions,
        "registers": it.registers,
        "register_bytes": it.register_bytes,
        "quota_bytes": it.quota_bytes,
        "quota_registers": it.quota_registers,
        "full": it.full,
        "bound": it.bound,
        "revision": it.revision,
        "log_first": it.log_first,
        "log_next": it.log_next,
        "uptime_millis": it.uptime_millis,
        "waiting": it.waiting,
        "protection": it.protection.as_ref().map(protection_object),
        "members": it.members.iter().map(member_object).collect::<Vec<_>>(),
    })
}

fn rank_object(rank: &v1::Rank) -> Value {
    json!({
        "last_log_term": rank.last_log_term,
        "last_log_id": rank.last_log_id,
        "server": rank.server,
    })
}

fn protection_object(protection: &v1::Protection) -> Value {
    json!({
        "tls": protection.tls,
        "tokens": protection.tokens,
        "insecure": protection.insecure,
        "own_token": protection.own_token,
        "no_token": protection.no_token,
    })
}

fn member_object(member: &v1::Member) -> Value {
    json!({
        "id": member.id,
        "voter": member.voter,
        "storage": member.storage,
        "peer_address": member.peer_address,
        "client_address": member.client_address,
        "connected": member.connected,
    })
}

pub(crate) async fn member(context: &Context, args: &args::Member) -> Result<ExitCode, Failure> {
    let client = client(context)?;
    match &args.command {
        args::MemberCommand::List => {
            let status = client.leader_status().await.map_err(failure)?;
            return list(context, &status);
        }
        args::MemberCommand::Add(args) => {
            let peer = args.peer.as_deref().unwrap_or_default();
            let added = client.add_member(args.id, &args.storage, peer).await;
            added.map_err(failure)?;
            done(context, "added", args.id)
        }
        args::MemberCommand::Promote(args) => {
            let promoted = match &args.storage {
                Some(storage) => client.promote_disk(args.id, storage).await,
                None => client.promote_member(args.id).await,
            };
            promoted.map_err(failure)?;
            done(context, "promoted", args.id)
        }
        args::MemberCommand::Remove(args) => {
            let removed = match &args.storage {
                Some(storage) => client.remove_disk(args.id, storage).await,
                None => client.remove_member(args.id).await,
            };
            removed.map_err(failure)?;
            done(context, "removed", args.id)
        }
        args::MemberCommand::Transfer(args) => {
            client.transfer(args.to).await.map_err(failure)?;
            let status = client.leader_status().await.map_err(failure)?;
            let text = format!("server {} leads in term {}", status.id, status.term);
            let object = json!({ "leader": status.id, "term": status.term });
            Ok(context.output.line(&text, &object)?)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

fn done(context: &Context, what: &str, id: u64) -> Result<(), Failure> {
    let text = format!("server {id} was {what}");
    Ok(context.output.line(&text, &json!({ what: id }))?)
}

fn list(context: &Context, leader: &v1::StatusResponse) -> Result<ExitCode, Failure> {
    let header = ["ID", "PART", "CONNECTED", "PEERS", "CLIENTS", "STORAGE"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(leader.members.iter().map(|member| {
        let connected = match (member.id == leader.id, member.connected) {
            (true, _) => "leads",
            (false, true) => "yes",
            (false, false) => "no",
        };
        [
            member.id.to_string(),
            if member.voter { "voter" } else { "learner" }.to_owned(),
            connected.to_owned(),
            member.peer_address.clone(),
            member.client_address.clone(),
            member.storage.clone(),
        ]
    }));
    let objects: Vec<Value> = leader.members.iter().map(member_object).collect();
    context.output.table(&rows, &objects)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn snapshot(
    context: &Context,
    args: &args::Snapshot,
) -> Result<ExitCode, Failure> {
    let client = client(context)?;
    let servers = client.status().await;
    for wanted in &args.server {
        if !servers.iter().any(|it| it.id == Some(*wanted)) {
            let known: Vec<_> = servers.iter().filter_map(|it| it.id).collect();
            return Err(usage(format!(
                "--server: expected one of the servers that are known, {known:?}, found {wanted}"
            )));
        }
    }
    let patient = self::client(context)?;
    let patient = patient.with_timeout(context.said.unwrap_or(SNAPSHOT_TIMEOUT));
    let (mut taken, mut failed) = (0, Vec::new());
    for server in servers {
        let Some(id) = server.id else {
            // Nobody said that there is a server at this address.
            if args.server.is_empty() {
                failed.push(format!("{}: {}", server.address, why(&server)));
            }
            continue;
        };
        if !(args.server.is_empty() || args.server.contains(&id)) {
            continue;
        }
        let upto = match &server.status {
            Ok(_) => patient.snapshot(&server.address).await.map_err(failure),
            Err(why) => Err(Failure::Other(anyhow::anyhow!("{why}"))),
        };
        match upto {
            Ok(upto) => {
                taken += 1;
                let text = format!("server {id}: a snapshot up to entry {upto}");
                context
                    .output
                    .line(&text, &json!({ "id": id, "upto": upto }))?;
            }
            Err(error @ Failure::Usage(_)) => return Err(error),
            Err(error) => failed.push(format!("server {id}: {error}")),
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let text = format!("{taken} took a snapshot; {}", failed.join("; "));
    Err(Failure::Other(anyhow::anyhow!("{text}")))
}

fn why(server: &ServerStatus) -> &str {
    server.status.as_ref().err().map_or("", |why| why)
}

pub(crate) async fn backup(context: &Context, args: &args::Backup) -> Result<ExitCode, Failure> {
    let client = client(context)?;
    let mut parts = client.backup().await.map_err(failure)?;
    let mut partial = Partial::create(&args.file)?;
    let mut bytes: u64 = 0;
    while let Some(part) = parts.next().await {
        let part = part.map_err(failure)?;
        let written = partial.file.write_all(&part);
        written.with_context(|| args.file.display().to_string())?;
        bytes += part.len() as u64;
    }
    let completed = partial.complete(&args.file);
    completed.with_context(|| args.file.display().to_string())?;
    let file = args.file.display().to_string();
    let text = format!("{file}: {bytes} bytes");
    let object = json!({ "file": file, "bytes": bytes });
    context.output.line(&text, &object)?;
    Ok(ExitCode::SUCCESS)
}

/// A file that is not complete yet, and goes if it never will be.
struct Partial {
    path: PathBuf,
    file: File,
}

impl Partial {
    fn create(target: &Path) -> Result<Self, Failure> {
        let name = target.file_name().ok_or_else(|| {
            let found = target.display();
            usage(format!("FILE: expected the path of a file, found {found}"))
        })?;
        // It would be replaced, and what a link leads to would stay as it was.
        if fs::symlink_metadata(target).is_ok_and(|it| !it.is_file()) {
            return Err(usage(format!(
                "FILE: expected a plain file, or none yet, found a link, a directory, a device, a \
                 socket or a pipe: {}",
                target.display()
            )));
        }
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(format!(".{}.partial", std::process::id()));
        let path = target.with_file_name(partial);
        let mut private = fs::OpenOptions::new();
        private.write(true).create_new(true).mode(0o600);
        let file = private.open(&path).map_err(|error| {
            let directory = target.parent().filter(|it| !it.as_os_str().is_empty());
            let directory = directory.unwrap_or_else(|| Path::new("."));
            let advice = match error.kind() {
                std::io::ErrorKind::NotFound => "; make the directory first",
                std::io::ErrorKind::PermissionDenied => "; let this user write there",
                _ => "",
            };
            Failure::Other(anyhow::anyhow!(
                "{}: expected a directory, {}, in which a file can be made, found: {error}{advice}",
                target.display(),
                directory.display()
            ))
        })?;
        Ok(Self { path, file })
    }

    /// Puts it in its place: whole, and on the disk.
    fn complete(&self, target: &Path) -> std::io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        let directory = target.parent().filter(|it| !it.as_os_str().is_empty());
        File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone already if it was completed.
        let _ = fs::remove_file(&self.path);
    }
}
