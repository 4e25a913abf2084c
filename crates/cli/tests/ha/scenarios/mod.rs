//! The scenarios of `docs/design/groups.md` §9, each by its name as a test per store. A
//! node that is dropped dies suddenly; one that leaves is told to.

mod contents;
mod deaths;
mod failover;
mod moves;
mod quorum;
mod storm;

use tenure::ha::{Deployment, Manager};

use super::hosts::restarted_agent_resumes_in_time;
use super::town::{Town, soon};
use contents::*;
use deaths::*;
use failover::*;
use moves::*;
use quorum::*;
use storm::random_storm;

/// Each scenario as a test of its own, per store.
macro_rules! on_each_store {
    ($($scenario:ident)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario(super::Town::memory()).await;
            })*
        }

        mod sqlite {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario(super::Town::sqlite()).await;
            })*
        }

        mod cluster {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario(super::Town::cluster()).await;
            })*
        }
    };
}

on_each_store! {
    simple_failover
    quorum_awaited
    quorum_lost_then_regained
    clean_close_no_failover
    failure_in_failover_then_success
    groups_kept_apart
    no_failover_to_a_non_ha_node
    non_ha_workload_not_failed_over
    a_closed_node_takes_no_part
    quorum_counted_per_group
    node_info_that_arrives_late_still_attains_quorum
    random_storm
    the_chosen_node_dies_in_mid_take_over
    partitioned_node_stops_its_work_before_the_chosen_node_starts_it
    two_observers_write_the_same_death
    verdict_from_a_stale_watch_does_not_stand
    a_late_heartbeat_cancels_a_verdict
    drain_never_runs_a_workload_twice
    restarted_node_is_a_new_node
    restarted_agent_resumes_in_time
    undeployed_work_ends_and_its_name_is_free
    undeployed_content_goes
    redeploying_works_while_content_is_collected
}

/// What rests on how a store deletes is tried on one more.
mod postgres {
    use super::Town;

    #[tokio::test]
    async fn undeployed_content_goes() {
        super::undeployed_content_goes(Town::postgres()).await;
    }

    #[tokio::test]
    async fn redeploying_works_while_content_is_collected() {
        super::redeploying_works_while_content_is_collected(Town::postgres()).await;
    }
}

const CONFIG: &[u8] = br#"{"every": "minute"}"#;

async fn deployed(node: &Manager, deployment: Deployment) -> u64 {
    let deployed = soon("deploying", node.deploy(deployment)).await;
    deployed.expect("it is deployed")
}

/// Whether the view of `node` has that workload.
fn has(node: &Manager, workload: &str) -> bool {
    let group_state = node.group_state();
    let view = group_state.borrow().view.clone().expect("it has looked");
    view.workloads.contains_key(workload)
}
