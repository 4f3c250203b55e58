//! Text of others, made fit for a log and a terminal: control characters are shown, not sent.

use std::borrow::Cow;

/// Shows control characters as escapes (`\u{1b}`), so that text can neither begin a line of its own
/// nor steer a terminal. Characters that reorder or hide text are shown in the same way.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_steering) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_steering(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Like [`printable`] for several lines: ends of lines and tabulators stay.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let steers = |character: char| is_steering(character) && !matches!(character, '\n' | '\t');
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| {
            let cells: Vec<_> = line.split('\t').map(printable).collect();
            cells.join("\t")
        })
        .collect();
    Cow::Owned(lines.join("\n"))
}

/// At most `bytes_max` bytes of a peer's text, printable; invalid UTF-8 is replaced.
pub(crate) fn printable_bytes(bytes: &[u8], bytes_max: usize) -> String {
    let bounded = &bytes[..bytes.len().min(bytes_max)];
    printable(&String::from_utf8_lossy(bounded)).into_owned()
}

/// Control characters; separators of lines and paragraphs; marks that change the direction of text;
/// characters without width.
fn is_steering(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown() {
        assert_eq!(printable("node-2: größer"), "node-2: größer");
        assert_eq!(
            printable("\x1b[2J\nERROR\r\u{9b}1m\u{202e}"),
            "\\u{1b}[2J\\nERROR\\r\\u{9b}1m\\u{202e}"
        );
        assert_eq!(printable_lines("a\tb\nc"), "a\tb\nc");
        assert_eq!(printable_lines("a\tb\n\x07c"), "a\tb\n\\u{7}c");
    }

    #[test]
    fn bytes_are_bounded_and_become_text() {
        assert_eq!(printable_bytes(b"abc\xff\n", 4), "abc\u{fffd}");
        assert_eq!(printable_bytes(b"", 4), "");
    }
}
