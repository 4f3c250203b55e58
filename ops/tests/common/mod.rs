//! Helpers of the tests with real processes.

use std::process::Child;
use std::time::{Duration, Instant};

/// Everything that a test waits for happens well before this.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of a node that trains a small model until it is drained.
pub const TRAINING: [&str; 2] = ["bench-node", r#"{"parameters":5000,"compute_ms":10}"#];

/// The launcher's process; it ends with the test, and its nodes with it.
pub struct Launcher(pub Child);

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ended = self.0.kill();
    }
}

/// Waits for the value that `look` returns; until then `look` returns the present state as an
/// error.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        let instead = match look() {
            Ok(reached) => return reached,
            Err(instead) => instead,
        };
        assert!(start.elapsed() < PATIENCE, "{what}: {instead}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until something holds.
#[allow(dead_code)] // not in every test binary
pub fn until_holds(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || holds().then_some(()).ok_or_else(String::new));
}

/// Waits until there is something.
#[allow(dead_code)] // not in every test binary
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    until(what, || look().ok_or_else(String::new))
}
