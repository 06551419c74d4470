//! An error with its causes, as people read it.

use std::error::Error;

use crate::text::cleaned;

/// In one line, the cause behind each colon. What an error repeats may come from anywhere, and commands no terminal.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    cleaned(&causes.map(ToString::to_string).collect::<Vec<_>>().join(": "), char::REPLACEMENT_CHARACTER)
}
