//! What nodes wrote down (key `trace`), read back and put together: one trace of a run, which the invariants judge.

use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Event, Line};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Longest line of a trace that is read, in bytes.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The folder or a file of it.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// A line that is no event, and not the last one of its file.
    #[error("{}, line {number}: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        number: usize,
        /// What is wrong with it.
        error: String,
    },
}

/// What one file or folder holds.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order of their times.
    pub lines: Vec<Line>,
    /// Lines that end in the middle: what their node was writing when it was killed, or when its disk was full.
    pub torn: usize,
}

/// Reads the file of one start of a node. Its last line may be torn; so may one before, which was written onto a full disk and
/// has an empty or whole line behind it.
///
/// # Errors
/// It cannot be read, or a line is too long.
pub fn read_file(path: &Path) -> Result<Found, TraceError> {
    let unreadable = |error| TraceError::Unreadable { path: path.to_owned(), error };
    let mut reader = BufReader::new(std::fs::File::open(path).map_err(unreadable)?);
    let (mut found, mut bytes, mut number) = (Found::default(), Vec::new(), 0);
    loop {
        bytes.clear();
        // One byte more than may be, so that more is noticed and never held.
        let mut bounded = reader.by_ref().take(LINE_BYTES_MAX as u64 + 1);
        if bounded.read_until(b'\n', &mut bytes).map_err(unreadable)? == 0 {
            return Ok(found);
        }
        number += 1;
        let malformed = |error: String| TraceError::Malformed { path: path.to_owned(), number, error };
        if bytes.len() > LINE_BYTES_MAX {
            return Err(malformed(format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        // The end of a line in the middle of a string is its end, too.
        match serde_json::from_slice::<Line>(bytes.trim_ascii_end()) {
            Ok(line) => found.lines.push(line),
            Err(_) if bytes.iter().all(u8::is_ascii_whitespace) => {}
            // Cut short: everything up to here could have been the beginning of an event.
            Err(error) if error.is_eof() => found.torn += 1,
            Err(error) => return Err(malformed(error.to_string())),
        }
    }
}

/// Reads every `.jsonl` of a folder and puts the events in the order of their times; those of one start stay in their order.
///
/// # Errors
/// The folder, or a file in it, as [`read_file`].
pub fn read_folder(folder: &Path) -> Result<Found, TraceError> {
    let unreadable = |error| TraceError::Unreadable { path: folder.to_owned(), error };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut all = Found::default();
    for path in paths {
        let found = read_file(&path)?;
        all.lines.extend(found.lines);
        all.torn += found.torn;
    }
    all.lines.sort_by_key(|line| line.at);
    Ok(all)
}

/// One run out of what its nodes wrote and what was done to them: `done` and `begun` on the wall clock in microseconds, as the
/// lines are. Times count from `begun` afterwards.
#[must_use]
pub fn run(begun: Instant, nodes: Vec<Line>, done: Vec<(Instant, Event)>) -> Vec<Line> {
    let done = done.into_iter().map(|(at, event)| Line { at, event });
    // What was done to a node comes before what it made of it.
    let mut lines: Vec<Line> = done.chain(nodes).collect();
    lines.sort_by_key(|line| line.at);
    lines.iter_mut().for_each(|line| line.at = Instant(line.at.0.saturating_sub(begun.0)));
    lines
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use slowmo_protocol::ident::{Incarnation, NodeId};
    use slowmo_protocol::trace::Start;

    fn line(at: u64, node: u64) -> Line {
        Line { at: Instant(at), event: Event::Started(Start { node: NodeId(node), incarnation: Incarnation(1) }) }
    }

    fn text(line: &Line) -> String {
        serde_json::to_string(line).unwrap() + "\n"
    }

    #[test]
    fn a_torn_line_is_counted_wherever_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (path, whole) = (folder.path().join("1-1.jsonl"), text(&line(7, 2)));
        for length in 1..whole.len() - 1 {
            std::fs::write(&path, text(&line(5, 1)) + &whole[..length]).unwrap();
            let found = read_file(&path).unwrap();
            assert_eq!((found.lines, found.torn), (vec![line(5, 1)], 1), "{}", &whole[..length]);
        }
        std::fs::write(&path, whole[..9].to_owned() + "\n" + &whole + "\n").unwrap();
        let found = read_file(&path).unwrap();
        assert_eq!((found.lines, found.torn), (vec![line(7, 2)], 1));
    }

    #[test]
    fn what_is_no_event_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-1.jsonl");
        std::fs::write(&path, text(&line(5, 1)) + "{\"at\":1,\"event\":\"danced\"}\n").unwrap();
        assert!(matches!(read_file(&path), Err(TraceError::Malformed { number: 2, .. })));
    }

    #[test]
    fn a_folder_is_one_trace_in_the_order_of_time() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("1-1.jsonl"), text(&line(5, 1)) + &text(&line(9, 1))).unwrap();
        std::fs::write(folder.path().join("2-1.jsonl"), text(&line(7, 2))).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "no trace").unwrap();
        let found = read_folder(folder.path()).unwrap();
        assert_eq!(found.lines, [line(5, 1), line(7, 2), line(9, 1)]);
        let run = run(Instant(4), found.lines, vec![(Instant(7), Event::Quiet)]);
        let times: Vec<u64> = run.iter().map(|line| line.at.0).collect();
        assert_eq!((times, &run[1].event), (vec![1, 3, 3, 5], &Event::Quiet));
    }
}
