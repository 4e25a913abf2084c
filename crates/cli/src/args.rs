//! What was typed. What it means is decided in [`crate::config`].

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

mod agent;
mod check;
#[cfg(feature = "tenure")]
mod cluster;
mod fence;
mod repair;
#[cfg(feature = "tenure")]
mod serve;
#[cfg(feature = "tenure")]
mod wal;

pub(crate) use agent::*;
pub(crate) use check::*;
pub(crate) use fence::*;
pub(crate) use repair::*;

#[cfg(feature = "tenure")]
pub(crate) use cluster::*;
#[cfg(feature = "tenure")]
pub(crate) use serve::*;
#[cfg(feature = "tenure")]
pub(crate) use wal::*;

/// Elect a leader among machines, and run a command only on the leader.
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

#[cfg(feature = "tenure")]
const SERVE_EXAMPLES: &str = "\
Examples:
  Three servers on one machine (three terminals):
    tenure serve --id 1 --peers 1=127.0.0.1:7501,2=127.0.0.1:7502,3=127.0.0.1:7503 \\
      --data one --listen 127.0.0.1:7401
    (and --id 2 --data two --listen 127.0.0.1:7402, --id 3 --data three --listen 127.0.0.1:7403)
  What uses them:
    tenure run demo --store tenure://127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403 -- ./job";

/// Flags that every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Common {
    /// Where the registers are: sqlite:///path, postgres://user@host/db, …
    ///
    /// Without it a SQLite file in the state directory of this user
    /// ($XDG_STATE_HOME or ~/.local/state). It serves this user's processes on
    /// this machine only. The command that creates it logs its path.
    #[arg(
        long,
        global = true,
        env = "TENURE_STORE",
        value_name = "URL",
        hide_env_values = true
    )]
    pub(crate) store: Option<String>,
    /// Keep elections in the format of another system's program, where the store has it:
    /// adds format=NAME to the store's URL.
    ///
    /// `hpc` (sqlite:, postgres://, mysql://) is the heartbeat table of HPC Pack HA.
    /// `leaderelection-go` (gs://) is that of vimeo's Go library. Its candidates judge by
    /// the calendar, so ours do, with the bound of --max-clock-skew [default: 1s].
    #[arg(
        long,
        global = true,
        env = "TENURE_FORMAT",
        value_name = "NAME",
        value_parser = format_name
    )]
    pub(crate) format: Option<String>,
    /// The file of the token by which the servers of tenure:// know this client.
    #[arg(long, global = true, env = "TENURE_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
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
    /// How long to wait for an answer [default: 5s of a store, 60s of an agent].
    #[arg(
        long,
        global = true,
        env = "TENURE_TIMEOUT",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) timeout: Option<String>,
}

/// The name of a format, which stands in a URL as it is.
fn format_name(text: &str) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if !text.is_empty() && text.bytes().all(fits) {
        return Ok(text.to_owned());
    }
    Err("expected letters, digits, - and _".to_owned())
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
    /// CMD is started when the election is won and stopped (TERM, then KILL,
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
    /// Print a line per change of leader, or of a group, beginning with the state now.
    ///
    /// Waits for a store that is not there. Exits with 2 at a register that this
    /// version cannot read.
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
    /// See that the next leader's term is above N, after a store was lost or restored.
    ///
    /// A leader in a lower term is asked to hand over first. That takes as long
    /// as its work needs to stop. Does nothing if the term is above N already.
    Repair(Repair),
    /// Delete the register of an election that has no leader.
    ///
    /// Its terms then begin again at 1. A resource that remembers a fence of it
    /// refuses the next leaders. Stop every candidate before.
    Forget(Forget),
    /// Run a command unless a higher term is recorded in a file, and hold its lock meanwhile.
    ///
    /// For what a leader's scripts write, on one machine: records the term in a
    /// file, refuses a lower one than that has seen, and holds the file's lock
    /// while CMD runs. A higher term waits for it.
    Fence(Fence),
    /// Be a node of a group: run what is deployed, and take over from nodes that die.
    ///
    /// A workload of a group runs on one node at a time, and soon on another
    /// one if that dies. Commands of a person reach the group through the
    /// agents on their machine.
    Node(Box<Node>),
    /// Run a command on a node of a group, and on another one should that die.
    ///
    /// Returns when it runs. Fails when a start has failed; it stays deployed
    /// then, and is tried again there and elsewhere.
    Deploy(Box<Deploy>),
    /// End a workload, wherever it is, and free its name.
    Undeploy(Undeploy),
    /// List groups, their nodes and workloads: who runs what, since when, and why not.
    Ps(Ps),
    /// Print the output of a workload that runs, or ran, on this machine.
    Logs(Logs),
    /// Have a node hand all its HA workloads to others and leave, e.g. before maintenance.
    Drain(Drain),
    /// Run the deterministic simulator and its checkers. Exits with 1 on a violation.
    Sim(Sim),
    /// Run one server of a cluster: a store and a log that need nothing else.
    ///
    /// On the first start all servers that --peers names found a cluster
    /// together; after that the data directory says who belongs to it.
    #[cfg(feature = "tenure")]
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<Serve>),
    /// Append to the log of a cluster, read it, follow it.
    #[cfg(feature = "tenure")]
    Log(Log),
    /// Print how the servers of a cluster are, a line each. Exits with 1 if none leads.
    #[cfg(feature = "tenure")]
    Status,
    /// Change the members of a cluster, or who leads it.
    #[cfg(feature = "tenure")]
    Member(Member),
    /// List the sessions of a cluster's clients, or close one. Takes the right admin.
    #[cfg(feature = "tenure")]
    Session(Session),
    /// Write a consistent copy of everything in a cluster to a file.
    #[cfg(feature = "tenure")]
    Backup(Backup),
    /// Have servers take a snapshot of their state now, and delete the log that it covers.
    ///
    /// They do so by themselves; this is for before an upgrade, or a backup of
    /// their disks. Exits with 1 if one of them did not.
    #[cfg(feature = "tenure")]
    Snapshot(Snapshot),
    /// Make the data directory of a new cluster of one server that begins with a backup.
    ///
    /// The backup is checked first. Registers, terms and the log go on where
    /// they were; the servers of the old cluster are no part of the new one.
    #[cfg(feature = "tenure")]
    Restore(Restore),
    /// Run a whole cluster in one process, to try everything in a minute.
    ///
    /// What happens to it is printed as it happens. Without --data everything
    /// is gone when it ends.
    #[cfg(feature = "tenure")]
    Dev(Dev),
    /// Make an authority and certificates to try TLS with, or for a small cluster of one's own.
    ///
    /// Run again with the same directory it adds certificates of the same authority.
    #[cfg(feature = "tenure")]
    Certs(Certs),
    /// Draw a token by which servers know a client, with what it may do.
    ///
    /// The token is for the client; servers are given its SHA-256 only. Read
    /// and write are of registers by the beginnings of their keys, campaign of
    /// elections by the beginnings of their names, operate of groups by their
    /// names. The write of a token that this command makes never includes operate.
    #[cfg(feature = "tenure")]
    Token(Token),
    /// Look into the data directory of a server; nothing in it is changed.
    #[cfg(feature = "tenure")]
    Wal(Wal),
    /// Put load on a store and say how long its answers take.
    ///
    /// Every client owns registers that it reads and writes by
    /// compare-and-swap. Without --rate each takes its next step when the last
    /// has ended (closed loop); with it operations are due at fixed times and
    /// their latency counts from then (open loop). What was made is deleted.
    Bench(Box<Bench>),
    /// Try whether a store keeps the contract on which elections rest.
    ///
    /// Races threads and processes for registers of its own, asks for what has to
    /// be refused, looks over other connections for what was written, cuts
    /// connections in the middle of a write, and says which lease would do. What was made is deleted. Exits with 4 if the store
    /// is unfit.
    Check(Check),
    /// Print a completion script for a shell.
    Completions(Completions),
}

/// What `tenure run` takes.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tenure run payroll --store postgres://db/app --lease 10s -- ./pay-everyone --all
  tenure run backup --once -- sh -c 'pg_dump app > /backup/$TENURE_TERM.sql'
    (once for each process that stands: on two machines it makes two backups, one after the other)
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
    /// Stand only while each of these other elections is led by a candidate of the same
    /// name; may be repeated.
    #[arg(
        long,
        env = "TENURE_WITH",
        value_name = "ELECTION",
        value_delimiter = ','
    )]
    pub(crate) with: Vec<String>,
    /// Run CMD once and exit with its code, instead of standing again.
    #[arg(long)]
    pub(crate) once: bool,
    /// End with code 5, instead of standing again, when the leadership was lost: no renewal
    /// was confirmed for a lease less an interval, or another leads.
    #[arg(long)]
    pub(crate) exit_unconfirmed: bool,
    /// When CMD exits by itself: stand again or end [default: always].
    #[arg(long, env = "TENURE_RESTART", value_name = "WHEN")]
    pub(crate) restart: Option<Restart>,
    /// The command, after --.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// The times of a candidate, e.g. 10s or 500ms.
#[derive(Clone, Debug, Args)]
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
    #[arg(value_name = "ELECTION", required_unless_present = "group")]
    pub(crate) election: Option<String>,
    /// A group of nodes instead: who joins, leaves and dies, and what runs where.
    #[arg(long, conflicts_with_all = ["election", "renewals"])]
    pub(crate) group: Option<String>,
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
    #[arg(value_enum, default_value_t = Simulation::Election)]
    pub(crate) simulation: Simulation,
    /// How many runs, each with the next seed.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    pub(crate) runs: u64,
    /// The first seed, or `random` for one that was never tried [default: 1].
    /// It is printed, and a violation prints the one to replay.
    #[arg(long, default_value = "1", value_name = "S|random", value_parser = first_seed)]
    pub(crate) seed: FirstSeed,
    /// On how many threads, 1 to 1,024 [default: one for each processor].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// Where a sweep of the simulator begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstSeed {
    /// Here.
    Given(u64),
    /// At a seed that no sweep before has begun at.
    Random,
}

fn first_seed(text: &str) -> Result<FirstSeed, String> {
    if text == "random" {
        return Ok(FirstSeed::Random);
    }
    let given = text.parse().map(FirstSeed::Given);
    given.map_err(|_| "expected a number below 2^64, or random".to_string())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Simulation {
    /// Candidates who elect a leader over a store.
    Election,
    /// Servers that replicate a log, and their clients.
    Cluster,
    /// Nodes whose workloads move off dead machines.
    Ha,
}

/// What `tenure bench` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure bench sqlite:///tmp/t.db --clients 8 --disk /tmp
  tenure bench etcd://h1,h2,h3 --clients 64 --reads 0.5 --rate 5000 --plot out.svg
  tenure bench --compare postgres://db/app etcd://h1 --server-pid 71 --server-pid-b 82")]
pub(crate) struct Bench {
    /// The store [default: that of --store].
    #[arg(value_name = "STORE_URL")]
    pub(crate) url: Option<String>,
    /// Two stores that take turns in one run, and how the first does against the second.
    #[arg(long, num_args = 2, value_names = ["URL_A", "URL_B"], conflicts_with = "url")]
    pub(crate) compare: Vec<String>,
    /// How many clients there are.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) clients: u32,
    /// How many connections they share [default: 4, or one for each client].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) connections: Option<u32>,
    /// How long values are.
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(crate) value_bytes: usize,
    /// The share of reads, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_name = "RATIO")]
    pub(crate) reads: f64,
    /// Append to the log of a cluster instead, so many entries with each call.
    #[arg(long, value_name = "ENTRIES", conflicts_with_all = ["reads", "keys"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) append: Option<u32>,
    /// So many operations a second, due at fixed times, all clients together.
    #[arg(long, value_name = "R")]
    pub(crate) rate: Option<f64>,
    /// How long each store is measured.
    #[arg(
        long,
        default_value = "10s",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) duration: String,
    /// How long each is under load before.
    #[arg(
        long,
        default_value = "1s",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) warm_up: String,
    /// How many registers there are [default: one for each client].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) keys: Option<u32>,
    /// In how many slices two stores take turns.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) slices: u32,
    /// Say what a sync takes on the disk of this directory, before and after each round.
    #[arg(long, value_name = "DIR")]
    pub(crate) disk: Option<PathBuf>,
    /// A process whose processor time counts as the (first) store's; may be repeated.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub(crate) server_pid: Vec<u32>,
    /// The same for the second store.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub(crate) server_pid_b: Vec<u32>,
    /// Draw a picture of it.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// For which shell.
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Arg, CommandFactory as _};

    use super::Cli;

    /// All names by which an argument is known, to clap and to the user who
    /// types.
    fn names(arg: &Arg) -> BTreeSet<String> {
        let long = arg.get_long_and_visible_aliases().unwrap_or_default();
        let short = arg.get_short_and_visible_aliases().unwrap_or_default();
        let long = long.into_iter().map(|it| format!("--{it}"));
        let short = short.into_iter().map(|it| format!("-{it}"));
        let variable = arg.get_env().map(|it| it.to_string_lossy().into_owned());
        let all = long.chain(short).chain(variable);
        all.chain([arg.get_id().to_string()]).collect()
    }

    fn clashes(command: &clap::Command, global: &BTreeSet<String>, found: &mut Vec<String>) {
        for sub in command.get_subcommands() {
            for arg in sub.get_arguments() {
                for name in names(arg).intersection(global) {
                    found.push(format!("{} {name}", sub.get_name()));
                }
            }
            clashes(sub, global, found);
        }
    }

    fn all_clashes(command: &clap::Command) -> Vec<String> {
        let all = command.get_arguments().filter(|arg| arg.is_global_set());
        let global = all.flat_map(names).collect();
        let mut found = Vec::new();
        clashes(command, &global, &mut found);
        found
    }

    #[test]
    fn clap_finds_nothing_wrong_with_the_commands() {
        Cli::command().debug_assert();
    }

    // clap leaves a global out of a command that has an argument of the same
    // id, and says nothing until somebody gives it a value of the other type.
    /// On purpose: the workload's --config, beside which the settings' file is
    /// --settings and has the global's id and type (see [`super::Deploy`]).
    const MEANT: [&str; 2] = ["deploy --config", "deploy config"];

    #[test]
    fn no_command_takes_a_name_that_a_flag_of_all_commands_has() {
        assert_eq!(all_clashes(&Cli::command()), MEANT);
        // The check sees one that is planted.
        let planted = clap::Command::new("planted").arg(Arg::new("log").long("log"));
        let clash = all_clashes(&Cli::command().subcommand(planted));
        assert_eq!(clash[MEANT.len()..], ["planted --log", "planted log"]);
    }
}
