//! Answers that are bounded by what was asked for.
//!
//! An element of a list that says nothing takes two bytes on the wire and a hundred in
//! memory. So elements are counted before a message is decoded: whatever a server sends,
//! decoding it takes little more than its bytes.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::{Buf as _, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use super::wire::{
    AuthenticateRequest, AuthenticateResponse, Header, LeaseGrantRequest, LeaseGrantResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, RangeResponse, StatusRequest,
    StatusResponse, Step, TxnRequest, TxnResponse, WatchResponse,
};
use crate::store::{Key, MAX_VALUE_BYTES};

/// The most bytes of an answer beside registers; one register has room in it.
const BASE: usize = 1024 * 1024;
/// The most bytes of each further register: with the store's prefix, and what etcd adds.
const REGISTER: usize = MAX_VALUE_BYTES + Key::MAX_BYTES + 1024;

/// How large an answer may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bound {
    pub(super) bytes: usize,
    /// Elements of its lists together.
    pub(super) items: usize,
}

impl Bound {
    /// Of one message about changes. Large ones come in parts, of about as many bytes as a
    /// server takes in a request (1.5 MiB, unless it is configured otherwise). A watch
    /// that catches up gets a thousand transactions of 128 steps in a message.
    pub(super) const CHANGES: Self = Self {
        bytes: 16 * BASE,
        items: 128 * 1024,
    };

    const fn registers(count: usize) -> Self {
        Self {
            bytes: BASE + count.saturating_sub(1) * REGISTER,
            items: count,
        }
    }
}

/// A request, which says how much may be answered.
pub(super) trait Asked: Message + Send + Sync + 'static {
    fn bound(&self) -> Bound;
}

impl Asked for RangeRequest {
    fn bound(&self) -> Bound {
        if self.range_end.is_empty() {
            return Bound::registers(1);
        }
        Bound::registers(usize::try_from(self.limit).unwrap_or_default())
    }
}

impl Asked for TxnRequest {
    fn bound(&self) -> Bound {
        let reads = |op: &&super::wire::RequestOp| matches!(op.step, Some(Step::Range(_)));
        let read = self.success.iter().filter(reads).count();
        Bound {
            // A step has an answer, and a reading a register in it.
            items: self.success.len() + read,
            ..Bound::registers(read)
        }
    }
}

impl Asked for AuthenticateRequest {
    fn bound(&self) -> Bound {
        Bound::registers(0)
    }
}

impl Asked for StatusRequest {
    fn bound(&self) -> Bound {
        Bound::registers(0)
    }
}

impl Asked for LeaseGrantRequest {
    fn bound(&self) -> Bound {
        Bound::registers(0)
    }
}

impl Asked for LeaseTimeToLiveRequest {
    fn bound(&self) -> Bound {
        Bound::registers(0)
    }
}

/// What etcd answers.
pub(super) trait Answer: Message + Default + Send + Sync + 'static {
    /// The numbers of the fields that lead to each of its lists.
    const LISTS: &'static [&'static [u64]];

    fn header(&self) -> Option<&Header>;
}

impl Answer for RangeResponse {
    const LISTS: &'static [&'static [u64]] = &[&[2]];

    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

impl Answer for TxnResponse {
    const LISTS: &'static [&'static [u64]] = &[&[3], &[3, 1, 2]];

    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

impl Answer for WatchResponse {
    const LISTS: &'static [&'static [u64]] = &[&[11]];

    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

impl Answer for AuthenticateResponse {
    const LISTS: &'static [&'static [u64]] = &[];

    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

impl Answer for StatusResponse {
    const LISTS: &'static [&'static [u64]] = &[];

    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

impl Answer for LeaseGrantResponse {
    const LISTS: &'static [&'static [u64]] = &[];

    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

impl Answer for LeaseTimeToLiveResponse {
    const LISTS: &'static [&'static [u64]] = &[];

    fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

/// Encodes and decodes, of answers what is within the bound.
#[derive(Debug)]
pub(super) struct BoundedCodec<A, B> {
    items: usize,
    of: PhantomData<fn(A) -> B>,
}

impl<A, B> BoundedCodec<A, B> {
    pub(super) fn new(bound: Bound) -> Self {
        Self {
            items: bound.items,
            of: PhantomData,
        }
    }
}

impl<A: Message + Send + 'static, B: Answer> Codec for BoundedCodec<A, B> {
    type Encode = A;
    type Decode = B;
    type Encoder = ProstEncoder<A>;
    type Decoder = BoundedDecoder<B>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder {
            items: self.items,
            of: PhantomData,
        }
    }
}

#[derive(Debug)]
pub(super) struct BoundedDecoder<B> {
    items: usize,
    of: PhantomData<fn() -> B>,
}

impl<B: Answer> Decoder for BoundedDecoder<B> {
    type Item = B;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<B>, Status> {
        let message = buffer.copy_to_bytes(buffer.remaining());
        decode(message, self.items).map(Some)
    }
}

fn decode<B: Answer>(message: Bytes, items: usize) -> Result<B, Status> {
    let counts = B::LISTS.iter().map(|list| count(&message, list));
    let found = counts.sum::<Option<usize>>();
    let found = found.ok_or_else(|| Status::internal("expected an answer of etcd"))?;
    if found > items {
        return Err(Status::internal(format!(
            "expected at most {items} elements in an answer, found {found}"
        )));
    }
    B::decode(message).map_err(|error| Status::internal(error.to_string()))
}

/// How many elements the list has to which these fields lead; `None` if this is no
/// message.
fn count(mut message: &[u8], fields: &[u64]) -> Option<usize> {
    let (first, rest) = fields.split_first()?;
    let mut found = 0_usize;
    while !message.is_empty() {
        let (number, content) = next_field(&mut message)?;
        if number != *first {
            continue;
        }
        found += if rest.is_empty() {
            1
        } else {
            count(content, rest)?
        };
    }
    Some(found)
}

/// Takes a field from a message: its number and, if it has a length, its content.
fn next_field<'a>(message: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let key = varint(message)?;
    let length = match key & 7 {
        0 => {
            varint(message)?;
            0
        }
        1 => 8,
        2 => usize::try_from(varint(message)?).ok()?,
        5 => 4,
        // Groups, which etcd's messages do not have.
        _ => return None,
    };
    let (content, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some((key >> 3, content))
}

/// Takes a number from a message.
fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::wire::{
        KeyValue, RangeResponse, RequestOp, ResponseOp, TxnResponse, WatchResponse,
    };
    use super::*;

    fn registers(count: usize) -> RangeResponse {
        let one = KeyValue {
            key: "k".into(),
            mod_revision: i64::MAX,
            value: vec![b'x'; 300].into(),
        };
        RangeResponse {
            header: Some(Header {
                cluster_id: u64::MAX,
                member_id: u64::MAX,
                revision: 7,
            }),
            kvs: vec![one; count],
            more: true,
        }
    }

    fn encoded(message: &impl Message) -> Bytes {
        message.encode_to_vec().into()
    }

    #[test]
    fn an_answer_has_as_many_elements_as_were_asked_for() {
        for count in [0, 1, 500] {
            let whole = registers(count);
            let decoded = decode::<RangeResponse>(encoded(&whole), count);
            assert_eq!(decoded.expect("it is within the bound"), whole);
        }
        for (count, items) in [(2, 1), (501, 500)] {
            let refused = decode::<RangeResponse>(encoded(&registers(count)), items);
            let why = refused.expect_err("too many").to_string();
            assert!(why.contains(&format!("found {count}")), "{why}");
        }
        let step = |count| ResponseOp {
            range: Some(registers(count)),
        };
        let answer = |responses| TxnResponse {
            header: None,
            succeeded: true,
            responses,
        };
        let read = TxnRequest {
            compare: Vec::new(),
            success: vec![
                RequestOp {
                    step: Some(Step::Range(RangeRequest::default())),
                };
                3
            ],
        };
        let items = read.bound().items;
        let whole = answer(vec![step(1); 3]);
        let decoded = decode::<TxnResponse>(encoded(&whole), items);
        assert_eq!(decoded.expect("it is within the bound"), whole);
        for other in [answer(vec![step(1); 4]), answer(vec![step(9)])] {
            assert!(decode::<TxnResponse>(encoded(&other), items).is_err());
        }
    }

    /// 20 MB of these took 900 MiB.
    #[test]
    fn elements_without_content_are_counted_before_they_take_memory() {
        let empty = |element: [u8; 2], count| Bytes::from(element.repeat(count));
        let page = Bound::registers(500).items;
        let refused = decode::<RangeResponse>(empty([0x12, 0], 10_000_000), page);
        assert!(refused.is_err());
        assert!(decode::<RangeResponse>(empty([0x12, 0], 500), page).is_ok());
        assert!(decode::<TxnResponse>(empty([0x1a, 0], 1_000_000), 200).is_err());
        let events = Bound::CHANGES.items;
        assert!(decode::<WatchResponse>(empty([0x5a, 0], events + 1), events).is_err());
        assert!(decode::<WatchResponse>(empty([0x5a, 0], events), events).is_ok());
        // One register, and one that comes in parts, which are put together.
        let one = RangeRequest::default().bound();
        assert_eq!((one.bytes, one.items), (BASE, 1));
        let parts = [0x1a, 6, 0x0a, 4, 0x12, 0, 0x12, 0].repeat(2);
        assert!(decode::<TxnResponse>(parts.into(), 5).is_err());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for wrong in [
            &b"\x12\x05ab"[..],
            b"\x13",
            b"\x80",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        ] {
            let refused = decode::<RangeResponse>(Bytes::from_static(wrong), 500);
            assert!(refused.is_err(), "{wrong:?}");
        }
    }
}
