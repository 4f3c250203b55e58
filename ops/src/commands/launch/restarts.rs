//! Starts crashed nodes of a launch again (`--restart N`): each at most N times, after a pause that
//! doubles each time. A node that ended in an orderly way stays ended.

use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Most restarts of a node that may be asked for.
pub const RESTARTS_MAX: u16 = 1_000;
/// Pause before a node's first restart; it doubles with each further one.
pub const RESTART_WAIT_MIN: Duration = Duration::from_secs(1);
/// Longest pause before a restart.
pub const RESTART_WAIT_MAX: Duration = Duration::from_secs(60);
/// The number that a shell adds to that of the signal that ended a process.
const OF_SIGNAL: i32 = 128;

/// The restarts of a launch.
#[derive(Debug)]
pub struct Restarts {
    each: u16,
    /// Restarts so far, or planned, by node.
    numbers: BTreeMap<usize, u16>,
    due: BTreeMap<usize, Instant>,
}

/// A restart that is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its number, from 1.
    pub number: u16,
    /// Number of restarts that the node may have.
    pub each: u16,
    /// The pause before it.
    pub wait: Duration,
}

impl std::fmt::Display for Planned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, each, wait } = self;
        let seconds = wait.as_secs();
        write!(f, "in {seconds} s (restart {number} of {each})")
    }
}

impl Restarts {
    /// Each node may be started again this often.
    pub fn new(each: u16) -> Self {
        Self {
            each,
            numbers: BTreeMap::new(),
            due: BTreeMap::new(),
        }
    }

    /// Plans the restart of a node that crashed; `None` if it has had all of them.
    pub fn crashed(&mut self, node: usize, now: Instant) -> Option<Planned> {
        let number = self.numbers.entry(node).or_default();
        if *number >= self.each {
            return None;
        }
        *number += 1;
        let planned = Planned {
            number: *number,
            each: self.each,
            wait: wait_before(*number),
        };
        self.due.insert(node, now + planned.wait);
        Some(planned)
    }

    /// Nodes that wait to be started again, ascending.
    pub fn waiting(&self) -> Vec<usize> {
        self.due.keys().copied().collect()
    }

    /// Takes the nodes that are to be started now.
    pub fn take_due(&mut self, now: Instant) -> Vec<usize> {
        let due: Vec<usize> = self
            .due
            .iter()
            .filter(|(_, at)| now >= **at)
            .map(|(node, _)| *node)
            .collect();
        due.iter().for_each(|node| _ = self.due.remove(node));
        due
    }

    /// Gives up a planned restart; returns whether there was one.
    pub fn cancel(&mut self, node: usize) -> bool {
        self.due.remove(&node).is_some()
    }

    /// Restarts of all nodes, planned ones included.
    pub fn count(&self) -> u64 {
        self.numbers.values().map(|number| u64::from(*number)).sum()
    }
}

/// The pause before a node's restart of this number.
fn wait_before(number: u16) -> Duration {
    let doublings = u32::from(number.saturating_sub(1));
    let factor = 2u32.saturating_pow(doublings);
    RESTART_WAIT_MIN
        .saturating_mul(factor)
        .min(RESTART_WAIT_MAX)
}

/// Whether a node ended because it was done, drained, or asked to end by a signal, itself or behind
/// a shell.
pub fn is_orderly(status: ExitStatus) -> bool {
    let asked = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].map(|signal| signal as i32);
    let signal = status
        .signal()
        .or(status.code().map(|code| code - OF_SIGNAL));
    status.success() || signal.is_some_and(|signal| asked.contains(&signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_are_bounded() {
        let seconds: Vec<u64> = (1..=9)
            .map(|number| wait_before(number).as_secs())
            .collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(wait_before(RESTARTS_MAX), RESTART_WAIT_MAX);
    }

    #[test]
    fn each_node_has_its_own_restarts() {
        let mut restarts = Restarts::new(2);
        let now = Instant::now();
        let told = |planned: Option<Planned>| planned.map(|planned| planned.to_string());
        let first = told(restarts.crashed(3, now));
        assert_eq!(first.as_deref(), Some("in 1 s (restart 1 of 2)"));
        assert_eq!(restarts.take_due(now), [0; 0]);
        assert_eq!(restarts.take_due(now + RESTART_WAIT_MIN), [3]);
        let second = told(restarts.crashed(3, now));
        assert_eq!(second.as_deref(), Some("in 2 s (restart 2 of 2)"));
        assert!(restarts.crashed(5, now).is_some());
        assert_eq!(restarts.waiting(), [3, 5]);
        assert!(restarts.cancel(3) && !restarts.cancel(3));
        assert_eq!(restarts.crashed(3, now), None, "it has had both");
        assert_eq!(restarts.count(), 3);
        assert_eq!(Restarts::new(0).crashed(1, now), None);
    }

    #[test]
    fn who_was_asked_to_end_did_not_crash() {
        let code = |code: i32| ExitStatus::from_raw(code << 8);
        let signal = |signal: Signal| ExitStatus::from_raw(signal as i32);
        for status in [code(0), code(143), code(130), signal(Signal::SIGTERM)] {
            assert!(is_orderly(status), "{status}");
        }
        for status in [code(1), code(101), code(137), signal(Signal::SIGKILL)] {
            assert!(!is_orderly(status), "{status}");
        }
        assert!(!is_orderly(signal(Signal::SIGSEGV)));
    }
}
