//! Values of registers, which any caller with the right to write there may have written.

use tenure_election::Record;
use tenure_group::{Heartbeat, View};

/// `bytes` as the record of an election.
pub(super) fn records(bytes: &[u8]) {
    for bytes in [bytes, &sealed(bytes)] {
        match Record::decode(bytes) {
            Ok(record) => {
                let again = Record::decode(&record.encode());
                assert_eq!(
                    again.as_ref(),
                    Ok(&record),
                    "what is written reads the same"
                );
                let leader = record.leader();
                assert_eq!(leader.is_some(), record.holder().is_some());
                if let Some(holder) = record.holder() {
                    assert!(record.is_held_by(holder.id, record.term));
                }
            }
            Err(error) => is_short(&error.to_string()),
        }
    }
}

/// `bytes` as the view of a group, and as what a node of it says of itself.
pub(super) fn views(bytes: &[u8]) {
    for bytes in [bytes, &sealed(bytes)] {
        match View::decode(bytes) {
            Ok(view) => {
                let again = View::decode(&view.encode());
                assert_eq!(again.as_ref(), Ok(&view), "what is written reads the same");
                assert!(view.voters() <= view.members.len());
                for member in &view.members {
                    assert_eq!(view.member(member.id), Some(member), "a node once");
                    let held = view.held_by(member.id).count();
                    assert!(held <= view.workloads.len());
                }
                // Whether it has one, it can say.
                let _ = view.has_quorum();
            }
            Err(error) => is_short(&error.to_string()),
        }
        match Heartbeat::decode(bytes) {
            Ok(beat) => {
                let again = Heartbeat::decode(&beat.encode());
                assert_eq!(again.as_ref(), Ok(&beat), "what is written reads the same");
            }
            Err(error) => is_short(&error.to_string()),
        }
    }
}

/// The same with the line at the end that has the checksum, or that line with
/// another one put right.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    const LINE: &[u8] = b"crc32c ";
    let mut found = bytes.windows(LINE.len());
    let body = found.rposition(|it| it == LINE).unwrap_or(bytes.len());
    let mut sealed = bytes[..body].to_vec();
    let sum = crc32c::crc32c(&sealed);
    sealed.extend_from_slice(format!("crc32c {sum:08x}\n").as_bytes());
    sealed
}

/// What is said of a wrong value goes to logs and terminals.
fn is_short(error: &str) {
    assert!(error.len() <= 2_000, "{} bytes: {error}", error.len());
    assert!(!error.contains(char::is_control), "{error:?}");
}
