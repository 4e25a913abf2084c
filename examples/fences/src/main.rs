//! Writers of a ledger that attach their term, each against a resource that
//! checks it. With `--pause` a writer waits for a line on its input before the
//! last step, so that it can be stopped there.
//!
//! ```text
//! fences sql postgres://… --term 7            one transaction (also mysql://…, sqlite://FILE)
//! fences serve --mark FILE                    a ledger over HTTP and gRPC, behind a fence
//! fences http 127.0.0.1:PORT --term 7         writes to it over HTTP
//! fences grpc 127.0.0.1:PORT --term 7         writes to it over gRPC
//! fences objects http://HOST:PORT --term 7    writes an object of S3
//! ```
//!
//! The exit code is 0 if it has written, 3 if it was refused by a fence, and 1
//! for all else. `shell.sh` beside it does the same with `tenure fence`.

mod grpc;
mod http;
mod objects;
mod sql;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tenure_fence::{Deposed, Term};

/// What was typed: words, and what follows flags.
struct Typed {
    words: Vec<String>,
    term: Option<Term>,
    mark: Option<String>,
    pause: bool,
    /// How long the server lets a transaction idle, in seconds.
    idle: u64,
}

fn typed(mut args: impl Iterator<Item = String>) -> Result<Typed> {
    let mut typed = Typed {
        words: Vec::new(),
        term: None,
        mark: None,
        pause: false,
        idle: 2,
    };
    while let Some(word) = args.next() {
        let mut value = || {
            args.next()
                .with_context(|| format!("expected a value of {word}"))
        };
        match &*word {
            "--term" => typed.term = Term::new(value()?.parse().context("expected a term")?),
            "--mark" => typed.mark = Some(value()?),
            "--idle" => typed.idle = value()?.parse().context("expected seconds")?,
            "--pause" => typed.pause = true,
            _ => typed.words.push(word),
        }
    }
    Ok(typed)
}

/// Prints a line at once: a test reads it.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Waits for a line. It holds up the whole process, as a stop would.
fn pause(is_asked: bool) -> Result<()> {
    if is_asked {
        std::io::stdin().read_line(&mut String::new())?;
    }
    Ok(())
}

async fn run(typed: &Typed) -> Result<()> {
    let words: Vec<&str> = typed.words.iter().map(String::as_str).collect();
    let term = || typed.term.context("expected --term N");
    match words[..] {
        ["serve"] => http::serve(typed.mark.as_deref().context("expected --mark FILE")?).await,
        ["sql", url] => {
            let idle = Duration::from_secs(typed.idle);
            sql::write(url, term()?, idle, typed.pause).await
        }
        ["http", at] => http::write(at, term()?, typed.pause).await,
        ["objects", at] => objects::write(at, term()?, typed.pause).await,
        ["grpc", at] => grpc::write(at, term()?, typed.pause).await,
        _ => bail!(
            "expected serve, sql URL, http ADDRESS, grpc ADDRESS or objects URL, found {words:?}"
        ),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let ran = match typed(std::env::args().skip(1)) {
        Ok(typed) => run(&typed).await,
        Err(error) => Err(error),
    };
    let Err(error) = ran else {
        return ExitCode::SUCCESS;
    };
    // Without a reader the exit code says the same.
    let _ = say(&format!("{error:#}"));
    ExitCode::from(if error.is::<Deposed>() { 3 } else { 1 })
}
