//! Objects in JSON. The deserializer of a structure would also take a list, if its elements are in
//! the order of the fields.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A structure that is read from an object in JSON.
pub trait JsonObject {
    /// What is expected, for messages: "an object with name and target".
    const EXPECTED: &str;
}

/// A structure that is read from an object.
pub struct FromObject<T>(pub T);

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + JsonObject> Deserialize<'de> for FromObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(FromObject)
    }
}

impl<'de, T: Deserialize<'de> + JsonObject> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(T::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}
