//! Clusters to begin with: founded, led, or with logs as given.

use std::time::Duration;

use tenure_alpo::{
    ClusterVersion, Config, Entry, HardState, Limits, Membership, Payload, Position, Recovered,
    ServerId, Snapshot, State, StorageId,
};
use tenure_core::ids::Term;
use tenure_core::time::{ClockId, Drift};

use super::host::{Disk, Host};
use super::show;
use super::words::open;
use super::world::World;
use crate::args::{Args, Outcome};

/// `cluster 3`, and how: see `words`.
pub(crate) fn cluster(world: &mut World, args: &mut Args<'_>) -> Outcome<()> {
    let count: u64 = args.word()?.parse()?;
    let spare = args.parsed("spare")?.unwrap_or(0);
    let leader = args.key("leader").map(show::server).transpose()?;
    let term = args.parsed("term")?.unwrap_or(0);
    let lost = args.key("hard") == Some("lost");
    #[cfg_attr(not(feature = "planted-bugs"), expect(unused_mut))]
    let mut config = configure(args)?;
    #[cfg(feature = "planted-bugs")]
    {
        config.planted = world.planted;
    }
    let ids: Vec<_> = (1..=count + spare).filter_map(ServerId::new).collect();
    let founders = ids.iter().take(usize::try_from(count)?);
    let members = Membership::bootstrapped(founders.map(|id| (*id, storage(*id))));
    let bootstrapped = State::bootstrapped(Limits::default(), ClockId::default(), members)
        .with_version(ClusterVersion::NEWEST);
    let snapshot = Snapshot {
        last: Position::ZERO,
        bytes: bootstrapped.encode().into(),
    };
    for id in ids {
        let entries = args.key(&id.to_string()).map(log).transpose()?;
        let entries = entries.unwrap_or_default();
        let last = entries
            .last()
            .map_or(Term::ZERO, |entry: &Entry| entry.term);
        let mut hard = HardState {
            term: last.max(Term::new(term).ok_or("no such term")?),
            last_reign: last,
            vote: None,
        };
        if lost {
            hard = HardState::default();
        }
        let synced = if id.get() <= count {
            Recovered {
                hard,
                snapshot: Some(snapshot.clone()),
                entries,
                ..Recovered::default()
            }
        } else {
            Recovered::default()
        };
        let mut host = Host {
            id,
            config: config.clone(),
            storage: storage(id),
            greets: storage(id),
            blank: State::new(Limits::default(), ClockId::default()),
            disk: Disk {
                synced,
                ..Disk::default()
            },
            node: None,
            paused: false,
            slow: false,
            lives: 0,
        };
        host.start(world.instant())?;
        world.hosts.insert(id, host);
    }
    if let Some(leader) = leader {
        lead(world, leader)?;
    }
    world.tell_state();
    Ok(())
}

/// `leader` is elected, a session is opened, and everybody knows it.
fn lead(world: &mut World, leader: ServerId) -> Outcome<()> {
    world.quiet = true;
    world.ring(leader)?;
    world.settle()?;
    open(world, leader, Duration::from_secs(3_600), None)?;
    world.settle()?;
    world.ring(leader)?;
    world.settle()?;
    world.quiet = false;
    world.take_trace();
    Ok(())
}

/// The disk that a server has from the beginning.
pub(crate) fn storage(id: ServerId) -> StorageId {
    StorageId::from_u128(u128::from(id.get()))
}

fn configure(args: &mut Args<'_>) -> Outcome<Config> {
    let config = Config {
        drift: Drift::DEFAULT,
        ..Config::default()
    };
    set(config, args)
}

/// `config` with what is said of it.
pub(crate) fn set(mut config: Config, args: &mut Args<'_>) -> Outcome<Config> {
    config.election_timeout = args.span("timeout")?.unwrap_or(config.election_timeout);
    config.heartbeat = args.span("heartbeat")?.unwrap_or(config.heartbeat);
    config.lease_reads = args.key("lease") == Some("on");
    config.fast_detection = !config.lease_reads && args.key("detection") != Some("off");
    config.max_inflight = args.parsed("window")?.unwrap_or(config.max_inflight);
    config.chunk_bytes = args.parsed("chunk")?.unwrap_or(config.chunk_bytes);
    config.append_bytes = args.parsed("append")?.unwrap_or(config.append_bytes);
    config.snapshot_threshold_bytes = args
        .parsed("log")?
        .unwrap_or(config.snapshot_threshold_bytes);
    config.kept_entries = args.parsed("kept")?.unwrap_or(config.kept_entries);
    config.validate()?;
    Ok(config)
}

/// Reads `1-3@1/4@2`. Entries given so are no-ops, stamped by their place,
/// so that the same place and term is the same entry.
fn log(text: &str) -> Outcome<Vec<Entry>> {
    let mut entries = Vec::new();
    for run in text.split('/') {
        let (ids, term) = run.split_once('@').ok_or("id@term is expected")?;
        let (first, last) = ids.split_once('-').unwrap_or((ids, ids));
        let term = Term::new(term.parse()?).ok_or("no such term")?;
        for id in first.parse()?..=last.parse()? {
            entries.push(Entry {
                id,
                term,
                time: term.get() * 1_000 + id,
                payload: Payload::NoOp,
            });
        }
    }
    Ok(entries)
}
