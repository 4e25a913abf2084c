//! Agents with real processes: what `tenure node` and its commands do, on
//! SQLite and on a cluster of three servers, while agents are killed, stopped
//! and restarted. What the workloads wrote down must not overlap.

#![allow(clippy::print_stderr, reason = "logs of agents are printed")]

#[path = "../common/mod.rs"]
mod common;
mod contents;
mod drain;
mod ends;
mod fixture;
mod groups;
mod hung;
mod life;
mod namesakes;
mod pressure;
mod requests;
mod secrets;
mod service;
mod shown;
mod stamps;
mod trouble;
mod words;

fn print(text: &str) {
    eprintln!("{text}");
}
