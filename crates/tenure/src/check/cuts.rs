//! Writes whose connection is cut in the middle, through a proxy of the check's own.
//!
//! What became of such a write is asked over another connection, which goes past the
//! proxy. If the store said that the write was done it must be there; if it said that
//! it was certainly not done, or that another writer came first, it must not; if it
//! did not know, either may be. Then a write over what was found settles it: from
//! there on the one that was cut can never be carried out.

use std::sync::Arc;
use std::time::Duration;

use super::connection::{Connection, Stop};
use super::finding::{Fault, Finding};
use super::hosts::Hosts;
use super::plan::Plan;
use super::proxy::{Order, Place, Proxy};
use super::report::Outcome;
use super::writer::count_in;
use crate::clock;
use crate::error::StoreError;
use crate::store::{Expect, Key, Version};

/// How many writes are cut.
const ROUNDS: u32 = 24;
/// Of fewer connections that were cut nothing is said: the client is elsewhere.
const CUTS_MIN: u32 = 4;
/// How long a client may take until it has a connection again.
const RECONNECTED_WITHIN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
/// How often a write is settled: one that is carried out late makes it two.
const SETTLING: u32 = 3;

/// What became of the writes that were cut.
#[derive(Default)]
struct Counts {
    done: u32,
    not_done: u32,
    unknown: u32,
}

/// The trial: writes through a proxy, and looks over `direct`.
pub(super) async fn cuts(plan: &Plan, direct: &Connection, key: &Key) -> Result<Outcome, Stop> {
    let hosts = match Hosts::of(&plan.url) {
        Ok(hosts) => hosts,
        Err(why) => return Ok(Outcome::LeftOut(why)),
    };
    let order = Arc::<Order>::default();
    let mut proxies = Vec::new();
    for host in &hosts.hosts {
        match Proxy::start(host.clone(), Arc::clone(&order)).await {
            Ok(proxy) => proxies.push(proxy),
            Err(error) => return Ok(Outcome::NotTried(format!("no proxy: {error}"))),
        }
    }
    let addresses: Vec<_> = proxies.iter().map(Proxy::address).collect();
    let opened = plan.registry.open(&hosts.through(&addresses)).await;
    let meter = Arc::clone(direct.meter());
    let proxied = opened.map(|store| Connection::new(store, meter, plan.within));
    let proxied = match proxied {
        Ok(proxied) => proxied,
        Err(error) => return Ok(left_out(&error)),
    };
    match proxied.read(key).await {
        Ok(_) => {}
        Err(Stop::Failed(error)) => return Ok(left_out(&error)),
        Err(stop) => return Err(stop),
    }
    let trial = Trial {
        direct,
        proxied,
        order: &order,
        key,
    };
    let counts = trial.rounds().await?;
    let cuts = order.cuts();
    if cuts < u64::from(CUTS_MIN) {
        let why = "the client goes past the proxy, to servers that it has learnt of";
        return Ok(Outcome::LeftOut(why.to_owned()));
    }
    Ok(Outcome::Passed(format!(
        "{cuts} connections were cut while they wrote: {} writes had been done, {} had not, and \
         of {} the store had said that it does not know; a read settled each",
        counts.done, counts.not_done, counts.unknown
    )))
}

/// The store does not work behind a proxy.
fn left_out(error: &StoreError) -> Outcome {
    Outcome::LeftOut(format!("it does not answer through a proxy: {error}"))
}

struct Trial<'a> {
    direct: &'a Connection,
    proxied: Connection,
    order: &'a Order,
    key: &'a Key,
}

impl Trial<'_> {
    async fn rounds(&self) -> Result<Counts, Stop> {
        let mut counts = Counts::default();
        let mut version = self.direct.create(self.key, &0_u64.to_be_bytes()).await?;
        for round in 0..ROUNDS {
            self.reconnect().await?;
            let place = if round % 2 == 0 {
                Place::Request
            } else {
                Place::Answer
            };
            // Protocols send a request in several parts.
            self.order.cut(place, round / 2 % 3);
            version = self
                .round(u64::from(round) + 1, version, &mut counts)
                .await?;
            self.order.withdraw();
        }
        Ok(counts)
    }

    /// Waits until there is a connection through the proxy again.
    async fn reconnect(&self) -> Result<(), Stop> {
        let until = clock::boot().after(RECONNECTED_WITHIN);
        loop {
            match self.proxied.read(self.key).await {
                Err(Stop::Failed(StoreError::Unavailable(_))) if clock::boot() < until => {
                    tokio::time::sleep(PAUSE).await;
                }
                read => return read.map(drop),
            }
        }
    }

    /// A write that may be cut, and what became of it; the version after it is
    /// settled.
    async fn round(
        &self,
        number: u64,
        before: Version,
        counts: &mut Counts,
    ) -> Result<Version, Stop> {
        let value = number.to_be_bytes();
        let expect = Expect::Version(before.clone());
        let told = self.proxied.write(self.key, expect, &value).await;
        let told = match told {
            Ok(_) => "done",
            Err(Stop::Failed(StoreError::Conflict)) => "refused",
            Err(Stop::Failed(StoreError::Unavailable(_))) => "certainly not done",
            Err(Stop::Failed(StoreError::Unknown(_))) => "unknown",
            Err(stop) => return Err(stop),
        };
        let (after, is_done) = self.settle(number, &before).await?;
        counts.unknown += u32::from(told == "unknown");
        *if is_done {
            &mut counts.done
        } else {
            &mut counts.not_done
        } += 1;
        let is_true = match told {
            "done" => is_done,
            "unknown" => true,
            _ => !is_done,
        };
        if is_true {
            return Ok(after);
        }
        let (found, fault) = if is_done {
            ("it was done", Fault::WrongAnswers)
        } else {
            ("it is not there", Fault::LosesUpdates)
        };
        let text = format!(
            "a write whose connection was cut: the store said {told}, and a read showed that \
             {found}"
        );
        Err(Finding::new(fault, text).into())
    }

    /// Writes over what is there, so that nothing older can come; the version, and
    /// whether the write `number` was there.
    async fn settle(&self, number: u64, before: &Version) -> Result<(Version, bool), Stop> {
        let value = number.to_be_bytes();
        for _ in 0..SETTLING {
            let Some(held) = self.direct.register(self.key).await? else {
                let text = "a register was gone after a connection was cut while it was written";
                return Err(Finding::new(Fault::LosesUpdates, text).into());
            };
            let is_done = *held.value == value;
            if !is_done && held.version != *before {
                let text = format!(
                    "after a connection was cut while it wrote {number}: expected {number}, or \
                     the version before it, found {} under another version",
                    count_in(Some(&held))
                );
                return Err(Finding::new(Fault::LosesUpdates, text).into());
            }
            let expect = Expect::Version(held.version);
            match self.direct.write(self.key, expect, &value).await {
                Ok(written) => return Ok((written.version, is_done)),
                // It was carried out between the two.
                Err(Stop::Failed(StoreError::Conflict)) => {}
                Err(stop) => return Err(stop),
            }
        }
        let text = "writes over the version that a read had just shown, of a register that \
                    nobody else writes: expected them to be done, found them refused";
        Err(Finding::new(Fault::WrongAnswers, text).into())
    }
}
