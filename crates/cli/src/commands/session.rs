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

/// Ends one session, or all that somebody has opened. One that holds registers
/// stops the others from being ended no more than it must.
async fn close(
    context: &Context,
    client: &Client,
    args: &args::CloseSession,
) -> Result<(), Failure> {
    let ids = match (args.id, &args.opened_by) {
        (Some(id), _) => vec![id],
        (None, by) => {
            let sessions = client.sessions().await.map_err(failure)?;
            let theirs = sessions.iter().filter(|it| opener(it) == by.as_deref());
            theirs.map(|it| it.session).collect()
        }
    };
    if let (Some(by), true) = (&args.opened_by, ids.is_empty()) {
        return Err(Failure::Other(anyhow::anyhow!(
            "expected sessions opened by {by}, found none; `tenure session list` shows who has \
             opened which"
        )));
    }
    let (all, mut kept) = (ids.len(), None);
    let mut closed = 0;
    for id in ids {
        match client.end_session(id, args.holder_is_gone).await {
            Ok(()) => {
                let text = format!("session {id} was closed");
                context.output.line(&text, &json!({ "closed": id }))?;
                closed += 1;
            }
            // The others are ended all the same.
            Err(Error::Refused { cause, .. })
                if args.opened_by.is_some() && cause == Cause::SessionExpired =>
            {
                // It has ended by itself meanwhile.
                closed += 1;
            }
            Err(error @ Error::Refused { .. }) if args.opened_by.is_some() && is_held(&error) => {
                kept.get_or_insert(error);
            }
            Err(error) => return Err(failure(error)),
        }
    }
    match kept {
        Some(error) => {
            tracing::warn!(
                "{} of {all} sessions hold registers, and are open still",
                all - closed
            );
            Err(failure(error))
        }
        None => Ok(()),
    }
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

fn is_held(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused {
            cause: Cause::Held,
            ..
        }
    )
}

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
