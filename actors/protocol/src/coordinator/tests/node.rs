//! One simulated node: the rounds of a node over small vectors, and a training thread that really
//! waits.

use super::oracle::GAMMA;
use crate::algorithm::BufferStrategy;
use crate::coordinator::{Coordinator, Outcome, RoundKind, RoundSpec, Settings, Voter};
use crate::ident::{ClusterId, Epoch, Incarnation, NodeId, Round, Step};
use crate::machine::Identity;
use crate::node::vectors::{Contribution, Vectors};
use crate::node::{Applied, ContributionMail, DecidedRound, RoundsPart};
use crate::policy::{OnQuorumLoss, Quorum};
use crate::time::Span;
use crate::view::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const CLUSTER: ClusterId = ClusterId(1);
/// What a slow step does to the base optimizer's buffers: rounds with and without a donor
/// alternate.
pub const BUFFERS: BufferStrategy = BufferStrategy::Reset;
/// How long a round waits for a straggler, in simulated microseconds.
pub const GRACE: Span = Span(60_000);
/// How long survivors wait for a quorum.
pub const FORK_AFTER: Span = Span(150_000);

/// How rounds follow from inner steps: found, then `every` steps a plain average, every `slow` of
/// those a slow step.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub slow_every: u64,
    pub elements: usize,
    /// Whether a mean of so many gradients goes before every exchange; 0: none.
    pub gradients: usize,
    /// Values of the base optimizer's buffers, of which joiners get a copy; 0: none.
    pub buffers: usize,
}

impl Schedule {
    pub fn spec(&self, step: Step) -> RoundSpec {
        let slow = (step.0 + 1).is_multiple_of(self.slow_every);
        let kind = if slow {
            RoundKind::Slow
        } else {
            RoundKind::Average
        };
        RoundSpec {
            kind,
            step,
            gamma: GAMMA,
            elements: self.elements as u64,
        }
    }

    pub fn after(&self, spec: RoundSpec) -> RoundSpec {
        let next = self.spec(spec.next_step());
        if self.gradients > 0 && spec.kind != RoundKind::Gradients {
            return RoundSpec {
                kind: RoundKind::Gradients,
                elements: self.gradients as u64,
                ..next
            };
        }
        next
    }

    pub fn found(&self) -> RoundSpec {
        RoundSpec {
            kind: RoundKind::Bootstrap,
            step: Step(0),
            gamma: 0.0,
            elements: self.elements as u64,
        }
    }
}

pub struct Node {
    pub member: Member,
    pub part: RoundsPart<Vectors>,
    pub alive: bool,
    pub stopped_until: u64,
    /// The round that the training thread works towards.
    pub round: Round,
    pub next: RoundSpec,
    pub waiting: bool,
    pub parameters: Vec<f64>,
    /// What the last round made.
    pub values: Vec<f64>,
    pub frozen: Vec<f64>,
    /// The base optimizer's buffers, which differ from node to node.
    pub buffers: Vec<f64>,
    /// The round that it is applying.
    pub applies: Option<Box<Applied<Vectors>>>,
    pub drained: bool,
    pub outside: bool,
    pub draining: bool,
    /// Its training is over: it leaves without another contribution.
    pub silent: bool,
    /// Whom its membership has declared dead, or is about to, and whether as ended.
    pub believed_dead: BTreeMap<Voter, bool>,
    /// Who is ready to join, as far as its membership has said.
    pub candidates: Vec<Member>,
    /// Of whom it was told that they leave.
    pub leavers: BTreeSet<NodeId>,
    /// The view that this start of the node asked to join.
    pub asked: Option<Epoch>,
    pub failed: Option<crate::coordinator::RoundError>,
    pub waits_for: Option<String>,
    pub last: Option<Outcome>,
}

impl Node {
    pub fn new(
        id: NodeId,
        incarnation: u64,
        schedule: Schedule,
        replicas: usize,
        quorum: (Quorum, OnQuorumLoss),
    ) -> Self {
        let identity = Identity {
            cluster: CLUSTER,
            node: id,
            incarnation: Incarnation(incarnation),
        };
        let settings = Settings {
            replicas,
            copies_buffers: Some(BUFFERS),
            orders_by_rate: true,
            quorum: quorum.0,
            on_quorum_loss: quorum.1,
            fork_after: FORK_AFTER,
            grace: GRACE,
            round_timeout: Span(3_000_000),
            ..Settings::simulated(identity)
        };
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7000));
        let parameters = (0..schedule.elements)
            .map(|index| id.0 as f64 + index as f64 / 8.0)
            .collect();
        Self {
            member: Member {
                id,
                incarnation: Incarnation(incarnation),
                address,
                devices: 1,
            },
            part: RoundsPart::new(settings),
            alive: true,
            stopped_until: 0,
            round: Round::BOOTSTRAP,
            next: schedule.found(),
            waiting: false,
            parameters,
            values: Vec::new(),
            frozen: Vec::new(),
            buffers: vec![0.0; schedule.buffers],
            applies: None,
            drained: false,
            outside: true,
            draining: false,
            silent: false,
            believed_dead: BTreeMap::new(),
            candidates: Vec::new(),
            leavers: BTreeSet::new(),
            asked: None,
            failed: None,
            waits_for: None,
            last: None,
        }
    }

    pub fn machine(&self) -> &Coordinator {
        self.part.machine()
    }

    pub fn identity(&self) -> Identity {
        Identity {
            cluster: CLUSTER,
            node: self.member.id,
            incarnation: self.member.incarnation,
        }
    }

    pub fn start(&self) -> Voter {
        Voter::from(&self.member)
    }

    /// Is no member any more; its membership forgets what it knew of the others. Its state stays
    /// until it holds newer state.
    pub fn leave(&mut self) {
        self.outside = true;
        self.believed_dead.clear();
        self.candidates.clear();
        self.leavers.clear();
        self.asked = None;
    }

    /// Inner steps: every node drifts in its own way.
    pub fn train(&mut self) {
        let id = self.member.id.0;
        let step = self.next.step.0;
        let drift = |index: usize| ((id * 7 + step * 3 + index as u64) % 11) as f64 / 16.0 - 0.25;
        self.frozen = self
            .parameters
            .iter()
            .enumerate()
            .map(|(index, value)| value + drift(index))
            .collect();
        self.frozen.truncate(self.next.elements as usize);
        self.buffers
            .iter_mut()
            .for_each(|value| *value = *value / 2.0 + drift(step as usize));
        self.waiting = true;
    }

    /// What its training thread contributes.
    pub fn contribute(&self, rates: Vec<crate::topology::Rate>) -> ContributionMail<Vectors> {
        let values = Arc::new(self.frozen.clone());
        let buffers = Arc::new(self.buffers.clone());
        ContributionMail {
            round: self.round,
            spec: self.next,
            samples: None,
            rates,
            buffers: self.buffers.len() as u64,
            parameters: self.frozen.len(),
            contribution: Contribution {
                weight: 1.0,
                values,
                buffers,
                used: Vec::new(),
            },
        }
    }

    /// Whether this node holds all that an outcome made for it.
    pub fn holds(&self, outcome: &Outcome) -> bool {
        self.part.attempts().iter().any(|attempt| {
            let Some(publication) = &attempt.publication else {
                return false;
            };
            let values: usize = attempt
                .parts
                .iter()
                .flat_map(BTreeMap::values)
                .map(Vec::len)
                .sum();
            let mut moved = publication
                .moves_to(self.member.id)
                .flat_map(|moved| &moved.shards);
            attempt.plan.contributors == outcome.contributors
                && values == outcome.spec.elements as usize
                && moved.all(|shard| attempt.states.contains_key(shard))
        })
    }

    /// Takes over what a decided round brought.
    pub fn apply(
        &mut self,
        applied: &Applied<Vectors>,
        decided: &DecidedRound<Vectors>,
        schedule: Schedule,
    ) {
        let Applied {
            publication,
            outcome,
            ..
        } = applied;
        match &decided.donated {
            Some(donated) => self.buffers.clone_from(donated),
            None if publication.donor_to(self.member.id).is_some() => {
                panic!("{} got no buffers", self.member.id)
            }
            None if BUFFERS == BufferStrategy::Reset && outcome.spec.kind == RoundKind::Slow => {
                self.buffers.fill(0.0)
            }
            // Whoever joins has the buffers that a member has.
            None => assert!(
                self.buffers.is_empty() || !self.outside,
                "{} joined without buffers",
                self.member.id
            ),
        }
        if outcome.spec.carries_parameters() {
            self.parameters = decided.values.to_vec();
        }
        let held: BTreeSet<_> = self.part.shards().all().map(|(shard, _)| shard).collect();
        for shard in publication
            .holds
            .iter()
            .filter(|shard| !held.contains(shard))
        {
            assert!(
                outcome.absent.contains(shard),
                "{} lacks the state of {shard}",
                self.member.id
            );
        }
        self.values = decided.values.to_vec();
        self.round = outcome.round.next();
        self.next = schedule.after(outcome.spec);
        self.waiting = false;
        self.outside = false;
        let voters = outcome.voters();
        let watched = |start: &Voter| {
            voters.contains(*start)
                || outcome
                    .view
                    .members()
                    .iter()
                    .any(|member| Voter::from(member) == *start)
        };
        self.believed_dead.retain(|start, _| watched(start));
        self.leavers.retain(|id| outcome.view.contains(*id));
        self.last = Some(Outcome::clone(outcome));
    }
}
