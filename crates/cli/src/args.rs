//! What was typed. What it means is decided in [`crate::config`].

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Who leads, until when, and how everybody else finds out.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, about, max_term_width = 100, after_help = EXAMPLES)]
#[command(propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  Run a job on one of several machines, and move it when that machine dies:
    tenure run payroll --store postgres://db/app -- ./pay-everyone
  The same on one laptop, with nothing to install (two terminals):
    tenure run demo -- sh -c 'while :; do date; sleep 1; done'
  Who leads, and for how much longer?
    tenure leader payroll
  Hand over before maintenance:
    tenure transfer payroll --to web-2

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 vacant, 4 unfit store.";

const LEADER_EXAMPLES: &str = "\
Examples:
  tenure leader payroll
  tenure leader payroll --json | jq -r '.addresses[0]'
  tenure leader payroll --confirm || echo 'nobody leads'";

/// Flags that every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Common {
    /// Where the registers are: sqlite:///path, postgres://user@host/db, …
    ///
    /// Without it a SQLite file in the user's state directory coordinates the
    /// processes of this machine.
    #[arg(
        long,
        global = true,
        env = "TENURE_STORE",
        value_name = "URL",
        hide_env_values = true
    )]
    pub(crate) store: Option<String>,
    /// A file of settings (TOML); flags and environment variables beat it.
    #[arg(long, global = true, env = "TENURE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print one JSON object a line instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// How to log, on stderr.
    #[arg(long, global = true, env = "TENURE_LOG", value_name = "FORMAT")]
    pub(crate) log: Option<LogFormat>,
    /// Log more (-v: renewals and retries, -vv: everything).
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Log errors only.
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// How long to wait for a store's answer.
    #[arg(
        long,
        global = true,
        env = "TENURE_TIMEOUT",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) timeout: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// A line for people.
    Human,
    /// A JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command only while this process leads the election.
    ///
    /// CMD is started when the office is won and stopped (TERM, then KILL,
    /// both inside the lease) when it is lost; then this process stands again.
    /// CMD sees TENURE_ELECTION, TENURE_TERM (the fence: attach it to whatever
    /// CMD does outside, and refuse lower ones there), TENURE_LEADER_ID and
    /// TENURE_STORE. It ends with everything it has started.
    Run(Box<Run>),
    /// Say who leads. Exits with 3 if nobody does.
    ///
    /// Where the store's clock cannot say whether a grant is over, one read is
    /// only an assumption; --confirm watches for up to one lease.
    #[command(after_help = LEADER_EXAMPLES)]
    Leader(Leader),
    /// Print a line per change of leader, beginning with the state now.
    Watch(Watch),
    /// List all elections of the store.
    List,
    /// Ask the leader to resign, and wait until it has.
    ///
    /// The leader stops its work first, so this takes as long as that does.
    Resign(Resign),
    /// Ask the leader to hand over to another candidate, and wait until it leads.
    ///
    /// The others hold back for a moment; if the one named does not take
    /// over, anybody may, and this command fails.
    #[command(after_help = "Example:\n  tenure transfer payroll --to web-2")]
    Transfer(Transfer),
    /// Run the deterministic simulator and its checkers. Exits with 1 on a violation.
    Sim(Sim),
    /// Look into the data directory of a server; nothing in it is changed.
    Wal(Wal),
    /// Print a completion script for a shell.
    Completions(Completions),
}

/// What `tenure run` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure run payroll --store postgres://db/app --lease 10s -- ./pay-everyone --all
  tenure run backup --once -- sh -c 'pg_dump app > /backup/$TENURE_TERM.sql'
  tenure run web --advertise 10.0.0.7:8443 --restart on-failure -- ./server")]
pub(crate) struct Run {
    /// What is being led, e.g. payroll.
    #[arg(value_name = "ELECTION")]
    pub(crate) election: String,
    #[command(flatten)]
    pub(crate) times: Times,
    /// This candidate's name for people [default: the host name].
    #[arg(long, env = "TENURE_NAME")]
    pub(crate) name: Option<String>,
    /// Where clients connect while this process leads; may be repeated.
    #[arg(
        long,
        env = "TENURE_ADVERTISE",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    pub(crate) advertise: Vec<String>,
    /// 0 to 10: lower ones wait a little longer before they race [default: 10].
    #[arg(
        long,
        env = "TENURE_PRIORITY",
        value_name = "N",
        allow_hyphen_values = true
    )]
    pub(crate) priority: Option<String>,
    /// Stand only while this other election is led by a candidate of the same name.
    #[arg(long, env = "TENURE_WITH", value_name = "ELECTION")]
    pub(crate) with: Option<String>,
    /// Run CMD once and exit with its code, instead of standing again.
    #[arg(long)]
    pub(crate) once: bool,
    /// When CMD exits by itself: stand again or end [default: always].
    #[arg(long, env = "TENURE_RESTART", value_name = "WHEN")]
    pub(crate) restart: Option<Restart>,
    /// The command, after --.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// The times of a candidate, e.g. 10s or 500ms.
#[derive(Debug, Args)]
pub(crate) struct Times {
    /// How long a grant lasts without renewal [default: 10s].
    #[arg(
        long,
        env = "TENURE_LEASE",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) lease: Option<String>,
    /// How often it is renewed [default: a fifth of the lease].
    #[arg(
        long,
        env = "TENURE_INTERVAL",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) interval: Option<String>,
    /// How long CMD gets between TERM and KILL [default: three tenths of the lease].
    ///
    /// CMD may get longer if renewals fail: TERM is sent one interval before the
    /// end of the lease at the latest, KILL when the lease is about to end.
    #[arg(
        long,
        env = "TENURE_GRACE",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) grace: Option<String>,
    /// How long before the end of validity CMD is killed; at least 200ms [default: 2 % of the
    /// lease, at least 250ms].
    #[arg(
        long,
        env = "TENURE_KILL_MARGIN",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) kill_margin: Option<String>,
    /// Judge grants by the calendar, if calendars really differ by at most this.
    #[arg(
        long,
        env = "TENURE_MAX_CLOCK_SKEW",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) max_clock_skew: Option<String>,
    /// How far the rate of any clock may be off, e.g. 1% or 200ppm [default: 1%].
    ///
    /// To be the same for all candidates. `tenure leader` and `watch`, which
    /// only look, reckon with 1%.
    #[arg(
        long,
        env = "TENURE_DRIFT",
        value_name = "RATE",
        allow_hyphen_values = true
    )]
    pub(crate) drift: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Restart {
    /// Stand again, whatever its code was.
    Always,
    /// Stand again if it failed; end with 0 if it succeeded.
    OnFailure,
    /// End with its code.
    Never,
}

#[derive(Debug, Args)]
pub(crate) struct Leader {
    /// Which election.
    #[arg(value_name = "ELECTION")]
    pub(crate) election: String,
    /// Where one read cannot tell, watch for up to one lease.
    #[arg(long)]
    pub(crate) confirm: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Which election.
    #[arg(value_name = "ELECTION")]
    pub(crate) election: String,
    /// Print renewals too.
    #[arg(long)]
    pub(crate) renewals: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Resign {
    /// Which election.
    #[arg(value_name = "ELECTION")]
    pub(crate) election: String,
    /// Which leader (as `tenure leader` prints it), so that its successor is not
    /// deposed by accident.
    #[arg(long, value_name = "ID")]
    pub(crate) leader_id: String,
}

#[derive(Debug, Args)]
pub(crate) struct Transfer {
    /// Which election.
    #[arg(value_name = "ELECTION")]
    pub(crate) election: String,
    /// The name of the candidate that shall lead.
    #[arg(long, value_name = "NAME")]
    pub(crate) to: String,
}

#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// What to simulate.
    #[arg(value_enum, default_value_t = World::Election)]
    pub(crate) world: World,
    /// How many runs, each with the next seed.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    pub(crate) runs: u64,
    /// The first seed [default: 1]; a violation prints the one to replay.
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub(crate) seed: u64,
    /// On how many threads [default: all].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum World {
    /// Candidates who elect a leader over a store.
    Election,
    /// Servers that replicate a log, and their clients.
    Cluster,
    /// Nodes whose workloads move off dead machines.
    Ha,
}

#[derive(Debug, Args)]
pub(crate) struct Wal {
    #[command(subcommand)]
    pub(crate) command: WalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WalCommand {
    /// Print the log, a line per record. Exits with 1 where it is damaged.
    Inspect(DataDir),
    /// Say whether a server could start from it. Exits with 1 if it is damaged.
    ///
    /// A write that never finished is no damage: nobody was told that it was
    /// durable, and it is cut when a server starts.
    Verify(DataDir),
}

#[derive(Debug, Args)]
pub(crate) struct DataDir {
    /// The data directory.
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// For which shell.
    pub(crate) shell: clap_complete::Shell,
}
