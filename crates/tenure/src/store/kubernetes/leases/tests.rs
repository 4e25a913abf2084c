//! Sequences of leaders of both kinds on one Lease, client-go's by its own rules
//! (`tools/leaderelection/leaderelection.go`, as of 2026): what each then sees.

use tenure_election::{LeaseJudge, Request};

use super::*;
use crate::store::Version;

const NOW: i64 = 1_763_700_000_000_000;

/// A server with one Lease.
#[derive(Clone, Default)]
struct Server {
    lease: Option<Value>,
    number: u64,
}

fn key() -> Key {
    Key::new("elections/payroll").expect("a key")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

impl Server {
    /// Writes what is there over, as the API server does it.
    fn put(&mut self, mut lease: Value) {
        self.number += 3;
        lease["metadata"]["resourceVersion"] = self.number.to_string().into();
        lease["metadata"]["uid"] = "a-uid".into();
        self.lease = Some(lease);
    }

    fn value(&self) -> Vec<u8> {
        let lease = self.lease.as_ref().expect("a Lease");
        decode(&key(), lease).expect("a register").value.to_vec()
    }

    fn record(&self) -> Record {
        let value = self.value();
        let text = String::from_utf8_lossy(&value);
        Record::decode(&value).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn spec(&self) -> Spec {
        Spec::of(self.lease.as_ref().expect("a Lease")).expect("a spec")
    }

    /// A write of Tenure.
    fn tenure(&mut self, record: &Record) {
        let encoded = encode(&key(), "n", &record.encode(), self.lease.as_ref());
        self.put(encoded.expect("a Lease"));
        assert_eq!(self.record(), *record);
    }

    /// The next leader of Tenure, or what it writes next.
    fn next(&self, id: u128, at: i64) -> Record {
        let before = self.lease.as_ref().map(|_| self.record());
        let sequence = before.as_ref().map_or(0, |it| it.sequence) + 1;
        let term = before.as_ref().map_or(Term::ZERO, |it| it.term);
        let held = before.filter(|it| it.holder().is_some_and(|it| it.id.to_u128() == id));
        let wall = WallTime::from_millis(u64::try_from(at / 1_000).expect("a time"));
        Record {
            election: name("payroll"),
            term: if held.is_some() {
                term
            } else {
                term.next().expect("a term")
            },
            sequence,
            renewal: sequence,
            lease: Duration::from_secs(10),
            acquired_at: held.as_ref().map_or(wall, |it| it.acquired_at),
            renewed_at: wall,
            occupancy: Occupancy::Held(Holder {
                id: LeaderId::from_u128(id),
                name: name("web-1"),
                addresses: [name("10.0.0.7:80")].into(),
                params: b"{}".as_slice().into(),
                request: None,
            }),
        }
    }

    /// A leader of client-go takes the Lease, or renews it.
    fn go(&mut self, identity: &str, at: i64) {
        let old = self.lease.as_ref().map(|_| self.spec());
        let is_own = old.as_ref().is_some_and(|old| old.holder == identity);
        let transitions = old.as_ref().map_or(0, |old| old.transitions);
        let spec = Spec {
            holder: identity.to_owned(),
            seconds: 15,
            acquired: if is_own {
                old.as_ref().and_then(|it| it.acquired)
            } else {
                Some(at)
            },
            renewed: Some(at),
            transitions: transitions + i64::from(old.is_some() && !is_own),
        };
        self.go_put(&spec);
    }

    /// A leader of client-go gives it up.
    fn go_releases(&mut self, at: i64) {
        let spec = Spec {
            holder: String::new(),
            seconds: 1,
            acquired: Some(at),
            renewed: Some(at),
            transitions: self.spec().transitions,
        };
        self.go_put(&spec);
    }

    /// It keeps the metadata, and the spec is the five fields.
    fn go_put(&mut self, spec: &Spec) {
        let fresh = json!({"metadata": {"name": "payroll", "namespace": "n"}});
        let mut lease = self.lease.clone().unwrap_or(fresh);
        lease["spec"] = json!({});
        spec.put_into(&mut lease);
        self.put(lease);
    }

    /// What client-go compares: times in whole seconds.
    fn seen_by_go(&self) -> (String, i64, Option<i64>, Option<i64>, i64) {
        let spec = self.spec();
        let seconds = |micros: Option<i64>| micros.map(|it| it.div_euclid(SECOND));
        let (acquired, renewed) = (seconds(spec.acquired), seconds(spec.renewed));
        (
            spec.holder,
            spec.seconds,
            acquired,
            renewed,
            spec.transitions,
        )
    }
}

#[test]
fn a_leader_of_ours_is_one_that_client_go_knows() {
    let mut server = Server::default();
    server.tenure(&server.next(7, NOW));
    let spec = server.spec();
    assert_eq!(spec.holder, "web-1_00000000000000000000000000000007");
    // The lease of 10 s and one hundredth, rounded up.
    assert_eq!((spec.seconds, spec.transitions), (11, 0));
    assert_eq!((spec.acquired, spec.renewed), (Some(NOW), Some(NOW)));
    // It renews, and then the calendar stands still, and goes back.
    for at in [
        NOW + 2 * SECOND,
        NOW + 2 * SECOND,
        NOW - 3_600 * SECOND,
        NOW + 2 * SECOND + 1,
    ] {
        let (before, renewed) = (server.seen_by_go(), server.spec().renewed);
        server.tenure(&server.next(7, at));
        assert_ne!(server.seen_by_go(), before, "client-go sees each renewal");
        assert!(server.spec().renewed > renewed);
        assert_eq!(server.spec().acquired, Some(NOW));
    }
    // It goes: anybody may take it at once.
    let mut vacant = server.next(7, NOW + 20 * SECOND);
    vacant.occupancy = Occupancy::Vacant {
        successor: Some(name("web-2")),
    };
    server.tenure(&vacant);
    assert_eq!(
        (server.spec().holder.as_str(), server.spec().transitions),
        ("", 0)
    );
    server.go("go-1", NOW + 21 * SECOND);
    assert_eq!(server.record().term.get(), 2);
}

#[test]
fn a_leader_of_client_go_is_one_that_tenure_knows() {
    let mut server = Server::default();
    server.go("go-1", NOW);
    let first = server.record();
    assert_eq!(
        (first.term.get(), first.lease),
        (Term::new(1).expect("a term").get(), Duration::from_secs(15))
    );
    let holder = first.holder().expect("a holder").clone();
    assert_eq!((holder.name.as_str(), holder.request), ("go-1", None));
    // A renewal is one, and somebody's annotation is none.
    server.go("go-1", NOW + 1);
    let second = server.record();
    assert_eq!(second.leader(), first.leader());
    assert!(second.renewal != first.renewal && second.sequence > first.sequence);
    let mut lease = server.lease.clone().expect("a Lease");
    lease["metadata"]["annotations"] = json!({"somebody": "else"});
    server.put(lease);
    let third = server.record();
    assert_eq!(
        (third.renewal, third.leader()),
        (second.renewal, second.leader())
    );
    assert!(third.sequence > second.sequence);
    // It releases it, and takes it again: another leadership.
    server.go_releases(NOW + 2);
    assert_eq!(
        server.record().occupancy,
        Occupancy::Vacant { successor: None }
    );
    assert_eq!(server.record().term.get(), 1);
    server.go("go-1", NOW + 3);
    assert_eq!(server.record().term.get(), 2);
    assert_ne!(
        server.record().leader().map(|it| it.id),
        first.leader().map(|it| it.id)
    );
    // The somebody's annotation is still there after a write of ours.
    server.tenure(&server.next(9, NOW + 4));
    let lease = server.lease.as_ref().expect("a Lease");
    assert_eq!(object::annotation(lease, "somebody"), Some("else"));
    assert_eq!(
        (server.record().term.get(), server.spec().transitions),
        (3, 2)
    );
}

/// Numbers that look random, and are the same each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        let product = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = product.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

impl Server {
    /// One thing happens. Whether somebody has written the record.
    fn happens(&mut self, draw: &mut Draw, at: i64) -> bool {
        let choices = if self.lease.is_none() { 2 } else { 7 };
        match draw.below(choices) {
            0 | 6 => self.tenure(&self.next(u128::from(draw.below(3)) + 1, at)),
            1 => self.go(if draw.below(2) == 0 { "go-1" } else { "go-2" }, at),
            2 => self.go_releases(at),
            3 => {
                // A leader goes, and at times leaves a gap, as a repair does.
                let mut vacant = self.next(9, at);
                let gap = draw.below(2) * draw.below(99);
                vacant.term = Term::new(self.record().term.get() + gap).expect("a term");
                vacant.occupancy = Occupancy::Vacant { successor: None };
                self.tenure(&vacant);
            }
            4 => self.is_asked(),
            _ => {
                let mut lease = self.lease.clone().expect("a Lease");
                lease["metadata"]["labels"] = json!({"a": draw.below(99).to_string()});
                self.put(lease);
                return false;
            }
        }
        true
    }

    /// A request to the leader, which is no renewal for anybody.
    fn is_asked(&mut self) {
        let mut asked = self.record();
        asked.sequence += 1;
        if let Occupancy::Held(holder) = &mut asked.occupancy {
            holder.request = Some(Request::Resign);
        }
        let (seen, renewal) = (self.seen_by_go(), asked.renewal);
        self.tenure(&asked);
        // What another released is put right.
        let is_released = seen.0.is_empty() && asked.holder().is_some();
        assert!(
            is_released || self.seen_by_go() == seen,
            "none for client-go"
        );
        assert_eq!(self.record().renewal, renewal, "and none for tenure");
    }
}

/// Any sequence of both kinds: each leader has a higher term than all before it, and
/// each write a higher sequence.
#[test]
fn terms_and_sequences_grow_over_all_leaders() {
    let mut draw = Draw(1);
    let mut leaders = 0;
    for _ in 0..300 {
        let mut server = Server {
            number: draw.below(1_000),
            ..Server::default()
        };
        let (mut top, mut sequence, mut at) = (None::<(Term, LeaderId)>, 0, NOW);
        for _ in 0..60 {
            at += i64::try_from(draw.below(3_000_000)).expect("a time") - 500_000;
            server.number += draw.below(50);
            let is_written = server.happens(&mut draw, at);
            let record = server.record();
            assert!(
                record.sequence >= sequence + u64::from(is_written),
                "{record:?}"
            );
            sequence = record.sequence;
            let term = top.map_or(Term::ZERO, |(term, _)| term);
            assert!(record.term >= term, "{top:?} {record:?}");
            let leads = record.leader().map(|leader| (leader.term, leader.id));
            if leads.is_some() && leads != top {
                assert!(record.term > term, "{top:?} {record:?}");
                top = leads;
                leaders += 1;
            }
        }
    }
    assert!(leaders > 5_000, "{leaders} leaders");
}

#[test]
fn an_annotation_that_is_stale_is_not_believed() {
    let mut server = Server::default();
    server.tenure(&server.next(7, NOW));
    let ours = server.lease.clone().expect("a Lease");
    for change in [
        json!({"holderIdentity": "go-1", "leaseTransitions": 1}),
        json!({"renewTime": "2026-01-01T00:00:00Z"}),
        json!({"leaseDurationSeconds": 60}),
    ] {
        let mut lease = ours.clone();
        for (name, value) in change.as_object().expect("fields") {
            lease["spec"][name] = value.clone();
        }
        let before = server.record();
        let mut changed = server.clone();
        changed.put(lease);
        let after = changed.record();
        assert!(
            after.renewal != before.renewal && after.sequence > before.sequence,
            "{change}"
        );
        assert_eq!(after.holder().expect("a holder").addresses.len(), 0);
        let is_same = after.leader().map(|it| it.id) == before.leader().map(|it| it.id);
        assert_eq!(is_same, change.get("holderIdentity").is_none(), "{change}");
    }
    // Neither is one that was changed by hand, whose spec is as it was.
    let mut lease = ours.clone();
    let forged = server.record().encode();
    let forged = String::from_utf8_lossy(&forged).replace("web-1", "web-9");
    lease["metadata"]["annotations"][VALUE] = forged.into();
    let mut changed = server.clone();
    changed.put(lease);
    assert_eq!(
        changed
            .record()
            .holder()
            .map(|it| it.name.as_str().to_owned()),
        Some("web-1".into())
    );
}

#[test]
fn what_breaks_the_rule_of_transitions_has_no_term() {
    let mut server = Server::default();
    server.tenure(&server.next(7, NOW));
    server.tenure(&server.next(8, NOW + SECOND));
    assert_eq!(server.spec().transitions, 1);
    let spec = server.spec();
    for (holder, transitions, words) in [
        ("go-1", 1, "set leaseTransitions to 2"),
        ("go-1", 0, "set back"),
        ("", 0, "set back"),
    ] {
        let mut changed = server.clone();
        changed.go_put(&Spec {
            holder: holder.into(),
            transitions,
            ..spec.clone()
        });
        let value = changed.value();
        let text = String::from_utf8_lossy(&value);
        assert!(
            Record::decode(&value).is_err() && text.contains(words),
            "{text}"
        );
        let lease = changed.lease.as_ref().expect("a Lease");
        let refused = decode_one(&key(), lease);
        assert!(
            matches!(&refused, Err(StoreError::Broken(why)) if why.to_string() == text),
            "{refused:?}"
        );
    }
    let mut lease = server.lease.clone().expect("a Lease");
    lease["metadata"]["annotations"][WRITTEN] = "term=1".into();
    server.put(lease);
    assert!(Record::decode(&server.value()).is_err());
    let mut week = Server::default();
    week.go_put(&Spec {
        holder: "go-1".into(),
        seconds: 604_801,
        ..Spec::default()
    });
    assert!(Record::decode(&week.value()).is_err());
}

#[test]
fn a_release_over_a_leader_of_ours_takes_nothing_from_it() {
    let mut server = Server::default();
    server.go("go-1", NOW);
    server.tenure(&server.next(7, NOW + SECOND));
    let led = server.record();
    // It had lost the Lease, looked again, and released what it found.
    server.go_releases(NOW + 2 * SECOND);
    let found = server.record();
    assert_eq!((found.leader(), found.renewal), (led.leader(), led.renewal));
    assert!(found.sequence > led.sequence);
    // The leader renews, and is one for client-go again.
    server.tenure(&server.next(7, NOW + 3 * SECOND));
    assert!(server.spec().holder.starts_with("web-1_"));
    assert_eq!(
        (server.record().term, server.spec().transitions),
        (led.term, 1)
    );
    // Of a leader of its own, to whom we only wrote a request, a release is one.
    server.go("go-2", NOW + 4 * SECOND);
    let mut asked = server.record();
    asked.sequence += 1;
    if let Occupancy::Held(holder) = &mut asked.occupancy {
        holder.request = Some(Request::Resign);
    }
    server.tenure(&asked);
    server.go("go-2", NOW + 5 * SECOND);
    assert_eq!(server.record().leader(), asked.leader());
    server.tenure(&Record {
        sequence: server.record().sequence + 1,
        ..server.record()
    });
    server.go_releases(NOW + 6 * SECOND);
    assert_eq!(server.record().holder(), None);
}

#[test]
fn other_values_and_fields_come_back() {
    let mut server = Server::default();
    let put = |server: &mut Server, value: &[u8]| {
        let encoded = encode(&key(), "n", value, server.lease.as_ref());
        server.put(encoded.expect("a Lease"));
        assert_eq!(server.value(), value);
    };
    put(&mut server, b"\0\xffgarbage");
    put(&mut server, b"text");
    put(&mut server, b"");
    server.go("go-1", NOW);
    assert_eq!(server.record().term.get(), 2);
    put(&mut server, b"garbage");
    assert_eq!(server.spec().holder, "go-1");
    server.go("go-1", NOW + SECOND);
    assert_eq!(server.record().term.get(), 2);
    // A record of another election is a value like any other.
    let mut other = server.next(7, NOW);
    other.election = name("another");
    put(&mut server, &other.encode());
    let refused = encode(&key(), "n", &vec![b'x'; VALUE_MAX + 1], None);
    assert!(matches!(refused, Err(StoreError::Broken(_))));
    let mut lease = server.lease.clone().expect("a Lease");
    lease["spec"]["strategy"] = "OldestEmulationVersion".into();
    lease["metadata"]["ownerReferences"] = json!([{"uid": "o"}]);
    server.put(lease);
    server.tenure(&server.next(7, NOW));
    let lease = server.lease.clone().expect("a Lease");
    assert_eq!(lease["spec"]["strategy"], "OldestEmulationVersion");
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "o");
    // The field for transitions is full.
    server.go_put(&Spec {
        holder: "go-1".into(),
        seconds: 15,
        transitions: TRANSITIONS_MAX,
        ..Spec::default()
    });
    let term = server.record().term.get();
    server.tenure(&server.next(8, NOW));
    assert_eq!(
        (server.record().term.get(), server.spec().transitions),
        (term + 1, 0)
    );
    server.go("go-1", NOW);
    assert_eq!(server.record().term.get(), term + 2);
}

#[test]
fn a_candidate_judges_a_leader_of_client_go_by_silence() {
    use tenure_core::cas::Reading;
    use tenure_core::time::{Instant, Now};
    let config = tenure_election::Config::new(name("payroll"), name("me"));
    let mut server = Server::default();
    server.go("go-1", NOW);
    let mut judge = LeaseJudge::new();
    let mut look = |server: &Server, seconds: u64| {
        let boot = Instant::from_nanos(seconds * 1_000_000_000);
        let now = Now {
            boot,
            ..Now::default()
        };
        let register = decode(&key(), server.lease.as_ref().expect("a Lease"));
        let reading = Reading {
            register: register.ok(),
            ..Reading::default()
        };
        judge.read(&config, now, boot, &reading);
        judge.leader().map(|leader| leader.name.as_str().to_owned())
    };
    assert_eq!(look(&server, 10).as_deref(), Some("go-1"));
    assert_eq!(look(&server, 25).as_deref(), Some("go-1"));
    server.go("go-1", NOW + 1);
    assert_eq!(look(&server, 26).as_deref(), Some("go-1"));
    // Somebody's annotation does not keep it.
    let mut lease = server.lease.clone().expect("a Lease");
    lease["metadata"]["labels"] = json!({"a": "b"});
    server.put(lease);
    assert_eq!(look(&server, 41).as_deref(), Some("go-1"));
    assert_eq!(look(&server, 42), None);
    assert_ne!(Version::from_u64(1), object::version_at(1));
}

/// An edit of the field alone, and of the times with it, on a grant of 10 s.
#[test]
fn a_lease_of_ours_that_a_person_shortens_lasts_as_long_as_its_leader_leads() {
    let mut server = Server::default();
    server.tenure(&server.next(7, NOW));
    for (seconds, renewed, lease) in [
        (1, NOW, 10),
        (0, NOW, 15),
        (1, NOW + 9 * SECOND, 10),
        (60, NOW, 60),
        (2, NOW, 10),
    ] {
        let spec = Spec {
            seconds,
            renewed: Some(renewed),
            ..server.spec()
        };
        server.go_put(&spec);
        let lease = Duration::from_secs(lease);
        assert_eq!(server.record().lease, lease, "{seconds} {renewed}");
    }
    // A request is written over it, and the lease stays.
    server.is_asked();
    assert_eq!(server.record().lease, Duration::from_secs(10));
    // The annotation is still there, and of no holder that came later.
    let spec = Spec {
        seconds: 3,
        ..server.spec()
    };
    for (holder, transitions) in [("go-1", 1), (spec.holder.as_str(), 1)] {
        let mut taken = server.clone();
        taken.go_put(&Spec {
            holder: holder.into(),
            transitions,
            ..spec.clone()
        });
        assert_eq!(taken.record().lease, Duration::from_secs(3), "{holder}");
    }
    // Of a leader in Go the field counts, also where we have written a request to it.
    server.go("go-1", NOW + 20 * SECOND);
    server.is_asked();
    let spec = Spec {
        seconds: 1,
        ..server.spec()
    };
    server.go_put(&spec);
    assert_eq!(server.record().lease, Duration::from_secs(1));
}
