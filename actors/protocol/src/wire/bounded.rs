//! Lists and texts with individual bounds: one that claims more is refused before anything is
//! allocated for it, and memory for entries is allocated only as they arrive. So a short message
//! cannot reserve memory for a long one.

#[cfg(test)]
mod tests;

use crate::membership::settings::prefix;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::Serializer;
use std::fmt;
use std::marker::PhantomData;

/// Reads a list of at most `MAX` entries.
pub(crate) fn list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(List::<T, MAX>(PhantomData))
}

/// Reads a text of at most `MAX` bytes.
pub(crate) fn text<'de, D: Deserializer<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<String, D::Error> {
    // Not as an owned string: its memory would be allocated before its length is checked.
    deserializer.deserialize_str(Text::<MAX>)
}

/// Writes at most `MAX` bytes of a text, cut at a character boundary, so that its receivers accept
/// it.
pub(crate) fn cut<S: Serializer, const MAX: usize>(
    text: &str,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(prefix(text, MAX))
}

struct List<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
        let claimed = entries.size_hint().unwrap_or(0);
        if claimed > MAX {
            return Err(A::Error::custom(format!(
                "a list of {claimed} entries exceeds the bound of {MAX}"
            )));
        }
        let mut list = Vec::new();
        while list.len() < MAX
            && let Some(entry) = entries.next_element()?
        {
            list.push(entry);
        }
        Ok(list)
    }
}

struct Text<const MAX: usize>;

impl<const MAX: usize> Visitor<'_> for Text<MAX> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {MAX} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() > MAX {
            return Err(E::custom(format!(
                "a text of {} bytes exceeds the bound of {MAX}",
                text.len()
            )));
        }
        Ok(text.to_owned())
    }
}
