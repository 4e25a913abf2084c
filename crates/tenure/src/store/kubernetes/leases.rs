//! Elections: one Lease each, which candidates of client-go's `leaderelection` contend
//! for as well.
//!
//! # What is written
//!
//! A Lease's spec has what client-go reads and writes: `holderIdentity`,
//! `leaseDurationSeconds`, `acquireTime`, `renewTime` and `leaseTransitions`. The whole
//! register stands in an annotation, and beside it what a reader needs to go on from
//! it, with a digest of both and of the spec. Client-go's updates keep annotations and
//! change the spec. Then the digest does not match: **the annotation is stale, and the
//! spec is believed**. The digest cannot match again by chance: client-go writes an
//! identity that no candidate of Tenure has, and a Lease that client-go has taken and
//! released has a higher `leaseTransitions` than when Tenure wrote it.
//!
//! # Terms
//!
//! The term is `leaseTransitions` and an offset: where Tenure has never written it is
//! `leaseTransitions + 1`, else the term of the stale record and the transitions since
//! it was written. Client-go counts one transition up whenever it takes a Lease that
//! another identity held, or nobody, and leaves them alone otherwise. Tenure does the
//! same with each term. So each leader has a higher term than the one before it, of
//! either kind: between two writes of Tenure by the transitions, and
//! with a write of Tenure by its own rule. What breaks the rule has no term: fewer
//! transitions than there were, or another holder with as many. A read of it fails and
//! says what is wrong; lists and watches show a register that is no record. No candidate of
//! Tenure writes over it.
//!
//! # Silence
//!
//! Both kinds judge a holder by how long its record has not changed, on their own
//! clocks. Tenure's candidates see a renewal when any of the five fields has changed;
//! not when somebody has changed an annotation. Client-go sees `renewTime` **in whole
//! seconds**, since it compares the JSON of its record. So each renewal of ours moves
//! it by a second at least, whatever the calendar says; with leases below five seconds
//! it runs ahead of the calendar. A request to a leader moves nothing that client-go
//! sees. `leaseDurationSeconds` is the lease and the bound on how far clocks drift,
//! rounded up. (Client-go before 0.27 waits for its *own* `LeaseDuration`, whatever
//! the Lease says.)
//!
//! **A person who shortens `leaseDurationSeconds` under a leader of Tenure does not
//! shorten its lease**. The leader learns of the edit only when it next renews. Each of
//! its renewals writes the annotation, and nobody else writes its identity. So where
//! the holder is the one in the annotation's record, in the same transitions, that
//! record is of the holder's last renewal, and the longer of the two leases counts.
//! client-go leaves the annotation as it is when it renews, so of its holders the spec
//! alone counts.
//!
//! # A release by another
//!
//! Client-go releases a Lease that it believes to hold, but looks at it again right
//! before, and then overwrites the holder that has taken it since. That leaves a Lease
//! without a holder and with the transitions of a leader of Tenure, who still leads.
//! It is shown as held by that leader, who renews it.

use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tenure_core::ids::{LeaderId, Name, Term};
use tenure_core::time::{Drift, WallTime};
use tenure_election::{Holder, Occupancy, Record};

use super::object;
use super::times::{self, SECOND};
use crate::error::StoreError;
use crate::store::{Key, Register};

/// The annotation with the value, if it is text, and if it is not.
const VALUE: &str = "tenure/value";
const VALUE_BASE64: &str = "tenure/value-base64";
/// The annotation with what goes beside it.
const WRITTEN: &str = "tenure/written";
/// The largest value. All annotations of an object have 256 KiB together.
pub(super) const VALUE_MAX: usize = 128 * 1024;
/// Assumed where `leaseDurationSeconds` is missing or 0: what client-go recommends.
const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(15);
/// The duration of a Lease that nobody holds, as client-go writes it.
const RELEASED_SECONDS: u64 = 1;
/// The most transitions that the field has room for.
const TRANSITIONS_MAX: i64 = i32::MAX as i64;

/// What client-go reads and writes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Spec {
    /// Nobody, if it is empty.
    holder: String,
    seconds: i64,
    /// In microseconds since 1970.
    acquired: Option<i64>,
    renewed: Option<i64>,
    transitions: i64,
}

impl Spec {
    /// The spec of a Lease; a field that is missing has the value that client-go takes
    /// it for.
    fn of(lease: &Value) -> Result<Self, String> {
        let field = |name: &str| {
            let spec = lease.get("spec")?;
            spec.get(name).filter(|value| !value.is_null())
        };
        let wrong = |name: &str| format!("another {name} than Kubernetes writes");
        let number = |name: &str| match field(name) {
            None => Ok(0),
            Some(value) => value.as_i64().ok_or_else(|| wrong(name)),
        };
        let time = |name: &str| match field(name) {
            None => Ok(None),
            Some(value) => {
                let time = value.as_str().and_then(times::parse);
                time.map(Some).ok_or_else(|| wrong(name))
            }
        };
        let holder = match field("holderIdentity") {
            None => "",
            Some(value) => value.as_str().ok_or_else(|| wrong("holderIdentity"))?,
        };
        Ok(Self {
            holder: holder.to_owned(),
            seconds: number("leaseDurationSeconds")?,
            acquired: time("acquireTime")?,
            renewed: time("renewTime")?,
            transitions: number("leaseTransitions")?,
        })
    }

    /// One form for each.
    fn text(&self) -> String {
        let Self {
            holder,
            seconds,
            acquired,
            renewed,
            transitions,
        } = self;
        format!("{seconds} {acquired:?} {renewed:?} {transitions} {holder}")
    }

    /// Writes it over the five fields; others are left.
    fn put_into(&self, lease: &mut Value) {
        let Some(spec) = object::part(lease, "spec") else {
            return;
        };
        let time = |micros: Option<i64>| micros.map_or(Value::Null, |it| times::format(it).into());
        for (name, value) in [
            ("holderIdentity", json!(self.holder)),
            (
                "leaseDurationSeconds",
                match self.seconds {
                    // It stays unsaid.
                    ..=0 => Value::Null,
                    seconds => json!(seconds),
                },
            ),
            ("acquireTime", time(self.acquired)),
            ("renewTime", time(self.renewed)),
            ("leaseTransitions", json!(self.transitions)),
        ] {
            spec.insert(name.to_owned(), value);
        }
    }
}

/// What a reader of a stale register needs to go on from it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Written {
    /// The term at these transitions.
    term: u64,
    transitions: i64,
    sequence: u64,
    /// The number of the version that was replaced, and so below that of the write.
    after: u64,
    digest: String,
}

impl Written {
    /// Where Tenure has never written.
    fn never() -> Self {
        Self {
            term: 1,
            transitions: 0,
            sequence: 0,
            after: 0,
            digest: String::new(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut field = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
        let written = Self {
            term: field("term")?.parse().ok()?,
            transitions: field("transitions")?.parse().ok()?,
            sequence: field("sequence")?.parse().ok()?,
            after: field("after")?.parse().ok()?,
            digest: field("digest")?.to_owned(),
        };
        words.next().is_none().then_some(written)
    }

    fn head(&self) -> String {
        let Self {
            term,
            transitions,
            sequence,
            after,
            ..
        } = self;
        format!("term={term} transitions={transitions} sequence={sequence} after={after}")
    }

    fn text(&self) -> String {
        format!("{} digest={}", self.head(), self.digest)
    }

    /// What binds it, a spec and a value together.
    fn digest_with(&self, spec: &Spec, value: &[u8]) -> String {
        let (head, spec) = (self.head(), spec.text());
        let digest = digest(&[head.as_bytes(), spec.as_bytes(), value]);
        digest.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The term at other transitions, later ones.
    fn term_at(&self, transitions: i64) -> Option<Term> {
        let since = u64::try_from(transitions.checked_sub(self.transitions)?).ok()?;
        Term::new(self.term.checked_add(since)?)
    }

    /// The sequence of what was written later by others, under this version. It grows
    /// with each version.
    fn sequence_at(&self, number: u64) -> u64 {
        // A number below is of another cluster, to which the Lease was moved.
        let since = number.checked_sub(self.after).unwrap_or(number);
        let sequence = self.sequence.saturating_add(since);
        sequence.min(Record::SEQUENCE_MAX)
    }
}

/// A digest of all parts, each with its length.
fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// What a Lease shows.
struct Shown {
    spec: Spec,
    term: u64,
    sequence: u64,
    record: Option<Record>,
    value: Vec<u8>,
}

/// The register that a Lease holds, for lists and watches: one without a term troubles
/// its own election alone.
pub(super) fn decode(key: &Key, lease: &Value) -> Result<Register, StoreError> {
    let version = object::state(lease)?.version();
    let value = match look(key, lease) {
        Ok(shown) => shown.value,
        // No record, and so nobody writes over it.
        Err(found) => not_an_election(&found).into_bytes(),
    };
    Ok(Register {
        value: value.into(),
        version,
        stamp: None,
    })
}

/// The same for who reads this one. The error says what is wrong with a Lease: of a value
/// that is no record others could only say that it is none.
pub(super) fn decode_one(key: &Key, lease: &Value) -> Result<Register, StoreError> {
    let version = object::state(lease)?.version();
    let shown = look(key, lease).map_err(|found| StoreError::broken(not_an_election(&found)))?;
    Ok(Register {
        value: shown.value.into(),
        version,
        stamp: None,
    })
}

fn not_an_election(found: &str) -> String {
    format!("expected the Lease of an election, found {found}")
}

/// What a Lease shows, or what was found that makes it none.
fn look(key: &Key, lease: &Value) -> Result<Shown, String> {
    let spec = Spec::of(lease)?;
    let state = object::state(lease).map_err(|error| error.to_string())?;
    let value = match object::annotation(lease, VALUE_BASE64) {
        Some(text) => STANDARD.decode(text).ok(),
        None => object::annotation(lease, VALUE).map(|text| text.as_bytes().to_vec()),
    };
    let last = value.as_deref().and_then(|value| record_of(key, value));
    let written = match object::annotation(lease, WRITTEN) {
        None => Written::never(),
        Some(text) => {
            let changed = || format!("the annotation {WRITTEN} as no tenure writes it");
            Written::parse(text).ok_or_else(changed)?
        }
    };
    if let Some(value) = value
        && written.digest == written.digest_with(&spec, &value)
    {
        return Ok(Shown {
            spec,
            term: written.term,
            sequence: written.sequence,
            record: last,
            value,
        });
    }
    let election = key.election().ok_or("a name that is none of an election")?;
    let found = Found {
        election,
        uid: &state.uid,
        number: state.number,
        written,
        last,
    };
    found.derive(spec)
}

/// The record in a value, if it is one of this election.
fn record_of(key: &Key, value: &[u8]) -> Option<Record> {
    let record = Record::decode(value).ok()?;
    (key.election().as_ref() == Some(&record.election)).then_some(record)
}

/// A Lease that others have written since Tenure has, if it ever has.
struct Found<'a> {
    election: Name,
    uid: &'a str,
    number: u64,
    written: Written,
    /// The record that Tenure wrote last.
    last: Option<Record>,
}

impl Found<'_> {
    fn derive(self, spec: Spec) -> Result<Shown, String> {
        let before = self.written.transitions;
        let Some(term) = self.written.term_at(spec.transitions) else {
            return Err(format!(
                "leaseTransitions {} after {before}: it was set back, so terms would fall; delete \
                 the Lease and run `tenure repair {} --create --term-above {}`",
                spec.transitions, self.election, self.written.term
            ));
        };
        let is_moved = spec.transitions > before;
        let last = self.last.as_ref().filter(|_| !is_moved);
        let held = last.and_then(Record::holder);
        let sequence = self.written.sequence_at(self.number);
        let record = match (spec.holder.as_str(), held) {
            // Another released what a leader of ours holds.
            ("", Some(holder)) if !self.is_foreign(holder, term) => Record {
                sequence,
                ..last.ok_or("no record")?.clone()
            },
            ("", _) => {
                let vacant = Occupancy::Vacant { successor: None };
                self.record(&spec, term, sequence, Duration::ZERO, vacant)?
            }
            (identity, _) => {
                let id = id_of(self.uid, identity, term);
                if last.is_some() && held.map(|holder| holder.id) != Some(id) {
                    return Err(format!(
                        "holderIdentity {identity:?} in place of another, with leaseTransitions \
                         {before} as before: a client that acquires a Lease must increment it, as \
                         client-go does; when the previous holder has ended, or its lease has \
                         expired, set leaseTransitions to {} (kubectl edit)",
                        before.saturating_add(1)
                    ));
                }
                let holder = Holder {
                    id,
                    name: name_of(identity)?,
                    addresses: [].into(),
                    params: [].as_slice().into(),
                    request: None,
                };
                let own = last.filter(|_| held.is_some_and(|it| !self.is_foreign(it, term)));
                let least = own.map_or(Duration::ZERO, |record| record.lease);
                self.record(&spec, term, sequence, least, Occupancy::Held(holder))?
            }
        };
        Ok(Shown {
            spec,
            term: term.get(),
            sequence,
            value: record.encode().to_vec(),
            record: Some(record),
        })
    }

    /// Whether a holder is none of Tenure's: then its id is made of its name.
    fn is_foreign(&self, holder: &Holder, term: Term) -> bool {
        holder.id == id_of(self.uid, holder.name.as_str(), term)
    }

    /// The record of a spec, whose lease is `least` at least.
    fn record(
        &self,
        spec: &Spec,
        term: Term,
        sequence: u64,
        least: Duration,
        occupancy: Occupancy,
    ) -> Result<Record, String> {
        let said = match (u64::try_from(spec.seconds), &occupancy) {
            (_, Occupancy::Vacant { .. }) => Duration::from_secs(RELEASED_SECONDS),
            (Err(_) | Ok(0), Occupancy::Held(_)) => DEFAULT_LEASE_DURATION,
            (Ok(seconds), Occupancy::Held(_)) => Duration::from_secs(seconds),
        };
        let lease = said.max(least);
        let most = tenure_election::Config::LEASE_MAX;
        if lease > most {
            return Err(format!(
                "leaseDurationSeconds {}, above 7 days",
                spec.seconds
            ));
        }
        let wall = |micros: Option<i64>| {
            let micros = u64::try_from(micros.unwrap_or(0)).unwrap_or(0);
            WallTime::from_millis(micros / 1_000)
        };
        Ok(Record {
            election: self.election.clone(),
            term,
            sequence,
            // Another one for each spec, and the same for the same.
            renewal: first_bytes(&digest(&[spec.text().as_bytes()])) >> 3,
            lease,
            acquired_at: wall(spec.acquired),
            renewed_at: wall(spec.renewed),
            occupancy,
        })
    }
}

fn first_bytes(digest: &[u8; 32]) -> u64 {
    digest
        .iter()
        .take(8)
        .fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// What a leader of Tenure is called in a Lease. Each incarnation has another one:
/// client-go takes two holders of one identity for one.
fn identity_of(holder: &Holder) -> String {
    format!("{}_{}", holder.name, holder.id)
}

/// The id of an incarnation of Tenure in an identity.
fn own_id(identity: &str) -> Option<(&str, LeaderId)> {
    let (name, id) = identity.rsplit_once('_')?;
    Some((name, LeaderId::parse(id)?))
}

/// The id of a holder: of another kind, one for each leadership.
fn id_of(uid: &str, identity: &str, term: Term) -> LeaderId {
    if let Some((_, id)) = own_id(identity) {
        return id;
    }
    let term = term.get().to_be_bytes();
    let digest = digest(&[uid.as_bytes(), identity.as_bytes(), &term]);
    let bits = digest.iter().take(16);
    LeaderId::from_u128(bits.fold(0, |all, byte| all << 8 | u128::from(*byte)))
}

/// An identity as a name: without control characters, and cut to what a name holds.
fn name_of(identity: &str) -> Result<Name, String> {
    let identity = own_id(identity).map_or(identity, |(name, _)| name);
    let mut text = String::new();
    for one in identity.chars() {
        let one = if one.is_control() { '?' } else { one };
        if text.len() + one.len_utf8() > Name::MAX_BYTES {
            break;
        }
        text.push(one);
    }
    Name::new(&text).map_err(|error| format!("the holder {identity:?}: {error}"))
}

/// The Lease that holds this value, in place of one that was read, if there was one.
pub(super) fn encode(
    key: &Key,
    namespace: &str,
    value: &[u8],
    replaced: Option<&Value>,
) -> Result<Value, StoreError> {
    if value.len() > VALUE_MAX {
        return Err(StoreError::broken(format!(
            "expected a value of at most {VALUE_MAX} bytes for {key}, which is an annotation of a \
             Lease, found {}",
            value.len()
        )));
    }
    let state = replaced.map(object::state).transpose()?;
    let before = replaced.and_then(|lease| look(key, lease).ok());
    let (spec, mut written) = match record_of(key, value) {
        Some(record) => spec_of(&record, replaced, before.as_ref()),
        None => spec_of_other(replaced, before.as_ref()),
    };
    written.after = state.as_ref().map_or(0, |state| state.number);
    written.digest = written.digest_with(&spec, value);
    let mut lease = object::empty(key, namespace, state.as_ref());
    if let Some(replaced) = replaced {
        keep_others(&mut lease, replaced);
    }
    spec.put_into(&mut lease);
    object::annotate(&mut lease, WRITTEN, Some(written.text()));
    let (text, encoded) = match std::str::from_utf8(value) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(value))),
    };
    object::annotate(&mut lease, VALUE, text);
    object::annotate(&mut lease, VALUE_BASE64, encoded);
    Ok(lease)
}

/// The transitions of a Lease, whatever else it shows.
fn transitions_of(replaced: Option<&Value>) -> Option<i64> {
    Some(Spec::of(replaced?).map_or(0, |spec| spec.transitions))
}

/// What a record is in the fields of a spec.
fn spec_of(record: &Record, replaced: Option<&Value>, before: Option<&Shown>) -> (Spec, Written) {
    let term = record.term.get();
    let transitions = match (transitions_of(replaced), before) {
        (None, _) => 0,
        (Some(transitions), Some(before)) if before.term == term => transitions,
        // Another leader. Where the field is full, counting begins anew.
        (Some(transitions), _) if transitions < TRANSITIONS_MAX => transitions.max(0) + 1,
        (Some(_), _) => 0,
    };
    let written = Written {
        term,
        transitions,
        sequence: record.sequence,
        after: 0,
        digest: String::new(),
    };
    let shown = before.and_then(|before| Some((&before.spec, before.record.as_ref()?)));
    let id = |record: &Record| record.holder().map(|holder| holder.id);
    let is_same = |shown: &Record| {
        let grant = |it: &Record| (it.term, it.renewal, id(it));
        grant(shown) == grant(record)
    };
    if let Some((spec, _)) = shown.filter(|(spec, shown)| {
        // A request to the leader: nothing that client-go sees is moved by it.
        is_same(shown) && (spec.holder.is_empty() == record.holder().is_none())
    }) {
        return (spec.clone(), written);
    }
    let micros = |time: WallTime| {
        i64::try_from(time.as_millis())
            .unwrap_or(0)
            .saturating_mul(1_000)
    };
    let drift = Drift::DEFAULT.lengthen(record.lease);
    let whole = drift.as_secs() + u64::from(drift.subsec_nanos() > 0);
    let (holder, seconds) = match record.holder() {
        None => (String::new(), RELEASED_SECONDS),
        Some(holder) => (identity_of(holder), whole.max(1)),
    };
    let spec = Spec {
        holder,
        seconds: i64::from(i32::try_from(seconds).unwrap_or(i32::MAX)),
        acquired: Some(micros(record.acquired_at).min(times::LAST)),
        renewed: Some(renewed_at(micros(record.renewed_at), before)),
        transitions,
    };
    (spec, written)
}

/// A time of renewal that client-go tells from the one before it.
fn renewed_at(calendar: i64, before: Option<&Shown>) -> i64 {
    let calendar = calendar.clamp(0, times::LAST);
    let Some(last) = before.and_then(|before| before.spec.renewed) else {
        return calendar;
    };
    let next = last.div_euclid(SECOND) * SECOND + SECOND;
    // Above the last time that can be written it begins anew, as client-go does.
    if next > times::LAST {
        calendar
    } else {
        next.max(calendar)
    }
}

/// A value that is no record: the spec stays as it is.
fn spec_of_other(replaced: Option<&Value>, before: Option<&Shown>) -> (Spec, Written) {
    let spec = replaced.and_then(|lease| Spec::of(lease).ok());
    let spec = spec.unwrap_or_default();
    let never = Written::never();
    let written = Written {
        term: before.map_or(never.term, |before| before.term),
        transitions: spec.transitions,
        sequence: before.map_or(0, |before| before.sequence).saturating_add(1),
        ..never
    };
    (spec, written)
}

/// What others have put into a Lease stays there: labels, annotations, owners.
fn keep_others(lease: &mut Value, replaced: &Value) {
    if let Some(Value::Object(spec)) = replaced.get("spec")
        && let Some(ours) = object::part(lease, "spec")
    {
        ours.extend(spec.clone());
    }
    let (Some(metadata), Some(old)) = (lease.get_mut("metadata"), replaced.get("metadata")) else {
        return;
    };
    for name in ["labels", "ownerReferences", "finalizers"] {
        if let (Some(kept), Some(metadata)) = (old.get(name), metadata.as_object_mut()) {
            metadata.insert(name.to_owned(), kept.clone());
        }
    }
    if let (Some(Value::Object(kept)), Some(ours)) = (
        old.get("annotations"),
        object::part(metadata, "annotations"),
    ) {
        for (name, text) in kept {
            ours.entry(name.as_str()).or_insert_with(|| text.clone());
        }
    }
}

#[cfg(test)]
mod tests;
