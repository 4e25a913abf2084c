//! Many elections, held by few sessions: what that costs a cluster.
//!
//! `sessions SERVER,SERVER,… ELECTIONS SESSIONS SECONDS [PID…]` opens that
//! many sessions of 10 s, binds the registers of as many elections to them,
//! and then does nothing but keep the sessions alive, each every third of its
//! time to live. For the processes that are named it says how much memory
//! they have and how much processor time they take. It speaks the interface
//! of a cluster itself, so that nothing but the cluster is measured; elections
//! of the library are held so with `tenure://…?hold=session`.

#![allow(clippy::print_stdout, reason = "it talks to people")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tenure::clock::boot;
use tenure::core::election::{Holder, Occupancy, Record};
use tenure::core::ids::{LeaderId, Name, Term};
use tenure::core::time::{Instant, WallTime};
use tenure_api::v1;
use tenure_api::v1::registers_client::RegistersClient;
use tenure_api::v1::sessions_client::SessionsClient;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Channel;

const TTL: Duration = Duration::from_secs(10);

type Failed = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [servers, elections, sessions, seconds, pids @ ..] = &args[..] else {
        return Err("sessions SERVER,… ELECTIONS SESSIONS SECONDS [PID…]".into());
    };
    let (elections, sessions): (usize, usize) = (elections.parse()?, sessions.parse()?);
    let hold = Duration::from_secs(seconds.parse()?);
    let servers = connect(servers).await?;
    println!("{:<28} {}", "before", usage(pids, None));

    let begun = boot();
    let mut holders = JoinSet::new();
    for number in 0..sessions {
        let share = elections * number / sessions..elections * (number + 1) / sessions;
        let servers = Arc::clone(&servers);
        holders.spawn(Holding::begin(number, servers, share));
    }
    let mut held = Vec::new();
    while let Some(holder) = holders.join_next().await {
        held.push(holder??);
    }
    let what = format!("{elections} held after {:.1?}", boot().since(begun));
    println!("{what:<28} {}", usage(pids, None));

    let (begun, before) = (boot(), processor(pids));
    let mut holders = JoinSet::new();
    for (number, holding) in held.into_iter().enumerate() {
        // Evenly over the time between two keep-alives.
        let wait = (TTL / 3).mul_f64(number as f64 / sessions as f64);
        holders.spawn(holding.keep(wait, begun.after(hold)));
    }
    let (mut alive, mut slowest) = (0, Duration::ZERO);
    while let Some(kept) = holders.join_next().await {
        let (count, longest) = kept??;
        (alive, slowest) = (alive + count, slowest.max(longest));
    }
    let what = format!("held for {:.1?}", boot().since(begun));
    println!(
        "{what:<28} {}",
        usage(pids, Some((before, boot().since(begun))))
    );
    println!("{alive} keep-alives, the slowest {slowest:.1?}, none failed");
    Ok(())
}

/// Some connections to each server.
async fn connect(servers: &str) -> Result<Arc<[Vec<Channel>]>, Failed> {
    let mut all = Vec::new();
    for server in servers.split(',') {
        let endpoint = Channel::from_shared(format!("http://{server}"))?;
        let mut channels = Vec::new();
        for _ in 0..4 {
            channels.push(endpoint.connect().await?);
        }
        all.push(channels);
    }
    Ok(all.into())
}

/// One session and what it holds.
struct Holding {
    number: usize,
    servers: Arc<[Vec<Channel>]>,
    /// Which of them leads, as far as is known.
    leader: usize,
    session: u64,
    serial: u64,
}

impl Holding {
    async fn begin(
        number: usize,
        servers: Arc<[Vec<Channel>]>,
        share: std::ops::Range<usize>,
    ) -> Result<Self, Failed> {
        let mut holding = Self {
            number,
            servers,
            leader: 0,
            session: 0,
            serial: 0,
        };
        let ttl_millis = u64::try_from(TTL.as_millis())?;
        let open = v1::OpenSessionRequest {
            ttl_millis,
            ..v1::OpenSessionRequest::default()
        };
        let opened = holding.call(|channel| {
            let open = open.clone();
            async move {
                let answer = SessionsClient::new(channel).open(open).await?;
                Ok(answer.into_inner().session)
            }
        });
        holding.session = opened.await?;
        for number in share {
            let request = v1::CompareAndSwapRequest {
                swap: Some(occupancy(number)?),
                numbered: holding.next(),
            };
            let done = holding.call(|channel| {
                let request = request.clone();
                async move {
                    let mut registers = RegistersClient::new(channel);
                    let answer = registers.compare_and_swap(request).await?;
                    Ok(answer.into_inner().swapped)
                }
            });
            if !done.await? {
                return Err(format!("election {number} is held already").into());
            }
        }
        Ok(holding)
    }

    fn next(&mut self) -> Option<v1::Numbered> {
        self.serial += 1;
        Some(v1::Numbered {
            session: self.session,
            serial: self.serial,
            outstanding: self.serial,
            secret: bytes::Bytes::new(),
        })
    }

    /// Asks one server after the other, unchanged, until one leads.
    async fn call<T, F: Future<Output = Result<T, tonic::Status>>>(
        &mut self,
        call: impl Fn(Channel) -> F,
    ) -> Result<T, Failed> {
        let end = boot().after(TTL);
        loop {
            let channels = &self.servers[self.leader];
            let status = match call(channels[self.number % channels.len()].clone()).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            let elsewhere = matches!(status.code(), Code::Aborted | Code::Unavailable);
            if !elsewhere || boot() > end {
                return Err(status.into());
            }
            self.leader = (self.leader + 1) % self.servers.len();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Keeps it alive; how often, and how long the slowest took.
    async fn keep(mut self, wait: Duration, end: Instant) -> Result<(u64, Duration), Failed> {
        let (mut count, mut slowest) = (0, Duration::ZERO);
        tokio::time::sleep(wait).await;
        while boot() < end {
            let begun = boot();
            let numbered = self.next();
            self.call(|channel| {
                let numbered = numbered.clone();
                async move {
                    let request = v1::KeepAliveRequest { numbered };
                    SessionsClient::new(channel).keep_alive(request).await
                }
            })
            .await?;
            count += 1;
            slowest = slowest.max(boot().since(begun));
            tokio::time::sleep((TTL / 3).saturating_sub(boot().since(begun))).await;
        }
        Ok((count, slowest))
    }
}

/// The register of an election, held, and vacant at the end.
fn occupancy(number: usize) -> Result<v1::Swap, Failed> {
    let name = Name::new(&format!("election-{number}"))?;
    let holder = Holder {
        id: LeaderId::parse(&format!("{number:032x}")).ok_or("an id")?,
        name: Name::new("holder-1")?,
        addresses: Arc::from([Name::new("10.0.0.7:8443")?]),
        params: Arc::from([]),
        request: None,
    };
    let record = |sequence, occupancy| Record {
        election: name.clone(),
        term: Term::new(1).unwrap_or(Term::ZERO),
        sequence,
        renewal: sequence,
        lease: TTL,
        acquired_at: WallTime::from_millis(1_700_000_000_000),
        renewed_at: WallTime::from_millis(1_700_000_000_000),
        occupancy,
    };
    let held = record(1, Occupancy::Held(holder)).encode();
    let vacant = record(1_000_000, Occupancy::Vacant { successor: None }).encode();
    Ok(v1::Swap {
        key: format!("elections/{name}"),
        value: held.to_vec().into(),
        at_end: Some(v1::AtEnd {
            value: vacant.to_vec().into(),
        }),
        ..v1::Swap::default()
    })
}

/// Seconds of processor time that these processes have taken.
fn processor(pids: &[String]) -> f64 {
    let ticks = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
    };
    // A tick is a hundredth of a second on every Linux there is.
    pids.iter().filter_map(ticks).sum::<f64>() / 100.0
}

/// Memory of each process, and of what share of a core they took since.
fn usage(pids: &[String], since: Option<(f64, Duration)>) -> String {
    let resident = |pid: &String| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(format!("{} MiB", kib / 1024))
    };
    let memory: Vec<_> = pids.iter().filter_map(resident).collect();
    let share = since.map(|(before, time)| {
        let share = (processor(pids) - before) / time.as_secs_f64();
        format!("; {share:.3} cores in total")
    });
    format!("{}{}", memory.join(", "), share.unwrap_or_default())
}
