//! Servers that cannot work with this one: of another cluster or protocol, or
//! set in another way.

use std::time::Duration;

use tenure_alpo::ClusterVersion;
use tenure_runtime::clock;

use super::shared::Shared;
use crate::transport::{Form, Greeting, GreetingAnswer, Settings};

/// Why the other server cannot be one that this one works with, if so.
fn incompatibility(shared: &Shared, greeting: &Greeting, form: Form) -> Option<String> {
    let local_server = shared.local_server();
    if form == Form::First && local_server.details.version >= ClusterVersion::SECOND {
        let other = greeting.hello.server.get();
        return Some(format!(
            "expected the protocol tenure-2, which all servers of this cluster speak since its \
             version is {}, found tenure-1; start server {other} with the release of the others, \
             or a later one",
            local_server.details.version
        ));
    }
    if greeting.settings != local_server.settings {
        // Both sides print it, so it names both.
        let (own, other) = (local_server.hello.server.get(), greeting.hello.server.get());
        let unlike = unlike(local_server.settings, greeting.settings);
        return Some(format!(
            "{unlike} (server {own} has the former, server {other} the latter); give all servers \
             of a cluster the same --election-timeout and --lease-reads"
        ));
    }
    // A blank one judges for itself by what it is answered.
    let identity = local_server.identity?;
    greeting.hello.cluster?;
    let meets = identity.meets(&greeting.hello);
    meets.err().map(|stranger| stranger.to_string())
}

/// How `theirs` differ from `ours`, by what people set.
fn unlike(ours: Settings, theirs: Settings) -> String {
    let switch = |on: bool| if on { "on" } else { "off" };
    let time = |nanos: u64| format!("{:?}", Duration::from_nanos(nanos));
    let drift = |ppm: u32| format!("{ppm} ppm");
    let all = [
        (
            "--election-timeout",
            time(ours.timeout),
            time(theirs.timeout),
        ),
        (
            "--lease-reads",
            switch(ours.lease_reads).to_owned(),
            switch(theirs.lease_reads).to_owned(),
        ),
        // No flag sets these; a program that runs servers by the library may.
        (
            "the bound on clocks' drift",
            drift(ours.drift),
            drift(theirs.drift),
        ),
        (
            "the fast detection of crashes",
            switch(ours.fast_detection).to_owned(),
            switch(theirs.fast_detection).to_owned(),
        ),
    ];
    let unlike = all.iter().filter(|(_, ours, theirs)| ours != theirs);
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    for (name, ours, theirs) in unlike {
        expected.push(format!("{name} {ours}"));
        found.push(format!("{name} {theirs}"));
    }
    format!(
        "expected {}, found {}",
        expected.join(" and "),
        found.join(" and ")
    )
}

/// Why this server does not talk to the one that says `greeting`, if so.
pub(super) fn judge(shared: &Shared, greeting: &Greeting, form: Form) -> Option<GreetingAnswer> {
    if let Some(why) = incompatibility(shared, greeting, form) {
        return Some(GreetingAnswer::Refused(why));
    }
    shared.judge_start(greeting, clock::boot())
}
