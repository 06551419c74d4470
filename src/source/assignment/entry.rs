//! One right as admins write it, in the configuration and in the files of another program.

use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::schedule::{Date, Window};
use crate::snapshot::{GpuSelector, Validity};
use crate::units::{Malformed, Scalar, filled, read_as_scalar};

/// `{to: {group: vision}, gpus: [0, 4-7], time: "Mon-Fri 22:00-06:00 Asia/Shanghai", from: …, until: …}`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub to: To,
    /// Never empty.
    #[serde(deserialize_with = "filled")]
    pub gpus: Vec<GpuSelector>,
    pub time: Option<Window>,
    /// Included.
    pub from: Option<Date>,
    /// Not included.
    pub until: Option<Date>,
}

/// The name of a user or a group; digits are one too.
struct Name(String);

impl Scalar for Name {
    const EXPECTED: &'static str = "a name";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        if text.is_empty() { Err(Malformed::new(text, Self::EXPECTED)) } else { Ok(Self(text.to_owned())) }
    }

    fn from_number(number: u64) -> Result<Self, Malformed> {
        Ok(Self(number.to_string()))
    }
}

read_as_scalar!(Name);

impl Entry {
    pub fn validity(&self) -> Validity {
        let [from, until] = [self.from, self.until].map(|date| date.map(|date| date.0));
        Validity { window: self.time.clone(), from, until }
    }

    /// What is wrong with it although each of its parts is in order.
    pub fn fault(&self) -> Option<&'static str> {
        let backwards = self.from.zip(self.until).is_some_and(|(from, until)| from >= until);
        backwards.then_some("the right ends before it begins, expected `until` after `from`")
    }
}

/// Whom a right names, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    Everyone,
    User(String),
    Group(String),
}

impl<'de> Deserialize<'de> for To {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = To;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("`everyone`, {user: NAME} or {group: NAME}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<To, E> {
                if text == "everyone" {
                    Ok(To::Everyone)
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
                }
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<To, A::Error> {
                use serde::de::Error;
                let to = match map.next_key::<String>()?.as_deref() {
                    Some("user") => To::User(map.next_value::<Name>()?.0),
                    Some("group") => To::Group(map.next_value::<Name>()?.0),
                    Some(other) => return Err(A::Error::unknown_field(other, &["user", "group"])),
                    None => return Err(A::Error::custom("an empty map, expected {user: NAME} or {group: NAME}")),
                };
                match map.next_key::<String>()? {
                    None => Ok(to),
                    Some(_) => Err(A::Error::custom("more than one name, expected {user: NAME} or {group: NAME}")),
                }
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
