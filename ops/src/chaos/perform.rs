//! Carries out a schedule on the processes of a run and records every action.

use super::cluster::Orders;
use super::disks::Disks;
use super::folder::{Folder, Part};
use super::{BOOTSTRAP_MAX, ChaosError, sample};
use crate::jobs;
use crate::processes::{GRACE, Group, Happening, signals};
use nix::sys::signal::Signal;
use slowmo::internal::admin::Request;
use slowmo_chaos::processes::collect::{self, Journal};
use slowmo_chaos::processes::relay::{Layer, Relay, Traffic};
use slowmo_chaos::processes::report::Kept;
use slowmo_chaos::processes::schedule::{Schedule, Step, Way, What, plan, span};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::trace::{Event, Fault, Link};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Sampling period of the processes.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Period at which nodes are asked whether they train.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// After the last fault, longest wait for nodes that must end before they are started again.
const LEAVING_MAX: Duration = Duration::from_secs(10);
/// Most bytes kept of the nodes' output.
const OUTPUT_BYTES_MAX: usize = 64 << 20;

/// Progress of a run.
#[derive(Clone, Debug)]
pub enum Progress {
    /// All bootstrap members train.
    Bootstrapped,
    /// An action was carried out; text for people.
    Did(String),
    /// An unintended failure; text for people.
    Wrong(String),
    /// The quiet phase began: no more faults.
    Quiet,
}

/// Result of a run, beside its trace.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Actions that could not be carried out, for people.
    pub notes: Vec<String>,
    /// Traffic that the links carried.
    pub traffic: Traffic,
    /// The checkpoints that exist at the end, where any were written.
    pub kept: Option<Kept>,
}

/// Makes one run, with or without its faults, and leaves its merged trace in `folder`. Must be
/// called on the main thread.
///
/// # Errors
/// See [`ChaosError`]; no process is left, and the trace until then is merged as well.
pub fn run(
    orders: &Orders,
    part: Part,
    folder: &Folder,
    tell: &mut dyn FnMut(Progress),
) -> Result<Outcome, ChaosError> {
    let raw = folder.raw()?;
    let schedule = if part == Part::Faulty {
        plan(&orders.scenario, orders.seed, orders.duration())
    } else {
        Schedule::default()
    };
    let mut journal = Journal::create(&raw)?;
    let relay = Relay::start(&orders.ids(), orders.scenario.links.link(), orders.seed)?;
    journal.write(Event::Begun(orders.setup()?))?;
    let nodes = || orders.ids().into_iter().map(|node| node.0 as usize);
    let disks = orders
        .scenario
        .writes_checkpoints()
        .then(|| Disks::create(folder.path(), nodes()))
        .transpose()?;
    let group = orders.start(&relay, &raw, disks.as_ref())?;
    let output = (folder.log(part)?, 0);
    let mut run = Run {
        orders,
        raw,
        journal,
        relay,
        disks,
        group,
        output,
        expected: BTreeSet::new(),
        waiting: Vec::new(),
        notes: Vec::new(),
        sampled: Instant::now(),
        tell,
    };
    if schedule.skipped > 0 {
        run.notes.push(format!(
            "{} random actions found nobody to hit and were left out",
            schedule.skipped
        ));
    }
    let done = run.perform(&schedule);
    let ended = run.end();
    let outcome = Outcome {
        notes: std::mem::take(&mut run.notes),
        traffic: run.relay.traffic(),
        kept: run.disks.as_ref().map(Disks::kept),
    };
    drop(run);
    let merged = folder.merge(part);
    done.and(ended).and(merged).map(|()| outcome)
}

struct Run<'a> {
    orders: &'a Orders,
    raw: PathBuf,
    journal: Journal,
    relay: Relay,
    disks: Option<Disks>,
    group: Group,
    /// The file for the nodes' output, and the bytes written to it.
    output: (File, usize),
    /// Nodes that were killed or drained, so that their end is expected.
    expected: BTreeSet<usize>,
    /// Nodes that must be started once they have ended.
    waiting: Vec<usize>,
    notes: Vec<String>,
    sampled: Instant,
    tell: &'a mut dyn FnMut(Progress),
}

impl Run<'_> {
    fn perform(&mut self, schedule: &Schedule) -> Result<(), ChaosError> {
        self.wait_until_bootstrapped()?;
        (self.tell)(Progress::Bootstrapped);
        let begun = Instant::now();
        for Step { at, what } in &schedule.steps {
            let due = begun + Duration::from_micros(at.0);
            while Instant::now() < due {
                self.look()?;
            }
            self.carry_out(what)?;
        }
        let end = begun + Duration::from_micros(self.orders.duration().0);
        while Instant::now() < end {
            self.look()?;
        }
        let patience = Instant::now() + LEAVING_MAX;
        while !self.waiting.is_empty() && Instant::now() < patience {
            self.look()?;
        }
        for node in std::mem::take(&mut self.waiting) {
            self.notes.push(format!(
                "node {node} had not left {} s after the last fault and was not started again",
                LEAVING_MAX.as_secs()
            ));
        }
        self.relay.heal();
        self.journal.write(Event::Quiet)?;
        (self.tell)(Progress::Quiet);
        let quiet = Instant::now() + Duration::from_micros(span(self.orders.scenario.quiet_s).0);
        while Instant::now() < quiet {
            self.look()?;
        }
        self.journal.write(Event::Over)?;
        Ok(())
    }

    /// Ends all nodes: they hand over as far as there is a node to hand over to.
    fn end(&mut self) -> Result<(), ChaosError> {
        for node in self.group.running_nodes() {
            self.group.signal(node, Signal::SIGCONT);
        }
        let mut wrong = Ok(());
        let output = &mut self.output;
        let journal = &mut self.journal;
        let raw = &self.raw;
        self.group.end(GRACE, &mut |happening| {
            let noted = note(happening, output, journal, raw);
            if wrong.is_ok() {
                wrong = noted;
            }
        });
        wrong
    }

    fn wait_until_bootstrapped(&mut self) -> Result<(), ChaosError> {
        let begun = Instant::now();
        let mut asked = Instant::now();
        let nodes = self.orders.scenario.nodes;
        let mut ready: BTreeSet<usize> = BTreeSet::new();
        while ready.len() < nodes {
            self.look()?;
            if self.group.running_nodes().len() < nodes || begun.elapsed() > BOOTSTRAP_MAX {
                return Err(self.not_bootstrapped(&ready));
            }
            if asked.elapsed() < ASK_EVERY {
                continue;
            }
            asked = Instant::now();
            for node in (1..=nodes)
                .filter(|node| !ready.contains(node))
                .collect::<Vec<_>>()
            {
                let report = self.group.report(node);
                if report.is_some_and(|report| report.last_round.contributors == nodes) {
                    ready.insert(node);
                }
            }
        }
        let untraced = (1..=nodes)
            .find(|node| collect::newest_start(&self.raw, NodeId(*node as u64)).is_none());
        untraced.map_or(Ok(()), |node| Err(ChaosError::NoTrace(node)))
    }

    fn not_bootstrapped(&self, ready: &BTreeSet<usize>) -> ChaosError {
        let nodes = self.orders.scenario.nodes;
        let running = self.group.running_nodes();
        let last_lines = |node: &usize| {
            Some((*node, self.group.last_lines(*node))).filter(|(_, lines)| !lines.is_empty())
        };
        let ended: Vec<usize> = (1..=nodes).filter(|node| !running.contains(node)).collect();
        let mut why = match ended.as_slice() {
            [] => format!("those that do: {ready:?}"),
            ended => format!("these have ended: {ended:?}"),
        };
        if let Some((node, lines)) = ended.iter().chain(&running).find_map(last_lines) {
            why.push_str(&format!(
                "; the last lines of node {node}:\n    {}",
                lines.join("\n    ")
            ));
        }
        ChaosError::NotBootstrapped { nodes, why }
    }

    /// Processes the events of a short interval.
    fn look(&mut self) -> Result<(), ChaosError> {
        for happening in self.group.happenings() {
            note(&happening, &mut self.output, &mut self.journal, &self.raw)?;
            if let Happening::Ended { node, status } = happening
                && !self.expected.remove(&node)
            {
                let lines = self.group.last_lines(node).join("\n    ");
                (self.tell)(Progress::Wrong(format!(
                    "node {node} ended by itself ({status}); its last lines:\n    {lines}"
                )));
                self.notes.push(format!(
                    "node {node} ended by itself ({status}); output.log has what it wrote"
                ));
            }
        }
        for node in std::mem::take(&mut self.waiting) {
            self.start(node)?;
        }
        if self.sampled.elapsed() >= SAMPLE_EVERY {
            self.sampled = Instant::now();
            self.sample()?;
        }
        signals::caught().map_or(Ok(()), |signal| Err(ChaosError::Interrupted(signal)))
    }

    fn sample(&mut self) -> Result<(), ChaosError> {
        for node in self.group.running_nodes() {
            let start = collect::newest_start(&self.raw, NodeId(node as u64));
            if let (Some(start), Some(process)) = (start, self.group.process_id(node)) {
                self.journal
                    .write_together(sample::gauges(start, process))?;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, what: &What) -> Result<(), ChaosError> {
        match what {
            What::Fault(fault) => self.fault(fault),
            What::Resume(node) => {
                self.group.signal(node.0 as usize, Signal::SIGCONT);
                Ok(())
            }
            What::Worse { layer, ways, link } => {
                self.relay.lay(Layer {
                    number: *layer,
                    ways: ways.clone(),
                    link: *link,
                });
                self.did(faulted(ways, *link))
            }
            What::Better {
                layer,
                ways,
                all_well,
            } => {
                self.relay.take_off(*layer);
                let mut faults = faulted(ways, Link::default());
                faults.extend(all_well.then_some(Fault::Heal));
                self.did(faults)
            }
        }
    }

    fn fault(&mut self, fault: &Fault) -> Result<(), ChaosError> {
        let node = fault.victim().map_or(0, |node| node.0 as usize);
        match fault {
            Fault::Start { .. } => return self.start(node),
            Fault::FullDisk { full, .. } => {
                self.disks
                    .as_ref()
                    .map_or(Ok(()), |disks| disks.fill(node, *full))?;
                return self.did(vec![fault.clone()]);
            }
            _ => {}
        }
        // The fault is recorded before it happens: no consequence of it has an earlier time.
        self.did(vec![fault.clone()])?;
        let there = match fault {
            Fault::Kill { .. } => self.dismiss(node, Signal::SIGKILL),
            Fault::Drain { .. } => {
                self.expected.insert(node);
                // A node that does not answer is not up yet, or takes no orders on that socket.
                let asked = jobs::ask(node, &self.group.admin_socket(node), Request::Drain).is_ok();
                asked || self.dismiss(node, Signal::SIGTERM)
            }
            Fault::Pause { .. } => self.group.signal(node, Signal::SIGSTOP),
            _ => true,
        };
        if !there {
            self.notes.push(format!(
                "node {node} was not there for its {}",
                fault.name()
            ));
        }
        Ok(())
    }

    fn dismiss(&mut self, node: usize, signal: Signal) -> bool {
        self.expected.insert(node);
        self.group.signal(node, signal)
    }

    /// Starts a node, or remembers to do so once it has ended.
    fn start(&mut self, node: usize) -> Result<(), ChaosError> {
        if self.group.running_nodes().contains(&node) {
            self.waiting.push(node);
            return Ok(());
        }
        self.expected.remove(&node);
        self.did(vec![Fault::Start {
            node: NodeId(node as u64),
        }])?;
        Ok(self.group.join(node, true)?)
    }

    fn did(&mut self, faults: Vec<Fault>) -> Result<(), ChaosError> {
        // One of a link's two directions is enough.
        let mut told = Vec::new();
        let mut names = BTreeSet::new();
        for fault in faults.iter().filter(|fault| names.insert(fault.name())) {
            told.push(words(fault));
        }
        (self.tell)(Progress::Did(told.join(", ")));
        Ok(self
            .journal
            .write_together(faults.into_iter().map(|fault| Event::Faulted { fault }))?)
    }
}

fn faulted(ways: &[Way], link: Link) -> Vec<Fault> {
    ways.iter()
        .map(|way| Fault::Links {
            from: way.from.clone(),
            to: way.to.clone(),
            link,
        })
        .collect()
}

/// Records a node's output and its end.
fn note(
    happening: &Happening,
    output: &mut (File, usize),
    journal: &mut Journal,
    raw: &std::path::Path,
) -> Result<(), ChaosError> {
    match happening {
        Happening::Line(line) if output.1 < OUTPUT_BYTES_MAX => {
            output.1 += line.text.len();
            // The output serves people who look for a cause; the run continues without it.
            let _full_disk = writeln!(output.0, "[node {}] {}", line.node, line.text);
        }
        Happening::Line(_) => {}
        Happening::Ended { node, status } => {
            if let Some(start) = collect::newest_start(raw, NodeId(*node as u64)) {
                let killed = status.signal() == Some(Signal::SIGKILL as i32);
                journal.write(Event::Ended {
                    start,
                    end: collect::end_of(status.success(), killed),
                })?;
            }
        }
    }
    Ok(())
}

fn words(fault: &Fault) -> String {
    let nodes = |nodes: &[NodeId]| {
        nodes
            .iter()
            .map(|node| node.0.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    match fault {
        Fault::Pause { node, span } => format!("{node} pauses for {:.1} s", span.0 as f64 / 1e6),
        Fault::Links { from, to, link } if link.cut => {
            format!("{} cut off from {}", nodes(from), nodes(to))
        }
        Fault::Links { from, to, link } if *link == Link::default() => {
            format!("links of {} to {} are well", nodes(from), nodes(to))
        }
        Fault::Links { from, to, .. } => {
            format!("links of {} to {} get worse", nodes(from), nodes(to))
        }
        Fault::Heal => "all links are well".to_owned(),
        other => match other.victim() {
            Some(node) => format!("{} {node}", other.name()),
            None => other.name().to_owned(),
        },
    }
}
