//! Real numbers in JSON, which has no word for those that are not finite: a loss that has become NaN must be told, and must not make what
//! tells of it unreadable. Used as `#[serde(with = "real")]`.

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
    if value.is_finite() { value.serialize(serializer) } else { value.to_string().serialize(serializer) }
}

/// Reads either.
///
/// # Errors
/// It is neither.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match Written::deserialize(deserializer)? {
        Written::Number(value) => Ok(value),
        Written::Word(word) => word.parse().map_err(|_| de::Error::custom(format!("{word:?} is no number"))),
    }
}

#[cfg(test)]
mod tests {
    use crate::ident::{Incarnation, NodeId, Step};
    use crate::time::Instant;
    use crate::trace::{Event, Line, Start};

    #[test]
    fn a_loss_that_is_no_number_is_told_and_read() {
        for loss in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.25, -3.0] {
            let start = Start { node: NodeId(1), incarnation: Incarnation(2) };
            let line = Line { at: Instant(3), event: Event::Loss { start, step: Step(4), loss } };
            let text = serde_json::to_string(&line).unwrap();
            let Ok(Line { event: Event::Loss { loss: read, .. }, .. }) = serde_json::from_str(&text) else { panic!("{text}") };
            assert!(read.to_bits() == loss.to_bits() || read.is_nan() && loss.is_nan(), "{text}");
        }
        assert!(serde_json::from_str::<Line>(r#"{"at":3,"event":"loss","node":1,"incarnation":2,"step":4,"loss":"much"}"#).is_err());
    }
}
