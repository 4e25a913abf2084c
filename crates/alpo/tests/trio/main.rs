//! Servers whose network and disks are perfect, and who are themselves not
//! what they should be: of another release, with another state, or too few.

mod changes;
mod compare;
mod ends;
mod knows;
mod owners;
mod servers;
mod set_back;
mod strand;
#[cfg(feature = "next-version")]
mod upgrade;
