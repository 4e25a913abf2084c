//! Changes of members by a leader: one at a time, judged by who answers and
//! whose disk syncs after the request came.

use core::time::Duration;

use tenure_core::time::nanos;

use super::super::bug::Bug;
use super::super::entry::Payload;
use super::super::ids::{LogId, ServerId, StorageId};
use super::super::membership::{Change, Member, Membership};
use super::super::quorum;
use super::leader::Leader;
use super::progress::Progress;
use super::server::Server;
use super::types::{Answer, ClientRequest, Refusal, ServerList};
use super::under_way::PendingChange;

/// A learner that is promoted may lack what was appended in so long a time,
/// or in a timeout if that is longer. It is counted in time, so that a busy
/// cluster can promote and an idle one promotes nobody who lacks anything.
const PROMOTION_LAG: Duration = Duration::from_secs(1);

impl Leader {
    /// Changes the members, or refuses to. The member that is promoted or removed must
    /// have the disk `expected_storage`, if the request names one: so a request that comes
    /// late or twice does nothing to a successor under the same number.
    ///
    /// A leader does not remove itself. It transfers its leadership and answers
    /// `NotLeader`, and the client asks the new leader.
    ///
    /// Who is promoted, and who can be spared, is judged when a majority has
    /// answered a round that began after the request came. What was known
    /// before says nothing: a leader that was cut off a moment ago, or did not
    /// run for a minute, still believes that it leads and who is well.
    ///
    /// That a server answers says nothing about its disk: one whose sync hangs
    /// answers heartbeats, which promise nothing. So those who would vote then
    /// must also have synced an entry that was appended after the request came
    /// (`unsynced`). Taking in a learner changes no voters and waits for
    /// neither.
    pub(super) fn change(
        &mut self,
        server: &mut Server,
        token: u64,
        change: Change,
        expected_storage: Option<StorageId>,
    ) {
        let members = match self.next_members(server, change, expected_storage) {
            Ok(members) => members,
            Err(refusal) => return server.answer(token, Answer::Refused(refusal)),
        };
        if change == Change::Remove(server.id()) {
            // The leader that is to be removed transfers first; the new leader is asked
            // again.
            self.begin_transfer(server, None, None);
            let leader = self.transfer.map(|transfer| transfer.to);
            return server.answer(token, Answer::Refused(Refusal::NotLeader { leader }));
        }
        if let Change::AddLearner { .. } = change {
            return self.append_membership(server, members, token);
        }
        let lately = server.now.before(server.config.election_timeout);
        let (mut round, mut deadline) = (
            self.quorum_rounds.next(),
            server.now.after(server.config.election_timeout),
        );
        let mut log_end = server.log.last().id;
        if server.planted(Bug::ChangesOverlap) {
            (round, deadline, log_end) = (0, server.now, 0);
        }
        self.changing = Some(PendingChange {
            token,
            change,
            expected_storage,
            round,
            log_end,
            deadline,
            leader_was_confirmed: self.quorum_rounds.confirmed_at() >= lately,
        });
        self.judge_change(server);
    }

    /// The members after the change, or why it is refused.
    fn next_members(
        &self,
        server: &Server,
        change: Change,
        expected_storage: Option<StorageId>,
    ) -> Result<Membership, Refusal> {
        // No change before an entry of this term is committed (Ongaro's correction of
        // 2015): requests wait in the backlog until then (`client_requests.rs`).
        // A second change before the first is committed could make two
        // majorities that share no server.
        let under_way = server.members.last_change().is_some() || self.changing.is_some();
        if under_way && !server.planted(Bug::ChangesOverlap) {
            return Err(Refusal::ChangeUnderWay);
        }
        let now = server.members.now();
        let member = match change {
            Change::AddLearner { .. } => None,
            Change::Promote(id) | Change::Remove(id) => now.get(id),
        };
        match (member, expected_storage) {
            (Some(member), Some(expected)) if member.storage != expected => {
                Err(Refusal::OtherDisk {
                    found: member.storage,
                })
            }
            _ => now.after(change).map_err(Refusal::Change),
        }
    }

    /// Makes or refuses the change that waits, once the round that began after
    /// it was asked for tells enough and enough disks have synced since, and a
    /// timeout after at the latest.
    pub(super) fn judge_change(&mut self, server: &mut Server) {
        let Some(it) = self.changing else {
            return;
        };
        let over = server.now >= it.deadline;
        let confirmed = self.quorum_rounds.is_confirmed(it.round);
        if !confirmed && !over {
            return;
        }
        // What has changed meanwhile is judged as it is now.
        self.changing = None;
        let judged = self.next_members(server, it.change, it.expected_storage);
        let judged = judged.and_then(|members| match self.fitness(server, &it, &members) {
            Ok(()) if confirmed => Ok(members),
            Ok(()) => Err(self.unheard(server, &it, &members)),
            Err(refusal) => Err(refusal),
        });
        match judged {
            // New entries would delay the transferee. The change waits for the
            // next leader.
            Ok(_) if self.transfer.is_some() => {
                if !(self.pending_proposals).push_backlog(
                    &server.config,
                    it.token,
                    ClientRequest::change(it.change, it.expected_storage),
                ) {
                    server.answer(it.token, Answer::Refused(Refusal::Busy));
                }
            }
            Ok(members) => match self.unsynced(server, &it, &members) {
                // This process may have slept since it asked: what it hears
                // now is old.
                None if over && !server.planted(Bug::ChangesOverlap) => {
                    let refusal = self.unheard(server, &it, &members);
                    server.answer(it.token, Answer::Refused(refusal));
                }
                None => self.append_membership(server, members, it.token),
                Some(servers) if over => {
                    let refusal = Refusal::Unsynced { servers };
                    server.answer(it.token, Answer::Refused(refusal));
                }
                Some(_) => {
                    self.changing = Some(it);
                    self.try_disks(server, &it);
                }
            },
            // Its answer, or another's, may be on its way.
            Err(refusal) if self.may_be_heard(server, &it, refusal) && !over => {
                self.changing = Some(it);
            }
            Err(refusal) => server.answer(it.token, Answer::Refused(refusal)),
        }
    }

    /// Whether those that a change needs are well.
    fn fitness(
        &self,
        server: &Server,
        it: &PendingChange,
        members: &Membership,
    ) -> Result<(), Refusal> {
        if let Change::Promote(learner) = it.change {
            let peer = self.peers.get(&learner);
            let matched = peer.map_or(0, |peer| peer.matched);
            // It must also have the entry that admitted it, on its disk: it
            // votes only when it knows that it was admitted, and voters that
            // do not vote could leave the others without a majority.
            if self.is_behind(server, matched) || matched < server.members.since() {
                return Err(Refusal::LearnerBehind);
            }
            // One that does not answer would not vote either.
            let answered = peer.is_some_and(|peer| peer.round >= it.round);
            if !answered {
                return Err(Refusal::LearnerBehind);
            }
        }
        let heard = |peer: &Progress| peer.round >= it.round;
        if self.hears_majority(server, members, heard) {
            Ok(())
        } else {
            Err(self.unheard(server, it, members))
        }
    }

    /// The refusal that names the voters there would be that have not answered
    /// since, or lack the last change of members.
    fn unheard(&self, server: &Server, it: &PendingChange, members: &Membership) -> Refusal {
        let able = able(server, |peer| peer.round >= it.round);
        let silent = |id: &ServerId| *id != server.id() && !self.peers.get(id).is_some_and(&able);
        let servers = members.voters().filter(silent).collect();
        Refusal::TooFewHeard { servers }
    }

    /// Those of the voters there would be whose disks have not synced since
    /// the change was asked for; `None` if the others are a majority. The
    /// leader's own disk is one of them, and so is that of a learner which is
    /// promoted. A server that is taken out is not: if it is the one whose disk
    /// hangs, it can go.
    ///
    /// A leader has in its log what it appended in its own term, and nothing
    /// takes that away while it leads. So a server that has an entry after
    /// `log_end` on its disk, by its own word, has synced after the request
    /// came. Without this the change could make a majority need a disk that
    /// hangs: it would count at once, and never commit.
    fn unsynced(
        &self,
        server: &Server,
        it: &PendingChange,
        members: &Membership,
    ) -> Option<ServerList> {
        if server.planted(Bug::ChangeUnsynced) {
            return None;
        }
        let durable = |id: &ServerId| {
            if *id == server.id() {
                server.disk.durable_id()
            } else {
                self.peers.get(id).map_or(0, |peer| peer.matched)
            }
        };
        let synced = |id: &ServerId| durable(id) > it.log_end;
        if quorum::is_majority(members, members.voters().filter(synced)) {
            return None;
        }
        Some(members.voters().filter(|id| !synced(id)).collect())
    }

    /// Appends an entry for the disks to sync, if there is none since the
    /// change was asked for: at most one for each request.
    ///
    /// It says that the cluster's version is what it is. All servers understand
    /// that, of the first version too, and it changes nothing: a state keeps
    /// the higher of two versions, and this one is applied. (The no-op of a new
    /// leader would give every session a new lease.)
    fn try_disks(&mut self, server: &mut Server, it: &PendingChange) {
        if server.log.last().id <= it.log_end {
            let version = server.state.version();
            self.append(server, Payload::Version(version), None);
        }
    }

    /// Whether waiting may still mend what a change is refused for.
    fn may_be_heard(&self, server: &Server, it: &PendingChange, refusal: Refusal) -> bool {
        let lately = server.now.before(server.config.election_timeout);
        let heard = |peer: &Progress| peer.heard_at.is_some_and(|at| at >= lately);
        match (refusal, it.change) {
            (Refusal::LearnerBehind, Change::Promote(learner)) => {
                let peer = self.peers.get(&learner);
                peer.is_some_and(|peer| {
                    peer.round < it.round && (heard(peer) || !it.leader_was_confirmed)
                })
            }
            (Refusal::TooFewHeard { .. }, _) => {
                let members = server.members.now().after(it.change);
                !it.leader_was_confirmed
                    || members.is_ok_and(|it| self.hears_majority(server, &it, heard))
            }
            _ => false,
        }
    }

    /// Whether a log that ends at `matched` lacks an entry that was appended
    /// too long ago.
    fn is_behind(&self, server: &Server, matched: LogId) -> bool {
        if matched >= server.log.last().id {
            return false;
        }
        let lag = PROMOTION_LAG.max(server.config.election_timeout);
        let since = self.log_time(server).saturating_sub(nanos(lag));
        // What is compacted is older than what there is.
        let next = server.log.get(matched + 1);
        next.is_none_or(|entry| entry.time < since)
    }

    fn append_membership(&mut self, server: &mut Server, members: Membership, token: u64) {
        self.append(server, Payload::Members(members), Some(token));
        self.update_peers(server);
    }

    /// Whether enough of those who would vote after a change could vote now:
    /// they are heard, and have the last change before this one on their disks,
    /// as a server that is promoted must. The change counts as soon as it is
    /// appended: taking a server out that is needed, while another is silent or
    /// does not know yet that it votes, would leave those who stay without a
    /// majority for ever, for the server that was taken out cannot be elected
    /// either, once the others' logs are better than its own.
    fn hears_majority(
        &self,
        server: &Server,
        members: &Membership,
        heard: impl Fn(&Progress) -> bool,
    ) -> bool {
        let able = able(server, heard);
        let able = self.peers.iter().filter(|(_, peer)| able(peer));
        let able = able.map(|(id, _)| *id);
        quorum::is_majority(members, able.chain([server.id()]))
    }

    /// Peers come and go with the members, as soon as the entry is appended. A
    /// number that has gone to another disk is another peer.
    pub(super) fn update_peers(&mut self, server: &Server) {
        let members = server.members.now();
        if !server.planted(Bug::ProgressKept) {
            self.peers.retain(|id, peer| members.has(*id, peer.storage));
        }
        let (last, newest) = (server.log.last().id, server.number);
        let others = members.iter().filter(|(id, _)| *id != server.id());
        for (id, Member { storage, .. }) in others {
            self.peers
                .entry(id)
                .or_insert_with(|| Progress::optimistic(storage, last, newest, &server.config));
        }
        self.bound_window_by_links(server);
    }
}

/// Who could vote after a change of members: it was heard, and has the last
/// change on its disk.
fn able(server: &Server, heard: impl Fn(&Progress) -> bool) -> impl Fn(&Progress) -> bool {
    let since = server.members.since();
    move |peer| heard(peer) && peer.matched >= since
}
