//! Four processes train, one of them is flooded, and another one is killed and started again.

use super::{Flood, Sent};
use clap::Parser;
use serde::Serialize;
use slowmo::internal::config::ClusterKey;
use slowmo::{BaseName, Config, Runtime};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Nodes that train.
const NODES: u64 = 4;
/// The node that is flooded: the first.
const FLOODED: u64 = 1;
/// The node that is killed and started again.
const RESTARTED: u64 = 4;
/// Key of the processes of one siege; they listen on loopback.
const KEY: ClusterKey = ClusterKey::from_bytes([5; 32]);
/// Time that a step of training takes beside its round.
const COMPUTES: Duration = Duration::from_millis(20);
/// Time at the beginning in which rounds are not measured.
const WARM_UP: Duration = Duration::from_secs(3);
/// Longest wait for a node to be a member.
const MEMBER_MAX: Duration = Duration::from_secs(60);
/// Largest time that a flood may add to a round, in percent of its median without a flood.
const ADDED_PERCENT_MAX: f64 = 20.0;
/// Longest time, in seconds, until a restarted node is a member again under a flood.
const RESTART_MAX_S: f64 = 2.0;
/// Memory by which the flooded node may grow, in KiB.
const MEMORY_GROWN_MAX_KIB: u64 = 32 << 10;
/// Interval at which the memory of the flooded node is read.
const MEMORY_INTERVAL: Duration = Duration::from_millis(200);

/// Measures four training nodes without and under a flood; prints one JSON object.
#[derive(Clone, Debug, Parser)]
pub struct Siege {
    /// Packets per second.
    #[arg(long, default_value_t = 20_000)]
    per_second: u32,
    /// Length of the flood, in seconds; as long is measured without one.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Addresses of loopback that the flood comes from; the first is also that of the nodes.
    #[arg(long, default_value_t = 8)]
    sources: u8,
    /// Values of the model.
    #[arg(long, default_value_t = 100_000)]
    values: usize,
}

/// One node of a siege; started by it.
#[derive(Clone, Debug, Parser)]
pub struct SiegeNode {
    /// Id of the node.
    #[arg(long)]
    id: u64,
    /// Folder where the nodes find each other.
    #[arg(long)]
    rendezvous: PathBuf,
    /// Values of the model.
    #[arg(long)]
    values: usize,
}

/// A line of a node's standard output.
#[derive(Clone, Copy, Debug)]
enum Said {
    Listens(SocketAddr),
    Member,
    /// The microseconds that a round took.
    Round(u64),
}

/// Statistics of the nodes' rounds in some time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Rounds {
    rounds: usize,
    median_us: u64,
    mean_us: u64,
    p99_us: u64,
}

/// The findings of a siege.
#[derive(Debug, Serialize)]
struct Found {
    without: Rounds,
    under_flood: Rounds,
    /// Added to the time of a round, in percent of its median.
    added_percent: f64,
    /// Added to the time of a whole step, training included, in percent of its median.
    added_to_step_percent: f64,
    restart_without_s: f64,
    restart_under_flood_s: f64,
    memory_before_kib: u64,
    memory_grown_kib: u64,
    packets: u64,
    seconds: f64,
}

impl Found {
    /// Bounds that the flood broke, in words.
    fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        if self.added_percent > ADDED_PERCENT_MAX {
            let added = self.added_percent;
            broken.push(format!(
                "the flood added {added:.1} % to a round; allowed are {ADDED_PERCENT_MAX} %"
            ));
        }
        if self.restart_under_flood_s > RESTART_MAX_S {
            let took = self.restart_under_flood_s;
            broken.push(format!(
                "a restarted node was a member again after {took:.2} s; allowed are \
                 {RESTART_MAX_S} s"
            ));
        }
        if self.memory_grown_kib > MEMORY_GROWN_MAX_KIB {
            let grown = self.memory_grown_kib;
            broken.push(format!(
                "the flooded node grew by {grown} KiB; allowed are {MEMORY_GROWN_MAX_KIB} KiB"
            ));
        }
        broken
    }
}

impl Siege {
    /// Runs the siege. The exit code says whether the rounds, the restarted node and the memory of
    /// the flooded one stayed within their bounds.
    ///
    /// # Errors
    /// A node could not be started, ended or did not become a member, or the flood failed.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let rendezvous = tempfile::tempdir()?;
        let (said, hears) = channel();
        let mut nodes = (1..=NODES)
            .map(|id| Node::start(id, rendezvous.path(), self.values, &said))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let process = nodes.first().map_or(0, |node| node.child.id());
        let mut hears = Hears {
            from: hears,
            listens: None,
        };
        for _ in 1..=NODES {
            hears.member(None)?;
        }
        hears.rounds(WARM_UP, || ())?;
        let length = Duration::from_secs(self.seconds) / 2;
        let without = hears.rounds(length, || ())?;
        let mut restart = |hears: &mut Hears| -> anyhow::Result<f64> {
            nodes.retain(|node| node.id != RESTARTED);
            hears.rounds(Duration::from_secs(2), || ())?;
            let begun = Instant::now();
            nodes.push(Node::start(
                RESTARTED,
                rendezvous.path(),
                self.values,
                &said,
            )?);
            hears.member(Some(RESTARTED))?;
            let took = begun.elapsed().as_secs_f64();
            hears.rounds(Duration::from_secs(2), || ())?;
            Ok(took)
        };
        let restart_without_s = restart(&mut hears)?;
        let flood = Flood {
            target: hears
                .listens
                .ok_or_else(|| anyhow::anyhow!("the flooded node told no address"))?,
            per_second: self.per_second,
            seconds: self.seconds,
            sources: self.sources,
        };
        let over = AtomicBool::new(false);
        let memory_before_kib = memory_kib(process);
        let mut most = memory_before_kib;
        std::thread::scope(|scope| {
            let flooding = scope.spawn(|| flood.run(|| over.load(Ordering::Relaxed)));
            let measured = (|| {
                let under_flood = hears.rounds(length, || most = most.max(memory_kib(process)))?;
                let restart_under_flood_s = restart(&mut hears)?;
                most = most.max(memory_kib(process));
                Ok::<_, anyhow::Error>((under_flood, restart_under_flood_s))
            })();
            over.store(true, Ordering::Relaxed);
            let sent: Sent = flooding
                .join()
                .map_err(|_| anyhow::anyhow!("the flood ended early"))??;
            let (under_flood, restart_under_flood_s) = measured?;
            let percent = |of: f64, before: f64| (of / before - 1.0) * 100.0;
            let round = |rounds: Rounds| rounds.median_us as f64;
            let step = |rounds: Rounds| round(rounds) + COMPUTES.as_micros() as f64;
            let found = Found {
                without,
                under_flood,
                added_percent: percent(round(under_flood), round(without)),
                added_to_step_percent: percent(step(under_flood), step(without)),
                restart_without_s,
                restart_under_flood_s,
                memory_before_kib,
                memory_grown_kib: most - memory_before_kib,
                packets: sent.packets,
                seconds: sent.seconds,
            };
            crate::say!("{}", serde_json::to_string_pretty(&found)?);
            let broken = found.broken();
            for bound in &broken {
                eprintln!("{bound}");
            }
            Ok(if broken.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        })
    }
}

impl SiegeNode {
    /// Trains until standard input ends.
    ///
    /// # Errors
    /// The runtime does not start, or a step fails.
    pub fn run(&self) -> anyhow::Result<()> {
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
        let config = Config {
            node_id: Some(self.id),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            min_nodes: NODES as usize,
            rendezvous: Some(self.rendezvous.clone()),
            cluster_key: Some(KEY),
            base: BaseName::None,
            tau: 1,
            beta: 0.5,
            ..Config::default()
        };
        let runtime = Runtime::builder().config(config).spawn()?;
        let mut worker = runtime.worker(0)?;
        let mut values = vec![0.0f32; self.values];
        let mut output = std::io::stdout();
        writeln!(output, "listens {}", runtime.address())?;
        worker.synchronize(&mut values)?;
        writeln!(output, "member")?;
        loop {
            std::thread::sleep(COMPUTES);
            values.iter_mut().for_each(|value| *value += 1e-3);
            let begun = Instant::now();
            worker.step(&mut values, 1.0)?;
            writeln!(output, "round {}", begun.elapsed().as_micros())?;
        }
    }
}

/// A process of a siege; killed when dropped.
struct Node {
    id: u64,
    child: Child,
}

impl Node {
    fn start(
        id: u64,
        rendezvous: &Path,
        values: usize,
        said: &Sender<(u64, Said)>,
    ) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("siege-node")
            .args(["--id", &id.to_string(), "--values", &values.to_string()])
            .arg("--rendezvous")
            .arg(rendezvous)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        if let Some(output) = child.stdout.take() {
            let said = said.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Some(heard) = Said::read(&line)
                        && said.send((id, heard)).is_err()
                    {
                        return;
                    }
                }
            });
        }
        Ok(Self { id, child })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Said {
    fn read(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            None if line == "member" => Some(Self::Member),
            Some(("listens", address)) => Some(Self::Listens(address.parse().ok()?)),
            Some(("round", took)) => Some(Self::Round(took.parse().ok()?)),
            _ => None,
        }
    }
}

/// The reader of the nodes' output.
struct Hears {
    from: Receiver<(u64, Said)>,
    /// Address of the node that is flooded.
    listens: Option<SocketAddr>,
}

impl Hears {
    /// Waits until a node says that it is a member: any node, or the one of this id.
    fn member(&mut self, of: Option<u64>) -> anyhow::Result<()> {
        let until = Instant::now() + MEMBER_MAX;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.from.recv_timeout(left)? {
                (FLOODED, Said::Listens(address)) => self.listens = Some(address),
                (node, Said::Member) if of.is_none_or(|of| of == node) => return Ok(()),
                _ => {}
            }
        }
    }

    /// Measures the rounds of all nodes for this long.
    fn rounds(&mut self, length: Duration, mut look: impl FnMut()) -> anyhow::Result<Rounds> {
        let until = Instant::now() + length;
        let mut took = Vec::new();
        let mut looked = Instant::now();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Rounds::of(took));
            }
            match self.from.recv_timeout(left.min(MEMORY_INTERVAL)) {
                Ok((_, Said::Round(us))) => took.push(us),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(error) => return Err(error.into()),
            }
            if looked.elapsed() >= MEMORY_INTERVAL {
                looked = Instant::now();
                look();
            }
        }
    }
}

impl Rounds {
    fn of(mut took: Vec<u64>) -> Self {
        took.sort_unstable();
        let at = |part: usize| took.get(took.len() * part / 100).copied().unwrap_or(0);
        Self {
            rounds: took.len(),
            median_us: at(50),
            mean_us: took.iter().sum::<u64>() / took.len().max(1) as u64,
            p99_us: at(99),
        }
    }
}

/// Resident memory of a process; 0 if it is not told.
fn memory_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|text| text.parse().ok()).unwrap_or(0)
}
