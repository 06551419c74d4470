//! Three-valued truth: what is not known is neither true nor false.

use std::ops::Not;

use serde::{Deserialize, Serialize};

/// Kleene's strong logic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    /// True if all are, false if one is, else unknown.
    pub fn all(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::True, |so_far, part| match (so_far, part) {
            (Self::False, _) | (_, Self::False) => Self::False,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::True, Self::True) => Self::True,
        })
    }

    /// True if one is, false if all are, else unknown.
    pub fn any(parts: impl IntoIterator<Item = Self>) -> Self {
        !Self::all(parts.into_iter().map(Not::not))
    }

    /// What it is, where that is known.
    pub fn known(self) -> Option<bool> {
        match self {
            Self::True => Some(true),
            Self::False => Some(false),
            Self::Unknown => None,
        }
    }

    pub fn is_true(self) -> bool {
        self == Self::True
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::False => "false",
            Self::Unknown => "unknown",
        }
    }
}

impl Not for Truth {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::True => Self::False,
            Self::False => Self::True,
            Self::Unknown => Self::Unknown,
        }
    }
}

impl From<bool> for Truth {
    fn from(known: bool) -> Self {
        if known { Self::True } else { Self::False }
    }
}

impl From<Option<bool>> for Truth {
    fn from(known: Option<bool>) -> Self {
        known.map_or(Self::Unknown, Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::Truth::{False, True, Unknown};
    use super::*;

    #[test]
    fn unknown_decides_nothing_that_a_known_part_does_not() {
        assert_eq!(Truth::all([True, Unknown, False]), False);
        assert_eq!(Truth::all([True, Unknown]), Unknown);
        assert_eq!(Truth::all([]), True);
        assert_eq!(Truth::any([False, Unknown, True]), True);
        assert_eq!(Truth::any([False, Unknown]), Unknown);
        assert_eq!(Truth::any([]), False);
        assert_eq!(!Unknown, Unknown);
    }
}
