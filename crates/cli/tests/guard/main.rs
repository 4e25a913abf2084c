//! The guardian of `tenure run`, with real processes and real signals.
//!
//! Each test is a scene (`scene.rs`): a supervisor process that does what it
//! is told line by line, its guardian (the real binary), and a CMD. Ends of
//! processes are awaited through pidfds, and every time is one of the
//! boot-time clock. Lower bounds are exact; upper bounds are generous, since
//! the machine may be busy.

// The supervisor's half is used here; the guardian's runs in the binary.
#[allow(dead_code, unused_imports)]
#[path = "../../src/guard/mod.rs"]
mod guard;

mod deadlines;
mod failures;
mod passing;
mod scene;
mod trees;
