//! What can happen in a world.

use tenure_core::ids::Term;

use crate::simulated_process::{GuardianMessage, ProcessInput};
use crate::simulated_store::StoreCall;
use crate::swarm::InjectedFault;

/// What can happen.
#[derive(Clone, Debug)]
pub(crate) enum SimEvent {
    ProcessInput {
        p: usize,
        life: u32,
        mail: ProcessInput,
    },
    Timer {
        p: usize,
        life: u32,
        number: u64,
    },
    Arrive(Box<StoreCall>),
    /// A deadline that an application knows of has just passed.
    Look {
        p: usize,
        life: u32,
    },
    /// A guardian's timer.
    Kill {
        p: usize,
        term: Term,
    },
    WorkEnds {
        p: usize,
        term: Term,
    },
    RequestDue {
        election: usize,
        term: Term,
    },
    InjectedFault(InjectedFault),
    Resume {
        p: usize,
        life: u32,
    },
    Restart {
        p: usize,
        life: u32,
    },
    Wake {
        node: usize,
        boot: u64,
    },
    LineUp {
        index: usize,
    },
    /// A session may be over.
    SessionDue {
        session: usize,
    },
    /// What was bound to a session is given up.
    Release {
        p: usize,
        life: u32,
        session: usize,
    },
    /// Other elections of a process keep their session alive.
    Neighbours {
        p: usize,
        life: u32,
    },
    /// The task of guarded work is woken.
    Step {
        p: usize,
        life: u32,
        term: Term,
    },
    /// Something reaches the guardian of work that confirms.
    Guardian {
        p: usize,
        life: u32,
        what: GuardianMessage,
    },
    /// The copies of the store become one again.
    Join,
    Heal,
    Settled,
    Stable,
    Examined,
}
