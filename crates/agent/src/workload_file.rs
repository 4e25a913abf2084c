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

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::spec::Workload;

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
        if let Some(config) = workload.get("config") {
            check_config(config)?;
        }
    }
    Ok(())
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
