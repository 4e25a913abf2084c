//! All integration tests of this crate, in one binary: cargo compiles and links each
//! further one by itself, and that was most of a cold `./check`.

#[path = "../../core/tests/common/args.rs"]
#[expect(dead_code, reason = "written for the election's scripts too")]
mod args;
mod batches;
mod bindings;
mod bounds;
#[path = "codec/main.rs"]
mod codec;
mod disks;
mod fairness;
mod forged;
mod founding;
mod installing;
mod log;
#[path = "restore/main.rs"]
mod restore;
mod scripts;
mod slow_disks;
#[path = "snapshots/main.rs"]
mod snapshots;
mod stage;
mod state;
