//! The settings of a node of a group, and the arithmetic that must hold for them.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use tenure_core::ids::{Name, NameError};
use tenure_core::time::{Drift, Instant};
use tenure_election::Grant;

use super::view::{LABELS_MAX, Member, SERIALS};
use super::{Bug, NodeId, Plant};

/// What a node is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Which group it is part of.
    pub group: Name,
    /// Its name for people; by custom the host name.
    pub name: Name,
    /// Whether it counts for the quorum and may take over.
    pub ha: bool,
    /// How many HA nodes the group needs before any HA workload runs. Every
    /// HA node of a group must be told the same.
    pub quorum: u32,
    /// Whether the load of a dead node is spread over all survivors, not on one.
    /// Every HA node of a group must be told the same.
    pub spread: bool,
    /// Its labels, such as `zone=a`; at most [`LABELS_MAX`].
    pub labels: Vec<Name>,
    /// The most workloads it takes over.
    pub max: Option<u32>,
    /// How long it may be silent.
    pub lease: Duration,
    /// How often it writes its heartbeat.
    pub interval: Duration,
    /// How long workloads get to stop.
    pub grace: Duration,
    /// How long before the end of validity whatever still runs is killed.
    pub kill_margin: Duration,
    /// How long content that no workload needs must have been as it is before
    /// it is deleted; by default as long as the lease.
    pub keep: Duration,
    /// The bound on clock rates.
    pub drift: Drift,
    /// A mistake to make on purpose.
    pub plant: Plant,
}

impl Config {
    /// The group of a node that names none.
    pub const DEFAULT_GROUP: &'static str = "__DEFAULT__";

    /// An HA node with the default times and no need of a quorum.
    pub fn new(group: Name, name: Name) -> Self {
        let usual = tenure_election::Config::new(group.clone(), name.clone());
        Self {
            group,
            name,
            ha: true,
            quorum: 0,
            spread: false,
            labels: Vec::new(),
            max: None,
            lease: usual.lease,
            interval: usual.interval,
            grace: usual.grace,
            kill_margin: usual.kill_margin,
            keep: usual.lease,
            drift: usual.drift,
            plant: Plant::NONE,
        }
    }

    /// Sets the lease, and what follows from it by default.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        let usual = self.times().with_lease(lease);
        self.lease = usual.lease;
        self.interval = usual.interval;
        self.grace = usual.grace;
        self.kill_margin = usual.kill_margin;
        self.keep = usual.lease;
        self
    }

    /// Checks every relation between the fields.
    ///
    /// # Errors
    /// The first one that does not hold, with the arithmetic.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let Some((at, _)) = self.group.as_str().char_indices().find(|(_, c)| *c == '/') {
            return Err(ConfigError::Slash { at });
        }
        let labels = self.labels.len();
        if labels > LABELS_MAX {
            return Err(ConfigError::Labels { found: labels });
        }
        self.times().validate().map_err(ConfigError::Times)
    }

    /// The times, as a candidate with the same ones has them.
    fn times(&self) -> tenure_election::Config {
        let mut times = tenure_election::Config::new(self.group.clone(), self.name.clone());
        times.lease = self.lease;
        times.interval = self.interval;
        times.grace = self.grace;
        times.kill_margin = self.kill_margin;
        times.drift = self.drift_bound();
        times
    }

    /// The grant of a heartbeat sent at `start`.
    pub(super) fn grant(&self, start: Instant) -> Grant {
        Grant::new(start, &self.times())
    }

    /// The drift bound that is really applied.
    pub(super) fn drift_bound(&self) -> Drift {
        if self.plant.is(Bug::DriftForgotten) {
            Drift::NONE
        } else {
            self.drift
        }
    }

    /// The node as a member of its group.
    pub(super) fn member(&self, id: NodeId) -> Member {
        let mut labels = self.labels.clone();
        labels.sort();
        labels.dedup();
        Member {
            id,
            name: self.name.clone(),
            ha: self.ha,
            draining: false,
            lease: millis_up(self.lease),
            max: self.max,
            serial: SERIALS,
            labels,
        }
    }
}

/// Rounded up to what a view can say, so that no node that judges waits less.
fn millis_up(lease: Duration) -> Duration {
    let millis = lease.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// A relation between the fields of a [`Config`] that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The name of the group has a slash.
    Slash {
        /// Where, in bytes from the start.
        at: usize,
    },
    /// A name is no name.
    Name(NameError),
    /// Too many labels.
    Labels {
        /// How many.
        found: usize,
    },
    /// The times contradict each other.
    Times(tenure_election::ConfigError),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slash { at } => write!(
                f,
                "expected the name of a group without a slash, found one at byte {at}; use \
                 another sign, such as a dot"
            ),
            Self::Name(error) => error.fmt(f),
            Self::Labels { found } => {
                write!(f, "expected at most {LABELS_MAX} labels, found {found}")
            }
            Self::Times(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ConfigError {}
