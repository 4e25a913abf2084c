//! A disk that is full or hangs, and files that have grown long enough.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tenure_api::v1::{self, Cause};

use super::entry::election_event;
use super::sink::{FILE_BYTES, OLDER_FILES};
use super::*;

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("text");
    let whole = text.lines().filter(|line| !line.is_empty());
    let parse = |line| serde_json::from_str(line).expect("an object a line");
    whole.map(parse).collect()
}

fn to(path: &Path) -> Audit {
    let to = Some(AuditTo::File(path.to_owned()));
    Audit::start(to, 7).expect("it begins")
}

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_line_is_an_object_in_a_file_for_its_owner_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let audit = to(&path);
    audit.note("leads", json!({ "term": 3 }), Ok(()));
    audit.note("tokens", json!({}), Err("it says \u{1b}[2J"));
    audit.finish(SOON);
    let all = lines(&path);
    assert_eq!(all[0]["event"], "leads");
    assert_eq!(
        (&all[0]["server"], &all[0]["result"]),
        (&json!(7), &json!("done"))
    );
    assert_eq!(all[1]["result"], "refused");
    assert!(all[0]["at_ms"].as_u64() > Some(1_700_000_000_000));
    let mode = fs::metadata(&path)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let wrong = Audit::start(Some(AuditTo::File(dir.path().into())), 7);
    let why = wrong.expect_err("a directory");
    assert!(why.contains("expected a file"), "{why}");
}

#[test]
fn a_full_disk_is_counted_and_said_once_there_is_room_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    // Without a thread, so that the same lines meet both of the files.
    let trail = Trail::new(7);
    let mut sink = Sink::new(AuditTo::File(path.clone()));
    let mut full = Sink::new(AuditTo::File("/dev/full".into()));
    full.file = Some((
        File::options()
            .write(true)
            .open("/dev/full")
            .expect("it is there"),
        0,
    ));
    let put = |n: u64| {
        trail.lock().shut = false;
        trail.put(
            trail.line("leads", Value::Null, json!({ "term": n })),
            Room::Clients,
        );
        trail.lock().shut = true;
    };
    put(1);
    put(2);
    trail.write_all_to(&mut full);
    assert_eq!(trail.lost.get(), 2);
    assert!(full.torn && full.complained.is_some());
    put(3);
    trail.write_all_to(&mut sink);
    let all = lines(&path);
    let said: Vec<_> = all.iter().map(|it| (&it["event"], &it["about"])).collect();
    let (lost, leads) = (json!("lost"), json!("leads"));
    assert_eq!(
        said,
        [
            (&lost, &json!({ "lines": 2 })),
            (&leads, &json!({ "term": 3 }))
        ]
    );
    assert_eq!(trail.lock().lost, 0);
}

#[test]
fn a_file_with_other_content_is_refused_and_stays_as_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let begin = || Audit::start(Some(AuditTo::File(path.clone())), 7);
    for other in [
        "[tokens.op]\nadmin = true\n",
        "tenure data 1",
        "\0",
        "{}\n",
        "{\"at_ms\": 1, \"event\": \"leads\"}\n",
    ] {
        fs::write(&path, other).expect("written");
        let why = begin().expect_err(other);
        assert!(why.contains("expected a new file"), "{why}");
        let found = fs::read_to_string(&path).expect("text");
        assert_eq!(found, other);
    }
    // What another program has collected, and a line that was cut.
    let sorted = r#"{"at_ms":1,"server":7,"event":"leads","by":null,"about":{},"result":"done"}"#;
    let long = format!(r#"{{"about":{{"added":"{}"#, "x".repeat(1 << 17));
    for audit in ["", "\n", &format!("{sorted}\n"), "{\"ab", &long] {
        fs::write(&path, audit).expect("written");
        begin().expect(audit);
    }
}

#[test]
fn a_line_that_was_cut_costs_no_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let trail = Trail::new(7);
    let whole = written(trail.line("leads", Value::Null, json!({ "term": 1 })));
    let (cut, _) = whole.split_at(whole.len() / 2);
    // By a crash.
    fs::write(&path, format!("{whole}{cut}")).expect("written");
    let mut sink = Sink::new(AuditTo::File(path.clone()));
    sink.write(&whole).expect("written");
    sink.write(&whole).expect("written");
    let wanted = format!("{whole}{cut}\n{whole}{whole}");
    assert_eq!(fs::read_to_string(&path).expect("text"), wanted);
    // By a disk that was full: the file is opened again for the next line.
    let file = sink.file.take().expect("open").0;
    (&file).write_all(cut.as_bytes()).expect("written");
    sink.write(&whole).expect("written");
    let wanted = format!("{wanted}{cut}\n{whole}");
    assert_eq!(fs::read_to_string(&path).expect("text"), wanted);
    // The first of its file.
    fs::write(&path, cut).expect("written");
    to(&path).finish(SOON);
    let mut sink = Sink::new(AuditTo::File(path.clone()));
    sink.write(&whole).expect("written");
    let wanted = format!("{cut}\n{whole}");
    assert_eq!(fs::read_to_string(&path).expect("text"), wanted);
}

#[test]
fn what_is_lost_counts_for_all_that_it_stands_for() {
    let trail = Trail::new(7);
    let mut full = Sink::new(AuditTo::File("/dev/full".into()));
    let mut state = trail.lock();
    state.idle.insert("greedy".into(), IDLE_LINES + 200);
    trail.fold(&mut state);
    state.shut = true;
    drop(state);
    trail.write_all_to(&mut full);
    assert_eq!((trail.lost.get(), trail.lock().lost), (200, 200));
    // And where there is no room to wait.
    let mut state = trail.lock();
    (state.shut, state.bytes) = (false, [QUEUE_BYTES; 2]);
    state.idle.insert("greedy".into(), IDLE_LINES + 50);
    trail.fold(&mut state);
    drop(state);
    assert_eq!((trail.lost.get(), trail.lock().lost), (250, 250));
}

#[test]
fn a_disk_that_hangs_keeps_nobody_and_holds_no_more_than_the_queue() {
    let trail = Trail::new(7);
    // Nobody writes.
    for n in 0..20_000_u64 {
        trail.put(
            trail.line("leads", Value::Null, json!({ "term": n })),
            Room::Clients,
        );
    }
    let state = trail.lock();
    assert!(state.bytes.iter().sum::<usize>() <= QUEUE_BYTES);
    assert_eq!(state.lines.len() as u64 + state.lost, 20_000);
    assert!(state.lost > 1_000);
    assert_eq!(trail.lost.get(), state.lost);
}

#[test]
fn a_file_that_is_long_enough_is_put_aside_and_the_oldest_goes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let mut sink = Sink::new(AuditTo::File(path.clone()));
    for n in 0..OLDER_FILES + 3 {
        sink.write(&format!("{n}\n")).expect("written");
        // As if there were as many lines as fit.
        sink.file.as_mut().expect("open").1 = FILE_BYTES;
    }
    let read = |age: u32| {
        let end = if age == 0 {
            String::new()
        } else {
            format!(".{age}")
        };
        fs::read_to_string(dir.path().join(format!("audit{end}"))).ok()
    };
    assert_eq!(read(0).as_deref(), Some("9\n"));
    assert_eq!(read(1).as_deref(), Some("8\n"));
    assert_eq!(read(OLDER_FILES).as_deref(), Some("2\n"));
    assert_eq!(read(OLDER_FILES + 1), None);
}

#[test]
fn a_file_that_was_deleted_or_moved_away_is_begun_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let mut sink = Sink::new(AuditTo::File(path.clone()));
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).ok();
    let look_and_write = |sink: &mut Sink, text: &str| {
        sink.looked = None;
        sink.write(text)
    };
    look_and_write(&mut sink, "{\"about\":1}\n").expect("written");
    fs::remove_file(&path).expect("deleted");
    look_and_write(&mut sink, "{\"about\":2}\n").expect("written");
    assert_eq!(read("audit").as_deref(), Some("{\"about\":2}\n"));
    fs::rename(&path, dir.path().join("moved")).expect("moved");
    // It is not looked at for every line.
    sink.write("{\"about\":3}\n").expect("written");
    assert_eq!(read("audit"), None);
    look_and_write(&mut sink, "{\"about\":4}\n").expect("written");
    assert_eq!(read("audit").as_deref(), Some("{\"about\":4}\n"));
    let moved = "{\"about\":2}\n{\"about\":3}\n";
    assert_eq!(read("moved").as_deref(), Some(moved));
    // What took its place must be an audit, as at the start.
    fs::write(dir.path().join("other"), "a secret").expect("written");
    fs::rename(dir.path().join("other"), &path).expect("replaced");
    let refused = look_and_write(&mut sink, "{\"about\":5}\n");
    let why = refused.expect_err("it is none").to_string();
    assert!(why.contains("found a file with other content"), "{why}");
    assert_eq!(read("audit").as_deref(), Some("a secret"));
}

#[test]
fn what_changed_nothing_pushes_nothing_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let audit = to(&path);
    let trail = Arc::clone(&audit.0.as_ref().expect("it notes").0);
    let asks = |token: &str, result: Result<bool, &v1::Error>| {
        let entry = Entry {
            trail: Arc::clone(&trail),
            line: Some(trail.line("election_taken", json!({ "token": token }), json!({}))),
            room: Room::Clients,
        };
        entry.ends(result);
    };
    let denied = v1::Error {
        cause: Cause::Denied.into(),
        ..v1::Error::default()
    };
    for _ in 0..IDLE_LINES {
        asks("greedy", Err(&denied));
        asks("greedy", Ok(false));
    }
    asks("greedy", Ok(true));
    asks("other", Ok(false));
    audit.finish(SOON);
    let all = lines(&path);
    let of = |token: &str, result: &str| {
        let is = |line: &&Value| line["by"]["token"] == token && line["result"] == result;
        all.iter().filter(is).cloned().collect::<Vec<_>>()
    };
    let idle = of("greedy", "refused").len() + of("greedy", "conflict").len();
    assert_eq!(idle as u64, IDLE_LINES);
    assert_eq!(of("other", "conflict").len(), 1);
    let done = of("greedy", "done");
    assert_eq!(done[0]["event"], "election_taken");
    assert_eq!(done[1]["event"], "repeated");
    assert_eq!(done[1]["about"]["lines"], IDLE_LINES);
    assert_eq!(done.len(), 2);
}

#[test]
fn who_writes_over_a_leadership_or_deletes_it_is_noted() {
    let swap = |value: &[u8]| v1::Swap {
        key: "elections/payroll".into(),
        value: value.to_vec().into(),
        ..v1::Swap::default()
    };
    for junk in [&b""[..], b"no record"] {
        let (event, about) = election_event(&swap(junk)).expect("it is noted");
        assert_eq!(event, "election_overwritten");
        assert_eq!(about, json!({ "election": "payroll" }));
    }
    let elsewhere = v1::Swap {
        key: "other/payroll".into(),
        ..swap(b"")
    };
    assert_eq!(election_event(&elsewhere), None);
}

#[test]
fn what_operators_did_is_kept_when_candidates_fill_all_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let mut sink = Sink::new(AuditTo::File(path.clone()));
    let line = |event: &str, result: &str, by: &Value| {
        let about = json!({ "election": "x" });
        let line = json!({
            "about": about, "at_ms": 1, "by": by, "event": event, "result": result, "server": 1,
        });
        format!("{line}\n")
    };
    let boss = json!({ "address": "::1", "token": "boss" });
    let clerk = json!({ "address": "::1", "token": "\"event\":\"member_added\"" });
    let kept = [
        line("member_removed", "done", &boss),
        line("session_ended", "unknown", &boss),
        line("tokens", "refused", &Value::Null),
        line("leads", "done", &Value::Null),
    ];
    let gone = [
        line("election_taken", "done", &clerk),
        line("member_added", "refused", &clerk),
        line("repeated", "done", &clerk),
        "{\"event\":\"leads\", torn".to_owned(),
    ];
    sink.write(&[&kept[..], &gone[..]].concat().concat())
        .expect("written");
    for _ in 0..=OLDER_FILES {
        // As if candidates had filled it.
        sink.file.as_mut().expect("open").1 = FILE_BYTES;
        sink.write(&gone[0]).expect("written");
    }
    let found = fs::read_to_string(dir.path().join("audit.kept")).expect("it is there");
    assert_eq!(found, kept.concat());
    let mode = fs::metadata(dir.path().join("audit.kept")).expect("it is there");
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);

    // Of a file that is full there is one older.
    let full = File::options()
        .write(true)
        .open(dir.path().join("audit.kept"));
    full.expect("open").set_len(FILE_BYTES).expect("grown");
    for _ in 0..=OLDER_FILES + 1 {
        sink.file.as_mut().expect("open").1 = FILE_BYTES;
        sink.write(&kept[0]).expect("written");
    }
    let older = fs::metadata(dir.path().join("audit.kept.1")).expect("it is there");
    assert_eq!(older.len(), FILE_BYTES);
    let found = fs::read_to_string(dir.path().join("audit.kept")).expect("it is there");
    assert_eq!(found, kept[0]);
}

/// Who may campaign changes leaderships as fast as a connection carries it.
#[test]
fn what_candidates_do_takes_no_room_of_operators() {
    let trail = Arc::new(Trail::new(7));
    let audit = Audit(Some(Arc::new(Handle(Arc::clone(&trail)))));
    let entry = |event: &str, room: Room| Entry {
        trail: Arc::clone(&trail),
        line: Some(trail.line(event, json!({ "token": "t" }), json!({}))),
        room,
    };
    // Nobody writes.
    while trail.lost.get() == 0 {
        entry("election_taken", Room::Clients).ends(Ok(true));
    }
    let denied = v1::Error::default();
    entry("session_ended", Room::Clients).ends(Err(&denied));
    assert_eq!(trail.lost.get(), 2, "what was refused has room with others");
    audit.note("leads", json!({ "term": 3 }), Ok(()));
    entry("session_ended", Room::Clients).ends(Ok(true));
    entry("election_taken", Room::Operators).ends(Ok(true));
    entry("member_added", Room::Operators).ends(Err(&denied));
    assert_eq!(trail.lost.get(), 2);
    // Their room ends as well.
    for _ in 0..20_000 {
        entry("session_ended", Room::Operators).ends(Ok(true));
    }
    assert!(trail.lost.get() > 1_000);
    assert!(trail.lock().bytes.iter().all(|it| *it <= QUEUE_BYTES));
}

#[test]
fn no_line_waits_until_a_whole_file_is_copied() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit");
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    let trail = Trail::new(7);
    let line = written(trail.line("leads", Value::Null, json!({ "term": 1 })));
    let mut all = String::new();
    while all.len() < 1 << 20 {
        all.push_str(&line);
    }
    let older = format!("audit.{OLDER_FILES}");
    fs::write(dir.path().join(&older), &all).expect("written");
    let mut sink = Sink::new(AuditTo::File(path.clone()));
    sink.write(&line).expect("written");
    sink.file.as_mut().expect("open").1 = FILE_BYTES;
    sink.write(&line).expect("written");
    let first = read("audit.kept").len();
    assert!(first > 0 && first < all.len() / 4, "{first} bytes at once");
    assert_eq!(read("audit"), line);
    let mut writes = 0;
    while sink.keeping.is_some() {
        sink.write(&line).expect("written");
        writes += 1;
    }
    assert!(writes > 4, "{writes} writes");
    assert_eq!(read("audit.kept"), all);
    assert_eq!(read(&format!("audit.{}", OLDER_FILES + 1)), "");
    // A server that has ended meanwhile has left it: the next one copies it.
    fs::write(dir.path().join("audit.8"), &line).expect("written");
    let mut sink = Sink::new(AuditTo::File(path.clone()));
    sink.write(&line).expect("written");
    sink.file.as_mut().expect("open").1 = FILE_BYTES;
    sink.write(&line).expect("written");
    assert_eq!(read("audit.kept"), all + &line);
}
