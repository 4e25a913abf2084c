//! Whether the server can lose a write that it has acknowledged.
//!
//! Redis acknowledges a write when it is in memory. It is kept if the server
//! writes its log (`appendonly yes`) and syncs it before it answers
//! (`appendfsync always`), if it drops no keys for want of memory, and if no
//! replica takes its place, which may lack the newest writes. None of these can be
//! asked for with a write, so they are looked at, and what is not so is said.

use ::redis::Value;

use super::registers::{bytes, list, text};

/// What was asked of a server, in this order: `INFO`, and `CONFIG GET` of these.
pub(super) const ASKED: [&str; 4] = [
    "appendonly",
    "appendfsync",
    "maxmemory-policy",
    "no-appendfsync-on-rewrite",
];

/// What a server says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Facts {
    /// Whether it is a part of a cluster of Redis, by `INFO`.
    pub(super) is_clustered: bool,
    /// What is known of its settings, in the order of [`ASKED`].
    settings: [Option<String>; 4],
    /// How many replicas there are; `None` if it does not say.
    replicas: Option<u64>,
    /// Whether replicas are promoted by sentinels.
    by_sentinels: bool,
}

impl Facts {
    /// From the answers. A server may refuse either, and managed ones refuse
    /// `CONFIG`; `INFO` then tells some of the same.
    pub(super) fn new(info: &Value, settings: &[Value], by_sentinels: bool) -> Self {
        let info = bytes(info).map(String::from_utf8_lossy).unwrap_or_default();
        let field = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.split_once(':'));
            lines
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.trim())
        };
        let got = |at: usize| match settings.get(at).and_then(list) {
            Some([_, value]) => text(value).map(str::to_owned),
            _ => None,
        };
        let appendonly = field("aof_enabled").map(|on| if on == "1" { "yes" } else { "no" });
        Self {
            is_clustered: field("cluster_enabled") == Some("1"),
            settings: [
                got(0).or_else(|| appendonly.map(str::to_owned)),
                got(1),
                got(2).or_else(|| field("maxmemory_policy").map(str::to_owned)),
                got(3),
            ],
            replicas: field("connected_slaves").and_then(|number| number.parse().ok()),
            by_sentinels,
        }
    }

    /// How it can lose acknowledged writes, as far as it says; `None` if it cannot.
    pub(super) fn warning(&self) -> Option<String> {
        let mut ways = Vec::new();
        let [appendonly, appendfsync, policy, unsynced] = &self.settings;
        match (appendonly.as_deref(), appendfsync.as_deref()) {
            (Some("no"), _) => ways.push(
                "expected `appendonly yes` and `appendfsync always`, found no log: when it ends, \
                 all since its last snapshot is lost"
                    .to_owned(),
            ),
            (_, Some("always")) | (None, None) => {}
            (_, Some(other)) => ways.push(format!(
                "expected `appendfsync always`, found {other}: when its machine fails, the \
                 newest writes are lost"
            )),
            (Some(_), None) => {}
        }
        let is_synced = appendonly.as_deref() != Some("no");
        if is_synced && unsynced.as_deref() == Some("yes") {
            ways.push(
                "expected `no-appendfsync-on-rewrite no`, found yes: when its machine fails while \
                 the log is rewritten, the newest writes are lost"
                    .to_owned(),
            );
        }
        // `volatile-*` drops only keys that are to expire, of which ours are none.
        if let Some(policy) = policy.as_deref().filter(|it| it.starts_with("allkeys-")) {
            ways.push(format!(
                "expected `maxmemory-policy noeviction`, found {policy}: where memory runs out, \
                 registers are dropped"
            ));
        }
        if self.by_sentinels || self.replicas.is_some_and(|replicas| replicas > 0) {
            ways.push(
                "its replicas may lack the newest writes: when one takes its place, these are lost"
                    .to_owned(),
            );
        }
        let unknown = ASKED.iter().zip(&self.settings);
        let unknown = unknown.filter(|(_, found)| found.is_none());
        let unknown: Vec<_> = unknown.map(|(name, _)| *name).collect();
        if !unknown.is_empty() {
            ways.push(format!(
                "it does not let {} be looked at (CONFIG GET); expected yes, always, \
                 noeviction and no",
                unknown.join(", ")
            ));
        }
        (!ways.is_empty()).then(|| ways.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn config(values: [&str; 4]) -> Vec<Value> {
        let pairs = ASKED.into_iter().zip(values);
        let pair = |(name, value)| Value::Array(vec![bulk(name), bulk(value)]);
        pairs.map(pair).collect()
    }

    #[test]
    fn each_way_to_lose_a_write_is_told() {
        let alone = bulk("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n");
        let with = |values, info: &Value, by_sentinels| {
            Facts::new(info, &config(values), by_sentinels).warning()
        };
        let safe = ["yes", "always", "noeviction", "no"];
        assert_eq!(with(safe, &alone, false), None);
        assert_eq!(
            with(["yes", "always", "volatile-lru", "no"], &alone, false),
            None
        );
        let two = bulk("connected_slaves:2\r\n");
        for (warning, words) in [
            (
                with(["no", "always", "noeviction", "yes"], &alone, false),
                "found no log",
            ),
            (
                with(["yes", "everysec", "noeviction", "no"], &alone, false),
                "found everysec",
            ),
            (
                with(["yes", "always", "allkeys-lru", "no"], &alone, false),
                "found allkeys-lru",
            ),
            (
                with(["yes", "always", "noeviction", "yes"], &alone, false),
                "no-appendfsync-on-rewrite no`, found yes",
            ),
            (with(safe, &two, false), "replicas may lack"),
            (with(safe, &alone, true), "replicas may lack"),
        ] {
            let warning = warning.expect("a warning");
            assert!(warning.contains(words), "{words}: {warning}");
        }
    }

    #[test]
    fn what_cannot_be_looked_at_is_said() {
        let info = bulk("aof_enabled:0\r\nmaxmemory_policy:noeviction\r\nconnected_slaves:0\r\n");
        let facts = Facts::new(&info, &[Value::Nil, Value::Nil, Value::Nil], false);
        let warning = facts.warning().expect("a warning");
        assert!(warning.contains("found no log"), "{warning}");
        assert!(
            warning.contains("let appendfsync, no-appendfsync-on-rewrite be looked at"),
            "{warning}"
        );
        let facts = Facts::new(&Value::Nil, &[], false);
        let warning = facts.warning().expect("a warning");
        for name in ASKED {
            assert!(warning.contains(name), "{warning}");
        }
        let clustered = Facts::new(&bulk("cluster_enabled:1\r\n"), &[], false);
        assert!(clustered.is_clustered);
    }
}
