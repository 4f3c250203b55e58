//! The node's side of a launch: it ends when its launcher is gone. Uses the standard library only.

use super::environment::LAUNCHER_PID;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::time::Duration;

/// How often a node looks whether its launcher still lives.
const WATCH_PERIOD: Duration = Duration::from_millis(200);

/// Ends this process with exit code 1 as soon as the launcher named by `SLOWMO_LAUNCHER_PID` is gone.
///
/// Does nothing without that variable. A process between launcher and node (a shell script) is allowed: the node also
/// ends when that one dies. Starts one thread, which lasts as long as the process.
pub fn watch_launcher() {
    let Some(launcher) = std::env::var(LAUNCHER_PID).ok().and_then(|pid| pid.parse::<u32>().ok()) else { return };
    let parent_at_start = parent_id();
    let watch = move || {
        while !launcher_is_gone(launcher, parent_at_start) {
            std::thread::sleep(WATCH_PERIOD);
        }
        eprintln!("the launcher (process {launcher}) is gone: this node ends too");
        std::process::exit(1);
    };
    // Without the thread the node still trains; it only outlives a launcher that was killed.
    let _unwatched = std::thread::Builder::new().name("watch-launcher".into()).spawn(watch);
}

fn launcher_is_gone(launcher: u32, parent_at_start: u32) -> bool {
    let parent = parent_id();
    if parent == launcher {
        return false;
    }
    parent != parent_at_start || (cfg!(target_os = "linux") && !PathBuf::from(format!("/proc/{launcher}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_that_changed_or_a_launcher_that_ended_is_noticed() {
        let parent = parent_id();
        assert!(!launcher_is_gone(parent, parent));
        assert!(!launcher_is_gone(std::process::id(), parent), "a process in between is allowed");
        assert!(launcher_is_gone(std::process::id(), parent + 1), "the parent changed");
        #[cfg(target_os = "linux")]
        assert!(launcher_is_gone(u32::MAX, parent), "the launcher was gone before this process looked");
    }
}
