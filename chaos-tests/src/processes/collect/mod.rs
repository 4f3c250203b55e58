//! The trace of a run: each incarnation of a node writes a file of its own, and so does the runner.
//! They are merged in order of time into one stream. All files are written on one machine and count
//! microseconds since the Unix epoch; the merged trace counts from the beginning of the run.
//!
//! Reads and writes files in the folders that it is given.

mod journal;
mod source;

pub use journal::Journal;

use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{End, Event, Line, Start};
use source::Source;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io;
use std::path::{Path, PathBuf};

/// The runner's own file in a folder of traces.
const JOURNAL: &str = "runner.jsonl";
/// Maximum number of files of one run.
pub const FILES_MAX: usize = 100_000;
/// Longest line, in bytes.
pub const LINE_BYTES_MAX: u64 = 4 << 20;

/// Number of files, and of lines in each, that are read to learn whether training follows a
/// sampler.
const FIRST_FILES: usize = 4;
const FIRST_LINES: usize = 256;

/// The reason why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A file or folder cannot be used.
    #[error("the trace {}", path.display())]
    File {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A line does not belong to a trace.
    #[error("the trace {}: line {line} is not an event: {reason}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Reason for the refusal.
        reason: String,
    },
    /// There are more files than the bound.
    #[error("the folder {} has more than {FILES_MAX} files", .0.display())]
    TooMany(PathBuf),
}

/// The newest incarnation of a node that has begun a trace in this folder.
#[must_use]
pub fn newest_start(folder: &Path, node: NodeId) -> Option<Start> {
    let starts = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| start_of(&entry.ok()?.path()));
    starts.filter(|start| start.node == node).max()
}

/// Passes every line of a merged trace's file to `on_line`.
///
/// # Errors
/// The file cannot be read, or has lines that do not belong to a trace.
pub fn read(file: &Path, on_line: &mut dyn FnMut(Line)) -> Result<(), CollectError> {
    let mut source = Source::open(file)?;
    while let Some(line) = source.next()? {
        on_line(line);
    }
    Ok(())
}

/// Merges all files of a folder and passes their lines, counted from the beginning of the run, to
/// `on_line` until the run is over.
///
/// A file may end in the middle of a line if its process was killed. Clocks of one machine agree,
/// so the order is that in which events happened; within a file it is that of the lines.
///
/// # Errors
/// A file cannot be read, or has lines that do not belong to a trace.
pub fn merge(folder: &Path, on_line: &mut dyn FnMut(Line)) -> Result<(), CollectError> {
    merge_files(&files(folder)?, on_line)
}

/// Like [`merge`], for these files.
///
/// # Errors
/// As [`merge`].
pub fn merge_files(files: &[PathBuf], on_line: &mut dyn FnMut(Line)) -> Result<(), CollectError> {
    let mut sources = open(files)?;
    let sampled = follows_sampler(files)?;
    let mut next: BinaryHeap<Reverse<(Instant, usize)>> = BinaryHeap::new();
    for (index, source) in sources.iter_mut().enumerate() {
        next.extend(source.peek()?.map(|at| Reverse((at, index))));
    }
    let mut begun = None;
    let mut ends = Ends::default();
    while let Some(Reverse((_, index))) = next.pop() {
        let Some(source) = sources.get_mut(index) else {
            continue;
        };
        let Some(mut line) = source.next()? else {
            continue;
        };
        next.extend(source.peek()?.map(|at| Reverse((at, index))));
        let begun = *begun.get_or_insert(line.at);
        line.at = Instant(line.at.0.saturating_sub(begun.0));
        let over = line.event == Event::Over;
        if let Event::Begun(setup) = &mut line.event {
            // Only the nodes know whether their training follows a sampler.
            setup.samples = setup.samples.or(sampled.then_some(0));
        }
        if ends.is_news(&line.event) {
            on_line(line);
        }
        if over {
            break;
        }
    }
    Ok(())
}

/// Whether a node's first contributions name samples.
fn follows_sampler(files: &[PathBuf]) -> Result<bool, CollectError> {
    for mut source in open(files)?.into_iter().take(FIRST_FILES) {
        for _ in 0..FIRST_LINES {
            match source.next()? {
                Some(Line {
                    event: Event::Contributed { samples, .. },
                    ..
                }) if !samples.is_empty() => return Ok(true),
                Some(_) => {}
                None => break,
            }
        }
    }
    Ok(false)
}

/// Keeps track of which nodes live: a node reports its own end, and another that saw its process
/// end reports it again.
#[derive(Default)]
struct Ends {
    living: BTreeSet<Start>,
}

impl Ends {
    fn is_news(&mut self, event: &Event) -> bool {
        match event {
            Event::Started(start) => self.living.insert(*start),
            Event::Ended { start, .. } => self.living.remove(start),
            _ => true,
        }
    }
}

/// How a process with this exit status ended.
#[must_use]
pub fn end_of(success: bool, killed: bool) -> End {
    match (success, killed) {
        (true, _) => End::Left,
        (false, true) => End::Killed,
        (false, false) => End::Failed,
    }
}

/// The files of a folder that are traces.
///
/// # Errors
/// The folder cannot be read, or has too many.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>, CollectError> {
    let unreadable = |source| CollectError::File {
        path: folder.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.file_name().is_some_and(|name| name == JOURNAL) || start_of(&path).is_some() {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(CollectError::TooMany(folder.to_owned()));
        }
    }
    // The runner's file is the last by name, so of two lines at the same time the node's comes
    // first.
    files.sort();
    Ok(files)
}

fn open(files: &[PathBuf]) -> Result<Vec<Source>, CollectError> {
    files.iter().map(|file| Source::open(file)).collect()
}

/// The incarnation to which a file belongs: `<node>-<incarnation>.jsonl`.
fn start_of(path: &Path) -> Option<Start> {
    let (node, incarnation) = path
        .file_name()?
        .to_str()?
        .strip_suffix(".jsonl")?
        .split_once('-')?;
    Some(Start {
        node: NodeId(node.parse().ok()?),
        incarnation: Incarnation(incarnation.parse().ok()?),
    })
}

#[cfg(test)]
mod tests;
