//! The flight recorder: keeps the last events of a node in memory, and writes them to disk when
//! something went wrong.

use crate::checkpoints::{CheckpointError, Folder, Readers, atomically};
use slowmo_protocol::trace::Start;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Maximum number of events kept.
pub const FLIGHT_EVENTS_MAX: usize = 16_384;
/// Maximum bytes of the events kept.
pub const FLIGHT_BYTES_MAX: usize = 16 << 20;

/// The file for the last events of one start of a node; every dump replaces the one before.
#[must_use]
pub fn dump_in(folder: &Path, start: Start) -> PathBuf {
    super::file_in(folder, start)
}

/// The last lines, in the form that they have in a trace.
pub(super) struct Flight {
    folder: PathBuf,
    start: Start,
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Flight {
    pub fn new(folder: &Path, start: Start) -> Self {
        Self {
            folder: folder.to_owned(),
            start,
            lines: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Keeps a line; the oldest lines are removed when there is no room.
    pub fn keep(&mut self, line: &[u8]) {
        self.bytes += line.len();
        self.lines.push_back(line.into());
        while self.lines.len() > FLIGHT_EVENTS_MAX
            || (self.bytes > FLIGHT_BYTES_MAX && self.lines.len() > 1)
        {
            self.bytes -= self.lines.pop_front().map_or(0, |oldest| oldest.len());
        }
    }

    /// Writes all kept lines; returns the file.
    pub fn dump(&self, why: &str) -> Result<PathBuf, String> {
        let path = dump_in(&self.folder, self.start);
        match self.write(&path) {
            Ok(()) => {
                tracing::warn!(
                    why,
                    events = self.lines.len(),
                    file = %path.display(),
                    "the last events were written"
                );
                Ok(path)
            }
            Err(error) => {
                tracing::error!(
                    why,
                    %error,
                    file = %path.display(),
                    "the last events could not be written"
                );
                Err(format!(
                    "the last events could not be written to {} ({error}); they are kept",
                    path.display()
                ))
            }
        }
    }

    /// Writes under another name first: readers see either all of it or the previous dump. Nobody
    /// can guess that name, and links are not followed. Only the node's user may read the file.
    fn write(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or(io::ErrorKind::InvalidInput)?;
        let written = Folder::create(&self.folder).and_then(|folder| {
            atomically(&folder, name, Readers::Owner, |file, path| {
                let mut file = io::BufWriter::new(file);
                self.lines
                    .iter()
                    .try_for_each(|line| file.write_all(line))
                    .and_then(|()| file.into_inner().map_err(io::IntoInnerError::into_error))
                    .and_then(|file| file.sync_all())
                    .map_err(CheckpointError::io(path))
            })
        });
        written.map_err(|error| match error {
            CheckpointError::Io { error, .. } => error,
            other => io::Error::other(other),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use slowmo_protocol::ident::{Incarnation, NodeId};
    use std::os::unix::fs::PermissionsExt;

    const START: Start = Start {
        node: NodeId(7),
        incarnation: Incarnation(11),
    };

    #[test]
    fn the_last_events_are_kept_within_both_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let mut flight = Flight::new(&folder.path().join("flight"), START);
        (0..FLIGHT_EVENTS_MAX + 5).for_each(|event| flight.keep(format!("{event}\n").as_bytes()));
        assert_eq!(flight.dump("test"), Ok(dump_in(&flight.folder, START)));
        let text = std::fs::read_to_string(dump_in(&flight.folder, START)).unwrap();
        assert_eq!(
            (text.lines().count(), text.lines().next()),
            (FLIGHT_EVENTS_MAX, Some("5"))
        );
        flight.keep(&vec![b'x'; FLIGHT_BYTES_MAX]);
        assert_eq!((flight.lines.len(), flight.bytes), (1, FLIGHT_BYTES_MAX));
    }

    #[test]
    fn planted_links_are_not_followed_and_only_the_user_reads_a_dump() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let path = dump_in(folder.path(), START);
        for planted in [path.clone(), path.with_extension("tmp")] {
            std::os::unix::fs::symlink(&victim, planted).unwrap();
        }
        let mut flight = Flight::new(folder.path(), START);
        flight.keep(b"an event\n");
        flight.dump("test").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        let found = std::fs::symlink_metadata(&path).unwrap();
        assert!(found.is_file(), "the dump took the link's place");
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
    }
}
