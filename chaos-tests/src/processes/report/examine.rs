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

/// The result of reading a trace.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// The verdict of each invariant.
    pub verdicts: Vec<Judged>,
    /// The contents of the trace.
    pub observed: Observed,
}

impl Examiner {
    /// Processes the next line.
    pub fn observe(&mut self, line: &Line) {
        self.observed.observe(line);
        self.judge.observe(line);
    }

    /// Ends the trace and returns the results.
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
