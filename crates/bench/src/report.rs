//! The figures of a run, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::cost::{Disk, SYNC_BYTES};
use super::load::Pace;
use super::record::{CLASSES, Sum};
use super::work::Kind;
use super::{Plan, Side};

/// What is said of a distribution.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// The text and the object.
pub(super) fn report(plan: &Plan, sides: &[Side], disk: Option<&Disk>) -> (String, Value) {
    let mut text = load(plan);
    for (side, letter) in sides.iter().zip(["A", "B"]) {
        let letter = if sides.len() > 1 { letter } else { "" };
        text += &format!(
            "\n{letter}{}{}",
            if letter.is_empty() { "" } else { "  " },
            side.name
        );
        describe(&mut text, plan, side);
    }
    let mut object = json!({
        "load": load(plan),
        "clients": plan.clients,
        "connections": plan.connections,
        "keys": plan.keys,
        "value_bytes": plan.mix.value.len(),
        "reads": plan.mix.reads,
        "rate": match plan.pace {
            Pace::Closed => Value::Null,
            Pace::Open(period) => (1.0 / period.as_secs_f64()).into(),
        },
        "stores": sides.iter().map(observed).collect::<Vec<_>>(),
    });
    if let [a, b] = sides {
        let (said, ratios) = compare(&a.record.slices, &b.record.slices);
        text += &said;
        object["a_to_b"] = ratios;
    }
    if let Some(disk) = disk {
        let p50 = disk.syncs.value_at_quantile(0.5);
        text += &format!(
            "\ndisk: fdatasync after {SYNC_BYTES} bytes p50 {}, p99 {}, of {}",
            time(p50),
            time(disk.syncs.value_at_quantile(0.99)),
            disk.syncs.len()
        );
        object["fdatasync_p50_us"] = micros(p50).into();
    }
    (text, object)
}

/// The load in a sentence.
fn load(plan: &Plan) -> String {
    let pace = match plan.pace {
        Pace::Closed => "closed loop".to_owned(),
        Pace::Open(period) => format!("open loop at {:.0}/s", 1.0 / period.as_secs_f64()),
    };
    let slices = match plan.slices {
        1 => String::new(),
        slices => format!(" in {slices} slices by turns"),
    };
    let bytes = plan.mix.value.len();
    let what = match plan.append {
        Some(entries) => format!("{entries} entries of {bytes} bytes a call"),
        None => format!(
            "{} registers of {bytes} bytes, {:.0} % reads",
            plan.keys,
            plan.mix.reads * 100.0
        ),
    };
    format!(
        "{} clients on {} connections, {pace}, {what}, {:?} each{slices}",
        plan.clients, plan.connections, plan.duration,
    )
}

fn describe(text: &mut String, plan: &Plan, side: &Side) {
    let record = &side.record;
    for kind in Kind::ALL {
        let Some(latencies) = record.latencies(kind).filter(|found| !found.is_empty()) else {
            continue;
        };
        let _ = write!(text, "\n   {:<7}{:>9.0}/s", kind.name(), record.rate(kind));
        for (name, quantile) in QUANTILES {
            let _ = write!(
                text,
                "  {name} {}",
                time(latencies.value_at_quantile(quantile))
            );
        }
        let _ = write!(text, "  max {}", time(latencies.max()));
    }
    let counts = record.failures.iter().zip(CLASSES);
    let failures: Vec<_> = counts
        .filter(|(count, _)| **count > 0)
        .map(|(count, class)| format!("{count} {class}"))
        .collect();
    let failures = if failures.is_empty() {
        "none".to_owned()
    } else {
        let longest = time(record.failed.max());
        format!("{} (the longest after {longest})", failures.join(", "))
    };
    let gap = u64::try_from(record.longest_gap.as_nanos()).unwrap_or(u64::MAX);
    let _ = write!(
        text,
        "\n   failures {failures}; longest time without a success {}",
        time(gap)
    );
    if record.missed > 0 {
        let _ = write!(text, "\n   due and never begun: {}", record.missed);
        // The last few of a run may have been due a moment before its end.
        if record.missed > record.succeeded() / 100 {
            let _ = write!(
                text,
                "; the store is too slow for this rate, or {} clients are too few, and the \
                 latencies above are too good",
                plan.clients
            );
        }
    }
    let _ = write!(text, "\n   processor time an operation:");
    if let Some(servers) = side.servers {
        let _ = write!(text, " servers {},", cpu(side, servers));
    }
    let _ = write!(text, " this process {}", cpu(side, side.here));
}

/// Processor time an operation, and how many processors that kept busy.
fn cpu(side: &Side, used: Duration) -> String {
    let cores = used.as_secs_f64() / side.record.measured.as_secs_f64().max(f64::EPSILON);
    format!("{:.1} µs ({cores:.2} cores)", each(side, used))
}

/// Microseconds an operation.
fn each(side: &Side, used: Duration) -> f64 {
    let asked = side.record.succeeded() + side.record.failures.iter().sum::<u64>();
    used.as_secs_f64() * 1e6 / asked.max(1) as f64
}

fn observed(side: &Side) -> Value {
    let record = &side.record;
    let mut object = json!({
        "store": side.name,
        "seconds": record.measured.as_secs_f64(),
        "failures": CLASSES.iter().zip(record.failures).collect::<std::collections::BTreeMap<_, _>>(),
        "failed_us": distribution(&record.failed),
        "missed": record.missed,
        "longest_gap_us": record.longest_gap.as_secs_f64() * 1e6,
        "cpu_us_per_operation": {
            "servers": side.servers.map(|used| each(side, used)),
            "client": each(side, side.here),
        },
        "slices": record.slices.iter().map(|sum| json!({
            "per_second": sum.rate, "p50_us": micros(sum.p50), "p99_us": micros(sum.p99),
        })).collect::<Vec<_>>(),
        "points": record.points.iter().map(|point| json!({
            "at_s": point.at, "per_second": point.rate,
            "p50_us": micros(point.p50), "p99_us": micros(point.p99),
        })).collect::<Vec<_>>(),
    });
    for kind in Kind::ALL {
        let latencies = record.latencies(kind).map_or(Value::Null, distribution);
        object[kind.name()] = json!({
            "count": record.count(kind),
            "per_second": record.rate(kind),
            "latency_us": latencies,
        });
    }
    object
}

fn distribution(latencies: &Histogram<u64>) -> Value {
    if latencies.is_empty() {
        return Value::Null;
    }
    let mut object = json!({
        "mean": latencies.mean() / 1_000.0,
        "max": micros(latencies.max()),
    });
    for (name, quantile) in QUANTILES {
        object[name] = micros(latencies.value_at_quantile(quantile)).into();
    }
    object
}

/// One figure of a slice.
type Pick = fn(&Sum) -> f64;

/// How A does against B, over all and round by round.
fn compare(a: &[Sum], b: &[Sum]) -> (String, Value) {
    let mut text = format!("\nA to B, median of {} rounds (least to most):", a.len());
    let mut object = json!({});
    let picks: [(&str, Pick); 3] = [
        ("throughput", |sum| sum.rate),
        ("p50", |sum| sum.p50 as f64),
        ("p99", |sum| sum.p99 as f64),
    ];
    for (at, (name, pick)) in picks.into_iter().enumerate() {
        let pairs = a.iter().zip(b);
        let mut ratios: Vec<f64> = pairs
            .map(|(a, b)| pick(a) / pick(b).max(f64::EPSILON))
            .collect();
        ratios.sort_by(f64::total_cmp);
        let median = ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN);
        let least = ratios.first().copied().unwrap_or(f64::NAN);
        let most = ratios.last().copied().unwrap_or(f64::NAN);
        let comma = if at > 0 { "," } else { "" };
        let _ = write!(
            text,
            "{comma} {name} {median:.2} × ({least:.2} to {most:.2})"
        );
        object[name] = json!({ "median": median, "least": least, "most": most });
    }
    (text, object)
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1_000.0
}

/// A time with three digits or so, in the unit that fits.
pub(super) fn time(nanos: u64) -> String {
    let nanos = nanos as f64;
    let (number, unit) = match nanos {
        0.0..1e6 => (nanos / 1e3, "µs"),
        1e6..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let places = match number {
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{number:.places$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (nanos, text) in [
            (1_500, "1.50 µs"),
            (431_000, "431 µs"),
            (4_710_000, "4.71 ms"),
            (12_340_000, "12.3 ms"),
            (2_000_000_000, "2.00 s"),
        ] {
            assert_eq!(time(nanos), text);
        }
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let sums = |rates: [f64; 3]| {
            rates.map(|rate| Sum {
                rate,
                p50: 1,
                p99: 4,
            })
        };
        let (text, object) = compare(&sums([10.0, 30.0, 40.0]), &sums([10.0, 10.0, 20.0]));
        assert_eq!(object["throughput"]["median"], 2.0);
        assert_eq!(object["throughput"]["most"], 3.0);
        assert!(text.contains("throughput 2.00 × (1.00 to 3.00)"), "{text}");
    }
}
