//! The metrics of a node in Prometheus' text format. Names follow its conventions: a unit in the
//! name, base units, `_total` for counters. Most are read from the node's status on request, so
//! they cost nothing until then.

use super::process::Process;
use crate::status::{MemberState, Status, view};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use slowmo_actors::context::{MAILBOX_CREDITS_MAX, NodeContext};
use slowmo_actors::unix_time::unix_us;
use std::fmt;
use std::sync::Arc;

/// The content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The registry of a node.
pub fn registry(context: Arc<NodeContext>) -> Registry {
    let mut registry = Registry::with_prefix("slowmo");
    let metrics = context.metrics.clone();
    registry.register(
        "rounds",
        "Decided rounds that this node applied",
        metrics.rounds,
    );
    let phases = "Time of this node's rounds: from its contribution to the proposal (reduce), from \
        there until applied (publish)";
    registry.register_with_unit("round_phase", phases, Unit::Seconds, metrics.phases);
    registry.register_with_unit(
        "values_sent",
        "Values sent to other nodes",
        Unit::Bytes,
        metrics.sent,
    );
    registry.register_with_unit(
        "values_received",
        "Values received from other nodes",
        Unit::Bytes,
        metrics.received,
    );
    registry.register_with_unit(
        "exchange_wait",
        "Time that the training thread waited for other nodes",
        Unit::Seconds,
        metrics.waits,
    );
    registry.register_collector(Box::new(Now(context)));
    registry
}

/// The collector of metrics that are read on request.
struct Now(Arc<NodeContext>);

impl fmt::Debug for Now {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Now").finish_non_exhaustive()
    }
}

/// Writes metrics one after the other.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn gauge(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: f64) -> fmt::Result {
        let encoder = self
            .0
            .encode_descriptor(name, help, unit, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    fn count(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: u64) -> fmt::Result {
        let encoder = self
            .0
            .encode_descriptor(name, help, unit, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// Writes a counter of weight, which is not an integer.
    fn amount(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    /// Writes one gauge for each of these labels.
    fn gauges<'b>(
        &mut self,
        (name, help): (&str, &str),
        label: &str,
        values: impl Iterator<Item = (&'b str, f64)>,
    ) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (value, number) in values {
            let labels = [(label, value)];
            ConstGauge::new(number).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for Now {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let context = &self.0;
        let status = context.status.read();
        let report = view(context, &status);
        let mut writer = Writer(encoder);
        cluster(&mut writer, &report)?;
        training(&mut writer, &report)?;
        checkpoints(&mut writer, &report)?;
        writer.count(
            "view_changes",
            "Outcomes that changed the view since this node is a member",
            None,
            status.view_changes,
        )?;
        let suspected = "Members that do not answer, and are not taken for dead yet";
        writer.gauge(
            "members_suspected",
            suspected,
            None,
            status.suspected as f64,
        )?;
        writer.count(
            "deaths",
            "How often a member was declared dead",
            None,
            status.deaths,
        )?;
        let waiting = MAILBOX_CREDITS_MAX.saturating_sub(context.credits.available_permits());
        let mut queues = vec![("network_events", waiting as f64, MAILBOX_CREDITS_MAX as f64)];
        queues.extend(
            context
                .recorder
                .queue()
                .map(|queue| ("recorder", queue.waiting as f64, queue.bound as f64)),
        );
        let lengths = queues.iter().map(|(name, length, _)| (*name, *length));
        writer.gauges(
            ("queue_length", "Entries that wait in a queue"),
            "queue",
            lengths,
        )?;
        writer.gauges(
            ("queue_bound", "Most entries that may"),
            "queue",
            queues.iter().map(|(name, _, bound)| (*name, *bound)),
        )?;
        if let Some(at) = status.certificate_expires_at {
            let now = (unix_us() / 1_000_000) as i64;
            writer.gauge(
                "certificate_expiry",
                "Time until the first certificate of this node's chain expires; \
                 negative afterwards",
                Some(&Unit::Seconds),
                at.saturating_sub(now) as f64,
            )?;
        }
        let traffic = context.transport.traffic();
        writer.count(
            "wire_sent",
            "UDP payload sent, headers and acknowledgements included, and values to nodes of this \
             machine",
            Some(&Unit::Bytes),
            traffic.sent_bytes,
        )?;
        writer.count(
            "wire_received",
            "UDP payload received, and values from nodes of this machine",
            Some(&Unit::Bytes),
            traffic.received_bytes,
        )?;
        writer.count(
            "packets_lost",
            "Packets found lost",
            None,
            traffic.lost_packets,
        )?;
        process(&mut writer)
    }
}

fn cluster(writer: &mut Writer<'_>, report: &Status) -> fmt::Result {
    let here = MemberState::ALL.into_iter().map(|standing| {
        let is_here = report.standing == standing;
        (standing.name(), f64::from(u8::from(is_here)))
    });
    writer.gauges(
        ("standing", "Where this node stands: 1 for one of these"),
        "standing",
        here,
    )?;
    writer.gauge("epoch", "The view's number", None, report.epoch as f64)?;
    writer.gauge(
        "members",
        "Members of the view",
        None,
        report.members.len() as f64,
    )?;
    let dead = report.members.iter().filter(|member| !member.alive).count();
    writer.gauge(
        "members_dead",
        "Members that this node takes for dead",
        None,
        dead as f64,
    )?;
    writer.gauge("round", "The next round", None, report.round as f64)?;
    writer.gauge(
        "contributors",
        "Nodes that the last round averaged",
        None,
        report.last_round.contributors as f64,
    )?;
    writer.gauge(
        "stragglers",
        "Members that live and contributed nothing to the last round",
        None,
        report.stragglers.len() as f64,
    )?;
    let missed = report.stragglers.iter().map(|straggler| straggler.missed);
    writer.gauge(
        "straggler_missed_rounds",
        "Most rounds in a row that one of them missed",
        None,
        missed.max().unwrap_or(0) as f64,
    )?;
    let waits = f64::from(u8::from(report.waiting_for.is_some()));
    writer.gauge(
        "waiting",
        "Whether no round can be decided now; the status says why",
        None,
        waits,
    )?;
    writer.count(
        "momentum_lost_shards",
        "Shards whose slow momentum restarted at zero since the bootstrap",
        None,
        report.momentum_lost,
    )
}

fn training(writer: &mut Writer<'_>, report: &Status) -> fmt::Result {
    writer.gauge(
        "inner_step",
        "The inner step after the last decided round",
        None,
        report.step as f64,
    )?;
    if let Some(training) = report.training {
        writer.gauge(
            "training_step",
            "The inner step at which this node's own training is",
            None,
            training.step as f64,
        )?;
    }
    if let Some(loss) = report.loss {
        writer.gauge("loss", "What the training reported last", None, loss.loss)?;
        writer.gauge(
            "loss_step",
            "The inner step of that",
            None,
            loss.step as f64,
        )?;
    }
    let measures = report
        .measures
        .iter()
        .map(|(name, measure)| (name.as_str(), measure.value));
    writer.gauges(
        ("measure", "What the training reported last, by name"),
        "name",
        measures,
    )?;
    if let Some(disagreement) = report.disagreement {
        let help = "Distance of this node's model from what became of it, by its norm, over a \
            sample of chunks";
        writer.gauge(
            "disagreement",
            help,
            Some(&Unit::Other("ratio".to_owned())),
            f64::from(disagreement),
        )?;
    }
    writer.amount(
        "push_sum_weight_lost",
        "Push-sum weight that was in no average",
        report.push_sum_weight_lost,
    )?;
    writer.amount(
        "push_sum_weight_doubled",
        "Push-sum weight that was in an average twice",
        report.push_sum_weight_doubled,
    )?;
    let Some(gossip) = &report.gossip else {
        return Ok(());
    };
    writer.gauge(
        "push_sum_weight",
        "Push-sum weight of this node's numerators",
        None,
        gossip.weight,
    )?;
    writer.gauge(
        "push_sum_weight_escrowed",
        "Push-sum weight on its way to others",
        None,
        gossip.escrowed,
    )?;
    let latest = gossip.late.iter().map(|late| late.steps).max().unwrap_or(0);
    writer.gauge(
        "gossip_late_peers",
        "Peers whose gossip is late",
        None,
        gossip.late.len() as f64,
    )?;
    writer.gauge(
        "gossip_late_steps",
        "Inner steps that the latest of them is behind",
        None,
        latest as f64,
    )
}

fn checkpoints(writer: &mut Writer<'_>, report: &Status) -> fmt::Result {
    let Some(told) = &report.checkpoints else {
        return Ok(());
    };
    writer.count(
        "checkpoint_parts_written",
        "Parts of checkpoints that were written",
        None,
        told.written,
    )?;
    writer.count(
        "checkpoint_parts_failed",
        "Parts that were not: the disk failed",
        None,
        told.failed,
    )?;
    writer.count(
        "checkpoint_parts_skipped",
        "Parts that were not begun when the next came",
        None,
        told.skipped,
    )?;
    writer.gauge(
        "checkpoint_step",
        "The inner step behind the last part",
        None,
        told.last_step.unwrap_or(0) as f64,
    )?;
    writer.gauge(
        "checkpoint_whole_step",
        "The inner step behind the newest whole one",
        None,
        told.whole_step.unwrap_or(0) as f64,
    )?;
    writer.gauge(
        "checkpoints_not_whole",
        "Checkpoints due since that did not become whole",
        None,
        told.not_whole as f64,
    )?;
    writer.gauge(
        "checkpoint_size",
        "The last part",
        Some(&Unit::Bytes),
        told.last_bytes as f64,
    )
}

fn process(writer: &mut Writer<'_>) -> fmt::Result {
    let Process {
        resident_bytes,
        descriptors,
    } = Process::now();
    if let Some(bytes) = resident_bytes {
        writer.gauge(
            "resident_memory",
            "Memory of this process",
            Some(&Unit::Bytes),
            bytes as f64,
        )?;
    }
    descriptors.map_or(Ok(()), |open| {
        writer.gauge(
            "open_descriptors",
            "Open descriptors of this process",
            None,
            open as f64,
        )
    })
}
