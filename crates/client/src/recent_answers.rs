//! What servers have answered lately, and whether they can all be servers of
//! one cluster.
//!
//! A server that refuses this client (it does not know its token, or does not
//! believe its certificate) tells nothing of itself, and yet it is alive: it
//! may be of another cluster than one that does answer. So a refusal counts as
//! a server that cannot be heard, and never as silence.
//!
//! Whether all that are alive can be servers of the cluster of a leader is a
//! matter of numbers: those of its members that answer, and those that refuse,
//! are no more than it has members. If they are more, then another cluster is
//! alive, which may have a leader of its own.
//!
//! This is exact where the members of the wrong cluster are few: a server that
//! founds a cluster with itself alone has one. Where it has as many members
//! that do not answer as there are servers that refuse, these are taken for
//! its members.
//!
//! What counts as a refusal: whatever a server says itself in place of its
//! status, but for *unavailable*; and a handshake of TLS in which one side
//! does not believe, or does not understand, the other. A connection that
//! cannot be made or that breaks, and an answer that does not come, say
//! nothing, and leave what was heard before as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::v1;
use tenure_core::time::Instant;
use tenure_runtime::round_trip::TIMEOUT_MAX;
use tenure_runtime::tls;
use tonic::Code;

/// For how long an answer counts without another one from there. A server
/// that goes on answering does so once in the longest time that one is waited
/// for, and a pause.
pub(super) const KEPT: Duration = TIMEOUT_MAX.saturating_add(Duration::from_secs(1));

/// What came last from an address.
#[derive(Debug)]
enum Answer {
    /// It is this server, of this cluster; empty if it has none yet.
    Server(u64, String),
    /// It refuses this client.
    Refusal,
}

/// The last answers, by address.
#[derive(Debug, Default)]
pub(super) struct RecentAnswers(BTreeMap<Arc<str>, (Instant, Answer)>);

impl RecentAnswers {
    /// A server has said what it is.
    pub(super) fn heard(&mut self, now: Instant, address: &Arc<str>, status: &v1::StatusResponse) {
        let answer = Answer::Server(status.id, status.cluster.clone());
        self.0.insert(Arc::clone(address), (now, answer));
    }

    /// A server could not be asked. Takes note if that was a refusal.
    pub(super) fn failed(&mut self, now: Instant, address: &Arc<str>, why: &tonic::Status) {
        if is_refusal(why) {
            self.0.insert(Arc::clone(address), (now, Answer::Refusal));
        }
    }

    /// Forgets what is too old.
    pub(super) fn forget(&mut self, now: Instant) {
        self.0.retain(|_, (at, _)| now.since(*at) < KEPT);
    }

    /// Whether any server refuses this client.
    pub(super) fn has_refusals(&self) -> bool {
        self.refusing().next().is_some()
    }

    /// Whether a server of this cluster answers.
    pub(super) fn has_cluster(&self, cluster: &str) -> bool {
        self.servers().any(|(_, _, of)| of == cluster)
    }

    /// Two servers that answer and are of two clusters, in words.
    pub(super) fn two_clusters(&self) -> Option<String> {
        let mut servers = self.servers().filter(|(_, _, of)| !of.is_empty());
        let (one, _, first) = servers.next()?;
        let (two, _, second) = servers.find(|(_, _, of)| *of != first)?;
        Some(format!(
            "expected servers of one cluster, found {one} of cluster {first} and {two} of cluster \
             {second}: stop the servers of the one that should not be, or take them out of the URL"
        ))
    }

    /// Why not all servers that are alive can be of the cluster of this one,
    /// by how many members it says that there are. Of the addresses those that
    /// were `configured` are of one server each. One that was learnt since, and
    /// is a member's, may be that of a configured one under another name, and
    /// does not count.
    pub(super) fn too_many_refuse(
        &self,
        address: &str,
        status: &v1::StatusResponse,
        configured: &[Arc<str>],
    ) -> Option<String> {
        let members: BTreeSet<u64> = status.members.iter().map(|it| it.id).collect();
        let heard: BTreeSet<u64> = self
            .servers()
            .filter(|(_, id, of)| *of == status.cluster && members.contains(id))
            .map(|(_, id, _)| id)
            .collect();
        let names = |refusing: &str| {
            let mut members = status.members.iter();
            members.any(|it| it.client_address == refusing)
        };
        let refusing: Vec<&str> = self
            .refusing()
            .filter(|it| configured.contains(it) || !names(it))
            .map(|it| &**it)
            .collect();
        if heard.len() + refusing.len() <= members.len() || refusing.is_empty() {
            return None;
        }
        Some(format!(
            "expected servers of one cluster, found {address} of cluster {} with {} and {} that \
             {} this client, so that not all can be of that cluster: give all servers the \
             client's token, or the authority and the list of its certificate, or take those \
             that are of another cluster out of the URL",
            status.cluster,
            counted(members.len(), "member"),
            refusing.join(", "),
            if refusing.len() == 1 {
                "refuses"
            } else {
                "refuse"
            },
        ))
    }

    fn servers(&self) -> impl Iterator<Item = (&Arc<str>, u64, &str)> {
        let servers = self.0.iter();
        servers.filter_map(|(address, (_, answer))| match answer {
            Answer::Server(id, cluster) => Some((address, *id, &**cluster)),
            Answer::Refusal => None,
        })
    }

    fn refusing(&self) -> impl Iterator<Item = &Arc<str>> {
        let refusing = self.0.iter();
        refusing.filter_map(|(address, (_, answer))| {
            matches!(answer, Answer::Refusal).then_some(address)
        })
    }
}

fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Whether a failed call was refused by a server that is alive.
fn is_refusal(status: &tonic::Status) -> bool {
    match status.source() {
        // It has said so itself.
        None => status.code() != Code::Unavailable,
        // The connection has. One to a server with TLS, made without, ends
        // with this code.
        Some(below) => status.code() == Code::PermissionDenied || tls::is_refusal(below),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: [&str; 3] = ["h1:1", "h2:1", "h3:1"];

    fn status(id: u64, cluster: &str, members: &[(u64, &str)]) -> v1::StatusResponse {
        let members = members.iter().map(|(id, address)| v1::Member {
            id: *id,
            client_address: (*address).to_owned(),
            ..v1::Member::default()
        });
        v1::StatusResponse {
            id,
            cluster: cluster.to_owned(),
            members: members.collect(),
            ..v1::StatusResponse::default()
        }
    }

    /// Answers of now.
    fn answers<'a>(
        heard: &[(&str, &v1::StatusResponse)],
        refusing: impl IntoIterator<Item = &'a str>,
    ) -> RecentAnswers {
        let (now, mut answers) = (Instant::ZERO, RecentAnswers::default());
        for (address, status) in heard {
            answers.heard(now, &(*address).into(), status);
        }
        for address in refusing {
            answers.failed(
                now,
                &address.into(),
                &tonic::Status::unauthenticated("who?"),
            );
        }
        answers
    }

    fn believed(answers: &RecentAnswers, status: &v1::StatusResponse) -> bool {
        let configured = URL.map(Arc::from);
        let why = answers.too_many_refuse("h3:1", status, &configured);
        why.is_none()
    }

    #[test]
    fn those_that_answer_and_those_that_refuse_are_no_more_than_the_members() {
        let alone = status(3, "b", &[(3, "h3:1")]);
        let heard = [("h3:1", &alone)];
        assert!(believed(&answers(&heard, []), &alone));
        assert!(!believed(&answers(&heard, ["h1:1"]), &alone));
        assert!(!believed(&answers(&heard, ["h1:1", "h2:1"]), &alone));

        let all = [(1, "h1:1"), (2, "h2:1"), (3, "h3:1")];
        let [second, third] = [2, 3].map(|id| status(id, "a", &all));
        let heard = [("h2:1", &second), ("h3:1", &third)];
        assert!(believed(&answers(&heard, ["h1:1"]), &third));
        assert!(!believed(&answers(&heard, ["h1:1", "h4:1"]), &third));
        // Servers that are no members take no place of theirs.
        let joining = status(4, "a", &[]);
        let heard = [("h4:1", &joining), ("h2:1", &second), ("h3:1", &third)];
        assert!(believed(&answers(&heard, ["h1:1"]), &third));
    }

    #[test]
    fn a_server_that_has_two_names_counts_once() {
        let all = [(1, "10.0.0.1:1"), (2, "10.0.0.2:1"), (3, "10.0.0.3:1")];
        let [second, third] = [2, 3].map(|id| status(id, "a", &all));
        let heard = [
            ("h2:1", &second),
            ("10.0.0.2:1", &second),
            ("h3:1", &third),
            ("10.0.0.3:1", &third),
        ];
        let refusing = ["h1:1", "10.0.0.1:1"];
        assert!(believed(&answers(&heard, refusing), &third));
        assert!(!believed(&answers(&heard, ["h1:1", "10.0.0.4:1"]), &third));
    }

    #[test]
    fn silence_leaves_a_refusal_as_it_was_and_an_answer_ends_it() {
        let alone = status(3, "b", &[(3, "h3:1")]);
        let mut answers = answers(&[("h3:1", &alone)], ["h1:1"]);
        let now = Instant::ZERO.after(KEPT / 2);
        for silence in [
            tonic::Status::unavailable("it begins"),
            tonic::Status::from_error("it breaks".into()),
        ] {
            answers.failed(now, &"h1:1".into(), &silence);
            assert!(!believed(&answers, &alone), "{silence}");
        }
        answers.heard(now, &"h1:1".into(), &status(1, "a", &[]));
        assert!(believed(&answers, &alone));
        assert!(answers.two_clusters().is_some());
        answers.forget(Instant::ZERO.after(KEPT));
        assert!(answers.has_cluster("a") && !answers.has_cluster("b"));
        assert!(answers.two_clusters().is_none());
    }
}
