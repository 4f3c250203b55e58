//! Ending node processes: ask, wait, insist.

use super::signals;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// What a node has from SIGTERM to SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// The end of a group that is under way.
#[derive(Debug)]
pub(super) struct Ending {
    /// When SIGKILL follows.
    deadline: Instant,
    /// Signals caught before it began; one more asks for haste.
    signals_before: u32,
    killed: bool,
}

impl Ending {
    /// Sends SIGTERM to every process group of `children`; SIGKILL is due after [`GRACE`].
    pub(super) fn begin<'a>(children: impl Iterator<Item = &'a Child>) -> Self {
        send(children, Signal::SIGTERM);
        Self {
            deadline: Instant::now() + GRACE,
            signals_before: signals::count(),
            killed: false,
        }
    }

    /// Sends SIGKILL once the grace is over or the user asked a second time.
    pub(super) fn insist<'a>(&mut self, children: impl Iterator<Item = &'a Child>) {
        if !self.killed
            && (Instant::now() >= self.deadline || signals::count() > self.signals_before)
        {
            send(children, Signal::SIGKILL);
            self.killed = true;
        }
    }
}

/// The status of a child that has ended; before its id is given up, what it left running in its
/// group is killed.
pub(super) fn reap(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    // Elsewhere a child's end is seen only when its id is given up, too late to name its group.
    #[cfg(target_os = "linux")]
    if has_ended(child) {
        send(std::iter::once(&*child), Signal::SIGKILL);
    }
    child.try_wait()
}

/// Whether the child has ended, without giving up its id.
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

/// Signals each child's process group, so that what a node started ends with it.
///
/// The children are not reaped yet, so their ids still belong to them.
pub(super) fn send<'a>(children: impl Iterator<Item = &'a Child>, signal: Signal) {
    for child in children {
        if let Ok(id) = i32::try_from(child.id()) {
            // A group that already ended is what was wanted.
            let _ended = killpg(Pid::from_raw(id), signal);
        }
    }
}
