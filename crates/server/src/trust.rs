//! Who is taken for a server of this cluster, and what it is told and asked.
//!
//! A peer that connects to the servers' port, and one that is found at an
//! address that was dialled, proves which server it is before anything that it
//! says counts: by its certificate, or by the secret that the servers share
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
//! of others, as far as it means the same disks by their numbers. A server that
//! the log does not name with its disk, or that is blank, tells its own alone;
//! that is kept apart with the disk, and used when the log names that number
//! with that disk ([`UnconfirmedContacts`]). One that was refused tells none.

use std::net::IpAddr;

use tenure_alpo::{ClusterVersion, LogId, Membership, ServerId, StorageId};
use tenure_runtime::clock;

use super::log_rate_limit::LogRateLimit;
use super::shared::{LocalServer, Shared};
use super::unconfirmed_contacts::UnconfirmedContacts;
use crate::transport::{
    Contact, Greeting, GreetingReply, Introduced, MaybeTlsStream, Proof, Side, Tls, Transcript,
};

/// Whether the other side has proven to be a server of this cluster. `Ok` says
/// whether it did more than say so.
///
/// # Errors
/// What was expected, what was found and what to do.
pub(super) fn proof(shared: &Shared, introduced: &Introduced, side: Side) -> Result<bool, String> {
    let other = introduced.greeting.hello.server;
    let (proof, transcript) = (introduced.proof.as_ref(), &introduced.transcript);
    proof_of(shared, other, (proof, transcript, side))
}

/// The same of a server that was dialled and does not welcome this one. By its
/// certificate it was believed before it was greeted.
///
/// # Errors
/// What was expected, what was found and what to do.
pub(super) fn proof_of_answer(
    shared: &Shared,
    server: ServerId,
    answered: &GreetingReply,
) -> Result<bool, String> {
    let (proof, transcript) = (answered.proof.as_ref(), &answered.transcript);
    proof_of(shared, server, (proof, transcript, Side::Acceptor))
}

fn proof_of(
    shared: &Shared,
    other: ServerId,
    (proof, transcript, side): (Option<&Proof>, &Transcript, Side),
) -> Result<bool, String> {
    let Some(secret) = &shared.secret else {
        return Ok(false);
    };
    let other = other.get();
    let Some(proof) = proof else {
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
    if secret.proves(&transcript.bytes(side), proof) {
        return Ok(true);
    }
    Err(format!(
        "expected server {other} to prove that it knows the secret of this cluster's servers, \
         found the proof of another secret; start all of them with the same --peer-secret-file"
    ))
}

/// Why a peer that connected is not believed to be the server that it says it
/// is, if so; else whether it has proven it. People are told once.
pub(super) fn doubt(
    (shared, tls, log_rate_limit): (&Shared, Option<&Tls>, &LogRateLimit),
    (line, from): (&MaybeTlsStream, IpAddr),
    introduced: &Introduced,
) -> Result<bool, String> {
    let server = introduced.greeting.hello.server;
    let certified = tls.map_or(Ok(()), |tls| tls.proves(line, server));
    let proven = certified.and_then(|()| proof(shared, introduced, Side::Dialler));
    if let Err(why) = &proven
        && log_rate_limit.should_log(from, why, clock::boot())
    {
        tracing::warn!(%from, "not let in as a server: {why}");
    }
    proven.map(|proven| proven || tls.is_some())
}

impl Shared {
    /// Whether everybody has to prove the secret.
    pub(super) fn proven_only(&self) -> bool {
        let local_server = self.local_server();
        local_server.identity.is_none() || local_server.details.version >= ClusterVersion::SECOND
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

impl LocalServer {
    /// Whether the log names this server with this disk.
    pub(super) fn is_member(&self, server: ServerId, storage: StorageId) -> bool {
        let member = self.members.get(server);
        member.is_some_and(|member| member.storage == storage)
    }

    /// Where a server is that the log does not name. It has proven to be of
    /// this cluster, and may lead it already.
    pub(super) fn unconfirmed_contact(&self, server: ServerId) -> Option<&Contact> {
        let unnamed = self.members.get(server).is_none();
        let mut unconfirmed = self.unconfirmed.0.iter().filter(|_| unnamed);
        unconfirmed
            .find(|((id, _), _)| *id == server)
            .map(|(_, it)| it)
    }

    /// Takes an address if it is newer than what is known. Those of members
    /// and founders, and of this server, always have room, and those of the
    /// connected stay: of the others the oldest makes room for one more.
    pub(super) fn learn(&mut self, server: ServerId, contact: &Contact) -> bool {
        let (own, members) = (self.hello.server, &self.members);
        let (founders, connected) = (&self.hello.founders, &self.connected);
        let wanted = |it| it == own || members.get(it).is_some() || founders.contains(&it);
        let keeps = |it| wanted(it) || connected.contains_key(&it);
        self.address_book
            .learn_among(server, contact, wanted(server), keeps)
    }

    /// Another server, which was not refused, has introduced itself: takes the
    /// addresses that it may tell. `dialled` at an address that this server was
    /// told of, and not one that connected by itself; `applied` is up to where
    /// this server knows what is committed. Whether there is news to keep.
    pub(super) fn meet(&mut self, greeting: &Greeting, dialled: bool, applied: LogId) -> bool {
        let hello = &greeting.hello;
        let (server, own) = (hello.server, self.hello.server);
        let who = (server, hello.storage);
        if let Some(contact) = greeting.address_book.get(server)
            && server != own
            && !self.is_member(who.0, who.1)
        {
            // It counts when the log names it: with this disk, which may be
            // another than the one that has the number now.
            self.unconfirmed.keep(who, contact, &self.connected);
        }
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
            let told = greeting.address_book.iter().filter(|(id, _)| *id != own);
            let told = told.filter(|(id, _)| self.means(*id, greeting, applied));
            let told: Vec<_> = told.collect();
            let told = told.into_iter();
            return told.fold(false, |news, (id, it)| {
                let first_hand = id == server && self.address_book.learn_first_hand(id, it);
                self.learn(id, it) || first_hand || news
            });
        }
        let Some(contact) = greeting.address_book.get(server) else {
            return false;
        };
        if self.identity.is_none() {
            // Those with whom it would found, and those that have admitted it.
            let known = hello.known.get(&own) == Some(&self.hello.storage);
            let wanted = known || self.hello.founders.contains(&server);
            return wanted && self.learn(server, contact);
        }
        false
    }

    /// Whether a member that passes on where server `of` is means the disk
    /// that this server's log names. An address says nothing of a disk, but
    /// the greeting says which one the member takes for `of`. A member that
    /// lags, or reads a log that is new to it, may take a removed disk for it.
    /// Where the two logs differ, the later one of what is committed is right.
    fn means(&self, of: ServerId, greeting: &Greeting, applied: LogId) -> bool {
        let (hello, settled) = (&greeting.hello, &greeting.settled);
        if self.members.is_empty() || of == hello.server {
            return true;
        }
        let Some(meant) = hello.known.get(&of) else {
            return false;
        };
        let own = self.members.storage(of);
        let later = settled.upto > applied && settled.members.has(of, *meant);
        own.is_none_or(|own| own == *meant) || later
    }

    /// The log has other members now: those of them who were guests are where
    /// they said. Whether there is news to keep.
    ///
    /// What was told of a number before the log gave it to its disk may be of
    /// another, which was removed and lives on. It stays as a place to look,
    /// and gives way to what the member says of itself; passed on, it replaces
    /// nothing.
    pub(super) fn admit(&mut self, members: Membership) -> bool {
        let (own, before) = (self.hello.server, &self.members);
        let same = |id| !before.is_empty() && before.storage(id) == members.storage(id);
        self.address_book.doubt_unless(|id| id == own || same(id));
        self.members = members;
        let mut known = Vec::new();
        self.unconfirmed.0.retain(|(server, storage), contact| {
            let named = self.members.has(*server, *storage);
            if named {
                known.push((*server, contact.clone()));
            }
            !named
        });
        let UnconfirmedContacts(unconfirmed, order) = &mut self.unconfirmed;
        order.retain(|who| unconfirmed.contains_key(who));
        let known = known.iter();
        known.fold(false, |news, (server, it)| self.learn(*server, it) || news)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use tenure_alpo::{ClusterId, Hello, Identity, MAX_NUMBER, MemberDisks};

    use super::super::unconfirmed_contacts::UNCONFIRMED_MAX;
    use super::*;
    use crate::transport::{AddressBook, CommittedMembers, Details, Form, PeerSecret, Settings};

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
            known: MemberDisks::new(),
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
    fn local_server(members: &[u64]) -> LocalServer {
        let members = members.iter().map(|number| (id(*number), disk(*number)));
        LocalServer {
            identity: Some(Identity {
                cluster: CLUSTER,
                server: id(1),
                storage: disk(1),
            }),
            members: Membership::bootstrapped(members),
            hello: hello(1, 1, Some(CLUSTER)),
            settings: SETTINGS,
            address_book: AddressBook::default(),
            details: Details::default(),
            unconfirmed: UnconfirmedContacts::default(),
            connected: BTreeMap::new(),
            unproven: BTreeSet::new(),
            edition: 0,
        }
    }

    /// What a server says that has all servers at `place`, and knows members 2
    /// and 3 with the disks of their numbers.
    fn greeting(mut hello: Hello, place: &str) -> Greeting {
        if hello.known.is_empty() {
            hello.known = (2..=3).map(|number| (id(number), disk(number))).collect();
        }
        let mut address_book = AddressBook::default();
        for number in 1..=9 {
            address_book.learn_one(id(number), &contact(5, place));
        }
        Greeting {
            hello,
            address_book,
            settled: CommittedMembers::default(),
            settings: SETTINGS,
            details: None,
        }
    }

    fn at(local_server: &LocalServer, server: u64) -> Option<&str> {
        local_server
            .address_book
            .get(id(server))
            .map(|it| &*it.client)
    }

    #[test]
    fn only_members_pass_on_where_others_are() {
        // A member, but never about this server itself.
        let mut us = local_server(&[1, 2, 3]);
        assert!(us.meet(&greeting(hello(2, 2, Some(CLUSTER)), "h:1"), false, 10));
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
            let mut us = local_server(&[1, 2, 3]);
            assert!(!us.meet(&greeting(stranger.clone(), "h:1"), true, 10));
            assert_eq!(us.address_book, AddressBook::default(), "{stranger:?}");
        }
    }

    #[test]
    fn a_guest_is_where_it_said_once_the_log_names_its_disk() {
        let members = |list: &[(u64, u64)]| {
            let list = list
                .iter()
                .map(|(number, storage)| (id(*number), disk(*storage)));
            Membership::bootstrapped(list)
        };
        let mut us = local_server(&[1, 2, 3]);
        us.meet(&greeting(hello(4, 4, None), "four:1"), false, 10);
        us.meet(&greeting(hello(5, 77, None), "forged:1"), false, 10);
        assert_eq!(
            us.unconfirmed_contact(id(4)).map(|it| &*it.peer),
            Some("four:1")
        );
        assert!(us.admit(members(&[(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)])));
        assert_eq!((at(&us, 4), at(&us, 5)), (Some("four:1"), None));
        assert_eq!(us.unconfirmed_contact(id(5)).map(|it| &*it.peer), None);
        // The one that was meant comes again.
        assert!(us.meet(&greeting(hello(5, 5, Some(CLUSTER)), "five:1"), false, 10));
        assert_eq!(at(&us, 5), Some("five:1"));
    }

    /// A removed disk that lives on has told a blank server where it is, under
    /// the number of a member. The server passes that on as nothing newer, and
    /// the member's own word goes before it.
    #[test]
    fn what_was_told_before_the_log_named_members_replaces_nothing() {
        let mut us = local_server(&[]);
        assert!(us.meet(&greeting(hello(3, 77, Some(CLUSTER)), "old:1"), true, 10));
        let members = [(1, 1), (2, 2), (3, 3)];
        let members = members.map(|(number, storage)| (id(number), disk(storage)));
        us.admit(Membership::bootstrapped(members));
        let edition = us.address_book.get(id(3)).map(|it| it.edition);
        assert_eq!((at(&us, 3), edition), (Some("old:1"), Some(0)));
        assert!(us.meet(&greeting(hello(3, 3, Some(CLUSTER)), "new:1"), false, 10));
        assert_eq!(at(&us, 3), Some("new:1"));
    }

    /// A member of whom the log is behind, or new to it, takes the disk for
    /// server 3 that was removed, and has heard from it where that one is. It
    /// is not believed, unless it knows more of the log.
    #[test]
    fn a_member_that_means_another_disk_passes_on_nothing_of_it() {
        let say = |known: &[(u64, u64)], upto: LogId, members: &[u64]| {
            let mut it = greeting(hello(2, 2, Some(CLUSTER)), "other:1");
            let known = known.iter();
            it.hello.known = known.map(|(number, it)| (id(*number), disk(*it))).collect();
            let members = members.iter().map(|number| (id(*number), disk(77)));
            let members = Membership::bootstrapped(members);
            it.settled = CommittedMembers { upto, members };
            it
        };
        let told = |greeting: &Greeting| {
            let mut us = local_server(&[1, 2, 3]);
            us.learn(id(3), &contact(1, "three:1"));
            us.meet(greeting, false, 10);
            (at(&us, 2).is_some(), at(&us, 3) == Some("other:1"))
        };
        // It always tells its own.
        assert_eq!(told(&say(&[], 9, &[])), (true, false));
        assert_eq!(told(&say(&[(3, 77)], 9, &[3])), (true, false));
        assert_eq!(told(&say(&[(3, 77)], 10, &[3])), (true, false));
        assert_eq!(told(&say(&[(3, 77)], 11, &[])), (true, false));
        assert_eq!(told(&say(&[(3, 77)], 11, &[3])), (true, true));
        assert_eq!(told(&say(&[(3, 3)], 9, &[])), (true, true));
    }

    /// The same for what this server itself was told when its own log still
    /// gave the number to the disk that was removed.
    #[test]
    fn what_was_told_of_a_number_before_it_went_to_its_disk_replaces_nothing() {
        let members = |third: u64| {
            let all = [(1, 1), (2, 2), (3, third)];
            Membership::bootstrapped(all.map(|(number, it)| (id(number), disk(it))))
        };
        let mut us = local_server(&[]);
        us.admit(members(77));
        assert!(us.meet(&greeting(hello(2, 2, Some(CLUSTER)), "two:1"), false, 10));
        assert!(us.meet(&greeting(hello(3, 77, Some(CLUSTER)), "old:1"), false, 10));
        // The next disk comes before the log has got to its admission.
        let mut early = greeting(hello(3, 3, Some(CLUSTER)), "early:1");
        early.hello.known.clear();
        assert!(!us.meet(&early, false, 10));
        assert_eq!(at(&us, 3), Some("old:1"));
        assert!(us.admit(members(3)));
        assert_eq!(at(&us, 3), Some("early:1"));
        us.unconfirmed = UnconfirmedContacts::default();
        us.admit(members(77));
        assert!(us.meet(&greeting(hello(3, 77, Some(CLUSTER)), "old:1"), false, 10));
        us.admit(members(3));
        let editions = [2, 3].map(|it| us.address_book.get(id(it)).map(|it| it.edition));
        assert_eq!(editions, [Some(5), Some(0)]);
        assert!(us.meet(&greeting(hello(3, 3, Some(CLUSTER)), "new:1"), false, 10));
        assert_eq!(at(&us, 3), Some("new:1"));
    }

    #[test]
    fn there_are_so_many_guests() {
        let mut us = local_server(&[1, 2, 3]);
        for number in 10..10_000 {
            let mut it = greeting(hello(number, number, None), "h:1");
            it.address_book.learn_one(id(number), &contact(1, "h:1"));
            us.connected.insert(id(10), disk(10));
            us.meet(&it, false, 10);
        }
        assert_eq!(us.unconfirmed.0.len(), UNCONFIRMED_MAX);
        assert!(us.unconfirmed_contact(id(10)).is_some(), "it is connected");
    }

    #[test]
    fn a_blank_server_hears_of_others_where_it_was_sent() {
        let blank = || {
            let mut local_server = local_server(&[]);
            local_server.identity = None;
            local_server.hello.cluster = None;
            local_server.hello.founders = BTreeSet::from([id(1), id(2)]);
            local_server
        };
        let mut us = blank();
        assert!(us.meet(&greeting(hello(7, 7, Some(CLUSTER)), "h:1"), true, 10));
        assert_eq!(at(&us, 3), Some("h:1"));
        // A server that connects tells its own, if it is one that is waited
        // for.
        let mut us = blank();
        assert!(!us.meet(&greeting(hello(7, 7, Some(CLUSTER)), "h:1"), false, 10));
        assert!(us.meet(&greeting(hello(2, 2, None), "h:1"), false, 10));
        let mut admits = hello(8, 8, Some(CLUSTER));
        admits.known.insert(id(1), disk(1));
        assert!(us.meet(&greeting(admits, "h:1"), false, 10));
        assert_eq!(us.address_book.ids(), [id(2), id(8)]);
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
            let mut local_server = local_server(&[1, 2, 3]);
            local_server.details.version = version;
            if blank {
                local_server.identity = None;
            }
            let shared = Shared::new(local_server, secret);
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
        let mut address_book = AddressBook::default();
        assert!(!address_book.learn_one(id(2), &contact(MAX_NUMBER + 1, "h:1")));
        assert!(!address_book.learn_one(id(2), &contact(u64::MAX, "h:1")));
        assert!(address_book.learn_one(id(2), &contact(MAX_NUMBER, "h:1")));
        // Its own word goes before what was passed on of it, and stays.
        assert!(!address_book.learn_one(id(2), &contact(7, "h:2")));
        assert!(address_book.learn_first_hand(id(2), &contact(7, "h:2")));
        assert!(!address_book.learn_first_hand(id(2), &contact(7, "h:2")));
        assert!(!address_book.learn_one(id(2), &contact(MAX_NUMBER, "h:1")));
        let peer = address_book.get(id(2)).map(|it| it.peer.as_str());
        assert_eq!(peer, Some("h:2"));
    }
}
