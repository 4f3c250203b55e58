//! Memory and descriptors of this process, from Linux; empty on other systems.

use std::fs;

/// The system's figures for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// Open descriptors.
    pub descriptors: Option<u64>,
}

impl Process {
    /// Reads the current figures.
    pub fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes =
            resident.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        let descriptors = fs::read_dir("/proc/self/fd")
            .ok()
            .map(|entries| entries.count() as u64);
        Self {
            resident_bytes: kibibytes.map(|kibibytes| kibibytes * 1024),
            descriptors,
        }
    }
}
