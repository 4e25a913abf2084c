//! The bucket: which stream it is, which subject is which key's, what the stream
//! must be like, and what a message in it says.

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::{StoreError, quoted};
use crate::store::{Key, Register, Version, paths};

/// The header by which a message says that it deletes, and what it says then: `DEL`,
/// or `PURGE` where a person has purged the subject.
const OPERATION: &str = "KV-Operation";
const DELETES: &str = "DEL";
/// The header of a mark that the server has put by itself.
const MARKER: &str = "Nats-Marker-Reason";

/// A bucket, by its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket<'a>(pub(super) &'a str);

impl Bucket<'_> {
    /// The name of its stream.
    pub(super) fn stream(self) -> String {
        format!("KV_{}", self.0)
    }

    fn beginning(self) -> String {
        format!("$KV.{}.", self.0)
    }

    /// All subjects of it.
    pub(super) fn all(self) -> String {
        format!("{}>", self.beginning())
    }

    /// The subject of a key.
    pub(super) fn subject(self, key: &Key) -> String {
        self.beginning() + &paths::name(key, '.')
    }

    /// The key of a subject, if it is one.
    pub(super) fn key(self, subject: &str) -> Option<Key> {
        paths::key(subject.strip_prefix(self.beginning().as_str())?, '.')
    }

    /// What the subjects of all keys match that begin so; others may.
    pub(super) fn filter(self, prefix: &str) -> String {
        let folder = paths::folder(prefix, '.').unwrap_or_default();
        format!("{}{folder}>", self.beginning())
    }

    /// What its stream is made like: as the clients of NATS make buckets, but without
    /// reads from replicas.
    pub(super) fn config(self, replicas: u8) -> Value {
        json!({
            "name": self.stream(),
            "description": "registers of Tenure",
            "subjects": [self.all()],
            "retention": "limits",
            "storage": "file",
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msg_size": -1,
            "max_consumers": -1,
            "discard": "new",
            "allow_rollup_hdrs": true,
            "deny_delete": true,
            "allow_direct": false,
            "mirror_direct": false,
        })
    }

    /// Refuses a stream that can lose registers by the way it is set up.
    pub(super) fn check(self, config: &Value) -> Result<(), StoreError> {
        let Some(found) = self.unfit(config) else {
            return Ok(());
        };
        let stream = self.stream();
        Err(StoreError::broken(format!(
            "expected a stream {stream} that keeps the last message of each subject on disk, \
             found {}; name another bucket, or change the stream (`nats stream edit {stream}`)",
            quoted(&found)
        )))
    }

    fn unfit(self, config: &Value) -> Option<String> {
        let number = |name: &str| config.get(name).and_then(Value::as_i64).unwrap_or(0);
        let text = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
        let is_set = |name: &str| {
            let set = config.get(name);
            set.is_some_and(|it| !matches!(it, Value::Null | Value::Bool(false)))
        };
        let subjects = config.get("subjects").and_then(Value::as_array);
        let all = self.all();
        let has_all = subjects.is_some_and(|them| them.iter().any(|it| *it == all.as_str()));
        let limits = ["max_msgs", "max_bytes"];
        if text("storage") != "file" {
            return Some(format!("storage {:?}", text("storage")));
        }
        if text("retention") != "limits" {
            return Some(format!("retention {:?}", text("retention")));
        }
        if number("max_age") > 0 {
            return Some(format!("a max_age of {} ns", number("max_age")));
        }
        if text("persist_mode") == "async" {
            return Some("persist_mode \"async\"".into());
        }
        if text("discard") != "new" && limits.iter().any(|limit| number(limit) > 0) {
            return Some(format!("limits, and discard {:?}", text("discard")));
        }
        for option in ["mirror", "sources", "sealed", "no_ack", "subject_transform"] {
            if is_set(option) {
                return Some(format!("one with {option}"));
            }
        }
        (!has_all).then(|| format!("one without the subjects {all}"))
    }
}

/// The headers of a message that deletes.
pub(super) fn deletion() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(OPERATION, DELETES);
    headers
}

/// The last message of a subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    number: u64,
    is_gone: bool,
    value: Vec<u8>,
}

impl Entry {
    /// From what the stream says of a message.
    pub(super) fn parse(message: &Value) -> Result<Self, StoreError> {
        let bytes = |name: &str| match message.get(name).and_then(Value::as_str) {
            None => Some(Vec::new()),
            Some(text) => STANDARD.decode(text).ok(),
        };
        let number = message.get("seq").and_then(Value::as_u64);
        let number = number.filter(|number| *number > 0);
        let (Some(number), Some(headers), Some(value)) = (number, bytes("hdrs"), bytes("data"))
        else {
            return Err(StoreError::broken(
                "expected a message with a number from JetStream, found another answer",
            ));
        };
        let headers = String::from_utf8_lossy(&headers);
        let is_gone = headers.lines().any(|line| {
            let (name, value) = line.split_once(':').unwrap_or_default();
            let deletes = [DELETES, "PURGE"].contains(&value.trim());
            name.eq_ignore_ascii_case(OPERATION) && deletes || name.eq_ignore_ascii_case(MARKER)
        });
        Ok(Self {
            number,
            is_gone,
            value,
        })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether it marks a deletion.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// The register that it holds.
    pub(super) fn into_register(self) -> Option<Register> {
        (!self.is_gone).then(|| Register {
            value: self.value.into(),
            version: Version::from_u64(self.number),
            stamp: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Bucket<'_> = Bucket("b");

    #[test]
    fn subjects_are_below_the_bucket() {
        let key = Key::new("elections/pay.roll").expect("a key");
        let subject = BUCKET.subject(&key);
        assert_eq!(subject, "$KV.b.elections.pay=2Eroll");
        assert_eq!(BUCKET.key(&subject), Some(key));
        assert_eq!(BUCKET.key("$KV.c.elections.x"), None);
        assert_eq!(BUCKET.filter("elections/p"), "$KV.b.elections.>");
        assert_eq!(BUCKET.filter("elec"), "$KV.b.>");
    }

    #[test]
    fn a_stream_that_can_lose_registers_is_refused() {
        BUCKET.check(&BUCKET.config(3)).expect("our own");
        let mut usual = BUCKET.config(1);
        // A bucket of another client's making, with a history.
        usual["max_msgs_per_subject"] = json!(5);
        usual["allow_direct"] = json!(true);
        BUCKET.check(&usual).expect("theirs");
        for (name, value) in [
            ("storage", json!("memory")),
            ("retention", json!("workqueue")),
            ("max_age", json!(3_600_000_000_000_u64)),
            ("persist_mode", json!("async")),
            ("mirror", json!({"name": "other"})),
            ("sources", json!([{"name": "other"}])),
            ("sealed", json!(true)),
            ("no_ack", json!(true)),
            ("subjects", json!(["other.>"])),
        ] {
            let mut config = BUCKET.config(1);
            config[name] = value;
            let refused = BUCKET.check(&config);
            assert!(matches!(refused, Err(StoreError::Broken(_))), "{name}");
        }
        let mut old = BUCKET.config(1);
        old["discard"] = json!("old");
        BUCKET
            .check(&old)
            .expect("without limits nothing is discarded");
        old["max_bytes"] = json!(1_000_000);
        assert!(BUCKET.check(&old).is_err());
    }

    #[test]
    fn a_message_is_a_register_or_the_mark_of_a_deletion() {
        let parsed = |message: Value| Entry::parse(&message).expect("a message");
        let value = STANDARD.encode("value");
        let held = parsed(json!({"seq": 7, "data": value}));
        assert!(!held.is_gone());
        let register = held.into_register().expect("a register");
        assert_eq!(&*register.value, b"value");
        assert_eq!(register.version, Version::from_u64(7));
        // An empty value is no deletion.
        assert!(!parsed(json!({"seq": 7})).is_gone());
        for mark in [
            "KV-Operation: DEL",
            "kv-operation:PURGE",
            "Nats-Marker-Reason: MaxAge",
        ] {
            let headers = STANDARD.encode(format!("NATS/1.0\r\nOther: x\r\n{mark}\r\n\r\n"));
            let gone = parsed(json!({"seq": 9, "hdrs": headers}));
            assert!(gone.is_gone() && gone.number() == 9, "{mark}");
            assert_eq!(gone.into_register(), None);
        }
        for wrong in [
            json!({}),
            json!({"seq": 0}),
            json!({"seq": 1, "data": "!"}),
            json!("x"),
        ] {
            assert!(matches!(Entry::parse(&wrong), Err(StoreError::Broken(_))));
        }
    }
}
