//! Floating-point numbers in JSON, which cannot represent NaN and infinities: a loss that has
//! become NaN must be reported, and must not make its report unreadable. Used as `#[serde(with =
//! "real")]`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number, or the text for a non-finite one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Word(String),
}

/// Writes a finite number as a number, another one as the text `NaN`, `inf` or `-inf`.
///
/// # Errors
/// The serializer's error.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() {
        value.serialize(serializer)
    } else {
        value.to_string().serialize(serializer)
    }
}

/// Reads a number or the text of a non-finite one.
///
/// # Errors
/// The value is neither.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match Written::deserialize(deserializer)? {
        Written::Number(value) => Ok(value),
        Written::Word(word) => word
            .parse()
            .map_err(|_| de::Error::custom(format!("{word:?} is no number"))),
    }
}
