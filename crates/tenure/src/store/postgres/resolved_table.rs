//! The table of the registers, and the channels on which its changes are told.

use tenure_core::fnv::fnv1a;

use crate::store::{Key, Selector};

/// The table, once it has been found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Table {
    /// With its schema, quoted where it has to be: safe to stand in a
    /// statement, though not within quotes.
    pub(super) name: String,
    /// The channel that every change is told on.
    pub(super) channel: String,
}

impl Table {
    /// The channel that changes of this key are told on.
    pub(super) fn channel_of(&self, key: &Key) -> String {
        self.channel_of_area(area(key.as_str()).unwrap_or(key.as_str()))
    }

    /// The channel on which all that `selector` selects is told.
    pub(super) fn channel_for(&self, selector: &Selector) -> String {
        match selector {
            Selector::Key(key) => self.channel_of(key),
            Selector::Prefix(prefix) => match area(prefix) {
                Some(area) => self.channel_of_area(area),
                // Keys of several areas may begin with it.
                None => self.channel.clone(),
            },
        }
    }

    fn channel_of_area(&self, area: &str) -> String {
        // FNV-1a: all processes must come to the same name, of whatever
        // release they are. Two areas of one name hear of each other, which
        // costs a message and misleads nobody: notices have the whole key.
        let bytes = self.name.bytes().chain([0]).chain(area.bytes());
        let hash = fnv1a(bytes);
        format!("tenure_{hash:016x}")
    }
}

/// What keys have in common that are told on one channel: all up to the second
/// slash. `elections/payroll` is alone; `ha/web/nodes/1` and the other registers
/// of its group are together. `None` if there are not two slashes.
fn area(key: &str) -> Option<&str> {
    key.match_indices('/').nth(1).map(|(at, _)| &key[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_follows_a_key_listens_where_it_is_told_of() {
        let table = Table {
            name: "public.tenure_register".into(),
            channel: "tenure_register".into(),
        };
        let key = |text: &str| Key::new(text).expect("a key");
        let of = |text: &str| table.channel_of(&key(text));
        let below = |prefix: &str| table.channel_for(&Selector::Prefix(prefix.into()));
        assert_eq!(
            table.channel_for(&Selector::Key(key("elections/a"))),
            of("elections/a")
        );
        assert_ne!(of("elections/a"), of("elections/b"));
        assert_eq!(below("ha/web/nodes/"), of("ha/web/nodes/7"));
        assert_eq!(below("ha/web/no"), of("ha/web/view"));
        assert_ne!(of("ha/web/view"), of("ha/db/view"));
        for short in ["", "elections/", "elections/a", "ha/we"] {
            assert_eq!(below(short), "tenure_register", "{short}");
        }
        // Fixed for all releases.
        assert_eq!(of("elections/a"), "tenure_7df7511c1bef39f7");
        let other = Table {
            name: "other.tenure_register".into(),
            ..table.clone()
        };
        assert_ne!(other.channel_of(&key("elections/a")), of("elections/a"));
    }
}
