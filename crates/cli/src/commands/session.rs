//! `tenure session`: the sessions of a cluster's clients, for its operators.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::v1::{self, Cause};
use tenure_client::{Client, Error};

use super::cluster::{client, failure};
use crate::failure::Failure;
use crate::{Context, args};

pub(crate) async fn session(context: &Context, args: &args::Session) -> Result<ExitCode, Failure> {
    let client = client(context)?;
    match &args.command {
        args::SessionCommand::List => {
            let sessions = client.sessions().await.map_err(failure)?;
            let mut rows = vec![HEADER.map(str::to_owned)];
            rows.extend(sessions.iter().map(row));
            let objects: Vec<Value> = sessions.iter().map(object).collect();
            context.output.table(&rows, &objects)?;
        }
        args::SessionCommand::Close(args) => close(context, &client, args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn close(
    context: &Context,
    client: &Client,
    args: &args::CloseSession,
) -> Result<(), Failure> {
    let gone = args.holder_is_gone;
    match (args.id, &args.opened_by) {
        (Some(id), _) => {
            client.end_session(id, gone).await.map_err(failure)?;
            say_closed(context, id)
        }
        (None, Some(by)) => close_all_of(context, client, by, gone).await,
        (None, None) => unreachable!("one of the two is asked for"),
    }
}

/// Ends all sessions that somebody has opened. One that holds registers is
/// left, if its holder is not said to be gone, and the others are ended all the
/// same.
async fn close_all_of(
    context: &Context,
    client: &Client,
    by: &str,
    holder_is_gone: bool,
) -> Result<(), Failure> {
    let sessions = client.sessions().await.map_err(failure)?;
    let theirs = sessions.iter().filter(|it| opener(it) == Some(by));
    let theirs: Vec<u64> = theirs.map(|it| it.session).collect();
    if theirs.is_empty() {
        return Err(Failure::Other(anyhow::anyhow!(
            "expected sessions opened by {by}, found none; `tenure session list` shows who has \
             opened which"
        )));
    }
    let mut held = Vec::new();
    for id in &theirs {
        match client.end_session(*id, holder_is_gone).await {
            Ok(()) => say_closed(context, *id)?,
            // It has ended by itself meanwhile.
            Err(Error::Refused {
                cause: Cause::SessionExpired,
                ..
            }) => {}
            Err(Error::Refused {
                cause: Cause::Held,
                message,
            }) => held.push(message),
            Err(error) => return Err(failure(error)),
        }
    }
    match held.first() {
        None => Ok(()),
        Some(why) => Err(Failure::Other(anyhow::anyhow!(
            "{} of {} sessions hold registers, and are open still; of the first: {why}",
            held.len(),
            theirs.len()
        ))),
    }
}

fn say_closed(context: &Context, id: u64) -> Result<(), Failure> {
    let text = format!("session {id} was closed");
    Ok(context.output.line(&text, &json!({ "closed": id }))?)
}

const HEADER: [&str; 7] = [
    "SESSION",
    "OPENED BY",
    "SECRET",
    "TTL",
    "SILENT",
    "DONE",
    "BOUND",
];

/// The token that has opened a session, or the address where there are none;
/// nobody, if a server has opened it for itself.
fn opener(it: &v1::SessionInfo) -> Option<&str> {
    let by = [&it.token, &it.address].into_iter();
    by.map(String::as_str).find(|by| !by.is_empty())
}

fn row(it: &v1::SessionInfo) -> [String; 7] {
    let span = |millis| format!("{:?}", Duration::from_millis(millis));
    [
        it.session.to_string(),
        opener(it).unwrap_or("-").to_owned(),
        if it.secret { "yes" } else { "no" }.to_owned(),
        span(it.ttl_millis),
        span(it.silent_millis),
        it.done.to_string(),
        it.bound.to_string(),
    ]
}

fn object(it: &v1::SessionInfo) -> Value {
    json!({
        "session": it.session,
        "token": it.token,
        "address": it.address,
        "secret": it.secret,
        "ttl_millis": it.ttl_millis,
        "silent_millis": it.silent_millis,
        "done": it.done,
        "bound": it.bound,
    })
}
