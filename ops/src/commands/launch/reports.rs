//! What the running nodes of a launch say of themselves.

use slowmo::status::{MemberState, Status};
use slowmo_ops::jobs;
use slowmo_ops::processes::Group;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Time within which a node that was started answers on its admin socket.
const STARTS_WITHIN: Duration = Duration::from_secs(10);

/// Asks for the reason why the job's members decide no round, beside the launcher's loop: a stopped
/// node delays nobody. The answer is empty if none says so.
pub(super) fn members_wait(group: &Group) -> Receiver<String> {
    let sockets = sockets_of(group);
    let (told, answer) = sync_channel(1);
    std::thread::spawn(move || {
        // Members may have been told to leave by now.
        let mut members = reports_at(sockets).into_iter().filter(|(_, report)| {
            matches!(report.standing, MemberState::Member | MemberState::Leaving)
        });
        if let Some(why) = members.find_map(|(_, report)| report.waiting_for) {
            // The launch may have ended.
            _ = told.send(why);
        }
    });
    answer
}

/// The running nodes and their admin sockets, ascending by node.
pub(super) fn sockets_of(group: &Group) -> Vec<(usize, PathBuf)> {
    group
        .running_nodes()
        .into_iter()
        .map(|node| (node, group.admin_socket(node)))
        .collect()
}

/// The reports of the nodes, which are asked at the same time: stopped ones delay the answer once,
/// by two seconds. `None` for a node that does not answer.
pub(super) fn answers_at(sockets: Vec<(usize, PathBuf)>) -> Vec<(usize, Option<Status>)> {
    let asking: Vec<_> = sockets
        .into_iter()
        .map(|(node, socket)| {
            let report = std::thread::spawn(move || jobs::report(node, &socket));
            (node, report)
        })
        .collect();
    asking
        .into_iter()
        .map(|(node, report)| (node, report.join().ok().flatten()))
        .collect()
}

/// The reports of the nodes that answer.
pub(super) fn reports_at(sockets: Vec<(usize, PathBuf)>) -> Vec<(usize, Status)> {
    let answers = answers_at(sockets).into_iter();
    answers
        .filter_map(|(node, report)| Some((node, report?)))
        .collect()
}

/// Whether the job's model history has begun. A node that does not answer may already have one,
/// unless it started a moment ago.
pub(super) fn is_bootstrapped(group: &Group) -> bool {
    let waits = |node: &usize| match group.report(*node) {
        Some(report) => matches!(
            report.standing,
            MemberState::Bootstrapping | MemberState::Joining
        ),
        None => group.age(*node).is_some_and(|age| age < STARTS_WITHIN),
    };
    !group.running_nodes().iter().all(waits)
}

/// Whether all nodes that answer wait for the model history to begin, and some do.
pub(super) fn bootstraps(group: &Group) -> bool {
    let reports = reports_at(sockets_of(group));
    !reports.is_empty()
        && reports
            .iter()
            .all(|(_, report)| report.standing == MemberState::Bootstrapping)
}
