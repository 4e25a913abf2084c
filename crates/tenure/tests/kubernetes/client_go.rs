//! A candidate that does what client-go's `leaderelection` does with a Lease: its
//! operations in their order, as `tools/leaderelection/leaderelection.go` and
//! `resourcelock/leaselock.go` have them (2026). Its clock is the test's: a look is one
//! `tryAcquireOrRenew`.
//!
//! A real one is in `go/`; see there how it is run.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::clock;
use tenure::core::time::Instant;

use super::standin::Kubernetes;

/// What client-go keeps of a Lease: `LeaderElectionRecord`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Record {
    holder: String,
    seconds: i64,
    /// As its JSON has them: without parts of a second.
    acquired: String,
    renewed: String,
    transitions: i64,
}

pub(crate) struct ClientGo<'a> {
    server: &'a Kubernetes,
    identity: &'a str,
    lease: Value,
    observed: Option<Record>,
    observed_at: Instant,
    looks: i64,
}

/// What it asks the others to wait, in seconds.
pub(crate) const LEASE_SECONDS: i64 = 2;
const ALL: &str = "/apis/coordination.k8s.io/v1/namespaces/n/leases";

impl<'a> ClientGo<'a> {
    pub(crate) fn new(server: &'a Kubernetes, identity: &'a str) -> Self {
        Self {
            server,
            identity,
            lease: Value::Null,
            observed: None,
            observed_at: clock::boot(),
            looks: 0,
        }
    }

    pub(crate) fn is_leader(&self) -> bool {
        let observed = self.observed.as_ref();
        observed.is_some_and(|it| it.holder == self.identity)
    }

    /// `tryAcquireOrRenew`: whether it leads.
    pub(crate) fn look(&mut self) -> bool {
        self.looks += 1;
        let now = self.now();
        let mut wanted = Record {
            holder: self.identity.to_owned(),
            seconds: LEASE_SECONDS,
            acquired: now.clone(),
            renewed: now,
            transitions: 0,
        };
        if self.is_leader() && self.is_valid() {
            let observed = self.observed.clone().expect("a leader has observed");
            let known = Record {
                acquired: observed.acquired,
                transitions: observed.transitions,
                ..wanted.clone()
            };
            if self.update(&known) {
                return true;
            }
        }
        let (code, lease) = self
            .server
            .call("GET", &format!("{ALL}/payroll"), &Value::Null);
        if code == 404 {
            let made = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "payroll", "namespace": "n"}, "spec": spec(&wanted),
            });
            let (code, lease) = self.server.call("POST", ALL, &made);
            return code == 201 && self.take(lease, wanted);
        }
        self.lease = lease;
        let old = record(&self.lease);
        if self.observed.as_ref() != Some(&old) {
            self.observe(old.clone());
        }
        if !old.holder.is_empty() && self.is_valid() && !self.is_leader() {
            return false;
        }
        wanted.transitions = old.transitions;
        if self.is_leader() {
            wanted.acquired = old.acquired;
        } else {
            wanted.transitions += 1;
        }
        self.update(&wanted)
    }

    /// `release`.
    pub(crate) fn release(&mut self) {
        let (_, lease) = self
            .server
            .call("GET", &format!("{ALL}/payroll"), &Value::Null);
        self.lease = lease;
        let now = self.now();
        let released = Record {
            holder: String::new(),
            seconds: 1,
            acquired: now.clone(),
            renewed: now,
            transitions: record(&self.lease).transitions,
        };
        assert!(self.update(&released), "it is released");
    }

    /// A time of its own for each look, an hour ahead of ours.
    fn now(&self) -> String {
        format!(
            "2036-01-01T{:02}:{:02}:{:02}.000007Z",
            self.looks / 3_600,
            self.looks / 60 % 60,
            self.looks % 60
        )
    }

    fn is_valid(&self) -> bool {
        let seconds = self.observed.as_ref().map_or(0, |it| it.seconds);
        let lease = Duration::from_secs(u64::try_from(seconds).expect("a duration"));
        clock::boot() < self.observed_at.after(lease)
    }

    fn observe(&mut self, record: Record) {
        self.observed = Some(record);
        self.observed_at = clock::boot();
    }

    fn take(&mut self, lease: Value, record: Record) -> bool {
        self.lease = lease;
        self.observe(record);
        true
    }

    /// `LeaseLock.Update`: the object as it was read, with another spec.
    fn update(&mut self, wanted: &Record) -> bool {
        self.lease["spec"] = spec(wanted);
        let path = format!("{ALL}/payroll");
        let (code, lease) = self.server.call("PUT", &path, &self.lease);
        code == 200 && self.take(lease, wanted.clone())
    }
}

fn spec(record: &Record) -> Value {
    let micros = |time: &str| match time.contains('.') {
        true => time.to_owned(),
        false => time.replace('Z', ".000000Z"),
    };
    json!({
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.seconds,
        "acquireTime": micros(&record.acquired),
        "renewTime": micros(&record.renewed),
        "leaseTransitions": record.transitions,
    })
}

/// `LeaseSpecToLeaderElectionRecord`, and its JSON.
fn record(lease: &Value) -> Record {
    let spec = &lease["spec"];
    let time = |name: &str| {
        let text = spec[name].as_str().unwrap_or_default();
        let (seconds, _) = text.split_once('.').unwrap_or((text, ""));
        format!("{seconds}Z")
    };
    Record {
        holder: spec["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        seconds: spec["leaseDurationSeconds"].as_i64().unwrap_or(0),
        acquired: time("acquireTime"),
        renewed: time("renewTime"),
        transitions: spec["leaseTransitions"].as_i64().unwrap_or(0),
    }
}
