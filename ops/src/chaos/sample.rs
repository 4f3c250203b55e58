//! Resources of a process: resident memory and open descriptors, as reported by the kernel under
//! `/proc`. Systems without `/proc` report nothing.

use slowmo_chaos::processes::measure::{DESCRIPTORS, MEMORY};
use slowmo_protocol::trace::{Event, Start};

/// Gauges of a process; none if it is gone or `/proc` does not exist.
pub(super) fn gauges(start: Start, process: u32) -> Vec<Event> {
    let gauge = |name: &str, (value, bound): (u64, u64)| Event::Gauge {
        start,
        name: name.to_owned(),
        value,
        bound,
    };
    let memory = resident_bytes(process).map(|used| gauge(MEMORY, used));
    let descriptors = descriptors(process).map(|open| gauge(DESCRIPTORS, open));
    memory.into_iter().chain(descriptors).collect()
}

/// Resident bytes of the process, and total memory of the machine in bytes.
fn resident_bytes(process: u32) -> Option<(u64, u64)> {
    let used = kilobytes(
        &std::fs::read_to_string(format!("/proc/{process}/status")).ok()?,
        "VmRSS:",
    )?;
    let all = kilobytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    Some((used << 10, all << 10))
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Open descriptors, and their limit.
fn descriptors(process: u32) -> Option<(u64, u64)> {
    let open = std::fs::read_dir(format!("/proc/{process}/fd"))
        .ok()?
        .count() as u64;
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).ok()?;
    let most = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?
        .split_whitespace()
        .next()?;
    Some((open, most.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use slowmo_protocol::ident::{Incarnation, NodeId};

    #[test]
    #[cfg(target_os = "linux")]
    fn this_very_process_has_memory_and_descriptors_within_their_bounds() {
        let start = Start {
            node: NodeId(1),
            incarnation: Incarnation(1),
        };
        let gauges = gauges(start, std::process::id());
        assert_eq!(gauges.len(), 2);
        for gauge in gauges {
            let Event::Gauge { value, bound, .. } = gauge else {
                continue;
            };
            assert!(value > 0 && value <= bound, "{value} of {bound}");
        }
    }

    #[test]
    fn a_process_that_is_gone_has_none() {
        assert_eq!(
            gauges(
                Start {
                    node: NodeId(1),
                    incarnation: Incarnation(1)
                },
                u32::MAX
            ),
            []
        );
    }
}
