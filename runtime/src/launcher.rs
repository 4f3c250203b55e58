//! Ends this process when the launcher that started it is gone, so that no training process is ever left behind.

use std::sync::Once;
use std::time::Duration;

/// Names the launcher's process id in the environment of the processes it starts.
pub const LAUNCHER_VARIABLE: &str = "SLOWMO_LAUNCHER_PID";
/// How often the parent is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The exit code of a process whose launcher is gone.
const ORPHANED: i32 = 86;

/// Watches the launcher, if this process has one. Calling it again does nothing.
pub fn watch() {
    static WATCHING: Once = Once::new();
    let Some(launcher) = std::env::var(LAUNCHER_VARIABLE).ok().and_then(|text| text.parse::<u32>().ok()) else { return };
    WATCHING.call_once(|| {
        let watching = std::thread::Builder::new().name("slowmo-launcher".to_owned()).spawn(move || {
            while std::os::unix::process::parent_id() == launcher {
                std::thread::sleep(LOOK_INTERVAL);
            }
            tracing::error!(launcher, "the launcher is gone: this process ends");
            std::process::exit(ORPHANED);
        });
        if let Err(error) = watching {
            tracing::warn!(%error, "the launcher is not watched");
        }
    });
}
