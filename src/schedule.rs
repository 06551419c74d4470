//! Windows of the week, in their zone: `Mon-Fri 22:00-06:00 Asia/Shanghai`.

use jiff::Timestamp;

use crate::units::{Malformed, Scalar, read_as_scalar};

/// A window of the week by the wall clock of its zone, start included, end not.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    text: String,
}

impl Window {
    pub fn contains(&self, _at: Timestamp) -> bool {
        todo!()
    }
}

impl Scalar for Window {
    const EXPECTED: &'static str = "a window of the week with its zone, such as \"Mon-Fri 22:00-06:00 Asia/Shanghai\"";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        Ok(Self { text: text.to_owned() })
    }
}

read_as_scalar!(Window);

/// A moment that somebody wrote down, with its zone or offset: `2026-12-01T09:00:00+08:00`, `2026-12-01T09:00 Asia/Shanghai`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(pub Timestamp);

impl Scalar for Date {
    const EXPECTED: &'static str = "a time with its offset or zone, such as 2026-12-01T09:00:00+08:00";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        text.parse().map(Self).map_err(|_| Malformed::new(text, Self::EXPECTED))
    }
}

read_as_scalar!(Date);
