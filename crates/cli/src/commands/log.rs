//! `tenure log`: append to the replicated log, read it, follow it.

use std::io::BufRead as _;
use std::process::ExitCode;

use tenure_client::{Client, Entry, Error};
use tokio::sync::mpsc;

use super::cluster::{client, failure};
use crate::failure::{Failure, usage};
use crate::{Context, args};

/// Lines of standard input that are appended together, at most.
const LINES_MAX: usize = 4_096;

pub(crate) async fn log(context: &Context, args: &args::Log) -> Result<ExitCode, Failure> {
    match &args.command {
        args::LogCommand::Append(args) => append(context, args).await,
        args::LogCommand::Read(args) => read(context, args).await,
        args::LogCommand::Tail(args) => tail(context, args).await,
    }
}

async fn append(context: &Context, args: &args::Append) -> Result<ExitCode, Failure> {
    let client = client(context)?;
    if args.data == ["-"] {
        return append_lines(context, &client).await;
    }
    let data = args.data.iter().map(|data| {
        use std::os::unix::ffi::OsStrExt as _;
        data.as_bytes().to_vec()
    });
    let numbers = client.append_many(data).await.map_err(failure)?;
    print_numbers(context, &numbers)?;
    client.close().await;
    Ok(ExitCode::SUCCESS)
}

/// Whatever lines have come are appended together, in their order.
async fn append_lines(context: &Context, client: &Client) -> Result<ExitCode, Failure> {
    let (sender, mut lines) = mpsc::channel(LINES_MAX);
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(move || {
            for line in std::io::stdin().lock().split(b'\n') {
                let failed = line.is_err();
                if sender.blocking_send(line).is_err() || failed {
                    return;
                }
            }
        })?;
    let mut batch = Vec::new();
    let mut appended: u64 = 0;
    while lines.recv_many(&mut batch, LINES_MAX).await > 0 {
        let data: Result<Vec<Vec<u8>>, _> = batch.drain(..).collect();
        let numbers = client.append_many(data?).await.map_err(|error| {
            let before = format!("{appended} lines were appended before");
            match failure(error) {
                Failure::Usage(text) => usage(format!("{text} ({before})")),
                Failure::Other(error) => Failure::Other(error.context(before)),
            }
        })?;
        appended += numbers.len() as u64;
        print_numbers(context, &numbers)?;
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
}

fn print_numbers(context: &Context, numbers: &[u64]) -> Result<(), Failure> {
    for number in numbers {
        let object = serde_json::json!({ "number": number });
        context.output.line(&number.to_string(), &object)?;
    }
    Ok(())
}

async fn read(context: &Context, args: &args::ReadLog) -> Result<ExitCode, Failure> {
    let client = client(context)?;
    let first = args.from.max(1);
    let mut from = first;
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let most = u32::try_from(left).unwrap_or(0);
        let page = match client.read_log(from, most).await {
            Err(error) => {
                from = beyond(context, &client, error, (first, from)).await?;
                continue;
            }
            Ok(page) => page,
        };
        if page.is_empty() {
            break;
        }
        for entry in &page {
            print(context, entry)?;
        }
        from += page.len() as u64;
        left = left.saturating_sub(page.len() as u64);
    }
    Ok(ExitCode::SUCCESS)
}

async fn tail(context: &Context, args: &args::Tail) -> Result<ExitCode, Failure> {
    let client = client(context)?;
    let first = args.from.map_or(0, |from| from.max(1));
    let mut from = first;
    let mut tail = client.tail(from);
    while let Some(entry) = tail.next().await {
        match entry {
            Ok(entry) => {
                from = entry.number + 1;
                print(context, &entry)?;
            }
            Err(error) => {
                from = beyond(context, &client, error, (first, from)).await?;
                tail = client.tail(from);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where a log goes on that was restored from a backup. That is told; but a
/// reader that begins at a number that may be of the lost cluster asks for what
/// is gone, and that fails.
async fn beyond(
    context: &Context,
    client: &Client,
    error: Error,
    (first, from): (u64, u64),
) -> Result<u64, Failure> {
    match error {
        Error::Restored { next } if from > first || first <= 1 => {
            // A cluster that does not answer is told of by the next reading.
            let end = end_of_backup(client, first, from, next).await;
            let end = end.unwrap_or(from);
            let mut text =
                format!("the cluster was restored from a backup that ends before entry {end}");
            // The lost cluster appended them, and they were read from there.
            if end < from {
                text += &format!("; entries {end} to {} are gone, too", from - 1);
            }
            context.output.note(&format!(
                "{text}; what followed there is gone, and the log goes on at {next}"
            ));
            Ok(next)
        }
        error => Err(failure(error)),
    }
}

/// The first number of the gap that `from` is in and that ends at `next`, but
/// not before `first`, with which the reader began. It is below `from` if the
/// reader was told entries by the lost cluster that are in no backup.
async fn end_of_backup(client: &Client, first: u64, from: u64, next: u64) -> Result<u64, Error> {
    let is_left_out = async |number| match client.read_log(number, 1).await {
        Err(Error::Restored { next: there }) => Ok(there == next),
        Ok(_) | Err(Error::Compacted { .. }) => Ok(false),
        Err(error) => Err(error),
    };
    // Nearly always it is where the reader has come to. Otherwise the steps
    // back become longer until one is before it.
    let (mut end, mut step) = (from, 1);
    let mut there = loop {
        let before = end.saturating_sub(step).max(first.max(1));
        if before == end || !is_left_out(before).await? {
            break before;
        }
        (end, step) = (before, step * 2);
    };
    while there + 1 < end {
        let middle = there.midpoint(end);
        if is_left_out(middle).await? {
            end = middle;
        } else {
            there = middle;
        }
    }
    Ok(end)
}

fn print(context: &Context, entry: &Entry) -> Result<(), Failure> {
    Ok(context.output.entry(entry.number, &entry.data)?)
}
