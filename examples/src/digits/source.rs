//! Source of a worker's batches: the elastic sampler, or images dealt once to the bootstrap
//! workers. Also writes the log of used images.

use super::{Batches, Dataset, EpochSamples, Options, Shards, deal};
use crate::random;
use slowmo::{ElasticSampler, SamplerError, Synchronized, Worker};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The batches of one worker.
pub struct Source {
    batches: Kind,
    log: Option<BufWriter<File>>,
    /// Used images by epoch.
    used: BTreeMap<u64, EpochSamples>,
}

enum Kind {
    /// Batches that follow the cluster as nodes join and leave.
    Elastic(ElasticSampler),
    /// Batches dealt once, as soon as the worker knows its place.
    Dealt(Batches),
}

/// Reasons why a worker has no batches.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The sampler was refused.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// There are more workers than images.
    #[error("worker {worker} of {workers} has no image: use fewer workers")]
    NoSamples {
        /// The worker's rank over all nodes.
        worker: usize,
        /// Number of workers on all nodes.
        workers: usize,
    },
    /// Epochs and the log of used images need the elastic sampler.
    #[error("epochs and samples_log need even shards")]
    NotElastic,
    /// The log of used images cannot be written.
    #[error("the samples log {path}: {error}")]
    Log {
        /// The folder.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// Writing to the log of used images failed.
    #[error("the samples log: {0}")]
    Write(std::io::Error),
}

impl From<std::io::Error> for SourceError {
    fn from(error: std::io::Error) -> Self {
        Self::Write(error)
    }
}

/// Creates a new file for every incarnation of a node, even if several run in one process.
fn create_log(folder: &Path) -> std::io::Result<File> {
    std::fs::create_dir_all(folder)?;
    let mut number = 0;
    loop {
        match File::create_new(folder.join(format!("samples-{}-{number}.log", std::process::id())))
        {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            created => return created,
        }
    }
}

impl Source {
    /// Builds the source before the worker synchronizes.
    pub fn attached(
        worker: &mut Worker,
        options: &Options,
        images: usize,
    ) -> Result<Self, SourceError> {
        let log = None;
        if options.shards == Shards::Even && !options.fixed_batches {
            let sampler = ElasticSampler::new(images, options.batch, options.seed)?.recording();
            worker.attach_sampler(&sampler);
            return Ok(Self {
                batches: Kind::Elastic(sampler),
                log,
                used: BTreeMap::new(),
            });
        }
        if options.epochs.is_some() || options.samples_log.is_some() {
            return Err(SourceError::NotElastic);
        }
        Ok(Self {
            batches: Kind::Dealt(Batches::new(Vec::new(), 1, 0, 0)),
            log,
            used: BTreeMap::new(),
        })
    }

    /// Completes the source once the worker knows its place.
    pub fn placed(
        mut self,
        place: &Synchronized,
        data: &Dataset,
        options: &Options,
    ) -> Result<Self, SourceError> {
        if let Kind::Dealt(_) = self.batches {
            let worker = place.node_rank * place.workers + place.worker;
            let workers = place.nodes * place.workers;
            let samples = deal(data.labels(), workers, options.shards, options.seed)
                .into_iter()
                .nth(worker)
                .unwrap_or_default();
            if samples.is_empty() {
                return Err(SourceError::NoSamples { worker, workers });
            }
            // The cast is safe: a rank is far below 2^32, as there are 1,437 images.
            self.batches = Kind::Dealt(Batches::new(
                samples,
                options.batch,
                options.seed,
                worker as u32,
            ));
        }
        // One log per node; every worker's sampler reports the whole node's images.
        if let Some(folder) = options.samples_log.as_ref()
            && place.worker == 0
        {
            let file = create_log(folder).map_err(|error| SourceError::Log {
                path: folder.clone(),
                error,
            })?;
            self.log = Some(BufWriter::new(file));
        }
        Ok(self)
    }

    /// The images of inner step `step`.
    pub fn batch(&mut self, step: u64) -> &[usize] {
        match &mut self.batches {
            Kind::Elastic(sampler) => sampler.next_batch(),
            Kind::Dealt(batches) => batches.at(step),
        }
    }

    /// Whether the run ends before inner step `step`. All nodes see the end of an epoch in the same
    /// round.
    pub fn is_finished(&self, step: u64, options: &Options) -> bool {
        match (&self.batches, options.epochs) {
            (Kind::Elastic(sampler), Some(epochs)) => sampler.epochs_completed() >= epochs,
            _ => step >= options.steps,
        }
    }

    /// Logs the images of the rounds decided since the last call.
    pub fn log(&mut self) -> Result<(), SourceError> {
        let Kind::Elastic(sampler) = &mut self.batches else {
            return Ok(());
        };
        for round in sampler.take_used() {
            for (epoch, image) in round.samples {
                let used = self.used.entry(epoch).or_insert(EpochSamples {
                    epoch,
                    ..EpochSamples::default()
                });
                used.count += 1;
                used.digest = used.digest.wrapping_add(random::hash(image as u64));
                if let Some(log) = &mut self.log {
                    writeln!(log, "{} {epoch} {image}", round.round)?;
                }
            }
            if let Some(log) = &mut self.log {
                // Flushed per round, so that a reader, or a kill, finds whole rounds.
                log.flush()?;
            }
        }
        Ok(())
    }

    /// Images that this node used in decided rounds, by epoch.
    pub fn samples_used(&self) -> Vec<EpochSamples> {
        self.used.values().copied().collect()
    }
}
