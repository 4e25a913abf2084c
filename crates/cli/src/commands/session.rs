//! `tenure session`: the sessions of a cluster's clients, for its operators.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::v1;

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
        args::SessionCommand::Close(args) => {
            let id = args.id;
            let ended = client.end_session(id, args.holder_is_gone).await;
            ended.map_err(failure)?;
            let text = format!("session {id} was closed");
            context.output.line(&text, &json!({ "closed": id }))?;
        }
    }
    Ok(ExitCode::SUCCESS)
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

fn row(it: &v1::SessionInfo) -> [String; 7] {
    let span = |millis| format!("{:?}", Duration::from_millis(millis));
    let by = [&it.token, &it.address]
        .into_iter()
        .find(|by| !by.is_empty());
    [
        it.session.to_string(),
        by.map_or_else(|| "-".to_owned(), Clone::clone),
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
