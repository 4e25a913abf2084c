//! What the driver of a node and the application share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::ids::Name;
use tenure_group::{Event, NodeId, Refusal, Request, View};
use tokio::sync::{oneshot, watch as state};

use super::group_request_error::GroupRequestError;
use super::mailbox::Mailbox;
use super::run_deadline::RunDeadline;
use crate::drive::{EventBroadcaster, Flow};

/// What a node knows of its group at present.
#[derive(Clone, Debug)]
pub struct GroupState {
    /// The id under which it is known; another one after it was fenced.
    pub id: NodeId,
    /// Whether it is in the view and expects to stay.
    pub member: bool,
    /// The view; `None` before the first look, or if the group has none.
    pub view: Option<Arc<View>>,
}

/// How a request was answered.
pub(super) type Answer = Result<(), Refusal>;

/// What the driver and the application share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) events: EventBroadcaster<Event>,
    pub(super) group_state: state::Sender<GroupState>,
    /// The workloads that run here, with their fences.
    pub(super) running: state::Sender<BTreeMap<Name, u64>>,
    pub(super) stopped: state::Sender<bool>,
    /// The run deadline of the present incarnation.
    pub(super) run_deadline: Mutex<Arc<RunDeadline>>,
    pub(super) pending_requests: Mutex<PendingRequests>,
}

/// Requests that wait for an answer; at most as many as the machine takes.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    last: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Answer>>,
    closed: bool,
}

impl PendingRequests {
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.waiting.clear();
    }
}

impl Shared {
    pub(super) fn new(id: NodeId, running: BTreeMap<Name, u64>) -> Self {
        let group_state = GroupState {
            id,
            member: false,
            view: None,
        };
        Self {
            mailbox: Arc::default(),
            events: EventBroadcaster::new(Event::Stopped),
            group_state: state::Sender::new(group_state),
            running: state::Sender::new(running),
            stopped: state::Sender::new(false),
            run_deadline: Mutex::new(RunDeadline::new()),
            pending_requests: Mutex::default(),
        }
    }

    pub(super) fn run_deadline(&self) -> Arc<RunDeadline> {
        Arc::clone(
            &self
                .run_deadline
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    pub(super) fn pending_requests(&self) -> MutexGuard<'_, PendingRequests> {
        self.pending_requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a request to the machine; says where its answer comes.
    pub(super) fn send_request(
        &self,
        request: Request,
    ) -> Result<oneshot::Receiver<Answer>, GroupRequestError> {
        let mut pending_requests = self.pending_requests();
        if pending_requests.closed {
            return Err(GroupRequestError::Stopped);
        }
        pending_requests.last += 1;
        let ticket = pending_requests.last;
        if !self.mailbox.push_request(ticket, request) {
            return Err(GroupRequestError::TooMany);
        }
        let (answer, answered) = oneshot::channel();
        pending_requests.waiting.insert(ticket, answer);
        Ok(answered)
    }

    pub(super) fn answer(&self, ticket: u64, answer: Answer) {
        if let Some(caller) = self.pending_requests().waiting.remove(&ticket) {
            // A caller that has stopped waiting does not want to know.
            let _ = caller.send(answer);
        }
    }

    /// Shows what the machine knows now, if it is another thing than before.
    pub(super) fn show(&self, id: NodeId, member: bool, view: Option<&View>) {
        self.group_state.send_if_modified(|group_state| {
            let epoch = group_state.view.as_ref().map(|view| view.epoch);
            let same_view = epoch == view.map(|view| view.epoch);
            if same_view && group_state.id == id && group_state.member == member {
                return false;
            }
            (group_state.id, group_state.member) = (id, member);
            if !same_view {
                group_state.view = view.cloned().map(Arc::new);
            }
            true
        });
    }

    /// What an event means for the holder of the manager. Runs on the driver's
    /// thread and blocks on nothing.
    pub(super) fn on_event(&self, event: Event) -> Flow {
        match &event {
            Event::Beat { grant } => {
                self.run_deadline().extend(*grant);
                return Flow::On;
            }
            Event::Done { ticket } => {
                self.answer(*ticket, Ok(()));
                return Flow::On;
            }
            Event::Refused { ticket, why } => {
                self.answer(*ticket, Err(why.clone()));
                return Flow::On;
            }
            // What still runs keeps the deadline it has, which nothing extends.
            Event::Fenced { .. } => {
                *self
                    .run_deadline
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = RunDeadline::new();
            }
            Event::Deployed { name, fence } => {
                let (name, fence) = (name.clone(), *fence);
                self.running.send_modify(|running| {
                    running.insert(name, fence);
                });
            }
            Event::Undeployed { name } | Event::StartFailed { name, .. } => {
                self.running
                    .send_if_modified(|running| running.remove(name).is_some());
            }
            _ => {}
        }
        self.events.send(&event);
        if event == Event::Stopped {
            Flow::End
        } else {
            Flow::On
        }
    }
}
