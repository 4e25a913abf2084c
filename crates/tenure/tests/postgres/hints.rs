//! Notifications are hints: a user who may connect can forge and read them.

use tokio::time::timeout;

use super::*;

/// A version that no register has come to.
const AHEAD: u32 = 1_000_000;

fn hexadecimal(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The channel of the keys with these two parts, as it is fixed for all
/// releases.
fn channel_of(area: &str) -> String {
    let bytes = "public.tenure_register\0".bytes().chain(area.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("tenure_{hash:016x}")
}

/// A server with a role that may connect to it, and do nothing else.
fn with_stranger() -> Postgres {
    let server = Postgres::start();
    server.sql("CREATE ROLE stranger");
    server
}

/// Lets that role notify of all this, on the channel of an area and on the
/// common one.
fn forge(server: &Postgres, area: &str, payloads: &[String]) {
    let told = |payload: &String| {
        let channel = channel_of(area);
        format!("NOTIFY {channel}, '{payload}'; NOTIFY tenure_register, '{payload}'")
    };
    let all: Vec<_> = payloads.iter().map(told).collect();
    server.sql(&format!(
        "SET SESSION AUTHORIZATION stranger; {}",
        all.join("; ")
    ));
}

/// A store that polls under no circumstances.
async fn listening(server: &Postgres) -> Arc<dyn Store> {
    opened(&format!("{}?watch=listen", server.url())).await
}

/// A watch that has told of a register with this value.
async fn following(store: &Arc<dyn Store>, selector: Selector, value: &[u8]) -> Watch {
    let mut watch = store.watch(selector);
    until(&mut watch, |seen| has(seen, value)).await;
    watch
}

fn has(seen: &Sighting, value: &[u8]) -> bool {
    matches!(seen, Sighting::State(_, Some(held)) if *held.value == *value)
}

/// What a watch has to tell of states right now.
async fn untold(watch: &mut Watch) -> Vec<Sighting> {
    let mut told = Vec::new();
    while let Ok(seen) = timeout(Duration::ZERO, watch.next()).await {
        if matches!(seen, Sighting::State(..)) {
            told.push(seen);
        }
    }
    told
}

#[tokio::test]
async fn forged_notifications_tell_followers_nothing() {
    let server = with_stranger();
    let (store, other) = (listening(&server).await, opened(&server.url()).await);
    let (election, beat) = (key("elections/payroll"), key("ha/web/nodes/1"));
    put(&other, &election, Expect::Absent, b"held").await;
    put(&other, &beat, Expect::Absent, b"alive").await;
    let marker = key("elections/marker");
    let version = put(&other, &marker, Expect::Absent, b"before").await;
    let mut elections = following(&store, Selector::Key(election.clone()), b"held").await;
    let mut beats = following(&store, Selector::Prefix("ha/web/nodes/".into()), b"alive").await;
    let mut all = following(&store, Selector::Prefix("ha/".into()), b"alive").await;
    let mut marked = following(&store, Selector::Key(marker.clone()), b"before").await;
    for key in [&election, &beat, &key("ha/web/nodes/2")] {
        let (name, dead) = (hexadecimal(key.as_str()), hexadecimal("dead"));
        let area = key.as_str().trim_end_matches("/nodes/1");
        let area = area.trim_end_matches("/nodes/2");
        let forged = [
            format!("{name} {AHEAD} 1000000 {dead}"),
            format!("{name} {AHEAD} - {dead}"),
            format!("{name} gone {}", 2 * AHEAD),
            format!("{name} {}", 3 * AHEAD),
            format!("{name} 0"),
            format!("{name} {}", u64::MAX),
            name.clone(),
            format!("{name} nonsense"),
            "ff 1".into(),
            "x".into(),
        ];
        forge(&server, area, &forged);
    }
    // What is told of behind them is heard behind them.
    put(&other, &marker, Expect::Version(version), b"after").await;
    until(&mut marked, |seen| has(seen, b"after")).await;
    for watch in [&mut elections, &mut beats, &mut all, &mut marked] {
        assert_eq!(untold(watch).await, []);
    }
    // And true changes are told, though they have lower versions.
    let held = other
        .read(&election, WITHIN)
        .await
        .expect("a read")
        .register;
    let version = held.expect("it is there").version;
    let version = put(&other, &election, Expect::Version(version), b"left").await;
    until(&mut elections, |seen| has(seen, b"left")).await;
    let deleted = other.delete(&election, &version, WITHIN).await;
    deleted.expect("a deletion");
    until(&mut elections, |seen| {
        *seen == Sighting::State(election.clone(), None)
    })
    .await;
    put(&other, &election, Expect::Absent, b"again").await;
    until(&mut elections, |seen| has(seen, b"again")).await;
}

#[tokio::test]
async fn nothing_that_is_written_can_be_read_by_listening() {
    let server = with_stranger();
    let store = opened(&server.url()).await;
    let key = key("ha/web/content/1");
    let name = hexadecimal(key.as_str());
    let channel = channel_of("ha/web");
    let listening = server.listen(&format!("{channel}; LISTEN tenure_register"));
    let long = "hunter2 ".repeat(1_000);
    let mut version = put(&store, &key, Expect::Absent, b"hunter2").await;
    for value in [long.as_str(), "hunter2 again"] {
        version = put(&store, &key, Expect::Version(version), value.as_bytes()).await;
    }
    store.delete(&key, &version, WITHIN).await.expect("deleted");
    let heard = listening.heard();
    assert!(!heard.contains(&hexadecimal("hunter2")), "{heard}");
    let payloads = |on: &str| -> Vec<String> {
        let lines = heard.lines().filter(|line| line.contains(on));
        let told = lines.filter_map(|line| line.split_once("payload \""));
        let told = told.filter_map(|(_, rest)| rest.split_once('"'));
        told.map(|(payload, _)| payload.to_owned()).collect()
    };
    // In the words by which the release before knows that it has to read: the
    // key and a number. It reads after these, whatever the number is.
    for told in [payloads(&channel), payloads("tenure_register")] {
        assert_eq!(told.len(), 4, "{heard}");
        for payload in told {
            let (of, number) = payload.split_once(' ').expect("two words");
            assert_eq!(of, name);
            number.parse::<u64>().expect("a number");
        }
    }
}

#[tokio::test]
async fn a_change_is_told_within_a_second_by_hints_alone() {
    let server = Postgres::start();
    let (store, other) = (listening(&server).await, opened(&server.url()).await);
    let key = key("elections/payroll");
    let mut version = put(&other, &key, Expect::Absent, b"0").await;
    let mut watch = following(&store, Selector::Key(key.clone()), b"0").await;
    let mut took = Vec::new();
    for turn in 1..=20 {
        let value = format!("{turn}");
        let asked = clock::boot();
        version = put(&other, &key, Expect::Version(version), value.as_bytes()).await;
        until(&mut watch, |seen| has(seen, value.as_bytes())).await;
        took.push(clock::boot().since(asked));
    }
    took.sort();
    // Of some: others may keep this machine busy.
    assert!(took[10] < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn a_flood_of_forged_notifications_tells_nothing_and_hides_nothing() {
    let server = with_stranger();
    let (store, other) = (listening(&server).await, opened(&server.url()).await);
    let key = key("ha/web/nodes/1");
    let version = put(&other, &key, Expect::Absent, b"alive").await;
    let below = Selector::Prefix("ha/web/".into());
    let mut below = following(&store, below, b"alive").await;
    let mut watch = following(&store, Selector::Key(key.clone()), b"alive").await;
    // Of other keys below the prefix, and of higher versions of the known one.
    let flood = |channel: &str| {
        let (beats, dead) = (hexadecimal("ha/web/nodes/"), hexadecimal("dead"));
        server.sql(&format!(
            "SET SESSION AUTHORIZATION stranger; \
             SELECT count(pg_notify('{channel}', '{beats}' || encode(convert_to(at::text, 'UTF8'), \
             'hex') || ' ' || {AHEAD} + at || ' - {dead}')) FROM generate_series(1, 25000) at; \
             SELECT count(pg_notify('{channel}', '{beats}31 ' || 2 * {AHEAD} + at || ' - {dead}')) \
             FROM generate_series(1, 25000) at"
        ));
    };
    flood(&channel_of("ha/web"));
    flood("tenure_register");
    put(&other, &key, Expect::Version(version), b"well").await;
    let mut told = Vec::new();
    let true_change = async {
        loop {
            let seen = watch.next().await;
            let is_last = has(&seen, b"well");
            told.push(seen);
            if is_last {
                return;
            }
        }
    };
    let heard = timeout(WITHIN, true_change).await;
    assert!(heard.is_ok(), "the true change was hidden: {told:?}");
    told.retain(|seen| matches!(seen, Sighting::State(..)) && !has(seen, b"well"));
    assert_eq!(told, [], "what is not in the table");
    let mut seen = untold(&mut below).await;
    seen.retain(|seen| !has(seen, b"well"));
    assert_eq!(seen, [], "what is not in the table");
}

#[tokio::test]
async fn what_a_process_of_the_release_before_tells_is_a_hint_as_well() {
    let server = Postgres::start();
    let store = listening(&server).await;
    let key = key("elections/payroll");
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    let name = hexadecimal(key.as_str());
    // As it tells, key, version, time and value on the one channel; and there
    // is what it has not told.
    server.sql(&format!(
        "INSERT INTO tenure_register (key, value) VALUES ('{key}', 'in the table'); \
         NOTIFY tenure_register, '{name} 1 1000000 {}'",
        hexadecimal("told")
    ));
    let mut told = Vec::new();
    until(&mut watch, |seen| {
        told.push(seen.clone());
        has(seen, b"in the table")
    })
    .await;
    assert!(!told.iter().any(|seen| has(seen, b"told")), "{told:?}");
    server.sql(&format!(
        "DELETE FROM tenure_register; NOTIFY tenure_register, '{name} gone 1'"
    ));
    until(&mut watch, |seen| {
        *seen == Sighting::State(key.clone(), None)
    })
    .await;
}
