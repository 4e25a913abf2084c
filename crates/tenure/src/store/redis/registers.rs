//! How registers lie in the server, and how its answers are read.
//!
//! | key | what |
//! |---|---|
//! | `PREFIX` `register:` NAME | a register: a hash of `version`, `value` and `stamp` |
//! | `PREFIX` `count` | the count of the version that was given last |
//! | `PREFIX` `names` | the names of all registers, a sorted set whose scores are 0 |
//!
//! A version is sixteen digits, a dash, and a mark. The digits are a count of all
//! writes, in step with the server's time in microseconds (`write.lua`): of two
//! versions of a register the later one is higher, also where the count was lost. The
//! mark is 64 random bits that the client draws for each write, so that no version is
//! given twice even where an older copy of the data comes back and the clock is set
//! back as well.
//!
//! The set of names costs a write what it takes to find a name in a tree, and a
//! listing no more than it returns, in order. To look for keys (`SCAN`) would cost
//! each listing, and each look of a watch, a walk over all keys of the database,
//! those of others too, in no order.

use std::sync::LazyLock;

use ::redis::{Script, ServerError, Value};
use tenure_core::time::{ClockId, StoreTime};

use super::classify;
use crate::error::{StoreError, quoted};
use crate::store::{Key, PAGE_MAX, Reading, Register, Version};

/// The name of the server's clock. It may step, which is why it is not trusted by
/// default.
const CLOCK: ClockId = ClockId {
    boot: 0,
    namespace: 0,
};

/// A script that the server runs whole, before any other call.
pub(super) struct Lua {
    pub(super) code: &'static str,
    /// By which a server that has run it knows it.
    pub(super) hash: String,
}

impl Lua {
    fn new(code: &'static str) -> Self {
        let hash = Script::new(code).get_hash().to_owned();
        Self { code, hash }
    }
}

/// Writes a register by condition.
pub(super) static WRITE: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("write.lua")));
/// Deletes one by condition.
pub(super) static DELETE: LazyLock<Lua> = LazyLock::new(|| Lua::new(include_str!("delete.lua")));

/// Where keys are.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeySpace<'a> {
    pub(super) prefix: &'a str,
}

impl KeySpace<'_> {
    /// The key of a register.
    pub(super) fn register(self, name: &str) -> String {
        format!("{}register:{name}", self.prefix)
    }

    /// The key of the count that was given last.
    pub(super) fn count(self) -> String {
        format!("{}count", self.prefix)
    }

    /// The channel on which changes are told.
    pub(super) fn changes(self) -> String {
        format!("{}changes", self.prefix)
    }

    /// The key of the names of all registers.
    pub(super) fn names(self) -> String {
        format!("{}names", self.prefix)
    }
}

/// Between which names, in the words of `ZRANGEBYLEX`, those are that have this
/// prefix and come after this one.
pub(super) fn range(prefix: &str, after: Option<&str>) -> [Vec<u8>; 2] {
    let from = match after {
        Some(after) if after >= prefix => [b"(", after.as_bytes()].concat(),
        _ if prefix.is_empty() => b"-".to_vec(),
        _ => [b"[", prefix.as_bytes()].concat(),
    };
    // The first text that is above all with the prefix. UTF-8 has no byte 255.
    let to = match prefix.as_bytes().split_last() {
        None => b"+".to_vec(),
        Some((last, before)) => [b"(", before, &[last + 1]].concat(),
    };
    [from, to]
}

/// How many names are asked for at once: one more than fit a page, which tells
/// whether there are more.
pub(super) const NAMES_MAX: usize = PAGE_MAX + 1;

/// The text of a version, if it is one that the script can have given.
pub(super) fn version_text(version: &Version) -> Option<&str> {
    let text = std::str::from_utf8(version.as_bytes()).ok()?;
    let (count, mark) = text.split_once('-')?;
    let digits = count.len() == 16 && count.bytes().all(|it| it.is_ascii_digit());
    let marked = !mark.is_empty() && mark.bytes().all(|it| it.is_ascii_hexdigit());
    (digits && marked).then_some(text)
}

/// The version of what is no register. No write can expect it.
fn no_version() -> Version {
    Version::from_bytes(b"0")
}

/// What lies where a register should be. It shows as one that nobody understands
/// and that cannot be written over: it may be the wrong key of somebody else's.
fn not_a_register(found: &str) -> Register {
    let text = format!("expected a hash with a version and a value, found {found}");
    Register {
        value: text.into_bytes().into(),
        version: no_version(),
        stamp: None,
    }
}

/// An answer that the server cannot have given to what was asked.
pub(super) fn unexpected(what: &str, found: &Value) -> StoreError {
    let found = quoted(&format!("{found:?}"));
    StoreError::broken(format!(
        "expected {what} from a server of Redis or Valkey, found {found}"
    ))
}

/// The bytes of a text.
pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        Value::Okay => Some(b"OK"),
        _ => None,
    }
}

/// The text that this is.
pub(super) fn text(value: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(value)?).ok()
}

/// The elements of a list.
pub(super) fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

/// What a message on the channel of changes hints at: a key, and the version that it
/// was given, if it was not deleted.
pub(super) fn hint(message: &[u8]) -> Option<(Key, Option<Version>)> {
    let (version, name) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    let version = (version != "-").then(|| Version::from_bytes(version.as_bytes()));
    Some((Key::new(name).ok()?, version))
}

/// What `TIME` says: seconds, and microseconds of the second.
pub(super) fn time(value: &Value) -> Result<StoreTime, StoreError> {
    let parts = list(value).and_then(|parts| match parts {
        [seconds, micros] => Some((number(seconds)?, number(micros)?)),
        _ => None,
    });
    let (seconds, micros) = parts.ok_or_else(|| unexpected("the time", value))?;
    Ok(store_time(seconds.saturating_mul(1_000_000) + micros))
}

fn number(value: &Value) -> Option<u64> {
    text(value)?.parse().ok()
}

fn store_time(micros: u64) -> StoreTime {
    StoreTime {
        clock: CLOCK,
        nanos: micros.saturating_mul(1_000),
    }
}

/// What a write says that was carried out; `None` if the register was not as
/// expected.
pub(super) fn written(answer: &Value) -> Result<Option<(Version, StoreTime)>, StoreError> {
    match answer {
        Value::Nil => Ok(None),
        Value::Array(parts) if parts.len() == 3 => {
            let version = bytes(&parts[0]).map(Version::from_bytes);
            let version = version.filter(|it| version_text(it).is_some());
            let version = version.ok_or_else(|| unexpected("a version", answer))?;
            Ok(Some((version, time(&Value::Array(parts[1..].to_vec()))?)))
        }
        _ => Err(unexpected("a version and a time", answer)),
    }
}

/// The fields of a register, as they are asked for.
pub(super) const FIELDS: [&str; 3] = ["version", "value", "stamp"];

/// The register in the answer to [`FIELDS`], or `None` if there is none.
pub(super) fn register(answer: &Value) -> Result<Option<Register>, StoreError> {
    match answer {
        Value::Array(fields) => match fields.as_slice() {
            [Value::Nil, Value::Nil, Value::Nil] => Ok(None),
            [version, value, stamp] => {
                let version = bytes(version).map(Version::from_bytes);
                let version = version.filter(|it| version_text(it).is_some());
                let (Some(version), Some(value)) = (version, bytes(value)) else {
                    return Ok(Some(not_a_register("a hash without them")));
                };
                // One that was written by hand and is no number counts as none, so
                // silence is judged; the next renewal writes another.
                let stamp = number(stamp).map(store_time);
                Ok(Some(Register {
                    value: value.into(),
                    version,
                    stamp,
                }))
            }
            _ => Err(unexpected("three fields", answer)),
        },
        Value::ServerError(error) if is_wrong_type(error) => {
            Ok(Some(not_a_register("a key of another type")))
        }
        _ => Err(unexpected("the fields of a register", answer)),
    }
}

/// Whether the server refuses to take a key for what was asked of it.
pub(super) fn is_wrong_type(error: &ServerError) -> bool {
    error.code() == "WRONGTYPE"
}

/// What a read says: whether the key exists, the fields of the register, the time.
pub(super) fn reading(exists: &Value, fields: &Value, now: &Value) -> Result<Reading, StoreError> {
    let register = register(fields)?;
    let there = matches!(exists, Value::Int(1));
    Ok(Reading {
        register: register.or_else(|| there.then(|| not_a_register("a hash without them"))),
        now: Some(time(now)?),
        bound: None,
    })
}

/// The names in the answer to a range of them, and the last, from which to go on if
/// there are more. Those that are no keys are nobody's.
pub(super) fn names(answer: &Value) -> Result<(Vec<Key>, Option<String>), StoreError> {
    if let Value::ServerError(error) = answer {
        return Err(classify::refused("the names of registers", error));
    }
    let all = list(answer).ok_or_else(|| unexpected("names", answer))?;
    let page = all.get(..PAGE_MAX).unwrap_or(all);
    let keys = page.iter().filter_map(text).map(Key::new);
    let last = page.last().filter(|_| all.len() > PAGE_MAX);
    // A name that is no text cannot be gone on from; one before it can.
    let last = last.map(|_| page.iter().rev().find_map(text));
    let last = last.map(|last| last.ok_or_else(|| unexpected("names in UTF-8", answer)));
    let last = last.transpose()?.map(str::to_owned);
    Ok((keys.filter_map(Result::ok).collect(), last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_range_has_what_has_the_prefix_and_no_more() {
        let said = |prefix, after| {
            let [from, to] = range(prefix, after);
            let text = |bytes| String::from_utf8(bytes).expect("text");
            (text(from), text(to))
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(said("", None), pair("-", "+"));
        assert_eq!(said("", Some("b")), pair("(b", "+"));
        assert_eq!(said("ab/", None), pair("[ab/", "(ab0"));
        assert_eq!(said("ab/", Some("ab/c")), pair("(ab/c", "(ab0"));
        // What comes before all with the prefix skips none of them.
        assert_eq!(said("ab/", Some("a")), pair("[ab/", "(ab0"));
    }

    #[test]
    fn what_is_told_of_a_change_is_a_key_and_perhaps_a_version() {
        let key = Key::new("elections/a b").expect("a key");
        let version = Version::from_bytes(b"17-ff");
        assert_eq!(
            hint(b"17-ff elections/a b"),
            Some((key.clone(), Some(version)))
        );
        assert_eq!(hint(b"- elections/a b"), Some((key, None)));
        for nonsense in [&b""[..], b"17-ff", b"17-ff ", b"\xff x", b"- a\tb"] {
            assert_eq!(hint(nonsense), None);
        }
    }

    #[test]
    fn only_a_version_that_can_have_been_given_is_expected_of_a_register() {
        let given = Version::from_bytes(b"1764250000123456-00ff00ff00ff00ff");
        assert!(version_text(&given).is_some());
        for stranger in [
            &b""[..],
            b"0",
            b"none",
            b"1764250000123456",
            b"1764250000123456-",
            b"1764250000123456-xyz",
            b"17642500001234567-00ff",
            b"\xff",
        ] {
            assert_eq!(version_text(&Version::from_bytes(stranger)), None);
        }
        assert_eq!(version_text(&no_version()), None);
    }

    #[test]
    fn what_is_no_register_shows_as_one_that_cannot_be_written_over() {
        let version = "1764250000123456-00ff00ff00ff00ff";
        let whole = Value::Array(vec![bulk(version), bulk("x"), bulk("17")]);
        let held = register(&whole).expect("an answer").expect("a register");
        assert_eq!(
            (&*held.value, held.stamp),
            (&b"x"[..], Some(store_time(17)))
        );
        // A stamp that was written by hand counts as none.
        let odd = Value::Array(vec![bulk(version), bulk("x"), bulk("soon")]);
        let held = register(&odd).expect("an answer").expect("a register");
        assert_eq!(held.stamp, None);
        for fields in [
            vec![bulk("7"), bulk("x"), Value::Nil],
            vec![Value::Nil, bulk("x"), Value::Nil],
            vec![bulk(version), Value::Nil, Value::Nil],
        ] {
            let held = register(&Value::Array(fields)).expect("an answer");
            let held = held.expect("something");
            assert_eq!(version_text(&held.version), None);
        }
        let none = Value::Array(vec![Value::Nil, Value::Nil, Value::Nil]);
        assert_eq!(register(&none).expect("an answer"), None);
        let now = Value::Array(vec![bulk("1"), bulk("2")]);
        let read = reading(&Value::Int(1), &none, &now).expect("an answer");
        assert!(read.register.is_some(), "a hash without our fields");
        let read = reading(&Value::Int(0), &none, &now).expect("an answer");
        assert_eq!(
            (read.register, read.now),
            (None, Some(store_time(1_000_002)))
        );
    }
}
