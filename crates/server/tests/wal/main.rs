//! The log on disk, tried on disks that do what disks do when they fail.
//!
//! `memory` is such a disk, `model` says what a log should give back. Every
//! other file is a family of behaviours.

mod crashes;
mod damage;
mod formats;
mod memory;
mod model;
mod real;
mod refusals;
mod writing;
