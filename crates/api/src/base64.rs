//! Byte strings in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&STANDARD.encode(bytes))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    let text = String::deserialize(from)?;
    decode(&text).map_err(D::Error::custom)
}

fn decode(text: &str) -> Result<Bytes, String> {
    let bytes = STANDARD.decode(text);
    bytes.map(Into::into).map_err(|error| {
        format!(
            "expected bytes in base64, found {:?}: {error}",
            tenure_runtime::error::cut(text)
        )
    })
}

/// A list of them.
pub(super) mod many {
    use std::fmt;

    use base64::Engine as _;
    use serde::Serialize as _;
    use serde::de::{Error as _, SeqAccess, Visitor};

    use super::super::codec::PARTS_MAX;
    use super::{Bytes, Deserializer, STANDARD, Serializer, decode};

    pub(in super::super) fn serialize<S: Serializer>(
        list: &[Bytes],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let list: Vec<_> = list.iter().map(|bytes| STANDARD.encode(bytes)).collect();
        list.serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Bytes>, D::Error> {
        from.deserialize_seq(Few)
    }

    /// Reads them one at a time, and stops at one too many.
    struct Few;

    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Bytes>;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(to, "a list of at most {PARTS_MAX} byte strings in base64")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<Bytes>, A::Error> {
            let mut list = Vec::new();
            while let Some(text) = from.next_element::<String>()? {
                if list.len() == PARTS_MAX {
                    return Err(A::Error::invalid_length(PARTS_MAX + 1, &self));
                }
                list.push(decode(&text).map_err(A::Error::custom)?);
            }
            Ok(list)
        }
    }
}
