//! Splits a command line into the binary's own flags and the `--slowmo-…` flags, which `slowmo::Config::load` reads.

/// What starts a flag of the runtime.
pub const RUNTIME_FLAG_PREFIX: &str = "--slowmo-";

/// A command line, split by who reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitArguments {
    /// For the binary's own parser; the program's name stays first.
    pub own: Vec<String>,
    /// The runtime's flags with their values.
    pub runtime: Vec<String>,
}

/// Takes `--slowmo-key value`, `--slowmo-key=value` and bare `--slowmo-key` out of `arguments`.
///
/// A word after `--slowmo-key` is its value unless it starts with `--`. What follows a lone `--` is the binary's own.
pub fn split(arguments: impl IntoIterator<Item = String>) -> SplitArguments {
    let mut parts = SplitArguments::default();
    let mut words = arguments.into_iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            parts.own.push(word);
            parts.own.extend(words);
            break;
        }
        if !word.starts_with(RUNTIME_FLAG_PREFIX) {
            parts.own.push(word);
            continue;
        }
        let wants_value = !word.contains('=');
        parts.runtime.push(word);
        if wants_value {
            parts.runtime.extend(words.next_if(|next| !next.starts_with("--")));
        }
    }
    parts
}

/// Parses the binary's own flags of this process with clap; the runtime's flags are left to `slowmo::Config::load`.
#[must_use]
pub fn parse_own<P: clap::Parser>() -> P {
    P::parse_from(split(std::env::args()).own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_and_runtime(line: &str) -> (String, String) {
        let parts = split(line.split(' ').map(str::to_owned));
        (parts.own.join(" "), parts.runtime.join(" "))
    }

    #[test]
    fn every_spelling_of_a_runtime_flag_is_taken_out() {
        let cases = [
            ("digits --steps 5", "digits --steps 5", ""),
            ("digits --slowmo-tau 12 --steps 5", "digits --steps 5", "--slowmo-tau 12"),
            ("digits --slowmo-tau=12 --steps 5", "digits --steps 5", "--slowmo-tau=12"),
            ("digits --slowmo-no-average --steps 5", "digits --steps 5", "--slowmo-no-average"),
            ("digits --slowmo-alpha -1 x", "digits x", "--slowmo-alpha -1"),
            ("digits -- --slowmo-tau 12", "digits -- --slowmo-tau 12", ""),
        ];
        for (line, own, runtime) in cases {
            assert_eq!(own_and_runtime(line), (own.to_owned(), runtime.to_owned()), "{line}");
        }
    }
}
