//! A request that an agent has accepted, and the progress that the agent reports
//! to the waiting command.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// How many different notes a command gets while it waits.
const NOTES_MAX: usize = 32;

/// A request that an agent has taken, and the command that waits for it.
pub(super) struct PendingRequest {
    notes: UnboundedSender<String>,
    noted: Mutex<BTreeSet<String>>,
    pub(super) in_view: watch::Sender<bool>,
}

impl PendingRequest {
    pub(super) fn new() -> (Self, UnboundedReceiver<String>) {
        let (notes, receiver) = unbounded_channel();
        let (noted, in_view) = (Mutex::default(), watch::Sender::new(false));
        let pending = Self {
            notes,
            noted,
            in_view,
        };
        (pending, receiver)
    }

    /// Sends a note to the command that waits, each time.
    pub(super) fn send_note(&self, text: &str) {
        // It may have gone.
        let _ = self.notes.send(text.to_owned());
    }

    /// The same, but no note twice.
    pub(super) fn send_note_once(&self, text: &str) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < NOTES_MAX && noted.insert(text.to_owned()) {
            self.send_note(text);
        }
    }

    /// The view has it.
    pub(super) fn mark_in_view(&self) {
        self.in_view.send_replace(true);
    }
}
