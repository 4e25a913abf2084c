//! Sessions as clients see them: whose they are, how many one client may
//! have, and what operators do with those of others.
//!
//! A session's number is no secret, so a command under it is taken only from
//! its owner (`docs/design/identity.md`, Sessions and their owners). This file makes
//! out of what a call carries what the machine compares: the hash of the
//! secret that it shows, the hash of its token, the address that it comes
//! from. The machine judges, before the command reaches the log.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;

use sha2::{Digest as _, Sha256};
use tenure_alpo::{
    ClientRequest, Fingerprint, LogTime, Node, Operation, Outcome, OwnershipProof, Query, Session,
    SessionId, SessionOpener,
};
use tenure_api::v1::{self, Cause, request};

use super::audit;
use super::authorization::Authorized;
use super::caller_proof::{CallerProof, half};
use super::errors::{address_of, error, invalid};
use super::handle::ServerHandle;
use super::tokens::Caller;
use super::translate::{self, done};

/// How long a secret may be, in bytes.
const SECRET_BYTES: RangeInclusive<usize> = 16..=64;
/// Of how many sessions a stream keeps that they were proven. One more, and
/// the one that was opened first is forgotten: it is proven again by the next
/// command that carries its secret.
const PROVEN_MAX: usize = 1_024;
/// Sessions in one page of the list.
const PAGE_MAX: usize = 1_024;

/// What stands for a secret; `None` if none is shown.
fn hashed(secret: &[u8]) -> Result<Option<Fingerprint>, v1::Error> {
    if secret.is_empty() {
        return Ok(None);
    }
    if !SECRET_BYTES.contains(&secret.len()) {
        return Err(invalid(format!(
            "expected a secret of {} to {} bytes, found {}",
            SECRET_BYTES.start(),
            SECRET_BYTES.end(),
            secret.len()
        )));
    }
    Ok(Some(half(&Sha256::digest(secret).into())))
}

/// An address as the log holds it. A host of IPv6 has as many addresses as
/// it likes, so its network counts.
fn bits(address: IpAddr) -> [u8; 16] {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => {
            let network = address.to_bits() >> 64 << 64;
            Ipv6Addr::from_bits(network).octets()
        }
    }
}

/// What the sessions of one stream have proven.
#[derive(Debug, Default)]
pub(super) struct ProvenSessions(BTreeMap<SessionId, Fingerprint>);

impl ProvenSessions {
    /// What `request` proves, which came over a stream of this caller.
    pub(super) fn by(
        &mut self,
        request: &v1::Request,
        caller: CallerProof,
    ) -> Result<CallerProof, v1::Error> {
        let secret = hashed(&request.secret)?;
        Ok(match &request.what {
            Some(request::What::Command(command)) => {
                if let Some(secret) = secret {
                    self.note(command.session, secret);
                }
                caller.with(self.0.get(&command.session).copied())
            }
            _ => caller.with(secret),
        })
    }

    fn note(&mut self, session: SessionId, secret: Fingerprint) {
        if self.0.len() >= PROVEN_MAX && !self.0.contains_key(&session) {
            self.0.pop_first();
        }
        self.0.insert(session, secret);
    }
}

impl ServerHandle {
    /// What this caller proves by its token and by where it comes from.
    pub(super) fn proof(&self, caller: &Caller) -> CallerProof {
        let token = caller.fingerprint().map(half);
        let opener = match token {
            Some(token) => SessionOpener::Token(token),
            None => SessionOpener::Address(bits(caller.address())),
        };
        let most = if caller.is_admin() {
            u64::MAX
        } else {
            self.sessions_each
        };
        let claim = OwnershipProof {
            secret: None,
            token,
        };
        CallerProof {
            claim,
            opener,
            most,
        }
    }

    /// The same with the secret of a call.
    pub(super) fn claim(
        &self,
        caller: &Caller,
        secret: &[u8],
    ) -> Result<OwnershipProof, v1::Error> {
        Ok(self.proof(caller).with(hashed(secret)?).claim)
    }

    pub(super) async fn open(
        &self,
        asked: Authorized<v1::OpenSessionRequest>,
    ) -> Result<v1::OpenSessionResponse, v1::Error> {
        let (caller, request, _) = asked.into_parts();
        let proof = self.proof(&caller).with(hashed(&request.secret)?);
        let opening = translate::open(request.ttl_millis, &proof)?;
        let told = self.submit_open(opening).await;
        let owned = told.owned;
        let session = match done(told, &self.shared)? {
            (Outcome::Opened(session), _) => session,
            (other, _) => return Err(error(Cause::Unspecified, format!("found {other:?}"))),
        };
        Ok(v1::OpenSessionResponse { session, owned })
    }

    /// Does this, under the caller's number or one of the server's own.
    pub(super) async fn run(
        &self,
        caller: &Caller,
        operation: Operation,
        numbered: Option<&v1::Numbered>,
    ) -> Result<(Outcome, Option<LogTime>), v1::Error> {
        let told = match numbered {
            Some(numbered) => {
                let claim = self.claim(caller, &numbered.secret)?;
                // To close it gives up what it holds.
                if operation != Operation::Close {
                    let session = numbered.session;
                    self.may_hold(&caller.granted()?, session, claim).await?;
                }
                let request = translate::numbered(numbered, operation, claim)?;
                self.submit_within_quota(request, caller.quota()).await
            }
            None => {
                let quota = caller.quota();
                let session = self.internal_sessions.of(self.proof(caller).opener);
                session.run(self, operation, quota.as_ref()).await
            }
        };
        done(told, &self.shared)
    }

    pub(super) async fn keep_alive(
        &self,
        asked: Authorized<v1::KeepAliveRequest>,
    ) -> Result<v1::KeepAliveResponse, v1::Error> {
        let (caller, request, _) = asked.into_parts();
        let done = self.session(&caller, request.numbered, Operation::KeepAlive);
        done.await.map(|()| v1::KeepAliveResponse {})
    }

    pub(super) async fn close(
        &self,
        asked: Authorized<v1::CloseSessionRequest>,
    ) -> Result<v1::CloseSessionResponse, v1::Error> {
        let (caller, request, _) = asked.into_parts();
        let done = self.session(&caller, request.numbered, Operation::Close);
        done.await.map(|()| v1::CloseSessionResponse {})
    }

    /// A command of a session that is about nothing but the session.
    async fn session(
        &self,
        caller: &Caller,
        numbered: Option<v1::Numbered>,
        operation: Operation,
    ) -> Result<(), v1::Error> {
        let numbered = numbered.ok_or_else(|| invalid("expected a session, found none"))?;
        self.run(caller, operation, Some(&numbered)).await.map(drop)
    }

    /// A page of all sessions, as of a moment after the call.
    pub(super) async fn list_sessions(
        &self,
        asked: Authorized<v1::ListSessionsRequest>,
    ) -> Result<v1::ListSessionsResponse, v1::Error> {
        let (_, request, _) = asked.into_parts();
        self.query(Query::Barrier).await?;
        let most = match request.limit {
            0 => PAGE_MAX,
            limit => usize::try_from(limit).map_or(PAGE_MAX, |limit| limit.min(PAGE_MAX)),
        };
        let page = move |node: &Node| {
            let state = node.state();
            let mut left = state.sessions().after(request.after);
            let page = left.by_ref().take(most);
            let page = page.map(|(id, it)| (id, it.clone(), state.bound_by(id)));
            (
                page.collect::<Vec<_>>(),
                left.next().is_some(),
                state.time(),
            )
        };
        let (page, more, now) = self.inspect(page).await?;
        let info = |(id, it, bound): &(SessionId, Session, usize)| self.info(*id, it, *bound, now);
        Ok(v1::ListSessionsResponse {
            sessions: page.iter().map(info).collect(),
            more,
        })
    }

    fn info(&self, session: SessionId, it: &Session, bound: usize, now: u64) -> v1::SessionInfo {
        let (token, address) = match it.owner().opener {
            SessionOpener::Server => (String::new(), String::new()),
            SessionOpener::Token(half) => (self.tokens.name_of(&half), String::new()),
            SessionOpener::Address(address) => (String::new(), address_of(address)),
        };
        v1::SessionInfo {
            session,
            ttl_millis: it.ttl() / 1_000_000,
            silent_millis: now.saturating_sub(it.heard()) / 1_000_000,
            done: it.completed(),
            bound: bound as u64,
            secret: it.owner().secret.is_some(),
            token,
            address,
        }
    }

    /// Ends a session in place of its owner.
    ///
    /// One that holds registers only if the caller says that their holder is
    /// gone ([`Refusal::Held`](tenure_alpo::Refusal::Held)).
    pub(super) async fn end_session(
        &self,
        asked: Authorized<v1::EndSessionRequest>,
    ) -> Result<v1::EndSessionResponse, v1::Error> {
        let (_, request, entry) = asked.into_parts();
        let done = self.do_end_session(&request).await;
        audit::end(entry, &done, |_| true);
        done
    }

    async fn do_end_session(
        &self,
        request: &v1::EndSessionRequest,
    ) -> Result<v1::EndSessionResponse, v1::Error> {
        let session = request.session;
        let is_servers = move |node: &Node| {
            let open = node.state().sessions().get(session);
            open.is_some_and(|it| it.owner().is_servers())
        };
        if self.inspect(is_servers).await? {
            return Err(invalid(format!(
                "expected a session of a client, found session {session}, which a server of the \
                 cluster has opened for itself: leave it alone"
            )));
        }
        let end = ClientRequest::End {
            session,
            holder_is_gone: request.holder_is_gone,
        };
        let told = self.submit(end).await;
        match done(told, &self.shared) {
            Ok(_) => Ok(v1::EndSessionResponse {}),
            Err(refused) if refused.cause() == Cause::SessionExpired => Err(error(
                Cause::SessionExpired,
                format!("expected a session that is open, found none of number {session}"),
            )),
            Err(refused) => Err(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_of_a_certain_length_and_stands_in_the_log_as_half_its_hash() {
        assert_eq!(hashed(b"").map(|it| it.is_none()), Ok(true));
        for (length, good) in [(1, false), (15, false), (16, true), (64, true), (65, false)] {
            let found = hashed(&vec![7; length]).map(|it| it.is_some());
            assert_eq!(found.ok(), good.then_some(true), "{length} bytes");
        }
        let found = hashed(b"0123456789abcdef").expect("it fits");
        let wanted: [u8; 32] = Sha256::digest(b"0123456789abcdef").into();
        assert_eq!(found.as_ref().map(|it| &it[..]), Some(&wanted[..16]));
    }

    #[test]
    fn an_address_counts_and_of_ipv6_its_network() {
        let of = |text: &str| address_of(bits(text.parse().expect("an address")));
        assert_eq!(of("10.1.2.3"), "10.1.2.3");
        assert_eq!(of("::ffff:10.1.2.3"), "10.1.2.3");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    }

    #[test]
    fn a_stream_keeps_what_was_proven_and_forgets_the_oldest() {
        let caller = CallerProof {
            claim: OwnershipProof::NONE,
            opener: SessionOpener::Server,
            most: 1,
        };
        let request = |session, secret: &'static [u8]| v1::Request {
            number: 1,
            what: Some(request::What::Command(v1::Command {
                session,
                ..v1::Command::default()
            })),
            secret: bytes::Bytes::from_static(secret),
        };
        let mut proven = ProvenSessions::default();
        let mut proves = |session, secret| {
            let proof = proven.by(&request(session, secret), caller);
            proof.map(|it| it.claim.secret.is_some())
        };
        assert_eq!(proves(1, b""), Ok(false));
        assert!(proves(1, b"short").is_err());
        assert_eq!(proves(1, b"0123456789abcdef"), Ok(true));
        assert_eq!(proves(1, b""), Ok(true));
        assert_eq!(proves(2, b""), Ok(false));
        for session in 2..=PROVEN_MAX as u64 + 1 {
            assert_eq!(proves(session, b"0123456789abcdef"), Ok(true));
        }
        assert_eq!((proves(1, b""), proves(2, b"")), (Ok(false), Ok(true)));
    }
}
