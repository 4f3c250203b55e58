//! Real numbers in JSON, which has no word for those that are not finite: a loss that has become
//! NaN must be told, and must not make what tells of it unreadable. Used as `#[serde(with =
//! "real")]`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number, or the word for one that is not finite.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Word(String),
}

/// Writes a finite number as such, another one as the text `NaN`, `inf` or `-inf`.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() {
        value.serialize(serializer)
    } else {
        value.to_string().serialize(serializer)
    }
}

/// Reads either.
///
/// # Errors
/// It is neither.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match Written::deserialize(deserializer)? {
        Written::Number(value) => Ok(value),
        Written::Word(word) => word
            .parse()
            .map_err(|_| de::Error::custom(format!("{word:?} is no number"))),
    }
}
