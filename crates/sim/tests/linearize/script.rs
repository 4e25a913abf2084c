//! Histories as text.
//!
//! A line is an event. `a create x` is a call of client a, `a = v1` its
//! answer, and `a create x = v1` both at once. A client that calls again
//! without having been answered never will be. The register is `r` unless
//! the call names another: `read@s`. Each client is a session of its own, and
//! the end of client a's is a call of `A`.
//!
//! | call | answers |
//! |---|---|
//! | `read` | `absent`, `x v1` |
//! | `create x`, `replace v1 y` | `v2`, `conflict` |
//! | `note v1 y` | `v2`, `conflict` |
//! | `bind v1 y z`: z at the session's end | `v2`, `conflict` |
//! | `delete v1` | `deleted`, `conflict` |
//! | `end` | `ended` |

use std::collections::BTreeMap;

use tenure_core::cas::Expect;
use tenure_core::ids::{Key, Version};
use tenure_sim::linearize::{Answer, CallId, History, Invocation};

/// The history that `text` tells.
pub(crate) fn history(text: &str) -> History {
    let mut history = History::new();
    let mut open: BTreeMap<&str, CallId> = BTreeMap::new();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    for (line, at_ns) in lines.zip(0..) {
        let (client, rest) = line.split_once(' ').expect("a client and what it does");
        let (call, answered) = match rest.split_once('=') {
            Some((call, answered)) => (call.trim(), Some(answered.trim())),
            None => (rest, None),
        };
        if !call.is_empty() {
            let (key, invocation) = parse_call(call);
            let number = u64::from(client.as_bytes()[0]);
            let session = u64::from(client.as_bytes()[0].to_ascii_lowercase());
            let call = history.invoke_in(session, at_ns, number, key, invocation);
            open.insert(client, call);
        }
        if let Some(answered) = answered {
            let id = open.remove(client).expect("an open call");
            history.answer(at_ns, id, parse_answer(answered));
        }
    }
    history
}

fn parse_call(text: &str) -> (Key, Invocation) {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (verb, key) = words[0].split_once('@').unwrap_or((words[0], "r"));
    let invocation = match (verb, &words[1..]) {
        ("read", []) => Invocation::Read,
        ("create", [value]) => Invocation::Swap {
            expect: Expect::Absent,
            value: value.as_bytes().into(),
        },
        ("replace", [old, value]) => Invocation::Swap {
            expect: Expect::Version(version(old)),
            value: value.as_bytes().into(),
        },
        ("note", [old, value]) => Invocation::Note {
            expect: Expect::Version(version(old)),
            value: value.as_bytes().into(),
        },
        ("bind", [old, value, last]) => Invocation::Bind {
            expect: Expect::Version(version(old)),
            value: value.as_bytes().into(),
            last: last.as_bytes().into(),
        },
        ("delete", [old]) => Invocation::Delete {
            expect: version(old),
        },
        ("end", []) => Invocation::End,
        _ => panic!("expected a call, found {text:?}"),
    };
    (Key::new(key).expect("a good key"), invocation)
}

fn parse_answer(text: &str) -> Answer {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["absent"] => Answer::Absent,
        ["conflict"] => Answer::Conflict,
        ["deleted"] => Answer::Deleted,
        ["ended"] => Answer::Ended,
        [new] => Answer::Swapped(version(new)),
        [value, old] => Answer::Holds {
            value: value.as_bytes().into(),
            version: version(old),
        },
        _ => panic!("expected an answer, found {text:?}"),
    }
}

fn version(text: &str) -> Version {
    let number = text.strip_prefix('v').and_then(|n| n.parse().ok());
    Version::from_u64(number.unwrap_or_else(|| panic!("expected a version, found {text:?}")))
}
