//! The output of a run: one folder, from which the report can be regenerated.
//!
//! | file | holds |
//! |---|---|
//! | `scenario.toml`, `run.json` | the scenario and the run's header |
//! | `trace.jsonl`, `baseline.jsonl` | the merged traces of the runs with and without faults |
//! | `output.log`, `baseline.log` | the nodes' output |
//! | `report.json`, `report.html` | the report |
//! | `checkpoints/`, `disks/` | the nodes' checkpoints, where the scenario asks for them |
//! | `raw/` | the nodes' own traces, until they are merged |

use super::ChaosError;
use slowmo_chaos::processes::collect;
use slowmo_chaos::processes::report::{Examined, Examiner, Header, Report, page};
use slowmo_chaos::processes::scenario::Scenario;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// One of the two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The run without faults.
    Baseline,
    /// The run with faults.
    Faulty,
}

/// The folder of a run.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates the folder if it does not exist; files of an earlier run are overwritten.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn create(path: &Path) -> Result<Self, ChaosError> {
        std::fs::create_dir_all(path).map_err(|source| ChaosError::File {
            path: path.to_owned(),
            source,
        })?;
        // The path must be absolute: a node may be started in another working directory.
        let path = std::path::absolute(path).map_err(|source| ChaosError::File {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { path })
    }

    /// Opens an existing folder.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a file or folder in it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates an empty folder for the nodes' traces.
    pub(super) fn raw(&self) -> Result<PathBuf, ChaosError> {
        let path = self.file("raw");
        let made = if path.exists() {
            std::fs::remove_dir_all(&path)
        } else {
            Ok(())
        };
        made.and_then(|()| std::fs::create_dir_all(&path))
            .map_err(|source| ChaosError::File {
                path: path.clone(),
                source,
            })?;
        Ok(path)
    }

    pub(super) fn log(&self, part: Part) -> Result<File, ChaosError> {
        let path = self.file(if part == Part::Faulty {
            "output.log"
        } else {
            "baseline.log"
        });
        File::create(&path).map_err(|source| ChaosError::File { path, source })
    }

    /// Path of the merged trace of a part.
    #[must_use]
    pub fn trace(&self, part: Part) -> PathBuf {
        self.file(if part == Part::Faulty {
            "trace.jsonl"
        } else {
            "baseline.jsonl"
        })
    }

    /// Merges the nodes' traces of a part into one and removes them.
    pub(super) fn merge(&self, part: Part) -> Result<(), ChaosError> {
        let raw = self.file("raw");
        let path = self.trace(part);
        let unwritable = |source| ChaosError::File {
            path: path.clone(),
            source,
        };
        let mut file = BufWriter::new(File::create(&path).map_err(unwritable)?);
        let mut written = Ok(());
        collect::merge(&raw, &mut |line| {
            if written.is_ok() {
                let text = serde_json::to_string(&line).map_err(std::io::Error::other);
                written = text.and_then(|text| writeln!(file, "{text}"));
            }
        })?;
        written.and_then(|()| file.flush()).map_err(unwritable)?;
        std::fs::remove_dir_all(&raw).map_err(|source| ChaosError::File { path: raw, source })
    }

    /// Writes the scenario and the run's header.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_header(&self, scenario: &Scenario, header: &Header) -> Result<(), ChaosError> {
        let text = toml::to_string(scenario).map_err(std::io::Error::other);
        self.write("scenario.toml", text)?;
        self.write(
            "run.json",
            serde_json::to_string_pretty(header).map_err(std::io::Error::other),
        )
    }

    /// Copies the fault-free run of another folder.
    ///
    /// # Errors
    /// The other folder has none, or it cannot be copied.
    pub fn copy_baseline(&self, from: &Folder) -> Result<(), ChaosError> {
        let from = from.trace(Part::Baseline);
        let path = self.trace(Part::Baseline);
        let unreadable = |error: std::io::Error| ChaosError::Unreadable {
            path: from.clone(),
            reason: error.to_string(),
        };
        if from != path {
            std::fs::copy(&from, &path).map_err(unreadable)?;
        }
        Ok(())
    }

    /// Removes the fault-free run of an earlier run in this folder.
    ///
    /// # Errors
    /// It exists and cannot be removed.
    pub fn forget_baseline(&self) -> Result<(), ChaosError> {
        let path = self.trace(Part::Baseline);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(ChaosError::File { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Checks and measures the traces, and writes the report.
    ///
    /// # Errors
    /// A file of the run cannot be read, or the report cannot be written.
    pub fn report(&self) -> Result<Report, ChaosError> {
        let unreadable = |path: &Path, reason: String| ChaosError::Unreadable {
            path: path.to_owned(),
            reason,
        };
        let read = |name: &str| {
            let path = self.file(name);
            std::fs::read_to_string(&path).map_err(|error| unreadable(&path, error.to_string()))
        };
        let path = self.file("scenario.toml");
        let text = read("scenario.toml")?;
        let scenario = Scenario::parse(&text, "scenario.toml")
            .map_err(|error| unreadable(&path, error.to_string()))?;
        let header: Header = serde_json::from_str(&read("run.json")?)
            .map_err(|error| unreadable(&self.file("run.json"), error.to_string()))?;
        let run = self.examine(Part::Faulty)?;
        let baseline = if self.trace(Part::Baseline).exists() {
            Some(self.examine(Part::Baseline)?)
        } else {
            None
        };
        let report = Report::new(&header, &scenario, &run, baseline.as_ref());
        self.write(
            "report.json",
            serde_json::to_string_pretty(&report).map_err(std::io::Error::other),
        )?;
        self.write("report.html", Ok(page(&report, &run.observed)))?;
        Ok(report)
    }

    fn examine(&self, part: Part) -> Result<Examined, ChaosError> {
        let mut examiner = Examiner::default();
        collect::read(&self.trace(part), &mut |line| examiner.observe(&line))?;
        Ok(examiner.finish())
    }

    fn write(&self, name: &str, text: std::io::Result<String>) -> Result<(), ChaosError> {
        let path = self.file(name);
        text.and_then(|text| std::fs::write(&path, text))
            .map_err(|source| ChaosError::File { path, source })
    }
}
