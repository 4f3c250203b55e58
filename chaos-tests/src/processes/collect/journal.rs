//! The journal of the runner: what it does to a run, and what it observes.

use super::{CollectError, JOURNAL};
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Event, Line};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The runner's file in a folder of traces. Every line is in the file as soon as it is written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Creates a new journal.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(folder: &Path) -> Result<Self, CollectError> {
        let path = folder.join(JOURNAL);
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(CollectError::File { path, source }),
        }
    }

    /// Records an event that happens now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, event: Event) -> Result<(), CollectError> {
        self.write_together([event])
    }

    /// Records events that happen now, all at the same time.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_together(
        &mut self,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<(), CollectError> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let at = Instant(u64::try_from(now.as_micros()).unwrap_or(u64::MAX));
        for event in events {
            let written = serde_json::to_string(&Line { at, event })
                .map_err(std::io::Error::other)
                .and_then(|text| {
                    // One write per line, so that a reader finds whole lines.
                    self.file.write_all(format!("{text}\n").as_bytes())
                });
            written.map_err(|source| CollectError::File {
                path: self.path.clone(),
                source,
            })?;
        }
        Ok(())
    }
}
