//! A clone of a leadership that is never dropped is warned about, with the place
//! where it was taken.

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Election;
use tenure::election::Why;
use tenure::store::{Memory, Store};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const SOON: Duration = Duration::from_secs(20);

/// Hands on what is warned about.
struct Warnings(Mutex<Sender<String>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let _ = self.0.lock().expect("not poisoned").send(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// One test: there is one log in a process.
#[tokio::test]
async fn a_leaked_clone_is_warned_about_after_a_lease() {
    let (send, warnings) = channel();
    let subscriber = Warnings(Mutex::new(send));
    tracing::subscriber::set_global_default(subscriber).expect("the first one");
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let builder = Election::builder(store, "payroll").lease(Duration::from_millis(900));
    let mut election = builder.start().expect("a candidate");

    // What is dropped when it should be is not warned about.
    let leadership = election.elected().await.expect("a leadership");
    election.resign();
    assert_eq!(leadership.cancelled().await, Why::Resigned);
    let fine = leadership.clone();
    drop((leadership, fine));

    let leadership = election.elected().await.expect("another term");
    let (leaked, line) = (leadership.clone(), line!());
    election.resign();
    assert_eq!(leadership.cancelled().await, Why::Resigned);
    drop(leadership);
    let warning = warnings.recv_timeout(SOON).expect("a warning");
    assert!(
        warning.contains("payroll: expected the Leadership of term 2"),
        "{warning}"
    );
    // Its place in debug builds, and of those that were dropped none.
    if cfg!(debug_assertions) {
        let place = format!("1 of it are left, taken at {}:{line}:", file!());
        assert!(warning.contains(&place), "{warning}");
    }
    drop(leaked);
    // It stands again, and that is all there was to say.
    let leadership = tokio::time::timeout(SOON, election.elected()).await;
    assert_eq!(
        leadership
            .expect("in time")
            .expect("a leadership")
            .term()
            .get(),
        3
    );
    assert!(warnings.try_recv().is_err());
}
