//! The lock under which a server takes notifications is one for all of them,
//! and anybody who may connect can hold it.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// A transaction that notifies of so much that its commit takes a while, of
/// some 160 MB.
const NOISE: &str = "SELECT count(pg_notify('noise', repeat('x', 7900) || i)) \
                     FROM generate_series(1, 20000) i";

/// The process that holds that lock.
const HOLDER: &str = "SELECT coalesce(min(pid), 0) FROM pg_locks \
                      WHERE locktype = 'object' AND classid = 1262 AND objid = 0 AND granted";

/// A backend that is stopped, until this is dropped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Stops the process that holds the lock, while it does.
fn stop_the_holder(server: &Postgres) -> Stopped {
    let give_up = clock::boot().after(WITHIN);
    loop {
        assert!(clock::boot() < give_up, "nobody holds the lock");
        let pid = server.sql(HOLDER).parse().ok().and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        kill_process(pid, Signal::STOP).expect("it runs");
        let stopped = Stopped(pid);
        if server.sql(HOLDER) == pid.as_raw_nonzero().to_string() {
            return stopped;
        }
    }
}

#[tokio::test]
async fn who_holds_the_lock_of_notifications_holds_up_no_writes() {
    let server = Arc::new(Postgres::start());
    let (writer, follower) = (opened(&server.url()).await, opened(&server.url()).await);
    let key = key("elections/payroll");
    let mut version = put(&writer, &key, Expect::Absent, b"0").await;
    let mut watch = follower.watch(Selector::Key(key.clone()));
    let has = |seen: &Sighting, value: &[u8]| matches!(seen, Sighting::State(_, Some(held)) if *held.value == *value);
    until(&mut watch, |seen| has(seen, b"0")).await;

    let noisy = Arc::clone(&server);
    let noise = std::thread::spawn(move || noisy.sql(NOISE));
    let stopped = stop_the_holder(&server);
    for round in 1..=5_u8 {
        let begun = clock::boot();
        version = put(&writer, &key, Expect::Version(version), &[round]).await;
        let took = clock::boot().since(begun);
        assert!(took < Duration::from_secs(2), "write {round} took {took:?}");
    }
    assert_eq!(value(&writer, &key).await, Some(vec![5]));
    drop(stopped);
    noise.join().expect("it ends");
    // What could not be told then is told now.
    until(&mut watch, |seen| has(seen, &[5])).await;
}
