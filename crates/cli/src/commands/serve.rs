//! `tenure serve`: one server of a cluster.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs as _;
use std::process::ExitCode;
use std::time::Duration;

use tenure_alpo::{MAX_NUMBER, ServerId};
use tenure_server::transport::TlsFiles;
use tenure_server::wal::refuse_fuse;
use tenure_server::{AuditTo, Config, Ended, Server, StartError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::{own_token, secret};
use crate::args::Serve;
use crate::failure::{Failure, usage};
use crate::{Context, config};

pub(crate) async fn serve(context: &Context, args: &Serve) -> Result<ExitCode, Failure> {
    let mut settings = settings(&args.or(&context.file.serve))?;
    settings.connections = settings.connections.min(affordable_connections());
    warn_if_open(&settings);
    let id = settings.id.get();
    let data = settings.data.display().to_string();
    // Signals first: one that comes while the log is read must not be lost.
    let mut stop = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    ];
    let [terminate, interrupt] = &mut stop;
    let server = tokio::select! {
        server = start(settings) => server?,
        // The disk may hang, and there is nothing yet to hand over.
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    let listening = server.address();
    context.output.announce(
        &format!("server {id} listens on {listening}, data in {data}"),
        &serde_json::json!({ "id": id, "listen": listening.to_string(), "data": data }),
    );
    let ended = loop {
        tokio::select! {
            ended = server.ended() => break ended,
            _ = terminate.recv() => server.stop(),
            _ = interrupt.recv() => server.stop(),
        }
    };
    match &*ended {
        Ended::Stopped => Ok(ExitCode::SUCCESS),
        // The machine's settings are wrong: to start it again does not help.
        Ended::Replaced(text) => Err(usage(text.as_str())),
        other => Err(Failure::Other(anyhow::anyhow!("{other}"))),
    }
}

/// After this long it is said that a start takes long.
const SLOW: Duration = Duration::from_secs(2);

/// Starts a server, on a thread of its own: it reads the whole log.
async fn start(settings: Config) -> Result<Server, Failure> {
    let data = settings.data.display().to_string();
    let (tell, started) = oneshot::channel();
    std::thread::Builder::new()
        .name("tenure-start".into())
        .spawn(move || drop(tell.send(Server::start(settings))))?;
    let panicked = |_| anyhow::anyhow!("the thread that starts it panicked; this is a bug");
    tokio::pin!(started);
    let started = match tokio::time::timeout(SLOW, &mut started).await {
        Ok(started) => started,
        Err(_) => {
            tracing::warn!(
                "this server has not begun after {SLOW:?}: the disk of the data directory {data}, \
                 or of a file that the settings name, is slow or hangs, the log is long, or a \
                 name that it listens on takes long to look up; it takes part when that is \
                 done"
            );
            started.await
        }
    };
    let started = started.map_err(panicked)?;
    started.map_err(|error| match error {
        StartError::Config(text) => usage(text),
        other => Failure::Other(other.into()),
    })
}

/// Files and connections that a server needs beside those of clients: of other
/// servers, of newcomers, its log, and the system's own.
const FILES_ASIDE: u64 = 1_800;

/// How many connections of clients the system allows for. Each is an open
/// file, and a server that cannot open another segment of its log must stop;
/// so it takes as many files as it may, and fewer clients if they are few.
fn affordable_connections() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Refused on some systems; then what there is must do.
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let Some(files) = files else {
        return usize::MAX;
    };
    // With few files there are as many newcomers as clients, twice.
    let connections = files.saturating_sub(FILES_ASIDE).max(files / 4);
    let connections = usize::try_from(connections).unwrap_or(usize::MAX);
    if files < FILES_ASIDE * 2 {
        tracing::warn!(
            files,
            connections,
            "few files may be open (ulimit -n): fewer connections of clients are taken"
        );
    }
    connections
}

/// Where each server is, by what `--peers` names.
fn peers(given: &[String]) -> Result<BTreeMap<ServerId, String>, Failure> {
    let mut peers = BTreeMap::new();
    for peer in given {
        let (number_text, address) = peer
            .split_once('=')
            .ok_or_else(|| usage(format!("--peers: expected ID=HOST:PORT, found {peer:?}")))?;
        let parsed = number_text.parse().map_err(|_| {
            usage(format!(
                "--peers: expected a number before =, found {peer:?}"
            ))
        })?;
        let server = number(parsed)?;
        if peers.insert(server, address.to_owned()).is_some() {
            return Err(usage(format!(
                "--peers: expected each server once, found {parsed} twice"
            )));
        }
    }
    Ok(peers)
}

/// What was meant, as far as that needs no look at files and names of hosts.
pub(crate) fn meant(args: &Serve) -> Result<Config, Failure> {
    let missing = |flag: &str, what: &str| {
        usage(format!(
            "--{flag}: expected {what}, found none (nor in the environment, nor under [serve] in \
             --config)"
        ))
    };
    let id = args
        .id
        .ok_or_else(|| missing("id", "this server's number"))?;
    let id = number(id)?;
    if args.peers.is_empty() {
        return Err(missing("peers", "where servers reach each other"));
    }
    let data = args.data.as_ref();
    let data = data.ok_or_else(|| missing("data", "a directory"))?;
    let listen = args.listen.as_deref().unwrap_or("127.0.0.1:7400");
    let peers = peers(&args.peers)?;
    let mut settings = Config::new(id, peers, data, listen);
    settings.advertise.clone_from(&args.advertise);
    settings.tokens.clone_from(&args.tokens);
    settings.hosts.clone_from(&args.host);
    if let Some(each) = args.sessions_each {
        settings.sessions_each = each;
    }
    settings.quota_bytes = args.quota_bytes.unwrap_or(settings.quota_bytes);
    settings.quota_registers = args.quota_registers.unwrap_or(settings.quota_registers);
    settings.listen_peers.clone_from(&args.listen_peers);
    if let Some(timeout) = &args.election_timeout {
        settings.node.election_timeout = config::duration("--election-timeout", timeout)?;
        settings.node.heartbeat = settings.node.election_timeout / 5;
    }
    if let Some(heartbeat) = &args.heartbeat {
        settings.node.heartbeat = config::duration("--heartbeat", heartbeat)?;
    }
    if args.lease_reads {
        settings.node.lease_reads = true;
        settings.node.fast_detection = false;
    }
    settings.tls = tls(args)?;
    settings.peer_authority.clone_from(&args.tls_peer_ca);
    settings.any_server = args.tls_any_server;
    settings.revoked.clone_from(&args.tls_crl);
    settings.validate().map_err(usage)?;
    Ok(settings)
}

fn settings(args: &Serve) -> Result<Config, Failure> {
    // First, so that what is no address at all is not called an open one.
    let mut settings = meant(args)?;
    if settings.tls.is_some() {
        settings.client_certificates = !args.tls_any_client;
    } else if !args.insecure {
        refuse_open(&settings)?;
    }
    // With TLS the flag allows nothing.
    settings.insecure = args.insecure && settings.tls.is_none();
    settings.audit = args.audit.clone().map(|file| match file.to_str() {
        Some("stderr") => AuditTo::Stderr,
        _ => AuditTo::File(file),
    });
    // Before a secret is written there.
    refuse_fuse(&settings.data).map_err(|error| usage(error.to_string()))?;
    settings.peer_secret = secret::of(args, &settings)?;
    // Tokens in a file leave nothing to do without.
    settings.no_token = args.no_token && settings.tokens.is_none();
    settings.own_token = own_token::of(&settings)?;
    Ok(settings)
}

/// What leaves a server open to strangers is said at each start.
fn warn_if_open(settings: &Config) {
    let (tls, tokens) = (settings.tls.is_some(), settings.asks_for_tokens());
    for (open, text) in [
        (
            settings.insecure,
            "--insecure: this server may listen without TLS on addresses that other machines \
             reach. Leave the flag out once it has --tls-cert, --tls-key and --tls-ca",
        ),
        (
            !tls,
            "no TLS: who can listen on the network reads all that clients and servers say, and who \
             can change what is on its way can change it. Give --tls-cert, --tls-key and --tls-ca",
        ),
        (
            settings.no_token,
            "--no-token: this server does without the token that it would ask for by itself. Leave \
             the flag out to have it ask for one, which `tenure` finds by itself",
        ),
        (
            !tokens,
            "no tokens: a program that reaches the clients' port (with TLS: and has a certificate, \
             if clients need one) may do everything. Make some by `tenure token`, and name their \
             file by --tokens",
        ),
    ] {
        if open {
            tracing::warn!("{text}");
        }
    }
}

/// The certificates: all of them, or none.
fn tls(args: &Serve) -> Result<Option<TlsFiles>, Failure> {
    match (&args.tls_cert, &args.tls_key, &args.tls_ca) {
        (Some(certificate), Some(key), Some(authority)) => Ok(Some(TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            authority: authority.clone(),
        })),
        (None, None, None)
            if !args.tls_any_client
                && !args.tls_any_server
                && args.tls_peer_ca.is_none()
                && args.tls_crl.is_none() =>
        {
            Ok(None)
        }
        _ => Err(usage(
            "expected --tls-cert, --tls-key and --tls-ca together, and --tls-any-client, \
             --tls-peer-ca, --tls-crl and --tls-any-server only with them, found some of them",
        )),
    }
}

fn number(id: u64) -> Result<ServerId, Failure> {
    let server = ServerId::new(id).filter(|_| id <= MAX_NUMBER);
    server.ok_or_else(|| {
        usage(format!(
            "expected the number of a server, from 1 to 2^62, found {id}"
        ))
    })
}

/// Without TLS anybody who reaches a port may read and write everything.
fn refuse_open(settings: &Config) -> Result<(), Failure> {
    let listens = [settings.listens_for_peers(), &settings.listen];
    for address in listens {
        let found: Vec<_> = address
            .to_socket_addrs()
            .map_err(|why| {
                usage(format!(
                    "expected an address of this machine, found {address}, which cannot be looked \
                     up: {why}; check its spelling, or name the host by its number"
                ))
            })?
            .collect();
        if !found.iter().all(|address| address.ip().is_loopback()) {
            return Err(usage(format!(
                "expected a loopback address, found {address}: without TLS anybody who reaches \
                 it may do everything; pass --insecure if the network is yours alone"
            )));
        }
    }
    Ok(())
}
