//! One pass over a trace.

use super::super::measure::Observed;
use super::Judged;
use crate::invariants::Judge;
use slowmo_protocol::trace::Line;

/// Judges and measures while a trace is read.
#[derive(Default)]
pub struct Examiner {
    judge: Judge,
    observed: Observed,
}

/// What a trace shows.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// What became of each invariant.
    pub verdicts: Vec<Judged>,
    /// What happened.
    pub observed: Observed,
}

impl Examiner {
    /// Looks at the next line.
    pub fn observe(&mut self, line: &Line) {
        self.observed.observe(line);
        self.judge.observe(line);
    }

    /// The trace is over.
    #[must_use]
    pub fn finish(self) -> Examined {
        let judged = |(name, verdict): (&str, _)| Judged {
            name: name.to_owned(),
            verdict,
        };
        Examined {
            verdicts: self.judge.finish().into_iter().map(judged).collect(),
            observed: self.observed,
        }
    }
}
