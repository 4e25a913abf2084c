//! What can happen in a world.

use tenure_core::ids::Term;

use crate::simulated_process::{GuardianMessage, ProcessInput};
use crate::simulated_store::StoreCall;
use crate::swarm::FaultRates;

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

/// A kind of mishap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InjectedFault {
    Pause,
    Stall,
    Crash,
    Suspend,
    Reboot,
    Outage,
    Cut,
    Calendar,
    StoreWatch,
    Command,
    LeaderRequest,
    Tear,
    Standstill,
    Hang,
}

impl InjectedFault {
    pub(crate) const ALL: [Self; 14] = [
        Self::Pause,
        Self::Stall,
        Self::Crash,
        Self::Suspend,
        Self::Reboot,
        Self::Outage,
        Self::Cut,
        Self::Calendar,
        Self::StoreWatch,
        Self::Command,
        Self::LeaderRequest,
        Self::Tear,
        Self::Standstill,
        Self::Hang,
    ];

    /// The mean pause between two of them in thousandths of a lease.
    pub(crate) const fn rarity(self, fault_rates: &FaultRates) -> u64 {
        match self {
            Self::Pause => fault_rates.pause,
            Self::Stall => fault_rates.stall,
            Self::Crash => fault_rates.crash,
            Self::Suspend => fault_rates.suspend,
            Self::Reboot => fault_rates.reboot,
            Self::Outage => fault_rates.outage,
            Self::Cut => fault_rates.cut,
            Self::Calendar => fault_rates.calendar,
            Self::StoreWatch => fault_rates.line,
            Self::Command => fault_rates.command,
            Self::LeaderRequest => fault_rates.leader_request,
            Self::Tear => fault_rates.tear,
            Self::Standstill => fault_rates.standstill,
            Self::Hang => fault_rates.hang,
        }
    }
}
