//! Rights, by what they allow and what they do not; files that make no sense.

use std::time::Duration;

use tenure_core::ids::{Name, Term};
use tenure_core::time::WallTime;
use tenure_election::{Occupancy, Record};

use super::table::TOKENS_MAX;
use super::*;

fn rights(text: &str) -> Arc<Rights> {
    let sha256 = fingerprint("x");
    let text = format!("[tokens.t]\nsha256 = \"{sha256}\"\n{text}");
    let table = Table::parse(&text).expect("a table");
    Arc::clone(table.find(&digest(b"x")).expect("it is known"))
}

fn record(election: &str) -> bytes::Bytes {
    let record = Record {
        election: Name::new(election).expect("a name"),
        term: Term::ZERO,
        sequence: 1,
        renewal: 1,
        lease: Duration::from_secs(10),
        acquired_at: WallTime::from_millis(0),
        renewed_at: WallTime::from_millis(0),
        occupancy: Occupancy::Vacant { successor: None },
    };
    record.encode().as_ref().to_vec().into()
}

fn swap(key: &str, value: bytes::Bytes) -> v1::Swap {
    v1::Swap {
        key: key.to_owned(),
        value,
        ..v1::Swap::default()
    }
}

#[test]
fn a_right_is_for_what_begins_so_and_for_nothing_else() {
    let reader = rights("read = [\"a/\", \"b\"]");
    for (key, allowed) in [
        ("a/", true),
        ("a/1", true),
        ("a", false),
        ("b2", true),
        ("c/a/", false),
        ("", false),
    ] {
        assert_eq!(reader.allow(Need::Read(key)), allowed, "{key:?}");
        assert!(!reader.allow(Need::Delete(key)), "{key:?}");
        assert!(!reader.allow(Need::Swap(&swap(key, bytes::Bytes::new()))));
    }
    assert!(!reader.allow(Need::Session));
    assert!(!reader.allow(Need::ReadLog));
    let writer = rights("write = [\"a/\"]");
    assert!(writer.allow(Need::Read("a/1")) && writer.allow(Need::Delete("a/1")));
    assert!(writer.allow(Need::Swap(&swap("a/1", bytes::Bytes::new()))));
    assert!(!writer.allow(Need::Swap(&swap("b/1", bytes::Bytes::new()))));
    assert!(writer.allow(Need::Session) && !writer.allow(Need::Append));
    assert!(rights("read = [\"\"]").allow(Need::Read("")));
}

#[test]
fn whoever_may_campaign_writes_records_of_those_elections_only() {
    let candidate = rights("campaign = [\"pay\"]");
    for (key, value, allowed) in [
        ("elections/payroll", record("payroll"), true),
        ("elections/pay", record("pay"), true),
        // Of another election.
        ("elections/payroll", record("pay"), false),
        ("elections/other", record("other"), false),
        // No record, and no election.
        ("elections/payroll", "1".into(), false),
        ("elections/payroll", bytes::Bytes::new(), false),
        ("payroll", record("payroll"), false),
        ("pay", record("pay"), false),
    ] {
        let wanted = swap(key, value);
        assert_eq!(candidate.allow(Need::Swap(&wanted)), allowed, "{wanted:?}");
    }
    // An on-expiry value is a record too.
    for (last, allowed) in [(record("payroll"), true), ("1".into(), false)] {
        let mut wanted = swap("elections/payroll", record("payroll"));
        wanted.at_end = Some(v1::AtEnd { value: last });
        assert_eq!(candidate.allow(Need::Swap(&wanted)), allowed, "{wanted:?}");
    }
    assert!(candidate.allow(Need::Session));
    assert!(candidate.allow(Need::Read("elections/payroll")));
    assert!(!candidate.allow(Need::Read("elections/")));
    assert!(!candidate.allow(Need::Delete("elections/payroll")));
    assert!(!candidate.allow(Need::Admin));
}

#[test]
fn groups_are_operated_by_their_names_and_not_by_what_may_be_written() {
    let writes = |rights: &Rights, key: &str| {
        let swaps = rights.allow(Need::Swap(&swap(key, bytes::Bytes::new())));
        assert_eq!(rights.allow(Need::Delete(key)), swaps, "{key:?}");
        swaps
    };
    let agent = rights("operate = [\"web\", \"db-*\"]");
    for (key, allowed) in [
        ("ha/web/view", true),
        ("ha/web/nodes/1", true),
        ("ha/web/", true),
        ("ha/web", false),
        ("ha/web-2/view", false),
        ("ha/we/view", false),
        ("ha/db-/view", true),
        ("ha/db-1/view", true),
        ("ha/db/view", false),
        ("ha/", false),
        ("web/view", false),
        ("elections/web", false),
    ] {
        assert_eq!(writes(&agent, key), allowed, "{key:?}");
        assert_eq!(agent.allow(Need::Read(key)), allowed, "{key:?}");
    }
    assert!(agent.allow(Need::Session) && !agent.allow(Need::Append));
    assert!(writes(&rights("operate = [\"*\"]"), "ha/any/view"));
    // What may be written includes no group, unless the file is of before.
    for prefix in ["", "h", "ha/", "ha/web/"] {
        let new = rights(&format!("operate = []\nwrite = [\"{prefix}\"]"));
        assert!(!writes(&new, "ha/web/view"), "{prefix:?}");
        assert!(new.allow(Need::Read("ha/web/view")), "{prefix:?}");
        assert!(new.allow(Need::Session) && new.outdated().is_none());
        let old = rights(&format!("write = [\"{prefix}\"]"));
        assert!(writes(&old, "ha/web/view"), "{prefix:?}");
    }
    assert!(writes(&rights("operate = []\nwrite = [\"\"]"), "hard"));
    assert!(!rights("operate = []").allow(Need::Session));
    for text in [
        "write = [\"state/\"]",
        "read = [\"ha/\"]",
        "admin = true\nwrite = [\"ha/\"]",
    ] {
        assert_eq!(rights(text).outdated(), None, "{text}");
    }
}

#[test]
fn a_token_of_before_is_told_the_line_that_keeps_its_right() {
    for (write, line) in [
        ("[\"\"]", "operate = [\"*\"]"),
        ("[\"h\"]", "operate = [\"*\"]"),
        ("[\"ha/\"]", "operate = [\"*\"]"),
        ("[\"state/\", \"ha/we\"]", "operate = [\"we*\"]"),
        (
            "[\"ha/web/\", \"ha/db/view\"]",
            "operate = [\"web\", \"db\"]",
        ),
    ] {
        let old = rights(&format!("write = {write}"));
        let said = old.outdated().expect("it relies on write");
        let wanted = format!("add {line} to [tokens.t]");
        assert!(said.contains(&wanted), "{said}");
        // That line, and the one that takes the right away, are as good.
        for line in [line, "operate = []"] {
            let new = rights(&format!("write = {write}\n{line}"));
            assert_eq!(new.outdated(), None, "{line}");
        }
    }
}

#[test]
fn the_log_has_rights_of_its_own_and_an_admin_has_all() {
    let (reader, appender) = (rights("log = \"read\""), rights("log = \"append\""));
    assert!(reader.allow(Need::ReadLog) && !reader.allow(Need::Append));
    assert!(!reader.allow(Need::Session));
    assert!(appender.allow(Need::ReadLog) && appender.allow(Need::Append));
    assert!(appender.allow(Need::Session) && !appender.allow(Need::Read("")));
    let nobody = rights("");
    let written = swap("a", bytes::Bytes::new());
    for need in [
        Need::Read("a"),
        Need::Swap(&written),
        Need::Delete("a"),
        Need::Session,
        Need::ReadLog,
        Need::Append,
        Need::Admin,
    ] {
        assert!(!nobody.allow(need), "{need:?}");
        assert!(rights("admin = true").allow(need), "{need:?}");
    }
    assert!(nobody.allow(Need::Token));
}

#[test]
fn a_file_that_makes_no_sense_is_refused_with_what_was_found() {
    let one = fingerprint("one");
    for (text, said) in [
        ("[tokens.a]", "missing field `sha256`"),
        ("[tokens.a]\nsha256 = \"12\"", "found 2 characters"),
        (
            &format!("[tokens.a]\nsha256 = \"{}\"", "é".repeat(32)),
            "64 hexadecimal digits",
        ),
        (
            &format!("[tokens.a]\nsha256 = \"{one}\"\nwriet = []"),
            "writ",
        ),
        (
            &format!("[tokens.a]\nsha256 = \"{one}\"\nlog = \"all\""),
            "line 3, column 7: unknown variant, expected",
        ),
        (
            &format!("[tokens.a]\nsha256 = \"{one}\"\n[tokens.b]\nsha256 = \"{one}\""),
            "that of a again as b",
        ),
        (
            &format!("[tokens.a]\nsha256 = \"{one}\"\noperate = [\"a/b\"]"),
            "names of groups",
        ),
        (
            &format!("[tokens.a]\nsha256 = \"{one}\"\noperate = [\"\"]"),
            "names of groups",
        ),
        (&format!("[token.a]\nsha256 = \"{one}\""), "token"),
    ] {
        let error = check_tokens(text).expect_err(text);
        assert!(error.contains(said), "{error}");
    }
    let many = (0..=TOKENS_MAX).fold(String::new(), |text, n| {
        text + &format!(
            "[tokens.t{n}]\nsha256 = \"{}\"\n",
            fingerprint(&n.to_string())
        )
    });
    assert!(check_tokens(&many).expect_err("too many").contains("1025"));
    assert_eq!(check_tokens(""), Ok(()));
}

#[test]
fn an_empty_file_takes_no_right_from_anybody() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    for text in ["", " \n"] {
        std::fs::write(file.path(), text).expect("written");
        let why = Table::read(file.path()).expect_err("it is half written");
        assert!(
            why.contains("expected tokens, found an empty file"),
            "{why}"
        );
    }
    std::fs::write(file.path(), "[tokens]\n").expect("written");
    assert!(Table::read(file.path()).is_ok());
}

#[test]
fn a_token_is_found_by_its_whole_fingerprint() {
    let table = Table::parse(&format!(
        "[tokens.a]\nsha256 = \"{}\"\n[tokens.b]\nsha256 = \"{}\"",
        fingerprint("one"),
        fingerprint("two").to_uppercase(),
    ));
    let table = table.expect("a table");
    let name = |token: &[u8]| table.find(&digest(token)).map(|it| it.name.clone());
    assert_eq!(name(b"one").as_deref(), Some("a"));
    assert_eq!(name(b"two").as_deref(), Some("b"));
    assert_eq!(name(b"three"), None);
    let mut close = digest(b"one");
    close[31] ^= 1;
    assert!(table.find(&close).is_none());
    assert_eq!(
        fingerprint("abc"),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

#[test]
fn a_header_holds_one_word_after_bearer() {
    for (value, token) in [
        (&b"Bearer x"[..], Some(&b"x"[..])),
        (b"bearer abc", Some(b"abc")),
        (b"Bearer ", None),
        (b"Bearer", None),
        (b"Bearer a b", None),
        (b"Basic x", None),
        (b"x", None),
        (b"Bearer \xc3\xbc", None),
    ] {
        assert_eq!(bearer(value), token);
    }
    let long = format!("Bearer {}", "x".repeat(TOKEN_BYTES_MAX + 1));
    assert_eq!(bearer(long.as_bytes()), None);
}

#[test]
fn what_is_said_of_a_file_moves_no_cursor_and_is_short() {
    let digits = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let long = "n".repeat(100_000);
    let token = |name: &str, rest: &str| format!("[tokens.\"{name}\"]\n{rest}\n");
    let good = format!("sha256 = \"{digits}\"");
    for text in [
        token("a\\u001b[2J", "sha256 = \"5\""),
        token("a\\n", &good) + &token("b\\n", &good),
        token("a\\n", &format!("{good}\noperate = [\"\"]")),
        token(&long, "sha256 = \"5\""),
        token("a", &format!("{long} = 1")),
    ] {
        let said = Table::parse(&text).map(drop).expect_err(&text);
        assert!(!said.contains(char::is_control), "{said:?}");
        assert!(said.len() < 2_000, "{} bytes: {said}", said.len());
    }
    let old = token("a\\n", &format!("{good}\nwrite = [\"ha/x/\"]"));
    let table = Table::parse(&old).expect("a table");
    let said = table.0[0].1.outdated().expect("it is");
    assert!(!said.contains(char::is_control), "{said:?}");
}

/// How the quotas of tokens stand, by their names.
fn counted(text: &str) -> Vec<(bool, bool)> {
    let table = Table::parse(text).expect("a table");
    let stand = |rights: &Rights| (rights.quota.is_some(), rights.quota_dropped);
    table.0.iter().map(|(_, rights)| stand(rights)).collect()
}

#[test]
fn registers_are_counted_of_all_who_may_write_some_but_not_all() {
    let of = |text: &str| rights(text).quota.clone();
    for none in [
        "read = [\"\"]\nlog = \"append\"",
        "admin = true",
        "write = [\"a/\", \"\"]",
    ] {
        assert!(of(none).is_none(), "{none}");
    }
    for (text, prefix) in [
        ("campaign = [\"x\"]", "elections/x"),
        ("campaign = [\"\"]", "elections/"),
        ("operate = [\"web\"]", "ha/web/"),
        ("operate = [\"*\"]", "ha/"),
        ("write = [\"a/\", \"a/b/\"]", "a/"),
    ] {
        let quota = of(text).expect("it is counted");
        assert!(quota.is_unset(), "{text}");
        assert_eq!(quota.prefixes, [prefix], "{text}");
    }
    let said = of("admin = true\nquota_bytes = 7").expect("it is counted");
    assert!(!said.is_unset());
}

#[test]
fn of_too_many_prefixes_those_with_a_quota_of_their_own_are_counted_first() {
    let mut text = String::new();
    let mut add = |name: u64, quota: &str| {
        let sha256 = fingerprint(&name.to_string());
        let each: Vec<_> = (0..64).map(|it| format!("{name}/{it:02}/")).collect();
        text += &format!("[tokens.t{name}]\nsha256 = \"{sha256}\"\nwrite = {each:?}\n{quota}\n");
    };
    (10..26).for_each(|name| add(name, ""));
    add(26, "quota_bytes = 7");
    // The same prefixes again are none more.
    let sha256 = fingerprint("again");
    text += &format!("[tokens.t27]\nsha256 = \"{sha256}\"\nwrite = [\"10/00/\", \"26/07/\"]\n");
    let mut wanted = vec![(true, false); 18];
    wanted[15] = (false, true);
    assert_eq!(counted(&text), wanted);
    let sha256 = fingerprint("more");
    text += &format!("[tokens.t28]\nsha256 = \"{sha256}\"\ncampaign = [\"x\"]\n");
    wanted.push((false, true));
    assert_eq!(counted(&text), wanted);
}
