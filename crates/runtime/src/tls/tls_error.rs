//! Why TLS could not be made of a connection, for people.
//!
//! Most of what goes wrong with certificates is found by one side and has to be
//! mended on the other, so both have to say it: the one that does not believe
//! what it was shown, and the one that only hears an alert. What is said here
//! has no part that changes by itself (no "so many seconds ago"), so that a
//! caller that says it once can tell that it is the same as before.
//!
//! Connections that break, and strangers who speak neither, are not told
//! here: there is nothing to mend about them.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;

use rustls::{AlertDescription, CertRevocationListError, CertificateError, Error};

use super::client_files::ClientTlsFiles;
use super::short_chain::LongChain;

/// The other side speaks TLS and this one does not, or the other way round.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(pub &'static str);

/// Whether `error`, or what lies behind it, is that of TLS: one side does not
/// believe the other, or does not understand it. So the other side is alive. A
/// connection that cannot be made, that breaks, or on which nothing comes, is
/// none of these.
///
/// It is known by its kind. No error of the system has it, and HTTP/2 keeps of
/// an error its kind and its text alone.
pub fn is_refusal(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let of_io = error.downcast_ref::<io::Error>();
        if of_io.is_some_and(|it| it.kind() == io::ErrorKind::InvalidData) {
            return true;
        }
        next = error.source();
    }
    false
}

/// What one side does not believe of the other, what was expected and what to
/// do; `None` if the connection failed for another reason. `authority` is the
/// file whose certificates this side believes.
pub fn explain_tls_error(error: &io::Error, authority: &Path) -> Option<String> {
    let below = error.get_ref()?;
    if let Some(mismatch) = below.downcast_ref::<Mismatch>() {
        return Some(mismatch.to_string());
    }
    let authority = authority.display();
    match below.downcast_ref::<Error>()? {
        Error::InvalidCertificate(why) => {
            let (found, advice) = describe_certificate_error(why);
            Some(format!(
                "expected a certificate of an authority in {authority}, found {found}; {advice}"
            ))
        }
        Error::InvalidCertRevocationList(why) => Some(unusable_revocation_list(&authority, why)),
        Error::NoCertificatesPresented => Some(format!(
            "expected a certificate of an authority in {authority}, found none; give the \
             side that connects one"
        )),
        Error::AlertReceived(alert) => explain_alert(*alert),
        _ => None,
    }
}

/// What it means that a list of revoked certificates cannot be used.
fn unusable_revocation_list(authority: &dyn fmt::Display, why: &CertRevocationListError) -> String {
    format!(
        "expected a list of what each authority in {authority} has revoked, found one that cannot \
         be used ({why:?}); put the newest of each into the file of --tls-crl (crl= of clients). Of \
         two authorities of one name only one can have a list"
    )
}

/// What the alert for all other reasons says; that of a chain that is too long.
const UNUSABLE: &str = "cannot be used; its file may hold only what stands between it and its \
                        authority, 8 certificates in 16 KiB at most";

/// What an alert says of the certificate that this side has shown.
fn explain_alert(alert: AlertDescription) -> Option<String> {
    let what = match alert {
        AlertDescription::CertificateExpired => {
            "has expired, or is not valid yet; renew it, and compare the calendars of both machines"
        }
        // Also if there is no list: TLS has one alert for both.
        AlertDescription::UnknownCA => {
            "is of another authority than its own, or of one that has no list in its --tls-crl; \
             give both sides certificates of one authority, and --tls-crl a list of each authority"
        }
        AlertDescription::DecryptError => {
            "is of another authority than its own; give both sides certificates of one authority"
        }
        AlertDescription::BadCertificate => {
            "cannot be read, or is for other hosts; make it for the host at which this server is \
             reached"
        }
        AlertDescription::UnsupportedCertificate => {
            "is for another purpose; servers need one for both sides (serverAuth and clientAuth)"
        }
        AlertDescription::CertificateRevoked => "was revoked; replace it",
        AlertDescription::CertificateUnknown => UNUSABLE,
        AlertDescription::CertificateRequired => {
            "is missing; name one and its key, of the same authority"
        }
        _ => return None,
    };
    Some(format!(
        "expected the other side to believe this side's certificate, found that it does not \
         ({alert:?}): it says that the certificate {what}"
    ))
}

/// The same for a client of servers: what was expected, what was found and
/// what to do with the files that it was given; `None` if the connection
/// failed for another reason.
pub(super) fn explain_for_client(error: &io::Error, files: &ClientTlsFiles) -> Option<String> {
    match error.get_ref()?.downcast_ref::<Error>()? {
        Error::InvalidCertificate(why) => {
            let (found, advice) = describe_certificate_error(why);
            let advice = match why {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    "name the authority of the servers by ca="
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "renew that of the server"
                }
                _ => advice,
            };
            Some(format!(
                "expected a certificate for this host from an authority in {}, found {found}; \
                 {advice}",
                files.authority.display()
            ))
        }
        Error::InvalidCertRevocationList(why) => {
            Some(unusable_revocation_list(&files.authority.display(), why))
        }
        Error::InvalidMessage(_) => Some(
            "expected TLS, found something else; leave out ca=, cert= and key= if the servers run \
             without TLS"
                .to_owned(),
        ),
        Error::AlertReceived(alert) => refused(*alert, files),
        _ => None,
    }
}

/// What an alert says of the certificate of a client.
fn refused(alert: AlertDescription, files: &ClientTlsFiles) -> Option<String> {
    let what = match alert {
        AlertDescription::CertificateRequired => {
            return Some(
                "expected to be let in without a certificate, found that the servers ask clients \
                 for one; name one of their authority and its key by cert= and key="
                    .to_owned(),
            );
        }
        AlertDescription::CertificateExpired => {
            "has expired, or is not valid yet; renew it, its file is read again by itself, and \
             compare the calendars of both machines"
        }
        AlertDescription::UnknownCA => {
            "is of another authority than their --tls-ca, or of one that has no list in their \
             --tls-crl; name one of theirs by cert= and key=, or add the list of its authority there"
        }
        AlertDescription::DecryptError => {
            "is of another authority than their --tls-ca; name one of theirs by cert= and key="
        }
        AlertDescription::BadCertificate => "cannot be read; replace it",
        AlertDescription::UnsupportedCertificate => {
            "is for another purpose; clients need one for theirs (clientAuth)"
        }
        AlertDescription::CertificateRevoked => "was revoked; replace it",
        AlertDescription::CertificateUnknown => UNUSABLE,
        _ => return None,
    };
    let own = files.own.as_ref();
    let own = own.map_or_else(String::new, |own| own.certificate.display().to_string());
    Some(format!(
        "expected the servers to believe the certificate in {own}, found that it {what}"
    ))
}

/// What is wrong with a certificate, and what to do about it.
pub fn describe_certificate_error(error: &CertificateError) -> (String, &'static str) {
    const RENEW: &str = "renew it; its file is read again by itself";
    const CALENDAR: &str = "compare the calendars of both machines";
    const AUTHORITY: &str = "give both sides certificates of one authority";
    match error {
        CertificateError::Expired => ("one that has expired".into(), RENEW),
        CertificateError::ExpiredContext { not_after, .. } => {
            let found = format!("one that has expired on {}", date(not_after.as_secs()));
            (found, RENEW)
        }
        CertificateError::NotValidYet => ("one that is not valid yet".into(), CALENDAR),
        CertificateError::NotValidYetContext { not_before, .. } => {
            let found = format!(
                "one that is not valid before {}",
                date(not_before.as_secs())
            );
            (found, CALENDAR)
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            ("one of another authority".into(), AUTHORITY)
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
            format!("one for another host ({error})"),
            "make it for the host at which its server is reached",
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => (
            format!("one for another purpose ({error})"),
            "servers need one for both sides (serverAuth and clientAuth)",
        ),
        CertificateError::Revoked => ("one that was revoked".into(), "replace it"),
        CertificateError::UnknownRevocationStatus => (
            "one of an authority that has no list of revoked certificates here".into(),
            "add its list to the file of --tls-crl (crl= of clients)",
        ),
        CertificateError::ExpiredRevocationListContext { next_update, .. } => {
            let on = date(next_update.as_secs());
            (
                format!("a list of revoked certificates that was to be renewed by {on}"),
                "put the newest list into the file of --tls-crl; the old one stays in use",
            )
        }
        CertificateError::Other(other) if other.0.is::<LongChain>() => (
            other.0.to_string(),
            "leave only those in its file that stand between it and its authority",
        ),
        other => (format!("one that cannot be used ({other})"), "replace it"),
    }
}

/// A day and a minute of the calendar, in UTC, so many seconds after 1970.
pub fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's `civil_from_days`, for days from 1970 on: years begin
    // in March, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (rest / 3_600, rest % 3_600 / 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_009_843_200, "2002-01-01 00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn a_refusal_is_known_below_other_errors() {
        #[derive(Debug, thiserror::Error)]
        #[error("transport error")]
        struct Above(#[source] io::Error);

        let alert = Error::AlertReceived(AlertDescription::CertificateRevoked);
        let heard = io::Error::new(io::ErrorKind::InvalidData, alert);
        assert!(is_refusal(&Above(heard)));
        for kind in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::UnexpectedEof,
        ] {
            assert!(!is_refusal(&Above(kind.into())), "{kind}");
        }
    }

    #[test]
    fn what_breaks_is_no_distrust() {
        let broken = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(explain_tls_error(&broken, Path::new("ca.pem")), None);
        let closed = Error::AlertReceived(AlertDescription::CloseNotify);
        let closed = io::Error::new(io::ErrorKind::InvalidData, closed);
        assert_eq!(explain_tls_error(&closed, Path::new("ca.pem")), None);
    }
}
