//! Reaction to a node whose process failed: with `--on-gpu-loss restart` each of its GPUs is tested
//! by a separate process, because a GPU that fell off the bus can hang any process that touches it;
//! the node starts again with the GPUs that still compute.

use clap::{Args, ValueEnum};
use slowmo_cuda::{Gpu, selftest};
use slowmo_ops::processes::{CUDA_VISIBLE_DEVICES, Group, Plan};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Name of the hidden command that tests one GPU.
pub const CHECK_GPU: &str = "check-gpu";
/// Longest time that a GPU may take to show that it computes; its kernels may have to be compiled.
const CHECK_MAX: Duration = Duration::from_secs(60);
/// Polling period of a check.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Reaction of a node that lost a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnGpuLoss {
    /// The node stays down; the others continue.
    #[default]
    Leave,
    /// The node starts again with its remaining GPUs and joins the others.
    Restart,
}

/// The GPUs of a launch's nodes, by the names under which CUDA shows them to a process.
#[derive(Debug)]
pub struct NodeGpus {
    /// GPUs by node; a node without an entry has those that its plan gives it.
    of: BTreeMap<usize, Vec<String>>,
    found: Vec<String>,
    each: usize,
    first_id: usize,
    checks: usize,
    tell: Sender<Checked>,
    told: Receiver<Checked>,
}

/// Settings of a node that starts again, or the reason why it does not.
type Verdict = Result<Vec<(String, String)>, &'static str>;

/// Result of a check: the GPUs of a node that compute.
#[derive(Debug)]
struct Checked {
    node: usize,
    left: Vec<String>,
}

impl NodeGpus {
    /// `found` are the machine's GPUs. Each node takes `each` of them, in turn and wrapping around.
    pub fn new(found: Vec<String>, each: usize, first_id: usize) -> Self {
        let (tell, told) = channel();
        Self {
            of: BTreeMap::new(),
            found,
            each,
            first_id,
            checks: 0,
            tell,
            told,
        }
    }

    /// Whether checks are pending, after which a node may start again.
    pub fn is_checking(&self) -> bool {
        self.checks > 0
    }

    fn of(&self, node: usize) -> Vec<String> {
        let first = node.saturating_sub(self.first_id).saturating_mul(self.each);
        let dealt = || {
            (0..self.each)
                .filter_map(|index| {
                    self.found
                        .get((first + index) % self.found.len().max(1))
                        .cloned()
                })
                .collect()
        };
        self.of.get(&node).cloned().unwrap_or_else(dealt)
    }

    /// Tests a node's GPUs with `computes`, on a thread other than the launcher's loop.
    pub fn check(&mut self, node: usize, computes: impl Fn(&str) -> bool + Send + 'static) {
        let gpus = self.of(node);
        let tell = self.tell.clone();
        self.checks += 1;
        thread::spawn(move || {
            let left = gpus.into_iter().filter(|gpu| computes(gpu)).collect();
            // The send fails only if the launcher has ended.
            _ = tell.send(Checked { node, left });
        });
    }

    /// The next node whose GPUs have been tested.
    pub fn next(&mut self) -> Option<(usize, Verdict)> {
        let Checked { node, left } = self.told.try_recv().ok()?;
        self.checks -= 1;
        let before = self.of(node).len();
        let verdict = match left.len() {
            0 => Err("none of its GPUs computes"),
            all if all == before => Err("its GPUs compute, so something else ended it"),
            _ => Ok(()),
        };
        self.of.insert(node, left.clone());
        Some((node, verdict.map(|()| variables(&left))))
    }
}

/// Settings of a node that has only these GPUs.
fn variables(gpus: &[String]) -> Vec<(String, String)> {
    let named = |name: &str, value: String| (name.to_owned(), value);
    vec![
        named(CUDA_VISIBLE_DEVICES, gpus.join(",")),
        named(slowmo_ops::processes::DEVICES, gpus.len().to_string()),
        named(slowmo_ops::processes::FIRST_GPU, "0".to_owned()),
    ]
}

/// Restarts nodes whose checks are over. Returns, for each, its GPUs, or the reason why it was not
/// started again.
pub fn restart(gpus: &mut NodeGpus, group: &mut Group) -> Vec<(usize, Result<String, String>)> {
    let mut told = Vec::new();
    while let Some((node, verdict)) = gpus.next() {
        let started = verdict.map_err(str::to_owned).and_then(|variables| {
            if group.running_nodes().is_empty() {
                return Err("no other node is left to join".to_owned());
            }
            let gpus = variables[0].1.clone();
            group.tell(
                node,
                variables
                    .into_iter()
                    .map(|(name, value)| (name, value.into()))
                    .collect(),
            );
            group
                .join(node, true)
                .map(|()| gpus)
                .map_err(|error| error.to_string())
        });
        told.push((node, started));
    }
    told
}

/// The GPUs of a plan's nodes, if nodes start again after a loss.
pub fn of_plan(plan: &Plan, on_loss: OnGpuLoss) -> anyhow::Result<Option<NodeGpus>> {
    if on_loss != OnGpuLoss::Restart {
        return Ok(None);
    }
    let Some(each) = plan.gpus else {
        return Ok(None);
    };
    let found = slowmo_cuda::gpus()?
        .into_iter()
        .map(|gpu| gpu.uuid)
        .collect();
    Ok(Some(NodeGpus::new(found, each, plan.first_id)))
}

/// Whether a GPU computes, tested by a process that sees no other GPU. A hanging process is killed
/// but not waited for: it may be stuck in the driver.
pub fn computes(gpu: &str) -> bool {
    let Ok(program) = std::env::current_exe() else {
        return false;
    };
    let mut command = Command::new(program);
    command
        .arg(CHECK_GPU)
        .env(CUDA_VISIBLE_DEVICES, gpu)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        return false;
    };
    let until = Instant::now() + CHECK_MAX;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => thread::sleep(LOOK_EVERY),
            Err(_) => return false,
        }
    }
    _ = child.kill();
    false
}

/// The hidden command: runs every kernel on the first GPU that this process sees.
#[derive(Debug, Args)]
pub struct CheckGpu {}

impl CheckGpu {
    /// Fails if the GPU does not compute.
    pub fn run(self) -> anyhow::Result<()> {
        let tested = selftest::kernels(&Gpu::open(0)?, &selftest::LENGTHS[..1], 1)?;
        let wrong = tested.into_iter().find_map(|tested| tested.wrong);
        anyhow::ensure!(wrong.is_none(), "{}", wrong.unwrap_or_default());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> NodeGpus {
        NodeGpus::new(["a", "b", "c"].map(str::to_owned).to_vec(), 2, 5)
    }

    fn after(gpus: &mut NodeGpus, node: usize, dead: &'static str) -> Verdict {
        gpus.check(node, move |gpu| !dead.contains(gpu));
        loop {
            if let Some((checked, verdict)) = gpus.next() {
                assert_eq!((checked, gpus.is_checking()), (node, false));
                return verdict;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn a_node_goes_on_with_the_gpus_that_it_has_left() {
        let mut gpus = three();
        let told = |name: &str| vec![(CUDA_VISIBLE_DEVICES.to_owned(), name.to_owned())];
        let rest = [
            ("SLOWMO_DEVICES".to_owned(), "1".to_owned()),
            ("SLOWMO_FIRST_GPU".to_owned(), "0".to_owned()),
        ];
        let expected = |name| Ok([told(name), rest.to_vec()].concat());
        // Assigned in turn and wrapping around: node 5 has a and b, node 6 has c and a.
        assert_eq!(after(&mut gpus, 5, "b"), expected("a"));
        assert_eq!(after(&mut gpus, 6, "a"), expected("c"));
        assert_eq!(after(&mut gpus, 6, "ac"), Err("none of its GPUs computes"));
    }

    #[test]
    fn a_node_whose_gpus_compute_stays_away() {
        assert_eq!(
            after(&mut three(), 5, ""),
            Err("its GPUs compute, so something else ended it")
        );
    }
}
