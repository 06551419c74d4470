//! Quantities that cannot be confused, and how people write them: `40GiB`, `50%`, `1h30m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

/// What was read where a quantity was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not {expected}")]
pub struct Malformed {
    pub found: String,
    pub expected: &'static str,
}

impl Malformed {
    pub fn new(found: &str, expected: &'static str) -> Self {
        Self { found: found.to_owned(), expected }
    }
}

/// A value that people write as one scalar. Deserialised inside the visitor, so that an error bears the place of the
/// value itself and not of the map around it.
pub trait Scalar: Sized {
    /// Completes "expected …".
    const EXPECTED: &'static str;

    fn from_text(text: &str) -> Result<Self, Malformed>;

    /// A bare number; most quantities refuse one, for it has no unit.
    fn from_number(number: u64) -> Result<Self, Malformed> {
        Err(Malformed { found: number.to_string(), expected: Self::EXPECTED })
    }
}

/// Deserialises a [`Scalar`]; for `#[serde(deserialize_with)]` and for the impls of this crate.
pub fn scalar<'de, T: Scalar, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Visitor<T>(std::marker::PhantomData<T>);

    impl<T: Scalar> serde::de::Visitor<'_> for Visitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str(T::EXPECTED)
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            T::from_text(text).map_err(E::custom)
        }

        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
            T::from_number(number).map_err(E::custom)
        }
    }

    deserializer.deserialize_any(Visitor(std::marker::PhantomData))
}

/// Implements `FromStr` and `Deserialize` for a [`Scalar`].
macro_rules! read_as_scalar {
    ($($type:ty),+ $(,)?) => {$(
        impl std::str::FromStr for $type {
            type Err = $crate::units::Malformed;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                <Self as $crate::units::Scalar>::from_text(text)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::units::scalar(deserializer)
            }
        }
    )+};
}
pub(crate) use read_as_scalar;

/// Deserialises a list that may not be empty; for `#[serde(deserialize_with)]`.
pub fn filled<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Visitor<T>(std::marker::PhantomData<T>);

    impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                list.push(item);
            }
            if list.is_empty() {
                return Err(serde::de::Error::custom("an empty list, expected at least one item"));
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(Visitor(std::marker::PhantomData))
}

/// Likewise, for a key that may be left out.
pub fn filled_option<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    filled(deserializer).map(Some)
}

/// Deserialises a map as it is written, and then into what it means. Inside the visitor, so that an error bears the
/// place of this map and not of what is around it.
pub fn meaning<'de, W: Deserialize<'de>, T, D: Deserializer<'de>>(
    deserializer: D,
    read: fn(W) -> Result<T, String>,
) -> Result<T, D::Error> {
    struct Visitor<W, T>(fn(W) -> Result<T, String>);

    impl<'de, W: Deserialize<'de>, T> serde::de::Visitor<'de> for Visitor<W, T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a map of keys")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            let written = W::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
            (self.0)(written).map_err(serde::de::Error::custom)
        }
    }

    deserializer.deserialize_map(Visitor(read))
}

/// An amount of memory in bytes, written `500MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

const BINARY_UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

impl Scalar for Bytes {
    const EXPECTED: &'static str = "a size with its unit, such as 40GiB or 500MiB";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed::new(text, Self::EXPECTED);
        let (number, shift) = BINARY_UNITS
            .iter()
            .find_map(|(unit, shift)| text.strip_suffix(unit).map(|number| (number, *shift)))
            .ok_or_else(malformed)?;
        let bytes = decimal(number.trim_end()).ok_or_else(malformed)? * (1u64 << shift) as f64;
        // 2^53: above it an f64 no longer tells bytes apart, and no card is as large.
        if bytes > 9_007_199_254_740_992.0 { Err(malformed()) } else { Ok(Self(bytes.round() as u64)) }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (unit, shift) = BINARY_UNITS
            .iter()
            .find(|(_, shift)| self.0 >= 1u64 << shift)
            .unwrap_or(&BINARY_UNITS[BINARY_UNITS.len() - 1]);
        let amount = self.0 as f64 / (1u64 << shift) as f64;
        write!(f, "{}{unit}", (amount * 10.0).round() / 10.0)
    }
}

/// A share in percent, written `50%`; a utilisation is at most 100.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Percent(pub f64);

impl Percent {
    /// The share as a ratio, 0 to 1, as Prometheus wants it.
    pub fn ratio(self) -> f64 {
        self.0 / 100.0
    }
}

impl Scalar for Percent {
    const EXPECTED: &'static str = "a share with a percent sign, such as 50%";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let number = text.strip_suffix('%').and_then(|number| decimal(number.trim_end()));
        number.map(Self).ok_or_else(|| Malformed::new(text, Self::EXPECTED))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}%", (self.0 * 10.0).round() / 10.0)
    }
}

/// A length of time, written `90s`, `5m`, `1h30m`, `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

const TIME_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("ms", 1), ("m", 60_000), ("s", 1_000)];

impl Scalar for Span {
    const EXPECTED: &'static str = "a duration with its units, such as 90s, 5m, 1h30m or 7d";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed::new(text, Self::EXPECTED);
        let mut rest = text;
        let mut millis: u64 = 0;
        let mut before = u64::MAX;
        while !rest.is_empty() {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let number: u64 = rest[..digits].parse().map_err(|_| malformed())?;
            rest = &rest[digits..];
            let (unit, size) = TIME_UNITS.iter().find(|(unit, _)| rest.starts_with(unit)).ok_or_else(malformed)?;
            // `5s5m` or `5m5m` is more likely a slip than a meaning.
            if *size >= before {
                return Err(malformed());
            }
            before = *size;
            millis = number.checked_mul(*size).and_then(|part| millis.checked_add(part)).ok_or_else(malformed)?;
            rest = &rest[unit.len()..];
        }
        // A hundred years: beyond, sums of spans could overflow, and nobody means it.
        if text.is_empty() || millis > 100 * 365 * 86_400_000 {
            Err(malformed())
        } else {
            Ok(Self(Duration::from_millis(millis)))
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut millis = self.0.as_millis();
        if millis == 0 {
            return f.write_str("0s");
        }
        for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
            let count = millis / size;
            millis %= size;
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

read_as_scalar!(Bytes, Percent, Span);

/// A decimal number as people write it: digits and at most one point, so neither `1e9` nor `inf` nor `-1`.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.chars().all(|c| c.is_ascii_digit() || c == '.') && text.starts_with(|c: char| c.is_ascii_digit());
    if plain { f64::from_str(text).ok() } else { None }
}

/// Measured quantities: a number and its unit, as the driver or the kernel tells it.
macro_rules! measured {
    ($($(#[$doc:meta])+ $name:ident),+ $(,)?) => {$(
        $(#[$doc])+
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub f64);
    )+};
}

measured! {
    /// Power in watts.
    Watts,
    /// Temperature in degrees Celsius.
    Celsius,
    /// Energy in joules.
    Joules,
    /// Frequency in hertz.
    Hertz,
}

/// A user id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(pub u32);

/// A group id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gid(pub u32);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_needs_its_unit() {
        assert_eq!("40GiB".parse(), Ok(Bytes(40 << 30)));
        assert_eq!("1.5KiB".parse(), Ok(Bytes(1536)));
        for wrong in ["40", "40GB", "-1GiB", "1e3GiB", "GiB", "infGiB", "", "99999999TiB"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_goes_from_the_large_unit_to_the_small() {
        assert_eq!("1h30m".parse(), Ok(Span(Duration::from_secs(5400))));
        assert_eq!("250ms".parse(), Ok(Span(Duration::from_millis(250))));
        for wrong in ["", "90", "5s5m", "5m5m", "-5m", "1.5h", "99999999999d", "m"] {
            assert!(wrong.parse::<Span>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for text in ["1h30m", "7d", "90s", "250ms", "0s"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        assert_eq!(Bytes(300 << 20).to_string(), "300MiB");
        assert_eq!(Bytes(0).to_string(), "0B");
        assert_eq!(Percent(33.333).to_string(), "33.3%");
    }
}
