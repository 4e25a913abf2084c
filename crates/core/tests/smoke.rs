//! The shortest possible election, against a store that always answers.

use tenure_core::Machine as _;
use tenure_core::cas::{Reading, Registers};
use tenure_core::election::{Campaign, Command, Config, Event, Input, Output};
use tenure_core::ids::Name;
use tenure_core::rng::Rng;
use tenure_core::time::{Instant, Now, WallTime};

fn at(ms: u64) -> Now {
    Now {
        boot: Instant::from_nanos(ms * 1_000_000),
        wall: WallTime::from_millis(ms),
    }
}

fn settle(now: Now, store: &mut Registers, campaign: &mut Campaign) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(output) = campaign.poll() {
        match output {
            Output::Read { call, key, .. } => {
                let register = store.read(&key).cloned();
                let result = Ok(Reading {
                    register,
                    now: None,
                });
                campaign.handle(now, Input::Read { call, result });
            }
            Output::Write { call, write, .. } => {
                let result = Ok(store.compare_and_swap(write, None).expect("no rival"));
                campaign.handle(now, Input::Wrote { call, result });
            }
            Output::Event(event) => events.push(event),
        }
    }
    events
}

#[test]
fn one_candidate_leads_renews_and_leaves() {
    let name = |text| Name::new(text).expect("a good name");
    let mut store = Registers::new(0);
    let config = Config::new(name("payroll"), name("web-1"));
    let mut a = Campaign::new(config, Rng::from_seed(1), at(0));
    let events = settle(at(0), &mut store, &mut a);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Elected { .. })),
        "{events:?}"
    );
    let deadline = a.deadline().expect("a renewal is due");
    assert_eq!(deadline, at(2_000).boot);
    a.tick(at(2_000));
    let events = settle(at(2_000), &mut store, &mut a);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Renewed { .. })),
        "{events:?}"
    );
    a.handle(at(2_100), Input::Command(Command::Stop));
    a.handle(at(2_100), Input::Drained);
    let events = settle(at(2_100), &mut store, &mut a);
    assert_eq!(events.last(), Some(&Event::Stopped), "{events:?}");
}
