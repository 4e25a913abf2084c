//! What is typed to look into the log of a server.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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
