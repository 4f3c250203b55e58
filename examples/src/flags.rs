//! Parses a binary's own flags; flags that begin with `--slowmo-` are left to
//! `slowmo::Config::load`.

/// Parses this process's command line with clap, without the runtime's flags and their values. Ends
/// the process with clap's message if the rest cannot be parsed, as `Parser::parse` does.
///
/// # Errors
/// A `--slowmo-…` flag lacks its value.
pub fn parse_own<P: clap::Parser>() -> Result<P, slowmo::ConfigError> {
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let own = slowmo::user_arguments(words)?;
    Ok(P::parse_from(std::iter::once(program).chain(own)))
}
