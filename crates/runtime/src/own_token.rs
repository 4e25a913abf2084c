//! The token that the servers of one user share by themselves, and how a
//! client shows that it has it.
//!
//! A server without tokens that only this machine reaches has one token all the
//! same: it is drawn once per user, is kept in the user's state directory, and
//! a program that can read it there may do everything. Clients find it by
//! themselves ([`OwnToken::path`]).
//!
//! Any user of the machine can listen on a loopback port that is free, so a
//! client does not know who is at the other end, and must not tell the token.
//! It proves that it has it, by an HMAC-SHA256 whose key is the token over the
//! address that it has dialled and the moment before it did so.
//!
//! The server takes a proof of a connection only for the address at which the
//! connection has come, of a moment at which it was listening there already,
//! and of at most [`DIALLED_WITHIN`] before the connection was taken. So what
//! another program hears in its place is good for nothing: it heard it at
//! another address, or before the server had this one.
//!
//! Moments are of the boot-time clock, which is not set and does not step, and
//! the proof is about that clock as well ([`crate::clock::id`]): a
//! proof of before a reboot proves nothing.
//!
//! A proof shows who calls. It does not show who answers: a client cannot tell
//! by it whether the other side is a server of its user. Only TLS does that.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tenure_core::time::{ClockId, Instant};

use crate::{clock, small};

/// The name of the file below `tenure` in the state directory.
const FILE: &str = "tenure/token";
/// The shortest token, in bytes.
const BYTES_MIN: usize = 16;
/// The longest.
const BYTES_MAX: usize = 1_024;
/// What a proof begins with, in place of a token.
const SCHEME: &str = "own.";
/// What the proof is of: no other HMAC with this key says it.
const LABEL: &[u8] = b"tenure: a connection by the own token, 1\0";
/// How long before a connection was taken it may have been dialled.
pub const DIALLED_WITHIN: Duration = Duration::from_secs(60);

/// A token that belongs to a user of this machine.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnToken(Arc<str>);

impl fmt::Debug for OwnToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnToken")
    }
}

/// Where a connection has come to, and when.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// At which address of this machine.
    pub to: SocketAddr,
    /// When it was taken.
    pub at: Instant,
    /// Since when somebody has listened there.
    pub since: Instant,
}

/// What a proof is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Who made it has the token, and has dialled this server.
    Proven,
    /// Who made it has the token, and has dialled before this server listened
    /// here, or long ago: it is to dial again.
    Stale,
    /// It is of another token, for another address, of another clock, or none.
    Wrong,
}

impl OwnToken {
    /// Where this user keeps it: `$XDG_STATE_HOME/tenure/token`, or below
    /// `~/.local/state`. `None` if the user has no home.
    pub fn path() -> Option<PathBuf> {
        small::state_home().map(|state| state.join(FILE))
    }

    /// Reads the token from a file that this user alone can have written, and
    /// that only its owner and a group can read; `None` if there is no file.
    ///
    /// # Errors
    /// What was expected of the file and its directory, and what was found.
    pub fn read(file: &Path) -> Result<Option<Self>, String> {
        let wrong = |why: String| {
            format!(
                "{}: expected the token that the servers of this user share, found: {why}",
                file.display()
            )
        };
        match small::read_private(file) {
            Ok(bytes) => Self::new(&bytes).map(Some).map_err(wrong),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// A token that is known already. White space around it does not count.
    ///
    /// # Errors
    /// If it is too short or too long, or no word.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        let bytes = bytes.trim_ascii();
        let good = (BYTES_MIN..=BYTES_MAX).contains(&bytes.len())
            && bytes.iter().all(u8::is_ascii_graphic);
        let text = std::str::from_utf8(bytes).ok().filter(|_| good);
        let text = text.ok_or_else(|| {
            // What was found stays a secret.
            format!(
                "expected a token of {BYTES_MIN} to {BYTES_MAX} letters, digits and signs, found \
                 {} bytes that are none",
                bytes.len()
            )
        })?;
        Ok(Self(text.into()))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether this stands in place of a token to prove one.
    pub fn is_proof(said: &[u8]) -> bool {
        parse(said).is_some()
    }

    /// What a client says by a connection to `to` that it began to dial then,
    /// in place of the token; `None` where the clock has no name.
    pub fn prove(&self, to: SocketAddr, dialled: Instant) -> Option<String> {
        let tag = self.mac(to, dialled, clock::id()?)?.finalize().into_bytes();
        let tag: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("{SCHEME}{}.{tag}", dialled.as_nanos()))
    }

    /// What is proven by that which was said by a connection.
    pub fn judge(&self, said: &[u8], arrival: Arrival) -> Verdict {
        let Some((dialled, tag)) = parse(said) else {
            return Verdict::Wrong;
        };
        let mac = clock::id().and_then(|id| self.mac(arrival.to, dialled, id));
        // How long it takes does not tell how much of it is right.
        if mac.is_none_or(|mac| mac.verify_slice(&tag).is_err()) {
            return Verdict::Wrong;
        }
        let from = arrival.since.max(arrival.at.before(DIALLED_WITHIN));
        if (from..=arrival.at).contains(&dialled) {
            Verdict::Proven
        } else {
            Verdict::Stale
        }
    }

    fn mac(&self, to: SocketAddr, dialled: Instant, clock: ClockId) -> Option<Hmac<Sha256>> {
        // A key of any length is taken.
        let mut mac = Hmac::<Sha256>::new_from_slice(self.as_bytes()).ok()?;
        mac.update(LABEL);
        for number in [clock.boot, clock.namespace, dialled.as_nanos()] {
            mac.update(&number.to_be_bytes());
        }
        let address = match to.ip().to_canonical() {
            std::net::IpAddr::V4(address) => address.to_ipv6_mapped(),
            std::net::IpAddr::V6(address) => address,
        };
        mac.update(&address.octets());
        mac.update(&to.port().to_be_bytes());
        Some(mac)
    }
}

/// Whether only programs of this machine reach an address.
pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The moment and the tag of a proof.
fn parse(said: &[u8]) -> Option<(Instant, [u8; 32])> {
    let rest = std::str::from_utf8(said).ok()?.strip_prefix(SCHEME)?;
    let (nanos, digits) = rest.split_once('.')?;
    if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut tag = [0; 32];
    for (at, byte) in tag.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some((Instant::from_nanos(nanos.parse().ok()?), tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> OwnToken {
        OwnToken::new(text.as_bytes()).expect("a token")
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_proof_is_good_where_and_when_it_was_dialled_and_nowhere_else() {
        let own = token("tenure_0123456789abcdef");
        let said = own.prove(address("127.0.0.1:7400"), at(1_000));
        let said = said.expect("this machine's clock has a name");
        assert!(OwnToken::is_proof(said.as_bytes()));
        assert!(!said.contains("0123456789abcdef"), "{said}");
        let judged = |by: &OwnToken, said: &str, to: &str, taken: u64, since: u64| {
            let arrival = Arrival {
                to: address(to),
                at: at(taken),
                since: at(since),
            };
            by.judge(said.as_bytes(), arrival)
        };
        for (to, taken, since, verdict) in [
            ("127.0.0.1:7400", 1_000, 1_000, Verdict::Proven),
            ("127.0.0.1:7400", 1_060, 1, Verdict::Proven),
            ("[::ffff:127.0.0.1]:7400", 1_001, 1, Verdict::Proven),
            // Another began to listen after it was dialled.
            ("127.0.0.1:7400", 1_002, 1_001, Verdict::Stale),
            ("127.0.0.1:7400", 1_061, 1, Verdict::Stale),
            // Of a moment that has not come.
            ("127.0.0.1:7400", 999, 1, Verdict::Stale),
            ("127.0.0.1:7401", 1_001, 1, Verdict::Wrong),
            ("127.0.0.2:7400", 1_001, 1, Verdict::Wrong),
            ("[::1]:7400", 1_001, 1, Verdict::Wrong),
        ] {
            assert_eq!(
                judged(&own, &said, to, taken, since),
                verdict,
                "{to} {taken}"
            );
        }
        let here = |said: &str| judged(&own, said, "127.0.0.1:7400", 1_000, 1);
        let other = token("tenure_0123456789abcdeF");
        assert_eq!(
            judged(&other, &said, "127.0.0.1:7400", 1_000, 1),
            Verdict::Wrong
        );
        // Another moment, a tag that is changed, cut, or none.
        let later = said.replacen(".1", ".2", 1);
        let changed = if said.ends_with('0') { "1" } else { "0" };
        let changed = format!("{}{changed}", &said[..said.len() - 1]);
        for bad in [
            &*later,
            &changed,
            &said[..said.len() - 1],
            &said[..said.len() - 64],
            "own.",
            "own.1.",
            "own.ü",
            "tenure_0123456789abcdef",
        ] {
            assert_eq!(here(bad), Verdict::Wrong, "{bad}");
        }
    }

    #[test]
    fn a_token_is_a_word_and_is_not_printed() {
        let own = token(" tenure_0123456789abcdef\n");
        assert_eq!(own.as_bytes(), b"tenure_0123456789abcdef");
        assert_eq!(format!("{own:?}"), "OwnToken");
        for bad in ["", "short", "two words are no token", &"x".repeat(1_025)] {
            let why = OwnToken::new(bad.as_bytes()).expect_err("no token");
            assert!(why.contains("expected a token of 16 to 1024"), "{why}");
            assert!(bad.is_empty() || !why.contains(bad), "{why}");
        }
    }

    #[test]
    fn only_loopback_addresses_are_near() {
        for (text, near) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("10.0.0.1:1", false),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
        ] {
            assert_eq!(is_loopback(address(text)), near, "{text}");
        }
    }
}
