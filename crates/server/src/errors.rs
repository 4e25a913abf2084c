//! The errors that a server answers with: each has a cause, for programs, and
//! a sentence, for people.

use std::time::Duration;

use tenure_alpo::{ChangeError, Refusal, ServerList, SessionId, SessionOpener};
use tenure_api::v1::{self, Cause};

use super::shared::Shared;

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

pub(super) fn not_leader(hint: Option<tenure_alpo::ServerId>, shared: &Shared) -> v1::Error {
    match shared.leader(hint) {
        Some((leader, address)) => {
            let id = leader.get();
            let place = if address.is_empty() {
                ", whose address is not known here yet".to_owned()
            } else {
                format!(" at {address}")
            };
            v1::Error {
                leader: Some(id),
                leader_address: address,
                ..error(
                    Cause::NotLeader,
                    format!("expected the leader, which is server {id}{place}"),
                )
            }
        }
        None => error(
            Cause::NotLeader,
            "expected the leader; none is known at the moment, try again soon",
        ),
    }
}

fn too_few_heard(servers: ServerList) -> v1::Error {
    let found = if servers.named().next().is_none() {
        "found that this server was too late to judge their answers; try again".to_owned()
    } else {
        format!(
            "found that these servers have not answered: {servers}; start them, or remove them \
             first (one that runs and is connected may have a disk that hangs: it answers once \
             it has synced the new term)"
        )
    };
    let expected = "expected an answer, within an election timeout, of a majority of the voters \
                    after the change";
    error(Cause::Members, format!("{expected}, {found}"))
}

fn unsynced(servers: ServerList) -> v1::Error {
    error(
        Cause::Members,
        format!(
            "expected that a majority of the voters after the change sync an entry to their disks \
             within an election timeout, found that these servers have not: {servers}; look at \
             their disks, remove first those whose disks hang, and try again"
        ),
    )
}

fn not_owner() -> v1::Error {
    error(
        Cause::NotOwner,
        "expected the secret that the session was opened with, or without one the token, found \
         something else: the session is another's",
    )
}

fn held(session: SessionId, bound: u64, ttl: Duration) -> v1::Error {
    error(
        Cause::Held,
        format!(
            "expected a session that holds nothing, found that session {session} holds {bound} \
             register(s): a holder that is stopped or cut off believes in them until {ttl:?} after \
             the session was last heard of, and the next one would not be alone. Ask it to resign \
             (`tenure resign`), or say that its process has ended (`--holder-is-gone`)"
        ),
    )
}

/// Why members are not changed so.
const fn change(why: ChangeError) -> &'static str {
    match why {
        ChangeError::Known => "this server is a member already",
        ChangeError::Unknown => {
            "expected a member, found no server of this number among them; `tenure member list` \
             shows them"
        }
        ChangeError::Counts => "this server is a voter already; there is nothing to promote",
        ChangeError::LastVoter => "this is the last voter: no voter would be left",
        ChangeError::Full => "there are as many members as there may be",
    }
}

pub(super) fn refused(refusal: Refusal, shared: &Shared) -> v1::Error {
    match refusal {
        Refusal::NotLeader { leader } => not_leader(leader, shared),
        Refusal::Busy => busy(),
        Refusal::Rising => error(
            Cause::Busy,
            "expected that all members of the cluster have told which version they speak, found \
             that some have yet to; a session that was opened before would have no owner, so try \
             again soon",
        ),
        Refusal::TooLarge => error(Cause::TooLarge, "expected an entry of at most 1 MiB"),
        Refusal::OutOfOrder { expected } => out_of_order(expected),
        Refusal::OtherContent => other_content(),
        Refusal::Held {
            session,
            bound,
            ttl,
        } => held(session, bound, Duration::from_nanos(ttl)),
        Refusal::NotOwner => not_owner(),
        Refusal::Quota { opener, held, most } => too_many(format!(
            "expected at most {most} sessions of one token or address, found that {} has {held}",
            name_of(&opener)
        )),
        Refusal::Scarce { opener, held, left } => too_many(format!(
            "expected a caller with fewer sessions than there are places left ({left} of {}, \
             beside those that are kept for operators), found that {} has {held}; the callers \
             with most: {}",
            super::config::limits().sessions,
            name_of(&opener),
            most_of(&shared.holders())
        )),
        Refusal::QuotaExceeded(why) => super::quota_usage::no_room(&why),
        Refusal::Window => error(
            Cause::Window,
            "expected at most 1,024 requests of a session under way",
        ),
        Refusal::Change(why) => error(Cause::Members, change(why)),
        Refusal::ChangeUnderWay => error(
            Cause::Members,
            "another change of members is under way; try again when it is done",
        ),
        Refusal::OtherDisk { found } => error(
            Cause::Members,
            format!(
                "expected the member with the storage that was given, found one with storage \
                 {found} under its number: it was replaced meanwhile, and is left as it is; \
                 `tenure member list` shows the members as they are"
            ),
        ),
        Refusal::TooFewHeard { servers } => too_few_heard(servers),
        Refusal::Unsynced { servers } => unsynced(servers),
        Refusal::Behind => error(
            Cause::Members,
            "this server has not caught up yet, or does not answer; try again soon",
        ),
        Refusal::Version { needed, cluster } => error(
            Cause::Members,
            format!(
                "expected all members to speak version {needed}, found the cluster at {cluster}; \
                 upgrade the servers that `tenure status` shows with less"
            ),
        ),
        Refusal::NotHandedOver => error(
            Cause::NotHandedOver,
            "the leadership could not be handed over in time",
        ),
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
