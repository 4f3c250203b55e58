//! A group of node processes from start to end; nodes may be added and ended in between.

use super::end::{Ending, GRACE, reap, send};
use super::environment::{HTTP_TOKEN, JOIN, Plan, RENDEZVOUS_FOLDER};
use super::lines::{LINES_WAITING_MAX, Line, Reading, Stream, forward};
use super::start::START_NODE;
use super::{NODES_MAX, signals};
use crate::jobs::{self, PrivateFolder};
use nix::sys::signal::Signal;
use slowmo::internal::admin::Request;
use slowmo::internal::launcher::LastReport;
use slowmo::status::Status;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Polling period for ended processes and caught signals.
const POLL: Duration = Duration::from_millis(20);
/// Lines kept from the end of each node's standard error, to be shown when it fails.
const LAST_LINES_MAX: usize = 20;
/// Longest time that notifying a node may take.
const TELL_MAX: Duration = Duration::from_millis(100);
/// Longest wait for the output of an ended process; a process that it left behind may hold it open.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);

/// A node that failed.
#[derive(Debug)]
pub struct NodeFailure {
    /// The node, from 1.
    pub node: usize,
    /// Exit status of its process.
    pub status: ExitStatus,
    /// Its last lines of standard error, oldest first.
    pub last_lines: Vec<String>,
}

/// Reasons why a group failed. None of its processes is left.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The number of nodes is zero or above the bound.
    #[error("{0} nodes: one machine runs 1 to {NODES_MAX} node processes of a launch")]
    Nodes(usize),
    /// The private folder, or the key file in it, cannot be made.
    #[error("cannot prepare the launch's temporary folder")]
    Folder(#[source] std::io::Error),
    /// A process did not start.
    #[error("cannot start node {node}")]
    Start {
        /// The node, from 1.
        node: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// A node failed; the others were ended.
    #[error("{}", describe(.0))]
    Node(NodeFailure),
    /// The user or another process ended the launch with a signal.
    #[error("ended by {0}; all nodes were ended")]
    Interrupted(Signal),
    /// The plan's time limit was reached.
    #[error("not done after {0:?}; all nodes were ended")]
    TooLong(Duration),
}

/// An event of a group.
#[derive(Debug)]
pub enum Happening {
    /// A node wrote a line.
    Line(Line),
    /// A node's process ended.
    Ended {
        /// The node.
        node: usize,
        /// Exit status of the process.
        status: ExitStatus,
    },
}

/// Runs the plan's processes until all have ended successfully, and passes every line they write to
/// `on_line`.
///
/// Must be called on the main thread: the nodes' lives are tied to the thread that started them. If
/// one fails, the others are ended: SIGTERM, after [`GRACE`] SIGKILL. On SIGINT, SIGTERM or SIGHUP,
/// if they are caught, all are ended, and have the plan's grace.
///
/// # Errors
/// See [`GroupError`]; in every case no process is left.
pub fn supervise(plan: &Plan, on_line: &mut dyn FnMut(&Line)) -> Result<(), GroupError> {
    let mut group = Group::start(plan)?;
    let start = Instant::now();
    while !group.is_over() {
        let mut reason = None;
        for happening in group.happenings() {
            match happening {
                Happening::Line(line) => on_line(&line),
                Happening::Ended { node, status } if !status.success() => {
                    let failure = NodeFailure {
                        node,
                        status,
                        last_lines: Vec::new(),
                    };
                    // A death by signal is more likely the cause than an exit code, which often
                    // follows from it.
                    let stronger = !matches!(
                        &reason,
                        Some(GroupError::Node(known)) if known.status.signal().is_some()
                    );
                    reason = if stronger {
                        Some(GroupError::Node(failure))
                    } else {
                        reason
                    };
                }
                Happening::Ended { .. } => {}
            }
        }
        let too_long = plan.time_max.filter(|max| start.elapsed() >= *max);
        let reason = reason
            .or(signals::caught().map(GroupError::Interrupted))
            .or(too_long.map(GroupError::TooLong));
        if let Some(reason) = reason {
            let grace = match reason {
                GroupError::Interrupted(_) => plan.grace,
                _ => GRACE,
            };
            group.end(grace, &mut |happening| {
                if let Happening::Line(line) = happening {
                    on_line(line);
                }
            });
            return Err(group.with_last_lines(reason));
        }
    }
    Ok(())
}

/// One node process.
#[derive(Debug)]
struct Member {
    node: usize,
    /// Number of this start of the node, so that a restart's output is not attributed to its
    /// predecessor.
    start: u64,
    child: Child,
    started: Instant,
    status: Option<(ExitStatus, Instant)>,
    /// Number of its two output streams that have not ended.
    streams_open: usize,
    last_lines: VecDeque<String>,
}

/// The processes and their output. Dropping it kills the processes that still run.
#[derive(Debug)]
pub struct Group {
    plan: Plan,
    key_file: Option<PathBuf>,
    members: Vec<Member>,
    starts: u64,
    sender: SyncSender<(u64, Reading)>,
    lines: Receiver<(u64, Reading)>,
    /// When lines were last left unread because too many wait to be printed.
    left_unread: Option<Instant>,
    /// The private folder, removed at the end.
    folder: PrivateFolder,
}

impl Group {
    /// Starts the plan's nodes.
    ///
    /// # Errors
    /// See [`GroupError`]; no process is left then.
    pub fn start(plan: &Plan) -> Result<Self, GroupError> {
        if !(1..=NODES_MAX).contains(&plan.nodes) {
            return Err(GroupError::Nodes(plan.nodes));
        }
        let (folder, key_file) = prepare_folder(plan).map_err(GroupError::Folder)?;
        let (sender, lines) = sync_channel(LINES_WAITING_MAX);
        let mut group = Self {
            plan: plan.clone(),
            key_file,
            members: Vec::new(),
            starts: 0,
            sender,
            lines,
            left_unread: None,
            folder,
        };
        for node in plan.first_id..plan.first_id + plan.nodes {
            group
                .add(node, plan.joins)
                .map_err(|source| GroupError::Start { node, source })?;
        }
        Ok(group)
    }

    /// Starts one more node, or a node that ran before and has ended. It joins the others, unless
    /// it takes the slot of one of the plan's nodes in a bootstrap that is still to come.
    ///
    /// # Errors
    /// The node is running, too many nodes are, or its process did not start. Nothing else changed.
    pub fn join(&mut self, node: usize, bootstrapped: bool) -> Result<(), GroupError> {
        let running = self.running_nodes();
        if running.contains(&node) || running.len() >= NODES_MAX {
            return Err(GroupError::Nodes(node));
        }
        self.members.retain(|member| member.node != node);
        let bootstraps =
            !bootstrapped && !self.plan.joins && node < self.plan.first_id + self.plan.nodes;
        self.add(node, !bootstraps)
            .map_err(|source| GroupError::Start { node, source })
    }

    /// Passes these variables to later starts of a node; they take precedence.
    pub fn tell(&mut self, node: usize, variables: Vec<(String, OsString)>) {
        self.plan.environments.insert(node, variables);
    }

    /// The lowest node id of the group.
    #[must_use]
    pub fn first_id(&self) -> usize {
        self.plan.first_id
    }

    /// Ids of the nodes whose processes run, in ascending order.
    #[must_use]
    pub fn running_nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = self
            .members
            .iter()
            .filter(|member| member.status.is_none())
            .map(|member| member.node)
            .collect();
        nodes.sort_unstable();
        nodes
    }

    /// Process id of a running node.
    #[must_use]
    pub fn process_id(&self, node: usize) -> Option<u32> {
        self.members
            .iter()
            .find(|member| member.node == node && member.status.is_none())
            .map(|member| member.child.id())
    }

    /// Time since a running node was started.
    #[must_use]
    pub fn age(&self, node: usize) -> Option<Duration> {
        self.members
            .iter()
            .find(|member| member.node == node && member.status.is_none())
            .map(|member| member.started.elapsed())
    }

    /// Sends a signal to a running node's process group; returns whether there was one.
    pub fn signal(&self, node: usize, signal: Signal) -> bool {
        let member = self
            .members
            .iter()
            .find(|member| member.node == node && member.status.is_none());
        send(member.map(|member| &member.child).into_iter(), signal);
        member.is_some()
    }

    /// Path of a node's admin socket.
    #[must_use]
    pub fn admin_socket(&self, node: usize) -> PathBuf {
        admin_socket(self.folder.path(), node)
    }

    /// What a node that has ended told of its end; `None` if it was no member of a run.
    #[must_use]
    pub fn last_report(&self, node: usize) -> Option<LastReport> {
        LastReport::read(&self.admin_socket(node))
    }

    /// The token that orders to the nodes' pages must carry, if they serve any.
    #[must_use]
    pub fn http_token(&self) -> Option<String> {
        let token = std::fs::read_to_string(self.folder.path().join(HTTP_TOKEN)).ok()?;
        Some(token.trim().to_owned())
    }

    /// The last lines that a node wrote to standard error, oldest first.
    #[must_use]
    pub fn last_lines(&self, node: usize) -> Vec<String> {
        let member = self.members.iter().find(|member| member.node == node);
        member
            .map(|member| member.last_lines.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Starts node `node` through [`super::become_node`].
    fn add(&mut self, node: usize, joins: bool) -> std::io::Result<()> {
        // An earlier start of the node may have left a report; there is none otherwise.
        _ = std::fs::remove_file(LastReport::path(&self.admin_socket(node)));
        let mut variables =
            self.plan
                .variables_of(node, self.folder.path(), self.key_file.as_deref());
        if joins {
            variables.push((JOIN.into(), "true".into()));
        }
        let plan = &self.plan;
        let this_program = std::env::current_exe()?;
        let mut command = match plan.host_of(node) {
            Some(host) => host.command(&this_program),
            None => Command::new(this_program),
        };
        for name in plan.hidden_variables(inherited_names()) {
            command.env_remove(name);
        }
        command
            .arg(START_NODE)
            .arg("--")
            .arg(&plan.program)
            .args(&plan.arguments)
            .envs(variables);
        // Each node has its own process group: Ctrl-C reaches the launcher only, which ends the
        // nodes in order.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn()?;
        let output = child.stdout.take();
        let error = child.stderr.take();
        self.starts += 1;
        let start = self.starts;
        self.members.push(Member {
            node,
            start,
            child,
            started: Instant::now(),
            status: None,
            streams_open: 2,
            last_lines: VecDeque::new(),
        });
        if let (Some(output), Some(error)) = (output, error) {
            forward((node, start), Stream::Output, output, self.sender.clone())?;
            forward((node, start), Stream::Error, error, self.sender.clone())?;
        }
        Ok(())
    }

    /// Returns the events so far, after a short wait for lines. The other nodes are notified at
    /// once of a node that ended.
    pub fn happenings(&mut self) -> Vec<Happening> {
        let mut happenings: Vec<Happening> = self.read().into_iter().map(Happening::Line).collect();
        let ended = self.reap();
        for (node, _) in &ended {
            for other in self.running_nodes() {
                tell_exited(&self.admin_socket(other), *node);
            }
        }
        happenings.extend(
            ended
                .into_iter()
                .map(|(node, status)| Happening::Ended { node, status }),
        );
        happenings
    }

    /// The events so far, like [`Group::happenings`].
    ///
    /// # Errors
    /// A signal was caught: the launch is to end.
    pub fn watch(&mut self) -> Result<Vec<Happening>, GroupError> {
        match signals::caught() {
            Some(signal) => Err(GroupError::Interrupted(signal)),
            None => Ok(self.happenings()),
        }
    }

    /// A running node's report of itself, if it answers.
    #[must_use]
    pub fn report(&self, node: usize) -> Option<Status> {
        jobs::report(node, &self.admin_socket(node))
    }

    /// Returns the lines written within [`POLL`]; none while too many wait to be printed.
    fn read(&mut self) -> Vec<Line> {
        if self.plan.unprinted.is_full() {
            std::thread::sleep(POLL);
            self.left_unread = Some(Instant::now());
            return Vec::new();
        }
        let until = Instant::now() + POLL;
        let mut lines = Vec::new();
        // The read is bounded: the processes must be polled even when the nodes write without a
        // pause.
        while lines.len() < LINES_WAITING_MAX
            && let Some(left) = until.checked_duration_since(Instant::now())
        {
            match self.lines.recv_timeout(left) {
                Ok((_, Reading::Line(line))) => {
                    self.keep(&line);
                    lines.push(line);
                }
                Ok((start, Reading::End)) => {
                    let member = self.members.iter_mut().find(|member| member.start == start);
                    member
                        .into_iter()
                        .for_each(|member| member.streams_open -= 1);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left),
            }
        }
        lines
    }

    /// Keeps a line that may say why its node failed. The error stands before its backtrace, whose
    /// frames would push it out.
    fn keep(&mut self, line: &Line) {
        if line.stream == Stream::Error && !line.is_of_a_backtrace() {
            let Some(member) = self
                .members
                .iter_mut()
                .find(|member| member.node == line.node)
            else {
                return;
            };
            let last_lines = &mut member.last_lines;
            if last_lines.len() == LAST_LINES_MAX {
                last_lines.pop_front();
            }
            last_lines.push_back(line.text.clone());
        }
    }

    /// Collects the nodes that have ended.
    fn reap(&mut self) -> Vec<(usize, ExitStatus)> {
        let mut ended = Vec::new();
        for member in self
            .members
            .iter_mut()
            .filter(|member| member.status.is_none())
        {
            if let Ok(Some(status)) = reap(&mut member.child) {
                member.status = Some((status, Instant::now()));
                ended.push((member.node, status));
            }
        }
        ended
    }

    /// Whether all processes have ended and their output has been read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_read = |ended: Instant| {
            let since = self.left_unread.map_or(ended, |unread| unread.max(ended));
            since.elapsed() >= OUTPUT_WAIT
        };
        self.members.iter().all(|member| {
            member
                .status
                .is_some_and(|(_, ended)| member.streams_open == 0 || is_read(ended))
        })
    }

    /// Ends every process (SIGTERM, after `grace` or a second signal of the user SIGKILL) and reads
    /// their remaining output. Returns the nodes that had to be killed.
    pub fn end(&mut self, grace: Duration, on_happening: &mut dyn FnMut(&Happening)) -> Vec<usize> {
        let mut ending = Ending::begin(self.running(), grace);
        let mut killed = Vec::new();
        while !self.is_over() {
            let running = self.running_nodes();
            if ending.insist(self.running()) {
                killed = running;
            }
            self.happenings().iter().for_each(&mut *on_happening);
            // The launch ends also if nobody reads its output.
            self.left_unread = None;
        }
        killed
    }

    fn running(&self) -> impl Iterator<Item = &Child> {
        self.members
            .iter()
            .filter(|member| member.status.is_none())
            .map(|member| &member.child)
    }

    /// Adds the last lines of a failed node, which are complete only after its end.
    fn with_last_lines(&self, mut reason: GroupError) -> GroupError {
        if let GroupError::Node(failure) = &mut reason {
            failure.last_lines = self.last_lines(failure.node);
        }
        reason
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        send(self.running(), Signal::SIGKILL);
        for member in self
            .members
            .iter_mut()
            .filter(|member| member.status.is_none())
        {
            let _gone = member.child.wait();
        }
    }
}

/// Creates a private folder, and in it a new cluster key unless the user supplied credentials.
fn prepare_folder(plan: &Plan) -> std::io::Result<(PrivateFolder, Option<PathBuf>)> {
    let folder = PrivateFolder::create()?;
    std::fs::create_dir(folder.path().join(RENDEZVOUS_FOLDER))?;
    if plan.page.is_some() {
        crate::keys::write_new(&folder.path().join(HTTP_TOKEN), &crate::keys::generate()?)?;
    }
    if let Some(file) = &plan.cluster_key_file {
        return Ok((folder, Some(std::path::absolute(file)?)));
    }
    if !plan.needs_cluster_key(inherited_names()) {
        return Ok((folder, None));
    }
    let file = folder.path().join("cluster.key");
    crate::keys::write_new(&file, &crate::keys::generate()?)?;
    Ok((folder, Some(file)))
}

/// Names of this process's environment variables.
fn inherited_names() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name)
}

fn describe(failure: &NodeFailure) -> String {
    let how = match (
        failure.status.code(),
        failure.status.signal().map(Signal::try_from),
    ) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(Ok(signal))) => format!("killed by {signal}"),
        _ => failure.status.to_string(),
    };
    let mut text = format!(
        "node {} failed ({how}); the other nodes were ended",
        failure.node
    );
    if failure.last_lines.is_empty() {
        text.push_str("; it wrote nothing to standard error");
    } else {
        text.push_str("; its last lines:");
        failure
            .last_lines
            .iter()
            .for_each(|line| text.push_str(&format!("\n    {line}")));
    }
    text
}

/// Path of the socket on which node `node` of a group listens for its launcher.
fn admin_socket(folder: &Path, node: usize) -> PathBuf {
    folder.join(format!("node-{node}.sock"))
}

/// Notifies a node that another node's process has ended. A node that is not up yet, or is ending
/// itself, need not know.
fn tell_exited(socket: &Path, node: usize) {
    let told = UnixStream::connect(socket).and_then(|mut stream| {
        stream.set_write_timeout(Some(TELL_MAX))?;
        let request = serde_json::to_string(&Request::Exited { node: node as u64 })
            .map_err(std::io::Error::other)?;
        writeln!(stream, "{request}")
    });
    let _not_up = told;
}
