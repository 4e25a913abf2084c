//! `tenure run`: a command that runs only while this process leads.
//!
//! One loop waits for the election, the guardian and the signals, and keeps
//! one order: stop the command, see that nothing of it is left, drop the
//! leadership. Dropping the leadership is what vacates the election, so no other is
//! elected before the command is gone.
//!
//! The loop runs on the library's background thread, beside the renewals. So
//! there is no state in which one goes on without the other: whatever keeps
//! the loop from its guardian keeps renewals from the store. Nothing in it
//! waits for a reader of our output (`stderr.rs`). And no renewal is sent
//! before the guardian has confirmed the grant of the one before (§4.13), so
//! a guardian that hangs, or a command that does not get started, costs the
//! leadership instead of keeping everybody out of it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tenure::election::{Builder, Event as ElectionEvent, Events, Grant, leader};
use tenure::error::about;
use tenure::store::{LEASE_TRIPS, Store, lease_for};
use tenure::{Election, Leadership, Name, StoreError, drive};

use super::leadership::{Ended, Leading, Outcome, await_reason, was_lost};
use super::observe::name;
use super::trouble::{self, Trouble};
use crate::args::{self, Restart};
use crate::config::{self, File, RunPlan};
use crate::failure::{Failure, store_failure, usage};
use crate::guard::{Guardian, GuardianEvent, SignalRequest, SignalRequests, StartOrder};
use crate::{Context, output, program};

/// The back-off of a command of `tenure run` that ends by itself again and again (a crash
/// loop; that of workloads is in `group/src/reconcile.rs`):
/// the first pause, doubled each time up to [`PAUSE_MAX`], and forgotten once a command has run for [`HEALTHY_AFTER`].
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// The exit code of `--exit-unconfirmed`.
const UNCONFIRMED: u8 = 5;

pub(crate) async fn run(context: &Context, args: &args::Run) -> Result<ExitCode, Failure> {
    let mut signals = SignalRequests::install()?;
    let command = args
        .command
        .first()
        .ok_or_else(|| usage("expected a command after --"))?;
    if command == "--" {
        return Err(usage(
            "expected one -- before the command, found two; leave one out",
        ));
    }
    program::find(command).map_err(|found| usage(found.why))?;
    let election = name(&args.election)?;
    let ready = async {
        let skew = config::max_clock_skew(args, &context.file)?;
        let store = context.open_within(skew).await?;
        if let Some(skew) = store.max_clock_skew() {
            tracing::warn!(
                "{store}: the others judge by the calendar, and so does this candidate: two may \
                 lead where clocks differ by more than {skew:?} (--max-clock-skew); the format \
                 has no room for requests, so `tenure resign` and `transfer` do not work"
            );
        }
        // Wrong settings are told before anything is asked of the store.
        let (builder, _) = config::candidate(args, &context.file, Arc::clone(&store))?;
        let lease = builder
            .config()
            .map_err(|error| usage(error.to_string()))?
            .lease;
        if check_store(&store, &election, context.timeout).await? {
            check_lease(&store, lease, context.timeout).await?;
        }
        Ok::<_, Failure>(store)
    };
    let store = tokio::select! {
        store = ready => store?,
        () = signals.stop() => return Ok(ExitCode::SUCCESS),
    };
    let url = config::store_url(&context.common, &context.file)?;
    let runner = Runner {
        args: args.clone(),
        file: context.file.clone(),
        store,
        url,
        signals,
        stopping: false,
        lost: false,
        trouble: Trouble::default(),
    };
    // Here is nothing but the wait for its end.
    let ended = drive::background().spawn(runner.run()).await;
    ended.map_err(|error| anyhow::anyhow!("the loop of `tenure run` has failed: {error}"))?
}

/// Looks whether the store will do and the register can be read, so that what
/// a person must mend is told at once. A store that is only away may come
/// back: the campaign waits. Whether it is there.
async fn check_store(
    store: &Arc<dyn Store>,
    election: &Name,
    within: Duration,
) -> Result<bool, Failure> {
    let look = || leader(Arc::clone(store), election, within);
    let mut seen = look().await;
    if matches!(seen, Err(StoreError::Broken(_))) {
        // Once proves nothing: perhaps only the answer was damaged.
        seen = look().await;
    }
    match seen {
        Ok(_) => Ok(true),
        Err(error @ StoreError::Broken(_)) => Err(store_failure(error)),
        Err(error) => {
            tracing::warn!("{error}; standing anyway, and waiting for it");
            Ok(false)
        }
    }
}

/// Refuses a lease that could not be renewed from here. Better now, with the
/// lease that would do, than elected and deposed again and again.
async fn check_lease(
    store: &Arc<dyn Store>,
    lease: Duration,
    within: Duration,
) -> Result<(), Failure> {
    let Some(trip) = store.round_trip(within).await else {
        return Ok(());
    };
    if lease >= trip * LEASE_TRIPS {
        return Ok(());
    }
    let advice = lease_for(trip).as_secs();
    Err(usage(format!(
        "expected a lease of at least {LEASE_TRIPS} round trips to the store, found {lease:?}: one \
         takes {} ms from here; give --lease {advice}s, or run nearer to the store",
        trip.as_millis()
    )))
}

struct Runner {
    args: args::Run,
    file: File,
    store: Arc<dyn Store>,
    url: String,
    signals: SignalRequests,
    stopping: bool,
    /// The leadership was lost, and that is to be the end.
    lost: bool,
    trouble: Trouble,
}

impl Runner {
    async fn run(mut self) -> Result<ExitCode, Failure> {
        let mut pause = PAUSE_MIN;
        loop {
            let (builder, plan) = self.candidate()?;
            let Some(ended) = self.stand(builder, plan).await? else {
                return Ok(ExitCode::SUCCESS);
            };
            if self.lost {
                return Ok(ExitCode::from(UNCONFIRMED));
            }
            let code = ended.outcome.code();
            let again = match plan.restart {
                _ if plan.once || self.stopping => false,
                Restart::Always => true,
                Restart::OnFailure => code != 0,
                Restart::Never => false,
            };
            if !again {
                let clean = self.stopping && !plan.once;
                return Ok(ExitCode::from(if clean { 0 } else { code }));
            }
            if ended.ran_for >= HEALTHY_AFTER {
                pause = PAUSE_MIN;
            }
            tracing::info!("{}: standing again in {pause:?}", self.args.election);
            if self.is_stopped_within(pause).await {
                return Ok(ExitCode::SUCCESS);
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn candidate(&self) -> Result<(Builder, RunPlan), Failure> {
        let store = Arc::clone(&self.store);
        let (builder, plan) = config::candidate(&self.args, &self.file, store)?;
        Ok((builder.require_work_confirmation(), plan))
    }

    async fn is_stopped_within(&mut self, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.signals.stop())
            .await
            .is_ok()
    }

    /// Stands until the command has ended by itself (`Some`), or until it is
    /// asked to stop (`None`, or `Some` if the command ran then).
    async fn stand(&mut self, builder: Builder, plan: RunPlan) -> Result<Option<Ended>, Failure> {
        let mut election = builder.start().map_err(|error| usage(error.to_string()))?;
        let mut events = election.events();
        let ended = loop {
            let mut guardian = Guardian::stand_by()?;
            let Some(leadership) = self
                .elected(&mut election, &mut events, &mut guardian)
                .await
            else {
                break None;
            };
            let ended = self
                .leadership(&election, &leadership, &mut events, &mut guardian)
                .await;
            if matches!(ended.outcome, Outcome::Ended(_)) {
                await_reason(&leadership).await;
            }
            self.lost = self.args.exit_unconfirmed
                && !self.stopping
                && was_lost(ended.outcome, &leadership).await;
            self.log_write_times(&election);
            // Nothing of the command is left: now the election may go.
            drop(leadership);
            let ran_once = (plan.once && ended.outcome != Outcome::Late) || self.lost;
            if matches!(ended.outcome, Outcome::ByItself(_)) || self.stopping || ran_once {
                break Some(ended);
            }
        };
        let killed = async { while self.signals.next().await != SignalRequest::Kill {} };
        tokio::select! {
            () = election.stop() => {}
            // The lease then runs out by itself.
            () = killed => return Ok(ended),
        }
        while let Some(event) = events.next().await {
            self.log(&event);
        }
        Ok(ended)
    }

    /// Waits for the election; `None` if it was asked to stop before.
    async fn elected(
        &mut self,
        election: &mut Election,
        events: &mut Events,
        guardian: &mut Guardian,
    ) -> Option<Leadership> {
        loop {
            tokio::select! {
                biased;
                signal = self.signals.next() => if !matches!(signal, SignalRequest::Forward(_)) {
                    self.stopping = true;
                    guardian.kill();
                    while !guardian.event().await.is_last() {}
                    return None;
                },
                Some(event) = events.next() => self.log(&event),
                leadership = election.elected() => return leadership,
                event = guardian.event() => if event != GuardianEvent::Ready {
                    // Killed while standing by: another one.
                    tracing::warn!("the guardian has died; starting another");
                    match Guardian::stand_by() {
                        Ok(another) => *guardian = another,
                        Err(error) => {
                            tracing::error!("cannot start a guardian: {error}");
                            tokio::time::sleep(PAUSE_MIN).await;
                        }
                    }
                }
            }
        }
    }

    /// Runs the command for one leadership, and returns when nothing of it is left.
    async fn leadership(
        &mut self,
        election: &Election,
        leadership: &Leadership,
        events: &mut Events,
        guardian: &mut Guardian,
    ) -> Ended {
        let name = self.args.election.clone();
        let mut leading = Leading::new(&name, election, leadership);
        let mut confirmations = guardian.confirmations();
        if !leading.begin(guardian, self.start(leadership)) {
            return leading.ended();
        }
        loop {
            tokio::select! {
                biased;
                event = guardian.event() => if !leading.handle_guardian_event(event).await {
                    return leading.ended();
                },
                signal = self.signals.next() => {
                    self.stopping |= signal == SignalRequest::Stop;
                    leading.handle_signal(signal, guardian);
                }
                kill_at = confirmations.next() => leading.confirm(kill_at),
                Some(event) = events.next() => {
                    leading.handle_election_event(&event, guardian);
                    self.log(&event);
                    if let ElectionEvent::Ousted { term, .. } = event {
                        // Its end is awaited here, and would have been seen first.
                        tracing::warn!("{name}: ousted in term {term}, and the command still runs; it is killed by its deadline");
                    }
                }
            }
        }
    }

    /// How long heartbeats took so far.
    fn log_write_times(&self, election: &Election) {
        let times = election.write_times();
        if times.count > 0 {
            tracing::info!(
                "{}: {} heartbeats took {} to {}, {} on average; {} took longer than the interval",
                self.args.election,
                times.count,
                about(times.min),
                about(times.max),
                about(times.mean),
                times.late
            );
        }
    }

    fn start(&self, leadership: &Leadership) -> StartOrder {
        let Grant {
            drain_at, kill_at, ..
        } = leadership.grant();
        let fence = leadership.fence();
        let env = [
            ("TENURE_ELECTION", self.args.election.clone()),
            ("TENURE_TERM", fence.term.to_string()),
            ("TENURE_LEADER_ID", fence.leader.to_string()),
            ("TENURE_STORE", self.url.clone()),
        ];
        let env = env.map(|(key, value)| (key.into(), value.into())).to_vec();
        StartOrder {
            drain_at,
            kill_at,
            argv: self.args.command.clone(),
            env,
        }
    }

    /// What matters, for the log: who leads, and why it changed.
    fn log(&mut self, event: &ElectionEvent) {
        let election = &self.args.election;
        match event {
            ElectionEvent::Elected { fence, .. } => {
                self.trouble.remember_term(fence.term);
                tracing::info!("{election}: elected in term {}", fence.term);
            }
            ElectionEvent::Draining { term, why, .. } => {
                tracing::info!("{election}: leaving term {term}: {why}");
            }
            ElectionEvent::Kill { term } => {
                tracing::warn!("{election}: killing what is left of the command of term {term}");
            }
            ElectionEvent::Ousted { term, why } => {
                tracing::info!("{election}: term {term} is over for us: {why}");
            }
            ElectionEvent::LeaderChanged(seen) => {
                self.trouble.remember_term(seen.term);
                tracing::info!("{}", output::describe(election, seen));
            }
            ElectionEvent::TermFell(regression) => {
                trouble::warn_of_regression(election, *regression);
            }
            ElectionEvent::Trouble { failure, in_a_row } => {
                self.trouble.report_failure(election, failure, *in_a_row);
            }
            ElectionEvent::Recovered => self.trouble.report_recovery(election),
            ElectionEvent::Renewed { term, .. } => {
                tracing::debug!("{election}: renewed term {term}");
            }
            _ => {}
        }
    }
}
