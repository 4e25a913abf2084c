//! A blank server on its way into a cluster.
//!
//! It greets everybody it was told of and hears who they are, until all are
//! blank too (then they found a cluster), or somebody has one that it belongs
//! to. What it may conclude from which answer is judged by
//! [`Founding`](tenure_core::alpo::Founding).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use tenure_core::alpo::{
    Answer, Founding, Hello, Identity, LogId, Membership, Refusal, ServerId, Stranger,
};

use super::data;
use super::ended::Ended;
use super::inbox::{Event, Inbox, Told};
use super::peers::Peers;
use super::refusals::Refusals;
use super::shared::Shared;

/// Waits until this server is part of a cluster. The members are none if it
/// has to learn them from its leader.
pub(super) async fn found(
    founding: &mut Founding,
    peers: &mut Peers,
    (shared, data): (&Shared, &Path),
    inbox: &Arc<Inbox>,
) -> Result<(Identity, Membership), Ended> {
    let wanted = founding.missing().into_iter();
    let wanted = Membership::founded(wanted.map(|id| (id, founding.hello().storage)));
    peers.greeted(&wanted);
    // Alone it needs nobody else.
    if let Some(founded) = founding.complete() {
        return Ok(founded);
    }
    let (mut events, mut complaints) = (Vec::new(), Complaints::default());
    loop {
        inbox.more().await;
        inbox.take(&mut events);
        let mut rest = std::mem::take(&mut events).into_iter();
        while let Some(event) = rest.next() {
            match event {
                Event::Greeted { greeting, dialled } => {
                    shared.face().meet(&greeting, dialled, 0);
                    peers.greeted(&wanted);
                    let mut founded = hear(founding, &greeting.hello, &mut complaints, shared)?;
                    if let Some(table) = founding.due().filter(|_| founded.is_none()) {
                        // Durable before anybody hears of it.
                        data::write_promise(data, &table)?;
                        founded = founding.promise(table);
                        shared.say(founding.hello());
                        peers.start_again(&wanted);
                    }
                    if let Some(founded) = founded {
                        if let Some(text) = differ(&wanted, founding.hello().server, &founded.1) {
                            tracing::warn!("{text}");
                        }
                        // The request to stop may be among them.
                        inbox.put_all(rest);
                        return Ok(founded);
                    }
                }
                Event::Connected(visit) => peers.connected(visit, &wanted),
                Event::Closed(visit, _) => {
                    peers.closed(visit);
                }
                Event::Asked(_, reply) => {
                    let answer = Answer::Refused(Refusal::NotLeader { leader: None });
                    reply.send(Told { answer, at: None });
                }
                Event::Look(look) => look(None),
                Event::Stop => return Err(Ended::Stopped),
                // A leader that has admitted it says so again when it is part
                // of the cluster.
                Event::Received(..) | Event::Persisted(_) => {}
                // Who is blank has promised nothing.
                Event::SetBack(_) => {}
                Event::Refused { by, why } => {
                    if complaints.refusals.hear(by, why) {
                        complaints.tell(founding, shared);
                    }
                }
                // Whoever asked sees that nobody will answer.
                Event::Snapshot(teller) => drop(teller),
                Event::DiskFailed(error) => return Err(Ended::Disk(error)),
            }
        }
    }
}

/// What to say if the cluster was not founded by the servers of `--peers`:
/// `others` and this server, `own`. That happens if servers were started with
/// different `--peers`, since each waits for those that it was told of. None
/// among the `founders` means that they are not known yet.
fn differ(others: &Membership, own: ServerId, founders: &Membership) -> Option<String> {
    let ids = |members: &Membership| -> BTreeSet<_> { members.iter().map(|(id, _)| id).collect() };
    let (mut expected, found) = (ids(others), ids(founders));
    expected.insert(own);
    if found.is_empty() || found == expected {
        return None;
    }
    let mut text = format!(
        "expected that the servers of --peers found the cluster ({}), found that {} did, since \
         not all were started with the same --peers",
        names(expected.iter().copied()),
        names(found.iter().copied()),
    );
    let missing: Vec<_> = expected.difference(&found).copied().collect();
    if !missing.is_empty() {
        let missing = names(missing.into_iter());
        let _ = write!(
            text,
            "; no member: {missing}. To take it in, start it, run the `tenure member add` that it \
             prints, and then `tenure member promote`"
        );
    }
    let more: Vec<_> = found.difference(&expected).copied().collect();
    if !more.is_empty() {
        let more = names(more.into_iter());
        let _ = write!(
            text,
            "; a member that --peers does not name here: {more}. Correct --peers, or, if it does \
             not belong, `tenure member remove` it"
        );
    }
    Some(text)
}

/// What to say if `--peers` names servers that are no members by the log that
/// a server starts with, which ends with entry `end`. A cluster of one whose
/// server is started with more `--peers` is still a cluster of one: flags
/// take nobody in. Fewer are no fault: they are where to begin looking. None
/// among the `members` means that they are not known yet.
pub(super) fn beyond(
    peers: impl Iterator<Item = ServerId>,
    members: &Membership,
    (data, end): (&Path, LogId),
) -> Option<String> {
    let more: Vec<_> = peers.filter(|id| members.get(*id).is_none()).collect();
    if more.is_empty() || members.is_empty() {
        return None;
    }
    let found = names(members.iter().map(|(id, _)| id));
    let add = |id: &ServerId| {
        let id = id.get();
        format!("`tenure member add {id} --storage …` and `tenure member promote {id}`")
    };
    let adds: Vec<_> = more.iter().map(add).collect();
    Some(format!(
        "expected the servers of --peers to be members, found that {} {}: the cluster in {} is of \
         {found}, as of entry {end} of its log, and --peers takes nobody in. Unless `tenure \
         member list` shows more by now, or --peers is to be corrected, start each with an empty \
         --data and run what it prints: {}",
        names(more.iter().copied()),
        if more.len() == 1 {
            "is none"
        } else {
            "are none"
        },
        data.display(),
        adds.join("; "),
    ))
}

/// Servers as a list for people.
fn names(servers: impl Iterator<Item = ServerId>) -> String {
    let names: Vec<_> = servers.map(|id| id.get().to_string()).collect();
    match &names[..] {
        [one] => format!("server {one}"),
        _ => format!("servers {}", names.join(", ")),
    }
}

/// Why this server is not part of a cluster yet.
#[derive(Default)]
struct Complaints {
    /// What is wrong with whom, until it says something else; and whether this
    /// server's number is, or was, another's.
    strangers: BTreeMap<ServerId, (bool, String)>,
    refusals: Refusals,
}

impl Complaints {
    /// Says to people what this server waits for.
    fn tell(&self, founding: &Founding, shared: &Shared) {
        let strangers = self.strangers.values();
        let mut texts: Vec<_> = strangers.map(|(_, text)| text.clone()).collect();
        // Several members say the same of a server that is none.
        texts.dedup();
        let refusals = self.refusals.text(&Membership::default());
        let is_twin = self.strangers.values().any(|(is_twin, _)| *is_twin);
        let excluded = is_twin || refusals.is_some();
        texts.extend(refusals);
        let waiting = if texts.is_empty() {
            let missing = founding.missing();
            if missing.is_empty() {
                "a new cluster waits until its servers have agreed on each other's disks".to_owned()
            } else {
                format!("a new cluster waits for {}", names(missing.into_iter()))
            }
        } else {
            texts.join("; ")
        };
        shared.standing.send_if_modified(|standing| {
            let news = standing.waiting != waiting;
            if news && is_twin {
                tracing::warn!("{waiting}");
            } else if news && !excluded {
                // Who does not let this server in was said where it dials.
                tracing::info!("{waiting}");
            }
            (standing.waiting, standing.excluded) = (waiting, excluded);
            news
        });
    }
}

fn hear(
    founding: &mut Founding,
    hello: &Hello,
    complaints: &mut Complaints,
    shared: &Shared,
) -> Result<Option<(Identity, Membership)>, Ended> {
    let strangers = &mut complaints.strangers;
    match founding.heard(hello) {
        Ok(Some(founded)) => return Ok(Some(founded)),
        Ok(None) => drop(strangers.remove(&hello.server)),
        // Somebody may correct that while this server waits.
        Err(
            stranger @ (Stranger::NotAMember { .. }
            | Stranger::NotAPeer { .. }
            | Stranger::OtherPeers { .. }
            | Stranger::Promised { .. }
            // It has promised nothing and takes part in nothing: there is no
            // need to end, and the commands that mend it find it waiting.
            | Stranger::Replaced { .. }
            | Stranger::SameNumber { .. }),
        ) => {
            let is_twin = matches!(
                stranger,
                Stranger::Replaced { .. }
                    | Stranger::SameNumber { .. }
                    | Stranger::Promised { .. }
            );
            strangers.insert(hello.server, (is_twin, stranger.to_string()));
        }
        Err(stranger) => return Err(Ended::Stranger(stranger)),
    }
    complaints.tell(founding, shared);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use tenure_core::alpo::StorageId;

    use super::*;

    fn id(number: u64) -> ServerId {
        ServerId::new(number).expect("a number")
    }

    fn founded(numbers: &[u64]) -> Membership {
        let storage = StorageId::from_u128(7);
        Membership::founded(numbers.iter().map(|number| (id(*number), storage)))
    }

    #[test]
    fn peers_that_are_no_members_are_named_with_what_takes_them_in() {
        let beyond = |peers: &[u64], members: &[u64]| {
            let peers = peers.iter().copied().map(id);
            beyond(peers, &founded(members), (Path::new("/data"), 41))
        };
        assert_eq!(beyond(&[1, 2, 3], &[1, 2, 3]), None);
        // Where to begin looking.
        assert_eq!(beyond(&[1, 3], &[1, 2, 3]), None);
        // They will be learnt from the log.
        assert_eq!(beyond(&[1, 2, 3], &[]), None);
        let said = beyond(&[1, 2, 3], &[1]).expect("it is said");
        for part in [
            "found that servers 2, 3 are none",
            "the cluster in /data is of server 1, as of entry 41",
            "tenure member add 2 --storage",
            "tenure member promote 3",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn other_founders_than_peers_are_named_with_what_to_do() {
        let differ =
            |others: &[u64], found: &[u64]| differ(&founded(others), id(2), &founded(found));
        assert_eq!(differ(&[1, 3], &[1, 2, 3]), None);
        // They will be learnt from the log.
        assert_eq!(differ(&[1, 3], &[]), None);

        let fewer = differ(&[1, 3], &[1, 2]).expect("it is said");
        for part in [
            "(servers 1, 2, 3)",
            "found that servers 1, 2 did",
            "no member: server 3",
            "tenure member add",
        ] {
            assert!(fewer.contains(part), "{part}: {fewer}");
        }
        assert!(!fewer.contains("does not name"), "{fewer}");

        let more = differ(&[1], &[1, 2, 4]).expect("it is said");
        assert!(more.contains("not name here: server 4"), "{more}");
        assert!(!more.contains("no member"), "{more}");
    }
}
