//! Whether the sentinels of a URL watch one server.
//!
//! Sentinels that watch one server find each other by way of it, and each lists the others
//! under its name of the server. So two that name different servers and do not list each
//! other watch different servers: candidates that ask one, and candidates that ask the
//! other, would lead beside each other.
//!
//! During a fail-over two sentinels of one server may name different servers until both have
//! heard of it, within seconds. Such sentinels list each other. A sentinel that was made to
//! watch another server lists the former others too, because a sentinel forgets none that it
//! has found. So more than half of the sentinels that answer have to name the server. Two
//! candidates that ask the same sentinels then use the same server. If there are two
//! sentinels and they differ, no candidate uses a server.
//!
//! Each handshake asks the other sentinels at the same time as its own. A sentinel that
//! does not answer in time, or does not tell (before Redis 6.2, or without the right to ask)
//! is passed over.

use ::redis::Value;
use tokio::task::JoinSet;

use super::classify;
use super::connect::RedisConnection;
use super::registers::{list, text, unexpected};
use crate::clock;
use crate::error::StoreError;
use crate::store::dial::{OTHERS_WITHIN, answers_of};

/// What a sentinel says of the server that it watches.
#[derive(Debug)]
pub(super) struct Sentinel {
    /// Its own identifier.
    id: String,
    /// Those of the sentinels that it has found at the server.
    found: Vec<String>,
    /// The address of the server.
    pub(super) place: String,
}

impl Sentinel {
    /// Whether the two watch different servers.
    fn is_apart_from(&self, other: &Self) -> bool {
        let knows = |one: &Self, another: &Self| one.found.contains(&another.id);
        self.place != other.place && !(knows(self, other) && knows(other, self))
    }
}

/// Asks a sentinel who it is, and whom it has found at the server of this name, which it
/// says is at `place`.
pub(super) async fn ask(
    connection: &RedisConnection,
    name: &str,
    place: String,
) -> Result<Sentinel, StoreError> {
    let mut ask = ::redis::pipe();
    ask.cmd("SENTINEL").arg("MYID");
    ask.cmd("SENTINEL").arg("SENTINELS").arg(name);
    let answers = connection.calls(&ask).await;
    let answers = answers.map_err(|error| classify::connecting(&error))?;
    for answer in &answers {
        if let Value::ServerError(error) = answer {
            return Err(classify::refused("the sentinel", error));
        }
    }
    let told = match answers.as_slice() {
        [id, others] => text(id).zip(list(others)),
        _ => None,
    };
    let Some((id, others)) = told else {
        return Err(unexpected(
            "an identifier and a list",
            &Value::Array(answers),
        ));
    };
    Ok(Sentinel {
        id: id.to_owned(),
        found: others.iter().filter_map(identifier).collect(),
        place,
    })
}

/// The identifier in what a sentinel tells of another: names of fields, each followed by
/// its value.
fn identifier(other: &Value) -> Option<String> {
    let mut fields = list(other)?.chunks_exact(2);
    let field = fields.find(|field| field.first().and_then(text) == Some("runid"));
    field?.get(1).and_then(text).map(str::to_owned)
}

/// Fails if one of the others, each with its host, watches another server than the
/// sentinel of this host, or if not more than half name the server that this one names.
pub(super) async fn compare(
    host: &str,
    own: &Sentinel,
    others: JoinSet<Option<(String, Sentinel)>>,
) -> Result<(), StoreError> {
    let others = answers_of(others, clock::boot().after(OTHERS_WITHIN)).await;
    let different = |it: &&(String, Sentinel)| it.1.place != own.place;
    let Some((other, told)) = others.iter().find(different) else {
        return Ok(());
    };
    let named = format!(
        "{host} names {}, and {other} names {}",
        own.place, told.place
    );
    let is_apart = others.iter().any(|(_, it)| own.is_apart_from(it));
    let why = if is_apart {
        format!(
            "expected sentinels that watch one server, found some that name different ones and do \
             not list each other (SENTINEL SENTINELS): {named}; name sentinels of one server in \
             the store's URL"
        )
    } else if is_named_by_most(own, others.iter().map(|(_, it)| it)) {
        return Ok(());
    } else {
        format!(
            "expected that more than half of the sentinels name one server, found that not: \
             {named}; this passes when a fail-over is over; if it does not, have all of them watch \
             one server (SENTINEL REMOVE and MONITOR)"
        )
    };
    tracing::warn!("{why}");
    Err(StoreError::unavailable(why))
}

/// Whether more than half of the sentinels that answer name the server of this one.
fn is_named_by_most<'a>(own: &Sentinel, others: impl Iterator<Item = &'a Sentinel>) -> bool {
    let (mut all, mut same) = (1, 1);
    for other in others {
        all += 1;
        same += usize::from(other.place == own.place);
    }
    same * 2 > all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentinel(id: &str, found: &[&str], place: &str) -> Sentinel {
        Sentinel {
            id: id.into(),
            found: found.iter().map(|&it| it.into()).collect(),
            place: place.into(),
        }
    }

    #[test]
    fn a_server_is_used_that_most_of_its_sentinels_name() {
        let named = |places: [&str; 3]| {
            let [own, others @ ..] = places.map(|place| sentinel("", &[], place));
            is_named_by_most(&own, others.iter())
        };
        assert!(named(["a", "a", "b"]));
        assert!(!named(["b", "a", "a"]));
        assert!(!named(["a", "b", "c"]));
        let [one, other] = ["a", "b"].map(|place| sentinel("", &[], place));
        assert!(!is_named_by_most(&one, [&other].into_iter()));
    }

    #[test]
    fn sentinels_of_one_server_list_each_other_while_it_moves() {
        let own = sentinel("a", &["b"], "old:1");
        assert!(!own.is_apart_from(&sentinel("b", &["a"], "new:1")));
        assert!(!own.is_apart_from(&sentinel("c", &[], "old:1")), "the same");
        assert!(own.is_apart_from(&sentinel("c", &["d"], "new:1")));
        // It watched the same server before.
        assert!(own.is_apart_from(&sentinel("b", &[], "new:1")));
        assert!(sentinel("b", &[], "new:1").is_apart_from(&own));
        // A copy of it.
        assert!(own.is_apart_from(&sentinel("a", &["b"], "new:1")));
    }
}
