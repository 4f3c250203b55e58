//! `slowmo launch`: runs N node processes of the user's training binary on this machine; nodes may
//! join, leave and die.

mod checkpoints;
pub mod gpus;
mod printer;
mod reports;
mod requests;
mod restarts;

use super::dashboard;
use crate::console::Console;
use anyhow::{Context, bail, ensure};
use checkpoints::Checkpoints;
use clap::Args;
use gpus::{NodeGpus, OnGpuLoss};
use nix::sys::signal::Signal;
use printer::Printer;
use reports::{bootstraps, is_bootstrapped, members_wait};
use requests::answer;
use restarts::{RESTARTS_MAX, Restarts, is_orderly};
use serde::Serialize;
use slowmo::internal::launcher::{Departure, LastReport};
use slowmo_ops::jobs;
use slowmo_ops::processes::signals::{catch_signals, caught, caught_again};
use slowmo_ops::processes::{Group, Happening, NODES_MAX, Plan, supervise};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Run N node processes of a training binary on this machine.
///
/// Each node gets its identity through SLOWMO_* variables; its output appears behind a prefix. If a
/// node dies, the others continue without it, or it starts again (--restart). `slowmo scale`,
/// `drain`, `kill` and `status` work on the running job. Ctrl-C or SIGTERM ends all nodes: they
/// leave together with an outer round and write a last checkpoint (--grace); a second one ends them
/// at once.
#[derive(Debug, Args)]
pub struct Launch {
    /// Node processes, at most 64 on one machine, and at most max_nodes of their settings. The same
    /// bounds hold for `slowmo scale`.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64)
    )]
    nodes: u16,
    /// Join the running cluster that has a node at this address, instead of bootstrapping one;
    /// needs the cluster's key.
    #[arg(long, value_name = "HOST:PORT", requires = "cluster_key_file")]
    join: Option<String>,
    /// The lowest node id of this launch; give the nodes of another machine other ids.
    #[arg(
        long,
        value_name = "ID",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    first_id: u32,
    /// A name by which the other commands find this job; the launcher's process id unless given.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// End all nodes as soon as one fails.
    #[arg(long)]
    fail_fast: bool,
    /// Start a node that crashed again, each node at most N times. It pauses 1 s before the first
    /// restart, twice as long before each further one, and at most 60 s. A node that left its
    /// training in order (`worker.leave()`, a drain) or was asked to end (SIGTERM) is not started
    /// again.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(..=i64::from(RESTARTS_MAX)),
        conflicts_with = "fail_fast"
    )]
    restart: u16,
    /// How long the nodes have after Ctrl-C or SIGTERM before they are killed. They leave with the
    /// next outer round, which may be tau steps away.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(..=86_400)
    )]
    grace: u32,
    /// CPU workers of each node.
    #[arg(
        long,
        value_name = "G",
        value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with = "gpus"
    )]
    workers: Option<u16>,
    /// GPUs of each node, one per worker; nodes share them if there are too few. The binary must be
    /// built with the feature cuda of slowmo.
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u16).range(1..))]
    gpus: Option<u16>,
    /// Reaction of a node that lost one of several GPUs: leave, or start again with the others and
    /// join.
    #[arg(
        long,
        value_enum,
        default_value_t,
        requires = "gpus",
        conflicts_with = "fail_fast"
    )]
    on_gpu_loss: OnGpuLoss,
    /// Each node serves a page that shows the cluster live, on this machine only; the first node at
    /// this port, if one is given.
    #[arg(
        long,
        value_name = "PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0",
        conflicts_with = "fail_fast"
    )]
    dashboard: Option<u16>,
    /// The cluster key of `slowmo keygen`; without it the launch makes one of its own.
    #[arg(long, value_name = "FILE")]
    cluster_key_file: Option<PathBuf>,
    /// The training binary and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Report of a launch.
#[derive(Debug, Serialize)]
struct Launched {
    nodes: u16,
    /// Nodes that failed and were not started again by `--restart`, by id.
    failed: Vec<usize>,
    /// How often nodes were started again.
    restarts: u64,
    /// The inner step that follows the newest complete checkpoint.
    checkpoint_step: Option<u64>,
    /// Parts of checkpoints that were not written.
    checkpoint_parts_failed: u64,
    elapsed_s: f64,
}

/// What remains of a job that ended by itself.
#[derive(Debug, Default)]
struct Over {
    /// Nodes that failed for good, in the order in which they did.
    failed: Vec<usize>,
    /// Whether nodes finished their training: the others were drained.
    finished: bool,
    /// How often others were started again.
    restarts: u64,
    checkpoints: Checkpoints,
}

impl Launch {
    /// Runs the nodes until all have ended.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        if let Some(gpus) = self.gpus {
            require_gpus(usize::from(gpus))?;
        }
        let Some((program, arguments)) = self.command.split_first() else {
            bail!("no binary was named")
        };
        check_program(Path::new(program))?;
        if let Some(file) = &self.cluster_key_file {
            std::fs::metadata(file)
                .with_context(|| format!("cannot read the cluster key file {}", file.display()))?;
        }
        let mut plan = Plan::new(program, usize::from(self.nodes)).arguments(arguments);
        plan.workers = self.workers.map(usize::from);
        plan.gpus = self.gpus.map(usize::from);
        if let Some(port) = self.dashboard {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))
                .with_context(|| format!("--dashboard={port}: choose a free port, or none"))?;
        }
        plan.page = self.dashboard;
        plan.cluster_key_file.clone_from(&self.cluster_key_file);
        plan.first_id = self.first_id as usize;
        plan.joins = self.join.is_some();
        plan.peers = self.join.clone();
        plan.grace = Duration::from_secs(self.grace.into());
        let nodes = usize::from(self.nodes);
        if let Some(max_nodes) = plan.max_nodes().filter(|max_nodes| nodes > *max_nodes) {
            bail!(
                "--nodes {nodes}: the cluster may have max_nodes = {max_nodes} members; raise it, \
                 or start fewer"
            );
        }
        catch_signals();
        let start = Instant::now();
        let printer = Printer::start(console)?;
        plan.unprinted = printer.unprinted();
        let ended = if self.fail_fast {
            let ended = supervise(&plan, &mut |line| printer.line(line.clone()));
            let over = Over {
                finished: true,
                ..Over::default()
            };
            ended.map(|()| over).map_err(Into::into)
        } else {
            self.elastic(&plan, console, &printer)
        };
        printer.finish();
        let Over {
            failed,
            finished,
            restarts,
            checkpoints,
        } = ended?;
        let elapsed_s = start.elapsed().as_secs_f64();
        let ended = match (failed.is_empty(), finished) {
            (true, true) => format!("all nodes ended well after {elapsed_s:.1} s{checkpoints}"),
            (true, false) => {
                format!("all nodes were drained within {elapsed_s:.1} s{checkpoints}")
            }
            (false, _) => format!(
                "the job ended after {elapsed_s:.1} s; nodes {failed:?} had failed \
                 before{checkpoints}"
            ),
        };
        let report = Launched {
            nodes: self.nodes,
            failed,
            restarts,
            checkpoint_step: checkpoints.step(),
            checkpoint_parts_failed: checkpoints.failed(),
            elapsed_s,
        };
        console.done("launch", ended, &report)
    }

    /// Runs the nodes, continues when some die, and carries out the requests of other commands.
    /// Fails if no node finished its training, unless an operator drained those that were left.
    fn elastic(&self, plan: &Plan, console: Console, printer: &Printer) -> anyhow::Result<Over> {
        let name = self
            .job
            .clone()
            .unwrap_or_else(|| std::process::id().to_string());
        let server = jobs::open(&name)?;
        let plan = &plan
            .clone()
            .variable(slowmo::internal::launcher::SOCKET_VARIABLE, server.path());
        let mut job = Job {
            name,
            group: Group::start(plan)?,
            leaving: BTreeSet::new(),
            restarts: Restarts::new(self.restart),
            failed: Vec::new(),
            finished: 0,
            drained_last: false,
            checkpoints: Checkpoints::default(),
        };
        if self.dashboard.is_some() {
            tell_page(job.name.clone(), console);
        }
        let mut node_gpus = gpus::of_plan(plan, self.on_gpu_loss)?;
        while !job.is_over() || node_gpus.as_ref().is_some_and(NodeGpus::is_checking) {
            for happening in job.group.happenings() {
                match happening {
                    Happening::Line(line) => printer.line(line),
                    Happening::Ended { node, status } if status.success() => {
                        if let Some(told) = job.returned(node) {
                            printer.progress(told);
                        }
                    }
                    Happening::Ended { node, status } => {
                        job.note_checkpoints(node);
                        // A death by signal is not caused by a GPU.
                        if status.code().is_some()
                            && let Some(gpus) = &mut node_gpus
                        {
                            job.leaving.remove(&node);
                            job.failed.push(node);
                            let told = format!("node {node} failed ({status})");
                            printer.progress(job.goes_on(&told));
                            gpus.check(node, gpus::computes);
                        } else {
                            let told = format!("node {node} failed ({status})");
                            printer.progress(job.ended_badly(node, &told, is_orderly(status)));
                        }
                    }
                }
            }
            let checked = node_gpus
                .as_mut()
                .map(|gpus| gpus::restart(gpus, &mut job.group))
                .unwrap_or_default();
            for (node, started) in checked {
                printer.progress(match started {
                    Ok(gpus) => {
                        format!("node {node} starts again with the GPUs that it has left: {gpus}")
                    }
                    Err(why) => {
                        job.failed.retain(|failed| *failed != node);
                        job.ended_badly(node, &format!("node {node}: {why}"), false)
                    }
                });
            }
            for told in job.start_again() {
                printer.progress(told);
            }
            while let Some(asked) = server.next() {
                answer(&mut job, asked);
            }
            if let Some(signal) = caught() {
                let grace = self.grace;
                printer.note(format!(
                    "{signal}: the nodes leave, which may take {grace} s (--grace); a second \
                     signal ends them at once"
                ));
                let waits = members_wait(&job.group);
                let mut all_left = true;
                let mut ended = Vec::new();
                let killed = job.group.end(plan.grace, &mut |happening| match happening {
                    Happening::Line(line) => printer.line(line.clone()),
                    Happening::Ended { node, status } => {
                        all_left &= status.success();
                        ended.push(*node);
                    }
                });
                for node in ended {
                    let early = job
                        .note_checkpoints(node)
                        .is_some_and(|report| report.left.is_none());
                    all_left &= !early;
                }
                let checkpoints = &job.checkpoints;
                ensure!(
                    killed.is_empty(),
                    "{}{checkpoints}",
                    why_killed(signal, &killed, &waits)
                );
                ensure!(
                    !all_left,
                    "ended by {signal}; all nodes left in order{checkpoints}"
                );
                bail!("ended by {signal}; all nodes were ended{checkpoints}");
            }
        }
        if job.finished == 0
            && !job.drained_last
            && let Some(node) = job.failed.first()
        {
            bail!(job.why_none_finished(*node));
        }
        Ok(Over {
            failed: job.failed,
            finished: job.finished > 0,
            restarts: job.restarts.count(),
            checkpoints: job.checkpoints,
        })
    }
}

/// The text for the user after a signal, if nodes had to be killed.
fn why_killed(signal: Signal, killed: &[usize], members_wait: &Receiver<String>) -> String {
    let lost = "what they trained since the last checkpoint, if there is one, is lost";
    if caught_again() {
        return format!("ended by a second signal; nodes {killed:?} were killed at once: {lost}");
    }
    let told =
        format!("ended by {signal}; nodes {killed:?} did not end in time and were killed: {lost}");
    match members_wait.try_recv().ok() {
        Some(why) => format!(
            "{told}. Nodes leave in order with a round, and the members decided none: {why}"
        ),
        None => format!(
            "{told}. Nodes leave with the next outer round: let --grace be longer than tau steps \
             take, or wait for slowmo checkpoint now before the end"
        ),
    }
}

/// A job under way.
struct Job {
    name: String,
    group: Group,
    /// Nodes that were told to leave.
    leaving: BTreeSet<usize>,
    restarts: Restarts,
    /// Nodes that failed and do not wait to be started again.
    failed: Vec<usize>,
    /// Nodes that finished their training, as opposed to those that were drained.
    finished: usize,
    /// Whether the last node that ended by itself or by a drain was drained: an operator ended the
    /// job.
    drained_last: bool,
    checkpoints: Checkpoints,
}

impl Job {
    /// Notes what a node that has ended told of its checkpoints.
    fn note_checkpoints(&mut self, node: usize) -> Option<LastReport> {
        let mut report = self.group.last_report(node)?;
        if let Some(checkpoints) = report.checkpoints.take() {
            self.checkpoints.add(node, checkpoints);
        }
        Some(report)
    }

    /// Notes that a node ended with success. Returns the text for the user, unless its training was
    /// over: it was drained, or it was a member of a run and did not leave it in order.
    fn returned(&mut self, node: usize) -> Option<String> {
        let report = self.note_checkpoints(node);
        match report.map(|report| (report.left, report.step)) {
            None | Some((Some(Departure::Finished), _)) => {
                self.leaving.remove(&node);
                self.finished += 1;
                None
            }
            Some((Some(Departure::Drained), step)) => {
                self.leaving.remove(&node);
                self.drained_last = true;
                Some(format!("node {node} was drained and left at step {step}"))
            }
            Some((None, step)) => {
                let told = format!(
                    "node {node} ended at step {step} without worker.leave(), which a training that \
                     is over calls: it counts as failed"
                );
                Some(self.ended_badly(node, &told, false))
            }
        }
    }

    /// The reason why the job failed; `first` is the node that failed first. It failed by itself:
    /// the others may have failed because it was missing.
    fn why_none_finished(&self, first: usize) -> String {
        let checkpoints = &self.checkpoints;
        let lines = self.group.last_lines(first);
        if lines.is_empty() {
            return format!(
                "no node finished its training{checkpoints}; node {first} failed first and wrote \
                 nothing to standard error"
            );
        }
        let lines = lines.join("\n    ");
        format!(
            "no node finished its training{checkpoints}; the last lines of node {first}, which \
             failed first:\n    {lines}"
        )
    }

    fn is_over(&self) -> bool {
        self.group.is_over() && self.restarts.waiting().is_empty()
    }

    /// The text for the user after a node's end, which `told` says.
    fn goes_on(&self, told: &str) -> String {
        let others = self.group.running_nodes().len() + self.restarts.waiting().len();
        if others == 0 {
            format!("{told}; no other node of this job runs")
        } else if bootstraps(&self.group) {
            format!("{told}; the run has not begun, and the others wait until min_nodes nodes meet")
        } else {
            format!("{told}; the others go on without it")
        }
    }

    /// Plans the restart of a node that ended with an error, unless it was asked to end; `told` is
    /// what happened. Returns the text for the user.
    fn ended_badly(&mut self, node: usize, told: &str, is_orderly: bool) -> String {
        self.drained_last = false;
        let was_asked = self.leaving.remove(&node) || is_orderly;
        let planned = if was_asked {
            None
        } else {
            self.restarts.crashed(node, Instant::now())
        };
        match planned {
            Some(planned) => format!("{told}; it starts again {planned}"),
            None => {
                self.failed.push(node);
                self.goes_on(told)
            }
        }
    }

    /// Starts the nodes whose pause is over. Returns the texts for the user.
    fn start_again(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        for node in self.restarts.take_due(Instant::now()) {
            let is_alone = self.group.running_nodes().is_empty();
            let bootstrapped = is_bootstrapped(&self.group);
            told.push(match self.group.join(node, bootstrapped) {
                Ok(()) if is_alone => {
                    format!(
                        "node {node} starts again; no other node of this job runs: unless it joins \
                         others, it resumes from a checkpoint or begins at its first step"
                    )
                }
                Ok(()) => format!("node {node} starts again"),
                Err(error) => {
                    self.failed.push(node);
                    format!("node {node} did not start again: {error}")
                }
            });
        }
        told
    }

    /// Gives up the planned restarts of these nodes; returns whether there were any.
    fn cancel_restarts(&mut self, nodes: &[usize]) -> bool {
        let cancelled: Vec<usize> = nodes
            .iter()
            .copied()
            .filter(|node| self.restarts.cancel(*node))
            .collect();
        self.failed.extend(&cancelled);
        !cancelled.is_empty()
    }
}

/// Prints the page's address once a node serves it. Best effort: `slowmo dashboard` prints it too.
/// The address contains the token, which is for a person's eyes, not for logs.
fn tell_page(job: String, console: Console) {
    std::thread::spawn(move || match dashboard::page_of(&job) {
        Ok(page) if std::io::stderr().is_terminal() => {
            console.progress(format!("the page of this job: {page}"))
        }
        Ok(_) => console.progress(format!(
            "the page of this job is served: slowmo dashboard --job {job}"
        )),
        Err(_) => {}
    });
}

/// Reports all obstacles to using this many GPUs in one error.
pub(super) fn require_gpus(gpus: usize) -> anyhow::Result<()> {
    let missing: Vec<String> = slowmo_cuda::missing(gpus)
        .iter()
        .map(ToString::to_string)
        .collect();
    ensure!(
        missing.is_empty(),
        "no node can use {gpus} GPUs here: {}",
        missing.join("; ")
    );
    Ok(())
}

/// Reports a missing binary once, not once per node.
pub(super) fn check_program(program: &Path) -> anyhow::Result<()> {
    if program.components().count() > 1 {
        ensure!(
            program.is_file(),
            "there is no binary {}; check the path after --",
            program.display()
        );
        return Ok(());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    ensure!(
        found,
        "there is no binary {} in PATH; write a path after --, for example ./{}",
        program.display(),
        program.display()
    );
    Ok(())
}
