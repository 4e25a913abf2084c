//! `tenure resign` and `tenure transfer`.

use std::process::ExitCode;

use serde_json::json;
use tenure::election::{self, LeaderRequestError};
use tenure::{LeaderId, Name};

use super::observe::name;
use crate::failure::{Failure, store_failure, usage};
use crate::{Context, args};

pub(crate) async fn resign(context: &Context, args: &args::Resign) -> Result<ExitCode, Failure> {
    let election = name(&args.election)?;
    let leader_id = LeaderId::parse(&args.leader_id).ok_or_else(|| {
        let found = &args.leader_id;
        usage(format!(
            "--leader-id: expected 32 hexadecimal digits as `tenure leader` prints them, found \
             {found:?}"
        ))
    })?;
    let store = context.open_existing().await?;
    let (within, max_wait) = (context.timeout, context.max_wait());
    let gone = election::ask_to_resign(store, &election, Some(leader_id), within, max_wait)
        .await
        .map_err(request_failure)?;
    let text = format!("{election}: {} has resigned term {}", gone.name, gone.term);
    let object = json!({
        "election": election.as_str(),
        "resigned": gone.id.to_string(),
        "name": gone.name.as_str(),
        "term": gone.term.get(),
    });
    context.output.line(&text, &object)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn transfer(
    context: &Context,
    args: &args::Transfer,
) -> Result<ExitCode, Failure> {
    let election = name(&args.election)?;
    let to = Name::new(&args.to).map_err(|error| usage(format!("--to: {error}")))?;
    let store = context.open_existing().await?;
    let (within, max_wait) = (context.timeout, context.max_wait());
    let (before, seen) = election::ask_to_transfer(store, &election, to.clone(), within, max_wait)
        .await
        .map_err(request_failure)?;
    context.output.observation(election.as_str(), &seen, None)?;
    match &seen.leader {
        Some(leader) if leader.name == to => Ok(ExitCode::SUCCESS),
        Some(leader) if leader.name == before.name => Err(Failure::Other(anyhow::anyhow!(
            "expected {to} to take over, found that it did not come: {} waited for it and leads \
             again, in the new term {}; start a candidate of that name (`tenure run {election} \
             --name {to}`), or look at its log",
            leader.name,
            leader.term
        ))),
        other => Err(Failure::Other(anyhow::anyhow!(
            "expected {to} to take over, found {} leading: {to} was not standing, or not quick \
             enough",
            other
                .as_ref()
                .map_or("nobody", |leader| leader.name.as_str())
        ))),
    }
}

fn request_failure(error: LeaderRequestError) -> Failure {
    match error {
        LeaderRequestError::Store(error) => store_failure(error),
        other => Failure::Other(other.into()),
    }
}
