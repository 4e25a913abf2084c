//! The control socket: how commands on this machine speak to an agent.
//!
//! A connection has a greeting, one request and its answers: notes while the
//! command waits, and one last answer. An agent that does not greet is stopped or
//! starved. The command sends it no request, so that it does nothing when it goes
//! on. Only the agent's user and root can reach the socket (`state_directory.rs`)
//! and are heard there (`peer_check.rs`).
//! `control_server.rs` is the agent's side.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_runtime::failure::{Failure, usage};
use tokio::net::UnixStream;

use super::messages::{Connection, RestartPolicy};
use super::spec::Workload;
use super::state_directory::{self, CONTROL_SOCKET, SocketDirectory};

/// How long an agent may take to greet.
const FIRST_MESSAGE_WITHIN: Duration = Duration::from_secs(3);

/// How long an agent may be kept from its group while a command waits, unless
/// `--timeout` says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// What a command asks of an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum AgentRequest {
    /// Run this, and wait until it does.
    Deploy {
        /// What is to run.
        workload: Box<Workload>,
        /// Whether the answer waits until it does.
        wait: bool,
    },
    /// Wait until it runs that was deployed before.
    Await(Box<Deployed>),
    /// End it, wherever it is, and wait until it has.
    Undeploy {
        /// Of which workload.
        name: String,
    },
    /// Have a node, this one by default, hand everything on and leave.
    Drain {
        /// Its name or id.
        node: Option<String>,
    },
}

impl fmt::Display for AgentRequest {
    /// The command, as far as it tells one from another.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deploy { workload, .. } => write!(f, "tenure deploy {}", workload.name),
            Self::Await(deployed) => write!(f, "tenure deploy {}", deployed.name),
            Self::Undeploy { name } => write!(f, "tenure undeploy {name}"),
            Self::Drain { node: None } => f.write_str("tenure drain"),
            Self::Drain { node: Some(node) } => write!(f, "tenure drain {node}"),
        }
    }
}

/// What has been deployed, for a command that waits for it later.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Deployed {
    /// Its name in its group.
    pub name: String,
    /// When it is started again.
    pub restart: RestartPolicy,
    /// An epoch from before it was: what ran then was another of its name.
    pub after: u64,
    /// The first epoch that this agent knows to have it.
    pub since: u64,
}

/// What a command sends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RequestEnvelope {
    /// How long the agent may be kept from its group before this has failed;
    /// what was sent by an older command does not say.
    #[serde(default)]
    pub(super) within_ms: Option<u64>,
    #[serde(flatten)]
    pub(super) request: AgentRequest,
}

/// What an agent answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(super) enum Answer {
    /// The first word: go ahead.
    Hello,
    /// What is being waited for.
    Note { text: String },
    /// The last word: it is done.
    Done { text: String, object: Value },
    /// The last word: it is not.
    Failed {
        text: String,
        usage: bool,
        /// Nothing was refused: the agent was kept from its group for too long.
        #[serde(default)]
        gave_up: bool,
    },
}

/// Why a request failed.
pub struct RequestError {
    /// How the command fails.
    pub failure: Failure,
    /// The agent is kept from its group: it is no use to ask for more.
    pub gave_up: bool,
}

impl From<Failure> for RequestError {
    fn from(failure: Failure) -> Self {
        let gave_up = false;
        Self { failure, gave_up }
    }
}

/// Asks an agent of this group on this machine; of `via`, if that is named.
/// Notes are handed on as they come. It may be kept from its group for
/// `within` at a stretch.
pub async fn send_request(
    root: &Path,
    group: &str,
    via: Option<&str>,
    within: Duration,
    request: AgentRequest,
    mut note: impl FnMut(&str),
) -> Result<(String, Value), RequestError> {
    // The order of names must not decide which of several agents is drained.
    let alone = matches!(request, AgentRequest::Drain { node: None });
    let mut connection = connect(root, group, via, (alone, within), &mut note).await?;
    let within_ms = Some(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
    connection.queue(&RequestEnvelope { within_ms, request });
    loop {
        match connection.next::<Answer>().await.map_err(Failure::from)? {
            Some(Answer::Hello) => {}
            Some(Answer::Note { text }) => note(&text),
            Some(Answer::Done { text, object }) => return Ok((text, object)),
            Some(Answer::Failed {
                text,
                usage: wrong,
                gave_up,
            }) => {
                let other = || Failure::Other(anyhow::anyhow!("{text}"));
                let failure = if wrong { usage(&*text) } else { other() };
                return Err(RequestError { failure, gave_up });
            }
            None => {
                let failure = Failure::Other(anyhow::anyhow!(
                    "expected an answer of the agent, found that it has ended; whether it was \
                     done can be seen with `tenure ps`"
                ));
                return Err(failure.into());
            }
        }
    }
}

/// To the first agent that answers; if it is to be `alone`, none if a second
/// one does.
async fn connect(
    root: &Path,
    group: &str,
    via: Option<&str>,
    (alone, within): (bool, Duration),
    note: &mut impl FnMut(&str),
) -> Result<Connection, Failure> {
    let directory = state_directory::group_directory(root, group);
    let (mut silent, mut found, mut refused) = (Vec::new(), Vec::new(), None);
    for (node, stream) in reachable_agents(root, group, via, within, note).await? {
        let mut connection = Connection::new(UnixStream::from_std(stream)?);
        let greeting =
            tokio::time::timeout(FIRST_MESSAGE_WITHIN, connection.next::<Answer>()).await;
        if matches!(greeting, Ok(Ok(Some(Answer::Hello)))) {
            if !alone {
                return Ok(connection);
            }
            found.push((node, connection));
            continue;
        }
        if let Ok(Ok(Some(Answer::Failed { text, .. }))) = greeting {
            refused = Some(usage(format!("{}: {text}", node.display())));
            continue;
        }
        silent.push(node.display().to_string());
    }
    if found.len() > 1 {
        let name = |(node, _): &(PathBuf, Connection)| {
            let name = node.file_name().map(|it| it.to_string_lossy().into_owned());
            name.unwrap_or_default()
        };
        let names: Vec<String> = found.iter().map(name).collect();
        return Err(usage(format!(
            "expected NODE or --via where several agents of group {group} run on this machine, \
             found neither, and {}; nothing was asked",
            names.join(", ")
        )));
    }
    if let Some((_, connection)) = found.pop() {
        return Ok(connection);
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    if !silent.is_empty() {
        let silent = silent.join(", ");
        return Err(Failure::Other(anyhow::anyhow!(
            "expected an agent to answer within {FIRST_MESSAGE_WITHIN:?}, found that none does: {silent}; \
             nothing was asked"
        )));
    }
    let named = via.map_or_else(String::new, |name| format!(" of name {name}"));
    Err(usage(format!(
        "expected an agent{named} of group {group} on this machine, found none below {}; start \
         one with `tenure node --group {group}`, or ask where one runs",
        directory.display()
    )))
}

/// The agents' sockets that can be reached, by the directories of their nodes.
async fn reachable_agents(
    root: &Path,
    group: &str,
    via: Option<&str>,
    within: Duration,
    note: &mut impl FnMut(&str),
) -> Result<Vec<(PathBuf, std::os::unix::net::UnixStream)>, Failure> {
    let slow = || {
        let root = root.display();
        note(&format!(
            "waiting: {root} does not answer: its file system is slow or hangs"
        ));
    };
    let (below, group, via) = (root.to_owned(), group.to_owned(), via.map(str::to_owned));
    let look = move || {
        let nodes = state_directory::nodes(&below, &group, via.as_deref())?;
        let reach = |node: PathBuf| {
            let stream = SocketDirectory::open(&node)
                .ok()?
                .connect_blocking(CONTROL_SOCKET)
                .ok()?;
            Some((node, stream))
        };
        Ok(nodes.into_iter().filter_map(reach).collect())
    };
    state_directory::run_on_thread(root, within, slow, look).await
}
