//! Standing in an election, leading, and seeing who leads.
//!
//! An [`Election`] is this process's stand in one election. It campaigns for as
//! long as it lives; whenever it leads, [`Election::elected`] yields a
//! [`Leadership`]. It proves that this process leads:
//! [`is_valid`](LeadershipView::is_valid) compares a clock, so it tells the
//! truth even if the runtime was starved or the machine slept;
//! [`cancelled`](LeadershipView::cancelled) says when to stop; **dropping it
//! says that the work has ended**.
//!
//! Only then is the election vacated, and only then does the candidate stand
//! again. So the order (stop the work, make the grant invalid, release the
//! election) is kept by ownership, not by discipline.
//!
//! Everything here runs on a thread of its own ([`crate::drive`]) and can be
//! awaited from any executor.
//!
//! Left out on purpose: callbacks (an event stream and a value that drops say
//! the same without deadlocks), and a way to extend a lease by hand.

mod builder;
mod environment;
mod events;
mod fake;
mod leader_request_error;
mod leader_requests;
mod leadership;
mod lease_clock;
mod observe;
mod repair;
mod request_writer;
mod spread;
mod write_times;

use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use builder::entropy;
pub use builder::{Builder, StartError};
pub use events::{EVENTS_MAX, Events};
#[doc(hidden)]
pub use fake::FakeElection;
pub use leader_request_error::LeaderRequestError;
pub use leader_requests::{ask_to_resign, ask_to_transfer};
pub use leadership::{Deposed, Leadership, LeadershipView};
pub use observe::{Look, Observer, leader, leader_confirmed, list, natural_expiry, watch};
pub use repair::{RepairError, forget, forget_abandoned, repair};
use tenure_core::ids::{Fence, Key, Name, Term};
use tenure_core::rng::Rng;
use tenure_election::Campaign;
pub use tenure_election::{
    Certainty, Command, Config, ConfigError, Event, Expiry, Failure, FailureClass, Grant, Leader,
    Observation, Priority, TermRegression, Why,
};
use tokio::sync::watch as state;
pub use write_times::WriteTimes;

use self::environment::{ElectionEnvironment, Mailbox};
use self::lease_clock::LeaseClock;
use self::spread::Standing;
use self::write_times::WriteTimer;
use crate::clock;
use crate::drive::{self, Flow};
use crate::store::Store;

/// One process's stand in one election. Dropping it resigns, once the
/// [`Leadership`] is dropped too; [`stop`](Self::stop) waits for that.
/// The release itself is `vacate` in `tenure-election` (`campaign/draining.rs`).
///
/// It does not run in a child of `fork()` ([what that means](crate)).
///
/// # A graceful end (`ReleaseOnCancel` of client-go)
///
/// ```no_run
/// # async fn pay_everyone(_: tenure::Fence) {}
/// # async fn terminated() {}
/// # async fn demo(mut election: tenure::Election) {
/// let work = async {
///     while let Some(leadership) = election.elected().await {
///         let _ = leadership.guard(pay_everyone(leadership.fence())).await;
///     }
/// };
/// tokio::select! {
///     () = work => {}
///     () = terminated() => {}
/// }
/// // The work was dropped, and its leadership with it. Another candidate leads
/// // as soon as the register is vacated, and not a lease later.
/// election.stop().await;
/// # }
/// ```
///
/// # Many elections
///
/// All elections of a process share one thread and, of one store, its
/// connections. The first 64 begin to stand at once, and each of the others at a
/// random moment of an interval, so that they are not renewed all at the same moment.
///
/// ```no_run
/// # use std::sync::Arc;
/// # async fn serve(_: usize, _: tenure::Fence) {}
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// let store = tenure::open("sqlite:///var/lib/shards.db").await?;
/// for shard in 0..1_000 {
///     let builder = tenure::Election::builder(Arc::clone(&store), format!("shard-{shard}"));
///     let mut election = builder.start()?;
///     tokio::spawn(async move {
///         while let Some(leadership) = election.elected().await {
///             let _ = leadership.guard(serve(shard, leadership.fence())).await;
///         }
///     });
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Election {
    shared: Arc<Shared>,
    /// The stream of events that was there from the start, until it is taken.
    first: Mutex<Option<Events>>,
    stage: state::Receiver<Stage>,
    /// The term of the leadership handed out last.
    handed_out: Option<Fence>,
}

/// What the driver and the application share.
#[derive(Debug)]
struct Shared {
    config: Config,
    mailbox: Arc<Mailbox>,
    stage: state::Sender<Stage>,
    events: events::EventBroadcaster,
    /// The leadership that waits to be handed out.
    waiting: Mutex<Option<Leadership>>,
    current: Mutex<Option<leadership::Handle>>,
    leader: state::Sender<Option<Observation>>,
    write_timer: Arc<WriteTimer>,
    clock: LeaseClock,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Standing,
    Elected(Fence),
    Stopped,
}

impl Election {
    fn start(config: Config, floor: Term, store: Arc<dyn Store>, mut rng: Rng) -> Self {
        let election = Self::idle(config.clone(), LeaseClock::Boot);
        let driven = Arc::clone(&election.shared);
        // Before anything is asked of the store: a request that this candidate
        // makes for itself finds its name in the list.
        let listed = store.register_candidate(&config.election, &config.name);
        let standing = Standing::new(config.interval, &mut rng);
        drive::background().spawn(async move {
            let _listed = listed;
            let driven = EndGuard(driven);
            standing.turn(&driven.0.mailbox).await;
            let hold = store.hold(&Key::of_election(&config.election), config.lease);
            let campaign = Campaign::above(floor, config, rng, clock::now());
            let keys = campaign.keys().cloned().collect();
            let (mailbox, shared) = (Arc::clone(&driven.0.mailbox), &driven.0);
            let hold = hold.filter(|_| campaign.config().by_session);
            let environment =
                ElectionEnvironment::new(store, keys, mailbox, |event| shared.on_event(event));
            let timer = Arc::clone(&shared.write_timer);
            let environment = environment.holding(hold).timed(timer);
            drive::drive(campaign, environment).await;
        });
        election
    }

    /// What the application holds, with nothing that drives it yet.
    fn idle(config: Config, clock: LeaseClock) -> Self {
        let (stage, stages) = state::channel(Stage::Standing);
        let who = config.election.as_str().to_owned();
        let shared = Arc::new(Shared {
            write_timer: Arc::new(WriteTimer::new(who, config.interval)),
            config,
            mailbox: Arc::default(),
            stage,
            events: events::EventBroadcaster::new(Event::Stopped),
            waiting: Mutex::default(),
            current: Mutex::default(),
            leader: state::Sender::new(None),
            clock,
        });
        let first = Mutex::new(Some(shared.events.subscribe_unclaimed()));
        Self {
            shared,
            first,
            stage: stages,
            handed_out: None,
        }
    }

    /// The configuration it stands with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Waits until this candidate leads and yields the proof; `None`
    /// once the election has been stopped (or, by a mistake in a store or in
    /// here, has panicked). A leadership is yielded once: the next
    /// call waits for the next leadership. Cancelling this loses nothing.
    pub async fn elected(&mut self) -> Option<Leadership> {
        loop {
            match *self.stage.borrow_and_update() {
                Stage::Stopped => return None,
                Stage::Elected(fence) if self.handed_out != Some(fence) => {
                    self.handed_out = Some(fence);
                    if let Some(leadership) = self.shared.take_waiting() {
                        return Some(leadership);
                    }
                }
                Stage::Elected(_) | Stage::Standing => {}
            }
            if self.stage.changed().await.is_err() {
                return None;
            }
        }
    }

    /// Everything that happens, in order. See [`Events`]. The first stream
    /// that is asked for begins with the election, so that nothing is lost
    /// between starting and listening (the latest 32 events are kept until then);
    /// others begin now.
    pub fn events(&self) -> Events {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let first = first.take().map(Events::claimed);
        first.unwrap_or_else(|| self.shared.events.subscribe())
    }

    /// Who leads, as this candidate sees it; `None` before the first look.
    pub fn leader(&self) -> Option<Observation> {
        self.shared.leader.borrow().clone()
    }

    /// How long this candidate's writes of the register took so far.
    pub fn write_times(&self) -> WriteTimes {
        self.shared.write_timer.times()
    }

    /// Gives up the leadership, if it is held, and stands again a little later.
    pub fn resign(&self) {
        self.shared.mailbox.command(Command::Resign);
    }

    /// Gives up the leadership, if it is held, in favour of the candidate of this
    /// name: the others hold back for one and a half intervals, and so does
    /// this one. If nobody of that name comes, anybody may lead then, this
    /// candidate among them, in a new term.
    pub fn transfer(&self, to: Name) {
        self.shared.mailbox.command(Command::Transfer(to));
    }

    /// Gives up the leadership, if it is held, and ends. Returns when the
    /// register has been vacated (or its lease can no longer be saved), which
    /// needs the [`Leadership`] to be dropped: drop it before, or elsewhere.
    pub async fn stop(mut self) {
        self.shared.mailbox.command(Command::Stop);
        let _ = self.stage.wait_for(|stage| *stage == Stage::Stopped).await;
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        self.shared.mailbox.command(Command::Stop);
        drop(self.shared.take_waiting());
    }
}

/// Sees that nobody waits for a campaign that has ended without saying so: by a
/// panic, in a store or in here. A caller that relied on it would rather be
/// told than lead on unrenewed, or wait for ever to be elected.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if *self.0.stage.borrow() == Stage::Stopped {
            return;
        }
        tracing::error!(election = %self.0.config.election, "the campaign has panicked");
        let held = self.0.held();
        if let Some(term) = held {
            let why = Why::Unconfirmed;
            self.0.on_event(Event::Ousted { term, why });
        }
        self.0.on_event(Event::Stopped);
    }
}

impl Shared {
    /// The term in which the election is held.
    fn held(&self) -> Option<Term> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(leadership::Handle::term)
    }

    /// Warns, a lease after a leadership is over, if somebody still holds it. Until
    /// it is dropped the candidate may not stand again: its work may go on.
    fn warn_of_leak(&self, leadership: leadership::Handle) {
        let (election, lease) = (self.config.election.clone(), self.config.lease);
        drive::background().spawn(async move {
            tokio::time::sleep(lease).await;
            if let Some(leak) = leadership.leak() {
                tracing::warn!("{election}: {leak}");
            }
        });
    }

    fn take_waiting(&self) -> Option<Leadership> {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// What an event means for the handles that the application holds. Runs
    /// on the driver's thread and blocks on nothing.
    fn on_event(&self, event: Event) -> Flow {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &event {
            Event::Elected { fence, grant } => {
                let leadership = Leadership::new(
                    *fence,
                    *grant,
                    Arc::clone(&self.mailbox),
                    self.clock.clone(),
                );
                *current = Some(leadership.handle());
                *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(leadership);
                self.stage.send_replace(Stage::Elected(*fence));
            }
            Event::Renewed { grant, .. } => {
                if let Some(leadership) = current.as_ref() {
                    leadership.extend(*grant);
                }
            }
            Event::Draining { why, .. } => {
                if let Some(leadership) = current.as_ref() {
                    leadership.cancel(why.clone());
                }
            }
            Event::Ousted { why, .. } => {
                if let Some(leadership) = current.take() {
                    leadership.revoke(why.clone());
                    self.warn_of_leak(leadership);
                }
                self.stage.send_replace(Stage::Standing);
            }
            Event::LeaderChanged(observation) | Event::LeaderRenewed(observation) => {
                self.leader.send_replace(Some(observation.clone()));
            }
            Event::Stopped => {
                self.stage.send_replace(Stage::Stopped);
            }
            // Of the store and the register, and told only.
            _ => {}
        }
        drop(current);
        let ends = matches!(event, Event::Stopped);
        // A leadership that nobody has picked up has no work to wait for.
        if matches!(event, Event::Draining { .. } | Event::Ousted { .. }) {
            drop(self.take_waiting());
        }
        self.events.send(&event);
        if ends { Flow::End } else { Flow::On }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::ids::LeaderId;

    use super::*;

    #[tokio::test]
    async fn a_campaign_that_panics_takes_its_reign_along() {
        let name = Name::new("payroll").expect("a name");
        let config = Config::new(name.clone(), name);
        let mut election = Election::idle(config.clone(), LeaseClock::Boot);
        let shared = Arc::clone(&election.shared);
        let mut events = election.events();
        let fence = Fence {
            term: Term::new(1).expect("a term"),
            leader: LeaderId::from_u128(1),
        };
        let grant = Grant::new(clock::boot(), &config);
        let (panic, panics) = tokio::sync::oneshot::channel::<()>();
        let campaign = tokio::spawn(async move {
            let driven = EndGuard(shared);
            driven.0.on_event(Event::Elected { fence, grant });
            let _ = panics.await;
            panic!("a mistake");
        });
        let leadership = election.elected().await.expect("a leadership");
        assert!(leadership.is_valid());
        drop(panic);
        assert!(campaign.await.is_err_and(|error| error.is_panic()));
        assert!(!leadership.is_valid());
        assert!(matches!(events.next().await, Some(Event::Elected { .. })));
        assert!(matches!(events.next().await, Some(Event::Ousted { .. })));
        assert_eq!(events.next().await, Some(Event::Stopped));
        assert_eq!(events.next().await, None);
        assert_eq!(election.events().next().await, None);
        assert!(election.elected().await.is_none());
    }
}
