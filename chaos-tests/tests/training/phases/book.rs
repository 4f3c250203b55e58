//! The recorded outcomes, and the single process that follows them.

use crate::support::{RATE, bits, descend, mean, noisy, uneven};
use slowmo::StepReport;
use slowmo::internal::Inspection;
use slowmo_protocol::coordinator::{Base, Entry, Outcome, RoundKind};
use slowmo_protocol::ident::{ShardId, Term};
use slowmo_protocol::published::Digest;
use slowmo_protocol::shards::{Layout, ShardMap};
use slowmo_protocol::view::View;
use slowmo_protocol::wire::{Header, Message};
use std::collections::{BTreeMap, BTreeSet};

/// Parameters of the model: seven shards.
pub const VALUES: usize = 42;
/// Rounds from one slow step to the next.
pub const TAU: u64 = 2;
/// Of the slow momentum.
pub const BETA: f32 = 0.5;

/// The words of every node, and the decisions.
#[derive(Default)]
pub struct Book {
    outcomes: BTreeMap<u64, Outcome>,
    /// The view of the bootstrap.
    bootstrap: Option<View>,
    /// The outcome of each attempt, by round, term and number.
    attempts: BTreeMap<(u64, Term, u32), Outcome>,
    /// The parameters that a node had after a round: node, round, values.
    parameters: Vec<(u64, u64, Vec<f32>)>,
    /// The anchor and momentum that a node held after a round: node, round, values.
    states: Vec<(u64, u64, Inspection)>,
    /// The first contradiction.
    torn: Option<String>,
}

/// Parameters, anchor and momentum after a round.
struct Decided {
    parameters: Vec<f32>,
    anchor: Vec<f32>,
    momentum: Vec<f32>,
}

impl Book {
    /// Takes in a control frame: most decisions travel as references to attempts, and those as
    /// changes of the view.
    pub fn overhear(&mut self, who: u64, header: &Header, message: &Message) {
        let attempt = (header.round.0, header.term, header.attempt);
        match message {
            Message::Bootstrap { view, .. } => self.bootstrap = Some(view.clone()),
            Message::Attempt(draft) | Message::Admit { draft, .. } => {
                let before = header
                    .round
                    .0
                    .checked_sub(1)
                    .and_then(|before| self.outcomes.get(&before));
                let view = before
                    .map(|before| &before.view)
                    .or(self.bootstrap.as_ref());
                let (order, forks) =
                    before.map_or((&[][..], &[][..]), |before| (&before.order, &before.forks));
                let proposal = view.and_then(|view| {
                    draft.resolve(Base {
                        round: header.round,
                        view,
                        order,
                        changed: before.map(|before| before.changed).unwrap_or_default(),
                        forks,
                    })
                });
                self.attempts
                    .extend(proposal.map(|proposal| (attempt, proposal.outcome)));
            }
            Message::Decide {
                entry: Entry::Whole(outcome),
                ..
            } => self.decide(who, outcome),
            Message::Decide {
                entry: Entry::Held(_),
                ..
            } => {
                if let Some(outcome) = self.attempts.get(&attempt).cloned() {
                    self.decide(who, &outcome);
                }
            }
            _ => {}
        }
    }

    /// Takes in an outcome that somebody decided or applied. What the owners published is left out:
    /// not everybody who names it says so, and the values themselves are compared.
    pub fn decide(&mut self, who: u64, outcome: &Outcome) {
        let outcome = &Outcome {
            published: Digest::default(),
            ..outcome.clone()
        };
        let known = self
            .outcomes
            .entry(outcome.round.0)
            .or_insert_with(|| outcome.clone());
        // Fewer than a quorum may go on with it under another lineage.
        if !known.has_the_data_of(outcome) {
            self.torn.get_or_insert_with(|| {
                format!("two outcomes of one round: {known:?}, and at node {who} {outcome:?}")
            });
        }
    }

    /// Takes in what a node had after a step.
    pub fn note(
        &mut self,
        node: u64,
        report: &StepReport,
        parameters: &[f32],
        inspection: Option<Inspection>,
    ) {
        self.parameters.push((
            node,
            report.round.expect("a round at every step"),
            parameters.to_vec(),
        ));
        let Some(inspection) = inspection else { return };
        if let Some(outcome) = inspection.outcome.clone() {
            self.decide(node, &outcome);
            self.states.push((node, outcome.round.0, inspection));
        }
    }

    pub fn torn(&self) -> Option<&String> {
        self.torn.as_ref()
    }

    /// The round that was decided last.
    pub fn last(&self) -> u64 {
        self.outcomes
            .keys()
            .next_back()
            .copied()
            .unwrap_or_default()
    }

    pub fn outcome(&self, round: u64) -> Option<&Outcome> {
        self.outcomes.get(&round)
    }

    /// How many of the last rounds, without a gap, these nodes and nobody else decided and stayed
    /// in; none up to round `after`.
    pub fn rounds_of(&self, members: &[u64], after: u64) -> usize {
        let theirs = |outcome: &&Outcome| {
            outcome
                .contributors
                .iter()
                .map(|node| node.0)
                .eq(members.iter().copied())
                && outcome
                    .view
                    .ids()
                    .map(|node| node.0)
                    .eq(members.iter().copied())
        };
        self.outcomes
            .range(after + 1..)
            .rev()
            .map(|(_, outcome)| outcome)
            .take_while(theirs)
            .count()
    }

    /// Shards whose momentum restarted at zero.
    pub fn momentum_lost(&self) -> u64 {
        self.outcomes
            .values()
            .next_back()
            .map_or(0, |outcome| outcome.momentum_lost)
    }

    /// Everything that was told is what one process computes, and the last round's nodes hold all
    /// of anchor and momentum.
    pub fn check(&self, replicas: usize) {
        assert_eq!(self.torn, None);
        let decided = self.follow(replicas);
        self.check_holders(replicas);
        for (node, round, parameters) in &self.parameters {
            assert_eq!(
                bits(parameters),
                bits(&decided[round].parameters),
                "parameters of node {node} after round {round}"
            );
        }
        for (node, round, Inspection { states, .. }) in &self.states {
            for (range, anchor, momentum) in states {
                let expected = &decided[round];
                let zeros = vec![0.0; range.len()];
                let momentum = if momentum.is_empty() {
                    &zeros
                } else {
                    momentum
                };
                let what = format!("of {range:?} at node {node} after round {round}");
                let absent = anchor.is_empty() && self.is_absent(*round, range.start);
                assert!(
                    absent || bits(anchor) == bits(&expected.anchor[range.clone()]),
                    "anchor {what}"
                );
                assert!(
                    absent || bits(momentum) == bits(&expected.momentum[range.clone()]),
                    "momentum {what}: {momentum:?}"
                );
            }
        }
    }

    /// The same where rounding depends on who owned what, as in encoded rounds and in those over
    /// groups: nodes are compared with each other, bit for bit, and only within `roughly` with the
    /// single process.
    pub fn check_roughly(&self, replicas: usize, roughly: f32) {
        assert_eq!(self.torn, None);
        let decided = self.follow(replicas);
        self.check_holders(replicas);
        let mut parameters_after: BTreeMap<u64, &[f32]> = BTreeMap::new();
        for (node, round, parameters) in &self.parameters {
            let same = parameters_after.entry(*round).or_insert(parameters);
            assert_eq!(
                bits(parameters),
                bits(same),
                "parameters of node {node} after round {round}"
            );
            for (found, rough) in parameters.iter().zip(&decided[round].parameters) {
                assert!(
                    (found - rough).abs() < roughly,
                    "node {node} after round {round}: {found} against {rough}"
                );
            }
        }
        // Anchor and momentum by round and first element.
        let mut states_after = BTreeMap::<(u64, usize), (&[f32], &[f32])>::new();
        for (node, round, Inspection { states, .. }) in &self.states {
            for (range, anchor, momentum) in states {
                let what = format!("of {range:?} at node {node} after round {round}");
                let renewed = self.outcomes[round].spec.kind != RoundKind::Average;
                let parameters = if renewed {
                    parameters_after.get(round)
                } else {
                    None
                };
                assert!(
                    parameters
                        .is_none_or(|parameters| bits(anchor) == bits(&parameters[range.clone()])),
                    "anchor {what}"
                );
                let same = states_after
                    .entry((*round, range.start))
                    .or_insert((anchor, momentum));
                // No momentum is zero momentum.
                let nothing = momentum.iter().chain(same.1).all(|value| *value == 0.0);
                assert_eq!(bits(anchor), bits(same.0), "anchor {what}");
                assert!(nothing || bits(momentum) == bits(same.1), "momentum {what}");
            }
        }
    }

    fn is_absent(&self, round: u64, element: usize) -> bool {
        let layout = Layout::new(VALUES);
        self.outcomes[&round]
            .absent
            .iter()
            .any(|shard| layout.range(*shard).contains(&element))
    }

    /// Every shard is held by as many as the map says.
    fn check_holders(&self, replicas: usize) {
        let round = self.last() - 2;
        let view = &self.outcomes[&round].view;
        let layout = Layout::new(VALUES);
        let map = ShardMap::new(view, &Layout::new(VALUES), replicas);
        for (node, _, Inspection { states, .. }) in
            self.states.iter().filter(|(_, at, _)| *at == round)
        {
            let held: Vec<_> = states.iter().map(|(range, ..)| range.clone()).collect();
            let expected = map
                .held_by(slowmo_protocol::ident::NodeId(*node))
                .map(|shard| layout.range(shard));
            assert_eq!(
                held,
                expected.collect::<Vec<_>>(),
                "what node {node} holds after round {round}"
            );
        }
    }

    /// The whole history in one process.
    fn follow(&self, replicas: usize) -> BTreeMap<u64, Decided> {
        let mut x = uneven(VALUES);
        let mut anchor = x.clone();
        let mut momentum = vec![0.0f32; VALUES];
        let mut decided = BTreeMap::new();
        for (round, outcome) in &self.outcomes {
            let before = round
                .checked_sub(1)
                .map(|before| self.outcomes.get(&before).expect("every round is recorded"));
            let step = outcome.spec.step.0;
            assert_eq!(
                *round,
                if before.is_none() { 0 } else { step + 1 },
                "one round a step"
            );
            if let Some(before) = before {
                let replica = |node: &slowmo_protocol::ident::NodeId| {
                    let mut replica = x.clone();
                    descend(
                        &mut replica,
                        &noisy(node.0 as usize, step as usize, &x),
                        RATE,
                    );
                    replica
                };
                x = mean(&outcome.contributors.iter().map(replica).collect::<Vec<_>>());
                let lost = lost(before, outcome, replicas);
                let newly = lost
                    .iter()
                    .filter(|shard| !before.absent.contains(shard))
                    .count() as u64;
                assert_eq!(
                    outcome.momentum_lost,
                    before.momentum_lost + newly,
                    "shards lost in round {round}"
                );
                if (step + 1) % TAU == 0 {
                    assert_eq!(
                        (outcome.spec.kind, outcome.absent.len()),
                        (RoundKind::Slow, 0)
                    );
                    slow_step(&mut x, &mut anchor, &mut momentum, &lost);
                } else {
                    assert_eq!(
                        outcome.absent, lost,
                        "whose state nobody holds after round {round}"
                    );
                    lost.iter()
                        .for_each(|shard| momentum[Layout::new(VALUES).range(*shard)].fill(0.0));
                }
            }
            decided.insert(
                *round,
                Decided {
                    parameters: x.clone(),
                    anchor: x_or(&anchor),
                    momentum: momentum.clone(),
                },
            );
        }
        decided
    }
}

fn x_or(anchor: &[f32]) -> Vec<f32> {
    anchor.to_vec()
}

/// Shards whose state nobody that took part in a round held. Members that took part and did not
/// contribute are stragglers, which never come together with losses here.
fn lost(before: &Outcome, outcome: &Outcome, replicas: usize) -> Vec<ShardId> {
    let layout = Layout::new(VALUES);
    let map = ShardMap::new(&before.view, &layout, replicas);
    let present: BTreeSet<_> = outcome
        .contributors
        .iter()
        .chain(
            before
                .view
                .ids()
                .collect::<Vec<_>>()
                .iter()
                .filter(|id| outcome.view.contains(**id)),
        )
        .copied()
        .collect();
    let gone = |shard: &ShardId| {
        before.absent.contains(shard)
            || !map
                .holders(*shard)
                .iter()
                .any(|holder| present.contains(holder))
    };
    layout.shards().filter(gone).collect()
}

fn slow_step(x: &mut [f32], anchor: &mut [f32], momentum: &mut [f32], lost: &[ShardId]) {
    let layout = Layout::new(VALUES);
    for shard in layout.shards() {
        for index in layout.range(shard) {
            if lost.contains(&shard) {
                // A plain average, and momentum starts again.
                momentum[index] = 0.0;
            } else {
                momentum[index] = BETA * momentum[index] + (anchor[index] - x[index]) / RATE;
                x[index] = anchor[index] - RATE * momentum[index];
            }
            anchor[index] = x[index];
        }
    }
}
