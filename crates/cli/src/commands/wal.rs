//! `tenure wal`: what is in a data directory, and whether it is sound.
//!
//! Both commands only look. They take no lock, so they work next to a running
//! server; what they see of its newest write may then be half of it.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tenure_alpo::{Entry, HardState, Operation, Payload, SessionOpener};
use tenure_server::wal::{self, Item, Record, Report, SegmentStart, WalError};

use crate::failure::Failure;
use crate::{Context, args};

pub(crate) fn wal(context: &Context, args: &args::Wal) -> Result<ExitCode, Failure> {
    match &args.command {
        args::WalCommand::Inspect(args) => inspect(context, &args.dir),
        args::WalCommand::Verify(args) => verify(context, &args.dir),
    }
}

fn inspect(context: &Context, dir: &Path) -> Result<ExitCode, Failure> {
    let mut printed = Ok(());
    let walked = wal::inspect(dir, |item| {
        if printed.is_ok() {
            let (text, object) = describe(&item);
            printed = context.output.line(&text, &object);
        }
    });
    printed?;
    match walked {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(failure(dir, error)),
    }
}

fn verify(context: &Context, dir: &Path) -> Result<ExitCode, Failure> {
    match wal::verify(dir) {
        Ok(report) => {
            let (text, object) = sum(dir, &report);
            context.output.line(&text, &object)?;
            let sound = report.spare_used.is_none();
            Ok(if sound {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Err(error) => Err(failure(dir, error)),
    }
}

/// Damage that is seen while a server writes may be none.
fn failure(dir: &Path, error: WalError) -> Failure {
    let error = anyhow::Error::from(error);
    Failure::Other(match wal::holder(dir) {
        Some(pid) => error.context(format!(
            "process {pid} uses this directory and may have been writing; look again, or stop it \
             first"
        )),
        None => error,
    })
}

fn sum(dir: &Path, report: &Report) -> (String, Value) {
    let holder = wal::holder(dir);
    let mut text = format!(
        "{}: sound: server {} of cluster {}, storage {}; {} segments, {} groups, log up to {}, \
         term {}",
        dir.display(),
        report.identity.server,
        report.identity.cluster,
        report.identity.storage,
        report.segments,
        report.groups,
        report.tail.last,
        report.tail.hard.term,
    );
    match report.snapshot {
        Some(at) => text += &format!("; starts from the snapshot at {at}"),
        None => text += "; starts without a snapshot",
    }
    text += &format!(" and {} entries", report.entries);
    if let Some(torn) = &report.torn {
        text += &format!("; a write that never finished will be cut ({torn})");
    }
    if let Some(pid) = holder {
        text += &format!("; in use by process {pid}");
    }
    if let Some(problem) = &report.spare_used {
        text = text.replacen(
            ": sound:",
            ": a snapshot is damaged, but a server could start:",
            1,
        );
        text += &format!("; {problem}");
    }
    let object = json!({
        "sound": report.spare_used.is_none(),
        "cluster": report.identity.cluster.to_string(),
        "server": report.identity.server.get(),
        "storage": report.identity.storage.to_string(),
        "segments": report.segments,
        "groups": report.groups,
        "last": report.tail.last,
        "term": report.tail.hard.term.get(),
        "snapshot": report.snapshot.map(|at| json!({ "id": at.id, "term": at.term.get() })),
        "first": report.first,
        "entries": report.entries,
        "torn": report.torn,
        "problem": report.spare_used.as_ref().map(ToString::to_string),
        "in_use_by": holder,
    });
    (text, object)
}

fn describe(item: &Item<'_>) -> (String, Value) {
    match item {
        Item::Segment(start) => describe_segment(start),
        Item::Group {
            segment,
            offset,
            number,
            bytes,
        } => (
            format!("{segment:>6} {offset:>10} group {number}: {bytes} bytes"),
            json!({
                "kind": "group", "segment": segment, "offset": offset, "number": number,
                "bytes": bytes,
            }),
        ),
        Item::Record {
            segment,
            offset,
            bytes,
            record,
        } => {
            let (text, mut object) = describe_record(record);
            object["segment"] = (*segment).into();
            object["offset"] = (*offset).into();
            object["bytes"] = (*bytes).into();
            (format!("{segment:>6} {offset:>10}   {text}"), object)
        }
        Item::Seal { segment, offset } => (
            format!(
                "{segment:>6} {offset:>10} seal: goes on in segment {}",
                segment + 1
            ),
            json!({ "kind": "seal", "segment": segment, "offset": offset }),
        ),
        Item::Torn {
            segment,
            offset,
            why,
        } => (
            format!("{segment:>6} {offset:>10} torn: {why}; will be cut"),
            json!({ "kind": "torn", "segment": segment, "offset": offset, "why": why }),
        ),
    }
}

fn describe_segment(start: &SegmentStart) -> (String, Value) {
    let tail = &start.tail;
    let text = format!(
        "{:>6} {:>10} segment: {} bytes, from group {}, after entry {}, snapshots {} and {}, {}",
        start.segment,
        0,
        start.bytes,
        start.group,
        tail.last,
        tail.newest,
        tail.previous,
        describe_hard(&tail.hard),
    );
    let object = json!({
        "kind": "segment", "segment": start.segment, "offset": 0, "bytes": start.bytes,
        "group": start.group, "previous_end": start.previous_end, "last": tail.last,
        "newest": { "id": tail.newest.id, "term": tail.newest.term.get() },
        "previous": { "id": tail.previous.id, "term": tail.previous.term.get() },
        "term": tail.hard.term.get(),
    });
    (text, object)
}

fn describe_hard(hard: &HardState) -> String {
    let vote = hard
        .vote
        .map_or_else(|| "no vote".to_owned(), |vote| format!("vote for {vote}"));
    format!("term {}, last reign {}, {vote}", hard.term, hard.last_reign)
}

fn describe_record(record: &Record) -> (String, Value) {
    match record {
        Record::Entry(entry) => {
            let what = describe_payload(&entry.payload);
            (
                format!("entry {} at {} ns: {what}", entry.position(), entry.time),
                json!({
                    "kind": "entry", "id": entry.id, "term": entry.term.get(),
                    "time_ns": entry.time, "payload": what, "weight": Entry::weight(entry),
                }),
            )
        }
        Record::Hard(hard) => (
            format!("hard state: {}", describe_hard(hard)),
            json!({
                "kind": "hard", "term": hard.term.get(), "last_reign": hard.last_reign.get(),
                "vote": hard.vote.map(|vote| vote.to_string()),
            }),
        ),
        Record::Truncate(from) => (
            format!("truncate: entries from {from} on are gone"),
            json!({ "kind": "truncate", "from": from }),
        ),
        Record::Snapshot { last, reset } => {
            let rest = if *reset {
                "; the log before it is gone"
            } else {
                ""
            };
            (
                format!("snapshot at {last}{rest}"),
                json!({
                    "kind": "snapshot", "id": last.id, "term": last.term.get(), "reset": reset,
                }),
            )
        }
    }
}

fn describe_payload(payload: &Payload) -> String {
    match payload {
        Payload::NoOp => "no-op".to_owned(),
        Payload::Members(members) => {
            let names: Vec<_> = members
                .iter()
                .map(|(server, _)| server.to_string())
                .collect();
            format!("members {}", names.join(" "))
        }
        Payload::Open { ttl } => format!("open a session for {ttl} ns"),
        Payload::OpenOwned { ttl, owner } => {
            let by = match owner.opener {
                SessionOpener::Server => "nobody in particular",
                SessionOpener::Token(_) => "a token",
                SessionOpener::Address(_) => "an address",
            };
            let secret = if owner.secret.is_some() {
                ", with a secret"
            } else {
                ""
            };
            format!("open a session for {ttl} ns, by {by}{secret}")
        }
        Payload::Expire { session } => format!("session {session} expires"),
        Payload::Version(version) => format!("the cluster's version is {version}"),
        #[cfg(feature = "next-version")]
        Payload::Note(term) => format!("leadership of term {term} is noted"),
        Payload::Command(command) => {
            let what = match &command.operation {
                Operation::Append(bytes) => format!("append {} bytes", bytes.len()),
                Operation::Swap(write) => {
                    format!("swap {:?}, {} bytes", write.key.as_str(), write.value.len())
                }
                Operation::Bind(bind) => format!(
                    "bind {:?}, {} bytes, and {} at the end",
                    bind.write.key.as_str(),
                    bind.write.value.len(),
                    bind.last.len()
                ),
                Operation::Delete(delete) => format!("delete {:?}", delete.key.as_str()),
                Operation::KeepAlive => "keep alive".to_owned(),
                Operation::Close => "close".to_owned(),
            };
            format!(
                "session {} request {}: {what}",
                command.session, command.serial
            )
        }
    }
}
