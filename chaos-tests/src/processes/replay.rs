//! A recorded run, event by event, and the judgement of the invariants. The recording may come from
//! one node's flight recorder, from several, or from a whole run.

use super::collect::{self, CollectError};
use crate::invariants::{Judge, Verdict, Violation};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::{End, Event, Line, Setup, Start};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Facts about a run that its trace does not contain.
#[derive(Clone, Copy, Debug)]
pub struct Assumed {
    /// The quorum rule of the run.
    pub quorum: Quorum,
    /// Number of replicas of a shard.
    pub replicas: usize,
}

/// A recorded run that can be stepped through.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// The events, in order.
    pub lines: Vec<Line>,
    /// Whether the recording begins with a bootstrap and contains the events of each incarnation
    /// from its beginning; otherwise less can be judged.
    pub from_the_beginning: bool,
}

/// A rule that an event broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Index of the event among the lines.
    pub index: usize,
    /// The violation.
    pub violation: Violation,
}

impl Recorded {
    /// Reads files of traces, and all traces in folders, merged in order of time.
    ///
    /// # Errors
    /// A file cannot be read, or is not a trace.
    pub fn read(paths: &[PathBuf], assumed: Assumed) -> Result<Self, CollectError> {
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() {
                files.extend(collect::files(path)?)
            } else {
                files.push(path.clone())
            }
        }
        let mut lines = Vec::new();
        collect::merge_files(&files, &mut |line| lines.push(line))?;
        Ok(Self::of(lines, assumed))
    }

    /// A recording of these lines, with a beginning and an end added if they are missing.
    #[must_use]
    pub fn of(mut lines: Vec<Line>, assumed: Assumed) -> Self {
        let first_round = lines.iter().find_map(|line| match &line.event {
            Event::Applied { decided, .. } => Some(decided.place.round.0),
            _ => None,
        });
        if lines.is_empty() {
            return Self::default();
        }
        let is_whole = lines
            .iter()
            .any(|line| matches!(line.event, Event::Begun(_)));
        let from_the_beginning =
            first_round.is_none_or(|round| round == 0) && (is_whole || all_begin(&lines));
        if !is_whole {
            let mut setup = setup(assumed);
            let names_samples = |line: &Line| {
                matches!(
                    &line.event,
                    Event::Contributed { samples, .. } if !samples.is_empty()
                )
            };
            setup.samples = (from_the_beginning && lines.iter().any(names_samples)).then_some(0);
            lines.insert(
                0,
                Line {
                    at: Instant(0),
                    event: Event::Begun(setup),
                },
            );
        }
        let mut lines = with_ends(lines);
        if lines.last().is_some_and(|line| line.event != Event::Over) {
            let at = lines.last().map_or(Instant(0), |line| line.at);
            lines.push(Line {
                at,
                event: Event::Over,
            });
        }
        Self {
            lines,
            from_the_beginning,
        }
    }

    /// The judgement of the invariants: the violations, in order, and the result of each invariant.
    #[must_use]
    pub fn judge(&self) -> (Vec<Broken>, Vec<(&'static str, Verdict)>) {
        let mut judge = if self.from_the_beginning {
            Judge::default()
        } else {
            Judge::of_a_part()
        };
        let mut broken = Vec::new();
        for (index, line) in self.lines.iter().enumerate() {
            broken.extend(
                judge
                    .observe(line)
                    .map(|violation| Broken { index, violation }),
            );
        }
        (broken, judge.finish())
    }
}

/// Whether the events of each incarnation are there from its beginning. A recorder that keeps only
/// the last events may have forgotten the first ones of one node, and not those of another.
fn all_begin(lines: &[Line]) -> bool {
    let mut begun = BTreeSet::new();
    lines
        .iter()
        .all(|line| match (&line.event, starts(&line.event)) {
            (Event::Started(start), _) => begun.insert(*start) || begun.contains(start),
            (Event::Ended { .. }, _) | (_, None) => true,
            (_, Some(start)) => begun.contains(&start),
        })
}

fn setup(assumed: Assumed) -> Setup {
    let Assumed { quorum, replicas } = assumed;
    // Progress is judged only for runs that say when their faults are over.
    Setup {
        seed: 0,
        quorum,
        replicas,
        groups: 1,
        parameters: 0,
        sharded: true,
        optimizer: None,
        recovers_within: Span(u64::MAX),
        samples: None,
    }
}

/// Adds an end for each incarnation that is silent from some point on and is left out by those that
/// continue: it was killed when it said something last.
fn with_ends(lines: Vec<Line>) -> Vec<Line> {
    let mut last: BTreeMap<Start, usize> = BTreeMap::new();
    for (index, line) in lines.iter().enumerate() {
        match (&line.event, starts(&line.event)) {
            (Event::Ended { start, .. }, _) => _ = last.remove(start),
            (_, Some(start)) => _ = last.insert(start, index),
            _ => {}
        }
    }
    let left_out = |start: &Start, index: usize| {
        let without = |line: &Line| {
            matches!(
                &line.event,
                Event::Applied { decided, .. } if !decided.next.contains(start)
            )
        };
        lines[index..].iter().any(without)
    };
    last.retain(|start, index| left_out(start, *index));
    let mut ended = Vec::with_capacity(lines.len() + last.len());
    for (index, line) in lines.into_iter().enumerate() {
        let at = line.at;
        ended.push(line);
        let killed = last.iter().filter(|(_, place)| **place == index);
        ended.extend(killed.map(|(start, _)| Line {
            at,
            event: Event::Ended {
                start: *start,
                end: End::Killed,
            },
        }));
    }
    ended
}

fn starts(event: &Event) -> Option<Start> {
    match event {
        Event::Started(start) | Event::Resigned(start) => Some(*start),
        Event::Ended { start, .. }
        | Event::Contributed { start, .. }
        | Event::Applied { start, .. }
        | Event::Mass { start, .. }
        | Event::Gauge { start, .. }
        | Event::Loss { start, .. } => Some(*start),
        _ => None,
    }
}

/// The node that an event is about.
#[must_use]
pub fn node_of(event: &Event) -> Option<NodeId> {
    starts(event).map(|start| start.node)
}

/// An event in words.
#[must_use]
pub fn words(event: &Event) -> String {
    let node = |start: &Start| format!("node {}", start.node.0);
    match event {
        Event::Begun(setup) => format!(
            "the run begins ({:?}, {} replicas)",
            setup.quorum, setup.replicas
        )
        .to_lowercase(),
        Event::Faulted { fault } => format!("fault: {fault:?}"),
        Event::Quiet => "quiet from now on".to_owned(),
        Event::Started(start) => format!("{} starts", node(start)),
        Event::Ended { start, end } => format!("{} ends: {end:?}", node(start)).to_lowercase(),
        Event::Contributed {
            start,
            round,
            weight,
            ..
        } => {
            format!(
                "{} contributes to round {} with weight {weight}",
                node(start),
                round.0
            )
        }
        Event::Applied {
            start,
            decided,
            digest,
            drained,
            ..
        } => {
            let members = decided.next.len();
            let left = if *drained { "; it has handed over" } else { "" };
            let kind = format!("{:?}", decided.kind).to_lowercase();
            format!(
                "{} applies round {} ({kind}, step {}, {} contributors, {members} members next, \
                 digest {digest:016x}){left}",
                node(start),
                decided.place.round.0,
                decided.step.0,
                decided.contributors.len()
            )
        }
        Event::Resigned(start) => format!("{} resigns and joins again", node(start)),
        Event::Mass { start, .. } => format!("{} answers for its push-sum mass", node(start)),
        Event::Gauge {
            start,
            name,
            value,
            bound,
        } => format!("{}: {name} {value} of {bound}", node(start)),
        Event::Loss { start, step, loss } => {
            format!("{}: loss {loss:.6} at step {}", node(start), step.0)
        }
        Event::Over => "over".to_owned(),
    }
}

#[cfg(all(test, feature = "simulation"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sim::{Look, search};

    /// The events of the nodes of a simulated run that follows a sampler, without those of its
    /// runner.
    fn lines() -> (Vec<Line>, Assumed) {
        let runs = (0..).map(|seed| {
            search::seed(
                seed,
                &(4..=4),
                Look {
                    keeps_trace: true,
                    verbose: false,
                },
            )
        });
        let report = { runs }
            .find(|report| report.schedule.config.samples.is_some() && report.rounds > 10)
            .unwrap();
        let assumed = Assumed {
            quorum: report.schedule.config.quorum,
            replicas: report.schedule.config.replicas,
        };
        let trace = report.trace.unwrap().into_iter();
        let said = trace.filter(|line| {
            !matches!(
                line.event,
                Event::Begun(_) | Event::Faulted { .. } | Event::Quiet | Event::Over
            )
        });
        let mut begun = BTreeSet::new();
        let with_starts = |line: Line| {
            let start = starts(&line.event)
                .filter(|start| begun.insert(*start) && !matches!(line.event, Event::Started(_)));
            start
                .map(|start| Line {
                    at: line.at,
                    event: Event::Started(start),
                })
                .into_iter()
                .chain([line])
        };
        (said.flat_map(with_starts).collect(), assumed)
    }

    fn broken((lines, assumed): (Vec<Line>, Assumed)) -> (bool, Vec<String>) {
        let recorded = Recorded::of(lines, assumed);
        let rules = recorded
            .judge()
            .0
            .iter()
            .map(|broken| broken.violation.invariant.to_string())
            .collect();
        (recorded.from_the_beginning, rules)
    }

    #[test]
    fn dumps_that_begin_at_different_times_are_judged_as_a_part() {
        assert_eq!(broken(lines()), (true, vec![]));
        let (mut late, assumed) = lines();
        let other = late
            .iter()
            .filter_map(|line| starts(&line.event))
            .max()
            .unwrap();
        // One recorder has forgotten its first half.
        let half = late.len() / 2;
        let mut index = 0;
        late.retain(|line| {
            index += 1;
            index > half || starts(&line.event) != Some(other)
        });
        assert_eq!(broken((late, assumed)), (false, vec![]));
    }

    #[test]
    fn samples_that_are_used_twice_are_found_in_what_nodes_wrote_down() {
        let (mut twice, assumed) = lines();
        let mut used = None;
        for line in &mut twice {
            if let Event::Contributed { samples, .. } = &mut line.event
                && !samples.is_empty()
            {
                let first = used.get_or_insert_with(|| samples.clone());
                samples.clone_from(first);
            }
        }
        assert!(used.is_some(), "the run follows a sampler");
        let verdicts = Recorded::of(twice, assumed).judge().1;
        let verdict = verdicts
            .iter()
            .find(|(name, _)| *name == "samples_once")
            .map(|(_, verdict)| verdict);
        assert!(
            matches!(verdict, Some(Verdict::Violated(_))),
            "{verdicts:?}"
        );
    }

    #[test]
    fn nothing_is_no_run() {
        assert!(
            Recorded::of(
                Vec::new(),
                Assumed {
                    quorum: Quorum::Majority,
                    replicas: 1
                }
            )
            .lines
            .is_empty()
        );
    }
}
