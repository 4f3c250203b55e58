//! The log of a program that runs nodes.

use std::env::VarError;
use std::io::IsTerminal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub use tracing_subscriber::filter::LevelFilter;

const VARIABLE: &str = "SLOWMO_LOG";

/// Sends the log to standard error: what `SLOWMO_LOG` selects (`info`, or by module
/// `warn,slowmo=debug`), and without it `level` and above.
///
/// # Errors
/// If `SLOWMO_LOG` cannot be read, or if the process has a log already.
pub fn to_standard_error(level: LevelFilter) -> anyhow::Result<()> {
    let selected = match std::env::var(VARIABLE) {
        Ok(text) => selection(&text)?,
        Err(VarError::NotPresent) => Targets::new().with_default(level),
        Err(error) => anyhow::bail!("{VARIABLE}: {error}"),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    tracing_subscriber::registry()
        .with(lines)
        .with(selected)
        .try_init()?;
    Ok(())
}

fn selection(text: &str) -> anyhow::Result<Targets> {
    text.parse().map_err(|error| {
        anyhow::anyhow!(
            "{VARIABLE}={text:?} selects nothing ({error}): write a level (info), or levels of \
             modules (warn,slowmo=debug)"
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_a_level_or_levels_of_modules() {
        assert_eq!(
            selection("info").unwrap().default_level(),
            Some(LevelFilter::INFO)
        );
        let levels = selection("warn,slowmo=debug").unwrap();
        assert!(levels.would_enable("slowmo::worker", &tracing::Level::DEBUG));
        assert!(!levels.would_enable("quinn", &tracing::Level::INFO));
    }

    #[test]
    fn a_selection_that_cannot_be_read_is_refused_with_what_to_write() {
        let error = selection("slowmo=loud").unwrap_err().to_string();
        assert!(
            error.contains("slowmo=loud") && error.contains("slowmo=debug"),
            "{error}"
        );
    }
}
