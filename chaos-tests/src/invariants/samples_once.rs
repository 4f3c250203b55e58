//! 10. Every sample of an epoch is used exactly once per decided history (elastic sampler).

use super::{Checked, History, Invariant};
use slowmo_protocol::trace::{Event, Line, Place};
use std::collections::BTreeMap;

/// The samples that decided contributions used, by round.
#[derive(Default)]
pub struct SamplesOnce {
    used: BTreeMap<Place, Vec<(u64, u64)>>,
}

impl Invariant for SamplesOnce {
    fn name(&self) -> &'static str {
        "samples_once"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let (Event::Applied { .. }, Some(known)) = (&line.event, history.new_outcome()) else { return Ok(()) };
        if history.setup().is_none_or(|setup| setup.samples.is_none()) {
            return Ok(());
        }
        let decided = &known.decided;
        let of = |node: &_| decided.members.iter().find(|start| start.node == *node);
        let contribution = |start: &_| history.contribution(*start, decided.began_in, decided.place.round);
        let contributions = decided.contributors.iter().filter_map(of).filter_map(contribution);
        let used: Vec<(u64, u64)> = contributions.flat_map(|contribution| contribution.samples.iter().copied()).collect();
        self.used.insert(decided.place, used);
        Ok(())
    }

    fn finish(&mut self, history: &History) -> Result<Checked, String> {
        if history.setup().is_none_or(|setup| setup.samples.is_none()) {
            return Ok(Checked::NotShown("this run follows no elastic sampler"));
        }
        let Some(last) = history.furthest() else { return Ok(Checked::Times(0)) };
        let (mut ranges, mut known, mut founding) = (Vec::new(), Some(last), last);
        while let Some(at) = known {
            founding = at;
            ranges.extend(self.used.get(&at.decided.place).into_iter().flatten().copied());
            known = history.before(&at.decided);
        }
        ranges.sort_unstable();
        if let Some(pair) = ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            return Err(format!("samples {:?} were used twice: {pair:?}", pair[1].0..pair[0].1.min(pair[1].1)));
        }
        // What was left over is dealt again first: what is missing now was dealt in the last round, or after it.
        let newest = self.used.get(&last.decided.place).into_iter().flatten().map(|(from, _)| *from).min();
        // A training that goes on from a checkpoint used the first ones before.
        let mut expected = if founding.decided.step.0 > 0 { ranges.first().map_or(0, |(from, _)| *from) } else { 0 };
        for (from, to) in &ranges {
            if *from > expected && newest.is_some_and(|newest| expected < newest) {
                return Err(format!("samples {expected}..{from} were never used, though later ones were"));
            }
            expected = *to;
        }
        Ok(Checked::Times(ranges.iter().map(|(from, to)| to - from).sum()))
    }
}
