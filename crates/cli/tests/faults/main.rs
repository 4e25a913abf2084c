//! Real servers under real faults: processes that are killed and stopped,
//! networks that are cut, disks that are full, slow or gone, clocks that are
//! elsewhere, and strangers at the ports. `docs/evidence/faults.md` tells what is tried
//! and how.
//!
//! What is promised is judged from outside: clients of the library write down
//! what they asked and were told (`record`), and the simulator's checkers
//! judge that (`tenure_sim::linearize`). That they would notice is tried in
//! `planted`.

#![allow(
    clippy::print_stderr,
    reason = "what was done to the servers, and what came of it, is what these tests are read for"
)]

mod clocks;
mod disks;
mod drills;
mod faulty;
mod healed;
mod load;
mod machines;
mod mending;
mod names;
mod namespaces;
mod network;
mod overload;
mod planted;
mod ports;
mod proxy;
mod record;
mod room;
mod servers;
mod storm;
mod storms;
mod weather;
mod wiped;
