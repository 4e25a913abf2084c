//! `tenure dev`: a whole cluster in one process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tenure_alpo::ServerId;
use tenure_server::{Config, HealthStatus, Server};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::{own_token, secret};
use crate::args::Dev;
use crate::failure::{Failure, usage};
use crate::{Context, config};

/// How far above the clients' ports the servers' own are.
const PEERS_ABOVE: u16 = 100;

/// The servers and what they are made of.
struct Cluster {
    configs: BTreeMap<u16, Config>,
    running: BTreeMap<u16, Server>,
    news: mpsc::UnboundedSender<(u16, HealthStatus)>,
}

pub(crate) async fn dev(context: &Context, args: &Dev) -> Result<ExitCode, Failure> {
    if !(1..=7).contains(&args.nodes) {
        let found = args.nodes;
        return Err(usage(format!("--nodes: expected 1 to 7, found {found}")));
    }
    if args.no_token {
        tracing::warn!("--no-token: a program that reaches the clients' ports may do everything");
    }
    let chaos = args.chaos.as_deref();
    let chaos = chaos
        .map(|text| config::duration("--chaos", text))
        .transpose()?;
    let (dir, own) = directory(args);
    // What may fail here does so before anything is made on the disk.
    let configs = configs(args, &dir)?;
    let (news, mut heard) = mpsc::unbounded_channel();
    let mut cluster = Cluster {
        configs,
        running: BTreeMap::new(),
        news,
    };
    let mut stop = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    ];
    if own {
        std::fs::create_dir(&dir)?;
    }
    let result = async {
        for config in cluster.configs.values_mut() {
            config.own_token = own_token::of(config)?;
        }
        for number in 1..=args.nodes {
            cluster.start(number)?;
        }
        greet(context, &cluster, &dir)?;
        cluster.run(context, &mut heard, &mut stop, chaos).await
    }
    .await;
    cluster.stop().await;
    if own {
        std::fs::remove_dir_all(&dir)?;
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// Where the data is, and whether it goes when this ends.
fn directory(args: &Dev) -> (PathBuf, bool) {
    if let Some(dir) = &args.data {
        return (dir.clone(), false);
    }
    let name = format!("tenure-dev-{}", std::process::id());
    (std::env::temp_dir().join(name), true)
}

fn configs(args: &Dev, dir: &std::path::Path) -> Result<BTreeMap<u16, Config>, Failure> {
    let port = |above: u16, number: u16| {
        let port = args.port.checked_add(above + number - 1);
        port.ok_or_else(|| {
            let (most, found) = (u16::MAX - PEERS_ABOVE - (args.nodes - 1), args.port);
            usage(format!("--port: expected at most {most}, so that all ports above it are there, found {found}"))
        })
    };
    let mut peers = BTreeMap::new();
    for number in 1..=args.nodes {
        let address = format!("127.0.0.1:{}", port(PEERS_ABOVE, number)?);
        peers.insert(id(number)?, address);
    }
    // They begin and end together, so nobody else need ever know it.
    let secret = secret::drawn()?;
    let mut configs = BTreeMap::new();
    for number in 1..=args.nodes {
        let listen = format!("127.0.0.1:{}", port(0, number)?);
        let data = dir.join(number.to_string());
        let mut config = Config::new(id(number)?, peers.clone(), data, listen);
        config.peer_secret = Some(secret.clone());
        config.no_token = args.no_token;
        // All of them log to the same place.
        config.span = tracing::error_span!("server", id = number);
        configs.insert(number, config);
    }
    Ok(configs)
}

fn id(number: u16) -> Result<ServerId, Failure> {
    ServerId::new(number.into()).ok_or_else(|| usage("expected a server's number, found 0"))
}

fn greet(context: &Context, cluster: &Cluster, dir: &std::path::Path) -> Result<(), Failure> {
    let addresses: Vec<_> = cluster.configs.values().map(|it| &*it.listen).collect();
    let url = format!("tenure://{}", addresses.join(","));
    let text = format!(
        "a cluster of {} in {}\n\n  export TENURE_STORE={url}\n  tenure status\n  \
         tenure run demo -- sh -c 'while :; do date; sleep 1; done'\n  \
         tenure log append hello && tenure log read\n",
        addresses.len(),
        dir.display()
    );
    context
        .output
        .line(&text, &json!({ "store": url, "data": dir }))?;
    Ok(())
}

impl Cluster {
    fn start(&mut self, number: u16) -> Result<(), Failure> {
        let server = Server::start(self.configs[&number].clone())?;
        let (mut health_status, news) = (server.health_status(), self.news.clone());
        tokio::spawn(async move {
            loop {
                let now = health_status.borrow_and_update().clone();
                if news.send((number, now)).is_err() || health_status.changed().await.is_err() {
                    return;
                }
            }
        });
        self.running.insert(number, server);
        Ok(())
    }

    async fn run(
        &mut self,
        context: &Context,
        heard: &mut mpsc::UnboundedReceiver<(u16, HealthStatus)>,
        stop: &mut [tokio::signal::unix::Signal; 2],
        chaos: Option<Duration>,
    ) -> Result<(), Failure> {
        let mut leader = (0, None);
        let mut turn = chaos.map(tokio::time::interval);
        let mut skipped = false;
        let [interrupt, terminate] = stop;
        loop {
            let next = async {
                match &mut turn {
                    Some(turn) => turn.tick().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some((_, now)) = heard.recv() => {
                    let seen = (now.term.get(), now.leader);
                    if seen.1.is_some() && seen > leader {
                        leader = seen;
                        let led = seen.1.map_or(0, ServerId::get);
                        let text = format!("term {}: server {led} leads", seen.0);
                        context.output.line(&text, &json!({ "term": seen.0, "leader": led }))?;
                    }
                }
                _ = next => {
                    // The first tick comes at once, before there is a leader.
                    if std::mem::replace(&mut skipped, true) {
                        self.suffer(context).await?;
                    }
                }
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
            }
        }
    }

    /// Starts a server that is stopped, or stops one: the leader, every
    /// other time.
    async fn suffer(&mut self, context: &Context) -> Result<(), Failure> {
        let stopped = self
            .configs
            .keys()
            .find(|it| !self.running.contains_key(it));
        if let Some(number) = stopped.copied() {
            self.start(number)?;
            let text = format!("server {number} starts again");
            context.output.line(&text, &json!({ "started": number }))?;
            return Ok(());
        }
        let mut bytes = [0; 2];
        getrandom(&mut bytes)?;
        let leads = |server: &Server| server.health_status().borrow().leads;
        let victim = if bytes[0] % 2 == 0 {
            self.running
                .iter()
                .find(|(_, it)| leads(it))
                .map(|(number, _)| *number)
        } else {
            let index = usize::from(bytes[1]) % self.running.len();
            self.running.keys().nth(index).copied()
        };
        if let Some(number) = victim
            && let Some(server) = self.running.remove(&number)
        {
            let text = format!("server {number} is stopped");
            context.output.line(&text, &json!({ "stopped": number }))?;
            server.stop();
            server.ended().await;
        }
        Ok(())
    }

    async fn stop(&mut self) {
        // Followers first: nobody needs a leader any more.
        for server in self.running.values() {
            server.stop();
        }
        for server in self.running.values() {
            server.ended().await;
        }
    }
}

fn getrandom(bytes: &mut [u8]) -> Result<(), Failure> {
    use std::io::Read as _;
    Ok(std::fs::File::open("/dev/urandom")?.read_exact(bytes)?)
}
