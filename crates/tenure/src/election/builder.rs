//! Preparing to stand. [`Election::builder`] is here, so that this file takes
//! the election, and the election takes nothing from here.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{Key, Name, NameError, Term};
use tenure_core::rng::Rng;
use tenure_core::time::Drift;
use tenure_election::{Config, ConfigError, Expiry, Priority};
use tenure_runtime::host_name;

use super::Election;
use super::observe::expiry_of;
use crate::store::Store;

/// What a candidate is told before it stands. Every setting has a default;
/// nothing is checked before [`start`](Self::start).
#[derive(Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct Builder {
    store: Arc<dyn Store>,
    election: String,
    name: Option<String>,
    addresses: Vec<String>,
    params: Vec<u8>,
    lease: Duration,
    interval: Option<Duration>,
    grace: Option<Duration>,
    kill_margin: Option<Duration>,
    drift: Drift,
    priority: Priority,
    max_clock_skew: Option<Duration>,
    affinity: Vec<String>,
    require_work_confirmation: bool,
    floor: Term,
}

/// Why an election could not be started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A name is not one.
    #[error("{what}: {source}")]
    Name {
        /// Which.
        what: &'static str,
        /// Why.
        source: NameError,
    },
    /// A relation between the times does not hold.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Other programs would lead before the candidate stops.
    #[error(
        "expected a lease of at most {most:?}, after which other programs take elections of this \
         store over, found {found:?}; shorten the lease, or tell the store after how long they do"
    )]
    LeaseOfStore {
        /// The longest that the store allows.
        most: Duration,
        /// The lease.
        found: Duration,
    },
    /// The operating system gives no random numbers, and a leader id that is
    /// not unique is worth nothing.
    #[error("no random numbers from the operating system: {0}")]
    Entropy(String),
}

impl Election {
    /// Prepares to stand in the election of this name, in `store`.
    pub fn builder(store: Arc<dyn Store>, election: impl Into<String>) -> Builder {
        Builder::new(store, election.into())
    }
}

impl Builder {
    pub(super) fn new(store: Arc<dyn Store>, election: String) -> Self {
        let most = store.max_lease().unwrap_or(Config::LEASE);
        Self {
            store,
            election,
            name: None,
            addresses: Vec::new(),
            params: Vec::new(),
            lease: Config::LEASE.min(most),
            interval: None,
            grace: None,
            kill_margin: None,
            drift: Drift::DEFAULT,
            priority: Priority::HIGHEST,
            max_clock_skew: None,
            affinity: Vec::new(),
            require_work_confirmation: false,
            floor: Term::ZERO,
        }
    }

    /// The candidate's name for people; by default the host name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Adds an address where clients connect while it leads.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Opaque bytes for clients, e.g. a gRPC service config.
    pub fn params(mut self, params: impl Into<Vec<u8>>) -> Self {
        self.params = params.into();
        self
    }

    /// How long a grant lasts without renewal; 10 s by default. Interval,
    /// grace and kill margin follow from it unless they are set.
    ///
    /// The shortest that is possible with these defaults is 863 ms. Work must have two
    /// intervals (40 % of the lease) before it begins to stop, then the grace (30 %) and
    /// the kill margin (250 ms), all within the 99 % of the lease that the drift leaves:
    /// 29 % of the lease must be 250 ms. A shorter lease needs a shorter
    /// [`kill_margin`](Self::kill_margin).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often to renew; a fifth of the lease by default.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// How long work gets to stop; three tenths of the lease by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// How long before the end of validity whatever still runs is killed; by
    /// default the larger of 250 ms and 2 % of the lease.
    pub fn kill_margin(mut self, margin: Duration) -> Self {
        self.kill_margin = Some(margin);
        self
    }

    /// The bound on how far the rate of any clock may be off; 1 % by default.
    pub fn drift(mut self, drift: Drift) -> Self {
        self.drift = drift;
        self
    }

    /// How soon to race when the election becomes vacant.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Judge grants by the calendar, assuming that calendars differ by at
    /// most this ([`Expiry::BoundedSkew`]). By default the store decides
    /// ([`natural_expiry`](super::natural_expiry)). Where the store has a bound of
    /// its own ([`Store::max_clock_skew`]) the larger of the two counts.
    pub fn max_clock_skew(mut self, skew: Duration) -> Self {
        self.max_clock_skew = Some(skew);
        self
    }

    /// Stand only while this other election is led by a candidate of the
    /// same name. Called again, it adds one: then each of them must be.
    pub fn affinity(mut self, election: impl Into<String>) -> Self {
        self.affinity.push(election.into());
        self
    }

    /// Send no renewal until the application has confirmed, by
    /// [`Leadership::confirm_work`](super::Leadership::confirm_work), that the work obeys
    /// the deadlines of the last grant. For work that runs
    /// in another process, whose deadlines have to be told to it: a candidate
    /// that cannot reach it then loses the leadership to one that can.
    pub fn require_work_confirmation(mut self) -> Self {
        self.require_work_confirmation = true;
        self
    }

    /// Lead above this term only, as if it had been seen in the register: for
    /// a program that keeps the last term itself, and for one that knows of a
    /// backup which is older than that. The same as a term that the candidate
    /// remembers (`docs/design/election.md`, clause 4.14): it asks a leader in a
    /// lower term to hand over.
    pub fn floor(mut self, term: Term) -> Self {
        self.floor = term;
        self
    }

    /// What the candidate would stand with.
    ///
    /// # Errors
    /// The first thing that is wrong, with what was expected and found.
    pub fn config(&self) -> Result<Config, StartError> {
        let name = named("name", &self.name.clone().unwrap_or_else(host_name))?;
        let mut config =
            Config::new(named("election", &self.election)?, name).with_lease(self.lease);
        for address in &self.addresses {
            config.addresses.push(named("address", address)?);
        }
        config.params = self.params.as_slice().into();
        config.interval = self.interval.unwrap_or(config.interval);
        config.grace = self.grace.unwrap_or(config.grace);
        config.kill_margin = self.kill_margin.unwrap_or(config.kill_margin);
        config.drift = self.drift;
        config.require_work_confirmation = self.require_work_confirmation;
        config.priority = self.priority;
        config.expiry = match (expiry_of(self.store.as_ref()), self.max_clock_skew) {
            // What the store says was told to the others.
            (Expiry::BoundedSkew(skew), other) => {
                Expiry::BoundedSkew(other.unwrap_or_default().max(skew))
            }
            (_, Some(skew)) => Expiry::BoundedSkew(skew),
            (natural, None) => natural,
        };
        for election in &self.affinity {
            config.affinity.push(named("affinity", election)?);
        }
        let key = Key::of_election(&config.election);
        config.by_session = self.store.hold(&key, config.lease).is_some();
        config.validate()?;
        match self.store.max_lease() {
            Some(most) if config.lease > most => Err(StartError::LeaseOfStore {
                most,
                found: config.lease,
            }),
            _ => Ok(config),
        }
    }

    /// Begins to stand.
    ///
    /// # Errors
    /// The first thing that is wrong, with what was expected and found.
    /// Trouble with the store is no error here: it is an event, and the
    /// campaign goes on.
    pub fn start(self) -> Result<Election, StartError> {
        let config = self.config()?;
        let rng = entropy().map_err(StartError::Entropy)?;
        Ok(Election::start(config, self.floor, self.store, rng))
    }
}

fn named(what: &'static str, text: &str) -> Result<Name, StartError> {
    Name::new(text).map_err(|source| StartError::Name { what, source })
}

/// A generator that nobody else has the like of.
///
/// # Errors
/// What the operating system says, if it gives no random numbers.
pub(crate) fn entropy() -> Result<Rng, String> {
    let mut seed = [0; 4];
    for word in &mut seed {
        *word = getrandom::u64().map_err(|error| error.to_string())?;
    }
    Ok(Rng::from_entropy(seed))
}
