//! The store of files: the conformance suite, races between processes, processes that
//! are killed or stopped in the middle of a write, full disks, directories that are
//! moved, replaced, damaged or too open, and an election from end to end.

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::calls::{WITHIN, key, put, test_name, value, write};
use crate::common::stopped;
use crate::common::takeovers::{self, Notices};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tenure::store::conformance::{self, count_of, count_up};
use tenure::store::{Expect, REPAIR, Selector, Sighting, Store, Version, open, open_existing};
use tenure::{Name, StoreError, clock};

/// What a child process of a test is to do, and where.
const TASK: &str = "TENURE_TEST_FILE_TASK";
const URL: &str = "TENURE_TEST_FILE_URL";

/// A directory in memory, where there is one: how slow a disk is is nothing that is
/// tried by racing or by killing.
fn in_memory() -> TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    directory.expect("a directory")
}

fn place(directory: &TempDir) -> PathBuf {
    directory.path().join("store")
}

fn url_of(path: &Path) -> String {
    format!("file://{}", path.display())
}

async fn opened(path: &Path) -> Arc<dyn Store> {
    open(&url_of(path)).await.expect("a store")
}

async fn refused(path: &Path) -> String {
    match open(&url_of(path)).await {
        Err(StoreError::Broken(why)) => why.to_string(),
        other => panic!("expected it to be broken: {other:?}"),
    }
}

/// This test program once more, for one task.
fn child(task: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([
            "--exact",
            &test_name(module_path!(), "child_does_its_task"),
            "--nocapture",
            "--quiet",
        ])
        .env(TASK, task)
        .env(URL, url_of(path))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Not a test of its own: what child processes do.
#[tokio::test]
async fn child_does_its_task() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let url = std::env::var(URL).expect("a URL");
    let path = PathBuf::from(url.strip_prefix("file://").expect("a path"));
    match task.as_str() {
        "count" => count_up(&open(&url).await.expect("a store"), &key("counter"), 25).await,
        "tell" => count_and_tell(&open(&url).await.expect("a store")).await,
        "cycle" => cycle(&open(&url).await.expect("a store")).await,
        "lock" => {
            let directory = File::open(path).expect("a directory");
            directory.lock().expect("the lock");
            tell("locked");
            kill_process(rustix::process::getpid(), Signal::STOP).expect("it stops");
            // Another thread may heed it, a moment later.
            loop {
                std::thread::park();
            }
        }
        other => panic!("no task: {other}"),
    }
}

/// A line for the parent, whole although this process may be killed.
fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    let line = format!("\n={line}\n");
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .expect("a parent");
}

/// Waits for the first line that a child tells.
fn first_told(out: &mut impl BufRead) -> String {
    let mut first = String::new();
    while !first.starts_with('=') {
        first.clear();
        assert!(out.read_line(&mut first).expect("a line") > 0, "it ended");
    }
    first
}

/// What a child has told.
fn told(child: &mut Child) -> Vec<String> {
    let out = BufReader::new(child.stdout.take().expect("its output"));
    let lines = out.lines().map_while(Result::ok);
    lines
        .filter_map(|line| line.strip_prefix('=').map(str::to_owned))
        .collect()
}

/// Counts until it is killed, and tells each version that was acknowledged.
async fn count_and_tell(store: &Arc<dyn Store>) {
    let key = key("counter");
    loop {
        let found = store.read(&key, WITHIN).await.expect("a read").register;
        let count = found.as_ref().map_or(0, count_of) + 1;
        let expect = found.map_or(Expect::Absent, |held| Expect::Version(held.version));
        let version = put(store, &key, expect, &count.to_be_bytes()).await;
        tell(&format!("{count} {version}"));
    }
}

const CYCLES: u64 = 3;

/// Makes a register, writes it again and deletes it, and tells each step that was
/// acknowledged. Each value is the number of its step.
async fn cycle(store: &Arc<dyn Store>) {
    let key = key("cycle");
    for cycle in 0..CYCLES {
        let number = |step: u64| 3 * cycle + step;
        let version = put(store, &key, Expect::Absent, &number(1).to_be_bytes()).await;
        tell(&format!("{} {version}", number(1)));
        let expect = Expect::Version(version);
        let version = put(store, &key, expect, &number(2).to_be_bytes()).await;
        tell(&format!("{} {version}", number(2)));
        store
            .delete(&key, &version, WITHIN)
            .await
            .expect("to delete");
        tell(&format!("{} deleted", number(3)));
    }
}

#[tokio::test]
async fn it_conforms() {
    let directory = in_memory();
    let path = place(&directory);
    conformance::all(&opened(&path).await, "try/").await;
    let handles = [
        opened(&path).await,
        opened(&path).await,
        opened(&path).await,
    ];
    conformance::shares_registers_between_handles(&handles, "handles/").await;
    let (one, restart) = (opened(&path).await, async || drop(opened(&path).await));
    conformance::goes_on_after_a_restart(&one, "restart/", restart).await;
}

/// What may depend on the file system, on the one of temporary files.
#[tokio::test]
async fn it_conforms_on_a_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = opened(&place(&directory)).await;
    conformance::refuses_what_was_not_expected(&store, "disk/").await;
    conformance::never_uses_a_version_twice(&store, "disk/").await;
    conformance::takes_values_up_to_the_limit(&store, "disk/").await;
    conformance::takes_any_key(&store, "disk/").await;
    conformance::lists_in_order(&store, "disk/").await;
    conformance::loses_no_update_in_a_race(&store, "disk/").await;
    conformance::tells_followers_of_changes(&store, "disk/").await;
}

#[tokio::test]
async fn eight_processes_lose_no_update() {
    let directory = in_memory();
    let path = place(&directory);
    let began = clock::boot();
    let children: Vec<_> = (0..8)
        .map(|_| child("count", &path).spawn().expect("a child"))
        .collect();
    for mut child in children {
        assert!(child.wait().expect("it ends").success());
    }
    let took = clock::boot().since(began);
    println!("file: 8 processes counted to 200 in {took:.2?}");
    let store = opened(&path).await;
    let found = store.read(&key("counter"), WITHIN).await.expect("a read");
    assert_eq!(found.register.as_ref().map(count_of), Some(200));
}

/// Processes are killed at any moment: what one was told is kept, what it was not told
/// happened once or not at all, and no version comes again.
#[tokio::test]
async fn what_was_acknowledged_outlives_kill_9() {
    const KILLS: u64 = 60;
    let directory = in_memory();
    let path = place(&directory);
    let store = opened(&path).await;
    let (key, mut versions, mut last) = (key("counter"), Vec::new(), 0);
    for round in 0..KILLS {
        let mut one = child("tell", &path).spawn().expect("a child");
        let mut out = BufReader::new(one.stdout.take().expect("its output"));
        let first = first_told(&mut out);
        // At another point of its work each time.
        std::thread::sleep(Duration::from_micros(round * 137 % 4_000));
        one.kill().expect("to kill it");
        one.wait().expect("it ends");
        let lines = std::iter::once(Ok(first))
            .chain(out.lines())
            .map_while(Result::ok);
        let acknowledged = lines.filter_map(|line| {
            let (count, version) = line.trim_end().strip_prefix('=')?.split_once(' ')?;
            Some((count.parse::<u64>().ok()?, version.to_owned()))
        });
        let mut told = 0;
        for (count, version) in acknowledged {
            assert!(count > last, "{count} after {last}");
            (last, told) = (count, count);
            versions.push(version);
        }
        let held = store.read(&key, WITHIN).await.expect("a read").register;
        let held = held.expect("a register");
        let count = count_of(&held);
        assert!([told, told + 1].contains(&count), "{count} of {told}");
        if count > told {
            versions.push(held.version.to_string());
        }
        last = count;
    }
    println!("file: {KILLS} processes killed in the midst of {last} writes");
    let all = versions.len();
    versions.sort();
    versions.dedup();
    assert_eq!(versions.len(), all, "a version came twice");
    assert!(last > KILLS, "they did not come to write: {last}");
}

/// The same at each call of the kernel by which a register is made, written and
/// deleted, one after the other: `strace` kills the process when it makes that call.
#[tokio::test]
async fn a_process_may_be_killed_at_any_step() {
    let mut kills = 0;
    for call in ["fsync", "renameat", "unlinkat", "flock"] {
        for when in 1_u64.. {
            let directory = in_memory();
            let path = place(&directory);
            let store = opened(&path).await;
            let kill = format!("signal=SIGKILL:when={when}");
            let mut one = injected("cycle", &path, call, &kill)
                .spawn()
                .expect("strace");
            let told = told(&mut one);
            let whole = one.wait().expect("it ends").success();
            let acknowledged = told.last().and_then(|it| it.split_once(' '));
            let done: u64 = acknowledged.map_or(0, |(step, _)| step.parse().expect("a step"));
            let held = store
                .read(&key("cycle"), WITHIN)
                .await
                .expect("a read")
                .register;
            // The last step that was acknowledged, or the next.
            let at = |step: u64| (!step.is_multiple_of(3)).then_some(step);
            let found = held.as_ref().map(count_of);
            assert!(
                [at(done), at(done + 1)].contains(&found),
                "{call} {when}: {found:?} after {told:?}"
            );
            let unseen = |version: &Version| {
                let version = format!(" {version}");
                !told.iter().any(|line| line.ends_with(&version))
            };
            // It goes on from there, in versions that were never used.
            let expect = held.map_or(Expect::Absent, |it| Expect::Version(it.version));
            let next = put(&store, &key("cycle"), expect, b"on").await;
            assert!(unseen(&next), "{call} {when}: {next} came twice");
            store
                .delete(&key("cycle"), &next, WITHIN)
                .await
                .expect("to delete");
            let anew = put(&store, &key("cycle"), Expect::Absent, b"anew").await;
            assert!(
                unseen(&anew) && anew > next,
                "{call} {when}: {anew} and {next}"
            );
            if whole {
                assert_eq!(done, 3 * CYCLES);
                break;
            }
            kills += 1;
        }
    }
    println!("file: killed at {kills} steps");
    assert!(kills > 20, "{kills}");
}

/// Killing a process shows no missing sync, since the kernel keeps what it was handed. So
/// the calls themselves are looked at: a file is on disk before it gets its name, and
/// the directory before the answer; the floor is before a register goes.
#[tokio::test]
async fn each_step_is_on_disk_before_the_next_one() {
    let directory = in_memory();
    let path = place(&directory);
    drop(opened(&path).await);
    let log = directory.path().join("log");
    let calls = "trace=fsync,renameat,unlinkat";
    let out = log.to_str().expect("a path in UTF-8");
    let mut traced = traced("cycle", &path, &["-e", calls, "-o", out]);
    let done = traced.stdout(Stdio::null()).status().expect("strace");
    assert!(done.success());
    let log = fs::read_to_string(log).expect("a log");
    let writer = log.lines().find(|line| line.contains("renameat("));
    let writer = writer
        .and_then(|line| line.split(' ').next())
        .expect("a writer");
    let of_writer = log.lines().filter_map(|line| line.strip_prefix(writer));
    let steps: Vec<_> = of_writer
        .filter_map(|line| match line.trim_start() {
            // What was left there by another process.
            line if line.starts_with("unlinkat(") && line.contains("=new") => None,
            // The end of a call that began in an earlier line.
            line if line.starts_with("<...") => None,
            line if line.starts_with("renameat(") && line.contains("=store") => Some("floor"),
            line => line.split('(').next(),
        })
        .collect();
    let write = ["fsync", "renameat", "fsync"];
    let deletion = ["fsync", "floor", "fsync", "unlinkat", "fsync"];
    let cycle = [&write[..], &write, &deletion].concat();
    let all = cycle.repeat(usize::try_from(CYCLES).expect("few"));
    assert_eq!(steps, all, "{log}");
}

/// A child under `strace`.
fn traced(task: &str, path: &Path, options: &[&str]) -> Command {
    let plain = child(task, path);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq"]).args(options);
    command.arg(plain.get_program()).args(plain.get_args());
    command.envs(
        plain
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command.stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// A child of which `strace` does something to a call of the kernel.
fn injected(task: &str, path: &Path, call: &str, what: &str) -> Command {
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:{what}"));
    traced(
        task,
        path,
        &["-o", "/dev/null", "-e", &trace, "-e", &inject],
    )
}

fn assert_unavailable<T: std::fmt::Debug>(result: &Result<T, StoreError>, words: &str) {
    match result {
        Err(StoreError::Unavailable(why)) if why.to_string().contains(words) => {}
        other => panic!("expected it to be unavailable ({words}): {other:?}"),
    }
}

/// Who is stopped with the lock keeps others from writing, and not from reading; they
/// are told in time, and that nothing has happened.
#[tokio::test]
async fn a_stopped_holder_of_the_lock_hangs_nobody() {
    const SHORT: Duration = Duration::from_millis(300);
    const LATE: Duration = Duration::from_secs(2);
    let directory = in_memory();
    let path = place(&directory);
    let store = opened(&path).await;
    let key = key("elections/payroll");
    let version = put(&store, &key, Expect::Absent, b"before").await;
    let mut holder = child("lock", &path).spawn().expect("a child");
    let mut out = BufReader::new(holder.stdout.take().expect("its output"));
    first_told(&mut out);
    stopped::await_stopped(Pid::from_child(&holder));
    let began = clock::boot();
    let change = |within| {
        let (store, key, version) = (Arc::clone(&store), key.clone(), version.clone());
        async move {
            let write = write(&key, Expect::Version(version), b"not done");
            store.compare_and_swap(write, within).await
        }
    };
    // The second is not begun as long as the first waits for the lock.
    let deleted = async { store.delete(&key, &version, SHORT).await };
    let (one, other, deleted) = tokio::join!(change(4 * SHORT), change(SHORT), deleted);
    assert_unavailable(&one, "locked by another process");
    assert_unavailable(&other, "locked");
    assert_unavailable(&deleted, "locked");
    let took = clock::boot().since(began);
    assert!(took < 4 * SHORT + LATE, "{took:?}");
    assert_eq!(value(&store, &key).await.as_deref(), Some(&b"before"[..]));
    // Who opens what is there needs no lock.
    let again = opened(&path).await;
    assert_eq!(value(&again, &key).await.as_deref(), Some(&b"before"[..]));
    holder.kill().expect("to kill it");
    holder.wait().expect("it ends");
    put(&again, &key, Expect::Version(version), b"after").await;
}

/// A writer is stopped behind the rename, before it has synced the directory, and goes
/// on when another has waited in vain.
#[tokio::test]
async fn a_writer_that_was_stopped_in_mid_write_goes_on() {
    let directory = in_memory();
    let path = place(&directory);
    let store = opened(&path).await;
    let mut writer = injected("cycle", &path, "renameat", "signal=SIGSTOP:when=2")
        .spawn()
        .expect("strace");
    let key = key("cycle");
    let until = clock::boot().after(WITHIN);
    loop {
        assert!(clock::boot() < until, "it does not come to write");
        // This changes nothing, whatever there is.
        let stranger = Expect::Version(Version::from_bytes(b"stranger"));
        let change = write(&key, stranger, b"never");
        match store
            .compare_and_swap(change, Duration::from_millis(300))
            .await
        {
            Err(StoreError::Conflict) => {}
            late => break assert_unavailable(&late, "locked by another process"),
        }
    }
    assert_eq!(
        value(&store, &key).await,
        Some(2_u64.to_be_bytes().to_vec())
    );
    let tracer = writer.id();
    let children = fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children"));
    let children = children.expect("the kernel's list");
    for child in children.split_whitespace() {
        let child = child.parse().ok().and_then(Pid::from_raw);
        kill_process(child.expect("a process id"), Signal::CONT).expect("to go on");
    }
    let told = told(&mut writer);
    assert!(writer.wait().expect("it ends").success());
    assert_eq!(told.len() as u64, 3 * CYCLES, "{told:?}");
    assert_eq!(value(&store, &key).await, None);
}

/// Where the small file system is mounted, in the process that sees it.
const FULL_DISK: &str = "TENURE_TEST_FULL_DISK";

/// A mount needs rights that a user has only in a name space of their own. So this test
/// runs itself once more in one, where the disk is small.
#[test]
fn a_full_disk_is_told_and_loses_nothing() {
    if let Some(disk) = std::env::var_os(FULL_DISK) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        return runtime
            .expect("a runtime")
            .block_on(fill_the_disk(Path::new(&disk)));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let script = format!("mount -t tmpfs -o size=256k tmpfs \"${FULL_DISK}\"");
    let test = "a_full_disk_is_told_and_loses_nothing";
    run_mounted(&script, test, FULL_DISK, directory.path());
}

/// Runs a test of this program once more, where something was mounted. The variable
/// tells it where.
fn run_mounted(script: &str, test: &str, variable: &str, top: &Path) {
    let user: &[&str] = if geteuid().is_root() {
        &["--mount"]
    } else {
        &["--user", "--map-root-user", "--mount"]
    };
    let script = format!("{script} && exec \"$@\"");
    let again = Command::new("unshare")
        .args(user)
        .args(["sh", "-c", &script, "sh"])
        .arg(std::env::current_exe().expect("this binary"))
        .args([&test_name(module_path!(), test), "--exact", "--nocapture"])
        .env(variable, top)
        .output()
        .expect("unshare, of util-linux");
    let said = String::from_utf8_lossy(&again.stdout);
    let complained = String::from_utf8_lossy(&again.stderr);
    assert!(
        again.status.success() && said.contains("1 passed"),
        "expected to mount something (as root, or where users may have name spaces), and to pass: \
         {said}{complained}"
    );
}

async fn fill_the_disk(disk: &Path) {
    let path = disk.join("store");
    let store = opened(&path).await;
    let key = key("elections/payroll");
    let mut version = put(&store, &key, Expect::Absent, b"first").await;
    let filler = disk.join("filler");
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&filler)
        .expect("a file");
    // To the last byte; the write that fails is the point.
    let _ = file.write_all(&vec![0; 1 << 20]);
    for _ in 0..3 {
        let expect = Expect::Version(version.clone());
        let full = store
            .compare_and_swap(write(&key, expect, b"more"), WITHIN)
            .await;
        assert_unavailable(&full, "the disk full; free some space");
        let full = store.delete(&key, &version, WITHIN).await;
        assert_unavailable(&full, "the disk full; free some space");
        assert_eq!(value(&store, &key).await.as_deref(), Some(&b"first"[..]));
    }
    assert!(
        !path.join("=new").exists(),
        "what was cut off takes no room"
    );
    drop(file);
    fs::remove_file(filler).expect("to make room");
    version = put(&store, &key, Expect::Version(version), b"second").await;
    store
        .delete(&key, &version, WITHIN)
        .await
        .expect("to delete");
    let again = opened(&path).await;
    assert_eq!(value(&again, &key).await, None);
}

/// A symbolic link and a mount lead to the same directory: both are one store, with one
/// lock.
#[test]
fn two_paths_to_one_directory_are_one_store() {
    const BOUND: &str = "TENURE_TEST_FILE_BOUND";
    if let Some(top) = std::env::var_os(BOUND) {
        let top = Path::new(&top);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        return runtime.expect("a runtime").block_on(async {
            let mut handles = Vec::new();
            for name in ["store", "linked", "bound"] {
                handles.push(opened(&top.join(name)).await);
            }
            conformance::shares_registers_between_handles(&handles, "paths/").await;
        });
    }
    let directory = tempfile::tempdir().expect("a directory");
    let top = directory.path();
    for name in ["store", "bound"] {
        fs::create_dir(top.join(name)).expect("a directory");
    }
    std::os::unix::fs::symlink("store", top.join("linked")).expect("a link");
    let script = format!("mount --bind \"${BOUND}/store\" \"${BOUND}/bound\"");
    let test = "two_paths_to_one_directory_are_one_store";
    run_mounted(&script, test, BOUND, top);
}

/// The directory is moved away, another one comes, and the first comes back.
#[tokio::test]
async fn a_directory_that_is_replaced_or_missing_is_noticed() {
    let directory = in_memory();
    let (path, away) = (place(&directory), directory.path().join("away"));
    let store = opened(&path).await;
    let key = key("elections/payroll");
    let version = put(&store, &key, Expect::Absent, b"first").await;
    let mut watch = store.watch(Selector::Key(key.clone()));
    while watch.next().await != Sighting::Live {}
    fs::rename(&path, &away).expect("to move it");
    let read = store.read(&key, WITHIN).await;
    assert_unavailable(&read, REPAIR);
    let change = write(&key, Expect::Version(version.clone()), b"lost");
    assert_unavailable(&store.compare_and_swap(change, WITHIN).await, REPAIR);
    while !matches!(watch.next().await, Sighting::Down(_)) {}
    // An empty one is no store, and is not made one by those who used the other.
    fs::create_dir(&path).expect("a directory");
    assert_unavailable(&store.read(&key, WITHIN).await, "no file =store in it");
    // A person makes another. It has nothing of the first.
    drop(opened(&path).await);
    assert_eq!(value(&store, &key).await, None);
    let change = write(&key, Expect::Version(version.clone()), b"lost");
    let conflict = store.compare_and_swap(change, WITHIN).await;
    assert!(
        matches!(conflict, Err(StoreError::Conflict)),
        "{conflict:?}"
    );
    fs::remove_dir_all(&path).expect("to remove it");
    fs::rename(&away, &path).expect("to put it back");
    assert_eq!(value(&store, &key).await.as_deref(), Some(&b"first"[..]));
    put(&store, &key, Expect::Version(version), b"second").await;
    let second = |seen: &Sighting| matches!(seen, Sighting::State(_, Some(held)) if *held.value == *b"second");
    let shown = async { while !second(&watch.next().await) {} };
    tokio::time::timeout(WITHIN, shown)
        .await
        .expect("the watch goes on");
}

/// It is moved away while a process waits for its lock: nothing is written there.
#[tokio::test]
async fn a_directory_that_moves_while_its_lock_is_awaited_takes_no_write() {
    let directory = in_memory();
    let (path, away) = (place(&directory), directory.path().join("away"));
    let store = opened(&path).await;
    let key = key("elections/payroll");
    let version = put(&store, &key, Expect::Absent, b"first").await;
    let lock = File::open(&path).expect("a directory");
    lock.lock().expect("the lock");
    let writer = {
        let (store, key) = (Arc::clone(&store), key.clone());
        tokio::spawn(async move {
            let change = write(&key, Expect::Version(version), b"lost");
            store.compare_and_swap(change, WITHIN).await
        })
    };
    // Until it has the directory open twice over and waits; should it not wait yet, it
    // finds the directory gone all the same.
    tokio::time::sleep(Duration::from_millis(50)).await;
    fs::rename(&path, &away).expect("to move it");
    lock.unlock().expect("to unlock");
    let written = writer.await.expect("no panic");
    assert_unavailable(&written, REPAIR);
    let kept = opened(&away).await;
    assert_eq!(value(&kept, &key).await.as_deref(), Some(&b"first"[..]));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

#[tokio::test]
async fn what_is_made_is_for_its_owner_or_for_those_who_are_named() {
    for (option, of_directory, of_files) in [
        ("", 0o700, 0o600),
        ("?mode=0640", 0o750, 0o640),
        ("?mode=0660", 0o2770, 0o660),
    ] {
        let directory = in_memory();
        let path = place(&directory);
        let url = url_of(&path) + option;
        let store = open(&url).await.expect("a store");
        put(&store, &key("elections/payroll"), Expect::Absent, b"x").await;
        assert_eq!(mode(&path), of_directory, "{option}");
        for name in ["=store", "elections=2Fpayroll"] {
            assert_eq!(mode(&path.join(name)), of_files, "{option} {name}");
        }
    }
}

#[tokio::test]
async fn what_is_no_directory_of_registers_is_refused() {
    let directory = in_memory();
    let path = place(&directory);
    drop(opened(&path).await);
    let set = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
    for mode in [0o777, 0o1777] {
        set(mode);
        let why = refused(&path).await;
        assert!(
            why.contains("any account of this machine") && why.contains("chmod o-w"),
            "{why}"
        );
    }
    set(0o700);
    let marker = path.join("=store");
    for (bytes, found) in [
        (&b""[..], "an empty file"),
        (b"tenure store 9\nfloor 1\n\n", "format 9"),
        (b"garbage", "begins with \"garbage\""),
    ] {
        fs::write(&marker, bytes).expect("damage");
        let why = refused(&path).await;
        assert!(why.contains(found) && why.contains("expected"), "{why}");
    }
    fs::remove_file(&marker).expect("to remove it");
    fs::write(path.join("notes.txt"), "hello").expect("a file");
    let why = refused(&path).await;
    assert!(
        why.contains("an empty directory") && why.contains("notes.txt"),
        "{why}"
    );
    let why = refused(&path.join("notes.txt")).await;
    assert!(
        why.contains("found a file") && why.contains("sqlite://"),
        "{why}"
    );
    let why = refused(&path.join("none/below")).await;
    assert!(why.contains("make that one first"), "{why}");
    let why = refused(Path::new("/proc/tenure")).await;
    assert!(why.contains("expected"), "{why}");
    let wrong = open("file://host/path").await.expect_err("two slashes");
    assert!(wrong.to_string().contains("put three"), "{wrong}");
    if geteuid().is_root() {
        let linked = directory.path().join("linked");
        std::os::unix::fs::symlink(&path, &linked).expect("a link");
        std::os::unix::fs::lchown(&linked, Some(4_711), None).expect("given away");
        let why = refused(&linked).await;
        assert!(why.contains("user 4711"), "{why}");
    }
}

#[tokio::test]
async fn a_damaged_register_is_broken_and_troubles_no_other() {
    let directory = in_memory();
    let path = place(&directory);
    let store = opened(&path).await;
    let (good, bad) = (key("elections/good"), key("elections/bad"));
    let version = put(&store, &good, Expect::Absent, b"good").await;
    put(&store, &bad, Expect::Absent, b"bad").await;
    let mut watch = store.watch(Selector::Prefix("elections/".into()));
    while watch.next().await != Sighting::Live {}
    let file = path.join("elections=2Fbad");
    let bytes = fs::read(&file).expect("a register");
    let by_hand = String::from_utf8(bytes.clone()).expect("text");
    assert!(
        by_hand.starts_with("tenure register 1\nkey elections/bad\n"),
        "{by_hand}"
    );
    assert!(by_hand.ends_with("\n\nbad"), "{by_hand}");
    fs::write(&file, &bytes[..bytes.len() - 1]).expect("a torn file");
    let looked = store.read(&bad, WITHIN).await;
    assert!(matches!(looked, Err(StoreError::Broken(_))), "{looked:?}");
    let name = Name::new("bad").expect("a name");
    let looked = tenure::election::leader(Arc::clone(&store), &name, WITHIN).await;
    let why = looked.expect_err("it cannot be read").to_string();
    for words in [
        "elections=2Fbad",
        "a checksum that does not hold",
        "tenure repair",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    let page = store
        .list("elections/", None, WITHIN)
        .await
        .expect("a page");
    assert_eq!(page.registers.len(), 2);
    put(&store, &good, Expect::Version(version), b"better").await;
    fs::write(&file, &bytes).expect("the copy is put back");
    assert_eq!(value(&store, &bad).await.as_deref(), Some(&b"bad"[..]));
}

#[tokio::test]
async fn who_only_looks_makes_nothing() {
    let directory = in_memory();
    let path = place(&directory);
    let looker = open_existing(&url_of(&path)).await.expect("a store");
    let key = key("elections/payroll");
    for _ in 0..2 {
        assert_unavailable(&looker.read(&key, WITHIN).await, "no store there");
        let change = write(&key, Expect::Absent, b"x");
        assert_unavailable(
            &looker.compare_and_swap(change, WITHIN).await,
            "no store there",
        );
    }
    assert!(!path.exists());
    let store = opened(&path).await;
    put(&store, &key, Expect::Absent, b"there").await;
    assert_eq!(value(&looker, &key).await.as_deref(), Some(&b"there"[..]));
}

#[tokio::test]
async fn the_writes_of_others_are_noticed_within_25_ms() {
    let directory = in_memory();
    let path = place(&directory);
    let (writer, reader) = (opened(&path).await, opened(&path).await);
    let key = key("noticed");
    let mut watch = reader.watch(Selector::Key(key.clone()));
    while watch.next().await != Sighting::Live {}
    let (mut figures, mut writes, mut expect) = (Vec::new(), Vec::new(), Expect::Absent);
    for number in 0..100_u8 {
        let asked = clock::boot();
        let version = put(&writer, &key, expect, &[number]).await;
        let done = clock::boot();
        let shown = |seen: &Sighting| matches!(seen, Sighting::State(_, Some(held)) if held.version == version);
        while !shown(&watch.next().await) {}
        writes.push(done.since(asked).as_secs_f64() * 1_000.0);
        figures.push(clock::boot().since(done).as_secs_f64() * 1_000.0);
        expect = Expect::Version(version);
    }
    figures.sort_by(f64::total_cmp);
    writes.sort_by(f64::total_cmp);
    let (median, most) = (figures[50], figures[99]);
    println!(
        "file: noticed after a median of {median:.2} ms, at most {most:.2} ms, of 100; a write in \
         memory takes {:.2} ms",
        writes[50]
    );
    assert!(median < 25.0, "{figures:?}");
}

#[tokio::test]
async fn a_leader_is_elected_and_another_takes_over_when_it_resigns() {
    // On a disk, as it is used.
    let directory = tempfile::tempdir().expect("a directory");
    let path = place(&directory);
    takeovers::measure("files", Notices::ByWatch, || opened(&path)).await;
}
