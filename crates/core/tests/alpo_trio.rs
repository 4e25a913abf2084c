//! Servers whose network and disks are perfect, and who are themselves not
//! what they should be: of another release, with another state, or too few.

#[path = "alpo_trio/changes.rs"]
mod changes;
#[path = "alpo_trio/compare.rs"]
mod compare;
#[path = "alpo_trio/knows.rs"]
mod knows;
#[path = "alpo_trio/owners.rs"]
mod owners;
#[path = "alpo_trio/servers.rs"]
mod servers;
#[path = "alpo_trio/strand.rs"]
mod strand;
#[cfg(feature = "next-version")]
#[path = "alpo_trio/upgrade.rs"]
mod upgrade;
