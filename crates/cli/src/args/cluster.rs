//! What is typed to speak to a cluster: its log, its servers.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct Log {
    #[command(subcommand)]
    pub(crate) command: LogCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Append entries, each once, and print their numbers.
    ///
    /// If it is not known in time whether an entry is in the log, this fails
    /// and says so.
    #[command(after_help = "\
Examples:
  tenure log append --store tenure://h1:7400,h2:7400 'an order'
  seq 1000 | tenure log append -")]
    Append(Append),
    /// Print entries, one's data a line.
    ///
    /// The log keeps its newest 64 MiB only. Once older entries are gone,
    /// reading from one of them (the first, if --from is left out) fails with
    /// "expected to read from N on": give --from N.
    /// `tenure status --json` has that number too, as `log_first`.
    Read(ReadLog),
    /// Print each new entry, until Ctrl-C.
    ///
    /// Goes on at another server when one is lost; no entry is left out and
    /// none is printed twice.
    Tail(Tail),
}

#[derive(Debug, Args)]
pub(crate) struct Append {
    /// What to append; - alone for a line of standard input each.
    #[arg(required = true, value_name = "DATA")]
    pub(crate) data: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ReadLog {
    /// The number of the first entry.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) from: u64,
    /// At most so many [default: all].
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// The number of the first entry [default: only what is new].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) from: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Member {
    #[command(subcommand)]
    pub(crate) command: MemberCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// Print the members as the leader knows them.
    List,
    /// Take in a server, which follows and does not count yet.
    ///
    /// Start it first: it prints its storage.
    #[command(after_help = "\
Example:
  tenure member add 4 --storage 0123456789abcdef0123456789abcdef
  tenure member promote 4")]
    Add(AddMember),
    /// Make a learner that has caught up a voter.
    ///
    /// Refused while it lacks what was appended a second ago (or an election
    /// timeout, if that is longer), or does not answer.
    Promote(MemberId),
    /// Take a member out. A leader hands over first.
    ///
    /// Refused if no majority of the remaining voters answers.
    Remove(MemberId),
    /// Hand the leadership of the cluster over.
    Transfer(TransferMember),
}

#[derive(Debug, Args)]
pub(crate) struct AddMember {
    /// Its number.
    pub(crate) id: u64,
    /// Its data directory, as the server prints it: 32 hexadecimal digits.
    #[arg(long, value_name = "STORAGE")]
    pub(crate) storage: String,
    /// Where other servers reach it [default: what it says itself].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) peer: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct MemberId {
    /// Its number.
    pub(crate) id: u64,
    /// Only if it has this data directory, as `tenure member list` shows it
    /// [default: the one that it has when the command begins].
    #[arg(long, value_name = "STORAGE")]
    pub(crate) storage: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TransferMember {
    /// To this server [default: the best of the others].
    #[arg(long, value_name = "ID")]
    pub(crate) to: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Session {
    #[command(subcommand)]
    pub(crate) command: SessionCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Print the sessions there are, a line each, and who opened them.
    List,
    /// End a session in place of its owner.
    ///
    /// What it holds gets its on-expiry values, as if it had expired. Its
    /// client notices by its next command. A session that holds registers is
    /// refused unless its holder is said to be gone.
    Close(CloseSession),
}

#[derive(Debug, Args)]
pub(crate) struct CloseSession {
    /// Its number.
    #[arg(required_unless_present = "opened_by")]
    pub(crate) id: Option<u64>,
    /// All sessions that this token or address has opened, as `tenure session
    /// list` shows it (a token that is not in the file any more by the digits
    /// of its digest).
    #[arg(long, value_name = "WHO", conflicts_with = "id")]
    pub(crate) opened_by: Option<String>,
    /// The process that holds registers by it has ended. If it lives, two hold
    /// them until the session would have expired.
    #[arg(long)]
    pub(crate) holder_is_gone: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// Only this server; may be repeated [default: all].
    #[arg(long, value_name = "ID")]
    pub(crate) server: Vec<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Where to write it; replaced in one step when it is complete.
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tenure backup tuesday --store tenure://h1:7400,h2:7400
  tenure restore tuesday --data /var/lib/tenure --id 1

The servers of the old cluster must be off, and stay off.")]
pub(crate) struct Restore {
    /// What tenure backup has written.
    pub(crate) file: PathBuf,
    /// The data directory to make; one with a log in it is refused.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// The number that the server of this directory will have, from 1.
    #[arg(long, value_name = "N")]
    pub(crate) id: u64,
    /// By how much terms of elections and epochs of groups are raised: more
    /// than the old cluster has raised them since the backup.
    #[arg(long, value_name = "N", default_value_t = tenure_alpo::TERM_STEP)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) term_step: u64,
    /// The longest lease that a leader or a node can have had, seven days at most:
    /// no candidate is elected for that long. Without it the longest in the backup counts; an
    /// election or a node whose own lease there is longer is held for that in any
    /// case.
    #[arg(long, value_name = "DURATION")]
    pub(crate) longest_lease: Option<String>,
    /// How often this very backup has been restored and used, this time
    /// included.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) times: u64,
}
