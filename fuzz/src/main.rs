//! One target, for libFuzzer: its name is in `TENURE_FUZZ`, everything else is
//! libFuzzer's (`-help=1`). `run.sh` starts it.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let wanted = std::env::var("TENURE_FUZZ").unwrap_or_default();
    let all = tenure_server::fuzzed::TARGETS
        .iter()
        .chain(tenure_agent::fuzzed::TARGETS)
        .chain(tenure_cli::fuzzed::TARGETS);
    let names: Vec<_> = all.clone().map(|(name, _)| *name).collect();
    let found = all.clone().find(|(name, _)| *name == wanted);
    let (_, target) = found
        .unwrap_or_else(|| panic!("expected TENURE_FUZZ to be one of {names:?}, found {wanted:?}"));
    *target
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
