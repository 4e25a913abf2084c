//! Programs that no distribution has, which `./test.sh` installs for the tests.

use std::path::PathBuf;

/// Where such a program is, from the place that they are installed in.
pub(crate) fn installed(program: &str) -> PathBuf {
    let place = std::env::var_os("TENURE_TEST_SERVERS").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").expect("a home directory"));
    let place = place.unwrap_or_else(|| home().join(".cache/tenure-test-servers"));
    let program = place.join(program);
    assert!(
        program.exists(),
        "{program:?} is missing; ./test.sh installs it"
    );
    program
}
