//! The times of actions: set times, and times drawn at random.

use super::super::scenario::{Action, Choice, Recurring, Scenario};
use super::span;
use crate::random::Random;
use slowmo_protocol::time::{Instant, Span};

/// Maximum number of random actions of a run; later ones are left out.
const MOMENTS_MAX: usize = 1 << 20;

/// The time of an action.
#[derive(Debug)]
pub(super) struct Moment {
    pub at: Instant,
    /// Candidates: the first that finds a node to hit is carried out.
    pub actions: Vec<Action>,
    /// Whether the scenario's author scripted exactly this.
    pub scripted: bool,
}

/// All moments of a run, in order of time.
pub(super) fn moments(scenario: &Scenario, seed: u64, duration: Span) -> Vec<Moment> {
    let end = Instant(duration.0);
    let mut moments = Vec::new();
    for scripted in &scenario.script {
        let every = span(scripted.every_s.unwrap_or(0.0));
        for time in 0..scripted.times as u64 {
            let at = Instant(
                span(scripted.at_s)
                    .0
                    .saturating_add(every.0.saturating_mul(time)),
            );
            if at < end {
                moments.push(Moment {
                    at,
                    actions: vec![scripted.action.clone()],
                    scripted: true,
                });
            }
        }
    }
    for (index, recurring) in scenario.random.iter().enumerate() {
        let mut random = Random::new(seed, 100 + index as u64);
        let mut at = Instant(span(scenario.warm_up_s).0);
        loop {
            at = at.after(pause(recurring, &mut random));
            if at >= end || moments.len() >= MOMENTS_MAX {
                break;
            }
            let chosen = choose(&recurring.choose, &mut random);
            let others = recurring
                .choose
                .iter()
                .filter(|choice| choice.weight > 0 && Some(*choice) != chosen);
            let actions = chosen
                .into_iter()
                .chain(others)
                .map(|choice| choice.action.clone())
                .collect();
            moments.push(Moment {
                at,
                actions,
                scripted: false,
            });
        }
    }
    moments.sort_by_key(|moment| moment.at);
    moments
}

/// A uniformly distributed number, at least 0 and below 1.
pub(super) fn unit(random: &mut Random) -> f64 {
    const STEPS: u64 = 1 << 53;
    random.below(STEPS) as f64 / STEPS as f64
}

/// Time until the next action; at least a microsecond.
fn pause(recurring: &Recurring, random: &mut Random) -> Span {
    let unit = unit(random);
    let seconds = match (recurring.per_hour, recurring.between_s) {
        (Some(rate), _) => -(1.0 - unit).ln() * 3600.0 / rate,
        (None, Some([from, to])) => from + (to - from) * unit,
        (None, None) => f64::from(u32::MAX),
    };
    Span(span(seconds).0.max(1))
}

fn choose<'a>(choices: &'a [Choice], random: &mut Random) -> Option<&'a Choice> {
    let mut left = random.below(choices.iter().map(|choice| choice.weight).sum());
    choices.iter().find(|choice| {
        let here = left < choice.weight;
        left = left.saturating_sub(choice.weight);
        here
    })
}
