//! What a candidate is told, and the arithmetic that must hold.
//!
//! A configuration is plain data with public fields. [`Config::validate`]
//! checks each relation and answers with the numbers filled in, because
//! "invalid lease" at three in the morning does not help.
//!
//! The times of a [`Grant`] follow from the configuration, so [`Grant::new`] is
//! here; what the times mean is in `grant.rs`.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use tenure_core::cas::Bytes;
use tenure_core::ids::Name;
use tenure_core::time::{Drift, Instant};

use super::{Bug, Grant};

/// By which clock a lease is judged to have expired (§3). What to choose follows from
/// what the store offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Expiry {
    /// The store itself vacates the register when the holder's session ends.
    /// Nobody judges by time.
    Session,
    /// A clock that cannot step: the machine's boot-time clock, shared by all
    /// candidates. An expiry found this way is certain.
    SteadyClock,
    /// The register has not been renewed for a lease on the judge's own
    /// clock. This is certain however far clocks differ. A candidate that has just
    /// started waits for a whole lease.
    Silence,
    /// The store's clock, which may step (as HPC Pack HA judges by the clock of its
    /// database). Fast, and unsafe when that clock jumps forward.
    StoreClock,
    /// Wall clocks, with a bound on how far they differ (as vimeo's LeaderElection
    /// judges). Sound only if the bound is true.
    BoundedSkew(Duration),
}

/// How soon a candidate races when an election becomes vacant. Ten races at once;
/// each step below waits another 2 % of the lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Priority(u8);

impl Priority {
    /// Races at once. The default.
    pub const HIGHEST: Self = Self(10);

    /// From 0 (waits longest) to 10; `None` above.
    pub const fn new(priority: u8) -> Option<Self> {
        if priority <= 10 {
            Some(Self(priority))
        } else {
            None
        }
    }

    /// As a number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// How long it holds back under this lease.
    pub fn wait(self, lease: Duration) -> Duration {
        lease / 50 * u32::from(10 - self.0)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::HIGHEST
    }
}

/// What a candidate is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The name of the election.
    pub election: Name,
    /// The candidate's name for people; by custom the host name.
    pub name: Name,
    /// Where clients connect, in order of preference; at most
    /// [`Config::ADDRESSES_MAX`].
    pub addresses: Vec<Name>,
    /// Opaque bytes for clients; at most [`Config::PARAMS_MAX`].
    pub params: Bytes,
    /// How long a grant lasts without renewal.
    pub lease: Duration,
    /// How often it is renewed (`RetryPeriod` of client-go).
    pub interval: Duration,
    /// How long work gets to stop, from `drain_at` to `kill_at`.
    pub grace: Duration,
    /// How long before the end of validity whatever still runs is killed.
    pub kill_margin: Duration,
    /// The bound on clock rates.
    pub drift: Drift,
    /// How soon to race.
    pub priority: Priority,
    /// By which clock a lease is judged to have expired.
    pub expiry: Expiry,
    /// Stand only while each of these other elections is led by a candidate of
    /// the same name; at most [`Config::AFFINITIES_MAX`], each once.
    pub affinity: Vec<Name>,
    /// Hold the election by a session of the store (§4.12) instead of renewing
    /// it: the store binds the register to a session that lives for at least a
    /// lease after each keep-alive, and empties it when that ends.
    pub by_session: bool,
    /// Renew a grant only after the application has confirmed that its work follows it
    /// ([`Input::WorkConfirmed`](super::Input::WorkConfirmed), §4.13): for work that runs
    /// in another process.
    pub require_work_confirmation: bool,
    /// A mistake to make on purpose.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<Bug>,
}

impl Config {
    /// The default lease.
    pub const LEASE: Duration = Duration::from_secs(10);
    /// The most addresses.
    pub const ADDRESSES_MAX: usize = 16;
    /// The most bytes of params.
    pub const PARAMS_MAX: usize = 16 * 1024;
    /// The most elections in an affinity.
    pub const AFFINITIES_MAX: usize = 16;
    /// The longest lease.
    pub const LEASE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

    /// A candidate with the default times.
    pub fn new(election: Name, name: Name) -> Self {
        let config = Self {
            election,
            name,
            addresses: Vec::new(),
            params: Bytes::from([]),
            lease: Self::LEASE,
            interval: Self::LEASE,
            grace: Self::LEASE,
            kill_margin: Self::LEASE,
            drift: Drift::DEFAULT,
            priority: Priority::HIGHEST,
            expiry: Expiry::Silence,
            affinity: Vec::new(),
            by_session: false,
            require_work_confirmation: false,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        };
        config.with_lease(Self::LEASE)
    }

    /// Sets the lease, and what follows from it by default: an interval of a
    /// fifth, a grace of three tenths, and a kill margin of the larger of
    /// 250 ms and 2 %.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.interval = lease / 5;
        self.grace = lease / 10 * 3;
        self.kill_margin = Duration::from_millis(250).max(lease / 50);
        self
    }

    /// Checks every relation between the fields.
    ///
    /// # Errors
    /// The first one that does not hold, with the arithmetic.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let positive = [("lease", self.lease), ("interval", self.interval)];
        for (what, value) in positive {
            if value < Duration::from_millis(1) {
                return Err(ConfigError::TooShort { what, found: value });
            }
        }
        if self.lease > Self::LEASE_MAX {
            return Err(ConfigError::LeaseTooLong { found: self.lease });
        }
        let (addresses, params) = (self.addresses.len(), self.params.len());
        if addresses > Self::ADDRESSES_MAX {
            let most = Self::ADDRESSES_MAX;
            return Err(ConfigError::TooMuch {
                what: "addresses",
                found: addresses,
                most,
            });
        }
        if params > Self::PARAMS_MAX {
            let most = Self::PARAMS_MAX;
            return Err(ConfigError::TooMuch {
                what: "bytes of params",
                found: params,
                most,
            });
        }
        // The rule of HPC Pack HA: T > 2 I.
        if self.lease <= self.interval.saturating_mul(2) {
            return Err(ConfigError::Interval {
                lease: self.lease,
                interval: self.interval,
            });
        }
        // The rule of LeaderElection (vimeo): TermLength >= 2 MaxClockSkew.
        if let Expiry::BoundedSkew(skew) = self.expiry
            && self.lease < skew.saturating_mul(2)
        {
            return Err(ConfigError::Skew {
                lease: self.lease,
                skew,
            });
        }
        self.validate_affinity()?;
        self.validate_drain()
    }

    fn validate_affinity(&self) -> Result<(), ConfigError> {
        let (affinity, found) = (&self.affinity, self.affinity.len());
        if found > Self::AFFINITIES_MAX {
            let most = Self::AFFINITIES_MAX;
            return Err(ConfigError::TooMuch {
                what: "elections in an affinity",
                found,
                most,
            });
        }
        if affinity.contains(&self.election) {
            return Err(ConfigError::Affinity);
        }
        for (number, election) in affinity.iter().enumerate() {
            if affinity.iter().take(number).any(|other| other == election) {
                return Err(ConfigError::AffinityTwice {
                    election: election.clone(),
                });
            }
        }
        Ok(())
    }

    /// `drain_at`, the renew deadline (client-go: `RenewDeadline`), must leave time for two
    /// renewals.
    fn validate_drain(&self) -> Result<(), ConfigError> {
        let start = Instant::ZERO;
        let grant = Grant::new(start, self);
        if grant.drain_at.since(start) >= self.interval * 2 {
            return Ok(());
        }
        Err(ConfigError::Drain {
            lease: self.lease,
            valid: grant.valid_until.since(start),
            kill_margin: self.kill_margin,
            grace: self.grace,
            interval: self.interval,
            drain: grant.drain_at.since(start),
        })
    }

    /// The drift bound that is really applied.
    pub(crate) fn drift_bound(&self) -> Drift {
        if self.planted(Bug::DriftForgotten) {
            Drift::NONE
        } else {
            self.drift
        }
    }

    /// Whether `bug` was planted; the constant `false` in every release.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn planted(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    /// Whether `bug` was planted; the constant `false` in every release.
    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) const fn planted(&self, _: Bug) -> bool {
        false
    }
}

/// A relation between the fields of a [`Config`] that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// A duration below one millisecond.
    TooShort {
        /// Which one.
        what: &'static str,
        /// Its value.
        found: Duration,
    },
    /// A lease above [`Config::LEASE_MAX`].
    LeaseTooLong {
        /// Its value.
        found: Duration,
    },
    /// Too many addresses or bytes of params.
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many are allowed.
        most: usize,
    },
    /// `lease > 2 x interval` does not hold.
    Interval {
        /// The lease.
        lease: Duration,
        /// The interval.
        interval: Duration,
    },
    /// `lease >= 2 x max_clock_skew` does not hold.
    Skew {
        /// The lease.
        lease: Duration,
        /// The bound.
        skew: Duration,
    },
    /// An election with an affinity to itself.
    Affinity,
    /// An election that is named twice in an affinity.
    AffinityTwice {
        /// Which one.
        election: Name,
    },
    /// There is no time left for renewals: `drain_at - start >= 2 x interval`
    /// does not hold.
    Drain {
        /// The lease.
        lease: Duration,
        /// What is left of it after the drift bound.
        valid: Duration,
        /// The kill margin.
        kill_margin: Duration,
        /// The grace.
        grace: Duration,
        /// The interval.
        interval: Duration,
        /// `drain_at - start`.
        drain: Duration,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { what, found } => {
                write!(f, "expected {what} >= 1ms, found {found:?}")
            }
            Self::LeaseTooLong { found } => write!(
                f,
                "expected a lease of at most 7 days, found {found:?}: nobody could take over \
                 from the dead for that long"
            ),
            Self::TooMuch { what, found, most } => {
                write!(f, "expected at most {most} {what}, found {found}")
            }
            Self::Interval { lease, interval } => write!(
                f,
                "expected lease > 2 x interval, found {lease:?} <= 2 x {interval:?}: one \
                 failed renewal would let the lease run out; lengthen the lease or shorten the \
                 interval"
            ),
            Self::Skew { lease, skew } => write!(
                f,
                "expected lease >= 2 x max clock skew, found {lease:?} < 2 x {skew:?}: \
                 lengthen the lease, or synchronise the clocks better and state a smaller skew"
            ),
            Self::Affinity => {
                f.write_str("expected an affinity to another election, found one to itself")
            }
            Self::AffinityTwice { election } => write!(
                f,
                "expected each election of an affinity once, found {election} twice"
            ),
            Self::Drain {
                lease,
                valid,
                kill_margin,
                grace,
                interval,
                drain,
            } => write!(
                f,
                "expected room for two renewals before work must stop, found {drain:?} < \
                 2 x interval {interval:?}: work must begin to stop {drain:?} after a renewal, \
                 the earlier of lease {lease:?} - interval {interval:?}, and {valid:?} of \
                 validity (lease less clock drift) - kill margin {kill_margin:?} - grace \
                 {grace:?}; lengthen the lease, or shorten the kill margin, the grace or the \
                 interval"
            ),
        }
    }
}

impl core::error::Error for ConfigError {}

impl Grant {
    /// The grant of a write sent at `start`.
    pub fn new(start: Instant, config: &Config) -> Self {
        let valid_until = start.after(config.drift_bound().shorten(config.lease));
        let kill_at = valid_until.before(config.kill_margin);
        let last_renewal = start.after(config.lease.saturating_sub(config.interval));
        let drain_at = last_renewal.min(kill_at.before(config.grace));
        Self {
            start,
            drain_at,
            kill_at,
            valid_until,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn the_shortest_lease_with_the_defaults_is_863_ms() {
        let name = Name::new("a").expect("a name");
        let usual = Config::new(name.clone(), name);
        let of = |millis| usual.clone().with_lease(Duration::from_millis(millis));
        of(863).validate().expect("room for two renewals");
        let refused = of(862).validate().expect_err("no room").to_string();
        assert!(refused.contains("shorten the kill margin"), "{refused}");
        let kill_margin = Duration::from_millis(100);
        let shorter = Config {
            kill_margin,
            ..of(400)
        };
        shorter.validate().expect("what the error advises");
    }
}
