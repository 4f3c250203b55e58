//! Hidden `slowmo bench-node`: one node with synthetic parameters. It times its calls of `step`, or
//! trains until it is drained and reports every decided round with the time.

use clap::Args;
use serde::{Deserialize, Serialize};
use slowmo::internal::unix_us;
use slowmo::{Config, Runtime, TensorError, Tensors, Worker};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Name of the hidden subcommand.
pub const BENCH_NODE: &str = "bench-node";
/// Warm-up steps before the timed ones.
const WARM_UP_STEPS: u32 = 2;
/// Most times reported per line, because the length of a line is bounded.
const STEPS_PER_LINE: usize = 100;
/// Longest wait for the transport's buffers to empty, and the polling period of that wait.
const SETTLE_MAX: Duration = Duration::from_secs(2);
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);
/// Traffic below this many bytes per interval is not a message.
const SETTLED_BYTES_MAX: u64 = 16 << 10;
/// Inner learning rate; the slow step divides by it.
const LEARNING_RATE: f32 = 0.1;

/// One node of a measurement; its algorithm comes through `SLOWMO_*` variables.
#[derive(Debug, Args)]
pub struct BenchNode {
    /// Its task, as JSON.
    #[arg(value_parser = |text: &str| serde_json::from_str::<Task>(text))]
    task: Task,
}

/// The work of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Task {
    /// Float32 values of the model.
    pub parameters: usize,
    /// Timed steps, after the warm-up; 0 trains until the node is drained.
    pub steps: u32,
    /// Simulated computation before each step, in milliseconds.
    pub compute_ms: u64,
    /// Id of the node whose computation takes longer, and the factor.
    pub slow: Option<(u64, u32)>,
    /// Number of nodes.
    pub nodes: u16,
    /// Number of groups that they are in, in the order of their ids.
    pub groups: u16,
    /// Ends without `leave()`, like a program that returns too early.
    pub returns_early: bool,
}

impl Task {
    /// The group of the node with this id, from 1 on; `None` if there is only one.
    fn group(&self, node: u64) -> Option<String> {
        let nodes = u64::from(self.nodes).max(1);
        let index = node.saturating_sub(1) * u64::from(self.groups) / nodes;
        (self.groups > 1).then(|| format!("bench-{index}"))
    }
}

/// Event of a node, one JSON object per line. Times are microseconds since 1970: all nodes run on
/// one machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum NodeEvent {
    /// The process has started and is about to start the runtime.
    Up { at_us: u64 },
    /// The node has the cluster's parameters.
    Ready(Ready),
    /// The node is about to enter a round.
    Enter { at_us: u64 },
    /// The node has the result of a decided round.
    Round(Closed),
    /// Times of the next timed steps, in seconds; at most [`STEPS_PER_LINE`].
    Times {
        /// Times of `step` alone, in the order of the steps.
        seconds: Vec<f64>,
        /// Times of the steps with the computation before them.
        periods: Vec<f64>,
    },
    /// Totals, reported after the last timed step.
    Done(NodeTotals),
}

/// The moment at which a node had the cluster's parameters.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Time of the event.
    pub at_us: u64,
    /// Number of the next round.
    pub round: u64,
    /// UDP payload bytes received so far.
    pub received_bytes: u64,
}

/// A round as closed by one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Closed {
    /// Number of the round.
    pub round: u64,
    /// Time at which the training thread had the result.
    pub at_us: u64,
    /// Time at which the training thread entered the round.
    pub entered_us: u64,
    /// Nodes that were averaged.
    pub contributors: usize,
    /// Members of the view after it.
    pub members: usize,
    /// Whether the node got the result without having contributed.
    pub caught_up: bool,
    /// Duration of its publish phase until the decision, in microseconds.
    pub published_us: u64,
    /// Digest of the parameters.
    pub digest: String,
}

/// Totals of a node over its steps, those of the warm-up included.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeTotals {
    /// Number of steps.
    pub steps: u32,
    /// UDP payload bytes sent in the steps.
    pub sent_bytes: u64,
    /// Packets lost in the steps.
    pub lost_packets: u64,
    /// Largest path MTU, in bytes.
    pub mtu_bytes: u16,
    /// Peak resident memory of the process, in bytes; 0 if the system does not report it.
    pub peak_bytes: u64,
}

impl BenchNode {
    /// Runs this node's part and reports its events.
    pub fn run(self) -> anyhow::Result<()> {
        tell(&NodeEvent::Up { at_us: unix_us() })?;
        let task = self.task;
        let mut config = Config::load()?;
        if let Some(group) = config.node_id.and_then(|node| task.group(node)) {
            config = config.with("group", &group)?;
        }
        let factor = match task.slow {
            Some((node, factor)) if Some(node) == config.node_id => factor,
            _ => 1,
        };
        let compute = Duration::from_millis(task.compute_ms) * factor;
        let runtime = Runtime::builder().config(config).spawn()?;
        if let Some(address) = runtime.http_address() {
            std::thread::spawn(move || read_metrics(address));
        }
        let mut worker = runtime.worker(0)?;
        let mut params = Synthetic::new(task.parameters);
        let start = worker.synchronize(&mut params)?;
        tell(&NodeEvent::Ready(Ready {
            at_us: unix_us(),
            round: start.round,
            received_bytes: runtime.traffic().received_bytes,
        }))?;
        if task.steps > 0 {
            time_steps(&runtime, &mut worker, &mut params, task.steps, compute)?;
        } else {
            report_rounds(&runtime, &mut worker, &mut params, compute)?;
        }
        if task.returns_early {
            return Ok(());
        }
        Ok(worker.leave()?)
    }
}

/// Times the steps after the warm-up.
fn time_steps(
    runtime: &Runtime,
    worker: &mut Worker,
    params: &mut Synthetic,
    steps: u32,
    compute: Duration,
) -> anyhow::Result<()> {
    // What is sent is counted from before the first step: a step may end while its message is still
    // in the transport's buffers, and nothing may wait for those between the timed steps.
    let before = settled_traffic(runtime);
    for _ in 0..WARM_UP_STEPS {
        timed_step(worker, params, compute)?;
    }
    let times = (0..steps)
        .map(|_| timed_step(worker, params, compute))
        .collect::<Result<Vec<_>, _>>()?;
    let after = settled_traffic(runtime);
    for times in times.chunks(STEPS_PER_LINE) {
        let (seconds, periods) = times.iter().copied().unzip();
        tell(&NodeEvent::Times { seconds, periods })?;
    }
    tell(&NodeEvent::Done(NodeTotals {
        steps: steps + WARM_UP_STEPS,
        sent_bytes: after.sent_bytes.saturating_sub(before.sent_bytes),
        lost_packets: after.lost_packets.saturating_sub(before.lost_packets),
        mtu_bytes: after.mtu_bytes,
        peak_bytes: peak_resident_bytes().unwrap_or(0),
    }))
}

/// Trains until the node is drained.
fn report_rounds(
    runtime: &Runtime,
    worker: &mut Worker,
    params: &mut Synthetic,
    compute: Duration,
) -> anyhow::Result<()> {
    while worker.is_running() {
        std::thread::sleep(compute);
        let entered_us = unix_us();
        tell(&NodeEvent::Enter { at_us: entered_us })?;
        let report = worker.step(params, LEARNING_RATE)?;
        if let Some(round) = report.round {
            tell(&NodeEvent::Round(Closed {
                round,
                at_us: unix_us(),
                entered_us,
                contributors: report.contributors,
                members: report.nodes,
                caught_up: report.caught_up,
                published_us: runtime.status().last_round.published_us,
                digest: slowmo::digest(&*params)?,
            }))?;
        }
    }
    Ok(())
}

fn tell(event: &NodeEvent) -> anyhow::Result<()> {
    let line = serde_json::to_string(event)?;
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

/// Reads the node's metrics every second, like a Prometheus scrape, for as long as the process
/// lives.
fn read_metrics(address: SocketAddr) {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let read = TcpStream::connect(address).and_then(|mut stream| {
            stream
                .write_all(b"GET /metrics HTTP/1.1\r\nHost: slowmo\r\nConnection: close\r\n\r\n")?;
            stream.read_to_end(&mut Vec::new())
        });
        if let Err(error) = read {
            eprintln!("the metrics cannot be read: {error}");
        }
    }
}

/// Reads the traffic after a bounded wait for the transport's buffers to empty: a gossip ends as
/// soon as its message is passed to the transport.
fn settled_traffic(runtime: &Runtime) -> slowmo::internal::Traffic {
    let until = Instant::now() + SETTLE_MAX;
    let mut last = runtime.traffic();
    loop {
        std::thread::sleep(SETTLE_INTERVAL);
        let now = runtime.traffic();
        if now.sent_bytes - last.sent_bytes < SETTLED_BYTES_MAX || Instant::now() >= until {
            return now;
        }
        last = now;
    }
}

/// Times one `step`, without and with the simulated computation before it, in seconds.
fn timed_step(
    worker: &mut Worker,
    params: &mut Synthetic,
    compute: Duration,
) -> Result<(f64, f64), slowmo::StepError> {
    let begin = Instant::now();
    std::thread::sleep(compute);
    let start = Instant::now();
    worker.step(params, LEARNING_RATE)?;
    Ok((start.elapsed().as_secs_f64(), begin.elapsed().as_secs_f64()))
}

/// One flat tensor of deterministic values.
struct Synthetic(Vec<f32>);

impl Synthetic {
    /// A tensor of this many values.
    fn new(parameters: usize) -> Self {
        // A short cycle of exact values: cheap to make, finite, and not all equal.
        Self(
            (0..parameters)
                .map(|index| (index % 1021) as f32 / 1024.0)
                .collect(),
        )
    }
}

impl Tensors for Synthetic {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        visit("synthetic", &self.0);
        Ok(())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        visit("synthetic", &mut self.0);
        Ok(())
    }
}

/// Peak resident memory of this process (`VmHWM`), in bytes.
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kibibytes| kibibytes * 1024)
}
