//! Who is taken for a server of this cluster, and what it is told and asked.
//!
//! Whoever connects to the servers' port, and whoever is found at an address
//! that was dialled, proves which server it is before anything that it says
//! counts: by its certificate, or by the secret that the servers share
//! ([`crate::transport::PeerSecret`]). Who does not is refused with what is
//! missing; its greeting is forgotten, and no message of it is read.
//!
//! A secret is demanded of everybody as soon as the cluster's version says
//! that all servers can prove one. Until then a server that proves nothing is
//! let in, since it may be of an earlier release; but one that proves *another*
//! secret never is. When the version rises, connections on which nothing was
//! proven end ([`Shared::proven_only`]). A blank server, which has no log to
//! say the version, demands the proof at once: what it founds or joins it can
//! never leave again.
//!
//! Where there are neither certificates nor a secret, the cluster's id, the
//! number and the disk that a greeting names are all there is, and count as
//! proof. Then who knows them can pass for a server.
//!
//! **Addresses** are taken from the server that they are of. A member, by this
//! server's own log and with the disk that the log names, also passes on those
//! of others. Somebody whom the log does not name, or who is blank, tells its
//! own alone; it is kept apart with its disk, and used when the log names that
//! number with that disk ([`Guests`]). Who was refused tells none.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use tenure_core::alpo::{ClusterVersion, MAX_MEMBERS, Membership, ServerId, StorageId};

use super::complaints::Complaints;
use super::shared::{Face, Shared};
use crate::clock;
use crate::transport::{Contact, Greeting, Introduced, Line, Side, Tls};

/// Servers that are no members and have said where they are, at most.
const GUESTS_MAX: usize = 2 * MAX_MEMBERS;

/// Whether the other side has proven to be a server of this cluster. `Ok` says
/// whether it did more than say so.
///
/// # Errors
/// What was expected, what was found and what to do.
pub(super) fn proof(shared: &Shared, introduced: &Introduced, side: Side) -> Result<bool, String> {
    let Some(secret) = &shared.secret else {
        return Ok(false);
    };
    let other = introduced.greeting.hello.server.get();
    let Some(proof) = introduced.proof else {
        if secret.optional || !shared.proven_only() {
            return Ok(false);
        }
        return Err(format!(
            "expected server {other} to prove that it knows the secret of this cluster's servers, \
             found no proof; start all of them with the same --peer-secret-file (servers on one \
             machine share one by themselves). While some have none yet, start those that have it \
             with --peer-secret-optional"
        ));
    };
    if secret.proves(&introduced.transcript.bytes(side), &proof) {
        return Ok(true);
    }
    Err(format!(
        "expected server {other} to prove that it knows the secret of this cluster's servers, \
         found the proof of another secret; start all of them with the same --peer-secret-file"
    ))
}

/// Why whoever connected is not believed to be the server that it says it is,
/// if so; else whether it has proven it. People are told once.
pub(super) fn doubt(
    (shared, tls, complaints): (&Shared, Option<&Tls>, &Complaints),
    (line, from): (&Line, IpAddr),
    introduced: &Introduced,
) -> Result<bool, String> {
    let server = introduced.greeting.hello.server;
    let certified = tls.map_or(Ok(()), |tls| tls.proves(line, server));
    let proven = certified.and_then(|()| proof(shared, introduced, Side::Dialler));
    if let Err(why) = &proven
        && complaints.is_news(from, why, clock::boot())
    {
        tracing::warn!(%from, "not let in as a server: {why}");
    }
    proven.map(|proven| proven || tls.is_some())
}

impl Shared {
    /// Whether everybody has to prove the secret.
    pub(super) fn proven_only(&self) -> bool {
        let face = self.face();
        face.identity.is_none() || face.details.version >= ClusterVersion::SECOND
    }

    /// Waits until those who have proven nothing are to go.
    pub(super) async fn until_proven_only(&self) {
        let mut version = self.version.subscribe();
        let asked = self.secret.as_ref().is_some_and(|it| !it.optional);
        let risen = version.wait_for(|it| asked && *it >= ClusterVersion::SECOND);
        if risen.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Where servers are that the log does not name, with the disk that each has.
/// Nobody else is told of them, and clients are not sent to them.
#[derive(Clone, Default, Debug)]
pub(super) struct Guests(
    BTreeMap<ServerId, (StorageId, Contact)>,
    /// In the order in which they came.
    VecDeque<ServerId>,
);

impl Guests {
    /// Where a server is that has proven to be of this cluster, and may lead
    /// it already.
    pub(super) fn get(&self, server: ServerId) -> Option<&Contact> {
        self.0.get(&server).map(|(_, contact)| contact)
    }

    /// One more; if there are too many, the oldest goes that is not connected.
    fn keep(
        &mut self,
        server: ServerId,
        it: (StorageId, Contact),
        connected: &BTreeMap<ServerId, StorageId>,
    ) {
        if self.0.len() >= GUESTS_MAX && !self.0.contains_key(&server) {
            let gone = self.1.iter().position(|it| !connected.contains_key(it));
            let Some(gone) = gone.and_then(|index| self.1.remove(index)) else {
                return;
            };
            self.0.remove(&gone);
        }
        if self.0.insert(server, it).is_none() {
            self.1.push_back(server);
        }
    }
}

impl Face {
    /// Whether the log names this server with this disk.
    pub(super) fn is_member(&self, server: ServerId, storage: StorageId) -> bool {
        let member = self.members.get(server);
        member.is_some_and(|member| member.storage == storage)
    }

    /// Takes an address if it is newer than what is known. Those of members
    /// and founders, and of this server, always have room, and those of the
    /// connected stay: of the others the oldest makes room for one more.
    pub(super) fn learn(&mut self, server: ServerId, contact: &Contact) -> bool {
        let (own, members) = (self.hello.server, &self.members);
        let (founders, connected) = (&self.hello.founders, &self.connected);
        let wanted = |it| it == own || members.get(it).is_some() || founders.contains(&it);
        let keeps = |it| wanted(it) || connected.contains_key(&it);
        self.book
            .learn_among(server, contact, wanted(server), keeps)
    }

    /// Another server, which was not refused, has introduced itself: takes the
    /// addresses that it may tell. `dialled` at an address that this server
    /// was told of, and not whoever came. Whether there is news to keep.
    pub(super) fn meet(&mut self, greeting: &Greeting, dialled: bool) -> bool {
        let hello = &greeting.hello;
        let (server, own) = (hello.server, self.hello.server);
        let relays = match self.identity {
            None => dialled,
            Some(identity) => {
                // One without a member yet reads the log from its beginning,
                // and has to be found by a leader that it knows nothing of.
                let joins = self.members.is_empty();
                hello.cluster == Some(identity.cluster)
                    && (joins || self.is_member(server, hello.storage))
            }
        };
        if relays {
            let told = greeting.book.iter().filter(|(id, _)| *id != own);
            return told.fold(false, |news, (id, it)| self.learn(id, it) || news);
        }
        let Some(contact) = greeting.book.get(server) else {
            return false;
        };
        if self.identity.is_none() {
            // Those with whom it would found, and those that have admitted it.
            let known = hello.known.get(&own) == Some(&self.hello.storage);
            let wanted = known || self.hello.founders.contains(&server);
            return wanted && self.learn(server, contact);
        }
        // A member's number with another disk: where that one is, is not
        // where the member is.
        if self.members.get(server).is_none() && server != own {
            let it = (hello.storage, contact.clone());
            self.guests.keep(server, it, &self.connected);
        }
        false
    }

    /// The log has other members now: those of them who were guests are where
    /// they said. Whether there is news to keep.
    ///
    /// What was told before the log named anybody may be of a disk that was
    /// removed and lives on. It stays as a place to look, and gives way to
    /// what a member says of itself; passed on, it replaces nothing.
    pub(super) fn admit(&mut self, members: Membership) -> bool {
        if self.members.is_empty() {
            self.book.doubt_all_but(self.hello.server);
        }
        self.members = members;
        let mut known = Vec::new();
        self.guests.0.retain(|server, (storage, contact)| {
            let member = self.members.get(*server);
            if member.is_some_and(|member| member.storage == *storage) {
                known.push((*server, contact.clone()));
            }
            member.is_none()
        });
        let Guests(guests, order) = &mut self.guests;
        order.retain(|server| guests.contains_key(server));
        let known = known.iter();
        known.fold(false, |news, (server, it)| self.learn(*server, it) || news)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use tenure_core::alpo::{ClusterId, Hello, Identity, MAX_NUMBER, Table};

    use super::*;
    use crate::transport::{Book, Details, Form, PeerSecret, Settings, Settled, Transcript};

    const CLUSTER: ClusterId = ClusterId::from_u128(1);
    const SETTINGS: Settings = Settings {
        timeout: 1,
        drift: 1,
        lease_reads: false,
        fast_detection: true,
    };

    fn id(number: u64) -> ServerId {
        ServerId::new(number).expect("a number")
    }

    fn disk(number: u64) -> StorageId {
        StorageId::from_u128(number.into())
    }

    fn hello(server: u64, storage: u64, cluster: Option<ClusterId>) -> Hello {
        Hello {
            server: id(server),
            storage: disk(storage),
            cluster,
            known: Table::new(),
            founders: BTreeSet::new(),
        }
    }

    fn contact(edition: u64, place: &str) -> Contact {
        Contact {
            edition,
            peer: place.to_owned(),
            client: place.to_owned(),
        }
    }

    /// Server 1 of a cluster of these, each with the disk of its number.
    fn face(members: &[u64]) -> Face {
        let members = members.iter().map(|number| (id(*number), disk(*number)));
        Face {
            identity: Some(Identity {
                cluster: CLUSTER,
                server: id(1),
                storage: disk(1),
            }),
            members: Membership::founded(members),
            hello: hello(1, 1, Some(CLUSTER)),
            settings: SETTINGS,
            book: Book::default(),
            details: Details::default(),
            guests: Guests::default(),
            connected: BTreeMap::new(),
            unproven: BTreeSet::new(),
            edition: 0,
        }
    }

    /// What a server says that has everybody at `place`.
    fn greeting(hello: Hello, place: &str) -> Greeting {
        let mut book = Book::default();
        for number in 1..=9 {
            book.learn_one(id(number), &contact(5, place));
        }
        Greeting {
            hello,
            book,
            settled: Settled::default(),
            settings: SETTINGS,
            details: None,
        }
    }

    fn at(face: &Face, server: u64) -> Option<&str> {
        face.book.get(id(server)).map(|it| &*it.client)
    }

    #[test]
    fn only_members_pass_on_where_others_are() {
        // A member, but never about this server itself.
        let mut us = face(&[1, 2, 3]);
        assert!(us.meet(&greeting(hello(2, 2, Some(CLUSTER)), "h:1"), false));
        assert_eq!((at(&us, 2), at(&us, 3)), (Some("h:1"), Some("h:1")));
        assert_eq!(at(&us, 1), None);

        for stranger in [
            // Its number with another disk, of another cluster, blank, unknown.
            hello(2, 77, Some(CLUSTER)),
            hello(2, 2, Some(ClusterId::from_u128(9))),
            hello(2, 2, None),
            hello(7, 7, None),
            hello(7, 7, Some(CLUSTER)),
        ] {
            let mut us = face(&[1, 2, 3]);
            assert!(!us.meet(&greeting(stranger.clone(), "h:1"), true));
            assert_eq!(us.book, Book::default(), "{stranger:?}");
        }
    }

    #[test]
    fn a_guest_is_where_it_said_once_the_log_names_its_disk() {
        let members = |list: &[(u64, u64)]| {
            let list = list
                .iter()
                .map(|(number, storage)| (id(*number), disk(*storage)));
            Membership::founded(list)
        };
        let mut us = face(&[1, 2, 3]);
        us.meet(&greeting(hello(4, 4, None), "four:1"), false);
        us.meet(&greeting(hello(5, 77, None), "forged:1"), false);
        assert_eq!(us.guests.get(id(4)).map(|it| &*it.peer), Some("four:1"));
        assert!(us.admit(members(&[(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)])));
        assert_eq!((at(&us, 4), at(&us, 5)), (Some("four:1"), None));
        assert_eq!(us.guests.get(id(5)).map(|it| &*it.peer), None);
        // The one that was meant comes again.
        assert!(us.meet(&greeting(hello(5, 5, Some(CLUSTER)), "five:1"), false));
        assert_eq!(at(&us, 5), Some("five:1"));
    }

    /// A removed disk that lives on has told a blank server where it is, under
    /// the number of a member. The server passes that on as nothing newer, and
    /// the member's own word goes before it.
    #[test]
    fn what_was_told_before_the_log_named_members_replaces_nothing() {
        let mut us = face(&[]);
        assert!(us.meet(&greeting(hello(3, 77, Some(CLUSTER)), "old:1"), true));
        let members = [(1, 1), (2, 2), (3, 3)];
        let members = members.map(|(number, storage)| (id(number), disk(storage)));
        us.admit(Membership::founded(members));
        let edition = us.book.get(id(3)).map(|it| it.edition);
        assert_eq!((at(&us, 3), edition), (Some("old:1"), Some(0)));
        assert!(us.meet(&greeting(hello(3, 3, Some(CLUSTER)), "new:1"), false));
        assert_eq!(at(&us, 3), Some("new:1"));
    }

    #[test]
    fn there_are_so_many_guests() {
        let mut us = face(&[1, 2, 3]);
        for number in 10..10_000 {
            let mut it = greeting(hello(number, number, None), "h:1");
            it.book.learn_one(id(number), &contact(1, "h:1"));
            us.connected.insert(id(10), disk(10));
            us.meet(&it, false);
        }
        assert_eq!(us.guests.0.len(), GUESTS_MAX);
        assert!(us.guests.get(id(10)).is_some(), "it is connected");
    }

    #[test]
    fn a_blank_server_hears_of_others_where_it_was_sent() {
        let blank = || {
            let mut face = face(&[]);
            face.identity = None;
            face.hello.cluster = None;
            face.hello.founders = BTreeSet::from([id(1), id(2)]);
            face
        };
        let mut us = blank();
        assert!(us.meet(&greeting(hello(7, 7, Some(CLUSTER)), "h:1"), true));
        assert_eq!(at(&us, 3), Some("h:1"));
        // Whoever comes tells its own, if it is one that is waited for.
        let mut us = blank();
        assert!(!us.meet(&greeting(hello(7, 7, Some(CLUSTER)), "h:1"), false));
        assert!(us.meet(&greeting(hello(2, 2, None), "h:1"), false));
        let mut admits = hello(8, 8, Some(CLUSTER));
        admits.known.insert(id(1), disk(1));
        assert!(us.meet(&greeting(admits, "h:1"), false));
        assert_eq!(us.book.ids(), [id(2), id(8)]);
    }

    fn introduced(proof: Option<[u8; 32]>) -> Introduced {
        Introduced {
            greeting: greeting(hello(2, 2, Some(CLUSTER)), "h:1"),
            form: Form::Second,
            proof,
            transcript: Transcript::default(),
        }
    }

    #[test]
    fn a_proof_is_asked_for_when_all_can_give_it() {
        let secret = PeerSecret::new(b"a secret of all servers").expect("long enough");
        let other = PeerSecret::new(b"a secret of other servers").expect("long enough");
        let bytes = Transcript::default().bytes(Side::Dialler);
        let (right, wrong) = (Some(secret.prove(&bytes)), Some(other.prove(&bytes)));
        // The proof of one side is none of the other.
        let turned = Some(secret.prove(&Transcript::default().bytes(Side::Acceptor)));
        let told = |secret: Option<PeerSecret>, version, blank: bool, proof| {
            let mut face = face(&[1, 2, 3]);
            face.details.version = version;
            if blank {
                face.identity = None;
            }
            let shared = Shared::new(face, secret);
            super::proof(&shared, &introduced(proof), Side::Dialler)
        };
        let (first, second) = (ClusterVersion::FIRST, ClusterVersion::SECOND);
        for version in [first, second] {
            assert_eq!(told(None, version, false, None), Ok(false));
            assert_eq!(told(None, version, false, wrong), Ok(false));
            assert_eq!(told(Some(secret.clone()), version, false, right), Ok(true));
            let optional = Some(secret.clone().or_none(true));
            assert_eq!(told(optional.clone(), version, false, None), Ok(false));
            for bad in [wrong, turned] {
                assert!(told(Some(secret.clone()), version, false, bad).is_err());
                assert!(told(optional.clone(), version, false, bad).is_err());
            }
        }
        assert_eq!(told(Some(secret.clone()), first, false, None), Ok(false));
        assert!(told(Some(secret.clone()), first, true, None).is_err());
        let said = told(Some(secret), second, false, None).expect_err("no proof");
        for part in [
            "server 2",
            "no proof",
            "--peer-secret-file",
            "--peer-secret-optional",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn no_edition_is_too_new_to_be_followed_by_another() {
        let mut book = Book::default();
        assert!(!book.learn_one(id(2), &contact(MAX_NUMBER + 1, "h:1")));
        assert!(!book.learn_one(id(2), &contact(u64::MAX, "h:1")));
        assert!(book.learn_one(id(2), &contact(MAX_NUMBER, "h:1")));
    }
}
