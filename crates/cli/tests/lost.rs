//! A store loses a register, or gives out an older copy of it. Candidates that
//! remember it are alive in some tests, and in others none is. A person mends
//! it by commands. All of it is tried on every store.
//!
//! On some stores each case is a test. On the others the cases run together in one
//! test, each on a server of its own, because they mostly wait.
//!
//! The ledger checks at each look that no two led at once, and that terms only
//! grew.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::servers::{objects, said, tenure};
use common::shared::block_on;
use common::{Candidate, Ledger, Run, Shared, poll_until};
use rustix::process::Signal;
use serde_json::Value;
#[cfg(feature = "nats")]
use serde_json::json;
use tenure::clock;

const SOON: Duration = Duration::from_secs(60);
/// Long enough that a store on a busy machine answers within a fifth of it.
const LEASE: [&str; 2] = ["--lease", "4s"];
/// Where the register is in NATS.
#[cfg(feature = "nats")]
const STREAM: &str = "KV_tenure";
/// Where it is in an object store.
const OBJECT: &str = "a/elections=2Fpayroll";

fn printed(shared: &Shared, args: &[&str]) -> Value {
    let output = tenure(&[args, &["--json", "--store", &shared.url()]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{args:?}: {text} {}", said(&output)))
}

fn start(shared: &Shared, name: &str, ledger: &Ledger) -> Candidate {
    Candidate::start(&shared.url(), name, ledger, &LEASE)
}

fn await_in(candidate: &Candidate, words: &str) {
    let said = || candidate.log().contains(words).then_some(());
    poll_until(SOON, said).unwrap_or_else(|| panic!("{words:?} in:\n{}", candidate.log()));
}

/// Ends the leader, and waits until the election is vacant.
fn end(shared: &Shared, mut leader: Candidate) {
    leader.signal(Signal::TERM);
    leader.process.wait().expect("it ends");
    let look = || tenure(&["leader", "payroll", "--store", &shared.url()]);
    let vacant = || (look().status.code() == Some(3)).then_some(());
    poll_until(SOON, vacant).expect("a vacancy");
}

fn sqlite(path: &Path, statement: &str) {
    let connection = rusqlite::Connection::open(path).expect("the file");
    // On a machine that many tests share the candidates' own writes take their time.
    let patience = connection.busy_timeout(SOON);
    patience.expect("a timeout");
    connection.execute_batch(statement).expect("a change");
}

/// Deletes the register by the store's own means, behind everybody's back.
fn delete(shared: &Shared) {
    const STATEMENT: &str = "DELETE FROM tenure_register";
    match shared {
        // A statement alone begins as a reader. SQLite answers BUSY at once to
        // a reader that would write while a writer waits for it to end.
        Shared::Sqlite(_) => {
            sqlite(
                &shared.file(),
                &format!("BEGIN IMMEDIATE; {STATEMENT}; COMMIT"),
            );
        }
        Shared::File(_) => {
            let register = shared.file().join("elections=2Fpayroll");
            fs::remove_file(register).expect("it was there");
        }
        Shared::Postgres(server) => drop(server.sql(STATEMENT)),
        // The row with the empty key is not a register.
        Shared::MariaDb(server) => {
            drop(server.sql(&format!("{STATEMENT} WHERE `key` <> ''")));
        }
        Shared::Etcd(servers) => drop(servers.ctl(&["del", "tenure/elections/payroll"])),
        Shared::Redis(server) => {
            let deleted = server.cli(&["DEL", "tenure:register:elections/payroll"]);
            assert_eq!(deleted, "1");
        }
        #[cfg(feature = "nats")]
        Shared::Nats(servers) => {
            let which = json!({ "filter": "$KV.tenure.elections.payroll" });
            let purged = block_on(servers.done(&format!("STREAM.PURGE.{STREAM}"), &which));
            assert_eq!(purged["purged"], 1, "{purged}");
        }
        Shared::S3(server) => server.delete_object(OBJECT),
        Shared::Cluster(_) => delete_by_library(&shared.url()),
    }
}

fn delete_by_library(url: &str) {
    let within = Duration::from_secs(20);
    let done = block_on(async {
        let store = tenure::store::open(url).await?;
        let key = tenure::core::ids::Key::new("elections/payroll").expect("a key");
        let reading = store.read(&key, within).await?;
        let found = reading.register.expect("a register");
        store.delete(&key, &found.version, within).await
    });
    done.expect("it is deleted");
}

/// A register is lost, and a candidate remembers its term. The next leader
/// begins in a low term, and soon leads above the remembered one.
fn rises_again(shared: &Shared) {
    let (ledger, lost) = (Ledger::new(), Ledger::new());
    let a = start(shared, "a", &ledger);
    ledger.await_term_above(0, SOON);
    let b = start(shared, "b", &ledger);
    await_in(&b, "a leads in term 1");
    drop(a);
    ledger.await_term_above(1, SOON);
    let memory = start(shared, "memory", &lost);
    await_in(&memory, "b leads in term 2");
    memory.stop();
    drop(b);
    delete(shared);
    let c = start(shared, "c", &lost);
    let low = lost.await_term_above(0, SOON);
    assert_eq!((low.candidate.as_str(), low.term), ("c", 1));
    memory.signal(Signal::CONT);
    is_led_above(shared, &lost, 1);
    await_in(
        &memory,
        "expected term 2 or a higher one in the store, found term 1",
    );
    await_in(&c, "handed over to memory");
}

/// `memory`, which remembers term 2, has the election led in term 3, after a leader
/// below that.
///
/// It asks that leader to hand over to it. The other candidates hold back for one and
/// a half intervals, 1.2 s (docs/design/election.md, §4.7.3). Who finds changes by
/// looking may find this one later: a register that did not change while the process
/// was stopped is looked at seldom. Then the former leader may be elected again, also
/// in term 2, and is asked again.
fn is_led_above(shared: &Shared, lost: &Ledger, below: u64) {
    let below = if shared.is_polled() { 2 } else { below };
    let above = lost.await_term_above(below, SOON);
    assert_eq!(above.term, 3, "{above:?}");
    if !shared.is_polled() {
        assert_eq!(above.candidate, "memory");
    }
}

/// A copy that is one term behind comes back. Another candidate is elected in
/// the term that a first one had. Fences refuse it, so it must lead above.
fn leads_above_a_term_that_was_had(mut shared: Shared) {
    let (ledger, lost) = (Ledger::new(), Ledger::new());
    let directory = tempfile::tempdir().expect("a directory");
    let a = start(&shared, "a", &ledger);
    ledger.await_term_above(0, SOON);
    let copy = Copied::of(&shared, directory.path());
    end(&shared, a);
    let b = start(&shared, "b", &ledger);
    ledger.await_term_above(1, SOON);
    let memory = start(&shared, "memory", &lost);
    await_in(&memory, "b leads in term 2");
    memory.stop();
    drop(b);
    copy.put_back(&mut shared);
    let c = start(&shared, "c", &lost);
    let again = lost.await_term_above(0, SOON);
    assert_eq!((again.candidate.as_str(), again.term), ("c", 2));
    memory.signal(Signal::CONT);
    is_led_above(&shared, &lost, 2);
    await_in(&memory, "found term 2 again, under another leader");
    await_in(&c, "handed over to memory");
}

/// What a person does about it where nobody remembers.
fn is_repaired_and_forgotten(shared: &Shared) {
    let ledger = Ledger::new();
    let repair = |above: &str| {
        let words = ["repair", "payroll", "--create", "--term-above", above];
        printed(shared, &words)
    };
    assert_eq!(repair("41")["term"], 42);
    // What is there already is left alone.
    assert_eq!(repair("42")["term"], 42);
    let a = start(shared, "a", &ledger);
    // One more, if the store answered the first attempt too late.
    let first = ledger.await_term_above(0, SOON).term;
    assert!((43..50).contains(&first), "{first}");
    // The candidate that leads below is asked to hand over, and its work to
    // stop.
    assert_eq!(repair("100")["term"], 101);
    let above = ledger.await_term_above(first, SOON).term;
    assert!((102..110).contains(&above), "{above}");
    let url = shared.url();
    let forget = || tenure(&["forget", "payroll", "--store", &url]);
    let refused = forget();
    assert_eq!(refused.status.code(), Some(1));
    let why = said(&refused);
    let held = "expected an election without a leader";
    assert!(why.contains(held), "{why}");
    end(shared, a);
    let forgotten = forget();
    let warning = String::from_utf8_lossy(&forgotten.stdout).into_owned();
    assert_eq!(forgotten.status.code(), Some(0), "{}", said(&forgotten));
    let expected = "forgotten at term 102; the next leader's is 1, and whatever remembers term 102 \
                    refuses it";
    assert!(warning.contains(expected), "{warning}");
    let again = forget();
    assert_eq!(again.status.code(), Some(1));
    let why = said(&again);
    assert!(why.contains("found none of this name"), "{why}");
    assert_eq!(printed(shared, &["leader", "payroll"])["term"], 0);
}

/// A file or a table that is gone under a leader and a candidate: both stop in
/// time, say what to do with what they remember, and make nothing. What a
/// person makes they go on with, above all that was used.
fn is_made_again_by_a_person_alone(shared: &Shared, lose: impl Fn(), is_there: impl Fn() -> bool) {
    let ledger = Ledger::new();
    let a = start(shared, "a", &ledger);
    ledger.await_term_above(0, SOON);
    let b = start(shared, "b", &ledger);
    let c = start(shared, "c", &ledger);
    for other in [&b, &c] {
        await_in(other, "a leads in term 1");
    }
    drop(a);
    let last = ledger.await_term_above(1, SOON);
    let (leader, other) = if last.candidate == "b" {
        (b, c)
    } else {
        (c, b)
    };
    await_in(&other, &format!("{} leads in term 2", last.candidate));
    lose();
    for candidate in [&leader, &other] {
        await_in(candidate, "tenure repair payroll --create --term-above 2");
    }
    await_in(&leader, "is over for us");
    assert!(!is_there(), "it was made again");
    assert_eq!(ledger.runs().last().map(|run| run.term), Some(2));
    let words = ["repair", "payroll", "--create", "--term-above", "2"];
    let repaired = printed(shared, &words)["term"].as_u64().expect("a term");
    assert!(repaired > 2, "{repaired}");
    assert!(is_there(), "a person makes it");
    ledger.await_term_above(2, SOON);
    ledger.runs();
}

/// An older copy of a store, which a test puts back.
struct Copied(PathBuf);

impl Copied {
    /// As `docs/reference/stores.md` (section 4) has it.
    fn of(shared: &Shared, directory: &Path) -> Self {
        let path = directory.join("copy");
        let text = path.display().to_string();
        match shared {
            Shared::Sqlite(_) => sqlite(&shared.file(), &format!("VACUUM INTO '{text}'")),
            Shared::Postgres(server) => {
                let dumped = Command::new("pg_dump")
                    .args([
                        "--clean",
                        "--if-exists",
                        "--table=tenure_register",
                        "--file",
                    ])
                    .args([&text, &server.url()])
                    .status();
                assert!(dumped.expect("pg_dump runs").success());
            }
            Shared::File(_) => copy_directory(&shared.file(), &path),
            Shared::MariaDb(server) => server.dump(&path),
            Shared::Etcd(servers) => drop(servers.ctl(&["snapshot", "save", &text])),
            Shared::Redis(server) => drop(server.cli(&["--rdb", &text])),
            #[cfg(feature = "nats")]
            Shared::Nats(servers) => block_on(servers.backup(STREAM, &path)),
            Shared::S3(server) => fs::write(&path, server.object(OBJECT)).expect("room"),
            Shared::Cluster(_) => drop(printed(shared, &["backup", &text])),
        }
        Self(path)
    }

    fn put_back(&self, shared: &mut Shared) {
        match shared {
            Shared::Sqlite(_) => {
                let file = shared.file();
                // Beside it first, since processes may look for it.
                let beside = file.with_extension("copy");
                fs::copy(&self.0, &beside).expect("room");
                for end in ["-wal", "-shm", "-journal"] {
                    let _ = fs::remove_file(format!("{}{end}", file.display()));
                }
                fs::rename(beside, file).expect("to put it there");
            }
            Shared::Postgres(server) => {
                let restored = Command::new("psql")
                    .args([
                        "-X",
                        "-q",
                        "-v",
                        "ON_ERROR_STOP=1",
                        "--single-transaction",
                        "-f",
                    ])
                    .args([&self.0.display().to_string(), &server.url()])
                    .stdout(Stdio::null())
                    .status();
                assert!(restored.expect("psql runs").success());
            }
            Shared::File(_) => {
                let directory = shared.file();
                // Beside it first, since processes may look for it.
                let beside = directory.with_extension("copy");
                copy_directory(&self.0, &beside);
                fs::rename(&directory, directory.with_extension("old")).expect("it goes");
                fs::rename(beside, directory).expect("to put it there");
            }
            Shared::MariaDb(server) => server.run_file(&self.0),
            Shared::Etcd(servers) => servers.restore(&self.0),
            Shared::Redis(server) => server.restore(&self.0),
            #[cfg(feature = "nats")]
            Shared::Nats(servers) => block_on(servers.restore(STREAM, &self.0)),
            // In one step: while there is no object candidates may race for it.
            Shared::S3(server) => {
                server.put_object(OBJECT, &fs::read(&self.0).expect("the copy"));
            }
            Shared::Cluster(_) => panic!("`tenure restore` makes another cluster: restore.rs"),
        }
    }
}

/// With the rights of its files, as `docs/reference/stores.md` has it.
fn copy_directory(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp runs").success());
}

/// Leads up to term 3, with a copy of when term 1 was led; who leads then, and
/// another candidate.
fn copied(shared: &Shared, directory: &Path, ledger: &Ledger) -> (Copied, [Candidate; 2], Run) {
    let a = start(shared, "a", ledger);
    ledger.await_term_above(0, SOON);
    let copy = Copied::of(shared, directory);
    end(shared, a);
    let b = start(shared, "b", ledger);
    ledger.await_term_above(1, SOON);
    end(shared, b);
    let (c, d) = (start(shared, "c", ledger), start(shared, "d", ledger));
    let last = ledger.await_term_above(2, SOON);
    let (leader, other) = if last.candidate == "c" {
        (c, d)
    } else {
        (d, c)
    };
    await_in(&other, &format!("{} leads in term 3", last.candidate));
    (copy, [leader, other], last)
}

/// An older copy comes back under a leader and a candidate that remember: the
/// leader is ousted, and the next one leads above both.
fn an_older_copy_comes_back(mut shared: Shared) {
    let (ledger, directory) = (Ledger::new(), tempfile::tempdir().expect("a directory"));
    let (copy, candidates, last) = copied(&shared, directory.path(), &ledger);
    copy.put_back(&mut shared);
    let next = ledger.await_term_above(last.term, SOON);
    assert_eq!(next.term, last.term + 1, "{next:?}");
    let fallen = "expected term 3 or a higher one in the store, found term 1";
    let told = || {
        candidates
            .iter()
            .any(|it| it.log().contains(fallen))
            .then_some(())
    };
    poll_until(SOON, told).expect("it was told");
}

/// The restore of the documents, with every candidate stopped: nobody
/// remembers but the person.
fn is_restored_by_the_book(mut shared: Shared) {
    let (ledger, directory) = (Ledger::new(), tempfile::tempdir().expect("a directory"));
    let (copy, candidates, last) = copied(&shared, directory.path(), &ledger);
    let [leader, mut other] = candidates;
    other.signal(Signal::TERM);
    other.process.wait().expect("it ends");
    end(&shared, leader);
    copy.put_back(&mut shared);
    let url = shared.url();
    let elections = objects(&["list", "--json", "--store", &url]);
    let names: Vec<_> = elections.iter().map(|it| &it["election"]).collect();
    assert_eq!(names, ["payroll"], "{elections:?}");
    let above = last.term.to_string();
    let repaired = printed(&shared, &["repair", "payroll", "--term-above", &above]);
    assert_eq!(repaired["term"], last.term + 1, "{repaired}");
    let _e = start(&shared, "e", &ledger);
    let next = ledger.await_term_above(last.term, SOON);
    assert_eq!(next.term, last.term + 2, "{next:?}");
}

mod sqlite {
    use super::*;

    #[test]
    fn a_fence_rises_again_while_a_candidate_remembers() {
        rises_again(&Shared::sqlite());
    }

    #[test]
    fn an_election_is_repaired_and_forgotten() {
        is_repaired_and_forgotten(&Shared::sqlite());
    }

    #[test]
    fn a_file_that_is_gone_is_made_again_by_a_person_alone() {
        let shared = Shared::sqlite();
        let file = shared.file();
        let lose = || fs::rename(&file, file.with_extension("old")).expect("it goes");
        is_made_again_by_a_person_alone(&shared, lose, || file.exists());
    }

    #[test]
    fn a_term_that_was_had_before_is_led_above() {
        leads_above_a_term_that_was_had(Shared::sqlite());
    }

    #[test]
    fn an_older_file_that_comes_back_is_led_above_what_is_remembered() {
        an_older_copy_comes_back(Shared::sqlite());
    }

    #[test]
    fn a_file_is_restored_by_the_book() {
        is_restored_by_the_book(Shared::sqlite());
    }
}

mod postgres {
    use super::*;

    #[test]
    fn a_fence_rises_again_while_a_candidate_remembers() {
        rises_again(&Shared::postgres());
    }

    #[test]
    fn an_election_is_repaired_and_forgotten() {
        is_repaired_and_forgotten(&Shared::postgres());
    }

    #[test]
    fn a_table_that_is_dropped_is_made_again_by_a_person_alone() {
        let shared = Shared::postgres();
        let Shared::Postgres(server) = &shared else {
            unreachable!("it was started so")
        };
        let table = "SELECT to_regclass('tenure_register') IS NOT NULL";
        is_made_again_by_a_person_alone(
            &shared,
            || drop(server.sql("DROP TABLE tenure_register")),
            || server.sql(table) == "t",
        );
    }

    #[test]
    fn a_term_that_was_had_before_is_led_above() {
        leads_above_a_term_that_was_had(Shared::postgres());
    }

    #[test]
    fn an_older_dump_that_comes_back_is_led_above_what_is_remembered() {
        an_older_copy_comes_back(Shared::postgres());
    }

    #[test]
    fn a_table_is_restored_by_the_book() {
        is_restored_by_the_book(Shared::postgres());
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    use super::*;

    #[test]
    fn a_fence_rises_again_while_a_candidate_remembers() {
        rises_again(&Shared::etcd(1));
    }

    #[test]
    fn an_election_is_repaired_and_forgotten() {
        is_repaired_and_forgotten(&Shared::etcd(1));
    }

    #[test]
    fn an_older_snapshot_that_comes_back_is_led_above_what_is_remembered() {
        an_older_copy_comes_back(Shared::etcd(1));
    }

    #[test]
    fn a_snapshot_is_restored_by_the_book() {
        is_restored_by_the_book(Shared::etcd(1));
    }

    /// All servers lose their disks under a leader and a candidate.
    #[test]
    fn a_cluster_that_lost_all_is_led_above_what_is_remembered() {
        let (mut shared, ledger) = (Shared::etcd(3), Ledger::new());
        let directory = tempfile::tempdir().expect("a directory");
        let (_, _candidates, last) = copied(&shared, directory.path(), &ledger);
        let Shared::Etcd(servers) = &mut shared else {
            unreachable!("it was started so")
        };
        servers.wipe();
        let next = ledger.await_term_above(last.term, SOON);
        assert_eq!(next.term, last.term + 1, "{next:?}");
    }
}

/// Cases that run at the same time.
#[allow(dead_code, reason = "a build may have none of the stores below")]
type Cases<'a> = &'a [&'a (dyn Fn() + Sync)];

/// Each on a server of its own, because they mostly wait.
#[allow(dead_code, reason = "a build may have none of the stores below")]
fn together(cases: Cases<'_>) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(case);
        }
    });
}

/// What is tried on every store from which a copy is taken and put back.
#[allow(dead_code, reason = "a build may have none of the stores below")]
fn is_lost_and_replaced(start: fn() -> Shared) {
    together(&[
        &|| rises_again(&start()),
        &|| is_repaired_and_forgotten(&start()),
        &|| leads_above_a_term_that_was_had(start()),
        &|| an_older_copy_comes_back(start()),
        &|| is_restored_by_the_book(start()),
    ]);
}

#[cfg(feature = "file")]
mod file {
    use super::*;

    #[test]
    fn a_register_is_lost_and_replaced() {
        is_lost_and_replaced(Shared::directory);
    }

    #[test]
    fn a_directory_that_is_gone_is_made_again_by_a_person_alone() {
        let shared = Shared::directory();
        let directory = shared.file();
        let lose = || fs::rename(&directory, directory.with_extension("old")).expect("it goes");
        is_made_again_by_a_person_alone(&shared, lose, || directory.exists());
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use super::*;

    #[test]
    fn a_register_is_lost_and_replaced() {
        is_lost_and_replaced(Shared::mariadb);
    }

    #[test]
    fn a_table_that_is_dropped_is_made_again_by_a_person_alone() {
        let shared = Shared::mariadb();
        let Shared::MariaDb(server) = &shared else {
            unreachable!("it was started so")
        };
        is_made_again_by_a_person_alone(
            &shared,
            || drop(server.sql("DROP TABLE tenure_register")),
            || !server.sql("SHOW TABLES LIKE 'tenure_register'").is_empty(),
        );
    }
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;

    #[test]
    fn a_register_is_lost_and_replaced() {
        is_lost_and_replaced(Shared::redis);
    }
}

#[cfg(feature = "nats")]
mod nats {
    use super::*;

    fn start() -> Shared {
        Shared::nats(1)
    }

    #[test]
    fn a_register_is_lost_and_replaced() {
        is_lost_and_replaced(start);
    }

    #[test]
    fn a_bucket_that_is_deleted_is_made_again_by_a_person_alone() {
        let shared = start();
        let Shared::Nats(servers) = &shared else {
            unreachable!("it was started so")
        };
        let ask =
            |what: &str| block_on(servers.api(&format!("STREAM.{what}.{STREAM}"), &json!({})));
        is_made_again_by_a_person_alone(
            &shared,
            || assert!(ask("DELETE")["error"].is_null()),
            || ask("INFO")["error"].is_null(),
        );
    }
}

#[cfg(feature = "s3")]
mod s3 {
    use super::*;

    #[test]
    fn an_object_is_lost_and_replaced() {
        is_lost_and_replaced(Shared::s3);
    }
}

#[cfg(feature = "tenure")]
mod cluster {
    use super::*;

    #[test]
    fn a_fence_rises_again_while_a_candidate_remembers() {
        rises_again(&Shared::cluster());
    }

    #[test]
    fn an_election_is_repaired_and_forgotten() {
        is_repaired_and_forgotten(&Shared::cluster());
    }
}

/// A term that high would leave too few above it. A register that says that the
/// election is held, by a process that does not exist and for days, as a person
/// may have written it.
fn is_forgotten_when_its_holder_is_gone(shared: &Shared) {
    let url = shared.url();
    let forget = || {
        let words = ["forget", "payroll", "--holder-is-gone", "--timeout", "2s"];
        tenure(&[&words[..], &["--store", &url]].concat())
    };
    // A holder that lives is noticed, whatever a person says.
    let ledger = Ledger::new();
    let living = start(shared, "living", &ledger);
    ledger.await_term_above(0, SOON);
    let refused = forget();
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    let why = said(&refused);
    assert!(why.contains("meanwhile: it lives"), "{why}");
    assert_eq!(ledger.runs().len(), 1, "it leads on");
    end(shared, living);
    let gone = Candidate::start(&url, "gone", &ledger, &["--lease", "168h"]);
    let last = ledger.await_term_above(1, SOON);
    drop(gone);
    let began = clock::boot();
    let forgotten = forget();
    let text = String::from_utf8_lossy(&forgotten.stdout).into_owned();
    assert!(forgotten.status.success(), "{}", said(&forgotten));
    let term = format!("forgotten at term {}", last.term);
    assert!(text.contains(&term), "{text}");
    // The term is what a fence remembers, so it is raised before all else.
    let above = last.term.to_string();
    let repaired = printed(shared, &["repair", "payroll", "--term-above", &above]);
    assert_eq!(repaired["term"], last.term + 1, "{repaired}");
    let next = start(shared, "next", &ledger);
    // On a busy machine it may lose that term before its command has started.
    await_in(&next, &format!("elected in term {}", last.term + 2));
    let run = ledger.await_term_above(last.term, SOON);
    assert_eq!(run.candidate, "next");
    let took = clock::boot().since(began);
    assert!(took < SOON, "{took:?} of seven days");
}

#[test]
fn an_election_held_for_days_by_nobody_is_forgotten_at_a_persons_word() {
    is_forgotten_when_its_holder_is_gone(&Shared::sqlite());
}

#[test]
fn a_term_above_2_to_the_62_is_refused() {
    let shared = Shared::sqlite();
    let url = shared.url();
    for above in ["4611686018427387905", "18446744073709551615"] {
        let words = ["repair", "payroll", "--term-above", above, "--store", &url];
        let refused = tenure(&words);
        assert_eq!(refused.status.code(), Some(2));
        let why = said(&refused);
        assert!(
            why.contains("--term-above") && why.contains("2^62"),
            "{why}"
        );
    }
}
