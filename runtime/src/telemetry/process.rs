//! Memory and descriptors of this process, as Linux tells them; nothing elsewhere.

use std::fs;

/// What the system says of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// Open descriptors.
    pub descriptors: Option<u64>,
}

impl Process {
    /// As it is now.
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
