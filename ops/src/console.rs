//! Output for people and for programs. With `--json`, the last line of standard output is one JSON
//! object, and everything for people goes to standard error. Both show control characters instead
//! of sending them: parts of the text come from nodes, and through them from others.

use comfy_table::{CellAlignment, Table, presets};
use indicatif::ProgressDrawTarget;
use serde::Serialize;
use slowmo::internal::{printable, printable_json, printable_lines};
use slowmo_ops::processes::{Line, Stream};
use std::io::{IsTerminal, Write};

/// Colours of the node prefixes, chosen by node; readable on dark and light backgrounds.
const NODE_COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];

/// A failure that the command has already reported.
#[derive(Debug, thiserror::Error)]
#[error("not all held")]
pub struct Told;

#[derive(Serialize)]
struct Done<'a, O> {
    command: &'static str,
    succeeded: bool,
    #[serde(flatten)]
    object: &'a O,
}

/// The two outputs of this process.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    json: bool,
}

impl Console {
    /// `json`: standard output is for programs.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether standard output is for programs.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints a line for people. A closed pipe is not an error: nobody reads the line.
    pub fn say(self, text: impl std::fmt::Display) {
        let text = text.to_string();
        let text = printable_lines(&text);
        let _nobody_reads = if self.json {
            writeln!(std::io::stderr(), "{text}")
        } else {
            writeln!(std::io::stdout(), "{text}")
        };
    }

    /// Prints a line about work in progress; always on standard error.
    pub fn progress(self, text: impl std::fmt::Display) {
        let text = text.to_string();
        let text = printable_lines(&text);
        let _nobody_reads = writeln!(std::io::stderr(), "{text} …");
    }

    /// Prints a line about an event; always on standard error.
    pub fn note(self, text: impl std::fmt::Display) {
        let text = text.to_string();
        let text = printable_lines(&text);
        let _nobody_reads = writeln!(std::io::stderr(), "{text}");
    }

    /// Prints the result: a table or text for people, an object for programs.
    pub fn result(
        self,
        text: impl std::fmt::Display,
        object: &impl Serialize,
    ) -> anyhow::Result<()> {
        self.say(text);
        if self.json {
            let object = serde_json::to_string(object)?;
            let _nobody_reads = writeln!(std::io::stdout(), "{}", printable_json(&object));
        }
        Ok(())
    }

    /// Prints the result of a command that succeeded.
    pub fn done(
        self,
        command: &'static str,
        text: impl std::fmt::Display,
        object: &impl Serialize,
    ) -> anyhow::Result<()> {
        let done = Done {
            command,
            succeeded: true,
            object,
        };
        self.result(text, &done)
    }

    /// Prints the reason why the command failed.
    pub fn failure(self, error: &anyhow::Error) {
        let text = format!("{error:#}");
        let _nobody_reads = writeln!(std::io::stderr(), "error: {}", printable_lines(&text));
        if self.json {
            let object = serde_json::json!({ "succeeded": false, "error": text }).to_string();
            let _nobody_reads = writeln!(std::io::stdout(), "{}", printable_json(&object));
        }
    }

    /// Prints a node's line behind its prefix, on the stream to which the node wrote it.
    pub fn node_line(self, line: &Line) {
        let to_error = self.json || line.stream == Stream::Error;
        let coloured = is_coloured(if to_error {
            std::io::stderr().is_terminal()
        } else {
            std::io::stdout().is_terminal()
        });
        let prefix = match NODE_COLOURS.get((line.node - 1) % NODE_COLOURS.len()) {
            Some(colour) if coloured => format!("\x1b[{colour}m[node {}]\x1b[0m", line.node),
            _ => format!("[node {}]", line.node),
        };
        let text = shown(&line.text);
        let _nobody_reads = if to_error {
            writeln!(std::io::stderr(), "{prefix} {text}")
        } else {
            writeln!(std::io::stdout(), "{prefix} {text}")
        };
    }

    /// Draw target of progress bars; `None` if the output is not a terminal or is for programs.
    pub fn bars(self) -> Option<ProgressDrawTarget> {
        let watched =
            std::io::stderr().is_terminal() && (self.json || std::io::stdout().is_terminal());
        watched.then(ProgressDrawTarget::stderr)
    }
}

/// A table with a header; all columns but the first are right-aligned.
pub fn table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED.with_rounded_corners())
        .set_header(header)
        .add_rows(rows);
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// A node's line as it is printed. Tabulators stay; a line has no other control characters.
fn shown(line: &str) -> String {
    let cells: Vec<_> = line.split('\t').map(printable).collect();
    cells.join("\t")
}

fn is_coloured(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_line_cannot_steer_the_terminal() {
        assert_eq!(shown("step\t3\tloss 0.5"), "step\t3\tloss 0.5");
        assert_eq!(
            shown("\x1b[2J\r[node 2] all is well\u{9b}0m"),
            "\\u{1b}[2J\\r[node 2] all is well\\u{9b}0m"
        );
    }
}
