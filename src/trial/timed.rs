//! Values that change in the course of a test, and times in which something is so.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use crate::units::{Malformed, Scalar, Span, scalar};

/// A value that stays, or `{0s: 90%, 5m: 0%}`: one from each moment on.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed<T> {
    /// In ascending order, the first at 0.
    changes: Vec<(Duration, T)>,
}

impl<T> Timed<T> {
    pub fn always(value: T) -> Self {
        Self { changes: vec![(Duration::ZERO, value)] }
    }

    pub fn at(&self, time: Duration) -> &T {
        let begun = self.changes.partition_point(|(from, _)| *from <= time);
        &self.changes[begun - 1].1
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.changes.iter().map(|(_, value)| value)
    }

    /// Each value with the moment from which it holds.
    pub fn changes(&self) -> &[(Duration, T)] {
        &self.changes
    }

    pub fn last_change(&self) -> Duration {
        self.changes[self.changes.len() - 1].0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Timed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimedVisitor(PhantomData))
    }
}

struct TimedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TimedVisitor<T> {
    type Value = Timed<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value, or a map of moments and values such as {0s: …, 5m: …}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Timed<T>, E> {
        T::deserialize(text.into_deserializer()).map(Timed::always)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Timed<T>, E> {
        T::deserialize(number.into_deserializer()).map(Timed::always)
    }

    // No value is one of these, and it says best what it is.
    fn visit_i64<E: Error>(self, number: i64) -> Result<Timed<T>, E> {
        T::deserialize(number.into_deserializer()).map(Timed::always)
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<Timed<T>, E> {
        T::deserialize(number.into_deserializer()).map(Timed::always)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Timed<T>, E> {
        T::deserialize(number.into_deserializer()).map(Timed::always)
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Timed<T>, E> {
        T::deserialize(truth.into_deserializer()).map(Timed::always)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Timed<T>, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(items)).map(Timed::always)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Timed<T>, A::Error> {
        let mut changes: Vec<(Duration, T)> = Vec::new();
        while let Some(Span(from)) = map.next_key()? {
            match changes.last() {
                None if from > Duration::ZERO => {
                    return Err(A::Error::custom(
                        "nothing is said of the beginning, expected `0s` as the first moment",
                    ));
                }
                Some((before, _)) if from <= *before => {
                    return Err(A::Error::custom(format_args!(
                        "`{}` is out of order, expected moments that ascend",
                        Span(from)
                    )));
                }
                _ => changes.push((from, map.next_value()?)),
            }
        }
        if changes.is_empty() {
            Err(A::Error::custom("an empty map, expected {0s: …}"))
        } else {
            Ok(Timed { changes })
        }
    }
}

/// A quantity, or `unknown`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known<T>(pub Option<T>);

impl<T: Scalar> Scalar for Known<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn from_text(text: &str) -> Result<Self, Malformed> {
        if text == "unknown" { Ok(Self(None)) } else { T::from_text(text).map(|value| Self(Some(value))) }
    }

    fn from_number(number: u64) -> Result<Self, Malformed> {
        T::from_number(number).map(|value| Self(Some(value)))
    }
}

impl<'de, T: Scalar> Deserialize<'de> for Known<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer)
    }
}

/// `[5m, 10m, 1h]`: from 5m until 10m, and from 1h to the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Periods(Vec<Duration>);

impl Periods {
    pub fn contain(&self, time: Duration) -> bool {
        self.0.partition_point(|moment| *moment <= time) % 2 == 1
    }

    pub fn last_start(&self) -> Duration {
        self.0[(self.0.len() - 1) / 2 * 2]
    }
}

impl<'de> Deserialize<'de> for Periods {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let moments: Vec<Duration> = Vec::<Span>::deserialize(deserializer)?.into_iter().map(|span| span.0).collect();
        if moments.is_empty() {
            return Err(D::Error::custom("an empty list, expected from and until in turn, such as [5m, 10m]"));
        }
        if !moments.is_sorted_by(|one, next| one < next) {
            return Err(D::Error::custom("moments out of order, expected from and until in turn, such as [5m, 10m]"));
        }
        Ok(Self(moments))
    }
}
