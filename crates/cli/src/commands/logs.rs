//! `tenure logs`: the output of a workload on this machine, from the files
//! that its shim writes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::agent::{DEFAULT_TIMEOUT, output_log, state_directory};
use crate::failure::{Failure, usage};
use crate::output::Output;
use crate::{Context, args};

/// How often to look for more. Files of other users' agents and of network
/// file systems tell nobody when they grow.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) async fn logs(context: &Context, args: &args::Logs) -> Result<ExitCode, Failure> {
    if context.common.json {
        return Err(usage(
            "expected no --json: what workloads print is printed as it is",
        ));
    }
    let root = state_directory::root(args.via.state.state.as_deref())?;
    let (below, via) = (root.clone(), args.clone());
    let find = move || find(&below, &via);
    let path = state_directory::run_on_thread(&root, DEFAULT_TIMEOUT, || (), find).await?;
    let older = ages(&path);
    let mut files: Vec<PathBuf> = older
        .rev()
        .map(|age| output_log::rotated_path(&path, age))
        .collect();
    files.push(path.clone());
    let end = match args.lines {
        None => all(&files)?,
        Some(most) => last(&files, most)?,
    };
    if args.follow {
        follow(&path, end).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The ages of the older files that there are.
fn ages(path: &Path) -> std::ops::RangeInclusive<u32> {
    let mut last = 0;
    while output_log::rotated_path(path, last + 1).exists() {
        last += 1;
    }
    1..=last
}

fn find(root: &Path, args: &args::Logs) -> Result<PathBuf, Failure> {
    let group = args.via.group.group.as_str();
    let directory = state_directory::group_directory(root, group);
    let nodes = state_directory::nodes(root, group, args.via.via.as_deref())?;
    let files = nodes.iter().map(|node| {
        let logs = state_directory::logs(node, &args.workload);
        output_log::log_path(&logs, args.instance)
    });
    // If it was on several nodes of this machine, where it was last.
    let found = files.filter_map(|file| {
        // It may just be renamed.
        let found =
            std::fs::metadata(&file).or_else(|_| output_log::rotated_path(&file, 1).metadata());
        Some((found.ok()?.modified().ok()?, file))
    });
    found.max().map(|(_, file)| file).ok_or_else(|| {
        usage(format!(
            "expected output of {} (instance {}) on this machine, found none below {}; `tenure \
             ps` says where it runs",
            args.workload,
            args.instance,
            directory.display()
        ))
    })
}

/// Opens a file that may just be renamed, because it is full.
fn open(path: &Path) -> std::io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Prints the rest of a file.
fn copy(file: &mut File) -> std::io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(()),
            count => Output::raw(&bytes[..count])?,
        }
    }
}

/// Prints all files; returns the last one, read to its end.
fn all(files: &[PathBuf]) -> std::io::Result<Option<File>> {
    let mut end = None;
    for file in files {
        end = open(file)?;
        if let Some(file) = &mut end {
            copy(file)?;
        }
    }
    Ok(end)
}

/// Prints so many of their last lines; returns the last one, read to its end.
fn last(files: &[PathBuf], most: usize) -> std::io::Result<Option<File>> {
    let (mut lines, mut end) = (VecDeque::new(), None);
    for file in files {
        end = None;
        let Some(file) = open(file)? else {
            continue;
        };
        let mut reader = BufReader::new(file);
        loop {
            let mut line = Vec::new();
            if reader.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            lines.push_back(line);
            if lines.len() > most {
                lines.pop_front();
            }
        }
        // It found nothing more, so nothing is left in its buffer.
        end = Some(reader.into_inner());
    }
    lines.iter().try_for_each(|line| Output::raw(line))?;
    Ok(end)
}

/// Goes on where `following` was read to: what came meanwhile is not skipped.
async fn follow(path: &Path, mut following: Option<File>) -> std::io::Result<()> {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let Some(file) = &mut following else {
            following = open(path)?;
            continue;
        };
        copy(file)?;
        let Ok(now) = std::fs::metadata(path) else {
            continue;
        };
        let here = file.metadata()?;
        let rotated = (now.dev(), now.ino()) != (here.dev(), here.ino());
        if rotated || now.len() < file.stream_position()? {
            copy(file)?;
            following = open(path)?;
        }
    }
}
