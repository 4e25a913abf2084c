//! Undeploys a workload that has completed. Its own node does that, because no
//! other node knows that it has completed.
//!
//! Until the view says so, another node could start the workload once more. A
//! request that went into a swap of unknown outcome is refused when the node is
//! fenced. Only the view tells whether that swap took effect. So the request is
//! repeated under the next id, unless it is no longer needed.

use std::sync::Arc;

use tenure::ha::{GroupRequestError, Manager, Refusal};

use super::shim_discovery::CompletedWorkload;

/// Has a completed workload undeployed. If the node is fenced before the view
/// says so, the request is repeated at once. So it goes into the first view that
/// the node writes under its next id, before its former id is judged. Otherwise
/// another node would run the workload once more.
pub(super) async fn undeploy_completed(
    manager: Arc<Manager>,
    CompletedWorkload { name, digest }: CompletedWorkload,
) {
    let mut group_state = manager.group_state();
    let asking = async {
        loop {
            let (id, view) = match group_state
                .wait_for(|group_state| group_state.view.is_some())
                .await
            {
                Ok(seen) => (seen.id, seen.view.clone()),
                Err(_) => return,
            };
            let there = view.and_then(|view| Some(view.workloads.get(&name)?.digest == digest));
            if there != Some(true) {
                // It was undeployed, and perhaps another one was deployed.
                return;
            }
            match manager.undeploy(name.as_str()).await {
                Ok(()) => return,
                Err(GroupRequestError::Refused(Refusal::Leaving)) => {}
                Err(error) => return tracing::warn!("{name}: {error}"),
            }
            // A node that really leaves keeps its id until it has stopped.
            let _ = group_state
                .wait_for(|group_state| group_state.id != id)
                .await;
        }
    };
    tokio::select! {
        () = asking => {}
        () = manager.stopped() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use tenure::StoreError;
    use tenure::error::Cause;
    use tenure::ha::{Deployment, RunHandle, Workload};
    use tenure::store::{Memory, Store, Write};

    use super::*;
    use crate::intercepted::{Intercepted, Interceptor};

    /// Cuts a store off. Then no call takes effect, and the caller cannot know
    /// that.
    #[derive(Debug, Default)]
    struct Cut {
        cut: AtomicBool,
        /// Swaps of the view that came to nothing.
        lost: AtomicU64,
    }

    impl Interceptor for Cut {
        fn check(&self, write: Option<&Write>) -> Result<(), StoreError> {
            if !self.cut.load(Ordering::SeqCst) {
                return Ok(());
            }
            if write.is_some_and(|write| write.key.as_str().ends_with("/view")) {
                self.lost.fetch_add(1, Ordering::SeqCst);
            }
            Err(StoreError::unknown("the line is cut"))
        }
    }

    struct Job;

    impl Workload for Job {
        async fn deploy(&mut self, _: &RunHandle) -> Result<(), Cause> {
            Ok(())
        }

        async fn undeploy(&mut self) {}
    }

    async fn within_limit<T>(what: &str, it: impl Future<Output = T>) -> T {
        let ended = tokio::time::timeout(Duration::from_secs(20), it).await;
        ended.unwrap_or_else(|_| panic!("{what} takes too long"))
    }

    /// Otherwise it would stay deployed, and run again.
    #[tokio::test]
    async fn a_request_that_was_lost_with_its_id_is_made_again() {
        let line = Intercepted::new(Arc::new(Memory::new()), Cut::default());
        let manager = Manager::builder(Arc::clone(&line) as Arc<dyn Store>, "town")
            .name("one")
            .lease(Duration::from_secs(2))
            .grace(Duration::from_millis(50))
            .workload("job", || Job)
            .start();
        let manager = Arc::new(manager.expect("a node"));
        let deployed = manager.deploy(Deployment::new("job", "job"));
        within_limit("deploying", deployed).await.expect("it runs");
        let mut group_state = manager.group_state();
        let seen = group_state.borrow_and_update().clone();
        let view = seen.view.expect("it is deployed");
        let (name, job) = view.workloads.iter().next().expect("the job");
        let (name, digest) = (name.clone(), job.digest.clone());
        line.interceptor.cut.store(true, Ordering::SeqCst);
        let undeploying = tokio::spawn(undeploy_completed(
            Arc::clone(&manager),
            CompletedWorkload { name, digest },
        ));
        let another = group_state.wait_for(|group_state| group_state.id != seen.id);
        within_limit("fencing", another).await.expect("it goes on");
        assert!(
            line.interceptor.lost.load(Ordering::SeqCst) > 0,
            "it was not asked for"
        );
        line.interceptor.cut.store(false, Ordering::SeqCst);
        within_limit("retiring", undeploying)
            .await
            .expect("it returns");
        let gone = group_state.wait_for(|group_state| group_state.member).await;
        let view = gone.expect("it goes on").view.clone();
        assert_eq!(view.map(|view| view.workloads.len()), Some(0));
    }
}
