//! All integration tests of this crate, in one binary: cargo compiles and links each
//! further one by itself, and that was most of a cold `./check`.

mod config;
mod late_answers;
mod record;
mod scripts;
mod stage;
mod store_time;
