//! Which fault hits which node and when. Everything follows from a scenario, a seed and a duration,
//! so it is known before anything starts.
//!
//! The planner records which nodes run and which are disturbed. Random actions leave `at_least`
//! settled nodes untouched and never hit a spared node. If an action finds no node to hit, another
//! of its list is chosen; if none finds one, that is counted. Disturbances that remain at the end
//! are undone then.

mod books;
mod moments;

use super::scenario::{Action, Group, GroupWord, Scenario, Time, Who};
use crate::random::Random;
use books::Books;
use moments::{Moment, moments};
use serde::Serialize;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::{Fault, Link};

/// All steps of a run, in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Schedule {
    /// The steps; times count from the moment that all bootstrap members train.
    pub steps: Vec<Step>,
    /// Number of actions that found no node to hit.
    pub skipped: usize,
}

/// One step of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Time of the step.
    pub at: Instant,
    /// The step itself.
    pub what: What,
}

/// The content of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A fault of a node.
    Fault(Fault),
    /// A paused node continues.
    Resume(NodeId),
    /// Links get worse; several such layers may lie on a link.
    Worse {
        /// Number that identifies the layer.
        layer: usize,
        /// The directions that are affected.
        ways: Vec<Way>,
        /// The quality of the affected links.
        link: Link,
    },
    /// A layer is removed.
    Better {
        /// Number of the layer.
        layer: usize,
        /// The directions on which it lay.
        ways: Vec<Way>,
        /// Whether no other layer is left.
        all_well: bool,
    },
}

/// Directions from some nodes to others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Way {
    /// The senders.
    pub from: Vec<NodeId>,
    /// The receivers.
    pub to: Vec<NodeId>,
}

/// Converts seconds to a time span.
#[must_use]
pub fn span(seconds: f64) -> Span {
    Span((seconds * 1e6).round().max(0.0) as u64)
}

/// The schedule of a run.
#[must_use]
pub fn plan(scenario: &Scenario, seed: u64, duration: Span) -> Schedule {
    let mut planner = Planner {
        scenario,
        random: Random::new(seed, 99),
        end: Instant(duration.0),
        books: Books::new(scenario),
        schedule: Schedule::default(),
        layers: Vec::new(),
    };
    for Moment {
        at,
        actions,
        scripted,
    } in moments(scenario, seed, duration)
    {
        planner.books.advance(at);
        if actions
            .iter()
            .find_map(|action| planner.act(at, action, scripted))
            .is_none()
        {
            planner.schedule.skipped += 1;
        }
    }
    planner.finish()
}

struct Planner<'a> {
    scenario: &'a Scenario,
    random: Random,
    end: Instant,
    books: Books,
    schedule: Schedule,
    /// Time at which each layer is removed.
    layers: Vec<Instant>,
}

impl Planner<'_> {
    fn push(&mut self, at: Instant, what: What) {
        self.schedule.steps.push(Step { at, what });
    }

    /// Plans an action; `None` if it finds no node to hit.
    fn act(&mut self, at: Instant, action: &Action, scripted: bool) -> Option<()> {
        match action {
            Action::Kill { who, for_s } => {
                let node = self.who(who, scripted)?;
                self.push(at, What::Fault(Fault::Kill { node }));
                self.gone(at, node, for_s.as_ref());
            }
            Action::Drain { who, for_s } => {
                let node = self.who(who, scripted)?;
                self.push(at, What::Fault(Fault::Drain { node }));
                self.gone(at, node, for_s.as_ref());
            }
            Action::Pause { who, for_s } => {
                let node = self.who(who, scripted)?;
                let until = self.until(at, for_s);
                self.push(
                    at,
                    What::Fault(Fault::Pause {
                        node,
                        span: until.since(at),
                    }),
                );
                self.push(until, What::Resume(node));
                self.books.disturb(node, until);
            }
            Action::Start { count } => {
                let free: Vec<NodeId> = self.books.free().take(*count).collect();
                for node in &free {
                    self.push(at, What::Fault(Fault::Start { node: *node }));
                    self.books.start(*node, at);
                }
                (!free.is_empty()).then_some(())?;
            }
            Action::FullDisk { who, for_s } => {
                let node = self.who(who, scripted)?;
                let until = self.until(at, for_s);
                self.push(at, What::Fault(Fault::FullDisk { node, full: true }));
                self.push(until, What::Fault(Fault::FullDisk { node, full: false }));
            }
            Action::Cut {
                from,
                to,
                one_way,
                for_s,
            }
            | Action::Link {
                from,
                to,
                one_way,
                for_s,
                ..
            } => {
                let (from, to) = self.sides(from, to, scripted)?;
                self.worse(
                    at,
                    (from, to),
                    *one_way,
                    for_s,
                    action.link().unwrap_or_default(),
                );
            }
        }
        Some(())
    }

    fn gone(&mut self, at: Instant, node: NodeId, for_s: Option<&Time>) {
        let back = for_s.map(|time| self.until(at, time));
        self.books.stop(node, back);
        if let Some(back) = back {
            self.push(back, What::Fault(Fault::Start { node }));
        }
    }

    fn worse(
        &mut self,
        at: Instant,
        (from, to): (Vec<NodeId>, Vec<NodeId>),
        one_way: bool,
        for_s: &Time,
        link: Link,
    ) {
        let until = self.until(at, for_s);
        let side = if to.len() < from.len() { &to } else { &from };
        side.iter()
            .for_each(|node| self.books.disturb(*node, until));
        let mut ways = vec![Way {
            from: from.clone(),
            to: to.clone(),
        }];
        if !one_way {
            ways.push(Way { from: to, to: from });
        }
        let layer = self.layers.len();
        self.layers.push(until);
        self.push(
            at,
            What::Worse {
                layer,
                ways: ways.clone(),
                link,
            },
        );
        self.push(
            until,
            What::Better {
                layer,
                ways,
                all_well: false,
            },
        );
    }

    /// End of an action that began at `at`: after a time drawn from `time`, or at the end of the
    /// run.
    fn until(&mut self, at: Instant, time: &Time) -> Instant {
        let seconds = match *time {
            Time::Fixed(fixed) => fixed,
            Time::Range([from, to]) => from + (to - from) * moments::unit(&mut self.random),
        };
        at.after(span(seconds)).min(self.end)
    }

    fn who(&mut self, who: &Who, scripted: bool) -> Option<NodeId> {
        let candidates = self.books.candidates(scripted);
        self.books.choose(who, &candidates, &mut self.random)
    }

    /// Two disjoint groups, neither of them empty.
    fn sides(
        &mut self,
        from: &Group,
        to: &Group,
        scripted: bool,
    ) -> Option<(Vec<NodeId>, Vec<NodeId>)> {
        let one = self.group(from, &[], scripted);
        let other = self.group(to, &one.clone().unwrap_or_default(), scripted);
        let others = |side: &[NodeId]| {
            self.books
                .ids()
                .filter(|id| !side.contains(id))
                .collect::<Vec<_>>()
        };
        let (one, mut other) = match (one, other) {
            (Some(one), Some(other)) => (one, other),
            (Some(one), None) if is_others(to) => (one.clone(), others(&one)),
            (None, Some(other)) if is_others(from) => (others(&other), other),
            _ => return None,
        };
        other.retain(|id| !one.contains(id));
        (!one.is_empty() && !other.is_empty()).then_some((one, other))
    }

    fn group(&mut self, group: &Group, except: &[NodeId], scripted: bool) -> Option<Vec<NodeId>> {
        let half = self.scenario.ids_max() / 2;
        match group {
            Group::Ids(ids) => Some(ids.iter().map(|id| NodeId(*id)).collect()),
            Group::Word(GroupWord::Others) => None,
            Group::Word(GroupWord::All) => Some(self.books.ids().collect()),
            Group::Word(GroupWord::LowerHalf) => Some(self.books.ids().take(half).collect()),
            Group::Word(GroupWord::UpperHalf) => Some(self.books.ids().skip(half).collect()),
            Group::Word(GroupWord::Leader) => {
                let candidates = self.books.candidates(scripted);
                candidates
                    .first()
                    .copied()
                    .filter(|node| self.books.leads(*node))
                    .map(|node| vec![node])
            }
            Group::Word(GroupWord::Any) => {
                let mut candidates = self.books.candidates(scripted);
                candidates.retain(|node| !except.contains(node));
                self.random.pick(&candidates).map(|node| vec![*node])
            }
        }
    }

    fn finish(self) -> Schedule {
        let mut schedule = self.schedule;
        schedule.steps.sort_by_key(|step| step.at);
        let mut lying: usize = 0;
        for step in &mut schedule.steps {
            match &mut step.what {
                What::Worse { .. } => lying += 1,
                What::Better { all_well, .. } => {
                    lying = lying.saturating_sub(1);
                    *all_well = lying == 0;
                }
                _ => {}
            }
        }
        schedule
    }
}

fn is_others(group: &Group) -> bool {
    *group == Group::Word(GroupWord::Others)
}

#[cfg(test)]
mod tests;
