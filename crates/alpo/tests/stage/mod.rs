//! A stage for golden scripts of the replicated log: servers, a network that
//! keeps what was sent until the script delivers it, disks that may be slow,
//! and a clock that moves only when the script says so.
//!
//! | file | what it holds |
//! |---|---|
//! | `words` | the commands, and what each of them does |
//! | `setup` | clusters to begin with: founded, led, or with logs as given |
//! | `world` | the clock, and carrying out what the servers ask for |
//! | `host` | one server with its disk |
//! | `network` | what is under way, what was cut, and which of it is meant |
//! | `checks` | what must be true of all servers together, after every step |
//! | `show` | the notation of the trace |
//! | `chaos` | scripts drawn at random |
//!
//! The notation: a line that begins in the first column is what the script
//! or the clock did, or a message that arrived (`s1 => s2`); what came of it
//! is indented: messages that left (`s1 -> s2`), were lost (`s1 -x s2`),
//! batches for the disk (`writes`), changes of role (`passive@1 ->
//! candidate@2`), answers. `3@2` is entry 3 of term 2, `s1:3@2` the rank of
//! a candidate.

pub(crate) mod chaos;
mod checks;
mod host;
mod network;
mod setup;
mod show;
mod words;
mod world;

use std::error::Error;

use crate::args::Args;

/// What a script acts on.
#[derive(Default)]
pub(crate) struct Stage(world::World);

#[cfg(feature = "planted-bugs")]
impl Stage {
    /// One on which every server makes the same mistake.
    pub(crate) fn with(bug: tenure_alpo::Bug) -> Self {
        let mut stage = Self::default();
        stage.0.planted = Some(bug);
        stage
    }
}

impl goldenscript::Runner for Stage {
    type Command = goldenscript::Command;

    fn run(
        &mut self,
        command: &goldenscript::Command,
        _: &goldenscript::Context,
    ) -> Result<String, Box<dyn Error>> {
        let mut args = Args::new(command);
        words::run(&mut self.0, &command.name, &mut args)?;
        args.finish()?;
        Ok(self.0.take_trace())
    }
}
