//! What is typed to check a store.

use clap::Args;

/// What `tenure check` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure check postgres://db/app
  tenure check s3://bucket/elections --budget 4000
  tenure check redis://host --restart-command 'ssh host systemctl restart redis-server'

Exit codes: 0 fit, 4 unfit, 1 no breach was found and not all could be tried.")]
pub(crate) struct Check {
    /// The store [default: that of --store].
    #[arg(value_name = "STORE_URL")]
    pub(crate) url: Option<String>,
    /// How many requests the trials may make (object stores cost money); to delete what they
    /// made comes on top.
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(tenure::check::BUDGET_MIN..=10_000_000))]
    pub(crate) budget: u64,
    /// A line for `sh` that restarts the store and returns when that is done: what was
    /// acknowledged has to be there after it.
    #[arg(long, value_name = "CMD")]
    pub(crate) restart_command: Option<String>,
    /// How many threads race, each over a connection of its own.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// How many other processes race.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) processes: u32,
}
