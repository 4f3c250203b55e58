//! One runtime a process, and none after a fork: the runtime's threads do not exist in a child that
//! was forked, so that every wait there would be for ever.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// The process that started a runtime last, and whether that runtime still lives.
static STARTED: Mutex<Option<Started>> = Mutex::new(None);

struct Started {
    process: u32,
    alive: Weak<Process>,
}

/// The reason why a call is refused in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// This process was forked from one that had started a runtime.
    #[error(
        "process {child} was forked from process {parent} after that one had started slowmo, whose threads a fork does not copy: use slowmo in one of them only, and start other processes with multiprocessing's \"spawn\" method (DataLoader: multiprocessing_context=\"spawn\") if they need it"
    )]
    Forked {
        /// The process that started the runtime.
        parent: u32,
        /// This process.
        child: u32,
    },
    /// The process has a runtime.
    #[error(
        "this process has a runtime already, and a process is one node: use that one, or leave and close it first (several devices: the key devices)"
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

/// The process in which a runtime was started; held by it and by its workers.
#[derive(Debug)]
pub struct Process(u32);

impl Process {
    /// Claims this process for one runtime.
    ///
    /// # Errors
    /// It has one, or it was forked from one that has.
    pub fn claim() -> Result<Arc<Self>, Refused> {
        let child = std::process::id();
        let mut started = STARTED.lock();
        if let Some(Started { process, alive }) = &*started {
            let parent = *process;
            if parent != child {
                return Err(Refused::Forked { parent, child });
            }
            if alive.strong_count() > 0 {
                return Err(Refused::Second);
            }
        }
        let claimed = Arc::new(Self(child));
        *started = Some(Started {
            process: child,
            alive: Arc::downgrade(&claimed),
        });
        Ok(claimed)
    }

    /// Checks that this is still the process that started the runtime.
    ///
    /// # Errors
    /// It is a fork of it.
    pub fn check(&self) -> Result<(), Refused> {
        let child = std::process::id();
        let parent = self.0;
        if parent == child {
            Ok(())
        } else {
            Err(Refused::Forked { parent, child })
        }
    }
}
