//! An error with its causes, as people read it.

use std::error::Error;

/// In one line, the cause behind each colon.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
