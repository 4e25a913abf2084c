//! Nodes whose workloads live outside: they are begun once, they outlive a
//! manager that is restarted in time, and they end with one that is not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tenure::clock;
use tenure::core::election::Grant;
use tenure::ha::{
    Builder, Event, Host, Job, Manager, NodeId, Phase, Report, ResumeState, Run, Start,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::town::{Town, heard, joined, soon, work};

/// What stands beside the manager and outlives it.
#[derive(Default)]
struct Yard {
    runs: BTreeMap<Run, Start>,
    begun: usize,
    grant: Option<Grant>,
}

type Outside = Arc<Mutex<Yard>>;

struct Hand {
    yard: Outside,
    send: UnboundedSender<Report>,
    reports: UnboundedReceiver<Report>,
}

impl Hand {
    fn new(yard: &Outside) -> Self {
        let (send, reports) = unbounded_channel();
        let yard = Arc::clone(yard);
        Self {
            yard,
            send,
            reports,
        }
    }

    fn yard(&self) -> MutexGuard<'_, Yard> {
        self.yard.lock().expect("nobody panics here")
    }

    fn end(&self, run: Run) {
        if self.yard().runs.remove(&run).is_some() {
            let ended = Report::Ended { run, failed: None };
            self.send.send(ended).expect("the receiver is here");
        }
    }
}

impl Host for Hand {
    fn begin(&mut self, start: Start) {
        let run = start.run;
        let mut yard = self.yard();
        yard.begun += 1;
        yard.runs.insert(run, start);
        drop(yard);
        let started = Report::Started(run);
        self.send.send(started).expect("the receiver is here");
    }

    fn extend(&mut self, _: NodeId, grant: Grant) {
        self.yard().grant = Some(grant);
    }

    fn stop(&mut self, run: Run) {
        self.end(run);
    }

    fn kill(&mut self, run: Run) {
        self.end(run);
    }

    async fn next(&mut self) -> Report {
        self.reports.recv().await.expect("the sender is here")
    }
}

async fn hosted(town: &Town, name: &str, yard: &Outside) -> Builder {
    let builder = town.builder(town.store().await, "alpha", name);
    builder.host("work", Hand::new(yard))
}

/// What a restarted agent would find.
fn past(id: NodeId, yard: &Outside) -> ResumeState {
    let yard = yard.lock().expect("nobody panics here");
    let job = |start: &Start| {
        let job = Job {
            run: start.run,
            digest: start.digest.clone(),
            instances: start.instances,
            fence: start.fence,
            phase: Phase::Running,
        };
        (start.name.clone(), job)
    };
    ResumeState {
        id,
        grant: yard.grant.expect("a beat was told"),
        jobs: yard.runs.values().map(job).collect(),
    }
}

#[tokio::test]
async fn a_host_runs_what_the_node_is_given() {
    let (town, yard) = (Town::memory(), Outside::default());
    let node = joined(hosted(&town, "one", &yard).await).await;
    let fence = soon(
        "deploying",
        node.deploy(work("w").config("{}").instances(3)),
    )
    .await;
    let fence = fence.expect("it runs");
    {
        let yard = yard.lock().expect("nobody panics here");
        let start = yard.runs.values().next().expect("it runs");
        assert_eq!((start.fence, start.instances), (fence, 3));
        assert_eq!(&*start.config, b"{}");
        assert!(yard.grant.is_some(), "no beat was passed on");
    }
    let undeployed = soon("undeploying", node.undeploy("w")).await;
    undeployed.expect("it is gone");
    assert!(yard.lock().expect("fine").runs.is_empty());
    town.close([node]).await;
}

/// Waits until `other` has judged nobody for longer than a lease: until its
/// own beats have gone on for that long.
async fn outlasts_a_lease(other: &Manager) {
    let until = clock::boot().after(other.config().lease * 3 / 2);
    let mut events = other.events();
    while clock::boot() < until {
        let left = until.since(clock::boot());
        let Ok(event) = tokio::time::timeout(left, events.next()).await else {
            return;
        };
        assert!(!matches!(event, Some(Event::NodeDied { .. })), "{event:?}");
    }
}

/// One of the scenarios, so it is tried on each store.
pub(crate) async fn restarted_agent_resumes_in_time(town: Town) {
    let yard = Outside::default();
    let first = joined(hosted(&town, "one", &yard).await).await;
    let other = town.node("two").await;
    let deployed = soon("deploying", first.deploy(work("w"))).await;
    let (fence, id) = (deployed.expect("it runs"), first.id());
    drop(first);
    let builder = hosted(&town, "one", &yard).await.resume(past(id, &yard));
    let again = joined(builder).await;
    assert_eq!(again.id(), id, "it goes on under its old id");
    outlasts_a_lease(&other).await;
    assert_eq!(again.id(), id);
    let runs: Vec<u64> = again.running().values().copied().collect();
    assert_eq!(runs, [fence], "what ran runs on");
    assert_eq!(yard.lock().expect("fine").begun, 1, "it was begun once");
    // What was adopted can be stopped like anything else.
    let undeployed = soon("undeploying", again.undeploy("w")).await;
    undeployed.expect("it is gone");
    assert!(yard.lock().expect("fine").runs.is_empty());
    town.close([again, other]).await;
}

#[tokio::test]
async fn a_restart_that_is_too_late_ends_everything() {
    let (town, yard) = (Town::memory(), Outside::default());
    let first = joined(hosted(&town, "one", &yard).await).await;
    let deployed = soon("deploying", first.deploy(work("w"))).await;
    let (fence, id) = (deployed.expect("it runs"), first.id());
    drop(first);
    let mut past = past(id, &yard);
    past.grant.drain_at = clock::boot();
    past.grant.kill_at = clock::boot();
    let again = hosted(&town, "one", &yard).await.resume(past);
    let again = again.start().expect("a node");
    let mut events = again.events();
    heard(&mut events, |event| matches!(event, Event::Joined { .. })).await;
    assert_ne!(again.id(), id, "nothing is adopted across ids");
    // It inherits from itself, under another id, and starts it anew.
    heard(&mut events, |event| matches!(event, Event::Deployed { .. })).await;
    assert!(again.running().values().all(|it| *it > fence));
    assert_eq!(yard.lock().expect("fine").begun, 2);
    town.close([again]).await;
}
