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
            crate::error::cut(text)
        )
    })
}

/// A list of them.
pub(super) mod many {
    use super::{Bytes, Deserialize as _, Deserializer, STANDARD, Serializer, decode};
    use base64::Engine as _;
    use serde::Serialize as _;
    use serde::de::Error as _;

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
        let list = Vec::<String>::deserialize(from)?;
        let list = list.iter().map(|text| decode(text));
        list.collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}
