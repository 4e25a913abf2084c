//! The `tenure` command line, as a library: glue between what is typed and `tenure`.
//!
//! A program that adds stores of its own has the whole command line for them
//! ([`main_with`]); the binary `tenure` adds none.
//!
//! Inside, `args` is what was typed, `config` what it means, `context` both for
//! commands, `output` the only printing; `commands/` has a file per family of commands.

mod args;
mod commands;
mod config;
mod context;
#[cfg(all(feature = "tenure", any(test, fuzzing)))]
pub mod fuzzed;
mod log;
mod output;
mod program;
mod secrets;
mod settings_values;
mod stderr;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use tenure::check::WORKER;
use tenure::store::Registry;
use tenure_agent::{self as agent, guard, stall};
use tenure_runtime::{drive, failure};

use crate::args::{Cli, Command, LogFormat};
use crate::config::File;
use crate::context::Context;
use crate::failure::{Failure, usage};
use crate::output::Output;

/// What the binary `tenure` does, with the stores of `registry`. To be called first
/// in `main`: some commands start this same program once more, for other work.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     tenure_cli::main_with(tenure::store::Registry::new())
/// }
/// ```
#[must_use = "it is the exit code of the process"]
pub fn main_with(registry: Registry) -> ExitCode {
    handle_file_size_limits();
    if let Some(code) = guard::dispatch().or_else(agent::dispatch) {
        return code;
    }
    if std::env::args_os().nth(1).is_some_and(|it| it == WORKER) {
        return tenure::check::worker(&registry);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_parsed(&error),
    };
    let file = File::read(cli.common.config.as_deref());
    let filed = file.as_ref().ok().and_then(|file| file.log);
    let format = cli.common.log.or(filed).unwrap_or(LogFormat::Human);
    log::start(&cli.common, format);
    let _finish = stderr::Finish;
    let output = Output::new(cli.common.json, format);
    let typed = secrets::refuse_typed(std::env::args_os());
    match typed
        .and(file)
        .and_then(|file| run(cli, file, output, registry))
    {
        Ok(code) => code,
        Err(failure) => {
            // A reader that closed our stdout does not want to hear about it.
            if let Failure::Other(error) = &failure
                && let Some(error) = error.downcast_ref::<io::Error>()
                && error.kind() == io::ErrorKind::BrokenPipe
            {
                return ExitCode::SUCCESS;
            }
            output.error(&failure.to_string());
            ExitCode::from(failure.code())
        }
    }
}

/// Prints what was wrong, or the help that was asked for.
fn not_parsed(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        // A reader that closed our stdout does not want to hear about it.
        Err(why) if !error.use_stderr() && why.kind() != io::ErrorKind::BrokenPipe => {
            Output::new(false, LogFormat::Human).error(&format!("standard output: {why}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
    }
}

/// Where a limit on the size of files is set (`ulimit -f`), a write beyond it ends a process
/// by SIGXFSZ. With a handler the write fails, as on a full disk. Commands that are started do
/// not inherit handlers.
fn handle_file_size_limits() {
    let ignored = std::sync::Arc::default();
    // Where no handler can be installed the process ends by the signal, as others do.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored);
}

/// Fewer than some 28 are too few for an election on one store, and what fails then, in the
/// libraries of stores as well, seldom says so.
const OPEN_FILES: u64 = 64;

/// Refuses to start where hardly any files may be open, or no thread can be had.
fn check_limits() -> Result<(), Failure> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if let Some(files) = limit.current.filter(|it| *it < OPEN_FILES) {
        return Err(usage(format!(
            "ulimit -n: expected that at least {OPEN_FILES} files may be open, found {files}"
        )));
    }
    // Elections and stores start this thread later, where they can only panic without it.
    drive::try_background().map_err(|error| {
        anyhow::Error::new(error).context(
            "expected a thread and its files from the system (if open files ran out, raise \
             ulimit -n)",
        )
    })?;
    Ok(())
}

fn run(cli: Cli, file: File, output: Output, registry: Registry) -> Result<ExitCode, Failure> {
    check_limits()?;
    let said = config::timeout(&cli.common, &file)?;
    let context = Context {
        common: cli.common,
        file,
        output,
        timeout: said.unwrap_or(config::TIMEOUT),
        said,
        registry,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match &cli.command {
            Command::Run(args) => commands::run::run(&context, args).await,
            Command::Leader(args) => commands::observe::leader(&context, args).await,
            Command::Watch(args) => commands::observe::watch(&context, args).await,
            Command::List => commands::observe::list(&context).await,
            Command::Resign(args) => commands::leader_requests::resign(&context, args).await,
            Command::Transfer(args) => commands::leader_requests::transfer(&context, args).await,
            Command::Repair(args) => commands::repair::repair(&context, args).await,
            Command::Forget(args) => commands::repair::forget(&context, args).await,
            Command::Fence(args) => commands::fence::fence(args),
            Command::Node(args) => commands::node::node(&context, args).await,
            Command::Deploy(args) => commands::deploy::deploy(&context, args).await,
            Command::Undeploy(args) => commands::deploy::undeploy(&context, args).await,
            Command::Drain(args) => commands::deploy::drain(&context, args).await,
            Command::Ps(args) => commands::ps::ps(&context, args).await,
            Command::Logs(args) => commands::logs::logs(&context, args).await,
            Command::Sim(args) => commands::sim::sim(&context, args),
            #[cfg(feature = "tenure")]
            Command::Serve(args) => commands::serve::serve(&context, args).await,
            #[cfg(feature = "tenure")]
            Command::Log(args) => commands::log::log(&context, args).await,
            #[cfg(feature = "tenure")]
            Command::Status => commands::cluster::status(&context).await,
            #[cfg(feature = "tenure")]
            Command::Member(args) => commands::cluster::member(&context, args).await,
            #[cfg(feature = "tenure")]
            Command::Session(args) => commands::session::session(&context, args).await,
            #[cfg(feature = "tenure")]
            Command::Snapshot(args) => commands::cluster::snapshot(&context, args).await,
            #[cfg(feature = "tenure")]
            Command::Backup(args) => commands::cluster::backup(&context, args).await,
            #[cfg(feature = "tenure")]
            Command::Restore(args) => commands::restore::restore(&context, args),
            #[cfg(feature = "tenure")]
            Command::Dev(args) => commands::dev::dev(&context, args).await,
            #[cfg(feature = "tenure")]
            Command::Certs(args) => commands::certs::certs(&context, args),
            #[cfg(feature = "tenure")]
            Command::Token(args) => commands::token::token(&context, args),
            #[cfg(feature = "tenure")]
            Command::Wal(args) => commands::wal::wal(&context, args),
            Command::Check(args) => commands::check::check(&context, args).await,
            Command::Bench(args) => commands::bench::bench(&context, args).await,
            Command::Completions(args) => {
                let mut script = Vec::new();
                let mut command = Cli::command();
                clap_complete::generate(args.shell, &mut command, "tenure", &mut script);
                Output::raw(&script)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}
