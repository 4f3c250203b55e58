//! Errors in a scenario, for its author.

use super::SHIPPED;
use std::path::PathBuf;

/// The reason why a scenario is refused. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Neither a shipped scenario nor a file has this name.
    #[error(
        "there is no scenario '{name}'; did you mean '{nearest}'? Give one of {shipped}, or the \
         path of a TOML file"
    )]
    UnknownName {
        /// The requested name.
        name: String,
        /// The closest shipped scenario.
        nearest: &'static str,
        /// All shipped scenarios.
        shipped: String,
    },
    /// The file cannot be read.
    #[error("cannot read the scenario {}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The file is not TOML, or has keys that a scenario does not have.
    #[error("{source_name}, line {line}: {message}")]
    Syntax {
        /// Name of the file or the shipped scenario.
        source_name: String,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the error.
        message: String,
    },
    /// A value makes no sense.
    #[error("{source_name}: {what}")]
    Value {
        /// Name of the file or the shipped scenario.
        source_name: String,
        /// Description of the error, and of the allowed values.
        what: String,
    },
}

impl ScenarioError {
    pub(super) fn unknown_name(name: &str) -> Self {
        let names = || SHIPPED.iter().map(|shipped| shipped.name);
        let nearest = names()
            .min_by_key(|known| strsim::damerau_levenshtein(known, name))
            .unwrap_or("");
        Self::UnknownName {
            name: name.to_owned(),
            nearest,
            shipped: names().collect::<Vec<_>>().join(", "),
        }
    }

    pub(super) fn syntax(source: &str, text: &str, error: &toml::de::Error) -> Self {
        let offset = error.span().map_or(0, |span| span.start);
        let line = 1 + text
            .bytes()
            .take(offset)
            .filter(|byte| *byte == b'\n')
            .count();
        Self::Syntax {
            source_name: source.to_owned(),
            line,
            message: with_nearest(error.message()),
        }
    }
}

/// Adds the nearest known word to a message of the form "unknown field `x`, expected one of `a`,
/// `b`".
fn with_nearest(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    if !message.starts_with("unknown") {
        return message.to_owned();
    }
    let Some(unknown) = words.next() else {
        return message.to_owned();
    };
    match words.min_by_key(|known| strsim::damerau_levenshtein(known, unknown)) {
        Some(nearest) => format!("{message}; did you mean `{nearest}`?"),
        None => message.to_owned(),
    }
}
