//! A snapshot takes longer to a server than it is from one snapshot of the
//! leader to the next.
//!
//! The state has about 105,000 bytes, and so has the threshold. An entry has 420,
//! so a round is 128 entries, or 53,760 bytes. The slow link carries 100 bytes a
//! millisecond, and clients append 60: a snapshot comes every 900 ms, and a
//! transfer takes more than 1,050.

use tenure_alpo::{Change, ClientRequest, Config, Limits, Status};

use super::far::{Far, storage};

const ENTRY: u64 = 420;
const APPENDED: u64 = 60;
const SLOW: u64 = 100;
/// The threshold, which is the size of a snapshot.
const THRESHOLD: usize = 110_000;
/// A transfer, and then all that was appended since its snapshot, at the rest
/// that the link carries beside what goes on being appended; twice as long.
const PATIENCE: u64 = 20_000;

/// A cluster that has gone on without some of its servers: what they need is
/// compacted, and their links are slow.
fn without(count: usize, late: &[usize]) -> (Far, usize) {
    let config = Config {
        snapshot_threshold_bytes: 10_000,
        kept_entries: 30,
        append_bytes: 16_384,
        chunk_bytes: 4_096,
        ..Config::default()
    };
    let limits = Limits {
        user_log_bytes: 112_000,
        ..Limits::default()
    };
    let mut far = Far::found(&config, limits, count);
    far.cut = late.to_vec();
    far.run(5_000);
    let leader = far.leader().expect("a leader");
    far.open();
    far.append(10_000, APPENDED, ENTRY);
    let snapshot = far.nodes[leader].snapshot().expect("one").bytes.len();
    assert!(
        (THRESHOLD - 10_000..THRESHOLD).contains(&snapshot),
        "{snapshot}"
    );
    for index in late {
        far.carries[*index] = SLOW;
    }
    (far, leader)
}

impl Far {
    /// Clients append, until a server has all but what was appended in the
    /// last half second; no longer than this. What the leader keeps is bounded.
    fn catch_up(&mut self, index: usize, others: usize) {
        let until = self.now + PATIENCE;
        while self.lag(index) > APPENDED * 500 / ENTRY {
            self.append(10, APPENDED, ENTRY);
            self.check_kept(others);
            assert!(self.now < until, "it lacks {} entries", self.lag(index));
        }
    }

    /// The leader keeps no more than it may for so many servers.
    fn check_kept(&self, others: usize) {
        let leader = self.leader().expect("a leader");
        let (log, snapshots) = (self.log_bytes(leader), self.snapshots(leader));
        assert!(log < THRESHOLD * 7 / 2, "{log} bytes of log");
        assert!(snapshots <= 1 + others, "{snapshots} snapshots");
    }

    /// The leader keeps what it keeps when no server is brought up to date.
    fn check_nothing_kept(&self, leader: usize) {
        let (log, snapshots) = (self.log_bytes(leader), self.snapshots(leader));
        assert!(log < THRESHOLD, "{log} bytes of log");
        assert_eq!(snapshots, 1);
    }

    /// The first half of a transfer.
    fn transfer_half(&mut self, index: usize) {
        self.cut.retain(|it| *it != index);
        let chunks = self.chunks;
        self.append(600, APPENDED, ENTRY);
        assert!(self.chunks > chunks + 5, "it has begun");
        assert_eq!(self.installed, [], "it has not ended");
    }
}

#[test]
fn a_transfer_ends_although_snapshots_come_faster() {
    let (mut far, leader) = without(3, &[2]);
    let bytes = far.nodes[leader].snapshot().expect("one").bytes.len();
    far.cut.clear();
    far.catch_up(2, 1);
    assert_eq!(far.leader(), Some(leader));
    // One snapshot, and hardly a byte of it twice.
    assert_eq!(far.installed.len(), 1, "{:?}", far.installed);
    let sent = far.chunk_bytes;
    assert!(sent < bytes * 11 / 10, "{sent} of {bytes} bytes");
    far.append(5_000, APPENDED, ENTRY);
    far.check_nothing_kept(leader);
}

#[test]
fn two_servers_are_brought_up_to_date_with_two_snapshots() {
    let (mut far, leader) = without(5, &[3, 4]);
    far.transfer_half(3);
    far.append(400, APPENDED, ENTRY);
    far.cut.clear();
    far.catch_up(4, 2);
    far.catch_up(3, 2);
    let of = |server| far.installed.iter().filter(move |it| it.0 == server);
    assert_eq!((of(3).count(), of(4).count()), (1, 1));
    assert_ne!(far.installed[0].1, far.installed[1].1);
    far.append(5_000, APPENDED, ENTRY);
    far.check_nothing_kept(leader);
}

#[test]
fn a_server_that_stops_in_the_middle_costs_nothing_after_a_while() {
    for appended in [APPENDED, 0] {
        let (mut far, leader) = without(3, &[2]);
        far.transfer_half(2);
        far.cut.push(2);
        for _ in 0..10 {
            far.append(100, APPENDED, ENTRY);
            far.check_kept(1);
        }
        assert_eq!(far.snapshots(leader), 2, "it may come back");
        far.append(9_000, appended, ENTRY);
        assert_eq!(far.snapshots(leader), 1);
        far.append(1_000, APPENDED, ENTRY);
        far.check_nothing_kept(leader);
        far.cut.clear();
        far.catch_up(2, 1);
    }
}

#[test]
fn a_server_that_is_away_for_a_moment_goes_on_with_the_same_snapshot() {
    let (mut far, leader) = without(3, &[2]);
    let first = far.nodes[leader].snapshot().expect("one").last;
    far.transfer_half(2);
    far.cut.push(2);
    // It stands meanwhile, in vain.
    far.append(2_200, APPENDED / 2, ENTRY);
    assert_eq!(far.nodes[2].status(), Status::PreVoting);
    assert_ne!(far.nodes[leader].snapshot().map(|it| it.last), Some(first));
    far.cut.clear();
    far.catch_up(2, 1);
    assert_eq!(far.installed, [(2, first)]);
}

#[test]
fn a_server_that_has_lost_what_it_had_begins_with_the_newest() {
    let (mut far, leader) = without(3, &[]);
    let stranger = admit(&mut far, leader);
    let first = far.nodes[leader].snapshot().expect("one").last;
    far.transfer_half(stranger);
    far.append(200, APPENDED, ENTRY);
    let newest = far.nodes[leader].snapshot().expect("one").last;
    assert_ne!(newest, first);
    far.restart_stranger(stranger);
    far.catch_up(stranger, 1);
    let (_, installed) = far.installed[0];
    assert!(installed >= newest, "{installed} is older than {newest}");
}

#[test]
fn a_link_that_is_too_slow_costs_no_more_and_is_done_when_clients_pause() {
    let (mut far, leader) = without(3, &[2]);
    far.carries[2] = APPENDED / 4;
    far.cut.clear();
    for _ in 0..300 {
        far.append(100, APPENDED, ENTRY);
        far.check_kept(1);
    }
    assert_eq!(far.installed, []);
    assert_eq!(far.leader(), Some(leader));
    let until = far.now + PATIENCE;
    while far.lag(2) > 0 {
        far.run(10);
        assert!(far.now < until, "it lacks {} entries", far.lag(2));
    }
}

#[test]
fn another_server_leads_in_the_middle_of_a_transfer() {
    let (mut far, before) = without(3, &[2]);
    far.transfer_half(2);
    far.append(400, APPENDED, ENTRY);
    change_leaders(&mut far, before);
    far.check_nothing_kept(before);
    far.catch_up(2, 1);
    assert_eq!(far.installed.len(), 1, "{:?}", far.installed);
}

#[test]
fn another_server_leads_while_a_learner_is_brought_up_to_date() {
    let (mut far, before) = without(3, &[]);
    let learner = admit(&mut far, before);
    far.transfer_half(learner);
    far.append(400, APPENDED, ENTRY);
    change_leaders(&mut far, before);
    far.check_nothing_kept(before);
    far.catch_up(learner, 1);
    let leader = far.leader().expect("a leader");
    let id = far.nodes[learner].id();
    let promote = ClientRequest::change(Change::Promote(id), Some(storage(learner)));
    far.request(leader, promote);
    far.append(2_000, APPENDED, ENTRY);
    assert!(far.nodes[learner].members().is_voter(id));
}

/// One more server is admitted, over a slow link.
fn admit(far: &mut Far, leader: usize) -> usize {
    let stranger = far.add_stranger();
    far.carries[stranger] = SLOW;
    far.cut.push(stranger);
    let server = far.nodes[stranger].id();
    let storage = storage(stranger);
    let change = Change::AddLearner { server, storage };
    far.request(leader, ClientRequest::change(change, None));
    far.append(1_000, APPENDED, ENTRY);
    stranger
}

/// The leadership is handed over to another server that has everything.
fn change_leaders(far: &mut Far, before: usize) {
    far.request(before, ClientRequest::Transfer(None));
    let since = far.now;
    while far.leader().is_none_or(|leader| leader == before) {
        far.run(1);
        assert!(far.now < since + 500, "no other leads");
    }
    far.open();
}
