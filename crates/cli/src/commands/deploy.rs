//! `tenure deploy`, `undeploy` and `drain`: asked of an agent on this machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tenure::small;
use tokio::task::JoinSet;

use crate::agent::spec::Workload;
use crate::agent::workload_file::WorkloadFile;
use crate::agent::{self, AgentRequest, Deployed, RequestError};
use crate::failure::{Failure, usage};
use crate::output::Output;
use crate::{Context, args, secrets};

pub(crate) async fn deploy(context: &Context, args: &args::Deploy) -> Result<ExitCode, Failure> {
    let workloads = match &args.file {
        Some(file) => from_file(file)?,
        None => vec![from_args(args)?],
    };
    for workload in &workloads {
        let wrong = |why: String| usage(format!("{}: {why}", workload.name));
        // The agent makes it once more; here it is only looked at.
        let _ = workload.deployment().map_err(wrong)?;
        agent::state_directory::check_name("its name", &workload.name)?;
        warn_of_secrets(workload);
    }
    match (workloads.as_slice(), args.no_wait) {
        ([_], _) | (_, true) => {
            let wait = !args.no_wait;
            let mut outcome = Outcome::new(context, workloads.len());
            for workload in workloads {
                let workload = Box::new(workload);
                let request = AgentRequest::Deploy { workload, wait };
                let done = send_and_print(context, &args.via, request).await;
                if outcome.add(done) {
                    break;
                }
            }
            outcome.end()
        }
        _ => deploy_all(context, &args.via, workloads).await,
    }
}

/// Says of each variable that looks like a secret where its value will lie.
fn warn_of_secrets(workload: &Workload) {
    let secrets = workload.env.iter();
    let secrets = secrets.filter(|(name, value)| secrets::is_secret(name, value));
    let names: Vec<&str> = secrets.map(|(name, _)| name.as_str()).collect();
    if !names.is_empty() {
        tracing::warn!(
            "{}: found what looks like a secret in {}: variables of a workload lie in the store, \
             where all who may read the registers of its group can read them. Put it into a file \
             on each node that only the user of the agent may read, and name that by --env-file",
            workload.name,
            names.join(", ")
        );
    }
}

/// How many are waited for at a time, of the 64 commands that an agent serves.
const AWAITED_MAX: usize = 32;

/// Deploys all, and only then waits for each: one that waits for a node, or
/// would not start, keeps no other from being deployed or told of.
async fn deploy_all(
    context: &Context,
    via: &args::Via,
    workloads: Vec<Workload>,
) -> Result<ExitCode, Failure> {
    let mut outcome = Outcome::new(context, workloads.len());
    let mut waiting = Vec::new();
    for workload in workloads {
        let (name, restart) = (workload.name.clone(), workload.restart);
        let workload = Box::new(workload);
        let request = AgentRequest::Deploy {
            workload,
            wait: false,
        };
        match send(context.output, context.patience_of_agents(), via, request).await {
            Ok((_, object)) => {
                let epoch = |key: &str| object[key].as_u64().unwrap_or(0);
                let (after, since) = (epoch("after"), epoch("epoch"));
                waiting.push(Deployed {
                    name,
                    restart,
                    after,
                    since,
                });
            }
            Err(failure) => {
                if outcome.add(Err(failure)) {
                    break;
                }
            }
        }
    }
    let mut waiting = waiting.into_iter();
    let mut awaited = JoinSet::new();
    loop {
        while awaited.len() < AWAITED_MAX
            && let Some(it) = waiting.next()
        {
            let (output, within) = (context.output, context.patience_of_agents());
            let (via, request) = (via.clone(), AgentRequest::Await(Box::new(it)));
            awaited.spawn(async move { send(output, within, &via, request).await });
        }
        let Some(answer) = awaited.join_next().await else {
            return outcome.end();
        };
        let answer = answer.map_err(|error| Failure::Other(error.into()))?;
        outcome.add(match answer {
            Ok((text, object)) => {
                let printed = context.output.line(&text, &object);
                printed.map_err(|error| Failure::from(error).into())
            }
            Err(failure) => Err(failure),
        });
    }
}

/// What became of one or of several, whose failures are told as they come.
struct Outcome<'a> {
    context: &'a Context,
    total: usize,
    sent: usize,
    failed: usize,
    last: Option<Failure>,
}

impl<'a> Outcome<'a> {
    const fn new(context: &'a Context, total: usize) -> Self {
        Self {
            context,
            total,
            sent: 0,
            failed: 0,
            last: None,
        }
    }

    /// Whether it is no use to ask for the others.
    fn add(&mut self, one: Result<(), RequestError>) -> bool {
        self.sent += 1;
        let Err(RequestError { failure, gave_up }) = one else {
            return false;
        };
        if self.total > 1 {
            self.context.output.error(&failure.to_string());
        }
        self.failed += 1;
        self.last = Some(failure);
        gave_up
    }

    fn end(self) -> Result<ExitCode, Failure> {
        let (failed, total) = (self.failed, self.total);
        match self.last {
            None => Ok(ExitCode::SUCCESS),
            Some(failure) if total == 1 => Err(failure),
            Some(failure) => {
                let text = match total - self.sent {
                    0 => format!("{failed} of {total} workloads failed, as said above"),
                    rest => format!(
                        "{failed} of {total} workloads failed, as said above, and {rest} were not \
                         asked for"
                    ),
                };
                Err(match failure {
                    Failure::Usage(_) => usage(text),
                    Failure::Other(_) => Failure::Other(anyhow::anyhow!("{text}")),
                })
            }
        }
    }
}

pub(crate) async fn undeploy(
    context: &Context,
    args: &args::Undeploy,
) -> Result<ExitCode, Failure> {
    let name = args.name.clone();
    let done = send_and_print(context, &args.via, AgentRequest::Undeploy { name }).await;
    done.map_err(|not| not.failure)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn drain(context: &Context, args: &args::Drain) -> Result<ExitCode, Failure> {
    let node = args.node.clone();
    let done = send_and_print(context, &args.via, AgentRequest::Drain { node }).await;
    done.map_err(|not| not.failure)?;
    Ok(ExitCode::SUCCESS)
}

async fn send_and_print(
    context: &Context,
    via: &args::Via,
    request: AgentRequest,
) -> Result<(), RequestError> {
    let within = context.patience_of_agents();
    let (text, object) = send(context.output, within, via, request).await?;
    let printed = context.output.line(&text, &object);
    printed.map_err(|error| Failure::from(error).into())
}

/// What an agent answers; notes are printed as they come.
async fn send(
    output: Output,
    within: Duration,
    via: &args::Via,
    request: AgentRequest,
) -> Result<(String, Value), RequestError> {
    let root = agent::state_directory::root(via.state.state.as_deref())?;
    let note = |text: &str| output.note(text);
    let (group, name) = (via.group.group.as_str(), via.via.as_deref());
    agent::send_request(&root, group, name, within, request, note).await
}

fn from_file(path: &Path) -> Result<Vec<Workload>, Failure> {
    let shown = path.display();
    let text = small::read_text(path).map_err(|error| usage(format!("--file {shown}: {error}")))?;
    let file: WorkloadFile =
        WorkloadFile::parse(&text).map_err(|error| usage(format!("--file {shown}: {error}")))?;
    if file.workload.is_empty() {
        return Err(usage(format!(
            "--file {shown}: expected at least one [[workload]], found none"
        )));
    }
    Ok(file.workload)
}

fn from_args(args: &args::Deploy) -> Result<Workload, Failure> {
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
        env_file: args.env_file.clone(),
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

fn json(path: &Path) -> Result<Value, Failure> {
    let shown = path.display();
    let text =
        small::read_text(path).map_err(|error| usage(format!("--config {shown}: {error}")))?;
    serde_json::from_str(&text).map_err(|error| {
        usage(format!(
            "--config {shown}: expected JSON, found what is none: {error}"
        ))
    })
}
