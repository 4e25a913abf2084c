//! The rules, as the checker wants them: one predicate on states for each.

use stateright::Property;

use super::model::Cluster;
use super::rules::Broken;

/// One property for each rule; a state knows which one it broke.
pub(crate) fn all() -> Vec<Property<Cluster>> {
    fn unless(
        broken: Broken,
        condition: fn(&Cluster, &super::model::World) -> bool,
    ) -> Property<Cluster> {
        Property::always(broken.rule(), condition)
    }
    vec![
        unless(Broken::TwoReigns, |_, w| {
            w.broken != Some(Broken::TwoReigns)
        }),
        unless(Broken::TwoVotes, |_, w| w.broken != Some(Broken::TwoVotes)),
        unless(Broken::LogsDiffer, |_, w| {
            w.broken != Some(Broken::LogsDiffer)
        }),
        unless(Broken::Incomplete, |_, w| {
            w.broken != Some(Broken::Incomplete)
        }),
        unless(Broken::StatesDisagree, |_, w| {
            w.broken != Some(Broken::StatesDisagree)
        }),
        unless(Broken::Halted, |_, w| w.broken != Some(Broken::Halted)),
        unless(Broken::Panicked, |_, w| w.broken != Some(Broken::Panicked)),
        unless(Broken::StaleRead, |_, w| {
            w.broken != Some(Broken::StaleRead)
        }),
    ]
}
