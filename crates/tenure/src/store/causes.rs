//! Errors of libraries, with what caused them.

use std::error::Error;

use crate::error::quoted;

/// The causes behind an error, outermost first.
pub(super) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let cause = |error: &&'a (dyn Error + 'static)| (*error).source();
    std::iter::successors(Some(error), cause)
}

/// An error with its causes, in one line.
pub(super) fn text(error: &(dyn Error + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in causes(error) {
        let line = cause.to_string();
        // Most repeat their cause.
        if !said.iter().any(|earlier| earlier.contains(&line)) {
            said.push(line);
        }
    }
    quoted(&said.join(": "))
}
