//! A group of node processes from start to end.

use super::end::{Ending, reap, send};
use super::environment::Plan;
use super::lines::{LINES_WAITING_MAX, Line, Reading, Stream, forward};
use super::start::START_NODE;
use super::{NODES_MAX, signals};
use nix::sys::signal::Signal;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How often ended processes and caught signals are looked for.
const POLL: Duration = Duration::from_millis(20);
/// Last lines of standard error kept of each node, to be shown when it fails.
const LAST_LINES_MAX: usize = 20;
/// How long the output of an ended process is waited for; a process it left behind may hold it open.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);

/// What the reader of the lines wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// More lines.
    Continue,
    /// End all nodes.
    Stop,
}

/// A node that ended badly.
#[derive(Debug)]
pub struct NodeFailure {
    /// The node, from 1.
    pub node: usize,
    /// How it ended.
    pub status: ExitStatus,
    /// Its last lines of standard error, oldest first.
    pub last_lines: Vec<String>,
}

/// Why a group did not end well. None of its processes is left.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// More than the bound, or none.
    #[error("{0} nodes: one machine runs 1 to {NODES_MAX} node processes of a launch")]
    Nodes(usize),
    /// The private folder or the key file in it.
    #[error("cannot prepare the launch's temporary folder")]
    Folder(#[source] std::io::Error),
    /// A process did not start.
    #[error("cannot start node {node}")]
    Start {
        /// The node, from 1.
        node: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A node ended badly; the others were ended.
    #[error("{}", describe(.0))]
    Node(NodeFailure),
    /// The user, or somebody else, ended the launch.
    #[error("ended by {0}; all nodes were ended")]
    Interrupted(Signal),
    /// The plan's time was over.
    #[error("not done after {0:?}; all nodes were ended")]
    TooLong(Duration),
    /// The reader of the lines asked for it.
    #[error("stopped; all nodes were ended")]
    Stopped,
}

/// Runs the plan's processes until all have ended well, and hands every line they write to `on_line`.
///
/// Call it on the main thread: the nodes' lives are tied to the thread that started them. If one fails, the others
/// are ended (SIGTERM, after 3 s SIGKILL); the same on SIGINT, SIGTERM or SIGHUP if they are caught.
///
/// # Errors
/// See [`GroupError`]; in every case no process is left.
pub fn supervise(plan: &Plan, on_line: &mut dyn FnMut(&Line) -> Flow) -> Result<(), GroupError> {
    let mut group = Group::start(plan)?;
    let start = Instant::now();
    loop {
        let flow = group.read(on_line);
        let failure = group.reap();
        let reason = match (failure, signals::caught(), flow, plan.time_max.filter(|max| start.elapsed() >= *max)) {
            (Some((node, status)), ..) => Some(GroupError::Node(NodeFailure { node, status, last_lines: Vec::new() })),
            (_, Some(signal), ..) => Some(GroupError::Interrupted(signal)),
            (_, _, Flow::Stop, _) => Some(GroupError::Stopped),
            (_, _, _, Some(time_max)) => Some(GroupError::TooLong(time_max)),
            _ => None,
        };
        if let Some(reason) = reason {
            group.end(on_line);
            return Err(group.with_last_lines(reason));
        }
        if group.is_over() {
            return Ok(());
        }
    }
}

/// One node process.
#[derive(Debug)]
struct Member {
    node: usize,
    child: Child,
    status: Option<(ExitStatus, Instant)>,
    /// Of its two output streams, how many have not ended.
    streams_open: usize,
    last_lines: VecDeque<String>,
}

/// The processes, and what they write. Dropping it kills what still runs.
#[derive(Debug)]
struct Group {
    members: Vec<Member>,
    lines: Receiver<Reading>,
    /// Removed at the end.
    folder: tempfile::TempDir,
}

impl Group {
    fn start(plan: &Plan) -> Result<Self, GroupError> {
        if !(1..=NODES_MAX).contains(&plan.nodes) {
            return Err(GroupError::Nodes(plan.nodes));
        }
        let (folder, key_file) = prepare_folder(plan).map_err(GroupError::Folder)?;
        let (sender, lines) = sync_channel(LINES_WAITING_MAX);
        let mut group = Self { members: Vec::with_capacity(plan.nodes), lines, folder };
        for node in 1..=plan.nodes {
            let variables = plan.variables_of(node, group.folder.path(), key_file.as_deref());
            group.add(plan, node, variables, &sender).map_err(|source| GroupError::Start { node, source })?;
        }
        Ok(group)
    }

    /// Starts node `node` through [`super::become_node`].
    fn add(&mut self, plan: &Plan, node: usize, variables: Vec<(String, OsString)>, to: &SyncSender<Reading>) -> std::io::Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        for name in plan.hidden_variables(inherited_names()) {
            command.env_remove(name);
        }
        command.arg(START_NODE).arg("--").arg(&plan.program).args(&plan.arguments).envs(variables);
        // An own process group: Ctrl-C reaches the launcher only, which ends the nodes in order.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let (output, error) = (child.stdout.take(), child.stderr.take());
        self.members.push(Member { node, child, status: None, streams_open: 2, last_lines: VecDeque::new() });
        if let (Some(output), Some(error)) = (output, error) {
            forward(node, Stream::Output, output, to.clone())?;
            forward(node, Stream::Error, error, to.clone())?;
        }
        Ok(())
    }

    /// Hands on what was written within [`POLL`].
    fn read(&mut self, on_line: &mut dyn FnMut(&Line) -> Flow) -> Flow {
        let until = Instant::now() + POLL;
        // Also when the nodes write without a pause, somebody must look after the processes.
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match self.lines.recv_timeout(left) {
                Ok(Reading::Line(line)) => {
                    self.keep(&line);
                    if on_line(&line) == Flow::Stop {
                        return Flow::Stop;
                    }
                }
                Ok(Reading::End(node)) => self.members[node - 1].streams_open -= 1,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left),
            }
        }
        Flow::Continue
    }

    fn keep(&mut self, line: &Line) {
        if line.stream == Stream::Error {
            let last_lines = &mut self.members[line.node - 1].last_lines;
            if last_lines.len() == LAST_LINES_MAX {
                last_lines.pop_front();
            }
            last_lines.push_back(line.text.clone());
        }
    }

    /// Notes who has ended; returns the first that ended badly. A signal is the cause more often than an exit code.
    fn reap(&mut self) -> Option<(usize, ExitStatus)> {
        let mut failures = Vec::new();
        for member in self.members.iter_mut().filter(|member| member.status.is_none()) {
            if let Ok(Some(status)) = reap(&mut member.child) {
                member.status = Some((status, Instant::now()));
                if !status.success() {
                    failures.push((member.node, status));
                }
            }
        }
        failures.sort_by_key(|(node, status)| (status.signal().is_none(), *node));
        failures.first().copied()
    }

    /// Whether all have ended and their output was read.
    fn is_over(&self) -> bool {
        self.members.iter().all(|member| member.status.is_some_and(|(_, at)| member.streams_open == 0 || at.elapsed() >= OUTPUT_WAIT))
    }

    /// Ends every process and reads what they still write.
    fn end(&mut self, on_line: &mut dyn FnMut(&Line) -> Flow) {
        let mut ending = Ending::begin(self.running());
        while !self.is_over() {
            ending.insist(self.running());
            self.read(on_line);
            self.reap();
        }
    }

    fn running(&self) -> impl Iterator<Item = &Child> {
        self.members.iter().filter(|member| member.status.is_none()).map(|member| &member.child)
    }

    /// Adds what a failed node said last, which is complete only after the end.
    fn with_last_lines(&self, mut reason: GroupError) -> GroupError {
        if let GroupError::Node(failure) = &mut reason {
            failure.last_lines = self.members[failure.node - 1].last_lines.iter().cloned().collect();
        }
        reason
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        send(self.running(), Signal::SIGKILL);
        for member in self.members.iter_mut().filter(|member| member.status.is_none()) {
            let _gone = member.child.wait();
        }
    }
}

/// A private folder, and in it a new cluster key unless the user brought credentials.
fn prepare_folder(plan: &Plan) -> std::io::Result<(tempfile::TempDir, Option<PathBuf>)> {
    let folder = tempfile::Builder::new().prefix("slowmo-").tempdir()?;
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

/// Names of this process's variables.
fn inherited_names() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name)
}

fn describe(failure: &NodeFailure) -> String {
    let how = match (failure.status.code(), failure.status.signal().map(Signal::try_from)) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(Ok(signal))) => format!("killed by {signal}"),
        _ => failure.status.to_string(),
    };
    let mut text = format!("node {} failed ({how}); the other nodes were ended", failure.node);
    if failure.last_lines.is_empty() {
        text.push_str("; it wrote nothing to standard error");
    } else {
        text.push_str("; its last lines:");
        failure.last_lines.iter().for_each(|line| text.push_str(&format!("\n    {line}")));
    }
    text
}
