//! The rows of an answer, and how many of them are kept.
//!
//! A server may send rows without an end, whatever the statement's `LIMIT` is. Those
//! beyond the bounds are read and dropped, and the answer is an error.

use std::io;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error, Row, Value};

use crate::store::{MAX_VALUE_BYTES, PAGE_MAX};

/// How many rows an answer has at most: a page has one more than 500.
const ROWS_MAX: usize = 2 * PAGE_MAX;
/// How many bytes the values in it have together, at most: a page of the largest
/// registers, and one more.
const ANSWER_MAX: usize = (PAGE_MAX + 1) * (MAX_VALUE_BYTES + 4 * 1024);

/// Rows that are kept.
#[derive(Default)]
struct Kept {
    rows: Vec<Row>,
    bytes: usize,
    are_too_many: bool,
}

impl Kept {
    fn take(mut self, row: Row) -> Self {
        let values = (0..row.len()).filter_map(|at| row.as_ref(at));
        let bytes: usize = values.map(length).sum();
        self.bytes = self.bytes.saturating_add(bytes);
        self.are_too_many |= self.rows.len() == ROWS_MAX || self.bytes > ANSWER_MAX;
        if self.are_too_many {
            self.rows.clear();
        } else {
            self.rows.push(row);
        }
        self
    }
}

fn length(value: &Value) -> usize {
    match value {
        Value::Bytes(bytes) => bytes.len(),
        _ => 0,
    }
}

/// Carries out a statement; its rows.
pub(super) async fn rows(connection: &mut Conn, statement: &str) -> Result<Vec<Row>, Error> {
    let answer = connection.query_iter(statement).await?;
    let kept = answer.reduce_and_drop(Kept::default(), Kept::take).await?;
    if kept.are_too_many {
        return Err(io::Error::other(format!(
            "expected an answer of at most {ROWS_MAX} rows and {ANSWER_MAX} bytes, found more"
        ))
        .into());
    }
    Ok(kept.rows)
}
