//! `slowmo scale`, `drain`, `kill` and `status`: operations on a running job.

use super::one_node::{self, Probe};
use crate::console::{Console, table};
use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use slowmo::internal::admin::{self, ClusterStatus, Digest, NodeReport};
use slowmo::internal::printable;
use slowmo::status::{
    self, CheckpointStatus, MemberState, MemberStatus, SettingStatus, StragglerStatus,
};
use slowmo_ops::jobs::{self, Answer, Request};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Selects a job.
#[derive(Debug, Args)]
pub struct Which {
    /// The job's name; needed only where several run.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
}

/// Change the number of nodes of the running job: new ones join, the highest ids hand over and
/// leave.
#[derive(Debug, Args)]
pub struct Scale {
    /// Node processes.
    nodes: usize,
    #[command(flatten)]
    which: Which,
}

/// Let nodes contribute once more, hand over and leave.
#[derive(Debug, Args)]
pub struct Drain {
    /// The nodes' ids.
    #[arg(
        value_name = "NODE",
        required_unless_present = "admin",
        conflicts_with = "admin"
    )]
    nodes: Vec<usize>,
    /// The node's own admin socket (key `admin`), for a node that no launcher started.
    #[arg(long, value_name = "SOCKET", conflicts_with = "job")]
    admin: Option<PathBuf>,
    /// Wait until the node's process has closed that socket, at most this many seconds; exits with
    /// 1 if it has not.
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "admin",
        value_parser = clap::value_parser!(u32).range(1..=one_node::WAIT_SECONDS_MAX)
    )]
    wait: Option<u32>,
    #[command(flatten)]
    which: Which,
}

/// Kill the processes of nodes (SIGKILL), as a crash would.
#[derive(Debug, Args)]
pub struct Kill {
    /// The nodes' ids.
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<usize>,
    #[command(flatten)]
    which: Which,
}

/// Show the running job: view, rounds, live nodes, and the reason if nothing is decided. With
/// --admin: the cluster of that node, whichever machines its members are on.
#[derive(Debug, Args)]
pub struct Status {
    /// A node's own admin socket (key `admin`): shows the whole cluster, which that node asks.
    #[arg(long, value_name = "SOCKET", conflicts_with = "job")]
    admin: Option<PathBuf>,
    /// Exit with 0 if the node is in this state, and with 1 if not. live: it answers; ready: it is
    /// a member of the view.
    #[arg(long, value_enum, requires = "admin")]
    probe: Option<Probe>,
    #[command(flatten)]
    which: Which,
}

impl Scale {
    /// Runs the command.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let nodes = self.nodes;
        let mut report = change(&self.which, Request::Scale { nodes })?;
        if !report.joined.is_empty() {
            // The nodes were started, whatever the members answer now.
            report.members_wait = furthest_member(&self.which)
                .ok()
                .and_then(|member| member.waiting_for);
        }
        report.print("scale", console)
    }
}

impl Drain {
    /// Runs the command.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        if let Some(socket) = self.admin {
            jobs::ask_at(&socket, admin::Request::Drain)?;
            let job = socket.display().to_string();
            let none = Vec::new();
            let report = Change {
                job,
                joined: none.clone(),
                drained: none.clone(),
                killed: none,
                members_wait: None,
            };
            let Some(seconds) = self.wait else {
                return console.done(
                    "drain",
                    format!("the node at {} drains", report.job),
                    &report,
                );
            };
            one_node::wait_until_gone(&socket, Duration::from_secs(seconds.into()))?;
            return console.done(
                "drain",
                format!("the node at {} has left", report.job),
                &report,
            );
        }
        change_each(&self.which, &self.nodes, |node| Request::Drain { node })?
            .print("drain", console)
    }
}

impl Kill {
    /// Runs the command.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        change_each(&self.which, &self.nodes, |node| Request::Kill { node })?.print("kill", console)
    }
}

/// Report of a change.
#[derive(Debug, Serialize)]
struct Change {
    job: String,
    joined: Vec<usize>,
    drained: Vec<usize>,
    killed: Vec<usize>,
    /// After nodes were started: the reason why the members decide no round, if they do not. Nodes
    /// that join need one.
    #[serde(skip_serializing_if = "Option::is_none")]
    members_wait: Option<String>,
}

impl Change {
    fn add(&mut self, other: Self) {
        self.joined.extend(other.joined);
        self.drained.extend(other.drained);
        self.killed.extend(other.killed);
    }

    fn print(&self, command: &'static str, console: Console) -> anyhow::Result<()> {
        let parts = [
            ("started", &self.joined),
            ("draining", &self.drained),
            ("killed", &self.killed),
        ];
        let told: Vec<String> = parts
            .iter()
            .filter(|(_, nodes)| !nodes.is_empty())
            .map(|(what, nodes)| format!("{what} {nodes:?}"))
            .collect();
        let told = if told.is_empty() {
            "nothing to do".to_owned()
        } else {
            told.join(", ")
        };
        let mut text = format!("job {}: {told}", self.job);
        if let Some(why) = &self.members_wait {
            text.push_str(&format!(
                "\na node joins with a round, and the members decide none now: {why}"
            ));
        }
        console.done(command, text, self)
    }
}

/// Asks the launcher of a job; returns its name, and the answer.
pub fn ask(which: &Which, request: Request) -> anyhow::Result<(String, Answer)> {
    let (job, socket) = jobs::find(which.job.as_deref())?;
    let answer =
        jobs::request(&socket, request).with_context(|| format!("job {job} does not answer"))?;
    match answer {
        Answer::Refused { error } => bail!("{error}"),
        answer => Ok((job, answer)),
    }
}

/// The report of the job's member that is furthest ahead.
pub fn furthest_member(which: &Which) -> anyhow::Result<status::Status> {
    let (job, answer) = ask(which, Request::Status)?;
    let Answer::Status { nodes, .. } = answer else {
        bail!("job {job} answered something else")
    };
    nodes
        .into_iter()
        .filter_map(|(_, report)| report)
        .filter(|report| report.standing != MemberState::Joining)
        .max_by_key(|report| report.round)
        .with_context(|| format!("no member of job {job} answers"))
}

fn change(which: &Which, request: Request) -> anyhow::Result<Change> {
    let (job, answer) = ask(which, request)?;
    let Answer::Changed {
        joined,
        drained,
        killed,
    } = answer
    else {
        bail!("job {job} answered something else")
    };
    Ok(Change {
        job,
        joined,
        drained,
        killed,
        members_wait: None,
    })
}

/// Changes one node after another. A refused change ends this; the error names the nodes that were
/// changed before.
fn change_each(
    which: &Which,
    nodes: &[usize],
    request: impl Fn(usize) -> Request,
) -> anyhow::Result<Change> {
    let mut all: Option<Change> = None;
    for (at, node) in nodes.iter().enumerate() {
        let one = change(which, request(*node)).map_err(|error| match nodes.get(..at) {
            None | Some([]) => error,
            Some(before) => error.context(format!("only {before:?} of {nodes:?} done")),
        })?;
        match &mut all {
            None => all = Some(one),
            Some(all) => all.add(one),
        }
    }
    all.context("no node was named")
}

/// Report of `status`: the job as seen by the member that is furthest ahead, and every node.
#[derive(Debug, Serialize)]
struct JobReport {
    job: String,
    /// Live nodes in the last decided round.
    alive: usize,
    members: usize,
    contributors: usize,
    round: u64,
    epoch: u64,
    lineage: String,
    momentum_lost: u64,
    /// The settings that may change in a running job, with the values in force.
    settings: Vec<SettingStatus>,
    push_sum_weight_lost: f64,
    push_sum_weight_doubled: f64,
    /// Largest value over the nodes.
    disagreement: Option<f32>,
    waiting_for: Option<String>,
    /// Whose contribution the round waits for, as its leader says.
    awaits: Option<String>,
    /// Nodes that others' gossip waits for or proceeds without.
    late: Vec<LateRow>,
    /// Members that live and miss rounds, as the member that is furthest ahead counts them.
    stragglers: Vec<StragglerStatus>,
    /// The members of each group (key `group`), if there are several.
    groups: Vec<Vec<u64>>,
    nodes: Vec<NodeRow>,
}

/// A late node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct LateRow {
    node: u64,
    /// Largest number of inner steps by which it is late.
    steps: u64,
    /// Longest time that it has been late, in milliseconds.
    ms: u64,
    /// Nodes that wait for it, ascending.
    waited_for_by: Vec<u64>,
    /// Nodes that proceed without it, ascending.
    skipped_by: Vec<u64>,
}

impl LateRow {
    /// The late nodes according to `reports`, ascending.
    fn all<'a>(reports: impl Iterator<Item = &'a status::Status>) -> Vec<Self> {
        let mut rows: BTreeMap<u64, Self> = BTreeMap::new();
        for (by, late) in reports.flat_map(|report| {
            report
                .gossip
                .iter()
                .flat_map(|gossip| &gossip.late)
                .map(|late| (report.node, late))
        }) {
            let empty = Self {
                node: late.node,
                steps: 0,
                ms: 0,
                waited_for_by: Vec::new(),
                skipped_by: Vec::new(),
            };
            let row = rows.entry(late.node).or_insert(empty);
            row.steps = row.steps.max(late.steps);
            row.ms = row.ms.max(late.ms);
            if late.skipped {
                row.skipped_by.push(by)
            } else {
                row.waited_for_by.push(by)
            }
        }
        rows.into_values().collect()
    }
}

impl fmt::Display for LateRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node,
            steps,
            ms,
            waited_for_by,
            skipped_by,
        } = self;
        write!(
            f,
            "late: node {node} is {steps} steps behind, for {:.1} s",
            *ms as f64 / 1e3
        )?;
        for (what, nodes) in [("waited for", waited_for_by), ("done without", skipped_by)] {
            if !nodes.is_empty() {
                write!(f, "; {what} by {nodes:?}")?;
            }
        }
        Ok(())
    }
}

/// A member as another node reports it.
#[derive(Debug, Serialize)]
struct MemberRow {
    node: u64,
    address: String,
    workers: u16,
    alive: bool,
    /// Its own digest, if it has answered.
    #[serde(flatten)]
    digest: Option<Digest>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum NodeRow {
    /// The node's report of itself, its id included.
    Answer(Box<status::Status>),
    /// A member as another node reports it.
    Member(Box<MemberRow>),
    /// The node does not answer (yet).
    Silent {
        /// The node's id.
        node: usize,
    },
}

impl MemberRow {
    fn new(report: NodeReport) -> Self {
        let NodeReport { member, digest } = report;
        let MemberStatus {
            node,
            address,
            devices: workers,
            alive,
            group: _,
        } = member;
        Self {
            node,
            address,
            workers,
            alive,
            digest,
        }
    }

    fn standing(&self) -> String {
        match &self.digest {
            _ if !self.alive => "dead".to_owned(),
            None => "no answer".to_owned(),
            Some(digest) if digest.waits => format!("{} (waits)", digest.standing),
            Some(digest) => digest.standing.to_string(),
        }
    }
}

impl NodeRow {
    fn node(&self) -> u64 {
        match self {
            Self::Answer(report) => report.node,
            Self::Member(member) => member.node,
            Self::Silent { node } => *node as u64,
        }
    }
}

impl Status {
    /// Queries the job and shows the result.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let report = match &self.admin {
            Some(socket) => {
                if let Some(probe) = self.probe {
                    return probe.judge(&one_node::status(socket)?, console);
                }
                JobReport::of_cluster(socket.display().to_string(), one_node::cluster(socket)?)
            }
            None => {
                let (job, answer) = ask(&self.which, Request::Status)?;
                let Answer::Status { nodes, .. } = answer else {
                    bail!("job {job} answered something else")
                };
                JobReport::new(job, nodes)
            }
        };
        console.done("status", report.to_text(), &report)
    }
}

impl JobReport {
    fn new(job: String, nodes: Vec<(usize, Option<status::Status>)>) -> Self {
        let reports = || nodes.iter().filter_map(|(_, report)| report.as_ref());
        let furthest = reports()
            .filter(|report| report.standing != MemberState::Joining)
            .max_by_key(|report| report.round);
        let last = furthest.map(|report| report.last_round);
        let disagreement = reports()
            .filter_map(|report| report.disagreement)
            .max_by(f32::total_cmp);
        Self {
            job,
            alive: last.map_or(0, |last| last.alive),
            members: last.map_or(0, |last| last.members),
            contributors: last.map_or(0, |last| last.contributors),
            round: furthest.map_or(0, |report| report.round),
            epoch: furthest.map_or(0, |report| report.epoch),
            lineage: furthest
                .map(|report| report.lineage.clone())
                .unwrap_or_default(),
            momentum_lost: furthest.map_or(0, |report| report.momentum_lost),
            settings: furthest
                .map(|report| report.settings.clone())
                .unwrap_or_default(),
            push_sum_weight_lost: reports()
                .map(|report| report.push_sum_weight_lost)
                .fold(0.0, f64::max),
            push_sum_weight_doubled: reports()
                .map(|report| report.push_sum_weight_doubled)
                .fold(0.0, f64::max),
            disagreement,
            // Nodes that join wait for the members: what these wait for comes first.
            waiting_for: furthest
                .and_then(|report| report.waiting_for.clone())
                .or_else(|| reports().find_map(|report| report.waiting_for.clone())),
            awaits: reports().find_map(|report| report.awaits.clone()),
            late: LateRow::all(reports()),
            stragglers: furthest
                .map(|report| report.stragglers.clone())
                .unwrap_or_default(),
            groups: furthest.map_or_else(Vec::new, |report| groups(&report.members)),
            nodes: nodes
                .into_iter()
                .map(|(node, report)| {
                    report.map_or(NodeRow::Silent { node }, |report| {
                        NodeRow::Answer(Box::new(report))
                    })
                })
                .collect(),
        }
    }

    /// Turns one node's report of the whole cluster into a status: all of itself, and of the others
    /// what they answered.
    fn of_cluster(job: String, cluster: ClusterStatus) -> Self {
        let ClusterStatus { report, nodes } = cluster;
        let asked = report.node;
        let digests = nodes.iter().filter_map(|node| node.digest.as_ref());
        let disagreement = digests
            .filter_map(|digest| digest.disagreement)
            .chain(report.disagreement)
            .max_by(f32::total_cmp);
        let id = usize::try_from(asked).unwrap_or(usize::MAX);
        let mut rows: Vec<NodeRow> = nodes
            .into_iter()
            .filter(|node| node.member.node != asked)
            .map(|node| NodeRow::Member(Box::new(MemberRow::new(node))))
            .collect();
        let of_asked = Self::new(job, vec![(id, Some(report))]);
        rows.extend(of_asked.nodes);
        rows.sort_by_key(NodeRow::node);
        Self {
            disagreement,
            nodes: rows,
            ..of_asked
        }
    }

    /// Lines about checkpoints, of nodes that write any: the newest complete one, and what failed.
    fn checkpoints(&self) -> Vec<String> {
        let written: Vec<(u64, &CheckpointStatus)> = self
            .nodes
            .iter()
            .filter_map(|row| match row {
                NodeRow::Answer(report) => Some((report.node, report.checkpoints.as_ref()?)),
                NodeRow::Member(_) | NodeRow::Silent { .. } => None,
            })
            .collect();
        if written.is_empty() {
            return Vec::new();
        }
        let whole = written.iter().filter_map(|(_, told)| told.whole_step).max();
        // Nodes that know of an older one count from there.
        let newest = written.iter().filter(|(_, told)| told.whole_step == whole);
        let not_whole = newest.map(|(_, told)| told.not_whole).max();
        let mut lines = vec![match (whole, not_whole.unwrap_or(0)) {
            (None, 0) => "checkpoints: none is complete yet".to_owned(),
            (None, count) => format!("checkpoints: none is complete, {count} were due"),
            (Some(step), 0) => format!("checkpoints: the one of step {step} is complete"),
            (Some(step), count) => format!(
                "checkpoints: the one of step {step} is complete, {count} that were due since \
                 then are not"
            ),
        }];
        lines.extend(written.iter().filter_map(|(node, told)| {
            let error = told.error.as_ref()?;
            Some(format!("node {node} did not write its part: {error}"))
        }));
        lines
    }

    /// Lines with what training reports beside its loss: a line for each name.
    fn measures(&self) -> Vec<String> {
        let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut tell = |node: u64, name, value: Option<f64>| {
            let value = value.map_or_else(|| "–".to_owned(), |value| format!("{value:.4}"));
            let line: &mut Vec<String> = lines.entry(name).or_default();
            line.push(format!("node {node} {value}"));
        };
        for row in &self.nodes {
            match row {
                NodeRow::Silent { .. } => {}
                NodeRow::Member(member) => {
                    for (name, (_, value)) in
                        member.digest.iter().flat_map(|digest| &digest.measures)
                    {
                        tell(member.node, name.as_str(), *value);
                    }
                }
                NodeRow::Answer(report) => {
                    for (name, measure) in &report.measures {
                        tell(report.node, name.as_str(), Some(measure.value));
                    }
                }
            }
        }
        lines
            .into_iter()
            .filter(|(name, _)| *name != "loss")
            .map(|(name, nodes)| format!("{}: {}", printable(name), nodes.join(", ")))
            .collect()
    }

    fn to_text(&self) -> String {
        let distance = |distance: Option<f32>| {
            distance.map_or_else(|| "–".to_owned(), |distance| format!("{distance:.1e}"))
        };
        let loss =
            |loss: Option<f64>| loss.map_or_else(|| "–".to_owned(), |loss| format!("{loss:.4}"));
        let rows = self.nodes.iter().map(|row| match row {
            NodeRow::Silent { node } => [
                node.to_string(),
                "no answer".into(),
                "–".into(),
                "–".into(),
                "–".into(),
                "–".into(),
                "–".into(),
                "–".into(),
            ],
            NodeRow::Member(member) => {
                let of = |text: &dyn Fn(&Digest) -> String| {
                    let digest = member.digest.as_ref();
                    digest.map_or_else(|| "–".to_owned(), text)
                };
                [
                    member.node.to_string(),
                    member.standing(),
                    of(&|digest| digest.epoch.to_string()),
                    of(&|digest| digest.round.to_string()),
                    of(&|digest| digest.step.to_string()),
                    of(&|digest| loss(digest.measures.get("loss").and_then(|(_, loss)| *loss))),
                    of(&|digest| distance(digest.disagreement)),
                    format!("{} at {}", workers(member.workers), member.address),
                ]
            }
            NodeRow::Answer(report) => [
                report.node.to_string(),
                report.standing.to_string(),
                report.epoch.to_string(),
                report.round.to_string(),
                report
                    .training
                    .map_or(report.step, |training| training.step)
                    .to_string(),
                loss(report.loss.map(|loss| loss.loss)),
                distance(report.disagreement),
                devices(&report.devices),
            ],
        });
        let nodes = table(
            [
                "node",
                "standing",
                "view",
                "round",
                "step",
                "loss",
                "disagreement",
                "devices",
            ],
            rows,
        );
        let waits = self.waiting_for.as_ref().or(self.awaits.as_ref());
        let waits = waits.map_or_else(String::new, |why| format!("waits: {why}\n"));
        let mut text = format!(
            "job {}: view {} of lineage {}, next round {}\n{waits}\
             last round: {} alive / {} members / {} contributors\n\
             momentum lost: {} shards, push-sum weight lost: {:.3}, counted twice: {:.3}, \
             disagreement: {}\n{nodes}",
            self.job,
            self.epoch,
            // The full lineage: histories that diverged differ in the last digits, and the key
            // `lineage` takes the full value.
            self.lineage,
            self.round,
            self.alive,
            self.members,
            self.contributors,
            self.momentum_lost,
            self.push_sum_weight_lost,
            self.push_sum_weight_doubled,
            distance(self.disagreement)
        );
        if !self.settings.is_empty() {
            let settings: Vec<String> = self.settings.iter().map(in_force).collect();
            text.push_str(&format!("\nin force: {}", settings.join(", ")));
        }
        for line in self.measures().into_iter().chain(self.checkpoints()) {
            text.push_str(&format!("\n{line}"));
        }
        if !self.groups.is_empty() {
            let groups: Vec<String> = self.groups.iter().map(|group| listed(group)).collect();
            text.push_str(&format!("\ngroups: {}", groups.join(" | ")));
        }
        self.late
            .iter()
            .for_each(|late| text.push_str(&format!("\n{late}")));
        self.stragglers
            .iter()
            .for_each(|straggler| text.push_str(&format!("\n{}", told(straggler))));
        text
    }
}

/// The members of each group, in the order of their lowest ids; empty if there is one group.
fn groups(members: &[MemberStatus]) -> Vec<Vec<u64>> {
    let mut groups: BTreeMap<Option<u32>, Vec<u64>> = BTreeMap::new();
    for member in members {
        groups.entry(member.group).or_default().push(member.node);
    }
    if groups.len() < 2 {
        return Vec::new();
    }
    let mut groups: Vec<Vec<u64>> = groups.into_values().collect();
    groups.sort();
    groups
}

/// `nodes 1, 2, 3`.
fn listed(nodes: &[u64]) -> String {
    let ids: Vec<String> = nodes.iter().map(u64::to_string).collect();
    format!(
        "{} {}",
        if ids.len() == 1 { "node" } else { "nodes" },
        ids.join(", ")
    )
}

fn in_force(setting: &SettingStatus) -> String {
    let SettingStatus {
        key,
        value,
        configured,
    } = setting;
    if value == configured {
        format!("{key} = {value}")
    } else {
        format!("{key} = {value} (started with {configured})")
    }
}

/// A line about a member that lives and misses rounds.
fn told(straggler: &StragglerStatus) -> String {
    let StragglerStatus {
        node,
        missed,
        step,
        ms,
        waited_for,
    } = straggler;
    let waits = if *waited_for {
        "the next round waits for it (at most grace_ms)"
    } else {
        "rounds do not wait for it until its training goes on"
    };
    format!(
        "late: node {node} missed {missed} rounds in {:.1} s and has not finished step {step}; \
         {waits}",
        *ms as f64 / 1e3
    )
}

fn workers(count: u16) -> String {
    if count == 1 {
        "1 worker".to_owned()
    } else {
        format!("{count} workers")
    }
}

/// The devices on which a node's workers compute; repeated names are counted.
fn devices(names: &[String]) -> String {
    let counted = names.chunk_by(|one, other| one == other);
    let text = |same: &[String]| {
        if same.len() > 1 {
            format!("{} × {}", same.len(), same[0])
        } else {
            same[0].clone()
        }
    };
    counted.map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u64, group: Option<u32>) -> MemberStatus {
        MemberStatus {
            node,
            address: String::new(),
            devices: 1,
            alive: true,
            group,
        }
    }

    #[test]
    fn members_are_listed_by_group_where_there_are_several() {
        assert!(groups(&[member(0, None), member(1, None)]).is_empty());
        assert!(groups(&[member(0, Some(7)), member(1, Some(7))]).is_empty());
        let several = [member(0, Some(9)), member(1, Some(7)), member(2, Some(9))];
        assert_eq!(groups(&several), [vec![0, 2], vec![1]]);
        assert_eq!(listed(&[0, 2]), "nodes 0, 2");
        assert_eq!(listed(&[1]), "node 1");
    }
}
