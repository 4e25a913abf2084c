//! Which right each request needs.
//!
//! A request comes as a call of gRPC, as one of HTTP, or among others over an
//! exchange. All three ask here: each request has one row below ([`Asks`]), by
//! its type, and what does a call takes an [`Authorized`] request, which only
//! [`Authorized::of`] makes. So a call that is added does not compile before
//! it has a row. The right is asked for before the rest of the request is
//! looked at, so that no caller learns from an answer what they may not ask.
//!
//! A row also says what the audit notes of a request: a refusal is noted too.
//!
//! Not here: whether a caller is known at all, which is asked of every call
//! before its body is read (`listen`) and is all that an exchange needs to
//! begin; and whether a caller may have what its session holds
//! (`session_rights`).

use serde_json::json;
use tenure_api::v1::{self, command, request};

use super::audit::{Audit, Entry};
use super::tokens::{Caller, Need};

/// What a call without a swap would write.
static NOTHING: v1::Swap = v1::Swap {
    key: String::new(),
    expect: None,
    value: bytes::Bytes::new(),
    keep_stamp: false,
    at_end: None,
};

/// A request of the interface.
pub(super) trait Asks {
    /// The right that it needs.
    fn need(&self) -> Need<'_>;

    /// Begins the line of the audit about it, if it is to have one.
    fn noted(&self, _: &Audit, _: &Caller) -> Option<Entry> {
        None
    }
}

/// A row is a request, its right, and the line of the audit about it.
macro_rules! rows {
    ($($it:pat = $request:ty => $need:expr
        $(, |$noted:ident, $audit:ident, $by:ident| $entry:expr)?;)*) => {$(
        impl Asks for $request {
            fn need(&self) -> Need<'_> {
                let $it = self;
                $need
            }

            $(fn noted(&self, $audit: &Audit, $by: &Caller) -> Option<Entry> {
                let $noted = self;
                $entry
            })?
        }
    )*};
}

rows! {
    it = v1::ReadRequest => Need::Read(&it.key);
    it = v1::ListRequest => Need::Read(&it.prefix);
    // One that names no target is refused to every caller.
    it = v1::WatchRequest => watched(it).map_or(Need::Token, Need::Read);
    it = v1::CompareAndSwapRequest => Need::Swap(it.swap.as_ref().unwrap_or(&NOTHING)),
        |it, audit, by| audit.begin_swap(by, it.swap.as_ref()?);
    it = v1::DeleteRequest => Need::Delete(&it.key),
        |it, audit, by| audit.begin_delete(by, &it.key);

    _ = v1::AppendRequest => Need::Append;
    _ = v1::ReadLogRequest => Need::ReadLog;
    _ = v1::TailRequest => Need::ReadLog;

    _ = v1::OpenSessionRequest => Need::Session;
    _ = v1::KeepAliveRequest => Need::Session;
    _ = v1::CloseSessionRequest => Need::Session;
    _ = v1::ListSessionsRequest => Need::Admin;
    _ = v1::EndSessionRequest => Need::Admin, |it, audit, by| audit.begin("session_ended", by, || {
        json!({ "session": it.session, "holder_is_gone": it.holder_is_gone })
    });

    _ = v1::StatusRequest => Need::Token;
    _ = v1::MetricsRequest => Need::Token;
    _ = v1::SnapshotRequest => Need::Admin;
    _ = v1::BackupRequest => Need::Admin;
    _ = v1::AddMemberRequest => Need::Admin, |it, audit, by| audit.begin("member_added", by, || {
        json!({ "id": it.id, "storage": it.storage })
    });
    _ = v1::PromoteMemberRequest => Need::Admin, |it, audit, by| audit.begin("member_promoted", by, || {
        json!({ "id": it.id, "storage": it.storage })
    });
    _ = v1::RemoveMemberRequest => Need::Admin, |it, audit, by| audit.begin("member_removed", by, || {
        json!({ "id": it.id, "storage": it.storage })
    });
    _ = v1::TransferRequest => Need::Admin, |it, audit, by| audit.begin("transferred", by, || {
        json!({ "to": it.to })
    });

    // One of an exchange.
    it = request::What => match it {
        request::What::Open(_) => Need::Session,
        request::What::Read(it) => it.need(),
        request::What::List(it) => it.need(),
        request::What::ReadLog(it) => it.need(),
        request::What::Command(it) => it.need(),
    }, |it, audit, by| match it {
        request::What::Command(it) => it.noted(audit, by),
        request::What::Open(_)
        | request::What::Read(_)
        | request::What::List(_)
        | request::What::ReadLog(_) => None,
    };
    it = v1::Command => match &it.operation {
        Some(command::Operation::Append(_)) => Need::Append,
        Some(command::Operation::Swap(it)) => Need::Swap(it),
        Some(command::Operation::Delete(it)) => Need::Delete(&it.key),
        Some(command::Operation::KeepAlive(_) | command::Operation::Close(_)) | None => {
            Need::Session
        }
    }, |it, audit, by| match it.operation.as_ref()? {
        command::Operation::Swap(it) => audit.begin_swap(by, it),
        command::Operation::Delete(it) => audit.begin_delete(by, &it.key),
        command::Operation::Append(_)
        | command::Operation::KeepAlive(_)
        | command::Operation::Close(_) => None,
    };
}

/// The key or the prefix that a watch is of; `None` if it names both.
pub(super) fn watched(request: &v1::WatchRequest) -> Option<&str> {
    match &request.key {
        Some(_) if !request.prefix.is_empty() => None,
        Some(key) => Some(key),
        None => Some(&request.prefix),
    }
}

/// A request whose caller has the right to it.
pub(super) struct Authorized<Q> {
    caller: Caller,
    request: Q,
    entry: Option<Entry>,
}

impl<Q: Asks> Authorized<Q> {
    /// # Errors
    /// [`v1::Cause::Unauthenticated`] if the caller is not known,
    /// [`v1::Cause::Denied`] if its token has not the right.
    pub(super) fn of(caller: Caller, request: Q, audit: &Audit) -> Result<Self, v1::Error> {
        let entry = request.noted(audit, &caller);
        let Err(refused) = caller.may(request.need()) else {
            return Ok(Self {
                caller,
                request,
                entry,
            });
        };
        if let Some(entry) = entry {
            entry.ends(Err(&refused));
        }
        Err(refused)
    }

    /// Whether its caller has the right still, which streams ask with every
    /// message.
    pub(super) fn still(&self) -> Result<(), v1::Error> {
        self.caller.may(self.request.need())
    }

    /// Who asks what, and what is to be noted of it when it is done.
    pub(super) fn into_parts(self) -> (Caller, Q, Option<Entry>) {
        (self.caller, self.request, self.entry)
    }

    pub(super) const fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(super) const fn request(&self) -> &Q {
        &self.request
    }
}
