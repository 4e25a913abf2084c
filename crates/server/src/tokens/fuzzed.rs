//! The file of tokens, and the header of a call ([`crate::fuzzed`]).

use super::rights::{Need, PREFIXES_MAX};
use super::table::{TOKENS_MAX, Table};
use super::{TOKEN_BYTES_MAX, bearer};
use tenure_api::v1;

/// The longest that is said of a wrong file, in bytes.
const SAID_MAX: usize = 2_000;

/// `bytes` as the file, and as the header.
pub(crate) fn tokens(bytes: &[u8]) {
    if let Some(token) = bearer(bytes) {
        assert!(token.len() <= TOKEN_BYTES_MAX);
        assert!(token.iter().all(u8::is_ascii_graphic));
    }
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    match Table::parse(text) {
        Ok(table) => is_sound(&table),
        Err(said) => {
            assert!(said.len() <= SAID_MAX, "{} bytes: {said}", said.len());
            assert!(!said.contains(char::is_control), "{said:?}");
        }
    }
}

fn is_sound(table: &Table) {
    assert!(table.0.len() <= TOKENS_MAX);
    for (fingerprint, rights) in &table.0 {
        let found = table.find(fingerprint).expect("a token of the table");
        assert_eq!(found.name, rights.name, "each token once");
        let shown = rights.shown();
        for right in ["read", "write", "campaign", "operate"] {
            let prefixes = shown[right].as_array();
            assert!(prefixes.is_none_or(|it| it.len() <= PREFIXES_MAX));
        }
        if let Some(said) = rights.outdated() {
            assert!(!said.contains('\n'), "{said:?}");
        }
        let swap = v1::Swap {
            key: "election/x".to_owned(),
            ..v1::Swap::default()
        };
        // A token that may do everything may do each of these.
        for need in [
            Need::Token,
            Need::Read("ha/x/view"),
            Need::Swap(&swap),
            Need::Delete("x"),
            Need::Session,
            Need::ReadLog,
            Need::Append,
            Need::Admin,
        ] {
            assert!(rights.allow(need) || !rights.admin);
        }
    }
}
