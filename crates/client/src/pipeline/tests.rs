//! A pipeline against a server that does what the core's state does, and a
//! line that loses, repeats and breaks.
//!
//! What must hold whatever happens: nothing is done twice, nothing that was
//! answered with a number is missing, what was said not to be done is not,
//! and what takes effect does so in the order in which it was asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_alpo::{
    Command, Entry, Limits, Operation, Outcome as Applied, Payload, SerialStatus, State,
};
use tenure_api::v1::answer;
use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_core::time::ClockId;
use tokio::sync::oneshot;

use super::*;
use crate::Error;

const TTL: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn failed(cause: v1::Cause, expected: u64) -> answer::What {
    answer::What::Error(v1::Error {
        cause: cause.into(),
        expected,
        ..v1::Error::default()
    })
}

/// The log behind all servers.
struct Server {
    state: State,
    /// Under which sessions something was done.
    used: BTreeSet<u64>,
    /// What the client's token may not do. That is judged first.
    denied: Denied,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Denied {
    Nothing,
    Appending,
    Everything,
}

impl Server {
    fn new() -> Self {
        Self {
            state: State::new(Limits::default(), ClockId::default()),
            used: BTreeSet::new(),
            denied: Denied::Nothing,
        }
    }

    fn apply(&mut self, payload: Payload) -> Applied {
        let entry = Entry {
            id: self.state.applied().id + 1,
            term: Term::ZERO,
            time: 0,
            payload,
        };
        self.state.apply(&entry)
    }

    fn expire(&mut self, session: u64) {
        let ttl = u64::try_from(TTL.as_nanos()).expect("a time");
        let entry = Entry {
            id: self.state.applied().id + 1,
            term: Term::ZERO,
            time: self.state.time() + ttl,
            payload: Payload::Expire { session },
        };
        self.state.apply(&entry);
    }

    fn answer(&mut self, what: &request::What) -> answer::What {
        match what {
            request::What::Open(_) => {
                let ttl = u64::try_from(TTL.as_nanos()).expect("a time");
                match self.apply(Payload::Open { ttl }) {
                    Applied::Opened(session) => answer::What::Opened(session),
                    other => panic!("opening a session: {other:?}"),
                }
            }
            request::What::Command(command) => self.command(command),
            request::What::ReadLog(_) => answer::What::Log(v1::ReadLogResponse::default()),
            other => panic!("not asked in these tests: {other:?}"),
        }
    }

    fn command(&mut self, command: &v1::Command) -> answer::What {
        let appends = matches!(command.operation, Some(command::Operation::Append(_)));
        if self.denied == Denied::Everything || self.denied == Denied::Appending && appends {
            return failed(v1::Cause::Denied, 0);
        }
        let operation = match command.operation.as_ref().expect("an operation") {
            command::Operation::Append(bytes) if bytes.is_empty() => {
                return self.refuse_empty(command);
            }
            command::Operation::Append(bytes) => Operation::Append(bytes.as_ref().into()),
            command::Operation::KeepAlive(_) => Operation::KeepAlive,
            command::Operation::Close(_) => Operation::Close,
            other => panic!("not asked in these tests: {other:?}"),
        };
        let sessions = self.state.sessions();
        let status = sessions.serial_status(command.session, command.serial, &operation);
        if let SerialStatus::Ahead { expected } = status {
            return failed(v1::Cause::OutOfOrder, expected);
        }
        assert!(command.serial - command.outstanding < tenure_alpo::MAX_WINDOW);
        let command = Command {
            session: command.session,
            serial: command.serial,
            outstanding: command.outstanding,
            operation,
        };
        let session = command.session;
        match self.apply(Payload::Command(command)) {
            Applied::Appended(number) => {
                self.used.insert(session);
                answer::What::Appended(number)
            }
            Applied::Alive => answer::What::Alive(true),
            Applied::Closed => answer::What::Closed(true),
            Applied::SessionExpired => failed(v1::Cause::SessionExpired, 0),
            Applied::TooOld => failed(v1::Cause::TooOld, 0),
            other => panic!("{other:?}"),
        }
    }

    /// Stands for whatever a server refuses before the log hears of it.
    fn refuse_empty(&self, command: &v1::Command) -> answer::What {
        let sessions = self.state.sessions();
        match sessions.serial_status(command.session, command.serial, &Operation::KeepAlive) {
            SerialStatus::NoSession => failed(v1::Cause::SessionExpired, 0),
            SerialStatus::Ahead { expected } => failed(v1::Cause::OutOfOrder, expected),
            _ => failed(v1::Cause::Invalid, 0),
        }
    }

    fn log(&self) -> Vec<u64> {
        let entries = self.state.user_log().read(1).expect("all of it");
        entries
            .map(|(_, bytes)| u64::from_be_bytes((**bytes).try_into().expect("a number")))
            .collect()
    }
}

/// One caller's question and what became of it.
struct Submitted {
    answer: oneshot::Receiver<Outcome>,
}

struct World {
    pipeline: Pipeline,
    server: Server,
    rng: Rng,
    millis: u64,
    /// Sent and not taken by the server yet.
    up: VecDeque<v1::Request>,
    /// Answered and not taken by the pipeline yet.
    down: VecDeque<v1::Answer>,
    asked: Vec<Submitted>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            pipeline: Pipeline::new(TTL, at(0)),
            server: Server::new(),
            rng: Rng::from_seed(seed),
            millis: 0,
            up: VecDeque::new(),
            down: VecDeque::new(),
            asked: Vec::new(),
        }
    }

    /// One whose first command was done.
    fn in_session() -> Self {
        let mut world = Self::new(1);
        world.pipeline.connected(at(0));
        world.submit_next(60_000);
        world.settle();
        world
    }

    fn submit(&mut self, bytes: Vec<u8>, within: u64) {
        let (waiter, answer) = oneshot::channel();
        let op = PendingRequest {
            what: RequestKind::Change(command::Operation::Append(bytes.into())),
            deadline: at(self.millis + within),
            reply: Reply::One(waiter),
        };
        if let Err((reply, error)) = self.pipeline.push(op) {
            assert!(self.pipeline.is_over(), "there is room");
            reply.tell(Err(error));
        }
        self.asked.push(Submitted { answer });
    }

    /// Asks to append this caller's own number.
    fn submit_next(&mut self, within: u64) {
        let number = self.asked.len() as u64;
        self.submit(number.to_be_bytes().to_vec(), within);
    }

    fn submit_soon(&mut self) {
        let within = self.rng.between(1, 200);
        self.submit_next(within);
    }

    fn write(&mut self) {
        if let Some(message) = self.pipeline.message(at(self.millis)) {
            assert!(!message.requests.is_empty());
            self.up.extend(message.requests);
        }
    }

    fn serve(&mut self) {
        if let Some(request) = self.up.pop_front() {
            let what = Some(self.server.answer(&request.what.expect("a question")));
            let number = request.number;
            self.down.push_back(v1::Answer {
                number,
                what,
                owned: false,
            });
        }
    }

    fn read(&mut self) {
        if let Some(answer) = self.down.pop_front() {
            let mut outcomes = Outcomes::new();
            let verdict = self
                .pipeline
                .answered(at(self.millis), answer, &mut outcomes);
            tell(outcomes);
            if verdict != Verdict::Stay {
                self.cut(true);
            }
        }
    }

    /// The connection breaks. What had left may still arrive.
    fn cut(&mut self, arrives: bool) {
        while arrives && !self.up.is_empty() {
            self.serve();
        }
        self.up.clear();
        self.down.clear();
        let mut outcomes = Outcomes::new();
        self.pipeline.disconnected("cut", &mut outcomes);
        tell(outcomes);
        self.pipeline.connected(at(self.millis));
    }

    fn pass(&mut self, millis: u64) {
        self.millis += millis;
        let mut outcomes = Outcomes::new();
        self.pipeline.tick(at(self.millis), &mut outcomes);
        tell(outcomes);
    }

    fn session(&self) -> Option<u64> {
        match self.pipeline.session {
            Session::Open(session) => Some(session),
            _ => None,
        }
    }

    /// Lets everything go well until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..20_000 {
            self.write();
            self.serve();
            self.read();
            self.pass(1);
            if !self.pipeline.wants_connection() && self.up.is_empty() && self.down.is_empty() {
                return;
            }
        }
        panic!(
            "it never comes to an end: {:.2000}",
            format!("{:?}", self.pipeline)
        );
    }

    /// One step, in which anything may go wrong.
    fn step(&mut self) {
        match self.rng.below(100) {
            0..25 => self.submit_soon(),
            25..50 => self.write(),
            50..70 => (0..self.rng.below(8)).for_each(|_| self.serve()),
            70..90 => (0..self.rng.below(8)).for_each(|_| self.read()),
            90 => {
                self.server.denied = match self.rng.below(8) {
                    0 => Denied::Everything,
                    1 => Denied::Appending,
                    _ => Denied::Nothing,
                }
            }
            91..94 => {
                let millis = self.rng.below(20);
                self.pass(millis);
            }
            94 => self.cut(true),
            95 => self.cut(false),
            96 => {
                // Overload: taken off the line, and refused.
                if let Some(request) = self.up.pop_front() {
                    let what = Some(failed(v1::Cause::Busy, 0));
                    let number = request.number;
                    self.down.push_back(v1::Answer {
                        number,
                        what,
                        owned: false,
                    });
                }
            }
            97 => {
                // Done or not: the leader does not know.
                if let Some(request) = self.up.pop_front() {
                    let what = request.what.expect("a question");
                    if self.rng.below(2) == 0 {
                        self.server.answer(&what);
                    }
                    let what = Some(failed(v1::Cause::Interrupted, 0));
                    let number = request.number;
                    self.down.push_back(v1::Answer {
                        number,
                        what,
                        owned: false,
                    });
                }
            }
            98 => {
                if let Some(session) = self.session().filter(|_| self.rng.below(4) == 0) {
                    self.server.expire(session);
                }
            }
            _ => {
                let times = self.rng.below(30);
                (0..times).for_each(|_| self.submit_soon());
            }
        }
    }
}

fn tell(outcomes: Outcomes) {
    for (reply, outcome) in outcomes {
        reply.tell(outcome);
    }
}

/// Checks what the callers were told against the log; how many were told of
/// each kind.
fn check(world: &mut World) -> (usize, usize, usize) {
    let log = world.server.log();
    let mut places = BTreeMap::new();
    for (place, caller) in log.iter().enumerate() {
        let before = places.insert(*caller, place as u64 + 1);
        assert_eq!(before, None, "caller {caller} was served twice");
    }
    let (mut done, mut not_done, mut unknown) = (0, 0, 0);
    let mut last = 0;
    for (caller, asked) in world.asked.iter_mut().enumerate() {
        let outcomes = asked.answer.try_recv().expect("everybody is told");
        let place = places.get(&(caller as u64)).copied();
        match outcomes {
            Ok(answer::What::Appended(number)) => {
                assert_eq!(Some(number), place, "caller {caller}");
                assert!(number > last, "caller {caller} overtook another");
                (done, last) = (done + 1, number);
            }
            Err(Error::Unavailable(_) | Error::Refused { .. }) => {
                assert_eq!(place, None, "caller {caller} was told: not done");
                not_done += 1;
            }
            Err(Error::Unknown(_)) => unknown += 1,
            other => panic!("caller {caller}: {other:?}"),
        }
    }
    (done, not_done, unknown)
}

#[test]
fn each_command_is_done_once_in_order_and_never_denied() {
    let (mut done, mut not_done, mut unknown) = (0, 0, 0);
    for seed in 0..300 {
        let mut world = World::new(seed);
        world.pipeline.connected(at(0));
        for _ in 0..1_000 {
            world.step();
        }
        world.settle();
        let counts = check(&mut world);
        (done, not_done, unknown) = (done + counts.0, not_done + counts.1, unknown + counts.2);
    }
    // The test is none if these do not happen.
    assert!(
        done > 10_000,
        "{done} done, {not_done} not, {unknown} unknown"
    );
    assert!(
        not_done > 100,
        "{done} done, {not_done} not, {unknown} unknown"
    );
    assert!(
        unknown > 100,
        "{done} done, {not_done} not, {unknown} unknown"
    );
}

#[test]
fn one_session_is_never_replaced() {
    let mut ended = 0;
    for seed in 0..100 {
        let mut world = World::new(seed);
        world.pipeline = Pipeline::once(TTL, at(0));
        world.pipeline.connected(at(0));
        for _ in 0..1_000 {
            world.step();
        }
        world.settle();
        check(&mut world);
        assert!(world.server.used.len() <= 1, "seed {seed}");
        if world.pipeline.is_over() {
            ended += 1;
            world.submit_next(10);
            assert!(!world.pipeline.has_unsent(), "it is refused at once");
        }
    }
    assert!(ended > 10, "{ended} of 100 sessions ended");
}

#[test]
fn many_requests_share_a_message_and_the_window_is_kept() {
    let mut world = World::new(1);
    world.pipeline.connected(at(0));
    (0..3_000).for_each(|_| world.submit_next(60_000));
    // The session, then as many as a stream on trial gets.
    world.write();
    assert_eq!(world.up.len(), 1);
    world.serve();
    world.read();
    world.write();
    let message = world.up.len();
    assert!(message > 500, "{message} in one message");
    world.write();
    assert_eq!(world.up.len(), 1_024, "the window");
    world.settle();
    assert_eq!(check(&mut world), (3_000, 0, 0));
}

#[test]
fn a_silent_server_is_doubted_and_a_lively_one_is_not() {
    let mut world = World::in_session();
    assert_eq!(
        world.pipeline.wake_at().map(|wake| wake > at(2_000)),
        Some(true),
        "nothing is waited for"
    );
    world.pass(1_000);
    world.submit_next(60_000);
    world.write();
    let doubted = world.pipeline.wake_at().expect("a time");
    assert_eq!(doubted, at(world.millis).after(ANSWER_TIMEOUT_MIN));
    let due = world.pipeline.tick(doubted, &mut Outcomes::new());
    assert!(due.no_answers);
}

#[test]
fn little_is_under_way_where_no_read_and_no_large_command_is() {
    let mut world = World::in_session();
    for _ in 0..30 {
        world.submit_next(60_000);
    }
    world.write();
    assert!(world.pipeline.awaits_little());
    for _ in 0..30 {
        world.submit_next(60_000);
    }
    world.write();
    assert!(!world.pipeline.awaits_little(), "sixty commands");
    world.settle();
    assert!(world.pipeline.awaits_little());
}

#[test]
fn what_an_answer_takes_is_measured_where_no_other_was_awaited() {
    let mut world = World::in_session();
    assert!(
        world.pipeline.take_answer_time().is_some(),
        "of the session"
    );
    world.submit_next(60_000);
    world.write();
    world.pass(300);
    world.submit_next(60_000);
    world.write();
    world.pass(400);
    world.serve();
    world.read();
    let taken = world.pipeline.take_answer_time();
    assert_eq!(taken, Some(Duration::from_millis(700)), "of the first");
    assert_eq!(world.pipeline.take_answer_time(), None);
    world.submit_next(60_000);
    world.write();
    world
        .pipeline
        .disconnected("the line broke", &mut Outcomes::new());
    world.pipeline.connected(at(world.millis));
    world.pass(100);
    world.settle();
    let taken = world.pipeline.take_answer_time();
    assert!(
        taken.is_some_and(|it| it < Duration::from_millis(100)),
        "{taken:?}"
    );
}

#[test]
fn an_idle_session_is_kept_alive_and_closed() {
    let mut world = World::in_session();
    let session = world.session().expect("a session");
    let done = |world: &World| {
        world
            .server
            .state
            .sessions()
            .get(session)
            .map(tenure_alpo::Session::completed)
    };
    assert_eq!(done(&world), Some(1));
    let wake = world.pipeline.wake_at().expect("a time");
    let later = wake.since(at(world.millis));
    assert!(later <= TTL / 3, "a sign of life after {later:?}");
    world.pass(3_400);
    world.settle();
    assert_eq!(done(&world), Some(2));
    let closing = world.pipeline.close(at(world.millis), Reply::Nobody);
    assert!(closing.is_none(), "there is a session");
    world.settle();
    assert_eq!(done(&world), None);
}

#[test]
fn the_end_of_a_session_that_finds_no_room_comes_again() {
    let mut world = World::in_session();
    let session = world.session().expect("a session");
    let closing = world.pipeline.close(at(world.millis), Reply::Nobody);
    assert!(closing.is_none(), "there is a session");
    world.write();
    let request = world.up.pop_front().expect("the end of the session");
    let what = Some(failed(v1::Cause::Busy, 0));
    let number = request.number;
    world.down.push_back(v1::Answer {
        number,
        what,
        owned: false,
    });
    world.read();
    world.write();
    assert!(world.up.is_empty(), "after a pause");
    world.settle();
    assert!(world.server.state.sessions().get(session).is_none());
}

#[test]
fn what_is_refused_for_good_uses_its_serial_up() {
    let mut world = World::new(1);
    world.pipeline.connected(at(0));
    world.submit(Vec::new(), 60_000);
    world.asked.pop().map(|asked| asked.answer);
    world.submit_next(60_000);
    world.settle();
    assert_eq!(check(&mut world), (1, 0, 0));
}

#[test]
fn a_right_that_was_taken_away_since_proves_nothing() {
    for denied in [Denied::Appending, Denied::Everything] {
        let mut world = World::in_session();
        (0..3).for_each(|_| world.submit_next(60_000));
        world.write();
        // The first is done; the answers are lost.
        world.serve();
        world.up.clear();
        world.cut(false);
        world.server.denied = denied;
        world.settle();
        assert_eq!(world.server.log(), [0, 1]);
        assert_eq!(check(&mut world), (1, 0, 3));
    }
}

#[test]
fn what_was_sent_before_its_client_was_turned_away_says_why_it_is_unknown() {
    let mut world = World::in_session();
    world.submit_next(1_000);
    world.write();
    world.cut(false);
    let refusal = Error::Refused {
        cause: v1::Cause::Unauthenticated,
        message: "no server knows its token".into(),
    };
    let mut outcomes = Outcomes::new();
    world.pipeline.disconnected("cut", &mut outcomes);
    world.pipeline.turn_away(&refusal, &mut outcomes);
    assert!(outcomes.is_empty(), "a server may have it");
    world.pipeline.tick(at(world.millis + 1_000), &mut outcomes);
    let [(_, Err(Error::Unknown(why)))] = &outcomes[..] else {
        panic!("expected one that is unknown");
    };
    assert_eq!(why, "no answer in time: no server knows its token");
}

#[test]
fn what_was_denied_each_time_that_it_was_sent_was_not_done() {
    for denied in [Denied::Appending, Denied::Everything] {
        let mut world = World::in_session();
        world.server.denied = denied;
        (0..20).for_each(|_| world.submit_next(60_000));
        world.settle();
        assert_eq!(check(&mut world), (1, 20, 0));
    }
}

#[test]
fn a_leader_that_lacks_what_was_answered_is_left() {
    let mut world = World::new(1);
    world.pipeline.connected(at(0));
    (0..3).for_each(|_| world.submit_next(60_000));
    world.settle();
    world.submit_next(60_000);
    world.write();
    let request = world.up.pop_front().expect("a request");
    let answer = v1::Answer {
        number: request.number,
        what: Some(failed(v1::Cause::OutOfOrder, 2)),
        owned: false,
    };
    let verdict = world
        .pipeline
        .answered(at(world.millis), answer, &mut Outcomes::new());
    assert!(matches!(verdict, Verdict::Leave { .. }), "{verdict:?}");
    world.cut(false);
    world.settle();
    assert_eq!(check(&mut world), (4, 0, 0));
}

#[test]
fn too_much_is_refused_at_once() {
    let mut world = World::new(1);
    let push = |pipeline: &mut Pipeline, bytes: usize| {
        pipeline.push(PendingRequest {
            what: RequestKind::Change(command::Operation::Append(vec![0; bytes].into())),
            deadline: at(1_000),
            reply: Reply::Nobody,
        })
    };
    for _ in 0..63 {
        assert!(push(&mut world.pipeline, 1024 * 1024).is_ok());
    }
    assert!(push(&mut world.pipeline, 1024 * 1024).is_err());
    for _ in 0..WAITING_MAX {
        if push(&mut world.pipeline, 1).is_err() {
            return;
        }
    }
    panic!("there is no limit");
}
