//! Text of others, made fit for a log and a terminal.

pub use slowmo_protocol::printable::{printable, printable_json, printable_lines};

/// At most `bytes_max` bytes of a peer's text, printable; invalid UTF-8 is replaced.
pub(crate) fn printable_bytes(bytes: &[u8], bytes_max: usize) -> String {
    let bounded = &bytes[..bytes.len().min(bytes_max)];
    printable(&String::from_utf8_lossy(bounded)).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::SpawnError;
    use slowmo_actors::ports::discovery::DiscoveryError;
    use slowmo_protocol::coordinator::RoundError;
    use slowmo_protocol::ident::{NodeId, Round};
    use slowmo_protocol::membership::BootstrapError;
    use slowmo_protocol::membership::settings::differing_settings;
    use slowmo_protocol::wire::JoinRefusal;

    /// Clears the screen, begins a line, and turns the text after it around.
    const EVIL: &str = "\x1b[2J\n\u{9b}1m\u{202e}";

    #[test]
    fn what_steers_a_terminal_is_shown() {
        assert_eq!(printable("node-2: größer"), "node-2: größer");
        assert_eq!(
            printable("\x1b[2J\nERROR\r\u{9b}1m\u{202e}"),
            "\\u{1b}[2J\\nERROR\\r\\u{9b}1m\\u{202e}"
        );
        assert_eq!(
            printable("\u{61c}\u{e0000}\u{e0041}\u{e007f}"),
            "\\u{61c}\\u{e0000}\\u{e0041}\\u{e007f}"
        );
        assert_eq!(printable_lines("a\tb\nc"), "a\tb\nc");
        assert_eq!(printable_lines("a\tb\n\x07c"), "a\tb\n\\u{7}c");
    }

    #[test]
    fn json_shows_what_steers_a_terminal_and_says_the_same() {
        let text = "größer \x1b[2J\n\x7f\u{9b}31m\u{202e}\u{61c}\u{e0041}";
        let json = serde_json::json!({ "error": text });
        let shown = printable_json(&json.to_string()).into_owned();
        assert_eq!(
            shown,
            "{\"error\":\"größer \\u001b[2J\\n\\u007f\\u009b31m\\u202e\\u061c\\udb40\\udc41\"}"
        );
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read, json);
        assert_eq!(printable_json("[\"ä\"]"), "[\"ä\"]");
    }

    #[test]
    fn bytes_are_bounded_and_become_text() {
        assert_eq!(printable_bytes(b"abc\xff\n", 4), "abc\u{fffd}");
        assert_eq!(printable_bytes(b"", 4), "");
    }

    #[test]
    fn errors_show_what_files_and_peers_say() {
        let evil = || EVIL.to_owned();
        let reason = JoinRefusal::SettingsDiffer {
            differences: evil(),
        };
        let errors = [
            DiscoveryError::BadLine {
                file: "nodes".to_owned(),
                line: 1,
                found: evil(),
            }
            .to_string(),
            DiscoveryError::Unresolved {
                name: evil(),
                reason: "unknown".to_owned(),
            }
            .to_string(),
            SpawnError::Peer {
                peer: evil(),
                error: std::io::ErrorKind::NotFound.into(),
            }
            .to_string(),
            SpawnError::Advertise {
                advertise: evil(),
                reason: "unknown".to_owned(),
            }
            .to_string(),
            reason.to_string(),
            BootstrapError::Refused {
                by: NodeId(2),
                reason,
            }
            .to_string(),
            RoundError::SpecsDiffer {
                round: Round(1),
                one: NodeId(1),
                one_spec: evil(),
                other: NodeId(2),
                other_spec: evil(),
            }
            .to_string(),
            differing_settings("tau = 12", "tau = \x1b[2J\u{9b}1m\u{202e}")[0].to_string(),
            differing_settings("", "\x1b[2J\u{9b}1m\u{202e} = 1")[0].to_string(),
        ];
        for error in errors {
            assert_eq!(printable(&error), error);
            assert!(error.contains("\\u{1b}[2J"), "{error}");
        }
    }
}
