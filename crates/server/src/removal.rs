//! How a server learns that it was removed from its cluster.
//!
//! A server that is removed is sent nothing more, not even the entry that
//! removes it: by its own log it is a member for ever, and asks for votes that
//! no server gives. But when servers greet each other each says which members it
//! knows to be *committed*, and as of which entry ([`CommittedMembers`]).
//!
//! A committed log is one and the same everywhere, so if this server is a
//! member by all of its own log, and another one knows the members without it
//! as of the end of that or an entry beyond it, then it was removed by one of
//! those that it never got. Nothing less counts: who lags, or knows a change
//! that is not committed, may not know of this server *yet*.
//!
//! The verdict is for people and decides nothing. It falls when a leader sends
//! entries or a keep-alive, for then the server was added again.
//!
//! Left out: a server that was added and removed again before it had the entry
//! that added it, since nothing that it has says that it ever belonged; and one
//! whose log goes on beyond that of the others, until theirs is as long.

use tenure_alpo::{
    Body, Envelope, Identity, LogId, Membership, Node, Request, ServerId, StorageId,
};

use crate::transport::CommittedMembers;

/// What others have said of this server's place among the members.
#[derive(Debug, Default)]
pub(super) struct Removal {
    /// Up to which entry the newest word goes; older ones say nothing.
    upto: LogId,
    /// Who has said that this server is none, if that is the newest word.
    by: Option<ServerId>,
    /// The disk that has its number, by that word; `None` if no member has it.
    replacement_disk: Option<StorageId>,
}

impl Removal {
    /// Server `by` knows the members to be `theirs`. This server is `own`,
    /// and they are `ours` as of the end of its log. Gives what people should
    /// be told, if that is news.
    pub(super) fn hear(
        &mut self,
        own: Identity,
        ours: &CommittedMembers,
        by: ServerId,
        theirs: &CommittedMembers,
    ) -> Option<String> {
        let has = |members: &Membership| {
            let member = members.get(own.server);
            member.is_some_and(|member| member.storage == own.storage)
        };
        if theirs.upto <= self.upto || theirs.upto < ours.upto || !has(&ours.members) {
            return None;
        }
        self.upto = theirs.upto;
        let known = self.by.is_some().then_some(self.replacement_disk);
        self.by = (!has(&theirs.members)).then_some(by);
        self.replacement_disk = theirs.members.storage(own.server);
        // Once that it was removed, and once more to whom its number went.
        if known == Some(self.replacement_disk) {
            None
        } else {
            self.text(own)
        }
    }

    /// A message has come: those of a leader are for members only.
    pub(super) fn received(&mut self, envelope: &Envelope) {
        let Body::Request { request, .. } = &envelope.body else {
            return;
        };
        match request {
            Request::PreVote { .. } | Request::Vote { .. } | Request::Defer { .. } => {}
            _ => self.by = None,
        }
    }

    /// What has happened and what to do, if this server was removed.
    pub(super) fn text(&self, own: Identity) -> Option<String> {
        let (by, id) = (self.by?.get(), own.server.get());
        if let Some(disk) = self.replacement_disk {
            return Some(format!(
                "expected server {id} to be the one with the data directory {storage}, found that \
                 it was removed and that its number went to {disk}: server {by} knows that as of \
                 entry {upto}. Stop this one; to use the machine again, start it with an empty \
                 --data and a --id that is free, and run the `tenure member add` that it prints. \
                 If it is {disk} that should go, run `tenure member remove {id}` first",
                storage = own.storage,
                upto = self.upto,
            ));
        }
        Some(format!(
            "expected server {id} to be a member of the cluster, found that it was removed: \
             server {by} knows the members without it as of entry {upto}. Stop it, or, if it is to \
             come back, run `tenure member add {id} --storage {storage}` and, so that it counts, \
             `tenure member promote {id}`",
            upto = self.upto,
            storage = own.storage,
        ))
    }
}

/// The same by this server's own log, which may have come as far as the entry
/// that takes it out, but not so far that this is known to be committed: it
/// was sent nothing more.
pub(super) fn by_own_log(node: &Node) -> Option<String> {
    let (own, members) = (node.identity(), node.members());
    let (id, storage) = (own.server.get(), own.storage);
    match members.storage(own.server) {
        _ if !node.was_member() => None,
        Some(disk) if disk == storage => None,
        Some(disk) => Some(format!(
            "expected server {id} to be the one with the data directory {storage}, found that the \
             number went to {disk} by the end of this server's own log: it gives no vote and \
             is not counted, unless that change is taken back. `tenure member list` says \
             which of the two is the member; stop the other one"
        )),
        None if members.is_empty() => None,
        None => Some(format!(
            "expected server {id} to be a member of the cluster, found that it was removed by the \
             end of its own log. If `tenure member list` does not show it, stop it, or, if it is \
             to come back, run `tenure member add {id} --storage {storage}` and, so that it \
             counts, `tenure member promote {id}`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use tenure_alpo::{ClusterId, StorageId};

    use super::*;

    fn id(number: u64) -> ServerId {
        ServerId::new(number).expect("a number")
    }

    fn settled(upto: LogId, members: &[u64]) -> CommittedMembers {
        let storage = StorageId::from_u128(7);
        let members = members.iter().map(|number| (id(*number), storage));
        CommittedMembers {
            upto,
            members: Membership::bootstrapped(members),
        }
    }

    fn own() -> Identity {
        Identity {
            cluster: ClusterId::from_u128(1),
            server: id(3),
            storage: StorageId::from_u128(7),
        }
    }

    /// Whether server 3, with `ours`, takes it that it was removed when it
    /// hears these one after the other.
    fn removed(ours: &CommittedMembers, words: &[CommittedMembers]) -> bool {
        let mut removal = Removal::default();
        for word in words {
            removal.hear(own(), ours, id(1), word);
        }
        removal.text(own()).is_some()
    }

    #[test]
    fn only_who_knows_more_is_believed() {
        let ours = settled(10, &[1, 2, 3]);
        assert!(removed(&ours, &[settled(11, &[1, 2])]));
        assert!(!removed(&ours, &[settled(11, &[1, 2, 3])]));
        // It lags, and may not know this server yet.
        assert!(!removed(&ours, &[settled(9, &[1, 2])]));
        assert!(!removed(&ours, &[settled(4, &[1, 2])]));
        // This one is still to learn that it was added.
        assert!(!removed(&settled(0, &[]), &[settled(11, &[1, 2])]));
        assert!(!removed(&settled(8, &[1, 2]), &[settled(11, &[1, 2])]));
        // Removed and added again: the newer word counts, whenever it comes.
        let (without, with) = (settled(11, &[1, 2]), settled(12, &[1, 2, 3]));
        assert!(!removed(&ours, &[without.clone(), with.clone()]));
        assert!(!removed(&ours, &[with, without]));
    }

    #[test]
    fn who_has_the_number_now_is_named() {
        let ours = settled(10, &[1, 2, 3]);
        let disk = StorageId::from_u128(9);
        let members = [(1, 7), (2, 7), (3, 9)];
        let members = members.map(|(number, it)| (id(number), StorageId::from_u128(it)));
        let theirs = CommittedMembers {
            upto: 12,
            members: Membership::bootstrapped(members),
        };
        let mut removal = Removal::default();
        // That comes after the word that it was removed.
        let without = settled(11, &[1, 2]);
        assert!(removal.hear(own(), &ours, id(1), &without).is_some());
        let said = removal.hear(own(), &ours, id(1), &theirs).expect("news");
        assert_eq!(removal.hear(own(), &ours, id(2), &theirs), None);
        for part in [
            &format!("its number went to {disk}"),
            "tenure member remove 3",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn it_is_said_once_with_what_to_do() {
        let (ours, theirs) = (settled(10, &[1, 2, 3]), settled(11, &[1, 2]));
        let mut removal = Removal::default();
        let said = removal.hear(own(), &ours, id(1), &theirs).expect("news");
        for part in [
            "server 3 to be a member",
            "server 1 knows the members without it as of entry 11",
            "tenure member add 3 --storage 00000000000000000000000000000007",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let later = settled(12, &[1, 2]);
        assert_eq!(removal.hear(own(), &ours, id(2), &later), None);
    }
}
