//! Quantities as people write them (`80GiB`, `37%`, `120W`, `30ms`) and as NVML counts them.

use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Written in YAML as a string, or as a bare number.
macro_rules! written {
    ($type:ident) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Scalar)?.parse().map_err(D::Error::custom)
            }
        }
    };
}

/// The text of a scalar: a string, or a number as it is written in short.
struct Scalar;

impl Visitor<'_> for Scalar {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number, with or without its unit")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

/// A number of units; the first unit is that of a bare number, the number inside counts the unit whose factor is 1.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($number:ty): $($unit:literal = $factor:expr),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub $number);

        impl $name {
            const UNITS: &[(&str, u64)] = &[$(($unit, $factor)),+];
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let number = parse(text, Self::UNITS)?;
                number.try_into().map($name).map_err(|_| format!("`{text}` is too much"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                let number = u64::from(self.0);
                let divides = |&&(_, factor): &&(&str, u64)| number >= factor && number % factor == 0;
                let smallest = || Self::UNITS.iter().min_by_key(|unit| unit.1);
                let unit = Self::UNITS.iter().filter(divides).max_by_key(|unit| unit.1).or_else(smallest);
                unit.map_or(Ok(()), |(unit, factor)| write!(f, "{}{unit}", number / factor))
            }
        }

        impl From<$name> for $number {
            fn from(quantity: $name) -> $number {
                quantity.0
            }
        }

        written!($name);
    };
}

quantity! {
    /// Memory and traffic, in bytes.
    Bytes(u64): "B" = 1, "KiB" = 1 << 10, "MiB" = 1 << 20, "GiB" = 1 << 30, "TiB" = 1 << 40
}
quantity! {
    /// A share, in whole percent, as NVML counts it.
    Percent(u32): "%" = 1
}
quantity! {
    /// Power, in milliwatts.
    Power(u32): "W" = 1000, "mW" = 1, "kW" = 1_000_000
}
quantity! {
    /// Energy, in millijoules.
    Energy(u64): "J" = 1000, "mJ" = 1, "kJ" = 1_000_000, "MJ" = 1_000_000_000
}
quantity! {
    /// The rate of a clock, in MHz.
    Clock(u32): "MHz" = 1, "GHz" = 1000
}
quantity! {
    /// A span of time, in microseconds.
    Span(u64): "s" = 1_000_000, "us" = 1, "ms" = 1000, "m" = 60_000_000, "h" = 3_600_000_000
}

fn parse(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let known = || units.iter().map(|unit| unit.0).collect::<Vec<_>>().join(", ");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim());
    let factor = match unit {
        "" => units.first(),
        _ => units.iter().find(|known| known.0 == unit),
    };
    let &(_, factor) = factor.ok_or_else(|| format!("`{text}`: the unit should be one of {}", known()))?;
    let wrong = || format!("`{text}` is not a number with a unit out of {}", known());
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor).ok_or_else(|| format!("`{text}` is too much")),
        Err(_) => number.parse::<f64>().map(|number| (number * factor as f64).round() as u64).map_err(|_| wrong()),
    }
}

/// Two numbers with a dot between, such as a CUDA version or a compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub major: i32,
    pub minor: i32,
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
        let number = |digits: &str| digits.parse().map_err(|_| format!("`{text}` is not a version such as 12.8"));
        Ok(Self { major: number(major)?, minor: number(minor)? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

written!(Version);

/// A pace: the same all the time, or a square wave over the clock of the world.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Load {
    Steady(Percent),
    Wave(Wave),
}

/// `high` for the first half of each period, `low` for the second. Periods are counted from the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wave {
    pub low: Percent,
    pub high: Percent,
    pub period: Span,
}

impl Load {
    /// The load at a moment, in microseconds since the epoch.
    pub fn at(self, moment: u64) -> Percent {
        match self {
            Load::Steady(percent) => percent,
            Load::Wave(Wave { low, high, period: Span(period) }) => {
                let first_half = period == 0 || moment % period < period.div_ceil(2);
                if first_half { high } else { low }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_written_with_their_units() {
        assert_eq!("80GiB".parse(), Ok(Bytes(80 << 30)));
        assert_eq!("1.5 GiB".parse(), Ok(Bytes(3 << 29)));
        assert_eq!("37".parse(), Ok(Percent(37)));
        assert_eq!("120.5W".parse(), Ok(Power(120_500)));
        assert_eq!("120".parse(), Ok(Power(120_000)));
        assert_eq!(Bytes(500 << 20).to_string(), "500MiB");
        assert_eq!(Power(0).to_string(), "0mW");
        assert_eq!("18446744073709551615".parse(), Ok(Bytes(u64::MAX)));
        assert!("12 parsecs".parse::<Bytes>().is_err_and(|error| error.contains("GiB")));
    }

    #[test]
    fn a_wave_is_high_then_low() {
        let wave = Load::Wave(Wave { low: Percent(0), high: Percent(90), period: Span(20) });
        assert_eq!([0, 9, 10, 19, 20].map(|moment| wave.at(moment).0), [90, 90, 0, 0, 90]);
    }
}
