//! Ends this process when the launcher that started it is gone, so that no training process is ever left behind.

use std::io::Write;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

/// Names the launcher's process id in the environment of the processes it starts.
pub const LAUNCHER_VARIABLE: &str = "SLOWMO_LAUNCHER_PID";
/// How often the launcher is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The exit code of a process whose launcher is gone.
const ORPHANED: i32 = 86;

/// Watches the launcher that [`LAUNCHER_VARIABLE`] names, if any: when it is gone, this process ends with exit code 86. A
/// process between launcher and node (a shell script) is allowed; the node also ends when that one dies. Every
/// [`crate::Runtime`] calls it; calling it again does nothing. Starts one thread.
pub fn watch() {
    static WATCHING: Once = Once::new();
    let Some(launcher) = std::env::var(LAUNCHER_VARIABLE).ok().and_then(|text| text.parse::<u32>().ok()) else { return };
    WATCHING.call_once(|| {
        let parent_at_start = parent_id();
        let watching = std::thread::Builder::new().name("slowmo-launcher".to_owned()).spawn(move || {
            while !launcher_is_gone(launcher, parent_at_start) {
                std::thread::sleep(LOOK_INTERVAL);
            }
            // Standard error may be a broken pipe by now: nothing may stop the exit.
            _ = writeln!(std::io::stderr(), "the launcher (process {launcher}) is gone: this process ends");
            std::process::exit(ORPHANED);
        });
        // Without the thread the node still trains; it only outlives a launcher that was killed.
        if let Err(error) = watching {
            tracing::warn!(%error, "the launcher is not watched");
        }
    });
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
