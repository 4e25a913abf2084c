//! The errors by which a server answers what the machine has refused.

use std::time::Duration;

use tenure_alpo::{ChangeError, Refusal, ServerId, ServerList, SessionId};
use tenure_api::v1::{self, Cause};

use super::errors::{busy, error, most_of, name_of, other_content, out_of_order, too_many};
use super::shared::Shared;

pub(super) fn not_leader(hint: Option<ServerId>, shared: &Shared) -> v1::Error {
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
        ChangeError::AlreadyMember => "this server is a member already",
        ChangeError::NotAMember => {
            "expected a member, found no server of this number among them; `tenure member list` \
             shows them"
        }
        ChangeError::AlreadyVoter => "this server is a voter already; there is nothing to promote",
        ChangeError::LastVoter => "this is the last voter: no voter would be left",
        ChangeError::Full => "there are as many members as there may be",
    }
}

fn not_owner() -> v1::Error {
    error(
        Cause::NotOwner,
        "expected the secret that the session was opened with, or without one the token, found \
         something else: the session is another's",
    )
}

pub(super) fn refused(refusal: Refusal, shared: &Shared) -> v1::Error {
    match refusal {
        Refusal::NotLeader { leader } => not_leader(leader, shared),
        Refusal::Busy => busy(),
        Refusal::UpgradeUnderWay => error(
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
        Refusal::FewSessionsLeft { opener, held, left } => too_many(format!(
            "expected a caller with fewer sessions than there are places left ({left} of {}, \
              beside those that are kept for operators), found that {} has {held}; the callers \
              with most: {}",
            super::config::limits().sessions,
            name_of(&opener),
            most_of(&shared.holders())
        )),
        Refusal::QuotaExceeded(why) => super::quota_usage::no_room(&why),
        Refusal::SessionWindowFull => error(
            Cause::Window,
            "expected at most 1,024 requests of a session under way, or fewer (64 at least) where \
             its caller has more than 256 sessions",
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
        Refusal::LearnerBehind => error(
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
