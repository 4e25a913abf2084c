//! `tenure node`: what was typed, as the options of an agent.

use std::process::ExitCode;
use std::sync::Arc;

use tenure::ha::{Builder, Manager};

use crate::agent::{self, LogLimits, Options};
use crate::failure::{Failure, usage};
use crate::{Context, args, config};

pub(crate) async fn node(context: &Context, args: &args::Node) -> Result<ExitCode, Failure> {
    let url = config::store_url(&context.common, &context.file)?;
    if url.starts_with("memory:") {
        return Err(usage(
            "expected a store that other nodes and `tenure ps` can reach, found memory:, which \
             no other process sees; on one machine name a file, --store sqlite:///PATH, for \
             several a database or a cluster",
        ));
    }
    let store = context.open().await?;
    let builder = Manager::builder(Arc::clone(&store), args.group.group.as_str());
    let options = Options {
        builder: with_times(args, with_settings(args, builder))?,
        store,
        url,
        root: agent::state_directory::root(args.state.state.as_deref())?,
        metrics: args.metrics.clone(),
        log: LogLimits {
            bytes: args.log_bytes,
            files: args.log_files,
        },
    };
    let output = context.output;
    agent::run_node(options, |text, object| output.announce(text, object)).await
}

fn with_settings(args: &args::Node, mut builder: Builder) -> Builder {
    builder = builder
        .quorum(args.quorum)
        .ha(!args.no_ha)
        .spread(args.spread);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    if let Some(max) = args.max {
        builder = builder.max_workloads(max);
    }
    args.label.iter().fold(builder, Builder::label)
}

fn with_times(args: &args::Node, mut builder: Builder) -> Result<Builder, Failure> {
    let time = |flag: &str, text: &Option<String>| {
        let text = text.as_ref();
        text.map(|text| config::duration(flag, text)).transpose()
    };
    if let Some(lease) = time("--lease", &args.lease)? {
        builder = builder.lease(lease);
    }
    if let Some(interval) = time("--interval", &args.interval)? {
        builder = builder.interval(interval);
    }
    if let Some(grace) = time("--grace", &args.grace)? {
        builder = builder.grace(grace);
    }
    if let Some(margin) = time("--kill-margin", &args.kill_margin)? {
        builder = builder.kill_margin(margin);
    }
    if let Some(drift) = &args.drift {
        builder = builder.drift(config::drift(drift)?);
    }
    Ok(builder)
}
