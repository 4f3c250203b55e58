//! A file of addresses: one `host:port` per line, comments after `#`. Reading touches that file;
//! parsing is pure.

use crate::config::is_host_and_port;
use slowmo_actors::ports::discovery::{DISCOVERED_MAX, DiscoveryError};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Largest file, in bytes: room for [`DISCOVERED_MAX`] names and their comments.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the names in a file, in the order of the file.
pub(super) fn read(path: &Path) -> Result<Vec<String>, DiscoveryError> {
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    let checked = match read {
        Ok(length) if length as u64 > FILE_BYTES_MAX => Err(io::Error::other("larger than 1 MiB")),
        other => other,
    };
    let file = || path.display().to_string();
    checked.map_err(|error| DiscoveryError::NoList {
        file: file(),
        reason: error.to_string(),
    })?;
    names(&text).map_err(|fault| match fault {
        Fault::Line { line, found } => DiscoveryError::BadLine {
            file: file(),
            line,
            found,
        },
        Fault::TooMany => DiscoveryError::TooMany,
    })
}

/// Reason why a text is not a list of addresses.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// A line that is not `host:port`.
    Line {
        /// Line number, from 1.
        line: usize,
        /// Text found in the line, without its comment.
        found: String,
    },
    /// More than [`DISCOVERED_MAX`] names.
    TooMany,
}

/// Parses the names in a text, in the order of the text.
///
/// # Errors
/// A line is not `host:port`, or there are more than [`DISCOVERED_MAX`] names.
pub fn names(text: &str) -> Result<Vec<String>, Fault> {
    let mut names = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let name = line.split_once('#').map_or(line, |(name, _)| name).trim();
        if name.is_empty() {
            continue;
        }
        if !is_host_and_port(name) {
            return Err(Fault::Line {
                line: index + 1,
                found: name.to_owned(),
            });
        }
        if names.len() == DISCOVERED_MAX {
            return Err(Fault::TooMany);
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn comments_and_blank_lines_are_excluded() {
        let text =
            "# the old rack\n10.0.0.1:7000\n\n  gpu-2:7001  # slow\n[::1]:7002\r\n#10.0.0.9:1";
        assert_eq!(
            names(text).unwrap(),
            ["10.0.0.1:7000", "gpu-2:7001", "[::1]:7002"]
        );
        assert_eq!(names("").unwrap(), [""; 0]);
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for line in [
            "gpu-2",
            "gpu-2:0",
            "::1:7000",
            "a:1 b:2",
            "10.0.0.1:7000,10.0.0.2:7000 b:1",
        ] {
            assert_eq!(
                names(&format!("# first\na:1\n{line}")),
                Err(Fault::Line {
                    line: 3,
                    found: line.to_owned()
                })
            );
        }
        let many = "a:1\n".repeat(DISCOVERED_MAX);
        assert_eq!(names(&many).unwrap().len(), DISCOVERED_MAX);
        assert_eq!(names(&(many + "a:1")), Err(Fault::TooMany));
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = read(&folder.path().join("nodes")).unwrap_err();
        assert!(
            matches!(&missing, DiscoveryError::NoList { file, .. } if file.ends_with("nodes")),
            "{missing}"
        );
        let large = folder.path().join("large");
        std::fs::write(&large, "#".repeat(1 + (1 << 20))).unwrap();
        assert!(
            read(&large)
                .unwrap_err()
                .to_string()
                .contains("larger than 1 MiB")
        );
        std::fs::write(&large, "a").unwrap();
        assert!(
            read(&large)
                .unwrap_err()
                .to_string()
                .contains("large line 1")
        );
        std::fs::write(&large, "evil\x1b[2J line\n").unwrap();
        let error = read(&large).unwrap_err().to_string();
        assert!(
            error.contains("evil\\u{1b}[2J line is not a host:port"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_a_list_or_refused(text in "[a-c0-9:#\\[\\]. \n]{0,200}") {
            if let Ok(names) = names(&text) {
                prop_assert!(
                    names.iter().all(|name| is_host_and_port(name) && text.contains(name.as_str()))
                );
            }
        }
    }
}
