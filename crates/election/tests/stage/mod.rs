//! A stage for golden scripts: actors, a store between them, and a clock that
//! moves only when the script says so.
//!
//! | file | what it holds |
//! |---|---|
//! | `words` | the commands, and what each of them does |
//! | `world` | time, and carrying out what the actors ask for |
//! | `actor` | one campaign or observer with its own clocks and its own link |
//! | `store` | the registers, their clock, the changes for the watch |
//! | `strangers` | what a script writes into the registers |
//! | `show` | the notation of the trace |
//! | `chaos` | scripts drawn at random, and what must hold of their traces |
//! | `tables` | commands without a world: time tables, records, registers |

mod actor;
#[path = "../../../core/tests/common/args.rs"]
mod args;
pub(crate) mod chaos;
mod sessions;
mod show;
mod store;
mod strangers;
mod tables;
mod words;
mod world;

use std::error::Error;

/// What a script acts on.
pub(crate) struct Stage {
    world: world::World,
    tables: tables::Tables,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            world: world::World::new(),
            tables: tables::Tables::new(),
        }
    }
}

impl goldenscript::Runner for Stage {
    type Command = goldenscript::Command;

    fn run(
        &mut self,
        command: &goldenscript::Command,
        _: &goldenscript::Context,
    ) -> Result<String, Box<dyn Error>> {
        let mut args = args::Args::new(command);
        let output = match self.tables.run(&command.name, &mut args)? {
            Some(output) => output,
            None => words::run(&mut self.world, &command.name, &mut args)?,
        };
        args.finish()?;
        Ok(output)
    }
}
