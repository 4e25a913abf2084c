//! `tenure repair` and `tenure forget`.

use std::process::ExitCode;

use serde_json::json;
use tenure::Term;
use tenure::election::{self, RepairError};

use super::observe::name;
use crate::failure::{Failure, store_failure, usage};
use crate::{Context, args};

pub(crate) async fn repair(context: &Context, args: &args::Repair) -> Result<ExitCode, Failure> {
    let election = name(&args.election)?;
    let above = Term::new(args.term_above).ok_or(RepairError::TooHigh {
        found: args.term_above,
    });
    let above = above.map_err(failure)?;
    let store = if args.create {
        context.open().await?
    } else {
        context.open_existing().await?
    };
    let (within, max_wait) = (context.timeout, context.max_wait());
    let term = election::repair(store, &election, above, within, max_wait)
        .await
        .map_err(failure)?;
    let text = format!("{election}: term {term}; the next leader's is above {above}");
    let object = json!({
        "election": election.as_str(),
        "term": term.get(),
        "above": above.get(),
    });
    context.output.line(&text, &object)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn forget(context: &Context, args: &args::Forget) -> Result<ExitCode, Failure> {
    let election = name(&args.election)?;
    let store = context.open_existing().await?;
    let within = context.timeout;
    let forgotten = if args.holder_is_gone {
        election::forget_abandoned(store, &election, within).await
    } else {
        election::forget(store, &election, within).await
    };
    let term = forgotten.map_err(failure)?;
    let text = format!(
        "{election}: forgotten at term {term}; the next leader's is 1, and whatever remembers \
         term {term} refuses it"
    );
    let object = json!({ "election": election.as_str(), "forgotten_term": term.get() });
    context.output.line(&text, &object)?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: RepairError) -> Failure {
    match error {
        RepairError::Store(error) => store_failure(error),
        RepairError::TooHigh { .. } => usage(format!("--term-above: {error}")),
        other => Failure::Other(other.into()),
    }
}
