//! What goes over the connection: etcd's protocol, as far as a store needs it.
//!
//! The messages are etcd's own `rpc.proto` and `kv.proto`, written out by
//! hand: a dozen of them, of which the derive makes the encoding. So the
//! build needs neither a protocol compiler nor generated code. Fields that
//! this store neither reads nor sets are left out; the encoding skips what it does
//! not know, and leaves out what has its default.

use prost::bytes::Bytes;
use prost::{Message, Oneof};

/// Where the calls of the service of keys and values go.
pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
/// Where a stream of changes is asked for.
pub(super) const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// Where a password is exchanged for a token.
pub(super) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// Where a server is asked how it is.
pub(super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// Where a lease is granted, and where a server is asked for one.
pub(super) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(super) const LEASE_TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";

/// What every answer begins with.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Header {
    /// Of which cluster the server is; 0 if it does not say.
    #[prost(uint64, tag = "1")]
    pub(super) cluster_id: u64,
    /// Which member of it; 0 if it does not say.
    #[prost(uint64, tag = "2")]
    pub(super) member_id: u64,
    /// The store's revision when the request was carried out.
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

impl Header {
    /// What a server says of itself in an answer.
    pub(super) fn ids(header: Option<&Self>) -> Ids {
        header.map_or_else(Ids::default, |header| Ids {
            cluster: header.cluster_id,
            member: header.member_id,
        })
    }
}

/// Of which cluster a server is, and which member; 0 of what it does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ids {
    pub(super) cluster: u64,
    pub(super) member: u64,
}

/// A key and its value.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    /// The revision of the last change of this key.
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) value: Bytes,
}

/// Reads one key, or all from `key` up to before `range_end`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    /// Whether the server may answer from what it has, which may be old.
    /// Never set here.
    #[prost(bool, tag = "7")]
    pub(super) serializable: bool,
    /// Whether values are left out.
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    /// Whether the limit has cut the answer short.
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Step", tags = "1, 2, 3")]
    pub(super) step: Option<Step>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(super) enum Step {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

/// The answer to a step; of a put and a deletion nothing is of interest.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub(super) range: Option<RangeResponse>,
}

/// A condition of a transaction: that the last change of `key` was made at
/// this revision. A key that does not exist was changed at revision 0.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Compare {
    /// 0: they are equal.
    #[prost(int32, tag = "1")]
    pub(super) result: i32,
    /// 2: the revision of the last change.
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) key: Bytes,
    /// Part of a choice in etcd's protocol, and so sent even if it is 0.
    #[prost(int64, optional, tag = "6")]
    pub(super) mod_revision: Option<i64>,
}

impl Compare {
    pub(super) fn last_change(key: Bytes, revision: i64) -> Self {
        Self {
            result: 0,
            target: 2,
            key,
            mod_revision: Some(revision),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) create: Option<WatchCreate>,
    #[prost(message, optional, tag = "2")]
    pub(super) cancel: Option<WatchCancel>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchCreate {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) range_end: Bytes,
    /// The first revision to tell of.
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
    #[prost(int64, tag = "7")]
    pub(super) watch_id: i64,
    /// Whether a large answer may come in several.
    #[prost(bool, tag = "8")]
    pub(super) fragment: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchCancel {
    #[prost(int64, tag = "1")]
    pub(super) watch_id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(super) watch_id: i64,
    /// The answer to a request for a watch. One that is cancelled as well was
    /// refused, and may have another number.
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    /// The first revision that the server still has, if it has forgotten the
    /// one that was asked for.
    #[prost(int64, tag = "5")]
    pub(super) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Event {
    /// 0: it was written. 1: it was deleted.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    /// Of a deletion the key and the revision.
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

impl Event {
    pub(super) const DELETED: i32 = 1;
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct AuthenticateResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct StatusRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct LeaseGrantRequest {
    /// In seconds; the server takes its own least if that is longer.
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct LeaseTimeToLiveResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    /// In seconds; -1 of a lease that the server does not know.
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}
