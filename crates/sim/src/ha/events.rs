//! What can happen in a world.

use tenure_group::{Input, Run};

use super::simulated_store::GroupStoreCall;
use super::swarm::GroupFault;

/// What can happen.
#[derive(Debug)]
pub(super) enum GroupEvent {
    Mail {
        p: usize,
        life: u32,
        input: Input,
    },
    Timer {
        p: usize,
        life: u32,
        number: u64,
    },
    Arrive(Box<GroupStoreCall>),
    /// A workload that was told to start runs, or would not.
    Up {
        p: usize,
        run: Run,
        number: u64,
    },
    /// A workload has ended and is reaped.
    Down {
        p: usize,
        run: Run,
        number: u64,
        failed: bool,
    },
    /// A guardian's timer.
    Leash {
        p: usize,
        number: u64,
    },
    GroupFault(GroupFault),
    Resume {
        p: usize,
        life: u32,
    },
    Restart {
        p: usize,
        life: u32,
    },
    LineUp(usize),
    /// A machine is suspended, and its watch has lost its line.
    Nap(usize),
    /// A machine that was suspended goes on.
    Wake(usize),
    /// The copies of the store become one again.
    Join,
    /// The store has kept its promise for a while.
    Mended,
    Request,
    Heal,
    Settled,
    Examined,
    Collected,
}
