//! The guardian of `tenure run`, with real processes and real signals.
//!
//! Each test is a scene (`scene.rs`): a supervisor process that does what it
//! is told line by line, its guardian (the real binary), and a CMD. Ends of
//! processes are awaited through pidfds, and every time is one of the
//! boot-time clock. Lower bounds are exact; upper bounds are as generous as the
//! machine was busy, and times are long enough for a slow one to start a CMD
//! before they come.

mod deadlines;
mod failures;
mod passing;
#[path = "../agent/pressure.rs"]
mod pressure;
mod scene;
mod trees;

use tenure_agent::guard;
