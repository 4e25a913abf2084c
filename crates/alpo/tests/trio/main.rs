//! Servers whose network and disks are perfect, and who are themselves not
//! what they should be: of another release, with another state, or too few.

mod changes;
mod compare;
mod owners;
mod reads;
mod removals_without_quorum;
mod servers;
mod session_ends;
mod set_back;
mod staleness;
#[cfg(feature = "next-version")]
mod upgrade;
mod windows;
