//! Entry points for tests: other networks, injected faults.

use super::{Runtime, RuntimeBuilder};
use crate::connection::{Connected, Network};
use crate::transport::faulty::{self, Faults};
use crate::transport::memory::MemoryHub;
use slowmo_actors::messages::Inspection;
use slowmo_actors::node_supervisor::NodeSupervisorMessage;
use slowmo_actors::ports::recorder::{Dumped, Later, QueueUse, Recorder};
use slowmo_actors::ports::transport::LocalPeer;
use slowmo_protocol::trace::Event;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

impl Runtime {
    /// The state of this node's coordinator: for tests. `None` if the node has stopped.
    #[must_use]
    pub fn inspect(&self) -> Option<Inspection> {
        self.node.inspect()
    }

    /// The fault injection of this node's network; `None` unless it was built
    /// [`RuntimeBuilder::faulty`].
    #[must_use]
    pub fn faults(&self) -> Option<&Faults> {
        self.faults.as_ref()
    }

    /// The head of what the HTTP endpoint answers to these bytes from an address, which are all
    /// that arrives on one connection: for tests. `None` without an endpoint. Called from a plain
    /// thread.
    #[must_use]
    pub fn answer_http(&self, from: IpAddr, bytes: &[u8]) -> Option<Vec<u8>> {
        self.node.answer_http(from, bytes)
    }
}

impl RuntimeBuilder {
    /// Uses a network other than QUIC.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = Some(network);
        self
    }

    /// Enables [`Runtime::faults`] to cut, delay and throttle what this node sends, to watch it,
    /// and to end the node at once: for tests.
    #[must_use]
    pub fn faulty(mut self) -> Self {
        self.faulty = true;
        self
    }
}

/// Puts the switches of faults between a node and its network, and stops its recorder at a crash.
pub(super) fn inject(
    connected: Connected,
    recorder: Arc<dyn Recorder>,
    silent_after: Duration,
) -> (Connected, Arc<dyn Recorder>, Faults) {
    let (transport, events, faults) =
        faulty::wrap(connected.transport, connected.events, silent_after);
    let recorder = Arc::new(UntilCrashed {
        inner: recorder,
        faults: faults.clone(),
    });
    let connected = Connected {
        transport,
        events,
        ..connected
    };
    (connected, recorder, faults)
}

/// Removes a node that crashes from its hub; callers that wait in it are told that it has stopped.
pub(super) async fn die(
    faults: Faults,
    seat: Option<(MemoryHub, LocalPeer)>,
    supervisor: ractor::ActorRef<NodeSupervisorMessage>,
) {
    faults.crashed().await;
    if let Some((hub, node)) = seat {
        hub.vanish(node);
    }
    // The supervisor may have stopped already.
    _ = supervisor.cast(NodeSupervisorMessage::Stop);
}

/// Stops recording a node once it was made to crash: a killed process writes nothing either.
struct UntilCrashed {
    /// The recorder until the crash.
    inner: Arc<dyn Recorder>,
    /// The faults that tell whether the node crashed.
    faults: Faults,
}

impl Recorder for UntilCrashed {
    fn is_on(&self) -> bool {
        self.inner.is_on()
    }

    fn is_brief(&self) -> bool {
        self.inner.is_brief()
    }

    fn record(&self, event: Event) {
        if !self.faults.has_crashed() {
            self.inner.record(event);
        }
    }

    fn record_later(&self, event: Later) {
        if !self.faults.has_crashed() {
            self.inner.record_later(event);
        }
    }

    fn queue(&self) -> Option<QueueUse> {
        self.inner.queue()
    }

    fn dump(&self, why: &str) -> Option<Dumped> {
        if self.faults.has_crashed() {
            None
        } else {
            self.inner.dump(why)
        }
    }

    fn flush(&self) {
        self.inner.flush();
    }
}
