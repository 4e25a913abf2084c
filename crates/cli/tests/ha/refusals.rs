//! Bad input: each gets an answer that says what was expected and found.

use std::sync::Arc;
use std::time::Duration;

use tenure::ha::{
    CONFIG_BYTES_MAX, Deployment, Event, GroupRequestError, Manager, Refusal, StartError, Workload,
};
use tenure::store::{Memory, Store};

use super::town::{Town, heard, soon, work};

fn store() -> Arc<dyn Store> {
    Arc::new(Memory::new())
}

#[tokio::test]
async fn what_cannot_be_a_node_is_not_started() {
    let slash = Manager::builder(store(), "a/b").start();
    let slash = slash.expect_err("a slash").to_string();
    assert!(slash.contains("without a slash"), "{slash}");
    let name = Manager::builder(store(), "alpha").name("").start();
    assert!(matches!(name, Err(StartError::Name { what: "name", .. })));
    let lease = Duration::from_millis(100);
    let times = Manager::builder(store(), "alpha").lease(lease).start();
    assert!(matches!(times, Err(StartError::Config(_))));
}

#[test]
fn a_node_needs_a_runtime_for_its_workloads() {
    let nowhere = Manager::builder(store(), "alpha").start();
    assert!(matches!(nowhere, Err(StartError::Runtime)));
}

#[tokio::test]
async fn a_quorum_that_differs_is_refused() {
    let town = Town::memory();
    let a = town.voter("a", 1).await;
    let stranger = town.builder(town.store().await, "alpha", "b").quorum(3);
    let stranger = stranger.start().expect("a node");
    let mut events = stranger.events();
    let refusal = Refusal::Quorum { ours: 3, theirs: 1 };
    let excluded = Event::Excluded { why: refusal };
    heard(&mut events, |event| *event == excluded).await;
    soon("ending", stranger.stopped()).await;
    let late = stranger.deploy(work("one")).await;
    assert!(matches!(late, Err(GroupRequestError::Stopped)), "{late:?}");
    town.close([a]).await;
}

#[tokio::test]
async fn what_cannot_be_deployed_is_refused_with_a_reason() {
    let town = Town::memory();
    let a = town.node("a").await;
    let unknown = a.deploy(Deployment::new("one", "worc")).await;
    let unknown = unknown.expect_err("nobody can make it").to_string();
    assert!(unknown.contains("(work), found worc"), "{unknown}");
    let long = work("one").config(vec![b' '; CONFIG_BYTES_MAX + 1]);
    let long = a.deploy(long).await;
    assert!(
        matches!(long, Err(GroupRequestError::ConfigTooLong { .. })),
        "{long:?}"
    );
    let unnamed = a.deploy(work("")).await;
    assert!(matches!(
        unnamed,
        Err(GroupRequestError::Name {
            what: "workload",
            ..
        })
    ));
    let none = a.deploy(work("one").instances(0)).await;
    assert!(matches!(
        none,
        Err(GroupRequestError::Refused(Refusal::OutOfRange(_)))
    ));
    let unfit = a.deploy(work("one").needs("zone=moon")).await;
    assert!(
        matches!(unfit, Err(GroupRequestError::Refused(Refusal::Unfit(..)))),
        "{unfit:?}"
    );
    a.deploy(work("one").config(vec![b' '; CONFIG_BYTES_MAX]))
        .await
        .expect("it fits");
    let twice = a.deploy(work("one")).await;
    assert!(
        matches!(twice, Err(GroupRequestError::Refused(Refusal::Exists(_)))),
        "{twice:?}"
    );
    let absent = a.undeploy("two").await;
    assert!(matches!(
        absent,
        Err(GroupRequestError::Refused(Refusal::NoWorkload(_)))
    ));
    town.close([a]).await;
}

/// One that makes a mistake when it is started, one that never stops.
struct Panics;
struct Hangs;

impl Workload for Panics {
    async fn deploy(&mut self, _: &tenure::ha::RunHandle) -> Result<(), tenure::error::Cause> {
        panic!("a mistake in a workload");
    }

    async fn undeploy(&mut self) {}
}

impl Workload for Hangs {
    async fn deploy(&mut self, _: &tenure::ha::RunHandle) -> Result<(), tenure::error::Cause> {
        Ok(())
    }

    async fn undeploy(&mut self) {
        std::future::pending::<()>().await;
    }
}

#[tokio::test]
async fn a_workload_that_panics_is_told_and_one_that_hangs_is_killed() {
    let town = Town::memory();
    let a = town.builder(town.store().await, "alpha", "a");
    let a = a.workload("panics", || Panics).workload("hangs", || Hangs);
    let a = a.start().expect("a node");
    let mut events = a.events();
    let hangs = soon("deploying", a.deploy(Deployment::new("hangs", "hangs"))).await;
    hangs.expect("it runs");
    soon("undeploying", a.undeploy("hangs"))
        .await
        .expect("it is killed after its grace");
    tokio::select! {
        deployed = a.deploy(Deployment::new("panics", "panics")) => {
            panic!("it cannot run: {deployed:?}")
        }
        _ = heard(&mut events, |event| {
            matches!(event, Event::StartFailed { why, .. } if why.contains("panicked"))
        }) => {}
    }
    town.close([a]).await;
}
