//! Messages under way, in the order in which they were sent, and links that
//! are cut. Nothing arrives unless the script says so.

use std::collections::{BTreeSet, VecDeque};

use std::ops::Deref;

use tenure_alpo::{Envelope, ServerId, StorageId};

use super::show;
use crate::args::{Args, Outcome};

/// A message under way, with the disk that its sender had when it sent it, and
/// the one that it is for.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) envelope: Envelope,
    pub(crate) storage: StorageId,
    pub(crate) wanted: Option<StorageId>,
}

impl Deref for Sent {
    type Target = Envelope;

    fn deref(&self) -> &Envelope {
        &self.envelope
    }
}

#[derive(Default)]
pub(crate) struct Network {
    pub(crate) queue: VecDeque<Sent>,
    /// Put aside by `hold` until `release`.
    pub(crate) held: VecDeque<Sent>,
    /// From whom to whom nothing gets through.
    cut: BTreeSet<(ServerId, ServerId)>,
}

impl Network {
    pub(crate) fn is_cut(&self, envelope: &Envelope) -> bool {
        self.cut.contains(&(envelope.from, envelope.to))
    }

    pub(crate) fn cut(&mut self, from: ServerId, to: ServerId) {
        self.cut.insert((from, to));
    }

    pub(crate) fn heal(&mut self, which: impl Fn(ServerId, ServerId) -> bool) {
        self.cut.retain(|(from, to)| !which(*from, *to));
    }

    /// Takes the messages out that are meant.
    pub(crate) fn take(&mut self, meant: &Meant) -> Vec<Sent> {
        let mut taken = Vec::new();
        let mut rest = VecDeque::new();
        for envelope in self.queue.drain(..) {
            if taken.len() < meant.first && meant.covers(&envelope) {
                taken.push(envelope);
            } else {
                rest.push_back(envelope);
            }
        }
        self.queue = rest;
        taken
    }
}

/// Which messages a command is about: `s1 s2 vote first=1`, each part
/// optional, `any` for anybody.
pub(crate) struct Meant {
    from: Option<ServerId>,
    to: Option<ServerId>,
    kinds: Vec<String>,
    first: usize,
}

impl Meant {
    pub(crate) fn parse(args: &mut Args<'_>) -> Outcome<Self> {
        let mut meant = Self {
            from: None,
            to: None,
            kinds: Vec::new(),
            first: args.parsed("first")?.unwrap_or(usize::MAX),
        };
        let mut servers = 0;
        while let Some(word) = args.maybe_word() {
            let server = (word != "any").then(|| show::server(word).ok());
            match server {
                Some(None) => meant.kinds.push(word.to_string()),
                server if servers == 0 => {
                    meant.from = server.flatten();
                    servers += 1;
                }
                server if servers == 1 => {
                    meant.to = server.flatten();
                    servers += 1;
                }
                _ => return Err("from one server, to one server".into()),
            }
        }
        if let Some(kind) = meant.kinds.iter().find(|k| !show::KINDS.contains(&&***k)) {
            return Err(format!("no message is called {kind}").into());
        }
        Ok(meant)
    }

    fn covers(&self, envelope: &Envelope) -> bool {
        let kind = show::kind(&envelope.body);
        self.from.is_none_or(|from| from == envelope.from)
            && self.to.is_none_or(|to| to == envelope.to)
            && (self.kinds.is_empty() || self.kinds.iter().any(|k| k == kind))
    }
}
