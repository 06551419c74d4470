//! A first walk through a whole file, before anything is made of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, Visitor};

use super::MOST_ERRORS;
use crate::policy::check::{Complaint, Step};

/// What aliases may blow a file up to: values, with a byte of text counted as a sixteenth.
const LARGEST_TREE: usize = 1 << 18;

/// A first walk through the whole file: how large it is with its aliases, and what no file of ours may contain. Two equal
/// keys of a named map serde would take without a word, and a value that is not there for a default.
pub struct Census {
    budget: usize,
    at: Vec<Step>,
    pub complaints: Vec<Complaint>,
}

impl Default for Census {
    fn default() -> Self {
        Self { budget: LARGEST_TREE, at: Vec::new(), complaints: Vec::new() }
    }
}

impl Census {
    /// Whether nothing was met.
    pub fn is_empty(&self) -> bool {
        self.budget == LARGEST_TREE
    }

    fn count<E: serde::de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.budget = self.budget.checked_sub(1 + bytes / 16).filter(|left| *left > 0).ok_or_else(|| {
            E::custom("too much, expected a smaller file; aliases (`*name`) count as what they stand for")
        })?;
        Ok(())
    }

    fn complain(&mut self, at: Vec<Step>, what: String) {
        if self.complaints.len() < MOST_ERRORS {
            self.complaints.push(Complaint { at, what });
        }
    }
}

impl<'de> DeserializeSeed<'de> for &mut Census {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Census {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.count(0)
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.count(0)
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.count(0)
    }

    fn visit_i128<E: serde::de::Error>(self, _: i128) -> Result<(), E> {
        self.count(0)
    }

    fn visit_u128<E: serde::de::Error>(self, _: u128) -> Result<(), E> {
        self.count(0)
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.count(0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.count(text.len())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        if self.at.is_empty() {
            return Ok(());
        }
        self.count(0)?;
        let what = match self.at.last() {
            Some(Step::Key(key)) => format!("`{key}` has no value, expected one, or the key left out"),
            _ => "an item without a value, expected one".into(),
        };
        let at = self.at.clone();
        self.complain(at, what);
        Ok(())
    }

    /// The whole of an empty file.
    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.count(0)?;
        for item in 0.. {
            self.at.push(Step::Item(item));
            if items.next_element_seed(&mut *self)?.is_none() {
                break;
            }
            self.at.pop();
        }
        self.at.pop();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.count(0)?;
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        while let Some(Name(key)) = map.next_key()? {
            self.count(key.len())?;
            let before = times.entry(key.clone()).or_default();
            if *before > 0 {
                let at = self.at.iter().cloned().chain([Step::Name(key.clone(), *before)]).collect();
                self.complain(at, format!("duplicate key `{key}`, expected it once"));
            }
            *before += 1;
            self.at.push(Step::Key(key));
            map.next_value_seed(&mut *self)?;
            self.at.pop();
        }
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(A::Error::custom("a tag (`!…`), expected a plain value; quote a text that begins with `!`"))
    }
}

/// A key.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Plain;

        impl Visitor<'_> for Plain {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a key, which is a word")
            }

            fn visit_str<E>(self, key: &str) -> Result<Name, E> {
                Ok(Name(key.to_owned()))
            }
        }

        deserializer.deserialize_str(Plain)
    }
}
