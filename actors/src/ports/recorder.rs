//! Where a node writes down what it does, in the vocabulary of `slowmo_protocol::trace`, so that
//! somebody else may judge it.

use slowmo_protocol::trace::Event;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;

/// An event that takes work to make (digests of a model), which is none of the actors'.
pub struct Later {
    /// Bytes that it keeps alive until it is made.
    pub bytes: usize,
    /// Makes it.
    pub make: Box<dyn FnOnce() -> Event + Send>,
}

/// How full a recorder's queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueUse {
    /// Events that wait.
    pub waiting: usize,
    /// Most events that may.
    pub bound: usize,
}

/// What became of a dump, once it is there: the file, or what the disk said.
pub type Dumped = Receiver<Result<PathBuf, String>>;

/// Keeps events. No call may wait, neither for a disk nor for anybody else: training goes on
/// whatever becomes of its record.
pub trait Recorder: Send + Sync + 'static {
    /// Whether events are kept at all. Where they are not, nobody takes the trouble to make them.
    fn is_on(&self) -> bool;

    /// Whether digests of models are to be of a sample of their values only: so many rounds are
    /// recorded that whole ones would cost too much.
    fn is_brief(&self) -> bool {
        false
    }

    /// Keeps an event that happens now.
    fn record(&self, event: Event);

    /// Keeps an event that happens now, in order with the others, and makes it later.
    fn record_later(&self, event: Later) {
        self.record((event.make)());
    }

    /// Waits, within a bound, until what was recorded is kept for good. For a node that ends.
    fn flush(&self) {}

    /// Writes down what happened last, if it keeps that for the case that something goes wrong;
    /// nothing where it does not. `why` is for a person. Who wants to know what became of it waits
    /// for the answer.
    fn dump(&self, _why: &str) -> Option<Dumped> {
        None
    }

    /// How full its queue is, if it has one.
    fn queue(&self) -> Option<QueueUse> {
        None
    }
}

/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecorder;

impl Recorder for NoRecorder {
    fn is_on(&self) -> bool {
        false
    }

    fn record(&self, _: Event) {}
}
