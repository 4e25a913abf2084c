//! Commands that need no world: time tables, records, registers.

use std::fmt::Write as _;
use std::time::Duration;

use tenure_core::cas::{Change, Expect, Register, Registers, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::{ClockId, Instant, StoreTime};
use tenure_election::{Grant, Record};

use super::args::{Args, Outcome, span};
use super::show::time;
use super::words::{configure, since_start};

pub(crate) struct Tables {
    registers: Registers,
    now: Option<StoreTime>,
}

impl Tables {
    pub(crate) fn new() -> Self {
        Self {
            registers: Registers::new(8),
            now: None,
        }
    }

    /// Runs `command` if it is one of these.
    pub(crate) fn run(&mut self, command: &str, args: &mut Args<'_>) -> Outcome<Option<String>> {
        Ok(Some(match command {
            // validate lease=10s interval=5s: what Config::validate says.
            "validate" => validate(args)?,
            // grant lease=10s start=100s: the time table of a leader.
            "grant" => grant(args)?,
            // decode "text": what Record::decode says; crc=good appends one.
            "decode" => decode(args)?,
            "cas" => self.cas(args)?,
            _ => return Ok(None),
        }))
    }

    /// cas write k text expect=v1 stamp=keep; cas read k; cas delete k
    /// expect=v1; cas list prefix; cas changes after=3; cas clock 5s
    fn cas(&mut self, args: &mut Args<'_>) -> Outcome<String> {
        let verb = args.word()?;
        let word = args.maybe_word().unwrap_or_default();
        let key = || Key::new(word);
        Ok(match verb {
            "write" => {
                let expect = match args.key("expect") {
                    None => Expect::Absent,
                    Some(version) => Expect::Version(parse_version(version)?),
                };
                let stamp = match args.key("stamp") {
                    Some("keep") => Stamp::Keep,
                    _ => Stamp::Now,
                };
                let value = args.word()?.as_bytes().into();
                let write = Write {
                    key: key()?,
                    expect,
                    value,
                    stamp,
                };
                match self.registers.compare_and_swap(write, self.now) {
                    Ok(version) => version.to_string(),
                    Err(conflict) => format!("{conflict:?}"),
                }
            }
            "read" => show_register(self.registers.read(&key()?)),
            "delete" => {
                let expected = parse_version(args.key("expect").ok_or("which version?")?)?;
                let deleted = self.registers.delete(&key()?, &expected);
                deleted.map_or_else(|conflict| format!("{conflict:?}"), |()| "deleted".into())
            }
            "list" => {
                let mut text = String::new();
                for (key, register) in self.registers.list(word) {
                    writeln!(text, "{key} {}", show_register(Some(register)))?;
                }
                text
            }
            "changes" => {
                let after = args.parsed("after")?.unwrap_or(0);
                match self.registers.changes_after(after) {
                    Ok(changes) => changes.map(show_change).collect(),
                    Err(too_old) => format!("{too_old:?}"),
                }
            }
            "clock" => {
                let nanos = u64::try_from(span(word)?.as_nanos())?;
                let clock = ClockId::default();
                self.now = Some(StoreTime { clock, nanos });
                String::new()
            }
            other => return Err(format!("unknown verb {other}").into()),
        })
    }
}

fn parse_version(text: &str) -> Outcome<Version> {
    let number = text
        .strip_prefix('v')
        .ok_or("a version is v and a number")?;
    Ok(Version::from_u64(number.parse()?))
}

fn show_register(register: Option<&Register>) -> String {
    let Some(register) = register else {
        return "nothing".to_string();
    };
    let value = String::from_utf8_lossy(&register.value);
    let stamp = register
        .stamp
        .map(|stamp| Duration::from_nanos(stamp.nanos));
    let stamp = stamp.map_or_else(String::new, |stamp| format!(" stamped {}", time(stamp)));
    format!("{} {value:?}{stamp}", register.version)
}

fn show_change(change: &Change) -> String {
    let register = show_register(change.register.as_ref());
    format!("{}: {} {register}\n", change.revision, change.key)
}

fn validate(args: &mut Args<'_>) -> Outcome<String> {
    let config = configure(args, "web-1")?;
    Ok(match config.validate() {
        Ok(()) => format!("good: {}", table(&Grant::new(Instant::ZERO, &config))),
        Err(error) => format!("{error}"),
    })
}

fn table(grant: &Grant) -> String {
    format!(
        "drain {} kill {} valid {}",
        since_start(grant.drain_at),
        since_start(grant.kill_at),
        since_start(grant.valid_until)
    )
}

/// A line for the reader's eye: one character a fortieth of the lease.
fn grant(args: &mut Args<'_>) -> Outcome<String> {
    let start = args.span("start")?.unwrap_or_default();
    let start = Instant::ZERO.after(start);
    let config = configure(args, "web-1")?;
    let grant = Grant::new(start, &config);
    let over = start.after(config.drift.lengthen(config.lease));
    let column = |at: Instant| {
        let part = at.since(start).as_nanos() * 40 / config.lease.as_nanos().max(1);
        usize::try_from(part).unwrap_or(0)
    };
    let marks = [
        (grant.start, '|'),
        (grant.drain_at, 'D'),
        (grant.kill_at, 'K'),
        (grant.valid_until, 'V'),
        (over, 'J'),
    ];
    let mut picture = vec!['-'; column(over) + 1];
    for (at, mark) in marks {
        picture[column(at)] = mark;
    }
    let picture: String = picture.into_iter().collect();
    let table = table(&grant);
    Ok(format!(
        "{table}, judged over {}\n{picture}",
        since_start(over)
    ))
}

fn decode(args: &mut Args<'_>) -> Outcome<String> {
    let mut text = args.word()?.to_string();
    if args.key("crc") == Some("good") {
        let sum = crc32c(text.as_bytes());
        writeln!(text, "crc32c {sum:08x}")?;
    }
    Ok(match Record::decode(text.as_bytes()) {
        Ok(record) => format!("{record:#?}"),
        Err(error) => error.to_string(),
    })
}

/// CRC-32C a bit at a time: the slow definition beside the fast table.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| {
        let low = crc & 1;
        crc >> 1 ^ (0x82f6_3b78 * low)
    };
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc))
    })
}
