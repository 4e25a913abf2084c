//! What is typed to mend an election whose store was lost or restored.

use clap::Args;

/// What `tenure repair` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example, after a store was restored from a backup that may be older than the last leader:
  tenure repair payroll --term-above 41")]
pub(crate) struct Repair {
    /// Which election.
    #[arg(value_name = "ELECTION")]
    pub(crate) election: String,
    /// The highest term that was used, by logs or by what the fence protects; at most 2^62.
    #[arg(long, value_name = "N")]
    pub(crate) term_above: u64,
    /// Make the file or the table of the store if it is missing.
    #[arg(long)]
    pub(crate) create: bool,
}

/// What `tenure forget` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tenure forget payroll
  tenure forget payroll --holder-is-gone   # a register with a lease of days, held by no process")]
pub(crate) struct Forget {
    /// Which election.
    #[arg(value_name = "ELECTION")]
    pub(crate) election: String,
    /// Assert that no process holds the election, though its lease is not over: what the register
    /// names has ended, or never was, and every candidate is stopped. If that is false, two may
    /// lead. Saves the rest of the lease.
    #[arg(long)]
    pub(crate) holder_is_gone: bool,
}
