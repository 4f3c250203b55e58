//! Parses a binary's own flags; flags that begin with `--slowmo-` are left to
//! `slowmo::Config::load`.

/// Parses this process's command line with clap, without the runtime's flags and their values. Ends
/// the process with clap's message if the rest cannot be parsed, as `Parser::parse` does.
///
/// # Errors
/// A `--slowmo-…` flag lacks its value.
pub fn parse_own<P: clap::Parser>() -> Result<P, slowmo::ConfigError> {
    Ok(P::parse_from(slowmo::user_arguments(std::env::args())?))
}
