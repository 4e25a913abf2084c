//! `tenure deploy`, `undeploy` and `drain`: asked of an agent on this machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use crate::agent::spec::{File, Workload};
use crate::agent::{self, Ask};
use crate::failure::{Failure, usage};
use crate::{Context, args};

pub(crate) async fn deploy(context: &Context, args: &args::Deploy) -> Result<ExitCode, Failure> {
    let workloads = match &args.file {
        Some(file) => filed(file)?,
        None => vec![typed(args)?],
    };
    for workload in &workloads {
        let wrong = |why: String| usage(format!("{}: {why}", workload.name));
        // The agent makes it once more; here it is only looked at.
        let _ = workload.deployment().map_err(wrong)?;
    }
    let wait = !args.no_wait;
    let ask = |workload| {
        let workload = Box::new(workload);
        asked(context, &args.via, Ask::Deploy { workload, wait })
    };
    // One that would not start does not keep the others from being deployed.
    let mut failed = None;
    for workload in workloads {
        match ask(workload).await {
            Ok(()) => {}
            Err(failure) => {
                if let Some(before) = failed.replace(failure) {
                    context.output.note(&format!("tenure: {before}"));
                }
            }
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

pub(crate) async fn undeploy(
    context: &Context,
    args: &args::Undeploy,
) -> Result<ExitCode, Failure> {
    let name = args.name.clone();
    asked(context, &args.via, Ask::Undeploy { name }).await?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn drain(context: &Context, args: &args::Drain) -> Result<ExitCode, Failure> {
    let node = args.node.clone();
    asked(context, &args.via, Ask::Drain { node }).await?;
    Ok(ExitCode::SUCCESS)
}

async fn asked(context: &Context, via: &args::Via, ask: Ask) -> Result<(), Failure> {
    let root = agent::place::root(via.state.state.as_deref())?;
    let note = |text: &str| context.output.note(text);
    let (group, name) = (via.group.group.as_str(), via.via.as_deref());
    let (text, object) = agent::ask(&root, group, name, &ask, note).await?;
    context.output.line(&text, &object)?;
    Ok(())
}

fn filed(path: &Path) -> Result<Vec<Workload>, Failure> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|error| usage(format!("--file {shown}: {error}")))?;
    let file: File =
        toml::from_str(&text).map_err(|error| usage(format!("--file {shown}: {error}")))?;
    if file.workload.is_empty() {
        return Err(usage(format!(
            "--file {shown}: expected at least one [[workload]], found none"
        )));
    }
    Ok(file.workload)
}

fn typed(args: &args::Deploy) -> Result<Workload, Failure> {
    let mut env = BTreeMap::new();
    for pair in &args.env {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| usage(format!("--env: expected KEY=VALUE, found {pair:?}")))?;
        env.insert(key.to_owned(), value.to_owned());
    }
    Ok(Workload {
        name: args.name.clone().unwrap_or_default(),
        command: args.command.clone(),
        env,
        node: args.node.clone(),
        ha: !args.no_ha,
        instances: args.instances,
        order: args.order,
        needs: args.needs.clone(),
        restart: args.restart,
        ready: args.ready.clone(),
        config: args.config.as_deref().map(json).transpose()?,
    })
}

fn json(path: &Path) -> Result<serde_json::Value, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("--config {shown}: {error}")))?;
    serde_json::from_str(&text).map_err(|error| {
        usage(format!(
            "--config {shown}: expected JSON, found what is none: {error}"
        ))
    })
}
