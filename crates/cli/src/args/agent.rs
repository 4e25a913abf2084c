//! What is typed to run agents, and to have them run workloads.

use std::path::PathBuf;

use clap::Args;

use crate::agent::RestartPolicy;

/// What `tenure node` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Three of these, each on its own machine, and what they run survives any one of them:
    tenure node --group web --quorum 2 --store postgres://db/app
    tenure deploy api --group web -- /srv/api --port 8080
    tenure ps --group web --store postgres://db/app

The first TERM or INT hands everything on to other nodes and then ends; a second one, half a second
later or more, ends at once.")]
pub(crate) struct Node {
    #[command(flatten)]
    pub(crate) group: Group,
    /// How many HA nodes the group needs before any HA workload runs; the same on every node.
    #[arg(long, env = "TENURE_QUORUM", default_value_t = 0, value_name = "N")]
    pub(crate) quorum: u32,
    /// This node's name for people [default: the host name].
    #[arg(long, env = "TENURE_NAME")]
    pub(crate) name: Option<String>,
    /// Count for no quorum and take nothing over.
    #[arg(long)]
    pub(crate) no_ha: bool,
    /// Spread the load of a dead node over all survivors, not on one; the same on every node.
    #[arg(long, env = "TENURE_SPREAD")]
    pub(crate) spread: bool,
    /// A label that workloads may ask for, such as zone=a; may be repeated.
    #[arg(long, env = "TENURE_LABELS", value_delimiter = ',')]
    pub(crate) label: Vec<String>,
    /// The most workloads it takes.
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<u32>,
    /// How long it may be silent before the others take over [default: 10s].
    #[arg(long, env = "TENURE_LEASE", value_name = "DURATION")]
    pub(crate) lease: Option<String>,
    /// How often it sends a heartbeat [default: a fifth of the lease].
    #[arg(long, env = "TENURE_INTERVAL", value_name = "DURATION")]
    pub(crate) interval: Option<String>,
    /// How long workloads get between TERM and KILL [default: three tenths of the lease].
    #[arg(long, env = "TENURE_GRACE", value_name = "DURATION")]
    pub(crate) grace: Option<String>,
    /// How long before the end of the lease workloads are killed; at least 200ms [default: 2 % of
    /// the lease, at least 250ms].
    #[arg(long, env = "TENURE_KILL_MARGIN", value_name = "DURATION")]
    pub(crate) kill_margin: Option<String>,
    /// How far the rate of any clock may be off, e.g. 1% or 200ppm; the same on every node
    /// [default: 1%].
    #[arg(long, env = "TENURE_DRIFT", value_name = "RATE")]
    pub(crate) drift: Option<String>,
    #[command(flatten)]
    pub(crate) state: State,
    /// Serve metrics here, at /metrics; with port 0 on one that is free, which the log names.
    #[arg(long, env = "TENURE_METRICS", value_name = "HOST:PORT")]
    pub(crate) metrics: Option<String>,
    /// The most bytes of output in one file, of which each instance has its own.
    #[arg(long, default_value_t = 4 << 20, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1_024..))]
    pub(crate) log_bytes: u64,
    /// How many older files of output are kept beside it.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) log_files: u32,
}

/// Which group.
#[derive(Clone, Debug, Args)]
pub(crate) struct Group {
    /// Which group of nodes.
    #[arg(
        long,
        env = "TENURE_GROUP",
        default_value = tenure::ha::Config::DEFAULT_GROUP
    )]
    pub(crate) group: String,
}

/// Where agents keep what is of this machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct State {
    /// Where the agents of this user keep their sockets and the output of workloads [default:
    /// $XDG_STATE_HOME/tenure/nodes].
    #[arg(long, env = "TENURE_STATE", value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

/// The error of commands that take no store.
const NO_STORE: &str = "--store is for other commands: this one asks an agent, which has its own.";

/// Through which agent.
#[derive(Clone, Debug, Args)]
pub(crate) struct Via {
    #[command(flatten)]
    pub(crate) group: Group,
    /// Ask the agent of this name, where several of the group run on this machine.
    #[arg(long, value_name = "NAME")]
    pub(crate) via: Option<String>,
    #[command(flatten)]
    pub(crate) state: State,
}

/// What `tenure deploy` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure deploy api --group web -- /srv/api --port 8080
  tenure deploy cron --group web --no-ha --node web-1 -- /srv/cron
  tenure deploy worker --group web --instances 4 --needs zone=a --config worker.json -- /srv/worker
  tenure deploy --group web --file workloads.toml

CMD sees TENURE_GROUP, TENURE_NODE, TENURE_WORKLOAD, TENURE_FENCE (attach it to whatever CMD does
outside, and refuse lower ones there), TENURE_INSTANCE (from 0), TENURE_INSTANCES,
TENURE_WORKLOAD_CONFIG if there is a --config, and the environment of the agent, whose directory it
starts in.

--store is for other commands: this one asks an agent, which has its own.
The settings of tenure itself are --settings here, TENURE_CONFIG, or --config before `deploy`.")]
pub(crate) struct Deploy {
    /// The workload's name, unique in the group.
    #[arg(required_unless_present = "file")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) via: Via,
    /// A file of workloads (TOML), instead of the flags.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "command", "workload_config"])]
    pub(crate) file: Option<PathBuf>,
    /// On this node, by name or the beginning of its id [default: HA on whichever fits, others on the one asked].
    #[arg(long, value_name = "NODE", conflicts_with = "file")]
    pub(crate) node: Option<String>,
    /// It outlives its node, and needs the quorum (the default).
    #[arg(long, conflicts_with = "no_ha")]
    pub(crate) ha: bool,
    /// It dies with its node, also with one that lives but could not reach its store for a lease:
    /// nobody starts it again.
    #[arg(long, conflicts_with = "file")]
    pub(crate) no_ha: bool,
    /// How many of it, on one node.
    #[arg(long, default_value_t = 1, value_name = "K", conflicts_with = "file")]
    pub(crate) instances: u32,
    /// What it is told: a file of JSON, which CMD sees as TENURE_WORKLOAD_CONFIG.
    #[arg(long = "config", id = "workload_config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The file of settings that is --config everywhere else.
    // By its id it takes the place of the global flag, and its value goes to
    // `super::Common::config`.
    #[arg(long, id = "config", value_name = "FILE")]
    settings: Option<PathBuf>,
    /// When CMD ends by itself: start it again, or undeploy it. Pauses between starts grow; after
    /// three failures in a row another node tries.
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "always",
        conflicts_with = "file"
    )]
    pub(crate) restart: RestartPolicy,
    /// How long CMD must run to have been started; a start that ends before has failed [default:
    /// 500ms].
    #[arg(long, value_name = "DURATION", conflicts_with = "file")]
    pub(crate) ready: Option<String>,
    /// A label that its node must have; may be repeated.
    #[arg(long, value_name = "LABEL", conflicts_with = "file")]
    pub(crate) needs: Vec<String>,
    /// Its place in the order of starts on one node: lower ones run first.
    #[arg(long, default_value_t = 0, value_name = "N", conflicts_with = "file")]
    pub(crate) order: u32,
    /// A variable for CMD; may be repeated. It lies in the store: secrets belong into --env-file.
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "file")]
    pub(crate) env: Vec<String>,
    /// A file on the nodes with more variables for CMD, by its whole path: NAME=VALUE a line. It is
    /// read when CMD starts, and must be closed to others than its owner and group (mode 0600 or
    /// 0640). Those of --env count for more.
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) env_file: Option<String>,
    /// Return when it is deployed, without waiting until it runs.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// The command, after --.
    #[arg(last = true, value_name = "CMD", required_unless_present = "file")]
    pub(crate) command: Vec<String>,
}

/// What `tenure undeploy` takes.
#[derive(Debug, Args)]
#[command(after_help = NO_STORE)]
pub(crate) struct Undeploy {
    /// The workload's name.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) via: Via,
}

/// What `tenure drain` takes.
#[derive(Debug, Args)]
#[command(after_help = NO_STORE)]
pub(crate) struct Drain {
    /// Which node, by name or the beginning of its id [default: that of --via, or of the only agent here].
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) via: Via,
}

/// What `tenure ps` takes.
#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Only this group [default: all groups of the store].
    #[arg(long, env = "TENURE_GROUP")]
    pub(crate) group: Option<String>,
}

/// What `tenure logs` takes.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "--store and --json are for other commands: this one prints files of this \
machine, as they are."
)]
pub(crate) struct Logs {
    /// The workload's name.
    pub(crate) workload: String,
    #[command(flatten)]
    pub(crate) via: Via,
    /// Of this instance.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) instance: u32,
    /// So many lines from the end [default: all that is kept].
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) lines: Option<usize>,
    /// Go on as more comes.
    #[arg(long, short)]
    pub(crate) follow: bool,
}
