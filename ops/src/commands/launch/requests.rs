//! Carries out the requests of other commands: status, scale, drain, kill, and orders to the cluster.

use super::Job;
use super::reports::{answers_at, is_bootstrapped, reports_at, sockets_of};
use nix::sys::signal::Signal;
use slowmo::internal::admin;
use slowmo::status::MemberState;
use slowmo_ops::jobs::{self, Answer, Asked, Request};
use slowmo_ops::processes::{Group, NODES_MAX};

/// Carries out a request of another command.
pub(super) fn answer(job: &mut Job, asked: Asked) {
    let done = match asked.request {
        Request::Status => return tell_status(&job.name, &job.group, asked),
        Request::Count => Ok(Answer::Count {
            nodes: staying(job).len() + job.restarts.waiting().len(),
        }),
        Request::Token => Ok(Answer::Token {
            token: job.group.http_token(),
        }),
        Request::Scale { nodes } => scale(job, nodes),
        // A node that waits to be started again stays away.
        Request::Drain { node } if job.cancel_restarts(&[node]) => Ok(changed(&[], &[node], &[])),
        Request::Kill { node } if job.cancel_restarts(&[node]) => Ok(changed(&[], &[], &[node])),
        Request::Checkpoint => order(job, &admin::Request::Checkpoint),
        Request::Set { ref key, ref value } => {
            let key = key.clone();
            let value = value.clone();
            order(job, &admin::Request::Set { key, value })
        }
        Request::Recover { ref history } => recover(&job.group, history.clone()),
        Request::Drain { node } => drain(job, node).map(|()| changed(&[], &[node], &[])),
        Request::Kill { node } if job.group.signal(node, Signal::SIGKILL) => {
            Ok(changed(&[], &[], &[node]))
        }
        Request::Kill { node } => Err(no_such(&job.group, node)),
    };
    asked.answer(done.unwrap_or_else(|error| Answer::Refused { error }));
}

/// Queries all nodes concurrently, outside the launcher's loop: a stopped node delays nobody else.
fn tell_status(job: &str, group: &Group, asked: Asked) {
    let sockets = sockets_of(group);
    let job = job.to_owned();
    std::thread::spawn(move || {
        let nodes = answers_at(sockets);
        asked.answer(Answer::Status { job, nodes });
    });
}

/// Running nodes that were not told to leave, ascending.
fn staying(job: &Job) -> Vec<usize> {
    let mut nodes = job.group.running_nodes();
    nodes.retain(|node| !job.leaving.contains(node));
    nodes
}

fn drain(job: &mut Job, node: usize) -> Result<(), String> {
    if !job.group.running_nodes().contains(&node) {
        return Err(no_such(&job.group, node));
    }
    jobs::ask(node, &job.group.admin_socket(node), admin::Request::Drain)
        .map_err(|error| error.to_string())?;
    job.leaving.insert(node);
    Ok(())
}

/// Starts the lowest free ids, or drains the highest running ones. Nodes that are already leaving
/// do not count, nor do nodes that wait to be started again: they start now, or stay away.
fn scale(job: &mut Job, nodes: usize) -> Result<Answer, String> {
    if !(1..=NODES_MAX).contains(&nodes) {
        return Err(format!(
            "{nodes} nodes: one machine runs 1 to {NODES_MAX} node processes of a launch; drain \
             the last one to end the job"
        ));
    }
    fits(job, nodes)?;
    job.cancel_restarts(&job.restarts.waiting());
    let running = job.group.running_nodes();
    let stay = staying(job);
    let mut joined = Vec::new();
    let mut drained = Vec::new();
    let partly = |error: String, done: &[usize], what| {
        if done.is_empty() {
            error
        } else {
            format!("{error}; before that {what} {done:?}")
        }
    };
    let bootstrapped = stay.len() >= nodes || is_bootstrapped(&job.group);
    let mut id = job.group.first_id();
    while stay.len() + joined.len() < nodes {
        if !running.contains(&id) {
            job.group
                .join(id, bootstrapped)
                .map_err(|error| partly(error.to_string(), &joined, "started"))?;
            joined.push(id);
        }
        id += 1;
    }
    for node in stay.iter().rev().take(stay.len().saturating_sub(nodes)) {
        drain(job, *node).map_err(|error| partly(error, &drained, "told to drain"))?;
        drained.push(*node);
    }
    Ok(changed(&joined, &drained, &[]))
}

/// Refuses more nodes than the cluster may have (`max_nodes`), as a node of the job reports it.
/// Members that other launches started count too.
fn fits(job: &Job, nodes: usize) -> Result<(), String> {
    let running = job.group.running_nodes();
    if nodes <= staying(job).len() {
        return Ok(());
    }
    let mut reports = running.iter().filter_map(|node| job.group.report(*node));
    // A node of another version may not tell its `max_nodes`.
    let Some(report) = reports.find(|report| report.max_nodes > 0) else {
        return Ok(());
    };
    let is_own = |node: u64| running.iter().any(|own| *own as u64 == node);
    let members = report.members.iter();
    let others = members
        .filter(|member| member.alive && !is_own(member.node))
        .count();
    let max_nodes = report.max_nodes;
    if nodes + others <= max_nodes {
        return Ok(());
    }
    let beside = match others {
        0 => String::new(),
        others => format!(", of which {others} are not of this job"),
    };
    Err(format!(
        "{nodes} nodes: the cluster may have max_nodes = {max_nodes} members{beside}; nothing was \
         changed"
    ))
}

/// Gives an order to one of the nodes that stay; it tells the others.
fn order(job: &Job, order: &admin::Request) -> Result<Answer, String> {
    let mut last = "no node runs that is not leaving".to_owned();
    for node in staying(job) {
        let socket = job.group.admin_socket(node);
        match jobs::ask(node, &socket, order.clone()) {
            Ok(admin::Answer::Refused { error }) => last = error,
            Ok(_) => return Ok(changed(&[], &[], &[])),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

/// Asks the member that is furthest ahead which history continues without a quorum, or lets it
/// continue: what only the other nodes know would be lost.
fn recover(group: &Group, history: Option<String>) -> Result<Answer, String> {
    let members = reports_at(sockets_of(group))
        .into_iter()
        .filter(|(_, report)| report.standing != MemberState::Joining);
    let Some((node, _)) = members.max_by_key(|(_, report)| report.round) else {
        return Err("no member of this job answers".to_owned());
    };
    let request = admin::Request::Recover { history };
    match jobs::ask(node, &group.admin_socket(node), request).map_err(|error| error.to_string())? {
        admin::Answer::Recovers(report) => Ok(Answer::Recovers { node, report }),
        _ => Err(format!("node {node} is of another version")),
    }
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
