//! Metrics of a node: cheap to update, read by the endpoint that serves metrics. No other work
//! waits for them.

use crate::ports::transport::{BulkError, BulkReceiver, BulkSender};
use async_trait::async_trait;
use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::time::Span;
use slowmo_protocol::wire::Bulk;

/// One label: its name and its value.
pub type Label = [(&'static str, &'static str); 1];
/// Counters that differ in one label.
pub type Counters = Family<Label, Counter>;
/// Histograms that differ in one label, in seconds.
pub type Times = Family<Label, Histogram, fn() -> Histogram>;

/// Upper bounds of the time buckets, in seconds: from durations on loopback to durations on a slow
/// network.
const SECONDS: [f64; 14] = [
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

/// The metrics of one node.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Decided rounds that this node applied, by `kind`.
    pub rounds: Counters,
    /// Duration of this node's rounds, by `phase`: `reduce` from this node's contribution until the
    /// outcome was proposed, `publish` from then until the outcome was applied.
    pub phases: Times,
    /// Bytes of values sent to other nodes, by `kind`.
    pub sent: Counters,
    /// Bytes of values received from other nodes, by `kind`.
    pub received: Counters,
    /// Time that the training thread of worker 0 waited, by `exchange`.
    pub waits: Times,
}

impl Default for Metrics {
    fn default() -> Self {
        let times: fn() -> Histogram = || Histogram::new(SECONDS);
        Self {
            rounds: Family::default(),
            phases: Family::new_with_constructor(times),
            sent: Family::default(),
            received: Family::default(),
            waits: Family::new_with_constructor(times),
        }
    }
}

impl Metrics {
    /// Counts an applied round and records the durations of its phases.
    pub fn round(&self, kind: RoundKind, reduced: Option<Span>, published: Span) {
        self.rounds
            .get_or_create(&[("kind", round_name(kind))])
            .inc();
        let phase = |phase, span: Span| {
            self.phases
                .get_or_create(&[("phase", phase)])
                .observe(seconds(span))
        };
        reduced.into_iter().for_each(|span| phase("reduce", span));
        phase("publish", published);
    }

    /// Records that the training thread waited for an exchange.
    pub fn waited(&self, exchange: &'static str, seconds: f64) {
        self.waits
            .get_or_create(&[("exchange", exchange)])
            .observe(seconds);
    }

    /// Wraps a stream so that the bytes sent on it are counted.
    #[must_use]
    pub fn counts_sent(&self, content: &Bulk, stream: Box<dyn BulkSender>) -> Box<dyn BulkSender> {
        Box::new(Sent {
            stream,
            bytes: self
                .sent
                .get_or_create_owned(&[("kind", bulk_name(content))]),
        })
    }

    /// Wraps a stream so that the bytes received on it are counted.
    #[must_use]
    pub fn counts_received(
        &self,
        content: &Bulk,
        stream: Box<dyn BulkReceiver>,
    ) -> Box<dyn BulkReceiver> {
        Box::new(Received {
            stream,
            bytes: self
                .received
                .get_or_create_owned(&[("kind", bulk_name(content))]),
        })
    }
}

/// Name of a round's kind in metrics.
#[must_use]
pub fn round_name(kind: RoundKind) -> &'static str {
    match kind {
        RoundKind::Bootstrap => "bootstrap",
        RoundKind::Average => "average",
        RoundKind::Slow => "slow",
        RoundKind::Gradients => "gradients",
    }
}

fn bulk_name(content: &Bulk) -> &'static str {
    match content {
        Bulk::Contribution(_) | Bulk::Relayed(_) => "contribution",
        Bulk::Partial(_) => "group_sum",
        Bulk::Parameters | Bulk::Update(_) => "parameters",
        Bulk::Forwarded { .. } => "forwarded",
        Bulk::State => "state",
        Bulk::Buffers => "buffers",
        Bulk::Gossip { .. } => "gossip",
    }
}

/// Converts a span to seconds.
#[must_use]
pub fn seconds(span: Span) -> f64 {
    span.0 as f64 / 1e6
}

struct Sent {
    stream: Box<dyn BulkSender>,
    bytes: Counter,
}

#[async_trait]
impl BulkSender for Sent {
    async fn send(&mut self, chunk: Bytes) -> Result<(), BulkError> {
        self.bytes.inc_by(chunk.len() as u64);
        self.stream.send(chunk).await
    }

    fn hurry(&mut self) {
        self.stream.hurry();
    }

    async fn finish(self: Box<Self>) -> Result<(), BulkError> {
        self.stream.finish().await
    }

    async fn finish_with(self: Box<Self>, last: Bytes) -> Result<(), BulkError> {
        self.bytes.inc_by(last.len() as u64);
        self.stream.finish_with(last).await
    }

    fn reset(self: Box<Self>) {
        self.stream.reset();
    }
}

struct Received {
    stream: Box<dyn BulkReceiver>,
    bytes: Counter,
}

#[async_trait]
impl BulkReceiver for Received {
    async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), BulkError> {
        let read = self.stream.read_exact(into).await;
        self.bytes
            .inc_by(if read.is_ok() { into.len() as u64 } else { 0 });
        read
    }

    async fn expect_end(&mut self) -> Result<(), BulkError> {
        self.stream.expect_end().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_and_waits_are_counted_by_kind() {
        let metrics = Metrics::default();
        metrics.round(RoundKind::Slow, Some(Span(2_000_000)), Span(1_000));
        metrics.round(RoundKind::Slow, None, Span(1_000));
        metrics.waited("gossip", 0.25);
        assert_eq!(metrics.rounds.get_or_create(&[("kind", "slow")]).get(), 2);
        assert_eq!(
            metrics.rounds.get_or_create(&[("kind", "average")]).get(),
            0
        );
    }
}
