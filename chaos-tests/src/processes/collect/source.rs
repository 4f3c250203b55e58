//! One file of a trace, read line by line. It is open only while its lines are read, so that many
//! ended incarnations need no descriptors.

use super::{CollectError, LINE_BYTES_MAX};
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::Line;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A file that is read once, to the end.
pub(super) struct Source {
    path: PathBuf,
    /// The open file; closed before the second line is wanted, and at the end.
    reader: Option<BufReader<File>>,
    offset: u64,
    lines: u64,
    last: Instant,
    ahead: Option<Line>,
    over: bool,
}

impl Source {
    /// Creates the source; nothing is read yet.
    pub(super) fn open(path: &Path) -> Result<Self, CollectError> {
        let last = Instant(0);
        Ok(Self {
            path: path.to_owned(),
            reader: None,
            offset: 0,
            lines: 0,
            last,
            ahead: None,
            over: false,
        })
    }

    /// Time of the next line.
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
        while !self.over {
            let mut bytes = Vec::new();
            let length = self
                .read_bytes(&mut bytes)
                .map_err(|source| CollectError::File {
                    path: self.path.clone(),
                    source,
                })?;
            if length == 0 {
                self.over = true;
                self.reader = None;
                break;
            }
            self.offset += length;
            self.lines += 1;
            // The end of a line in the middle of a string counts as its end, too.
            match serde_json::from_slice::<Line>(bytes.trim_ascii_end()) {
                Ok(mut line) => {
                    // Several threads of a process write: a line written later does not get an
                    // earlier time.
                    line.at = line.at.max(self.last);
                    self.last = line.at;
                    return Ok(Some(line));
                }
                Err(_) if bytes.iter().all(u8::is_ascii_whitespace) => {}
                // A torn line: the process was killed, or its disk was full for a while.
                Err(error) if error.is_eof() && length < LINE_BYTES_MAX => {}
                Err(error) => {
                    return Err(CollectError::Line {
                        path: self.path.clone(),
                        line: self.lines,
                        reason: error.to_string(),
                    });
                }
            }
        }
        Ok(None)
    }

    fn read_bytes(&mut self, bytes: &mut Vec<u8>) -> io::Result<u64> {
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let mut file = File::open(&self.path)?;
                file.seek(SeekFrom::Start(self.offset))?;
                BufReader::new(file)
            }
        };
        let length = reader
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', bytes)?;
        self.reader = Some(reader);
        Ok(length as u64)
    }
}
