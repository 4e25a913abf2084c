//! The notation of the trace.

use tenure_alpo::{
    Answer, Batch, Body, Entry, Envelope, Event, Node, Position, Query, QueryResult, Refusal,
    Reply, Request, ServerId, Status, StepDownReason, VotingStatus,
};

use crate::args::Outcome;

/// `s3`.
pub(crate) fn server(text: &str) -> Outcome<ServerId> {
    let number = text.strip_prefix('s').and_then(|n| n.parse().ok());
    let id = number.and_then(ServerId::new);
    id.ok_or_else(|| format!("{text} is no server").into())
}

/// How messages are called.
pub(crate) const KINDS: [&str; 21] = [
    "poll",
    "vote",
    "defer",
    "append",
    "heartbeat",
    "install",
    "transfer",
    "stale",
    "would",
    "led",
    "incomplete",
    "novote",
    "granted",
    "taken",
    "deferred",
    "already",
    "notoutranked",
    "appended",
    "mismatch",
    "heard",
    "installed",
];

pub(crate) const fn kind(body: &Body) -> &'static str {
    match body {
        Body::Request { request, .. } => match request {
            Request::PreVote { .. } => "poll",
            Request::Vote { .. } => "vote",
            Request::Defer { .. } => "defer",
            Request::Append { .. } => "append",
            Request::Heartbeat { .. } => "heartbeat",
            Request::Install { .. } => "install",
            Request::TimeoutNow => "transfer",
        },
        Body::Reply { reply, .. } => match reply {
            Reply::StaleTerm => "stale",
            Reply::PreVoteGranted => "would",
            Reply::LeaderKnown { .. } => "led",
            Reply::LogIncomplete { .. } => "incomplete",
            Reply::NotAMember => "novote",
            Reply::Granted => "granted",
            Reply::AlreadyVoted { .. } => "taken",
            Reply::Deferred => "deferred",
            Reply::AlreadyLeader => "already",
            Reply::NotOutranked { .. } => "notoutranked",
            Reply::Appended { .. } => "appended",
            Reply::Mismatch { .. } => "mismatch",
            Reply::Heard { .. } => "heard",
            Reply::Installed { .. } => "installed",
            Reply::Standing => "standing",
        },
    }
}

/// `s1 -> s2 vote@2 last 3@1`; the arrow says whether it left, arrived (`=>`)
/// or was lost (`-x`).
pub(crate) fn message(envelope: &Envelope, arrow: &str) -> String {
    let Envelope {
        from,
        to,
        term,
        body,
    } = envelope;
    let kind = kind(body);
    let mut text = format!("{from} {arrow} {to} {kind}@{term}");
    match body {
        Body::Request { request, .. } => text += &asked(request),
        Body::Reply {
            asked_in, reply, ..
        } => {
            if asked_in != term {
                text += &format!(" to @{asked_in}");
            }
            text += &replied(reply);
        }
    }
    text
}

fn asked(request: &Request) -> String {
    match request {
        Request::PreVote { last } | Request::Defer { last } => format!(" last {last}"),
        Request::Vote { last, transfer } => {
            let why = if *transfer { " by transfer" } else { "" };
            format!(" last {last}{why}")
        }
        Request::Append {
            prev,
            entries,
            commit,
            ..
        } => format!(
            " after {prev}: {}, commit {commit}",
            log(entries.iter().map(Entry::position))
        ),
        Request::Heartbeat {
            last,
            commit,
            round,
            ..
        } => format!(" last {last}, commit {commit}, round {round}"),
        Request::Install {
            last,
            offset,
            bytes,
            total,
            ..
        } => format!(
            " upto {last}: {} bytes from {offset} of {total}",
            bytes.len()
        ),
        Request::TimeoutNow => String::new(),
    }
}

fn replied(reply: &Reply) -> String {
    match reply {
        Reply::StaleTerm
        | Reply::PreVoteGranted
        | Reply::NotAMember
        | Reply::Granted
        | Reply::Deferred
        | Reply::AlreadyLeader
        | Reply::Standing => String::new(),
        Reply::LeaderKnown { leader: None } => " by somebody".to_string(),
        Reply::LeaderKnown { leader: Some(id) } => format!(" by {id}"),
        Reply::LogIncomplete { last } => format!(" mine {last}"),
        Reply::AlreadyVoted { voted_for } => format!(" by {voted_for}"),
        Reply::NotOutranked { mine } => format!(" by {mine}"),
        Reply::Appended { matched, .. } => format!(" upto {matched}"),
        Reply::Mismatch { last, conflict, .. } => match conflict {
            Some(conflict) => format!(" last {last}, in doubt from {conflict}"),
            None => format!(" last {last}"),
        },
        Reply::Heard {
            matched,
            last,
            round,
            ..
        } => match matched {
            Some(matched) => format!(" upto {matched}, round {round}"),
            None => format!(" but last {last}, round {round}"),
        },
        Reply::Installed { offset, done, .. } => {
            if *done {
                " done".to_string()
            } else {
                format!(" next {offset}")
            }
        }
    }
}

/// `1-3@1 4@2`.
pub(crate) fn log(positions: impl IntoIterator<Item = Position>) -> String {
    let mut runs: Vec<(u64, Position)> = Vec::new();
    for position in positions {
        match runs.last_mut() {
            Some((_, last)) if last.term == position.term && last.id + 1 == position.id => {
                *last = position;
            }
            _ => runs.push((position.id, position)),
        }
    }
    let show = |(first, last): &(u64, Position)| {
        if *first == last.id {
            last.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    let runs: Vec<_> = runs.iter().map(show).collect();
    if runs.is_empty() {
        "nothing".to_string()
    } else {
        runs.join(" ")
    }
}

/// What is to be made durable.
pub(crate) fn batch(batch: &Batch) -> String {
    let mut parts = Vec::new();
    if let Some(hard) = batch.hard {
        let mut text = format!("term {} reign {}", hard.term, hard.last_reign);
        if let Some(vote) = hard.vote {
            text += &format!(" vote {vote}");
        }
        parts.push(text);
    }
    if let Some(snapshot) = &batch.snapshot {
        let reset = if batch.reset { ", no log before" } else { "" };
        parts.push(format!("snapshot upto {}{reset}", snapshot.last));
    }
    if let Some(from) = batch.truncate {
        parts.push(format!("nothing from {from} on"));
    }
    if !batch.entries.is_empty() {
        parts.push(log(batch.entries.iter().map(Entry::position)));
    }
    parts.join(", ")
}

pub(crate) const fn status(status: Status) -> &'static str {
    match status {
        Status::Leader => "leader",
        Status::Candidate => "candidate",
        Status::PreVoting => "polling",
        Status::Follower => "passive",
        Status::Learner => "learner",
        Status::Halted => "halted",
    }
}

/// What a server is and has, in one line.
pub(crate) fn node(node: &Node) -> String {
    let hard = node.hard_state();
    let mut text = format!(
        "{}@{} reign {}",
        status(node.status()),
        hard.term,
        hard.last_reign
    );
    if let Some(vote) = hard.vote {
        text += &format!(" vote {vote}");
    }
    if let Some(leader) = node.leader().filter(|leader| *leader != node.id()) {
        text += &format!(" led by {leader}");
    }
    text += " | ";
    let base = node.log().base();
    if base != Position::ZERO {
        text += &format!("(upto {base}) ");
    }
    text += &log(node.log().iter().map(Entry::position));
    text += &format!(" | commit {}", node.commit());
    let last = node.log().last().id;
    if node.durable() < last {
        text += &format!(", on disk {}", node.durable());
    }
    text
}

/// What is told; `None` for what the change of role tells already.
pub(crate) fn event(node: &Node, event: &Event) -> Option<String> {
    Some(match event {
        Event::LeaderKnown { leader, .. } if *leader == node.id() => return None,
        Event::PreVoting | Event::Standing { .. } | Event::StatesAgree { .. } => return None,
        Event::LeaderKnown { leader, .. } => format!("is led by {leader}"),
        Event::Deferred { to } => format!("defers to {to}"),
        Event::EarlyCycle => "begins the next cycle early".to_string(),
        Event::Vetoed => "drops out: one log is better".to_string(),
        Event::SteppedDown(why) => match why {
            StepDownReason::HigherTerm => "steps back: a higher term".to_string(),
            StepDownReason::LeaderKnown => "steps back for another".to_string(),
            StepDownReason::VoteGiven => "steps back: its vote is given".to_string(),
            StepDownReason::BetterLog => "steps back: a better log".to_string(),
            StepDownReason::NoVoteAfterRestart => "stays a follower: it owes a silence".to_string(),
            StepDownReason::NoMajority => "steps down: no majority heard".to_string(),
        },
        Event::Truncated { from } => format!("removes what it had from {from} on"),
        Event::Compacted { upto } => format!("takes a snapshot upto {upto}"),
        Event::DiskStalls { transferee } => format!("hands over to {transferee}: its disk stalls"),
        Event::Installed { upto } => format!("takes over a snapshot upto {upto}"),
        Event::SetBack {
            server,
            acknowledged,
            found,
        } => format!("finds {server} set back from {acknowledged} to {found}"),
        Event::StatesDisagree { at } => format!("finds that nobody agrees at {at}"),
    })
}

pub(crate) fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Done(outcome) => format!("{outcome:?}").to_lowercase(),
        Answer::Read(found) => format!("read {}", self::found(found)),
        Answer::HandedOver => "handed over".to_string(),
        Answer::Interrupted => "interrupted: it may or may not happen".to_string(),
        Answer::Refused(refusal) => match refusal {
            Refusal::NotLeader { leader: Some(id) } => format!("refused: {id} leads"),
            Refusal::NotLeader { leader: None } => "refused: not the leader".to_string(),
            Refusal::OutOfOrder { expected } => {
                format!("refused: out of order, expected serial {expected}")
            }
            Refusal::Unsynced { servers } => format!("refused: not synced by {servers}"),
            other => format!("refused: {other:?}"),
        },
    }
}

fn found(found: &QueryResult) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match found {
        QueryResult::Register(None, ..) => "nothing".to_string(),
        QueryResult::Register(Some(register), ..) => {
            format!("{} {}", text(&register.value), register.version)
        }
        QueryResult::List { registers, .. } => format!("{} registers", registers.len()),
        QueryResult::UserLog(Ok(entries)) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(number, bytes)| format!("{number}:{}", text(bytes)))
                .collect();
            format!("[{}]", entries.join(" "))
        }
        QueryResult::UserLog(Err(first)) => format!("too old, first is {first}"),
        QueryResult::Restored(next) => format!("restored, goes on at {next}"),
        QueryResult::Barrier(id) => format!("as of entry {id}"),
    }
}

pub(crate) fn query(query: &Query) -> String {
    match query {
        Query::Register(key) => format!("read {}", key.as_str()),
        Query::List { prefix, .. } => format!("list {prefix}"),
        Query::UserLog { .. } => "read journal".to_string(),
        Query::Barrier => "barrier".to_string(),
    }
}

/// `s1 s2 (s4)`: learners in brackets.
pub(crate) fn members(node: &Node) -> String {
    let show = |(id, member): (ServerId, tenure_alpo::Member)| match member.voting_status {
        VotingStatus::Voter => id.to_string(),
        VotingStatus::Learner => format!("({id})"),
    };
    node.members()
        .iter()
        .map(show)
        .collect::<Vec<_>>()
        .join(" ")
}
