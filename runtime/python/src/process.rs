//! One runtime a process, and none after a fork: the runtime's threads do not exist in a child that
//! was forked, so that every wait there would be for ever.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// The process that started a runtime last, and whether that runtime still lives.
static STARTED: Mutex<Option<Started>> = Mutex::new(None);

struct Started {
    process: Process,
    alive: Weak<Claim>,
}

/// The reason why a call is refused in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// This process was forked from one that had started a runtime.
    #[error(
        "process {child} was forked from process {parent} after that one had started slowmo, whose \
         threads a fork does not copy: use slowmo in one of them only, and start other processes \
         with multiprocessing's \"spawn\" method (DataLoader: multiprocessing_context=\"spawn\") \
         if they need it"
    )]
    Forked {
        /// The process that started the runtime.
        parent: u32,
        /// This process.
        child: u32,
    },
    /// The process has a runtime.
    #[error(
        "this process has a runtime already, and a process is one node: use that one, or leave and \
         close it first (several devices: the key devices)"
    )]
    Second,
    /// The runtime was closed.
    #[error("this runtime was closed: build another one")]
    Closed,
    /// Another thread is in a call of this worker.
    #[error(
        "another thread is in a call of this worker: each worker belongs to one training thread"
    )]
    Busy,
}

/// The process in which a runtime was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

/// The claim of a process: held by its runtime until it is closed, and by each worker until it has
/// left.
#[derive(Debug)]
pub struct Claim;

impl Process {
    /// Claims this process for one runtime.
    ///
    /// # Errors
    /// It has one, or it was forked from one that has started one.
    pub fn claim() -> Result<(Self, Arc<Claim>), Refused> {
        let mut started = STARTED.lock();
        if let Some(Started { process, alive }) = &*started {
            process.check()?;
            if alive.strong_count() > 0 {
                return Err(Refused::Second);
            }
        }
        let process = Self(std::process::id());
        let claim = Arc::new(Claim);
        let alive = Arc::downgrade(&claim);
        *started = Some(Started { process, alive });
        Ok((process, claim))
    }

    /// Checks that this is still the process that started the runtime.
    ///
    /// # Errors
    /// It is a fork of it.
    pub fn check(self) -> Result<(), Refused> {
        let child = std::process::id();
        let parent = self.0;
        if parent == child {
            Ok(())
        } else {
            Err(Refused::Forked { parent, child })
        }
    }
}
