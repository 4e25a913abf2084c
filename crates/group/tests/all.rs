//! All integration tests of this crate, in one binary: cargo compiles and links each
//! further one by itself, and that was most of a cold `./check`.

#[path = "../../core/tests/common/args.rs"]
#[expect(dead_code, reason = "written for the election's scripts too")]
mod args;
mod codec;
mod resume_state;
mod scripts;
mod stage;
