//! The values that a key allows: the check, and the text of a refusal. Pure.

use std::fmt;

/// The values that a key allows. [`fmt::Display`] completes the sentence "the value must be …".
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowed {
    /// A whole number from the first to the second bound, both inclusive.
    Whole(u64, u64),
    /// This word, or a whole number from 1 to this bound.
    WholeOr(&'static str, u64),
    /// A finite number above 0.
    Positive,
    /// A number in `[0, 1)`.
    Fraction,
    /// One of these words.
    Words(&'static [&'static str]),
    /// Any text of the described form; the parser of the key's type checks it.
    Form(&'static str),
    /// Like `Form`, but the value is hidden in errors.
    Secret(&'static str),
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(from, u64::MAX) => write!(f, "a whole number of {from} or more"),
            Self::Whole(from, to) => write!(f, "a whole number from {from} to {to}"),
            Self::WholeOr(word, u64::MAX) => write!(f, "{word}, or a whole number of 1 or more"),
            Self::WholeOr(word, to) => write!(f, "{word}, or a whole number from 1 to {to}"),
            Self::Positive => write!(f, "a finite number above 0"),
            Self::Fraction => write!(f, "a number in [0, 1)"),
            Self::Words(words) => write!(f, "one of {}", words.join(", ")),
            Self::Form(form) | Self::Secret(form) => write!(f, "{form}"),
        }
    }
}

impl Allowed {
    /// Whether the text is in range; always true for forms, which the key's type checks.
    pub(super) fn contains(&self, text: &str) -> bool {
        let whole = || text.parse::<u64>().ok();
        let number = || text.parse::<f32>().ok();
        match self {
            Self::Whole(from, to) => whole().is_some_and(|value| (*from..=*to).contains(&value)),
            Self::WholeOr(word, to) => {
                text == *word || whole().is_some_and(|value| (1..=*to).contains(&value))
            }
            Self::Positive => number().is_some_and(|value| value.is_finite() && value > 0.0),
            Self::Fraction => number().is_some_and(|value| (0.0..1.0).contains(&value)),
            Self::Words(words) => words.contains(&text),
            Self::Form(_) | Self::Secret(_) => true,
        }
    }
}
