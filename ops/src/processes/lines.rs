//! Output of a child, line by line, in bounded memory.

use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;

/// Longest line passed on as one; longer ones are cut into pieces of this many bytes.
pub const LINE_BYTES_MAX: usize = 8 * 1024;
/// Lines queued for the reader before the children's writes block.
pub(super) const LINES_WAITING_MAX: usize = 1024;

/// Output stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// A line without its terminator, with invalid UTF-8 replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The node, from 1.
    pub node: usize,
    /// The stream that carried the line.
    pub stream: Stream,
    /// Text of the line.
    pub text: String,
}

impl Line {
    /// Whether this is a frame of a Rust backtrace (`   7: module::function`) or its place
    /// (`             at file:line`).
    pub(super) fn is_of_a_backtrace(&self) -> bool {
        let text = self.text.trim_start();
        let is_indented = text.len() < self.text.len();
        let is_frame = text
            .split_once(": ")
            .is_some_and(|(number, _)| number.parse::<u16>().is_ok());
        is_indented && (is_frame || text.starts_with("at "))
    }
}

/// The number of lines that were read and wait to be printed. A group reads no further lines while
/// too many wait.
#[derive(Debug, Default)]
pub struct Unprinted(AtomicUsize);

impl Unprinted {
    /// Counts a line that waits.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a line that was printed.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether as many lines wait as the readers' queue holds ([`LINES_WAITING_MAX`]).
    pub(super) fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= LINES_WAITING_MAX
    }
}

/// Message of a reading thread.
#[derive(Debug)]
pub(super) enum Reading {
    /// One line.
    Line(Line),
    /// End of this node's stream.
    End,
}

/// Starts a thread that sends `source`'s lines, then [`Reading::End`]; the thread ends early when
/// the receiver is gone.
pub(super) fn forward(
    (node, start): (usize, u64),
    stream: Stream,
    source: impl Read + Send + 'static,
    to: SyncSender<(u64, Reading)>,
) -> std::io::Result<()> {
    let run = move || {
        let mut source = BufReader::new(source);
        let mut bytes = Vec::new();
        while read_line(&mut source, &mut bytes) {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if to
                .send((start, Reading::Line(Line { node, stream, text })))
                .is_err()
            {
                return;
            }
        }
        let _nobody_listens = to.send((start, Reading::End));
    };
    std::thread::Builder::new()
        .name(format!("lines-{node}"))
        .spawn(run)
        .map(drop)
}

/// Reads one line, or [`LINE_BYTES_MAX`] bytes of it; returns `false` at the end or on an error.
fn read_line(source: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    line.clear();
    if !matches!(
        source
            .by_ref()
            .take(LINE_BYTES_MAX as u64)
            .read_until(b'\n', line),
        Ok(1..)
    ) {
        return false;
    }
    while matches!(line.last(), Some(b'\n' | b'\r')) {
        line.pop();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_lose_their_ends() {
        let long = "x".repeat(LINE_BYTES_MAX + 3);
        let text = format!("one\r\n\n{long}\nlast");
        let mut source = text.as_bytes();
        let mut line = Vec::new();
        let mut lines = Vec::new();
        while read_line(&mut source, &mut line) {
            lines.push(String::from_utf8_lossy(&line).into_owned());
        }
        assert_eq!(lines, ["one", "", &long[..LINE_BYTES_MAX], "xxx", "last"]);
    }
}
