//! A file of workloads (`tenure deploy --file`): TOML that may describe many.
//!
//! ```toml
//! [[workload]]
//! name = "web"
//! command = ["/srv/serve", "--port", "80"]
//! instances = 2
//! needs = ["zone=a"]
//! restart = "on-failure"
//! env = { RUST_LOG = "info" }
//! env-file = "/etc/web/env"           # on the node that has it: secrets
//! config = { greeting = "hello" }     # the command sees it as JSON
//! ```
//!
//! Some values of TOML have no counterpart in JSON, as which the command reads its
//! config. The library that reads TOML would make `null` of `nan`, and an object
//! with a private name of a date. So they are refused here, and never reach a
//! store. What lies in a store is not looked at again: a workload of an earlier
//! release runs as it did.
//!
//! Numbers out of their range are refused here too, because the library says no
//! more of them than *expected u32*.

use std::ops::{Range, RangeInclusive};

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::spec::{INSTANCES_MAX, Workload};

/// A file of workloads.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadFile {
    /// All that are in it.
    #[serde(default)]
    pub workload: Vec<Workload>,
}

impl WorkloadFile {
    /// What is in a file of workloads.
    ///
    /// # Errors
    /// What is wrong with it, without a value that is in it: the wrong file
    /// may hold a secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |at, why: &str| tenure::small::misread(text, at, why);
        let misread = |error: toml::de::Error| wrong(error.span(), error.message());
        let file = DeTable::parse(text).map_err(misread)?;
        check(file.get_ref()).map_err(|(at, why)| wrong(Some(at), &why))?;
        Self::deserialize(toml::Deserializer::from(file)).map_err(misread)
    }
}

/// What is wrong with a value, and where in the file it is.
type Misfit = (Range<usize>, String);

/// Looks at each workload of a file.
fn check(file: &DeTable<'_>) -> Result<(), Misfit> {
    let workloads = file.get("workload").and_then(|it| it.get_ref().as_array());
    for workload in workloads.into_iter().flatten() {
        let Some(workload) = workload.get_ref().as_table() else {
            continue;
        };
        if let Some(instances) = workload.get("instances") {
            check_number("instances", 1..=INSTANCES_MAX, instances)?;
        }
        if let Some(order) = workload.get("order") {
            check_number("order", 0..=u32::MAX, order)?;
        }
        if let Some(config) = workload.get("config") {
            check_config(config)?;
        }
    }
    Ok(())
}

/// Refuses what is no whole number, and one that does not fit into 32 bits. One
/// that fits and is out of range is left to `Workload::deployment`, which advises.
fn check_number(
    name: &str,
    range: RangeInclusive<u32>,
    value: &Spanned<DeValue<'_>>,
) -> Result<(), Misfit> {
    let found = match value.get_ref() {
        DeValue::Integer(it) => match i128::from_str_radix(it.as_str(), it.radix()) {
            Ok(number) if u32::try_from(number).is_ok() => return Ok(()),
            _ if it.as_str().starts_with('-') => "a negative one",
            _ => "a larger one",
        },
        DeValue::String(_) => "a text; write it without quotes",
        _ => "another value",
    };
    let (first, last) = range.into_inner();
    let text = format!("{name}: expected a whole number from {first} to {last}, found {found}");
    Err((value.span(), text))
}

/// Refuses what JSON has not, however deep it is.
fn check_config(value: &Spanned<DeValue<'_>>) -> Result<(), Misfit> {
    let found = match value.get_ref() {
        DeValue::Table(table) => return table.values().try_for_each(check_config),
        DeValue::Array(array) => return array.iter().try_for_each(check_config),
        DeValue::Datetime(_) => "a date or a time",
        DeValue::Float(it) if !it.as_str().parse().is_ok_and(f64::is_finite) => {
            "a number that is infinite or none (inf, nan)"
        }
        DeValue::Integer(it)
            if i64::from_str_radix(it.as_str(), it.radix()).is_err()
                && u64::from_str_radix(it.as_str(), it.radix()).is_err() =>
        {
            "a whole number of more than 64 bits"
        }
        _ => return Ok(()),
    };
    let text = format!(
        "config: expected values that JSON has, found {found}; write it as a text in quotes"
    );
    Err((value.span(), text))
}

#[cfg(test)]
mod tests {
    use super::WorkloadFile;

    fn parsed(rest: &str) -> Result<WorkloadFile, String> {
        WorkloadFile::parse(&format!(
            "[[workload]]\nname = \"w\"\ncommand = [\"x\"]\n{rest}\n"
        ))
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_the_range() {
        let (instances, order) = ("from 1 to 100, found", "from 0 to 4294967295, found");
        for (text, column, range, found) in [
            ("instances = -1", 13, instances, "a negative one"),
            ("instances = 4294967296", 13, instances, "a larger one"),
            ("instances = 0xffffffffff", 13, instances, "a larger one"),
            ("instances = \"2\"", 13, instances, "a text; write"),
            ("instances = 1.0", 13, instances, "another value"),
            ("order = -1", 9, order, "a negative one"),
            ("order = 99999999999999999999", 9, order, "a larger one"),
            ("order = 1e5", 9, order, "another value"),
        ] {
            let long = text.replace("9999", "99999999999999999999");
            for text in [text, &long] {
                let why = parsed(text).expect_err(text);
                let place = format!("line 4, column {column}: ");
                let whole = why.starts_with(&place) && why.contains(&format!("{range} {found}"));
                assert!(whole, "{text}: {why}");
            }
        }
        for text in [
            "instances = 0x2",
            "instances = +1",
            "order = 4294967295",
            "order = -0",
        ] {
            parsed(text).expect(text);
        }
    }

    #[test]
    fn a_config_that_json_cannot_say_is_refused_where_it_is() {
        for (text, place, found) in [
            (
                "config = { a = nan }",
                "line 4, column 16",
                "infinite or none",
            ),
            (
                "config = { b = [1, -inf] }",
                "line 4, column 20",
                "infinite or none",
            ),
            (
                "config = { c = { d = 1979-05-27 } }",
                "line 4, column 22",
                "a date or",
            ),
            (
                "[workload.config]\nt = 07:32:00",
                "line 5, column 5",
                "a date or",
            ),
            (
                "config = 1979-05-27T07:32:00Z",
                "line 4, column 10",
                "a date or",
            ),
            (
                "config = [99999999999999999999]",
                "line 4, column 11",
                "64 bits",
            ),
        ] {
            let why = parsed(text).expect_err(text);
            let whole = why.starts_with(place) && why.contains(found);
            assert!(whole && why.contains("a text in quotes"), "{text}: {why}");
        }
        for text in [
            "config = { a = 1.5, b = -9223372036854775808, c = 18446744073709551615 }",
            "config = { a = \"1979-05-27\", b = [true, {}], c = 0xff }",
        ] {
            parsed(text).expect(text);
        }
    }
}
