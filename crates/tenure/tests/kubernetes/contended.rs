//! One Lease that candidates of ours and of client-go contend for, by its operations as
//! `client_go.rs` has them: each takes over from the other, when the other has given up
//! and when it is dead, and neither before.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure::core::time::Instant;
use tenure::{Election, StoreError, clock};

use super::CHILD;
use super::client_go::{ClientGo, LEASE_SECONDS};
use super::standin::Kubernetes;
use crate::common::calls::{WITHIN, key, millis_since, opened, test_name};

/// The lease of ours: as long as client-go's.
const LEASE: Duration = Duration::from_secs(LEASE_SECONDS.unsigned_abs());
/// How often client-go looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What a child says when it leads.
const LEADS: &str = "leads in term ";

async fn candidate(server: &Kubernetes, name: &str) -> Election {
    let store = opened(&server.url()).await;
    let builder = Election::builder(store, "payroll").name(name).lease(LEASE);
    builder.start().expect("a candidate")
}

/// Whom a candidate sees lead, and in which term.
fn seen(election: &Election) -> Option<(String, u64)> {
    let leader = election.leader()?.leader?;
    Some((leader.name.as_str().to_owned(), leader.term.get()))
}

/// Looks again and again, as client-go does, until something is so.
async fn looks_until(go: &mut ClientGo<'_>, mut is_so: impl FnMut(bool) -> bool) {
    let give_up = clock::boot().after(WITHIN);
    let mut looks = tokio::time::interval(LOOK_EVERY);
    while !is_so(go.look()) {
        assert!(clock::boot() < give_up, "it never is so");
        looks.tick().await;
    }
}

/// Looks for so long.
async fn looks_for(go: &mut ClientGo<'_>, span: Duration, mut each: impl FnMut(bool)) {
    let until = clock::boot().after(span);
    looks_until(go, |leads| {
        each(leads);
        clock::boot() >= until
    })
    .await;
}

/// Not a test of its own: a leader that is to be killed.
#[tokio::test]
async fn child_leads() {
    let Ok(url) = std::env::var(CHILD) else {
        return;
    };
    let store = opened(&url).await;
    let builder = Election::builder(store, "payroll")
        .name("doomed")
        .lease(LEASE);
    let mut election = builder.start().expect("a candidate");
    let leadership = election.elected().await.expect("a leadership");
    println!("{LEADS}{}", leadership.term());
    leadership.cancelled().await;
}

/// A process that stands.
fn process(server: &Kubernetes) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child
        .args([
            "--exact",
            &test_name(module_path!(), "child_leads"),
            "--nocapture",
        ])
        .env(CHILD, server.url())
        .stdout(Stdio::piped());
    child.spawn().expect("a child")
}

/// The term in which it leads, once it does.
async fn term_of(child: &mut Child) -> u64 {
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let term = tokio::task::spawn_blocking(move || {
        let mut terms = lines.map_while(Result::ok);
        terms.find_map(|line| line.strip_prefix(LEADS).map(str::to_owned))
    });
    let term = term.await.expect("no panic").expect("a term");
    term.parse().expect("a number")
}

/// A person hands the Lease to somebody else, and does not count that.
#[tokio::test]
async fn a_lease_whose_transitions_were_not_counted_says_what_to_do() {
    let server = Kubernetes::start();
    let mut ours = candidate(&server, "ours").await;
    let leadership = tokio::time::timeout(WITHIN, ours.elected()).await;
    let leadership = leadership.expect("in time").expect("a leadership");
    let mut lease = server.object("leases", "payroll").expect("a Lease");
    lease["spec"]["holderIdentity"] = "somebody".into();
    server.set("leases", "payroll", lease);
    let reader = opened(&server.url()).await;
    let key = key("elections/payroll");
    let read = reader.read(&key, WITHIN).await;
    let Err(StoreError::Broken(why)) = &read else {
        panic!("{read:?}");
    };
    let why = why.to_string();
    for words in ["\"somebody\"", "set leaseTransitions to 1"] {
        assert!(why.contains(words), "{why}");
    }
    // It hides no other election.
    let page = reader.list("elections/", None, WITHIN).await;
    assert_eq!(page.expect("a page").registers.len(), 1);
    tokio::time::timeout(WITHIN, leadership.cancelled())
        .await
        .expect("it ends");
}

#[tokio::test]
async fn a_leader_of_client_go_that_stops_is_followed_by_ours_after_its_lease() {
    let server = Kubernetes::start();
    let mut go = ClientGo::new(&server, "go-1_7f2c");
    assert!(go.look(), "nobody had it");
    let mut ours = candidate(&server, "ours").await;
    // For longer than its lease it renews, and is seen to lead.
    let mut last = clock::boot();
    looks_for(&mut go, LEASE * 2, |leads| {
        assert!(leads, "its renewals are not overtaken");
        last = clock::boot();
    })
    .await;
    assert_eq!(seen(&ours), Some(("go-1_7f2c".to_owned(), 1)));
    let leadership = tokio::time::timeout(WITHIN, ours.elected()).await;
    let leadership = leadership.expect("in time").expect("a leadership");
    let passed = clock::boot().since(last);
    assert_eq!(leadership.term().get(), 2);
    assert!(passed >= LEASE, "after {passed:?}");
    println!("kubernetes: ours leads {passed:.2?} after client-go's last renewal of {LEASE:?}");
    // It comes back, and finds that it has lost it; for as long as we lead.
    looks_for(&mut go, LEASE * 2, |leads| assert!(!leads)).await;
    assert!(leadership.is_valid());
    // We resign: it has it at its next look, in a higher term.
    drop(leadership);
    ours.stop().await;
    looks_until(&mut go, |leads| leads).await;
    let watcher = candidate(&server, "another").await;
    sees(&watcher, "go-1_7f2c", 3).await;
    // It releases: the next of ours has it at once.
    let mut watcher = watcher;
    let released = clock::boot();
    go.release();
    let next = tokio::time::timeout(WITHIN, watcher.elected()).await;
    let next = next.expect("in time").expect("a leadership");
    let took = millis_since(released);
    assert_eq!(next.term().get(), 4);
    println!("kubernetes: ours leads {took:.1} ms after client-go's release");
    drop(next);
    watcher.stop().await;
}

async fn sees(election: &Election, name: &str, term: u64) {
    let give_up = clock::boot().after(WITHIN);
    while seen(election) != Some((name.to_owned(), term)) {
        assert!(clock::boot() < give_up, "it sees {:?}", seen(election));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_leader_of_ours_that_is_killed_is_followed_by_client_go_after_its_lease() {
    let server = Kubernetes::start();
    let mut child = process(&server);
    assert_eq!(term_of(&mut child).await, 1);
    let mut go = ClientGo::new(&server, "go-2");
    looks_for(&mut go, LEASE * 2, |leads| assert!(!leads, "ours renews")).await;
    child.kill().expect("to kill it");
    child.wait().expect("it ends");
    let killed: Instant = clock::boot();
    looks_until(&mut go, |leads| leads).await;
    let passed = clock::boot().since(killed);
    // Its last renewal was an interval before at the earliest.
    assert!(passed >= LEASE - LEASE / 4, "after {passed:?}");
    println!(
        "kubernetes: client-go leads {passed:.2?} after ours was killed, with a lease of {LEASE:?}"
    );
    let watcher = candidate(&server, "another").await;
    looks_for(&mut go, LEASE, |leads| assert!(leads)).await;
    sees(&watcher, "go-2", 2).await;
    watcher.stop().await;
}

/// A leader of client-go that has lost the Lease and releases it all the same, as it
/// does if its process is stopped (SIGSTOP) and then told to end.
#[tokio::test]
async fn a_release_that_comes_too_late_takes_nothing_from_ours() {
    let server = Kubernetes::start();
    let mut go = ClientGo::new(&server, "go-3");
    assert!(go.look(), "nobody had it");
    let mut ours = candidate(&server, "ours").await;
    let leadership = tokio::time::timeout(WITHIN, ours.elected()).await;
    let leadership = leadership.expect("in time").expect("a leadership");
    let mut second = candidate(&server, "second").await;
    sees(&second, "ours", 2).await;
    assert!(go.is_leader(), "it does not know yet");
    go.release();
    let early = tokio::time::timeout(LEASE, second.elected()).await;
    assert!(early.is_err(), "another was elected");
    assert!(leadership.is_valid(), "it was renewed");
    assert_eq!(leadership.term().get(), 2);
    drop(leadership);
    ours.stop().await;
    second.stop().await;
}

/// The variable that names the program of `go/`.
const CLIENT_GO: &str = "TENURE_CLIENT_GO";
/// The variables that name an API server in place of the stand-in: the store's URL, and
/// what the program of `go/` is given besides (`-host`, `-token` and so on).
pub(crate) const REAL_URL: &str = "TENURE_KUBERNETES_URL";
const REAL_ARGS: &str = "TENURE_CLIENT_GO_ARGS";
const REAL_LEASE: Duration = Duration::from_secs(4);

/// A process that stands, and what it says: each line, and when.
struct Stander {
    child: Child,
    said: std::sync::mpsc::Receiver<(String, Instant)>,
}

impl Stander {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let (tell, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = tell.send((line, clock::boot()));
            }
        });
        Self { child, said }
    }

    /// When it says what begins so, and the rest.
    fn says(&self, words: &str, within: Duration) -> Option<(String, Instant)> {
        let until = clock::boot().after(within);
        loop {
            let left = until.since(clock::boot());
            let (line, at) = self.said.recv_timeout(left).ok()?;
            if let Some(rest) = line.strip_prefix(words) {
                return Some((rest.to_owned(), at));
            }
        }
    }

    fn signal(&mut self, name: &str) -> Instant {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        assert!(sent.expect("kill").success());
        clock::boot()
    }
}

impl Drop for Stander {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test of its own, since it needs a program that is built by hand: how is in
/// `go/README.md`. A real client-go and candidates of ours on one Lease.
#[test]
fn with_client_go_itself() {
    let Ok(program) = std::env::var(CLIENT_GO) else {
        return;
    };
    let server = Kubernetes::start();
    let url = std::env::var(REAL_URL).unwrap_or_else(|_| server.url());
    let standin = format!("-host http://{} -namespace n", server.host());
    let args = std::env::var(REAL_ARGS).unwrap_or(standin);
    let go = |identity: &str| {
        let mut command = Command::new(&program);
        command.args(args.split(' ')).args(["-identity", identity]);
        command.args(["-lease", "4s"]);
        Stander::start(command)
    };
    let ours = || {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args([
            "--exact",
            &test_name(module_path!(), "child_leads_long"),
            "--nocapture",
        ]);
        command.env(CHILD, &url);
        Stander::start(command)
    };
    let term = |said: Option<(String, Instant)>| {
        let (term, at) = said.expect("a leadership");
        (term.parse::<u64>().expect("a term"), at)
    };
    let passed = |since: Instant, until: Instant| until.since(since).as_secs_f64();

    let mut first = go("go-1");
    first.says("leads", WITHIN).expect("client-go leads");
    let mut second = ours();
    assert!(
        second.says(LEADS, REAL_LEASE * 2).is_none(),
        "client-go renews"
    );
    let killed = first.signal("-KILL");
    let (one, at) = term(second.says(LEADS, WITHIN));
    let took = passed(killed, at);
    println!("client-go killed: ours leads in term {one} after {took:.2} s");
    assert!(took >= REAL_LEASE.as_secs_f64() / 2.0, "too early");

    let mut third = go("go-2");
    assert!(third.says("leads", REAL_LEASE * 2).is_none(), "ours renews");
    let killed = second.signal("-KILL");
    let (_, at) = third.says("leads", WITHIN).expect("client-go leads");
    let took = passed(killed, at);
    println!("ours killed: client-go leads after {took:.2} s");
    assert!(took >= REAL_LEASE.as_secs_f64() / 2.0, "too early");

    let mut fourth = ours();
    assert!(
        fourth.says(LEADS, REAL_LEASE * 2).is_none(),
        "client-go renews"
    );
    let told = third.signal("-TERM");
    let (two, at) = term(fourth.says(LEADS, WITHIN));
    println!(
        "client-go released: ours leads in term {two} after {:.3} s",
        passed(told, at)
    );
    assert_eq!(two, one + 2, "a term for each leader");

    let fifth = go("go-3");
    assert!(fifth.says("leads", REAL_LEASE * 2).is_none(), "ours renews");
    // It gives up when its input ends.
    drop(fourth.child.stdin.take());
    let told = clock::boot();
    let (_, at) = fifth.says("leads", WITHIN).expect("client-go leads");
    println!(
        "ours stopped: client-go leads after {:.3} s",
        passed(told, at)
    );
}

/// Not a test of its own: a leader that leads until it is killed, or its input ends.
#[tokio::test]
async fn child_leads_long() {
    let Ok(url) = std::env::var(CHILD) else {
        return;
    };
    let store = opened(&url).await;
    let builder = Election::builder(store, "payroll")
        .name("ours")
        .lease(REAL_LEASE);
    let mut election = builder.start().expect("a candidate");
    let leadership = election.elected().await.expect("a leadership");
    println!("{LEADS}{}", leadership.term());
    let input = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    let _ = input.await;
    drop(leadership);
    election.stop().await;
}
