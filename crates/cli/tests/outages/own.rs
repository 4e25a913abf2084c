//! A cluster of `tenure serve`, in this process.

use tokio::runtime::Handle;

use super::interface::{Fault, Subject, never};
use super::servers::Servers;

struct Own(Servers);

/// One server, so that there is one line to it.
pub(crate) fn tenure() -> Box<dyn Subject> {
    Box::new(Own(Servers::start(1)))
}

impl Subject for Own {
    fn url(&self) -> String {
        self.0.url()
    }

    fn address(&self) -> String {
        self.0.address(1).to_owned()
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away => {
                Handle::current().block_on(self.0.stop(1));
                &["onnection refused"]
            }
            Fault::Emptied | Fault::Revoked | Fault::Missing => never(fault),
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.0.run(1),
            Fault::Emptied | Fault::Revoked | Fault::Missing => never(fault),
        }
    }
}
