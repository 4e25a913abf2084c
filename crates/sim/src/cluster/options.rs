//! How to run.

#[cfg(feature = "planted-bugs")]
use tenure_alpo::Bug;
use tenure_core::rng::Rng;

/// How to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long faults last, in simulated seconds. What must be right after
    /// takes another 20 or so.
    pub seconds: u64,
    /// How many servers; drawn from the seed if `None`.
    pub servers: Option<usize>,
    /// Kinds of faults that may happen, if the seed wants them.
    pub kinds: Kinds,
    /// How many lines of the trace a violation shows.
    pub trace: usize,
    /// A mistake that every server makes.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<Bug>,
}

impl Default for Options {
    fn default() -> Self {
        let mut kinds = Kinds::default();
        kinds.all().into_iter().for_each(|kind| *kind = true);
        Self {
            seconds: 40,
            servers: None,
            kinds,
            trace: 0,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

impl Options {
    pub(super) fn allow(&self, mut drawn: Kinds) -> Kinds {
        let mut both = self.kinds;
        for (allowed, drawn) in both.all().into_iter().zip(drawn.all()) {
            *allowed &= *drawn;
        }
        both
    }
}

/// The kinds of faults, each of which a run may have or not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kinds {
    /// Servers crash and start again.
    pub crashes: bool,
    /// Servers stop for a while and go on.
    pub pauses: bool,
    /// The network falls apart.
    pub partitions: bool,
    /// Messages are lost, late and doubled.
    pub unruly: bool,
    /// Disks are slow, full, or fail.
    pub disks: bool,
    /// Acknowledged records rot.
    pub rot: bool,
    /// Members come and go.
    pub members: bool,
    /// Leaders are asked to hand over.
    pub transfers: bool,
    /// Servers crash in the middle of elections and are back at once.
    pub snipers: bool,
    /// Connections become slow for a while.
    pub slow_links: bool,
    /// Connections hold messages back for seconds.
    pub delayed_messages: bool,
    /// The network is broken in part for long: a star, a chain, one-way.
    pub lasting_partitions: bool,
    /// Settings change, in turn over the cluster.
    pub settings: bool,
    /// Disks stall, for seconds or for ever.
    pub stalls: bool,
}

impl Kinds {
    pub(super) fn draw(rng: &mut Rng, servers: usize) -> Self {
        Self {
            crashes: rng.chance(70),
            pauses: rng.chance(40),
            partitions: rng.chance(60),
            unruly: rng.chance(70),
            disks: rng.chance(30),
            rot: rng.chance(20),
            members: servers > 1 && rng.chance(35),
            transfers: rng.chance(30),
            snipers: rng.chance(40),
            slow_links: rng.chance(40),
            delayed_messages: rng.chance(50),
            lasting_partitions: servers > 2 && rng.chance(35),
            // Drawn elsewhere, see `settings_rollout`.
            settings: false,
            stalls: false,
        }
    }

    /// Every kind.
    pub(super) const fn all(&mut self) -> [&mut bool; 14] {
        [
            &mut self.crashes,
            &mut self.pauses,
            &mut self.partitions,
            &mut self.unruly,
            &mut self.disks,
            &mut self.rot,
            &mut self.members,
            &mut self.transfers,
            &mut self.snipers,
            &mut self.slow_links,
            &mut self.delayed_messages,
            &mut self.lasting_partitions,
            &mut self.settings,
            &mut self.stalls,
        ]
    }
}
