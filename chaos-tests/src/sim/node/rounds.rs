//! The coordinator of a simulated node: drives that part of the node, with real sums over small
//! vectors.

use crate::sim::mail::{Mail, Output};
use slowmo_protocol::algorithm::OuterOptimizer;
use slowmo_protocol::coordinator::{Coordinator, Settings};
use slowmo_protocol::ident::ShardId;
use slowmo_protocol::machine::{Identity, Outbox};
use slowmo_protocol::node::vectors::{Done, State, Vectors, carry_out};
use slowmo_protocol::node::{Applied, ContributionMail, RoundsEffect, RoundsPart, ToRounds};
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{self, Event, Held, Start, digest_values};

/// The coordinator part, and what it needs from the world.
pub struct Rounds {
    part: RoundsPart<Vectors>,
    identity: Identity,
    optimizer: OuterOptimizer,
    /// Duration of a computation or write of this node, in microseconds.
    pub work: u64,
    /// The last outcome whose parameters the training thread had when it contributed.
    pub after: Option<trace::Place>,
    /// Reason why no round is decided.
    pub waiting: Option<String>,
    /// Number of decided outcomes applied so far.
    pub applied: u64,
}

impl Rounds {
    /// A coordinator without a view.
    pub fn new(settings: Settings, optimizer: OuterOptimizer) -> Self {
        let identity = settings.identity;
        Self {
            part: RoundsPart::new(settings),
            identity,
            optimizer,
            work: 0,
            after: None,
            waiting: None,
            applied: 0,
        }
    }

    /// Time at which the part needs its next tick.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.part.next_deadline()
    }

    /// The machine, for inspection.
    pub fn machine(&self) -> &Coordinator {
        self.part.machine()
    }

    /// The current phase, in a word.
    pub fn phase(&self) -> &'static str {
        self.part.phase()
    }

    /// Number of streams that are parked.
    pub fn parked(&self) -> usize {
        self.part.parked()
    }

    fn start(&self) -> Start {
        Start {
            node: self.identity.node,
            incarnation: self.identity.incarnation,
        }
    }

    /// Handles a message.
    pub fn take(&mut self, message: ToRounds<Vectors>, now: Instant, outputs: &mut Vec<Output>) {
        if let ToRounds::Contribute(contribute) = &message {
            let ContributionMail {
                round,
                contribution,
                ..
            } = &**contribute;
            outputs.push(Output::Record(Event::Contributed {
                start: self.start(),
                lineage: self.machine().began_in(),
                round: *round,
                after: self.after,
                weight: contribution.weight,
                values: contribution.values.to_vec(),
                samples: contribution.used.clone(),
            }));
        }
        let mut out = Outbox::default();
        self.part.handle(message, now, &mut out);
        for effect in out.take() {
            self.act(effect, outputs);
        }
    }

    fn act(&mut self, effect: RoundsEffect<Vectors>, outputs: &mut Vec<Output>) {
        match effect {
            RoundsEffect::Send { to, frame } => outputs.push(Output::Frame(to, frame)),
            RoundsEffect::Tell(mail) => outputs.push(Output::tell(mail)),
            RoundsEffect::Applied(applied) => {
                self.applied += 1;
                outputs.push(Output::Record(self.trace(&applied)));
            }
            RoundsEffect::Resigned => outputs.push(Output::Record(Event::Resigned(self.start()))),
            RoundsEffect::Unsound(node, what) => outputs.push(Output::Named(node, what)),
            RoundsEffect::Waiting(why) => self.waiting = why,
            effect => {
                for done in carry_out(&mut self.part, self.identity, self.optimizer, effect) {
                    outputs.push(match done {
                        Done::Stream(to, stream) => Output::Stream(to, Box::new(stream)),
                        Done::Report(attempt, moved) => {
                            Output::Later(self.work, Mail::from(ToRounds::Moved(attempt, moved)))
                        }
                    });
                }
            }
        }
    }

    fn trace(&self, applied: &Applied<Vectors>) -> Event {
        let held = |(shard, state): (ShardId, &State)| {
            let digest =
                digest_values(&state.anchor).rotate_left(1) ^ digest_values(&state.momentum);
            Held {
                shard,
                digest,
                anchor: state.anchor.clone(),
                momentum: state.momentum.clone(),
            }
        };
        let holds = self.part.shards().all().map(held).collect();
        applied.event(
            self.start(),
            digest_values(&applied.values),
            applied.values.to_vec(),
            holds,
        )
    }
}
