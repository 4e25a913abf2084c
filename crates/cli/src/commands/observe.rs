//! `tenure leader`, `watch` and `list`.

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use tenure::Name;
use tenure::election::{self, Event, FailureClass};

use super::trouble::{self, Trouble};
use crate::failure::{Failure, store_failure, usage};
use crate::{Context, args};

/// The exit code of the contract for an election that nobody holds.
const VACANT: u8 = 3;

pub(crate) fn name(election: &str) -> Result<Name, Failure> {
    Name::new(election).map_err(|error| usage(format!("ELECTION: {error}")))
}

pub(crate) async fn leader(context: &Context, args: &args::Leader) -> Result<ExitCode, Failure> {
    let election = name(&args.election)?;
    let store = context.open_existing().await?;
    let (mut seen, mut record) = election::leader(Arc::clone(&store), &election, context.timeout)
        .await
        .map_err(store_failure)?;
    if args.confirm && seen.certainty < election::Certainty::Likely {
        (seen, record) = election::leader_confirmed(store, &election, context.timeout)
            .await
            .map_err(store_failure)?;
    }
    context
        .output
        .observation(&args.election, &seen, record.as_ref())?;
    Ok(if seen.leader.is_some() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(VACANT)
    })
}

pub(crate) async fn watch(context: &Context, args: &args::Watch) -> Result<ExitCode, Failure> {
    if let Some(group) = &args.group {
        return super::ps::watch(context, group).await;
    }
    let shown = args.election.clone().unwrap_or_default();
    let election = name(&shown)?;
    let store = context.open_existing().await?;
    let mut watcher = election::watch(store, election, args.renewals);
    let mut trouble = Trouble::default();
    while let Some(event) = watcher.next().await {
        match event {
            Event::LeaderChanged(seen) | Event::LeaderRenewed(seen) => {
                context.output.turn(&shown, &seen)?;
            }
            Event::Trouble { failure, .. } if failure.class == FailureClass::Broken => {
                return Err(usage(format!("{}: {}", shown, failure.why)));
            }
            Event::Trouble { failure, in_a_row } => {
                trouble.report_failure(&shown, &failure, in_a_row);
            }
            Event::Recovered => trouble.report_recovery(&shown),
            Event::TermFell(regression) => trouble::warn_of_regression(&shown, regression),
            _ => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn list(context: &Context) -> Result<ExitCode, Failure> {
    let store = context.open_existing().await?;
    let elections = election::list(store, context.timeout)
        .await
        .map_err(store_failure)?;
    for (name, seen) in elections {
        match seen {
            Ok((seen, record)) => {
                context
                    .output
                    .observation(name.as_str(), &seen, record.as_ref())?;
            }
            Err(error) => {
                let object = json!({ "election": name.as_str(), "error": error.to_string() });
                context.output.line(&format!("{error}"), &object)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
