//! Why other servers do not let this one in, for people.
//!
//! A server that no other lets in hears of no leader. That alone tells its
//! operator nothing: whether the others are down, or refuse it, and what to
//! do then. So what was wrong when another server was dialled last is kept
//! until it is connected or cannot be reached, and said where the server says
//! how it stands. It decides nothing.

use std::collections::BTreeMap;

use tenure_alpo::{Membership, ServerId};

/// How many reasons are told at once, at most; the log has all of them.
const REASONS_MAX: usize = 3;

/// By which servers this one is not let in, and why.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<ServerId, String>);

impl Refusals {
    /// Server `by` does not let this one in, for this reason; or it does, or
    /// is not there. Whether that is news.
    pub(super) fn hear(&mut self, by: ServerId, why: Option<String>) -> bool {
        match why {
            Some(why) if self.0.get(&by) == Some(&why) => false,
            Some(why) => {
                self.0.insert(by, why);
                true
            }
            None => self.0.remove(&by).is_some(),
        }
    }

    /// Whether those who let it in, this one among them, are no majority.
    pub(super) fn excludes_from_majority(&self, members: &Membership) -> bool {
        let all = members.voters().count();
        let open = members.voters().filter(|id| !self.0.contains_key(id));
        open.count() <= all / 2
    }

    /// What the servers say that this one needs: `members`, or all of them if
    /// it knows of none.
    pub(super) fn text(&self, members: &Membership) -> Option<String> {
        let needed = |id: ServerId| members.is_empty() || members.get(id).is_some();
        let mut by_reason: Vec<(&str, Vec<ServerId>)> = Vec::new();
        for (id, why) in self.0.iter().filter(|(id, _)| needed(**id)) {
            match by_reason.iter_mut().find(|(known, _)| *known == why) {
                Some((_, ids)) => ids.push(*id),
                None => by_reason.push((why, vec![*id])),
            }
        }
        let left = by_reason.len().saturating_sub(REASONS_MAX);
        let said = by_reason.iter().take(REASONS_MAX).map(|(why, ids)| {
            let ids: Vec<_> = ids.iter().map(|id| id.get().to_string()).collect();
            let s = if ids.len() > 1 { "s" } else { "" };
            format!("not connected to server{s} {}: {why}", ids.join(", "))
        });
        let mut said: Vec<_> = said.collect();
        if left > 0 {
            said.push(format!("{left} more reasons in the log"));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use tenure_alpo::StorageId;

    use super::*;

    fn id(number: u64) -> ServerId {
        ServerId::new(number).expect("a number")
    }

    #[test]
    fn the_same_reason_is_said_once_and_goes_when_it_is_mended() {
        let storage = StorageId::from_u128(7);
        let members = [1, 2, 3].map(|number| (id(number), storage));
        let members = Membership::bootstrapped(members);
        let mut refusals = Refusals::default();
        assert_eq!(refusals.text(&members), None);
        let why = Some("expected a proof, found none".to_owned());
        assert!(refusals.hear(id(1), why.clone()));
        assert!(!refusals.hear(id(1), why.clone()));
        assert!(refusals.hear(id(2), why.clone()));
        // A server that is no member is not needed.
        assert!(refusals.hear(id(9), Some("another".to_owned())));
        assert!(refusals.excludes_from_majority(&members));
        let said = "not connected to servers 1, 2: expected a proof, found none";
        assert_eq!(refusals.text(&members).as_deref(), Some(said));
        let blank = refusals.text(&Membership::default()).expect("both");
        assert!(blank.starts_with(said) && blank.ends_with("server 9: another"));
        assert!(refusals.hear(id(1), None) && !refusals.hear(id(1), None));
        assert!(
            !refusals.excludes_from_majority(&members),
            "1 and 3 are a majority"
        );
        assert!(refusals.hear(id(2), None));
        assert_eq!(refusals.text(&members), None);
        for number in 1..=5 {
            refusals.hear(id(number), Some(number.to_string()));
        }
        let all = refusals.text(&Membership::default()).expect("many");
        assert!(all.ends_with("3: 3; 3 more reasons in the log"), "{all}");
    }
}
