//! One file of a trace, line by line. It is open only while its lines are read, so that many ended starts need no descriptors.

use super::{CollectError, LINE_BYTES_MAX};
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::Line;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A file that is read to the end once.
pub(super) struct Source {
    path: PathBuf,
    /// Closed before the second line is wanted, and at the end.
    reader: Option<BufReader<File>>,
    offset: u64,
    lines: u64,
    last: Instant,
    ahead: Option<Line>,
    over: bool,
}

impl Source {
    /// Nothing is read yet.
    pub(super) fn open(path: &Path) -> Result<Self, CollectError> {
        let last = Instant(0);
        Ok(Self { path: path.to_owned(), reader: None, offset: 0, lines: 0, last, ahead: None, over: false })
    }

    /// When the next line happened.
    pub(super) fn peek(&mut self) -> Result<Option<Instant>, CollectError> {
        if self.ahead.is_none() {
            self.ahead = self.read()?;
            if self.lines == 1 {
                self.reader = None;
            }
        }
        Ok(self.ahead.as_ref().map(|line| line.at))
    }

    /// The next line.
    pub(super) fn next(&mut self) -> Result<Option<Line>, CollectError> {
        match self.ahead.take() {
            Some(line) => Ok(Some(line)),
            None => self.read(),
        }
    }

    fn read(&mut self) -> Result<Option<Line>, CollectError> {
        if self.over {
            return Ok(None);
        }
        let mut text = String::new();
        let length = self.read_text(&mut text).map_err(|source| CollectError::File { path: self.path.clone(), source })?;
        self.offset += length;
        self.lines += 1;
        let torn = !text.ends_with('\n');
        match serde_json::from_str::<Line>(&text) {
            Ok(mut line) => {
                // Several threads of a process write: what they wrote later was not earlier.
                line.at = line.at.max(self.last);
                self.last = line.at;
                Ok(Some(line))
            }
            Err(_) if torn && length < LINE_BYTES_MAX => {
                (self.over, self.reader) = (true, None);
                Ok(None)
            }
            Err(error) => Err(CollectError::Line { path: self.path.clone(), line: self.lines, reason: error.to_string() }),
        }
    }

    fn read_text(&mut self, text: &mut String) -> io::Result<u64> {
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let mut file = File::open(&self.path)?;
                file.seek(SeekFrom::Start(self.offset))?;
                BufReader::new(file)
            }
        };
        let mut bytes = Vec::new();
        let length = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
        text.push_str(&String::from_utf8_lossy(&bytes));
        self.reader = Some(reader);
        Ok(length as u64)
    }
}
