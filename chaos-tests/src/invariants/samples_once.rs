//! 10. Every sample of an epoch is used exactly once per decided history (elastic sampler).

use super::{Checked, History, Invariant};
use slowmo_protocol::trace::{Event, Line, Place, Start};
use std::collections::BTreeMap;

/// The samples that decided contributions used, per round.
#[derive(Default)]
pub struct SamplesOnce {
    used: BTreeMap<Place, Used>,
}

struct Used {
    ranges: Vec<(u64, u64)>,
    /// The lowest sample that the round dealt. The lowest member gets it, so it is known if that
    /// member contributed.
    first: Option<u64>,
}

impl Invariant for SamplesOnce {
    fn name(&self) -> &'static str {
        "samples_once"
    }

    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String> {
        let (Event::Applied { .. }, Some(known)) = (&line.event, history.new_outcome()) else {
            return Ok(());
        };
        if history.setup().is_none_or(|setup| setup.samples.is_none()) {
            return Ok(());
        }
        let decided = &known.decided;
        let contributes = |start: &&Start| decided.contributors.contains(&start.node);
        let contribution =
            |start: &_| history.contribution(*start, decided.began_in, decided.place.round);
        let contributions = decided
            .members
            .iter()
            .filter(contributes)
            .filter_map(contribution);
        let ranges: Vec<(u64, u64)> = contributions
            .flat_map(|contribution| contribution.samples.iter().copied())
            .collect();
        let lowest = decided
            .members
            .iter()
            .min()
            .filter(contributes)
            .and_then(contribution);
        let first = lowest
            .and_then(|contribution| contribution.samples.iter().map(|(from, _)| *from).min());
        self.used.insert(decided.place, Used { ranges, first });
        Ok(())
    }

    fn finish(&mut self, history: &History) -> Result<Checked, String> {
        if history.setup().is_none_or(|setup| setup.samples.is_none()) {
            return Ok(Checked::NotShown("this run follows no elastic sampler"));
        }
        let Some(last) = history.furthest() else {
            return Ok(Checked::Times(0));
        };
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        // Leftover samples are dealt again first: all samples below the first sample of a round
        // were used before that round.
        let mut newest = None;
        let mut known = Some(last);
        let mut bootstrap = last;
        while let Some(at) = known {
            bootstrap = at;
            if let Some(used) = self.used.get(&at.decided.place) {
                ranges.extend(&used.ranges);
                newest = newest.or(used.first);
            }
            known = history.before(&at.decided);
        }
        ranges.sort_unstable();
        if let Some(pair) = ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            return Err(format!(
                "samples {:?} were used twice: {pair:?}",
                pair[1].0..pair[0].1.min(pair[1].1)
            ));
        }
        // A training run that continues from a checkpoint used the first samples before.
        let mut expected = if bootstrap.decided.step.0 > 0 {
            ranges.first().map_or(0, |(from, _)| *from)
        } else {
            0
        };
        for (from, to) in &ranges {
            if *from > expected && newest.is_some_and(|newest| expected < newest) {
                return Err(format!(
                    "samples {expected}..{from} were never used, though later ones were"
                ));
            }
            expected = *to;
        }
        Ok(Checked::Times(
            ranges.iter().map(|(from, to)| to - from).sum(),
        ))
    }
}
