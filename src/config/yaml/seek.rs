//! What stands at a path of a YAML text, and where.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::policy::check::Step;

/// What no value is: the error bears the place.
pub enum Nothing {}

impl<'de> Deserialize<'de> for Nothing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Refuse;

        impl Visitor<'_> for Refuse {
            type Value = Nothing;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("nothing")
            }
        }

        deserializer.deserialize_any(Refuse)
    }
}

/// The keys of a map, in their order.
pub struct Keys(pub Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }

        deserializer.deserialize_any(Collect)
    }
}

/// Reads what stands at a path, or `None` where the path leads nowhere.
pub fn seek<T: DeserializeOwned>(text: &str, at: &[Step]) -> Result<Option<T>, serde_yaml::Error> {
    Seek { at, as_type: std::marker::PhantomData }.deserialize(serde_yaml::Deserializer::from_str(text))
}

struct Seek<'a, T> {
    at: &'a [Step],
    as_type: std::marker::PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Seek<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        if self.at.is_empty() { T::deserialize(deserializer).map(Some) } else { deserializer.deserialize_any(self) }
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Seek<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list or a map")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<T>, A::Error> {
        let mut found = None;
        if let [Step::Item(wanted), below @ ..] = self.at {
            for _ in 0..*wanted {
                if items.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(None);
                }
            }
            found = items.next_element_seed(Seek { at: below, as_type: self.as_type })?.flatten();
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<T>, A::Error> {
        let mut found = None;
        let mut times = 0;
        while let Some(is_name) = map.next_key_seed(SeekKey { at: self.at, times: &mut times })? {
            match self.at {
                [Step::Key(_), below @ ..] if is_name && found.is_none() => {
                    found = map.next_value_seed(Seek { at: below, as_type: self.as_type })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// Tells whether a key is the next step, and fails at the key that a path ends with.
struct SeekKey<'a> {
    at: &'a [Step],
    times: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for SeekKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for SeekKey<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<bool, E> {
        match self.at.first() {
            Some(Step::Key(wanted)) => Ok(wanted == key),
            Some(Step::Name(wanted, occurrence)) if wanted == key => {
                *self.times += 1;
                if *self.times > *occurrence { Err(E::custom("here")) } else { Ok(false) }
            }
            _ => Ok(false),
        }
    }
}
