//! What a value of the configuration may be: numbers with bounds, patterns, paths.

use std::path::PathBuf;
use std::time::Duration;

use crate::units::{Malformed, Percent, Scalar, Span, Uid, read_as_scalar};

/// Deserialises what a bound lets through.
pub fn bounded<'de, B: Scalar + Into<T>, T, D: serde::Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    crate::units::scalar::<B, D>(deserializer).map(Into::into)
}

/// Declares numbers with bounds: the type, what it holds, how it is read, and in words what is expected.
macro_rules! bounds {
    ($($name:ident($inner:ty): $from_text:expr, $from_number:expr, $expected:literal;)+) => {$(
        #[derive(Debug, Clone, Copy)]
        pub struct $name($inner);

        impl From<$name> for $inner {
            fn from(bounded: $name) -> Self {
                bounded.0
            }
        }

        impl Scalar for $name {
            const EXPECTED: &'static str = $expected;

            fn from_text(text: &str) -> Result<Self, Malformed> {
                let read: fn(&str) -> Option<$inner> = $from_text;
                read(text).map(Self).ok_or_else(|| Malformed::new(text, Self::EXPECTED))
            }

            fn from_number(number: u64) -> Result<Self, Malformed> {
                let read: fn(u64) -> Option<$inner> = $from_number;
                read(number).map(Self).ok_or_else(|| Malformed::new(&number.to_string(), Self::EXPECTED))
            }
        }

        read_as_scalar!($name);
    )+};
}

bounds! {
    Interval(Duration):
        |text| span(text).filter(|span| (Duration::from_millis(100)..=Duration::from_secs(600)).contains(span)),
        |_| None,
        "an interval from 100ms to 10m, such as 5s";
    StartDelay(Duration):
        |text| span(text).filter(|span| *span <= Duration::from_secs(86_400)),
        |_| None,
        "a duration of at most 1d, such as 60s";
    Positive(u32):
        |_| None,
        |number| u32::try_from(number).ok().filter(|number| *number > 0),
        "a whole number above 0, such as 3";
    Share(Percent):
        |text| Percent::from_text(text).ok().filter(|share| share.0 > 0.0 && share.0 <= 100.0),
        |_| None,
        "a share above 0% and up to 100%, such as 25%";
    MinUid(Uid):
        |_| None,
        |number| u32::try_from(number).ok().filter(|uid| *uid > 0).map(Uid),
        "a uid above 0, such as 1000";
    SeriesCap(usize):
        |_| None,
        |number| usize::try_from(number).ok().filter(|number| *number <= 100_000),
        "a number of series from 0 to 100000, such as 256";
}

fn span(text: &str) -> Option<Duration> {
    Span::from_text(text).ok().map(|span| span.0)
}

/// A path, or a pattern of paths.
#[derive(Debug, Clone)]
pub struct Pattern(pub String);

impl Scalar for Pattern {
    const EXPECTED: &'static str = "a path or a pattern of paths, such as rules/*.yaml";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let fits = !text.is_empty() && !text.contains('\0') && glob::Pattern::new(text).is_ok();
        if fits { Ok(Self(text.to_owned())) } else { Err(Malformed::new(text, Self::EXPECTED)) }
    }
}

/// An absolute path.
#[derive(Debug, Clone)]
pub struct StateDir(pub PathBuf);

impl Scalar for StateDir {
    const EXPECTED: &'static str = "an absolute path, such as /var/lib/gpuwarden";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let fits = text.starts_with('/') && !text.contains('\0');
        if fits { Ok(Self(text.into())) } else { Err(Malformed::new(text, Self::EXPECTED)) }
    }
}

read_as_scalar!(Pattern, StateDir);
