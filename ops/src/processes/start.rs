//! The step between launcher and node: this same program, started as the child, ties its life to
//! the launcher's and then becomes the node's binary.
//!
//! The detour avoids `unsafe`: the work that a child must do before its binary runs is done in an
//! ordinary process.

use super::environment::LAUNCHER_PID;
use super::signals;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::Command;

/// Hidden subcommand under which the program must call [`become_node`] with the arguments that
/// follow it.
pub const START_NODE: &str = "start-node";

/// Reasons why a node's binary was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No binary was given.
    #[error("{START_NODE} is used by `slowmo launch` and needs a binary")]
    NoBinary,
    /// The launcher died before its node began.
    #[error("the launcher (process {0}) was gone before this node began")]
    LauncherGone(u32),
    /// The system cannot execute the binary.
    #[error("cannot start {}; check its path and that it is executable", program.display())]
    Refused {
        /// The binary.
        program: OsString,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Ties this process to its launcher and replaces it by `command`; returns only on failure.
///
/// # Errors
/// The launcher is gone, or the binary cannot be executed.
#[must_use]
pub fn become_node(command: &[OsString]) -> StartError {
    let Some((program, arguments)) = command.split_first() else {
        return StartError::NoBinary;
    };
    die_with_launcher();
    let launcher = std::env::var(LAUNCHER_PID)
        .ok()
        .and_then(|pid| pid.parse().ok());
    if let Some(launcher) = launcher.filter(|launcher| *launcher != parent_id()) {
        return StartError::LauncherGone(launcher);
    }
    signals::release();
    let source = Command::new(program).args(arguments).exec();
    StartError::Refused {
        program: program.clone(),
        source,
    }
}

/// Asks the kernel to kill this process when the launching thread ends. The setting is kept over
/// `exec`, so it also covers binaries that know nothing of [`slowmo::internal::launcher::watch`].
fn die_with_launcher() {
    #[cfg(target_os = "linux")]
    let _refused = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
}
