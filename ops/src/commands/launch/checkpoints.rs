//! What the nodes of a launch told of their checkpoints when they ended.

use slowmo::status::CheckpointStatus;

/// The checkpoints of a job, as its nodes saw them.
#[derive(Debug, Default)]
pub struct Checkpoints {
    /// The report of the node that knows the newest complete checkpoint.
    newest: Option<CheckpointStatus>,
    /// Parts that were not written, of all nodes.
    failed: u64,
    /// The node whose part was not written last, and why.
    error: Option<(usize, String)>,
}

impl Checkpoints {
    /// Adds what a node told when it ended.
    pub fn add(&mut self, node: usize, told: CheckpointStatus) {
        self.failed += told.failed;
        if let Some(error) = &told.error {
            self.error = Some((node, error.clone()));
        }
        let known = self.newest.as_ref().map(|newest| newest.whole_step);
        if known.is_none_or(|known| told.whole_step > known) {
            self.newest = Some(told);
        }
    }

    /// The inner step that follows the newest complete checkpoint.
    pub fn step(&self) -> Option<u64> {
        self.newest.as_ref().and_then(|newest| newest.whole_step)
    }

    /// Parts that were not written.
    pub fn failed(&self) -> u64 {
        self.failed
    }
}

/// The end of a sentence for the user; empty if no node writes checkpoints.
impl std::fmt::Display for Checkpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(newest) = &self.newest else {
            return Ok(());
        };
        match newest.whole_step {
            Some(step) => write!(f, "; the last complete checkpoint is of step {step}")?,
            None => write!(f, "; no checkpoint is complete")?,
        }
        if newest.not_whole > 0 {
            write!(f, ", {} later ones are not", newest.not_whole)?;
        }
        match &self.error {
            Some((node, error)) => write!(
                f,
                "; {} parts of checkpoints were not written, the last one by node {node}: {error}",
                self.failed
            ),
            None if self.failed > 0 => {
                write!(f, "; {} parts of checkpoints were not written", self.failed)
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_complete_checkpoint_and_every_failure_are_told() {
        let mut checkpoints = Checkpoints::default();
        assert_eq!(checkpoints.to_string(), "");
        checkpoints.add(1, CheckpointStatus::default());
        assert_eq!(checkpoints.to_string(), "; no checkpoint is complete");
        let whole = |step| CheckpointStatus {
            whole_step: Some(step),
            ..CheckpointStatus::default()
        };
        checkpoints.add(2, whole(48));
        checkpoints.add(3, whole(24));
        assert_eq!(
            checkpoints.to_string(),
            "; the last complete checkpoint is of step 48"
        );
        assert_eq!(checkpoints.step(), Some(48));
        checkpoints.add(
            4,
            CheckpointStatus {
                failed: 2,
                error: Some("the disk is full".to_owned()),
                ..whole(24)
            },
        );
        assert_eq!(
            checkpoints.to_string(),
            "; the last complete checkpoint is of step 48; 2 parts of checkpoints were not written, the \
             last one by node 4: the disk is full"
        );
        assert_eq!(checkpoints.failed(), 2);
    }
}
