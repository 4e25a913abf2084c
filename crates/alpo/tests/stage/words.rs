//! The commands.
//!
//! Messages wait until they are delivered, and every command tells all that
//! it made happen; only `calm` and `run` let everything arrive at once, and
//! tell only what is news: roles, commits, answers.

use std::time::Duration;

use tenure_alpo::{
    Change, ClientRequest, Command, Input, OpenSession, Operation, OwnershipProof, Query, ServerId,
    SessionOpener, SessionOwner, StorageId,
};
use tenure_core::Machine;
use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::Instant;

use super::network::Meant;
use super::setup;
use super::show::{self, server};
use super::world::World;
use crate::args::{Args, Outcome, span};

/// More lost messages than this are only counted.
const MANY: usize = 12;

/// What `maybe` forgives.
const IDLE: [&str; 4] = [
    "no such message is under way",
    "it waits for nothing",
    "it does not run",
    "it runs already",
];

pub(crate) fn run(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<()> {
    match command {
        // maybe deliver s1 s2: the same, and no matter if there is nothing
        //   to be done.
        "maybe" => {
            let result = run(world, args.word()?, args);
            args.forget();
            return result.or_else(|error| {
                let forgiven = IDLE.contains(&error.to_string().as_str());
                if forgiven { Ok(()) } else { Err(error) }
            });
        }
        // cluster 3: founded, nobody leads. leader=s1: s1 was elected in term
        //   1 and a session is open. s2=1-3@1/4@2: what s2's log holds.
        //   term=4: all have seen it. hard=lost: term and vote are not on disk. spare=1: one more server, a stranger.
        //   timeout= heartbeat= lease=on detection=off window= chunk= append=
        //   log= kept=: settings.
        "cluster" => setup::cluster(world, args)?,
        // campaign s1, tick s1: the clock moves to when the timer of s1 ends,
        //   and s1 alone takes note of it.
        "campaign" | "tick" => world.ring(server(args.word()?)?)?,
        // at 1200ms: the clock moves; nobody takes note. late s1: s1 does.
        //   wait 50ms: the clock moves by so much.
        "wait" => world.now += span(args.word()?)?,
        "at" => world.now = world.now.max(span(args.word()?)?),
        "late" => world.step(server(args.word()?)?, None)?,
        // calm: all messages arrive, until there are none. run 2s: and time
        //   passes. all: tells every message.
        "calm" | "run" => {
            let time = (command == "run").then(|| args.word()).transpose()?;
            let time = time.map(span).transpose()?;
            world.quiet = args.maybe_word() != Some("all");
            let result = match time {
                Some(time) => world.run(time),
                None => world.settle(),
            };
            world.quiet = false;
            result?;
        }
        "deliver" | "drop" | "duplicate" | "hold" | "release" => network(world, command, args)?,
        "cut" | "heal" | "close" => links(world, command, args)?,
        "slow" | "fast" | "sync" | "crash" | "restart" | "pause" | "resume" | "wipe" | "greets"
        | "restore" | "set" => {
            process(world, command, args)?;
        }
        // lawless: from here on the script breaks a rule itself, and nothing
        //   is checked but what the servers notice.
        "lawless" => world.checks.off = true,
        "state" => world.tell_state(),
        // agree: one leads, and all its members have committed as much.
        "agree" => world.agree()?,
        "members" => {
            let id = server(args.word()?)?;
            let members = show::members(world.node(id)?);
            world.tell(&format!("{id} knows {members}"));
        }
        "sessions" => sessions(world)?,
        // timer s1: when the timer of s1 ends.
        "timer" => {
            let id = server(args.word()?)?;
            let deadline = world.node(id)?.deadline().ok_or("it waits for nothing")?;
            let deadline = deadline.since(Instant::ZERO).as_millis();
            world.tell(&format!("{id} waits until {deadline}ms"));
        }
        // queue: what is under way.
        "queue" => {
            let lines = world.network.queue.iter();
            let lines: Vec<_> = lines
                .map(|envelope| show::message(envelope, "->"))
                .collect();
            lines.iter().for_each(|line| world.tell(line));
        }
        other => return client(world, other, args),
    }
    Ok(())
}

/// Each takes `s1 s2 vote first=1`: from, to, what, how many; `any` is
/// anybody.
fn network(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<()> {
    if command == "release" {
        // Held messages arrive, in the order in which they were held.
        for envelope in std::mem::take(&mut world.network.held) {
            world.arrive(envelope)?;
        }
        return Ok(());
    }
    let meant = Meant::parse(args)?;
    if command == "deliver" {
        let count = world.deliver(&meant)?;
        return if count == 0 {
            Err("no such message is under way".into())
        } else {
            Ok(())
        };
    }
    let messages = world.network.take(&meant);
    if messages.is_empty() {
        return Err("no such message is under way".into());
    }
    let many = messages.len() > MANY;
    if command == "drop" && many {
        world.tell(&format!("-x {} messages", messages.len()));
    }
    for envelope in messages {
        match command {
            "drop" if many => {}
            "drop" => world.tell(&show::message(&envelope, "-x")),
            // Put aside: neither calm nor run delivers it.
            "hold" => world.network.held.push_back(envelope),
            // One copy stays where it was, one is held.
            _ => {
                world.network.held.push_back(envelope.clone());
                world.network.queue.push_back(envelope);
            }
        }
    }
    Ok(())
}

fn links(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<()> {
    let one = args.maybe_word().map(server).transpose()?;
    let other = args.maybe_word();
    let ids: Vec<_> = world.hosts.keys().copied().collect();
    match (command, one, other) {
        // cut s1: from everybody. cut s1 s2; cut s1 s2 oneway.
        ("cut", Some(one), None) => {
            for id in ids {
                world.network.cut(one, id);
                world.network.cut(id, one);
            }
        }
        ("cut", Some(one), Some(other)) => {
            let other = server(other)?;
            world.network.cut(one, other);
            if args.maybe_word() != Some("oneway") {
                world.network.cut(other, one);
            }
        }
        // heal: everything. heal s1: all its links.
        ("heal", one, None) => world
            .network
            .heal(|from, to| one.is_none_or(|one| one == from || one == to)),
        // close s2 s1: s2 learns that its connection to s1 is closed.
        ("close", Some(one), Some(other)) => {
            let other = server(other)?;
            let storage = world.host(other)?.greets;
            world.step(one, Some(Input::Closed(other, storage)))?;
        }
        _ => return Err("which servers?".into()),
    }
    Ok(())
}

fn process(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<()> {
    let id = server(args.word()?)?;
    let now = world.instant();
    match command {
        // slow s1: its disk waits for `sync s1 [first=1]`; fast s1: no more.
        "slow" => world.host(id)?.slow = true,
        "fast" => world.host(id)?.slow = false,
        "sync" => world.sync(id, args.parsed("first")?)?,
        // crash s1: what is not synced is lost. restart s1.
        "crash" => world.crash(id)?,
        "restart" => {
            if world.host(id)?.node.is_some() {
                return Err("it runs already".into());
            }
            world.host(id)?.start(now)?;
            let line = show::node(world.node(id)?);
            world.tell(&format!("{id} {line}"));
        }
        // set s1 timeout=250ms lease=off: its next start is under other
        //   settings, and then it does not talk to servers with the old ones.
        "set" => {
            let host = world.host(id)?;
            if host.node.is_some() {
                return Err("it runs".into());
            }
            host.config = setup::set(host.config.clone(), args)?;
        }
        // wipe s1: it comes back with an empty disk, another one.
        "wipe" => {
            let host = world.host(id)?;
            host.disk = super::host::Disk::default();
            host.storage = StorageId::from_u128(1_000 + u128::from(id.get()));
            host.greets = host.storage;
            host.start(now)?;
        }
        // greets s3 9: its connections greet with disk 9 from here on, as if
        //   another server under its number were at their other end. greets s3:
        //   with its own again.
        "greets" => {
            let disk: Option<u128> = args.maybe_word().map(str::parse).transpose()?;
            let host = world.host(id)?;
            host.greets = disk.map_or(host.storage, StorageId::from_u128);
        }
        // restore s1 upto=2: its disk is that of a backup, taken when its log
        //   had two entries.
        "restore" => {
            let upto = args.parsed("upto")?.unwrap_or(0);
            world.host(id)?.disk.restore(upto);
        }
        // pause s1: it takes note of nothing until `resume s1`.
        "pause" => world.host(id)?.paused = true,
        _ => world.host(id)?.paused = false,
    }
    Ok(())
}

/// Opens a session, of who has this secret if one is said.
pub(crate) fn open(
    world: &mut World,
    id: ServerId,
    ttl: Duration,
    secret: Option<u8>,
) -> Outcome<()> {
    let opening = OpenSession {
        owner: SessionOwner {
            secret: secret.map(|byte| [byte; 16]),
            opener: SessionOpener::Server,
        },
        ..OpenSession::unowned(u64::try_from(ttl.as_nanos())?)
    };
    world.submit(id, "open".to_string(), ClientRequest::Open(opening))
}

fn sessions(world: &mut World) -> Outcome<()> {
    let ids: Vec<_> = world.hosts.keys().copied().collect();
    for id in ids {
        let Ok(node) = world.node(id) else { continue };
        let sessions = node.state().sessions().iter();
        let show = |(id, session): (u64, &tenure_alpo::Session)| {
            format!(" {id} done {}", session.completed())
        };
        let sessions: String = sessions.map(show).collect();
        world.tell(&format!("{id} sessions{sessions}"));
    }
    Ok(())
}

/// What clients and operators ask a server.
fn client(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<()> {
    if ![
        "open",
        "propose",
        "write",
        "bind",
        "keepalive",
        "read",
        "change",
        "transfer",
    ]
    .contains(&command)
    {
        return Err(format!("unknown command {command}").into());
    }
    let id = server(args.word()?)?;
    match command {
        // open s1 ttl=10s secret=7: only who shows that secret may use it.
        "open" => {
            let ttl = args.span("ttl")?.unwrap_or(Duration::from_secs(3_600));
            let secret = args.parsed("secret")?;
            open(world, id, ttl, secret)
        }
        // propose s1 a: appends to the plain log. serial=, session=,
        //   outstanding=, or as follows from what was proposed. secret=: what
        //   its client shows.
        "propose" => {
            let text = args.word()?;
            order(
                world,
                id,
                text,
                Operation::Append(text.as_bytes().into()),
                args,
            )
        }
        // write s1 k v over=12; bind s1 k v last=w: the register is the
        //   session's, and holds w when that is over.
        "write" | "bind" => {
            let (key, value) = (args.word()?, args.word()?);
            let over = args.parsed("over")?.map(Version::from_u64);
            let write = Write {
                key: Key::new(key)?,
                expect: over.map_or(Expect::Absent, Expect::Version),
                value: value.as_bytes().into(),
                stamp: Stamp::Now,
            };
            let operation = match command {
                "bind" => Operation::bind(write, args.key("last").unwrap_or("").as_bytes().into()),
                _ => Operation::swap(write),
            };
            order(world, id, &format!("{key} is {value}"), operation, args)
        }
        "keepalive" => order(world, id, "keepalive", Operation::KeepAlive, args),
        // read s1: the plain log. read s1 k: a register.
        "read" => {
            let query = match args.maybe_word() {
                Some(key) => Query::Register(Key::new(key)?),
                None => Query::UserLog {
                    from: 1,
                    count: 100,
                },
            };
            world.submit(id, show::query(&query), ClientRequest::Read(query))
        }
        // change s1 admit s4; promote s4; remove s2
        "change" => change(world, id, args),
        // transfer s1 s2, or to whom s1 likes
        _ => {
            let to = args.maybe_word().map(server).transpose()?;
            let what = to.map_or_else(|| "transfer".to_string(), |to| format!("transfer {to}"));
            world.submit(id, what, ClientRequest::Transfer(to))
        }
    }
}

fn change(world: &mut World, id: ServerId, args: &mut Args<'_>) -> Outcome<()> {
    let (what, whom) = (args.word()?, server(args.word()?)?);
    let change = match what {
        "admit" => Change::AddLearner {
            server: whom,
            storage: world.host(whom)?.storage,
        },
        "promote" => Change::Promote(whom),
        "remove" => Change::Remove(whom),
        _ => return Err("admit, promote or remove".into()),
    };
    world.submit(id, format!("{what} {whom}"), ClientRequest::Change(change))
}

/// A numbered request of the session.
fn order(
    world: &mut World,
    id: ServerId,
    what: &str,
    operation: Operation,
    args: &mut Args<'_>,
) -> Outcome<()> {
    let session = args.parsed("session")?.or(world.session);
    let serial = args.parsed("serial")?.unwrap_or(world.serial + 1);
    world.serial = world.serial.max(serial);
    let secret: Option<u8> = args.parsed("secret")?;
    let claim = secret.map_or(OwnershipProof::NONE, |byte| {
        OwnershipProof::of_secret([byte; 16])
    });
    let command = Command {
        session: session.ok_or("open a session first")?,
        serial,
        outstanding: args.parsed("outstanding")?.unwrap_or(1),
        operation,
    };
    world.submit(
        id,
        format!("{what} (serial {serial})"),
        ClientRequest::Command(command, claim),
    )
}
