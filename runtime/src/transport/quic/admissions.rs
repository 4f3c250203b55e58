//! How many handshakes run at once, and who must first show that it receives at its address. No
//! I/O.

use super::rate::Prefix;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Bounds of the handshakes of one group of dialers.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Handshakes at once.
    at_once: usize,
    /// Handshakes at once from one prefix.
    of_one_prefix: usize,
    /// Handshakes at once above which a dialer must show that it receives at its address (Retry).
    unproven: usize,
}

/// Dialers whose packets are marked, or that dial from the address of a peer. All nodes of a
/// cluster may run on one machine.
const MEMBERS: Bounds = Bounds {
    at_once: 256,
    of_one_prefix: 256,
    unproven: 32,
};
/// All other dialers.
const STRANGERS: Bounds = Bounds {
    at_once: 128,
    of_one_prefix: 32,
    unproven: 8,
};
/// Largest number of handshakes at once.
pub(super) const HANDSHAKES_MAX: usize = MEMBERS.at_once + STRANGERS.at_once;

/// Counts the handshakes that run.
#[derive(Debug, Default)]
pub(super) struct Admissions {
    members: Arc<Group>,
    strangers: Arc<Group>,
}

#[derive(Debug, Default)]
struct Group(Mutex<Running>);

#[derive(Debug, Default)]
struct Running {
    all: usize,
    prefixes: HashMap<Prefix, usize>,
}

/// A dialer before its handshake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialer {
    pub address: SocketAddr,
    /// Its first packet is marked, or it dials from the address of a peer.
    pub is_member: bool,
    /// It has shown that it receives at its address.
    pub is_validated: bool,
}

/// The answer to a dialer.
#[derive(Debug)]
pub(super) enum Admission {
    /// Its handshake may run while the permit is held.
    Granted(Permit),
    /// It must first show that it receives at its address.
    Retry,
    /// Too many handshakes run.
    Full,
}

/// One handshake that runs.
#[derive(Debug)]
pub(super) struct Permit {
    group: Arc<Group>,
    prefix: Prefix,
}

impl Admissions {
    /// Decides on a dialer.
    pub(super) fn ask(&self, dialer: Dialer) -> Admission {
        let (group, bounds) = if dialer.is_member {
            (&self.members, MEMBERS)
        } else {
            (&self.strangers, STRANGERS)
        };
        let prefix = Prefix::of(dialer.address);
        let mut running = group.0.lock();
        if !dialer.is_validated && running.all >= bounds.unproven {
            return Admission::Retry;
        }
        let of_prefix = running.prefixes.get(&prefix).copied().unwrap_or(0);
        if running.all >= bounds.at_once || of_prefix >= bounds.of_one_prefix {
            return Admission::Full;
        }
        running.all += 1;
        running.prefixes.insert(prefix, of_prefix + 1);
        drop(running);
        Admission::Granted(Permit {
            group: group.clone(),
            prefix,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut running = self.group.0.lock();
        running.all -= 1;
        if let Some(count) = running.prefixes.get_mut(&self.prefix) {
            *count -= 1;
            if *count == 0 {
                running.prefixes.remove(&self.prefix);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialer(network: u8, is_member: bool, is_validated: bool) -> Dialer {
        Dialer {
            address: SocketAddr::from(([10, 0, network, 1], 9)),
            is_member,
            is_validated,
        }
    }

    /// Asks until no more is granted; returns the permits and the last answer.
    fn fill(admissions: &Admissions, dialer: Dialer) -> (Vec<Permit>, Admission) {
        let mut permits = Vec::new();
        loop {
            match admissions.ask(dialer) {
                Admission::Granted(permit) => permits.push(permit),
                other => return (permits, other),
            }
        }
    }

    #[test]
    fn strangers_must_prove_their_address_and_leave_room() {
        let admissions = Admissions::default();
        let (unproven, answer) = fill(&admissions, dialer(1, false, false));
        assert_eq!(unproven.len(), STRANGERS.unproven);
        assert!(matches!(answer, Admission::Retry));

        let (proven, answer) = fill(&admissions, dialer(1, false, true));
        assert_eq!(unproven.len() + proven.len(), STRANGERS.of_one_prefix);
        assert!(matches!(answer, Admission::Full));
        let (elsewhere, _) = fill(&admissions, dialer(2, false, true));
        assert_eq!(elsewhere.len(), STRANGERS.of_one_prefix);

        let (members, answer) = fill(&admissions, dialer(1, true, true));
        assert_eq!(members.len(), MEMBERS.at_once);
        assert!(matches!(answer, Admission::Full));
        assert!(matches!(
            admissions.ask(dialer(1, true, false)),
            Admission::Retry
        ));

        drop((unproven, proven, elsewhere, members));
        assert!(admissions.strangers.0.lock().prefixes.is_empty());
        assert!(matches!(
            admissions.ask(dialer(1, false, false)),
            Admission::Granted(_)
        ));
    }
}
