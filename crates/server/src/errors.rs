//! The errors that a server answers with: each has a cause, for programs, and
//! a sentence, for people.

use tenure_alpo::SessionOpener;
use tenure_api::v1::{self, Cause};

/// An error with a cause and a sentence.
pub(super) fn error(cause: Cause, message: impl Into<String>) -> v1::Error {
    v1::Error {
        cause: cause.into(),
        message: bounded(message.into()),
        ..v1::Error::default()
    }
}

/// At most so many bytes of a message: it quotes what was sent, though not
/// every library that judges a request says when it does.
const MESSAGE_MAX: usize = 1_000;

fn bounded(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        message.push('…');
    }
    message
}

/// There is more under way than there may be.
pub(super) fn busy() -> v1::Error {
    error(Cause::Busy, "too much is under way; try again soon")
}

/// A request that makes no sense.
pub(super) fn invalid(message: impl Into<String>) -> v1::Error {
    error(Cause::Invalid, message)
}

pub(super) fn compacted(first: u64) -> v1::Error {
    v1::Error {
        expected: first,
        ..error(
            Cause::Compacted,
            format!("expected what is still kept, which begins at {first}"),
        )
    }
}

/// The place is one of a cluster that is lost; here it goes on at `next`.
pub(super) fn restored(next: u64) -> v1::Error {
    v1::Error {
        expected: next,
        ..error(
            Cause::Restored,
            format!(
                "this cluster was restored from a backup, and what you go on from may be of the \
                 one that is lost: what followed there is gone; here it goes on at {next}"
            ),
        )
    }
}

pub(super) fn other_content() -> v1::Error {
    error(
        Cause::OtherContent,
        "expected the command that this serial was used for, found another: two clients use one \
         session; open one for each",
    )
}

pub(super) fn out_of_order(expected: u64) -> v1::Error {
    v1::Error {
        expected,
        ..error(
            Cause::OutOfOrder,
            format!("expected serial {expected} first; send the requests from there on again"),
        )
    }
}

/// Who opened a session, as far as can be told without the file of tokens.
pub(super) fn name_of(opener: &SessionOpener) -> String {
    match opener {
        SessionOpener::Server => "the cluster itself".to_owned(),
        SessionOpener::Token(half) => {
            let half: String = half.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("the token whose SHA-256 begins with {half}")
        }
        SessionOpener::Address(address) => format!("the address {}", address_of(*address)),
    }
}

/// Why no session is opened, and what to do.
pub(super) fn too_many(why: String) -> v1::Error {
    let text = "; close some, or let them expire (`tenure session list` shows them)";
    error(Cause::TooManySessions, why + text)
}

/// Who holds most of the sessions.
pub(super) fn most_of(holders: &[(SessionOpener, u64)]) -> String {
    let named = |(opener, held): &(SessionOpener, u64)| format!("{} has {held}", name_of(opener));
    let named: Vec<_> = holders.iter().map(named).collect();
    named.join(", ")
}

/// An address as people write it; of IPv6 the network.
pub(super) fn address_of(address: [u8; 16]) -> String {
    let address = std::net::Ipv6Addr::from(address);
    match address.to_ipv4_mapped() {
        Some(address) => address.to_string(),
        None => format!("{address}/64"),
    }
}
