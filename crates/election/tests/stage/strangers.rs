//! What strangers write into the register: other leaders, requests, backups,
//! and things that are no records at all.

use tenure_core::cas::{Bytes, Stamp};
use tenure_core::ids::{Key, LeaderId, Name, Term};
use tenure_core::time::WallTime;
use tenure_election::{Config, Holder, Occupancy, Record, Request};

use super::actor::DAWN_MS;
use super::args::{Args, Outcome};
use super::words::key_of;
use super::world::World;

/// Writes, and shows what is there now.
pub(crate) fn write(world: &mut World, command: &str, args: &mut Args<'_>) -> Outcome<()> {
    let key = key_of(args)?;
    let at = world.at;
    match command {
        // request resign, request transfer to=b
        "request" => {
            let request = match args.word()? {
                "resign" => Request::Resign,
                _ => Request::Transfer(args.name("to")?.ok_or("to whom?")?),
            };
            let mut record = world.store.record(&key).ok_or("nobody to ask")?;
            record.sequence += 1;
            if let Occupancy::Held(holder) = &mut record.occupancy {
                holder.request = Some(request);
            }
            world.store.put(at, &key, record.encode(), Stamp::Keep);
        }
        // lift 9: the sequence of the record as it is.
        "lift" => {
            let mut record = world.store.record(&key).ok_or("nothing to lift")?;
            record.sequence = args.word()?.parse()?;
            world.store.put(at, &key, record.encode(), Stamp::Keep);
        }
        // restore v1: an old state comes back as=v1 or under a new version.
        "restore" => {
            let old = world.store.once(args.word()?)?.register.ok_or("deleted")?;
            let version = match args.key("as") {
                Some(_) => old.version,
                None => world.store.next_version(),
            };
            world.store.put_as(at, &key, old.value, Stamp::Now, version);
        }
        "delete" => {
            let registers = &mut world.store.registers;
            let held = registers.read(&key).ok_or("nothing to delete")?;
            let version = held.version.clone();
            registers.delete(&key, &version).map_err(|_| "a conflict")?;
        }
        _ => {
            let value = value(world, &key, args)?;
            world.store.put(at, &key, value, Stamp::Now);
        }
    }
    let shown = world.ids.register(world.store.registers.read(&key));
    world.say(&format!("{key}: {shown}"));
    Ok(())
}

/// put by=x term=5 seq=9 renewal=8 lease=10s renewed=-3s; put vacant for=b;
/// put garbage; put newer.
fn value(world: &mut World, key: &Key, args: &mut Args<'_>) -> Outcome<Bytes> {
    let known = world.store.record(key);
    let word = args.maybe_word();
    match word {
        Some("garbage") => return Ok(Bytes::from(*b"it is not ours")),
        Some("newer") => return Ok(Bytes::from(*b"tenure-election 2\nelection payroll\n")),
        _ => {}
    }
    let last = known.as_ref().map_or(0, |known| known.sequence);
    let sequence = args.parsed("seq")?.unwrap_or(last + 1);
    let term = known.as_ref().map_or(1, |known| known.term.get());
    let term = args.parsed("term")?.unwrap_or(term);
    let millis = DAWN_MS + i128::try_from(world.at.as_millis())?;
    let millis = millis + args.shift("renewed")?.unwrap_or(0) / 1_000_000;
    let renewed_at = WallTime::from_millis(u64::try_from(millis)?);
    let occupancy = match args.key("by") {
        Some(by) => {
            let id = by.bytes().fold(0, |id, byte| id << 8 | u128::from(byte));
            let id = LeaderId::from_u128(id);
            world.ids.name(id, by);
            Occupancy::Held(Holder {
                id,
                name: args.name("name")?.map_or_else(|| Name::new(by), Ok)?,
                addresses: [].into(),
                params: Bytes::from([]),
                request: None,
            })
        }
        None => Occupancy::Vacant {
            successor: args.name("for")?,
        },
    };
    let record = Record {
        election: key.election().ok_or("not an election")?,
        term: Term::new(term).ok_or("that is no term")?,
        sequence,
        renewal: args.parsed("renewal")?.unwrap_or(sequence),
        lease: args.span("lease")?.unwrap_or(Config::LEASE),
        acquired_at: renewed_at,
        renewed_at,
        occupancy,
    };
    Ok(record.encode())
}
