//! Having a wiped server taken in again, in the middle of a storm.
//!
//! It is started with its empty directory, as an operator who does not know
//! would do, takes no part, and says what to do. Then an operator types that,
//! again and again until it is done, since the leader may be away, or it may be
//! too early: the member is removed, and the server added and promoted.
//! Meanwhile everything else goes on, for this server too.
//!
//! One at a time: of three servers, a second that is wiped before the first
//! counts again leaves no majority that remembers, and no product mends that.

use std::process::Command;
use std::time::{Duration, Instant};

use tenure_api::v1;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use crate::servers::{Servers, TENURE, leader_of, status};
use crate::wiped::{advice, wipe};

/// With these words it refuses.
pub(crate) const REFUSAL: &str = "a server without its promises must not vote";
/// How often the operator looks.
const LOOK: Duration = Duration::from_millis(100);

/// What is still to be done for a server that was wiped.
pub(crate) struct Mender {
    who: u64,
    since: Instant,
    /// Where its words begin, since it was wiped.
    said_from: u64,
    /// The operator, once it has refused.
    typing: Option<JoinHandle<()>>,
}

impl Mender {
    /// Wipes a server that runs.
    pub(crate) fn wipe(servers: &mut Servers, who: u64) -> Self {
        servers.kill(who);
        wipe(servers, who);
        let said_from = servers.log_length(who);
        servers.start(who);
        Self {
            who,
            since: Instant::now(),
            said_from,
            typing: None,
        }
    }

    /// Looks whether it has refused, and has somebody type what it says.
    /// Whether that was just now.
    pub(crate) fn refused(&mut self, servers: &Servers) -> bool {
        let said = servers.log_from(self.who, self.said_from);
        let first = self.typing.is_none() && said.contains(REFUSAL);
        if first {
            let said = said.lines().find(|line| line.contains(REFUSAL));
            let said = said.unwrap_or_default();
            let advice = advice(said);
            assert!(advice.len() >= 3, "expected what to type, found {said}");
            let operator = Operator {
                who: self.who,
                url: servers.url(),
                servers: servers.channels(),
                own: servers.channel(self.who),
            };
            let advice = advice[..3].to_vec();
            self.typing = Some(tokio::spawn(operator.mend(advice)));
        }
        first
    }

    /// Whether it is a member that counts, as before.
    pub(crate) fn is_done(&self) -> bool {
        self.typing.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// How long that took.
    ///
    /// # Panics
    /// If it was not done within `patience`.
    pub(crate) async fn done(self, patience: Duration) -> Duration {
        let who = self.who;
        let typing = self.typing.expect("it has refused");
        let typed = timeout(patience, typing).await;
        let typed = typed.unwrap_or_else(|_| panic!("server {who} is not mended"));
        typed.expect("the operator did not panic");
        self.since.elapsed()
    }
}

struct Operator {
    who: u64,
    url: String,
    servers: Vec<Channel>,
    own: Channel,
}

impl Operator {
    async fn mend(self, advice: Vec<String>) {
        let [remove, add, promote] = [0, 1, 2].map(|at| advice[at].as_str());
        let storage = add.rsplit(' ').next().expect("a word").to_owned();
        self.until_it_is(remove, |own| own.is_none_or(|it| it.storage == storage))
            .await;
        self.until_it_is(add, |own| own.is_some()).await;
        self.until_it_is(promote, |own| own.is_some_and(|it| it.voter))
            .await;
        let counts = async |it: v1::StatusResponse| {
            it.ready && it.members.iter().any(|it| it.id == self.who && it.voter)
        };
        loop {
            if let Some(said) = status(self.own.clone()).await
                && counts(said).await
            {
                return;
            }
            sleep(LOOK).await;
        }
    }

    /// Types a command until the leader says that it is as it is to be.
    async fn until_it_is(&self, command: &str, so: impl Fn(Option<&v1::Member>) -> bool) {
        loop {
            if let Some(said) = leader_of(self.servers.clone()).await {
                if so(said.members.iter().find(|it| it.id == self.who)) {
                    return;
                }
                let mut line = Command::new("timeout");
                line.args(["4", TENURE, "member"]).args(command.split(' '));
                line.env("TENURE_STORE", &self.url);
                // It may be in vain: it is asked for again.
                let _ = spawn_blocking(move || line.output()).await;
            }
            sleep(LOOK).await;
        }
    }
}
