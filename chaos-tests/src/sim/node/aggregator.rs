//! The aggregator of a simulated node with one worker: drives that part of the node.

use crate::sim::config::Config;
use crate::sim::mail::{Arrival, Mail, Output, ToTraining};
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::machine::Outbox;
use slowmo_protocol::node::vectors::{Contribution, Values, Vectors};
use slowmo_protocol::node::{
    AggregatorEffect, AggregatorPart, ContributionDraft, ContributionMail, ToAggregator, ToRounds,
};
use slowmo_protocol::time::Instant;
use slowmo_protocol::topology::Rate;

/// The aggregator part, and the data that the worker passes to it.
pub struct Exchanges {
    part: AggregatorPart<Vectors>,
    rates: Vec<Rate>,
    /// Whether the worker waits for an answer.
    asks: bool,
    buffers: Values,
    used: Vec<(u64, u64)>,
}

impl Exchanges {
    /// An aggregator before the bootstrap.
    pub fn new(config: &Config, rates: Vec<Rate>) -> Self {
        let gossips = matches!(config.algorithm.base, Base::Sgp(_));
        let part = AggregatorPart::new(1, gossips, config.waits.round);
        Self {
            part,
            rates,
            asks: false,
            buffers: Values::default(),
            used: Vec::new(),
        }
    }

    /// Time at which the part needs its next tick.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.part.next_deadline()
    }

    /// The worker requests an exchange.
    pub fn arrive(&mut self, arrival: Arrival, now: Instant, outputs: &mut Vec<Output>) {
        let Arrival {
            arrive,
            buffers,
            used,
        } = arrival;
        self.asks = true;
        self.buffers = buffers;
        self.used = used;
        self.take(ToAggregator::Arrive(Box::new(arrive)), now, outputs);
    }

    /// Handles a message.
    pub fn take(
        &mut self,
        message: ToAggregator<Vectors>,
        now: Instant,
        outputs: &mut Vec<Output>,
    ) {
        let mut out = Outbox::default();
        self.part.handle(message, now, &mut out);
        for effect in out.take() {
            self.act(effect, outputs);
        }
    }

    fn act(&mut self, effect: AggregatorEffect<Vectors>, outputs: &mut Vec<Output>) {
        match effect {
            AggregatorEffect::Tell(mail) => outputs.push(Output::tell(mail)),
            AggregatorEffect::Contribute(contributing) => {
                let ContributionDraft {
                    round,
                    spec,
                    weight,
                    model,
                    frozen: values,
                    samples,
                } = *contributing;
                let parameters = values.len();
                let contribution = Contribution {
                    weight,
                    values,
                    buffers: self.buffers.clone(),
                    used: std::mem::take(&mut self.used),
                };
                let rates = self.rates.clone();
                let buffers = model.optimizer;
                let contribute = ContributionMail {
                    round,
                    spec,
                    samples,
                    rates,
                    buffers,
                    parameters,
                    contribution,
                };
                outputs.push(Output::tell(ToRounds::Contribute(Box::new(contribute))));
            }
            AggregatorEffect::Release(released) => {
                self.answer(ToTraining::Exchanged(released), outputs)
            }
            AggregatorEffect::Unchanged => self.answer(ToTraining::Excluded, outputs),
            AggregatorEffect::Drained => self.answer(ToTraining::Drained, outputs),
            AggregatorEffect::Failed(failure) => self.answer(ToTraining::Failed(failure), outputs),
            AggregatorEffect::Left => outputs.push(Output::Tell(Mail::Training(ToTraining::Left))),
            // Momentum is sharded in every simulated run, and there is one worker.
            AggregatorEffect::WholeStep { .. }
            | AggregatorEffect::Missing { .. }
            | AggregatorEffect::Disagree { .. } => {}
            AggregatorEffect::Behind => {}
        }
    }

    fn answer(&mut self, answer: ToTraining, outputs: &mut Vec<Output>) {
        if std::mem::take(&mut self.asks) {
            outputs.push(Output::Tell(Mail::Training(answer)));
        }
    }
}
