//! An error and where it stands: `file:line:column: what is wrong, what was expected`.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::text::misleads;

/// One error of one file, lines and columns counted from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnostic {
    pub file: PathBuf,
    pub line: usize,
    pub column: usize,
    pub message: String,
}

impl Diagnostic {
    /// An error of the file as a whole: it cannot be read, or is none.
    pub fn of_file(file: &Path, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: 1, column: 1, message: message.into() }
    }

    /// Its line and column.
    pub fn place(&self) -> (usize, usize) {
        (self.line, self.column)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file.display(), self.line, self.column)?;
        // What was found is quoted, and may be anything: a terminal gets nothing that it would obey, and a log one line.
        self.message
            .chars()
            .try_for_each(|c| if misleads(c) { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") })
    }
}
