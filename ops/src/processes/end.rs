//! Ending node processes: SIGTERM, a grace period, then SIGKILL.

use super::signals;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Time between SIGTERM and SIGKILL where the nodes' work is lost anyway: one of them failed, or
/// their time is over.
pub const GRACE: Duration = Duration::from_secs(3);

/// The shutdown of a group in progress.
#[derive(Debug)]
pub(super) struct Ending {
    /// Time at which SIGKILL follows.
    deadline: Instant,
    /// Signals that may have been caught; one more skips the grace period.
    signals_max: u32,
    killed: bool,
}

impl Ending {
    /// Sends SIGTERM to every process group of `children`; SIGKILL is due after `grace`.
    pub(super) fn begin<'a>(children: impl Iterator<Item = &'a Child>, grace: Duration) -> Self {
        send(children, Signal::SIGTERM);
        Self {
            deadline: Instant::now() + grace,
            // The first signal may be the reason. A second one that came before this counts.
            signals_max: signals::count().min(1),
            killed: false,
        }
    }

    /// Sends SIGKILL once the grace period is over or the user has sent a second signal; returns
    /// whether it did so now.
    pub(super) fn insist<'a>(&mut self, children: impl Iterator<Item = &'a Child>) -> bool {
        let is_due = !self.killed
            && (Instant::now() >= self.deadline || signals::count() > self.signals_max);
        if is_due {
            send(children, Signal::SIGKILL);
            self.killed = true;
        }
        is_due
    }
}

/// Returns the status of a child that has ended. Before the child's id is released, the processes
/// that it left running in its group are killed.
pub(super) fn reap(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    // On other systems a child's end is seen only when its id is released, too late to name its
    // group.
    #[cfg(target_os = "linux")]
    if has_ended(child) {
        send(std::iter::once(&*child), Signal::SIGKILL);
    }
    child.try_wait()
}

/// Whether the child has ended, determined without releasing its id.
#[cfg(target_os = "linux")]
fn has_ended(child: &Child) -> bool {
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let id = i32::try_from(child.id()).map(|id| Id::Pid(Pid::from_raw(id)));
    !matches!(
        id.map(|id| waitid(id, look)),
        Ok(Ok(WaitStatus::StillAlive))
    )
}

/// Signals each child's process group, so that processes started by a node end with it.
///
/// The children are not reaped yet, so their ids still belong to them.
pub(super) fn send<'a>(children: impl Iterator<Item = &'a Child>, signal: Signal) {
    for child in children {
        if let Ok(id) = i32::try_from(child.id()) {
            // An error means that the group has already ended, as wanted.
            let _ended = killpg(Pid::from_raw(id), signal);
        }
    }
}
