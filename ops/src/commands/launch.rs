//! `slowmo launch`: runs N node processes of the user's training binary on this machine; nodes may
//! join, leave and die.

pub mod gpus;

use super::dashboard;
use crate::console::Console;
use anyhow::{Context, bail, ensure};
use clap::Args;
use gpus::{NodeGpus, OnGpuLoss};
use nix::sys::signal::Signal;
use serde::Serialize;
use slowmo::internal::admin;
use slowmo::status::MemberState;
use slowmo_ops::jobs::{self, Answer, Asked, Request};
use slowmo_ops::processes::signals::{catch_signals, caught};
use slowmo_ops::processes::{Group, Happening, NODES_MAX, Plan, supervise};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Run N node processes of a training binary on this machine.
///
/// Each node gets its identity through SLOWMO_* variables; its output appears behind a prefix. If a
/// node dies, the others continue without it. `slowmo scale`, `drain`, `kill` and `status` work on
/// the running job. Ctrl-C ends all nodes.
#[derive(Debug, Args)]
pub struct Launch {
    /// Node processes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64))]
    nodes: u16,
    /// Join the running cluster that has a node at this address, instead of bootstrapping one;
    /// needs the cluster's key.
    #[arg(long, value_name = "HOST:PORT", requires = "cluster_key_file")]
    join: Option<String>,
    /// The lowest node id of this launch; give the nodes of another machine other ids.
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    first_id: u32,
    /// A name by which the other commands find this job; the launcher's process id unless given.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// End all nodes as soon as one fails.
    #[arg(long)]
    fail_fast: bool,
    /// CPU workers of each node.
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "gpus")]
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
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0", conflicts_with = "fail_fast")]
    dashboard: Option<u16>,
    /// The cluster key of `slowmo keygen`; without it the launch makes one of its own.
    #[arg(long, value_name = "FILE")]
    cluster_key_file: Option<PathBuf>,
    /// The training binary and its arguments.
    #[arg(last = true, required = true, value_name = "BINARY ARGS")]
    command: Vec<OsString>,
}

/// Report of a launch.
#[derive(Debug, Serialize)]
struct Launched {
    nodes: u16,
    /// Nodes that failed, by id.
    failed: Vec<usize>,
    elapsed_s: f64,
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
        catch_signals();
        let start = Instant::now();
        let failed = if self.fail_fast {
            fail_fast(&plan, console)?
        } else {
            self.elastic(&plan, console)?
        };
        let nodes = self.nodes;
        let elapsed_s = start.elapsed().as_secs_f64();
        let report = Launched {
            nodes,
            failed: failed.clone(),
            elapsed_s,
        };
        let ended = if failed.is_empty() {
            "all nodes ended well".to_owned()
        } else {
            format!("the job ended; nodes {failed:?} had failed")
        };
        console.done("launch", format!("{ended} after {elapsed_s:.1} s"), &report)
    }

    /// Runs the nodes, continues when some die, and carries out the requests of other commands.
    /// Fails if no node ended successfully.
    fn elastic(&self, plan: &Plan, console: Console) -> anyhow::Result<Vec<usize>> {
        let name = self
            .job
            .clone()
            .unwrap_or_else(|| std::process::id().to_string());
        let server = jobs::open(&name)?;
        let plan = &plan
            .clone()
            .variable(slowmo::internal::launcher::SOCKET_VARIABLE, server.path());
        let mut group = Group::start(plan)?;
        if self.dashboard.is_some() {
            tell_page(name.clone(), console);
        }
        let mut node_gpus = gpus::of_plan(plan, self.on_gpu_loss)?;
        let mut failed = Vec::new();
        let mut well = 0usize;
        let mut leaving = BTreeSet::new();
        while !group.is_over() || node_gpus.as_ref().is_some_and(NodeGpus::is_checking) {
            for happening in group.happenings() {
                match happening {
                    Happening::Line(line) => console.node_line(&line),
                    Happening::Ended { node, status } if status.success() => {
                        leaving.remove(&node);
                        well += 1;
                    }
                    Happening::Ended { node, status } => {
                        leaving.remove(&node);
                        console.progress(format!(
                            "node {node} failed ({status}); the others go on without it"
                        ));
                        failed.push(node);
                        // A death by signal is not caused by a GPU.
                        if let Some(gpus) = node_gpus.as_mut()
                            && status.code().is_some()
                        {
                            gpus.check(node, gpus::computes);
                        }
                    }
                }
            }
            let restarted = node_gpus
                .as_mut()
                .map(|gpus| gpus::restart(gpus, &mut group))
                .unwrap_or_default();
            restarted
                .into_iter()
                .for_each(|told| console.progress(told));
            while let Some(asked) = server.next() {
                answer(&name, &mut group, &mut leaving, asked);
            }
            if let Some(signal) = caught() {
                group.end(&mut |happening| show(console, happening));
                bail!("ended by {signal}; all nodes were ended");
            }
        }
        let last = failed
            .last()
            .map(|node| (*node, group.last_lines(*node).join("\n    ")));
        match last {
            Some((node, lines)) if well == 0 => {
                bail!("no node ended well; the last lines of node {node}:\n    {lines}")
            }
            _ => Ok(failed),
        }
    }
}

fn show(console: Console, happening: &Happening) {
    if let Happening::Line(line) = happening {
        console.node_line(line);
    }
}

fn fail_fast(plan: &Plan, console: Console) -> anyhow::Result<Vec<usize>> {
    supervise(plan, &mut |line| console.node_line(line))?;
    Ok(Vec::new())
}

/// Carries out a request of another command; `leaving` are the nodes that were told to leave.
fn answer(job: &str, group: &mut Group, leaving: &mut BTreeSet<usize>, asked: Asked) {
    let done = match asked.request {
        Request::Status => return tell_status(job, group, asked),
        Request::Count => Ok(Answer::Count {
            nodes: group
                .running_nodes()
                .iter()
                .filter(|node| !leaving.contains(node))
                .count(),
        }),
        Request::Token => Ok(Answer::Token {
            token: group.http_token(),
        }),
        Request::Scale { nodes } => scale(group, leaving, nodes),
        Request::Drain { node } => drain(group, leaving, node).map(|()| changed(&[], &[node], &[])),
        Request::Checkpoint => checkpoint(group, leaving),
        Request::Kill { node } if group.signal(node, Signal::SIGKILL) => {
            Ok(changed(&[], &[], &[node]))
        }
        Request::Kill { node } => Err(no_such(group, node)),
    };
    asked.answer(done.unwrap_or_else(|error| Answer::Refused { error }));
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

fn changed(joined: &[usize], drained: &[usize], killed: &[usize]) -> Answer {
    Answer::Changed {
        joined: joined.to_vec(),
        drained: drained.to_vec(),
        killed: killed.to_vec(),
    }
}

fn no_such(group: &Group, node: usize) -> String {
    format!(
        "no node {node} is running; running: {:?}",
        group.running_nodes()
    )
}

/// Queries all nodes concurrently, outside the launcher's loop: a stopped node delays nobody else.
fn tell_status(job: &str, group: &Group, asked: Asked) {
    let ask = |(node, socket): (usize, PathBuf)| {
        (
            node,
            std::thread::spawn(move || jobs::report(node, &socket)),
        )
    };
    let sockets: Vec<_> = group
        .running_nodes()
        .into_iter()
        .map(|node| (node, group.admin_socket(node)))
        .collect();
    let job = job.to_owned();
    std::thread::spawn(move || {
        let asking: Vec<_> = sockets.into_iter().map(ask).collect();
        let nodes = asking
            .into_iter()
            .map(|(node, report)| (node, report.join().ok().flatten()))
            .collect();
        asked.answer(Answer::Status { job, nodes });
    });
}

/// Whether the job's model history has begun; a node that does not answer may already have one.
fn is_bootstrapped(group: &Group) -> bool {
    let waits = |node: &usize| {
        let report = group.report(*node);
        report.is_some_and(|report| {
            matches!(
                report.standing,
                MemberState::Bootstrapping | MemberState::Joining
            )
        })
    };
    !group.running_nodes().iter().all(waits)
}

fn drain(group: &Group, leaving: &mut BTreeSet<usize>, node: usize) -> Result<(), String> {
    if !group.running_nodes().contains(&node) {
        return Err(no_such(group, node));
    }
    jobs::ask(node, &group.admin_socket(node), admin::Request::Drain)
        .map_err(|error| error.to_string())?;
    leaving.insert(node);
    Ok(())
}

/// Orders a checkpoint from one of the nodes that stay; it tells the others.
fn checkpoint(group: &Group, leaving: &BTreeSet<usize>) -> Result<Answer, String> {
    let mut last = "no node runs that is not leaving".to_owned();
    for node in group.running_nodes() {
        if leaving.contains(&node) {
            continue;
        }
        match jobs::ask(node, &group.admin_socket(node), admin::Request::Checkpoint) {
            Ok(admin::Answer::Refused { error }) => last = error,
            Ok(_) => return Ok(changed(&[], &[], &[])),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

/// Starts the lowest free ids, or drains the highest running ones. Nodes that are already leaving
/// do not count.
fn scale(group: &mut Group, leaving: &mut BTreeSet<usize>, nodes: usize) -> Result<Answer, String> {
    if !(1..=NODES_MAX).contains(&nodes) {
        return Err(format!(
            "{nodes} nodes: one machine runs 1 to {NODES_MAX} node processes of a launch; drain the last one to end the job"
        ));
    }
    let running = group.running_nodes();
    let stay: Vec<usize> = running
        .iter()
        .copied()
        .filter(|node| !leaving.contains(node))
        .collect();
    let mut joined = Vec::new();
    let mut drained = Vec::new();
    let partly = |error: String, done: &[usize], what| {
        if done.is_empty() {
            error
        } else {
            format!("{error}; before that {what} {done:?}")
        }
    };
    let bootstrapped = stay.len() >= nodes || is_bootstrapped(group);
    let mut id = group.first_id();
    while stay.len() + joined.len() < nodes {
        if !running.contains(&id) {
            group
                .join(id, bootstrapped)
                .map_err(|error| partly(error.to_string(), &joined, "started"))?;
            joined.push(id);
        }
        id += 1;
    }
    for node in stay.iter().rev().take(stay.len().saturating_sub(nodes)) {
        drain(group, leaving, *node).map_err(|error| partly(error, &drained, "told to drain"))?;
        drained.push(*node);
    }
    Ok(changed(&joined, &drained, &[]))
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
