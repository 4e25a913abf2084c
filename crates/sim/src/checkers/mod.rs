//! The checkers: what must be true of every run, each in a file of its own.
//!
//! A checker sees more than any process does: true time, the register itself,
//! the clocks of all nodes. It says what it found wrong in a sentence; the
//! world adds when, and the trace.

mod causes;
mod check;
mod confirms;
mod deadlines_told;
mod exclusivity;
mod floors;
mod guard;
mod observers;
mod own_id;
mod races;
mod refusals;
mod requests;
mod terms;
mod work;

pub(crate) use causes::Causes;
pub use check::Check;
pub(crate) use check::Finding;
pub(crate) use confirms::Confirmed;
pub(crate) use deadlines_told::told;
pub(crate) use exclusivity::{Exclusivity, Held};
pub(crate) use floors::Floors;
pub(crate) use guard::step;
pub(crate) use observers::claim;
pub(crate) use own_id::own_id;
pub(crate) use races::race;
pub(crate) use refusals::Refusals;
pub(crate) use requests::Requests;
pub(crate) use terms::Terms;
pub(crate) use work::Works;
