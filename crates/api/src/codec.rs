//! How messages are read: those of too many parts are not.
//!
//! A part can take two bytes on the wire and hundreds as a value, so that a
//! message of some megabytes would become gigabytes, and seconds of work,
//! before anything of it is judged. So the parts are counted before the message
//! is decoded.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic::metadata::MetadataValue;
use tonic_prost::{ProstCodec, ProstEncoder};

use super::{ERROR_TRAILER, v1};

/// Parts of one message: requests over an `Exchange`, entries of an `Append`.
pub(crate) const PARTS_MAX: usize = 16_384;

/// What is kept for a message before its length is known. The gRPC library
/// would take eight times as much for each call that has sent nothing yet.
const BEGUN_BYTES: usize = 1024;
/// Read by encoders alone: as the gRPC library has it.
const PIECE_BYTES: usize = 32 * 1024;

/// Protocol buffers, as the gRPC library has them, of at most [`PARTS_MAX`]
/// parts.
#[derive(Debug)]
pub(crate) struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Bounded<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Bounded(PhantomData)
    }
}

/// Reads a message if it has few enough parts.
#[derive(Debug)]
pub(crate) struct Bounded<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for Bounded<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        decode(from.copy_to_bytes(from.remaining())).map(Some)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BEGUN_BYTES, PIECE_BYTES)
    }
}

/// Reads a message if it has few enough parts.
///
/// # Errors
/// What its sender is to be told.
pub fn decode<U: Message + Default>(message: Bytes) -> Result<U, Status> {
    let parts = parts(&message);
    if parts > PARTS_MAX {
        return Err(too_many());
    }
    let message = U::decode(message);
    message.map_err(|error| Status::internal(error.to_string()))
}

/// How many fields it has, up to one more than it may have. What is no message
/// is found by who decodes it.
fn parts(mut bytes: &[u8]) -> usize {
    let mut parts = 0;
    while parts <= PARTS_MAX && !bytes.is_empty() {
        parts += 1;
        let Ok((_, kind)) = decode_key(&mut bytes) else {
            break;
        };
        let length = match kind {
            WireType::Varint => decode_varint(&mut bytes).map(|_| 0),
            WireType::LengthDelimited => decode_varint(&mut bytes),
            WireType::SixtyFourBit => Ok(8),
            WireType::ThirtyTwoBit => Ok(4),
            // Of a group each part counts.
            WireType::StartGroup | WireType::EndGroup => Ok(0),
        };
        let length = length.ok().and_then(|it| usize::try_from(it).ok());
        match length.and_then(|it| bytes.get(it..)) {
            Some(rest) => bytes = rest,
            None => break,
        }
    }
    parts
}

fn too_many() -> Status {
    let message = format!("expected at most {PARTS_MAX} parts in a message, found more");
    let error = v1::Error {
        cause: v1::Cause::TooLarge.into(),
        message: message.clone(),
        ..v1::Error::default()
    };
    let mut status = Status::invalid_argument(message);
    let value = MetadataValue::from_bytes(&Bytes::from(error.encode_to_vec()));
    status.metadata_mut().insert_bin(ERROR_TRAILER, value);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_whatever_they_are() {
        let request = v1::Request {
            number: 1_000_000,
            secret: vec![7; 300].into(),
            ..v1::Request::default()
        };
        for count in [0, 1, 1_000, PARTS_MAX, PARTS_MAX + 1] {
            let requests = v1::Requests {
                requests: vec![request.clone(); count],
            };
            assert_eq!(parts(&requests.encode_to_vec()), count);
            let empty = v1::Requests {
                requests: vec![v1::Request::default(); count],
            };
            assert_eq!(parts(&empty.encode_to_vec()), count);
        }
        // Numbers, fixed ones and groups as well, and what ends too early.
        let numbers = [8, 1].repeat(5_000);
        assert_eq!(parts(&numbers), 5_000);
        assert_eq!(parts(&[13, 1, 2, 3, 4, 9, 1, 2, 3, 4, 5, 6, 7, 8]), 2);
        assert_eq!(parts(&[11, 12].repeat(2_000_000)), PARTS_MAX + 1);
        assert_eq!(parts(&[10, 200, 1]), 1);
        assert_eq!(parts(&[10, 255, 255, 255, 255, 255, 255, 255, 255, 255]), 1);
        assert_eq!(parts(&[10, 0].repeat(4_000_000)), PARTS_MAX + 1);
    }
}
