//! At most one server leads in a term (I1), and only who leads or stands
//! asks (I11).

use std::collections::BTreeMap;

use tenure_alpo::{Body, Envelope, Node, SenderRole, ServerId, Status, StorageId};
use tenure_core::ids::Term;

use super::{Check, Verdict, broken};

#[derive(Default)]
pub(in super::super) struct Leaders {
    of: BTreeMap<Term, (ServerId, StorageId)>,
}

impl Leaders {
    /// Looks at a server after a step; says whether its term is new.
    pub(in super::super) fn look(&mut self, node: &Node) -> Result<bool, super::Broken> {
        if node.status() != Status::Leader {
            return Ok(false);
        }
        let (term, id) = (node.term(), (node.id(), node.identity().storage));
        match self.of.insert(term, id) {
            Some(other) if other != id => {
                let detail = format!("{other:?} and {id:?} both lead in term {term}");
                broken(Check::OneLeader, detail).map(|()| false)
            }
            Some(_) => Ok(false),
            None => Ok(true),
        }
    }

    /// A server sends something.
    pub(in super::super) fn sends(node: &Node, envelope: &Envelope) -> Verdict {
        let Body::Request { request, .. } = &envelope.body else {
            return Ok(());
        };
        let fits = match request.sender_role() {
            SenderRole::Candidate => matches!(node.status(), Status::PreVoting | Status::Candidate),
            SenderRole::Leader => node.status() == Status::Leader,
        };
        // Who wins an election in the step in which it asked for votes once
        // more is a leader by the time the request leaves.
        let promoted =
            node.status() == Status::Leader && request.sender_role() == SenderRole::Candidate;
        if fits || promoted || node.status() == Status::Halted {
            return Ok(());
        }
        let detail = format!("{} is {:?} and asks {request:?}", node.id(), node.status());
        broken(Check::PassiveAsks, detail)
    }
}
