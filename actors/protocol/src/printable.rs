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

/// The same characters in JSON of one line, as `\u202e`: there they stand only inside of strings,
/// and a reader gets the same text.
#[must_use]
pub fn printable_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_steering) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_steering(character) {
            // JSON has no longer escapes: a character above U+FFFF is two of them.
            for unit in character.encode_utf16(&mut [0; 2]) {
                shown += &format!("\\u{unit:04x}");
            }
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Control characters; separators of lines and paragraphs; marks that change the direction of text;
/// characters without width, and tags, which nobody sees.
fn is_steering(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2069}'
                | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}
