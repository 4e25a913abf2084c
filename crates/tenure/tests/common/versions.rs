//! Which version of a server the tests run on, for figures.

use std::ffi::OsStr;
use std::process::Command;

/// The first version in what a program says of itself.
pub(crate) fn version(program: impl AsRef<OsStr>, arguments: &[&str]) -> String {
    let said = Command::new(&program).args(arguments).output();
    let said = said.expect("a program").stdout;
    let said = String::from_utf8_lossy(&said);
    let is_of_version = |letter: &char| letter.is_ascii_digit() || *letter == '.';
    let mut versions = said.split([' ', '=', ':', '\n', '\t']).map(|word| {
        let word = word.trim_start_matches('v').chars();
        word.take_while(is_of_version).collect::<String>()
    });
    let version = versions.find(|word| word.trim_matches('.').contains('.'));
    version.unwrap_or_else(|| panic!("no version in {said:?}"))
}
