//! Messages, and what counts for how much in them.

use bytes::Bytes;
use tenure_api::v1::{self, command, request};

use super::RequestKind;

/// After how many bytes a message is full.
const MESSAGE_BYTES: usize = 512 * 1024;
/// After how many requests a message is full.
const MESSAGE_REQUESTS: usize = 1_024;

/// A message that is being filled.
pub(super) struct Message {
    pub(super) requests: Vec<v1::Request>,
    bytes: usize,
    most: usize,
}

impl Message {
    pub(super) fn new(trial: Option<usize>) -> Self {
        Self {
            requests: Vec::new(),
            bytes: 0,
            most: trial.unwrap_or(MESSAGE_REQUESTS),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.requests.len() < self.most && self.bytes < MESSAGE_BYTES
    }

    pub(super) fn put(&mut self, number: u64, what: request::What) {
        self.put_with(number, what, Bytes::new());
    }

    /// The same with the secret of the session that it opens or is of.
    pub(super) fn put_with(&mut self, number: u64, what: request::What, secret: Bytes) {
        self.bytes += match &what {
            request::What::Command(command) => command.operation.as_ref().map_or(0, command_weight),
            look => query_weight(look),
        };
        let what = Some(what);
        self.requests.push(v1::Request {
            number,
            what,
            secret,
        });
    }
}

pub(super) fn weight(request: &RequestKind) -> usize {
    match request {
        RequestKind::Change(operation) => command_weight(operation),
        RequestKind::Query(what) => query_weight(what),
    }
}

pub(super) fn command_weight(operation: &command::Operation) -> usize {
    64 + match operation {
        command::Operation::Append(bytes) => bytes.len(),
        command::Operation::Swap(swap) => {
            let last = swap.at_end.as_ref().map_or(0, |last| last.value.len());
            swap.key.len() + swap.value.len() + last
        }
        command::Operation::Delete(delete) => delete.key.len(),
        command::Operation::KeepAlive(_) | command::Operation::Close(_) => 0,
    }
}

pub(super) fn query_weight(what: &request::What) -> usize {
    64 + match what {
        request::What::Read(read) => read.key.len(),
        request::What::List(list) => list.prefix.len(),
        _ => 0,
    }
}
