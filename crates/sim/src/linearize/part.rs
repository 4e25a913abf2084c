//! What a history says of one register, as the search takes it.

use tenure_core::ids::Key;

use super::history::{Call, CallId, History};
use super::model::Names;
use super::search::Op;

/// What a history says of one register, as the search takes it.
pub(super) struct Part<'a> {
    pub(super) history: &'a History,
    pub(super) key: Key,
    pub(super) names: Names,
    /// Which call each op is.
    pub(super) calls: Vec<CallId>,
    pub(super) ops: Vec<Op>,
}

impl<'a> Part<'a> {
    pub(super) fn new(history: &'a History, key: Key, all: Vec<CallId>) -> Self {
        let names = Names::of(all.iter().map(|id| history.call(*id)));
        let (mut calls, mut ops) = (Vec::new(), Vec::new());
        for id in all {
            let call = history.call(id);
            let answer = call.answer.as_ref().map(|(_, answer)| answer);
            if let Some(step) = names.step(call, answer) {
                calls.push(id);
                let (invoked, returned) = call.order();
                ops.push(Op {
                    step,
                    invoked,
                    returned,
                });
            }
        }
        Self {
            history,
            key,
            names,
            calls,
            ops,
        }
    }

    pub(super) fn call(&self, op: usize) -> &'a Call {
        self.history.call(self.calls[op])
    }
}
