//! What the operations of a store are in Consul's terms, and what its answers say.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::StoreError;
use crate::store::bounded_json::{self, Elements};
use crate::store::{Key, Register, Version, paths};

/// What is said of an answer without the index of a write.
pub(super) const NO_INDEX: &str = "expected the index of the write from Consul";

/// The most keys in an answer: Consul has no pages.
pub(super) const ENTRIES_MAX: usize = 250_000;
/// The most that an entry, or an answer about one, costs to decode; one has seven fields.
const ENTRY_COST: usize = 128;

/// Decodes an answer to a transaction.
pub(super) fn parse(body: &[u8]) -> Result<Value, String> {
    bounded_json::parse(body, ENTRY_COST)
}

/// Where keys stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeySpace<'a> {
    /// What they are behind.
    pub(super) prefix: &'a str,
}

impl KeySpace<'_> {
    /// The name of a key in Consul.
    pub(super) fn name(self, key: &Key) -> String {
        self.prefix.to_owned() + &paths::name(key, '/')
    }

    /// The key of a name, if it is one.
    pub(super) fn key(self, name: &str) -> Option<Key> {
        paths::key(name.strip_prefix(self.prefix)?, '/')
    }

    /// What the names of all keys begin with that begin so.
    pub(super) fn beginning(self, prefix: &str) -> String {
        self.prefix.to_owned() + &paths::beginning(prefix, '/')
    }

    /// The registers among these; the rest is nobody's.
    pub(super) fn registers(self, entries: Vec<Entry>) -> Vec<(Key, Register)> {
        let register = |entry: Entry| Some((self.key(&entry.name)?, entry.into_register()));
        entries.into_iter().filter_map(register).collect()
    }
}

/// The index that a version stands for. 0 is none: it means that there is no key.
pub(super) fn index(version: &Version) -> Option<u64> {
    version.to_u64().filter(|index| *index > 0)
}

/// The steps that set a key if it has this index, or if there is none and it is 0.
pub(super) fn swap(name: &str, index: u64, flags: u64, value: &[u8]) -> Value {
    let value = STANDARD.encode(value);
    json!([{ "KV": {
        "Verb": "cas", "Key": name, "Index": index, "Flags": flags, "Value": value,
    } }])
}

/// The steps that delete a key if it has this index.
pub(super) fn delete(name: &str, index: u64) -> Value {
    json!([
        { "KV": { "Verb": "check-index", "Key": name, "Index": index } },
        { "KV": { "Verb": "delete", "Key": name } },
    ])
}

/// The index that the first step of a transaction has given its key.
pub(super) fn written(answer: &Value) -> Option<u64> {
    let first = answer.get("Results")?.as_array()?.first()?;
    first.get("KV")?.get("ModifyIndex")?.as_u64()
}

/// Whether a transaction was rolled back because a key has another index than
/// expected. Otherwise, why it was.
pub(super) fn rolled_back(answer: &Value) -> Result<(), String> {
    let errors = answer.get("Errors").and_then(Value::as_array);
    let what = |error: &Value| error.get("What").and_then(Value::as_str).map(str::to_owned);
    let said: Vec<String> = errors.into_iter().flatten().filter_map(what).collect();
    let said = said.join("; ");
    let is_stale = ["index is stale", "index check", "check index", "exist"];
    if is_stale.iter().any(|words| said.contains(words)) {
        return Ok(());
    }
    Err(said)
}

/// A key of Consul, with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    index: u64,
    value: Vec<u8>,
}

impl Entry {
    fn parse(entry: &Value) -> Option<Self> {
        let value = match entry.get("Value") {
            None | Some(Value::Null) => Vec::new(),
            Some(text) => STANDARD.decode(text.as_str()?).ok()?,
        };
        Some(Self {
            name: entry.get("Key")?.as_str()?.to_owned(),
            index: entry
                .get("ModifyIndex")?
                .as_u64()
                .filter(|index| *index > 0)?,
            value,
        })
    }

    /// What an answer to a read holds, which are at most so many. One is decoded at a time.
    pub(super) fn parse_all(body: &[u8], most: usize) -> Result<Vec<Self>, StoreError> {
        let wrong = |found: &str| {
            StoreError::broken(format!(
                "expected keys with an index from Consul, found {found}: is this a server of \
                 Consul?"
            ))
        };
        let mut entries = Vec::new();
        for element in Elements::of(body).ok_or_else(|| wrong("another answer"))? {
            if entries.len() == most {
                return Err(StoreError::broken(format!(
                    "expected an answer of Consul with at most {most} keys, found more; keep \
                     fewer keys behind one prefix"
                )));
            }
            let entry = parse(element).map_err(|error| wrong(&error))?;
            entries.push(Self::parse(&entry).ok_or_else(|| wrong("another answer"))?);
        }
        Ok(entries)
    }

    /// The register that it holds.
    pub(super) fn into_register(self) -> Register {
        Register {
            value: self.value.into(),
            version: Version::from_u64(self.index),
            stamp: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_behind_the_prefix() {
        let keyspace = KeySpace { prefix: "t/" };
        let key = Key::new("elections/../x").expect("a key");
        let name = keyspace.name(&key);
        assert_eq!(name, "t/elections/=2E=2E/x");
        assert_eq!(keyspace.key(&name), Some(key));
        for other in ["t/", "x/a", "t/a b", "t/a//b"] {
            assert_eq!(keyspace.key(other), None, "{other}");
        }
        assert_eq!(keyspace.beginning("elections/"), "t/elections/");
    }

    #[test]
    fn an_answer_holds_keys_with_an_index() {
        let body = br#"[{"LockIndex":0,"Key":"t/a","Flags":7,"Value":"dmFsdWU=","CreateIndex":3,
            "ModifyIndex":9},{"Key":"t/b","Value":null,"ModifyIndex":4}]"#;
        let entries = Entry::parse_all(body, 2).expect("entries");
        let registers = KeySpace { prefix: "t/" }.registers(entries);
        let shown: Vec<_> = registers
            .iter()
            .map(|(key, held)| (key.as_str(), &*held.value, held.version.to_u64()))
            .collect();
        assert_eq!(
            shown,
            [("a", &b"value"[..], Some(9)), ("b", &b""[..], Some(4))]
        );
        for wrong in [
            "",
            "{}",
            "[1]",
            r#"[{"Key":"a","Value":"!","ModifyIndex":1}]"#,
        ] {
            let refused = Entry::parse_all(wrong.as_bytes(), 9);
            assert!(matches!(refused, Err(StoreError::Broken(_))), "{wrong}");
        }
    }

    /// 61 MB of the least that an entry can be took gigabytes.
    #[test]
    fn an_answer_holds_no_more_keys_than_were_asked_for() {
        let entry = r#"{"Key":"a","ModifyIndex":1}"#;
        let body = |count| format!("[{}]", vec![entry; count].join(","));
        for (count, most) in [(1, 1), (ENTRIES_MAX, ENTRIES_MAX)] {
            let entries = Entry::parse_all(body(count).as_bytes(), most);
            assert_eq!(entries.expect("as many as may be").len(), count);
            let refused = Entry::parse_all(body(count + 1).as_bytes(), most);
            let Err(StoreError::Broken(why)) = refused else {
                panic!("{refused:?}");
            };
            assert!(why.to_string().contains(&format!("at most {most} keys")));
        }
        let deep = r#"[{"Key":"a","ModifyIndex":1,"Other":["#.to_owned() + &"[],".repeat(200);
        assert!(Entry::parse_all((deep + "0]}]").as_bytes(), 1).is_err());
    }

    #[test]
    fn a_transaction_says_its_index_or_why_it_was_rolled_back() {
        let done = json!({"Results": [{"KV": {"Key": "a", "ModifyIndex": 12}}], "Errors": null});
        assert_eq!(written(&done), Some(12));
        assert_eq!(written(&json!({"Results": null})), None);
        let failed = |what: &str| json!({"Errors": [{"OpIndex": 0, "What": what}]});
        for stale in [
            "failed to set key \"a\", index is stale",
            "failed index check for key \"a\", current modify index 5 != 7",
            "key \"a\" doesn't exist",
        ] {
            assert_eq!(rolled_back(&failed(stale)), Ok(()), "{stale}");
        }
        let denied = rolled_back(&failed("Permission denied"));
        assert_eq!(denied, Err("Permission denied".into()));
    }
}
