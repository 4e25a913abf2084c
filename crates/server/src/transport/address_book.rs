//! Who can be reached where.
//!
//! Addresses are not part of the replicated state: a cluster that needed its
//! log to learn an address could not find a majority to write it. Each server
//! says its own addresses with an *edition* that it raises whenever they
//! change, and passes on what it knows of the others; the higher edition
//! wins. So a server that comes back elsewhere is found as soon as it has
//! greeted one server that is connected to the rest.
//!
//! A wrong address costs a refused greeting, never more: who is behind it
//! proves itself by its cluster and its storage.

use std::collections::BTreeMap;

use tenure_alpo::codec::{DecodeError, Reader, put_bytes, put_u64};
use tenure_alpo::{MAX_MEMBERS, MAX_NUMBER, ServerId};

/// The longest address that is accepted from a server.
pub const MAX_ADDRESS_BYTES: usize = 300;

/// How many addresses are known, at most: those of members, of which there
/// can be half as many, and of others.
pub(super) const MOST: usize = 2 * MAX_MEMBERS;

/// How one server is reached.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Contact {
    /// Raised by the server itself with each change; 0 for what was only
    /// written in a flag.
    pub edition: u64,
    /// Where other servers reach it, `host:port`.
    pub peer: String,
    /// Where clients reach it, `host:port`; empty if it has not said.
    pub client: String,
}

/// The addresses of all servers that are known.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AddressBook {
    contacts: BTreeMap<ServerId, Contact>,
}

impl AddressBook {
    /// What flags say: an edition of 0, which anything newer replaces.
    pub fn from_flags(peers: &BTreeMap<ServerId, String>) -> Self {
        let contact = |peer: &String| Contact {
            peer: peer.clone(),
            ..Contact::default()
        };
        let contacts = peers.iter().map(|(id, peer)| (*id, contact(peer)));
        Self {
            contacts: contacts.collect(),
        }
    }

    /// How to reach `server`.
    pub fn get(&self, server: ServerId) -> Option<&Contact> {
        self.contacts.get(&server)
    }

    /// Who is in it.
    pub fn ids(&self) -> Vec<ServerId> {
        self.contacts.keys().copied().collect()
    }

    /// All of them in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ServerId, &Contact)> {
        self.contacts.iter().map(|(id, contact)| (*id, contact))
    }

    /// Takes what is newer; says whether anything was. At most 62 are
    /// taken in.
    pub fn learn(&mut self, other: &Self) -> bool {
        let mut news = false;
        for (id, contact) in &other.contacts {
            news |= self.learn_one(*id, contact);
        }
        news
    }

    /// Takes one contact if it is newer than what is known.
    pub fn learn_one(&mut self, id: ServerId, contact: &Contact) -> bool {
        let known = self.contacts.get(&id);
        let known_edition = known.map(|known| known.edition);
        let newer = known_edition < Some(contact.edition) && contact.edition <= MAX_NUMBER;
        let room = known.is_some() || self.contacts.len() < MOST;
        if newer && room {
            self.contacts.insert(id, contact.clone());
        }
        newer && room
    }

    /// Takes where a server says itself that it is, also over what was passed
    /// on of it with a later edition: that one is kept, so that nothing older
    /// comes back.
    pub fn learn_first_hand(&mut self, id: ServerId, contact: &Contact) -> bool {
        let Some(known) = self.contacts.get_mut(&id) else {
            return self.learn_one(id, contact);
        };
        let edition = known.edition.max(contact.edition);
        if edition > MAX_NUMBER {
            return false;
        }
        let told = Contact {
            edition,
            ..contact.clone()
        };
        let news = *known != told;
        *known = told;
        news
    }

    /// The same where there is no room: one that `keeps` does not name makes
    /// room for one that is `wanted`, or for one that is newer. The one with
    /// the oldest edition goes first.
    pub fn learn_among(
        &mut self,
        id: ServerId,
        contact: &Contact,
        wanted: bool,
        keeps: impl Fn(ServerId) -> bool,
    ) -> bool {
        if !self.contacts.contains_key(&id) && self.contacts.len() >= MOST {
            let others = self.contacts.iter().filter(|(other, _)| !keeps(**other));
            let oldest = others.min_by_key(|(_, it)| it.edition);
            let oldest = oldest.map(|(other, it)| (*other, it.edition));
            if let Some((other, edition)) = oldest
                && (wanted || edition < contact.edition)
            {
                self.contacts.remove(&other);
            }
        }
        self.learn_one(id, contact)
    }

    /// Forgets a server.
    pub fn forget(&mut self, id: ServerId) {
        self.contacts.remove(&id);
    }

    /// The addresses of those that `keeps` does not name are no newer than a
    /// flag any more.
    pub fn doubt_unless(&mut self, keeps: impl Fn(ServerId) -> bool) {
        let others = self.contacts.iter_mut().filter(|(id, _)| !keeps(**id));
        others.for_each(|(_, contact)| contact.edition = 0);
    }

    /// Appends its bytes to `to`.
    pub fn encode(&self, to: &mut Vec<u8>) {
        put_u64(to, self.contacts.len() as u64);
        for (id, contact) in &self.contacts {
            put_u64(to, id.get());
            put_u64(to, contact.edition);
            put_bytes(to, contact.peer.as_bytes());
            put_bytes(to, contact.client.as_bytes());
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If it did not.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count()?;
        let mut contacts = BTreeMap::new();
        for _ in 0..count {
            let id = ServerId::new(reader.u64()?).ok_or(DecodeError::Number)?;
            let contact = Contact {
                edition: reader.number()?,
                peer: address(reader.bytes()?)?,
                client: address(reader.bytes()?)?,
            };
            contacts.insert(id, contact);
        }
        Ok(Self { contacts })
    }
}

fn address(bytes: &[u8]) -> Result<String, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::Name)?;
    let fits = text.len() <= MAX_ADDRESS_BYTES && !text.contains(char::is_control);
    fits.then(|| text.to_owned()).ok_or(DecodeError::Name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contact(edition: u64, peer: &str) -> Contact {
        Contact {
            edition,
            peer: peer.into(),
            client: String::new(),
        }
    }

    fn id(number: u64) -> ServerId {
        ServerId::new(number).expect("a number")
    }

    #[test]
    fn the_higher_edition_wins() {
        let mut address_book =
            AddressBook::from_flags(&BTreeMap::from([(id(1), "a:1".to_owned())]));
        assert!(address_book.learn_one(id(1), &contact(2, "b:1")));
        assert!(!address_book.learn_one(id(1), &contact(2, "c:1")));
        assert!(!address_book.learn_one(id(1), &contact(1, "a:1")));
        assert_eq!(address_book.get(id(1)).map(|it| &*it.peer), Some("b:1"));
    }

    #[test]
    fn a_member_has_room_whoever_came_before() {
        let mut address_book = AddressBook::default();
        let members = |it: ServerId| it.get() <= 31;
        let own = contact(1, "own:1");
        assert!(address_book.learn_among(id(1), &own, true, members));
        // More strangers than there is room for: the oldest go.
        for stranger in 100..10_000 {
            let it = contact(stranger, "stranger:1");
            assert!(address_book.learn_among(id(stranger), &it, false, members));
            assert!(address_book.contacts.len() <= MOST);
        }
        assert!(address_book.get(id(9_999)).is_some() && address_book.get(id(9_900)).is_none());
        // As many members as there can be, with the oldest of editions.
        for member in 2..=31 {
            let it = contact(0, "member:1");
            assert!(address_book.learn_among(id(member), &it, true, members));
        }
        assert!((1..=31).all(|member| address_book.get(id(member)).is_some()));
        assert_eq!(address_book.contacts.len(), MOST);
        // One that is older than all strangers has none.
        let it = contact(1, "stranger:1");
        assert!(!address_book.learn_among(id(50), &it, false, members));
    }

    #[test]
    fn it_reads_what_it_wrote_and_nothing_else() {
        let mut address_book = AddressBook::default();
        address_book.learn_one(id(3), &contact(7, "host:9"));
        let mut bytes = Vec::new();
        address_book.encode(&mut bytes);
        assert_eq!(
            AddressBook::decode(&mut Reader::new(&bytes)),
            Ok(address_book)
        );
        for cut in 0..bytes.len() {
            assert!(AddressBook::decode(&mut Reader::new(&bytes[..cut])).is_err());
        }
    }
}
