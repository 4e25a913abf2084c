//! The commands that act on the world.
//!
//! Every command lets the actors do what it made due, at the same instant,
//! and the trace shows it.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::ids::{Key, Name};
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Drift};
use tenure_election::{Campaign, Command, Config, Expiry, FailureClass, Input, Observer, Priority};

use super::actor::{Actor, Kind, Link, Watch, local, seen};
use super::args::{Args, Outcome, shift, span};
use super::show::{moment, show_grant, time};
use super::strangers;
use super::world::World;

pub(crate) fn run(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<String> {
    // maybe ok a: the same, and no matter if there is nothing to answer.
    if command == "maybe" {
        let result = run(world, args.word()?, args);
        args.forget();
        return if world.spins {
            result
        } else {
            Ok(result.unwrap_or_default())
        };
    }
    match command {
        // campaign a lease=10s interval=2s grace=3s kill=250ms drift=10000
        //   priority=10 expiry=silence|session|steady|store|skew:2s
        //   affinity=cache,queue election=payroll name=a by=session confirms=work, and where it runs:
        //   boot=100s wall=-2s rate=10000 clock=1.2 watch=on|off|withheld
        //   link=up work=ends|runs
        "campaign" => campaign(world, args)?,
        // observe o renewals=on drift= expiry= and where it runs, as above
        "observe" => observe(world, args)?,
        // wait 2s: let time pass. until 2s: let it pass up to then.
        "wait" => {
            let target = world.at + span(args.word()?)?;
            world.advance_to(target);
        }
        "until" => {
            let target = span(args.word()?)?;
            if target < world.at {
                return Err(format!("it is {} already", time(world.at)).into());
            }
            world.advance_to(target);
        }
        // session 1: the first session that was opened ends.
        "session" => {
            let session = args.word()?.parse()?;
            world.end_session(session);
        }
        "resign" | "transfer" | "stop" | "drained" | "confirm" => order(world, command, args)?,
        "link" | "watch" | "suspend" | "resume" | "crash" | "clock" | "work" | "store" => {
            surround(world, command, args)?;
        }
        "ok" | "land" | "fail" | "garble" | "hint" => answer(world, command, args)?,
        "put" | "request" | "lift" | "restore" | "delete" => {
            strangers::write(world, command, args)?;
        }
        "register" | "bytes" | "state" | "sight" => return show(world, command, args),
        other => return Err(format!("unknown command {other}").into()),
    }
    // What the command made due at this very instant is part of it.
    world.advance_to(world.at);
    if world.spins {
        return Err(format!("an actor spins at {}", time(world.at)).into());
    }
    Ok(world.take_trace())
}

pub(crate) fn configure(args: &mut Args<'_>, name: &str) -> Outcome<Config> {
    let election = args
        .name("election")?
        .map_or_else(|| Name::new("payroll"), Ok)?;
    let name = args.name("name")?.map_or_else(|| Name::new(name), Ok)?;
    let mut config = Config::new(election, name);
    if let Some(lease) = args.span("lease")? {
        config = config.with_lease(lease);
    }
    config.interval = args.span("interval")?.unwrap_or(config.interval);
    config.grace = args.span("grace")?.unwrap_or(config.grace);
    config.kill_margin = args.span("kill")?.unwrap_or(config.kill_margin);
    config.drift = drift(args)?;
    if let Some(priority) = args.parsed("priority")? {
        config.priority = Priority::new(priority).ok_or("a priority is 0 to 10")?;
    }
    for election in args
        .key("affinity")
        .into_iter()
        .flat_map(|all| all.split(','))
    {
        config.affinity.push(Name::new(election)?);
    }
    config.expiry = expiry(args)?;
    config.by_session = args.key("by") == Some("session");
    config.require_work_confirmation = args.key("confirms") == Some("work");
    #[cfg(feature = "planted-bugs")]
    if let Some(bug) = args.key("bug") {
        let known = tenure_election::Bug::ALL;
        config.planted = known
            .iter()
            .copied()
            .find(|known| format!("{known:?}") == bug);
    }
    Ok(config)
}

fn drift(args: &mut Args<'_>) -> Outcome<Drift> {
    let drift = args.parsed("drift")?.map(Drift::from_ppm);
    Ok(drift
        .unwrap_or(Some(Drift::DEFAULT))
        .ok_or("that is no drift")?)
}

fn expiry(args: &mut Args<'_>) -> Outcome<Expiry> {
    Ok(match args.key("expiry").unwrap_or("silence") {
        "silence" => Expiry::Silence,
        "session" => Expiry::Session,
        "steady" => Expiry::SteadyClock,
        "store" => Expiry::StoreClock,
        other => match other.split_once('@') {
            Some(("skew", bound)) => Expiry::BoundedSkew(span(bound)?),
            _ => return Err(format!("unknown expiry {other}").into()),
        },
    })
}

/// Puts an actor on the stage; `make` builds it from its clocks.
fn enter(
    world: &mut World,
    args: &mut Args<'_>,
    name: &str,
    make: impl FnOnce(tenure_core::time::Now, Rng) -> Kind,
) -> Outcome<()> {
    let boot = args.shift("boot")?.unwrap_or(0);
    let wall = args.shift("wall")?.unwrap_or(0) / 1_000_000;
    let rate = args.parsed("rate")?.unwrap_or(0);
    let clock = match args.key("clock").map(|clock| clock.split_once('.')) {
        None => Some(ClockId::default()),
        Some(Some((boot, namespace))) => Some(ClockId {
            boot: boot.parse()?,
            namespace: namespace.parse()?,
        }),
        // clock=unreadable
        Some(None) => None,
    };
    let seed = args.parsed("seed")?;
    let seed = seed.unwrap_or(world.actors.len() as u64 + 1);
    let now = local(world.at, boot, rate, wall);
    let watch = watch(args.key("watch").unwrap_or("off"))?;
    world.actors.push(Actor {
        name: name.to_string(),
        kind: make(now, Rng::from_seed(seed)),
        link: link(args.key("link").unwrap_or("up"))?,
        watch,
        obedient: args.key("work") == Some("ends"),
        boot,
        wall,
        rate,
        clock,
        suspended: None,
        calls: Vec::new(),
        session: None,
        incarnations: 0,
    });
    if watch != Watch::Off {
        let index = world.actors.len() - 1;
        world.send(index, Input::WatchUp(true));
    }
    Ok(())
}

fn campaign(world: &mut World, args: &mut Args<'_>) -> Outcome<()> {
    let name = args.word()?;
    let config = configure(args, name)?;
    config.validate()?;
    enter(world, args, name, |now, rng| {
        Kind::Campaign(Campaign::new(config, rng, now))
    })
}

fn observe(world: &mut World, args: &mut Args<'_>) -> Outcome<()> {
    let name = args.word()?;
    let election = args
        .name("election")?
        .map_or_else(|| Name::new("payroll"), Ok)?;
    let (expiry, drift) = (expiry(args)?, drift(args)?);
    let renewals = args.key("renewals") == Some("on");
    enter(world, args, name, |now, _| {
        Kind::Observer(Observer::new(election, expiry, drift, renewals, now))
    })
}

/// What an application says to its campaign.
fn order(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<()> {
    let index = world.actor(args.word()?)?;
    let input = match command {
        "resign" => Input::Command(Command::Resign),
        // transfer a to=b
        "transfer" => {
            let to = args.name("to")?.ok_or("to whom?")?;
            Input::Command(Command::Transfer(to))
        }
        "stop" => Input::Command(Command::Stop),
        // confirm a start=2s: its work goes by the grant that counts from then.
        "confirm" => {
            let start = args.span("start")?.ok_or("from when?")?;
            let start = world.actors[index].now(start).boot;
            Input::WorkConfirmed { start }
        }
        _ => Input::Drained,
    };
    world.send(index, input);
    Ok(())
}

fn link(text: &str) -> Outcome<Link> {
    Ok(match text {
        "up" => Link::Up,
        "held" => Link::Held,
        "silent" => Link::Silent,
        "deaf" => Link::Deaf,
        "unavailable" => Link::Unavailable,
        "unknown" => Link::Unknown,
        "broken" => Link::Broken,
        other => return Err(format!("unknown link {other}").into()),
    })
}

fn watch(text: &str) -> Outcome<Watch> {
    Ok(match text {
        "on" => Watch::On,
        "off" => Watch::Off,
        "withheld" => Watch::Withheld,
        other => return Err(format!("unknown watch {other}").into()),
    })
}

/// What happens around the actors.
fn surround(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<()> {
    if command == "store" {
        // store clock=on step=-1h refuses=on
        world.store.clock |= args.key("clock") == Some("on");
        world.store.step += args.shift("step")?.unwrap_or(0);
        if let Some(refuses) = args.key("refuses") {
            world.store.refuses = refuses == "on";
        }
        return Ok(());
    }
    let index = world.actor(args.word()?)?;
    let actor = &mut world.actors[index];
    match command {
        // link a held
        "link" => actor.link = link(args.word()?)?,
        // watch a withheld
        "watch" => {
            actor.watch = watch(args.word()?)?;
            let up = actor.watch != Watch::Off;
            world.send(index, Input::WatchUp(up));
        }
        // suspend a: its process is stopped, its clocks go on. resume a.
        "suspend" => actor.suspended = Some(VecDeque::new()),
        "resume" => {
            let waiting = actor.suspended.take().unwrap_or_default();
            let now = actor.now(world.at);
            actor.machine().tick(now);
            for input in waiting {
                world.send(index, input);
            }
        }
        // work a: from now on its work ends when it is told to.
        "work" => {
            actor.obedient = true;
            world.send(index, Input::Drained);
        }
        "crash" => {
            world.actors.remove(index);
        }
        // clock a wall=1h: its calendar is set.
        _ => actor.wall += shift(args.key("wall").ok_or("which?")?)? / 1_000_000,
    }
    Ok(())
}

/// What comes back to the actors; the oldest unanswered call unless call=3.
fn answer(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<()> {
    let index = world.actor(args.word()?)?;
    let call = args.parsed("call")?;
    match command {
        // ok a: answer truthfully. land a: let it take effect, unanswered.
        "ok" => world.reply(index, call),
        "land" => world.land(index, call),
        // fail a unknown: answer so, whether it took effect or not.
        "fail" => {
            let class = match args.word()? {
                "conflict" => FailureClass::Conflict,
                "unavailable" => FailureClass::Unavailable,
                "unknown" => FailureClass::Unknown,
                "broken" => FailureClass::Broken,
                other => return Err(format!("unknown failure {other}").into()),
            };
            world.fail(index, call, class)
        }
        // garble a: answer a read with its register's bytes damaged.
        "garble" => world.garble(index, call),
        // hint a v3: the watch reports that state; hint a deleted; without
        // either, the present one.
        _ => {
            let (key, register) = match args.maybe_word() {
                Some("deleted") => (key_of(args)?, None),
                Some(version) => {
                    let change = world.store.once(version)?;
                    (change.key, change.register)
                }
                None => {
                    let key = key_of(args)?;
                    let register = world.store.registers.read(&key).cloned();
                    (key, register)
                }
            };
            world.send(index, seen(&key, register));
            Ok(())
        }
    }
}

pub(crate) fn key_of(args: &mut Args<'_>) -> Outcome<Key> {
    let election = args
        .name("election")?
        .map_or_else(|| Name::new("payroll"), Ok)?;
    Ok(Key::of_election(&election))
}

fn show(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<String> {
    // bytes: what the register really holds.
    if command == "bytes" {
        let register = world.store.registers.read(&key_of(args)?).cloned();
        let register = register.ok_or("nothing there")?;
        return Ok(String::from_utf8_lossy(&register.value).into_owned());
    }
    if command == "register" {
        let key = key_of(args)?;
        return Ok(world.ids.register(world.store.registers.read(&key)));
    }
    let index = world.actor(args.word()?)?;
    let (at, actor) = (world.at, &world.actors[index]);
    let judge = match &actor.kind {
        Kind::Campaign(campaign) => campaign.judge(),
        Kind::Observer(observer) => observer.judge(),
    };
    let shown = world.ids.lease_state(actor, &judge.lease_state());
    let due = actor
        .deadline()
        .map_or_else(|| "never".to_string(), |at| moment(actor, at));
    Ok(match (&actor.kind, command) {
        // state a
        (Kind::Campaign(campaign), "state") => {
            let id = world.ids.show(campaign.id());
            let state = state_of(campaign);
            let grant = actor.leadership().map(|(_, grant)| {
                let valid = grant.is_valid(actor.now(at).boot);
                let valid = if valid { "valid" } else { "invalid" };
                format!(", {valid}, {}", show_grant(actor, grant))
            });
            let grant = grant.unwrap_or_default();
            format!("{} is {state} as {id}{grant}, wakes {due}", actor.name)
        }
        // sight a
        _ => format!(
            "{} sees it {shown}, top term {}",
            actor.name,
            judge.top_term()
        ),
    })
}

/// The name of its state: only `Debug` tells racing from leading, and nothing
/// but a trace needs to.
fn state_of(campaign: &Campaign) -> String {
    let debug = format!("{campaign:?}");
    let state = debug.split("state: ").nth(1).unwrap_or_default();
    let end = state.find(|c: char| !c.is_alphabetic());
    state[..end.unwrap_or(state.len())].to_lowercase()
}

/// How long something lasts from the beginning of a script.
pub(crate) fn since_start(at: tenure_core::time::Instant) -> String {
    time(Duration::from_nanos(at.as_nanos()))
}
