//! Faults and their consequences.

use super::{Observed, Round, ms};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{End, Fault, Link, Start};

/// A fault of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Time of the fault.
    pub at: Instant,
    /// Name of the fault.
    pub name: &'static str,
    /// Time until the next decided round, if there was one.
    pub next_round_ms: Option<f64>,
    /// Time from the previous decided round to the next one.
    pub gap_ms: f64,
}

/// The end of a victim's trouble, after which it should contribute again.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// The victim.
    pub node: NodeId,
    /// The trouble that ended.
    pub after: &'static str,
    /// Time from which the victim can contribute.
    pub from: Instant,
    /// Outcome of the episode.
    pub outcome: Outcome,
}

/// Whether and how a victim came back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The victim contributed again after this many milliseconds.
    Back(f64),
    /// Another fault hit the victim first.
    HitAgain,
    /// The victim did not come back.
    Missing,
}

impl Episode {
    /// Milliseconds until the victim contributed again, if it did.
    #[must_use]
    pub fn back_ms(&self) -> Option<f64> {
        if let Outcome::Back(ms) = self.outcome {
            Some(ms)
        } else {
            None
        }
    }

    /// Description in words.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{} did not contribute again after its {} ({:.1} s)",
            self.node,
            self.after,
            self.from.0 as f64 / 1e6
        )
    }
}

/// All faults, except full disks and the restoring of links; simultaneous faults of one kind count
/// once.
pub(super) fn hits(observed: &Observed, history: &[&Round]) -> Vec<Hit> {
    let mut hits: Vec<Hit> = Vec::new();
    for (at, fault) in &observed.faults {
        let heals = matches!(fault, Fault::Heal)
            || matches!(fault, Fault::Links { link, .. } if *link == Link::default());
        let nothing = matches!(fault, Fault::FullDisk { .. });
        let name = fault.name();
        if heals
            || nothing
            || hits
                .last()
                .is_some_and(|hit| hit.at == *at && hit.name == name)
        {
            continue;
        }
        let next = history.partition_point(|round| round.at <= *at);
        let after = history.get(next);
        let before = next.checked_sub(1).and_then(|index| history.get(index));
        let end = after.map_or(observed.over, |round| round.at);
        hits.push(Hit {
            at: *at,
            name,
            next_round_ms: after.map(|round| ms(*at, round.at)),
            gap_ms: before.map_or(0.0, |round| ms(round.at, end)),
        });
    }
    hits
}

/// All victims that should have contributed again, in order of time.
pub(super) fn episodes(observed: &Observed, history: &[&Round]) -> Vec<Episode> {
    let mut episodes = Vec::new();
    for (at, fault) in &observed.faults {
        match fault {
            Fault::Start { node } => {
                let why = before_start(observed, *node, *at);
                episodes.push(episode(observed, history, (*node, why), *at));
            }
            Fault::Pause { node, span } => episodes.push(episode(
                observed,
                history,
                (*node, "pause"),
                at.after(*span),
            )),
            _ => {}
        }
    }
    for (at, nodes) in observed.heals() {
        let alive = nodes
            .into_iter()
            .filter(|node| observed.living(*node, at).is_some());
        episodes.extend(alive.map(|node| episode(observed, history, (node, "links"), at)));
    }
    episodes.sort_by_key(|episode| episode.from);
    episodes
}

/// The event that preceded a start of a node.
fn before_start(observed: &Observed, node: NodeId, at: Instant) -> &'static str {
    let before = observed
        .faults
        .iter()
        .rev()
        .filter(|(when, fault)| *when < at && fault.victim() == Some(node));
    let ends = |fault: &Fault| matches!(fault, Fault::Kill { .. } | Fault::Drain { .. });
    before
        .map(|(_, fault)| fault)
        .find(|fault| ends(fault))
        .map_or("start", Fault::name)
}

fn episode(
    observed: &Observed,
    history: &[&Round],
    (node, after): (NodeId, &'static str),
    from: Instant,
) -> Episode {
    let next = history.partition_point(|round| round.at <= from);
    let rounds = history.get(next..).unwrap_or_default();
    // Any incarnation started under the id since; a contribution of its predecessor does not count
    // as its own.
    let starts = |start: &Start| {
        start.node == node
            && observed
                .lives
                .get(start)
                .is_some_and(|life| after_begin(after, life.from, from))
    };
    let back = rounds
        .iter()
        .find(|round| round.contributors.iter().any(starts))
        .map(|round| round.at);
    let again = hit_again(observed, node, from);
    let outcome = match (back, again) {
        (Some(back), again) if again.is_none_or(|again| back <= again) => {
            Outcome::Back(ms(from, back))
        }
        (_, Some(_)) => Outcome::HitAgain,
        _ => Outcome::Missing,
    };
    Episode {
        node,
        after,
        from,
        outcome,
    }
}

/// A restarted node is another incarnation than before; one that was stopped or cut off is the
/// same.
fn after_begin(after: &str, life: Instant, from: Instant) -> bool {
    matches!(after, "pause" | "links") || life >= from
}

/// The time at which a node was first hit after a given time.
fn hit_again(observed: &Observed, node: NodeId, from: Instant) -> Option<Instant> {
    let is_hit = |fault: &Fault| match fault {
        Fault::Links { from, to, link } => {
            *link != Link::default() && (from.contains(&node) || to.contains(&node))
        }
        Fault::Start { .. } => false,
        fault => fault.victim() == Some(node),
    };
    observed
        .faults
        .iter()
        .find(|(at, fault)| *at > from && is_hit(fault))
        .map(|(at, _)| *at)
}

/// After each time that links were restored: the time until every live node had applied one round
/// that was decided since, unless a fault came first.
pub(super) fn whole_ms(observed: &Observed, history: &[&Round]) -> Vec<f64> {
    let whole = |healed: Instant| {
        let again = observed
            .faults
            .iter()
            .find(|(at, fault)| *at > healed && !matches!(fault, Fault::Heal))
            .map(|(at, _)| *at);
        let next = history.partition_point(|round| round.at <= healed);
        for round in history.get(next..)? {
            let living: Vec<Start> = observed
                .lives
                .iter()
                .filter(|(_, life)| life.includes(round.at))
                .map(|(start, _)| *start)
                .collect();
            let applied: Option<Vec<Instant>> = living
                .iter()
                .map(|start| round.applied.get(start).copied())
                .collect();
            if let Some(at) = applied.and_then(|times| times.into_iter().max()) {
                return again
                    .is_none_or(|again| at <= again)
                    .then(|| ms(healed, at));
            }
        }
        // Not whole until the end, unless a fault came between.
        again.is_none().then(|| ms(healed, observed.over))
    };
    observed
        .heals()
        .into_iter()
        .filter_map(|(at, _)| whole(at))
        .collect()
}

/// Processes that ended though no one killed or drained them.
pub(super) fn fell(observed: &Observed) -> Vec<String> {
    let mut fell = Vec::new();
    for (start, life) in &observed.lives {
        let Some((at, end)) = life.ended else {
            continue;
        };
        let told = |fault: &Fault| {
            matches!(
                fault,
                Fault::Kill { node } | Fault::Drain { node } if *node == start.node
            )
        };
        let wanted = observed
            .faults
            .iter()
            .any(|(when, fault)| *when >= life.from && *when <= at && told(fault));
        if !wanted || end == End::Failed {
            fell.push(format!(
                "{} ended by itself after {:.1} s ({end:?})",
                start.node,
                at.0 as f64 / 1e6
            ));
        }
    }
    fell
}
