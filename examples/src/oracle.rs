//! All replicas in one process, one after the other, without runtime or network: the reference for
//! the training result of the cluster. It uses the same model, shards, batches and optimizer as
//! `digits`; averages and slow steps follow their definitions.
//!
//! All replicas are in lockstep, so a message of overlapped gossip is always mixed one step after
//! it was sent. Messages are not encoded.

use crate::digits::{
    Batches, Dataset, MOMENTUM, Mlp, NesterovSgd, Options, Parameters, SourceError, TrainError,
    deal,
};
use crate::method::{Base, Method, SlowMo, Wire};
use slowmo::internal::tensors::flat::restore;

/// Averaged parameters of all replicas during a run.
#[derive(Clone, Debug, PartialEq)]
pub struct OracleRun {
    /// Averaged parameters after the last step.
    pub parameters: Vec<f32>,
    /// Numbers of completed inner steps, each with the averaged parameters at that time, as
    /// requested by [`Options::steps_per_snapshot`].
    pub snapshots: Vec<(u64, Vec<f32>)>,
}

struct Replica {
    batches: Batches,
    model: Mlp,
    optimizer: NesterovSgd,
}

/// Trains `nodes` replicas of one worker each.
///
/// # Errors
/// There are more nodes than images, or the method encodes its messages.
pub fn train(nodes: usize, method: &Method, options: &Options) -> Result<OracleRun, TrainError> {
    if method.wire != Wire::Float32 {
        return Err(TrainError::NotSimulated(method.wire.word()));
    }
    let data = Dataset::train()?;
    let mut replicas = found(nodes, &data, options)?;
    let mut exchange = Exchange::new(*method, Mlp::seeded(options.seed).parameters().flat());
    let mut snapshots = Vec::new();
    for step in 0..options.steps {
        inner_step(
            &mut replicas,
            &data,
            options,
            step,
            method.base == Base::AllReduce,
        )?;
        let mut values = replicas
            .iter()
            .map(|replica| replica.model.parameters().flat())
            .collect::<Vec<_>>();
        if exchange.after(step, &mut values, options.learning_rate) {
            for (replica, values) in replicas.iter_mut().zip(&values) {
                restore(values, replica.model.parameters_mut())?;
            }
        }
        if (step + 1).checked_rem(options.steps_per_snapshot) == Some(0) {
            snapshots.push((step + 1, mean(&values)));
        }
    }
    let values = replicas
        .iter()
        .map(|replica| replica.model.parameters().flat())
        .collect::<Vec<_>>();
    Ok(OracleRun {
        parameters: mean(&values),
        snapshots,
    })
}

fn found(nodes: usize, data: &Dataset, options: &Options) -> Result<Vec<Replica>, TrainError> {
    let dealt = deal(data.labels(), nodes, options.shards, options.seed).into_iter();
    let replica = |(rank, samples): (usize, Vec<usize>)| {
        if samples.is_empty() {
            return Err(SourceError::NoSamples {
                worker: rank,
                workers: nodes,
            }
            .into());
        }
        let model = Mlp::seeded(options.seed);
        let optimizer = NesterovSgd::new(model.parameters(), MOMENTUM);
        Ok(Replica {
            batches: Batches::new(samples, options.batch, options.seed, rank as u32),
            model,
            optimizer,
        })
    };
    dealt.enumerate().map(replica).collect()
}

fn inner_step(
    replicas: &mut [Replica],
    data: &Dataset,
    options: &Options,
    step: u64,
    share: bool,
) -> Result<(), TrainError> {
    let mut gradients: Vec<Parameters> = Vec::with_capacity(replicas.len());
    for replica in replicas.iter_mut() {
        let batch = data.batch(replica.batches.at(step));
        gradients.push(replica.model.loss_and_gradients(&batch).1);
    }
    if share {
        let mean = mean(&gradients.iter().map(Parameters::flat).collect::<Vec<_>>());
        for own in &mut gradients {
            restore(&mean, own)?;
        }
    }
    for (replica, gradients) in replicas.iter_mut().zip(&gradients) {
        let parameters = replica.model.parameters_mut();
        replica
            .optimizer
            .step(parameters, gradients, options.learning_rate);
    }
    Ok(())
}

/// Exchange of the replicas' parameters after an inner step.
struct Exchange {
    method: Method,
    anchor: Vec<f32>,
    slow_momentum: Vec<f32>,
    /// Number of gossips so far.
    gossips: u32,
    /// Messages in flight.
    sent: Option<Sent>,
    /// The replicas' parameters after the last exchange.
    left: Vec<Vec<f32>>,
}

/// In-flight messages: half of every replica's `values` travels to the replica `hop` further; each
/// replica also gave away half of its `kept` values.
struct Sent {
    values: Vec<Vec<f32>>,
    kept: Vec<Vec<f32>>,
    hop: usize,
}

impl Exchange {
    fn new(method: Method, anchor: Vec<f32>) -> Self {
        let slow_momentum = vec![0.0; anchor.len()];
        Self {
            method,
            anchor,
            slow_momentum,
            gossips: 0,
            sent: None,
            left: Vec::new(),
        }
    }

    /// Applies what is due after inner step `step`, counted from 0; returns whether the replicas'
    /// parameters changed.
    fn after(&mut self, step: u64, replicas: &mut [Vec<f32>], learning_rate: f32) -> bool {
        let closes = |every: u64| (step + 1).is_multiple_of(every);
        match (self.method.slow, self.method.base) {
            (Some(slow), _) if closes(slow.tau) => {
                self.mix_sent(replicas);
                self.slow_step(slow, &mean(replicas), learning_rate);
                replicas
                    .iter_mut()
                    .for_each(|values| values.clone_from(&self.anchor));
            }
            (_, Base::LocalSgd { frequency }) if closes(frequency) => {
                let mean = mean(replicas);
                replicas
                    .iter_mut()
                    .for_each(|values| values.clone_from(&mean));
            }
            (_, Base::Sgp { staleness: 0 }) => self.gossip(replicas),
            (_, Base::Sgp { .. }) => self.gossip_overlapped(replicas),
            _ => return false,
        }
        self.left = replicas.to_vec();
        true
    }

    /// The slow step: `u ← βu + (o − x̄)/γ; o ← o − αγu`.
    fn slow_step(&mut self, slow: SlowMo, mean: &[f32], learning_rate: f32) {
        for ((anchor, momentum), mean) in self
            .anchor
            .iter_mut()
            .zip(&mut self.slow_momentum)
            .zip(mean)
        {
            *momentum = slow.beta * *momentum + (*anchor - mean) / learning_rate;
            *anchor -= slow.alpha * learning_rate * *momentum;
        }
    }

    /// Hop of the next gossip's messages on the directed exponential graph; `None` for a single
    /// replica. Every push-sum weight is 1 after a mix, because each replica sends and receives
    /// once.
    fn next_hop(&mut self, size: usize) -> Option<usize> {
        let hops: Vec<usize> = std::iter::successors(Some(1), |hop| Some(hop * 2))
            .take_while(|hop| *hop < size)
            .collect();
        let hop = hops.get(self.gossips as usize % hops.len().max(1)).copied();
        self.gossips += 1;
        hop
    }

    /// Synchronous gossip: messages are mixed in the step in which they were sent.
    fn gossip(&mut self, replicas: &mut [Vec<f32>]) {
        self.sent = self.next_hop(replicas.len()).map(|hop| Sent {
            values: replicas.to_vec(),
            kept: replicas.to_vec(),
            hop,
        });
        self.mix_sent(replicas);
    }

    /// Overlapped gossip: messages of the previous step are mixed in this step. The movement of a
    /// replica in this step is shared as its model was in the previous step: half of it stays, and
    /// half goes with the sent message; all of it stays if nothing was sent.
    fn gossip_overlapped(&mut self, replicas: &mut [Vec<f32>]) {
        let before = std::mem::take(&mut self.left);
        let before = if before.is_empty() {
            vec![self.anchor.clone(); replicas.len()]
        } else {
            before
        };
        let difference = |(now, before): (&Vec<f32>, &Vec<f32>)| {
            now.iter()
                .zip(before)
                .map(|(now, before)| now - before)
                .collect()
        };
        let moved: Vec<Vec<f32>> = replicas.iter().zip(&before).map(difference).collect();
        let goes = if self.sent.is_some() { 0.5 } else { 0.0 };
        self.mix_sent(replicas);
        let Some(hop) = self.next_hop(replicas.len()) else {
            return;
        };
        let mut values = replicas.to_vec();
        for ((replica, value), moved) in replicas.iter_mut().zip(&mut values).zip(&moved) {
            for ((kept, sent), moved) in replica.iter_mut().zip(value).zip(moved) {
                *kept -= goes * moved;
                *sent += goes * moved;
            }
        }
        self.sent = Some(Sent {
            values,
            kept: replicas.to_vec(),
            hop,
        });
    }

    /// Mixes the messages: each replica has given away half of its values at the time of sending,
    /// and receives half of another's values at that time; what it has learnt since stays its own.
    fn mix_sent(&mut self, replicas: &mut [Vec<f32>]) {
        let Some(Sent {
            values: sent,
            kept,
            hop,
        }) = self.sent.take()
        else {
            return;
        };
        let size = replicas.len();
        for (rank, values) in replicas.iter_mut().enumerate() {
            let given = &kept[rank];
            let received = &sent[(rank + size - hop) % size];
            for ((value, given), received) in values.iter_mut().zip(given).zip(received) {
                *value += 0.5 * (received - given);
            }
        }
    }
}

/// The mean of vectors of equal length, summed in their order.
#[must_use]
pub fn mean(vectors: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = vectors.first().cloned().unwrap_or_default();
    for vector in vectors.iter().skip(1) {
        sum.iter_mut()
            .zip(vector)
            .for_each(|(sum, value)| *sum += value);
    }
    let count = vectors.len().max(1) as f32;
    sum.iter_mut().for_each(|sum| *sum /= count);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn method(base: Base, tau: Option<u64>) -> Method {
        let slow = match tau {
            Some(tau) => Some(SlowMo {
                tau,
                alpha: 1.0,
                beta: 0.5,
            }),
            None => None,
        };
        Method {
            name: "",
            base,
            slow,
            wire: Wire::Float32,
        }
    }

    /// Scalar replicas on ½a(x − c)² from 0, γ = 0.1; returns the values after each step.
    fn trajectory(method: Method, a: &[f32], c: &[f32], steps: u64) -> Vec<Vec<f32>> {
        let mut exchange = Exchange::new(method, vec![0.0]);
        let mut replicas = vec![vec![0.0f32]; a.len()];
        let mut all = Vec::new();
        for step in 0..steps {
            for (rank, values) in replicas.iter_mut().enumerate() {
                values[0] -= 0.1 * a[rank] * (values[0] - c[rank]);
            }
            exchange.after(step, &mut replicas, 0.1);
            all.push(replicas.iter().map(|values| values[0]).collect());
        }
        all
    }

    fn assert_close(found: &[Vec<f32>], expected: &[&[f32]]) {
        for (found, expected) in found.iter().zip(expected) {
            for (index, value) in found.iter().enumerate() {
                let expected = expected[index % expected.len()];
                assert!(
                    (value - expected).abs() < 1e-6,
                    "{value} against {expected}"
                );
            }
        }
    }

    #[test]
    fn golden_values_of_local_sgd_with_slowmo() {
        let found = trajectory(
            method(Base::LocalSgd { frequency: 1 }, Some(2)),
            &[1.0, 2.0],
            &[1.0, 3.0],
            6,
        );
        assert_close(
            &found,
            &[
                &[0.35],
                &[0.6475],
                &[0.900_375],
                &[1.439_068_8],
                &[1.573_208_4],
                &[2.083_011_5],
            ],
        );
    }

    #[test]
    fn golden_values_of_gossip_with_slowmo() {
        let found = trajectory(
            method(Base::Sgp { staleness: 0 }, Some(2)),
            &[1.0; 4],
            &[1.0, 2.0, 3.0, 4.0],
            4,
        );
        assert_close(
            &found,
            &[
                &[0.25, 0.15, 0.25, 0.35],
                &[0.475],
                &[0.6275, 0.7275, 0.6275, 0.7275],
                &[1.09725],
            ],
        );
    }

    /// Computed by hand: all of the first movement stays, and half of the others; hop 1 of step 0
    /// arrives at step 1, hop 2 of step 1 at step 2, hop 1 of step 2 in the average of step 3.
    #[test]
    fn overlapped_gossip_mixes_one_step_later() {
        let found = trajectory(
            method(Base::Sgp { staleness: 1 }, Some(4)),
            &[1.0; 4],
            &[1.0, 2.0, 3.0, 4.0],
            4,
        );
        assert_close(
            &found,
            &[
                &[0.1, 0.2, 0.3, 0.4],
                &[0.295, 0.24, 0.385, 0.53],
                &[0.510_25, 0.653, 0.515_75, 0.6485],
                &[0.880_562_5],
            ],
        );
    }

    #[test]
    fn encoded_messages_are_not_simulated() {
        for wire in [Wire::BFloat16, Wire::Int8] {
            let method = Method {
                wire,
                ..method(Base::AllReduce, None)
            };
            assert!(matches!(
                train(2, &method, &Options::default()),
                Err(TrainError::NotSimulated(_))
            ));
        }
    }
}
