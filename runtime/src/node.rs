//! A running node: the executor, the actor tree, the transport and the collective. It lives as long
//! as the runtime or any worker's handle.

use crate::admin::Endpoint;
use crate::changes::SettingError;
use crate::checkpoints::Checkpoints;
use crate::error::WorkerError;
use crate::executor::Executor;
use crate::last_report::{Departure, Reporter};
use crate::marker::Marker;
use crate::orders::{ask_for_checkpoint, set};
use crate::status::{self, Status};
use crate::telemetry;
use crate::transport::quic;
use parking_lot::Mutex;
use ractor::ActorRef;
use slowmo_actors::buffers::Pool;
use slowmo_actors::context::{Actors, NodeContext, NodeSettings};
use slowmo_actors::node_supervisor::NodeSupervisorMessage;
use slowmo_actors::ports::device::{Collective, Device};
use slowmo_actors::ports::store::Store;
use slowmo_actors::ports::transport::{LocalPeer, Traffic};
use slowmo_actors::status::LOSS;
use slowmo_protocol::ident::{Lineage, NodeId, Step};
use slowmo_protocol::trace::{End, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time for a stopping node to deliver what it sent and to tell its peers: the transport's
/// own limit, and 200 ms for the executor to begin.
pub const CLOSE_WAIT_MAX: Duration = quic::CLOSE_MAX.saturating_add(Duration::from_millis(200));
/// Longest time for which a stopping node waits until its entry is removed from a rendezvous
/// folder; a network file system may hang.
const WITHDRAW_WAIT_MAX: Duration = Duration::from_millis(500);

/// One running node.
pub struct Node {
    context: Arc<NodeContext>,
    devices: Vec<Arc<dyn Device>>,
    checkpoints: Arc<Checkpoints>,
    marker: Marker,
    last_report: Arc<Reporter>,
    collective: Arc<dyn Collective>,
    supervisor: ActorRef<NodeSupervisorMessage>,
    executor: Mutex<Option<Executor>>,
    closed: AtomicBool,
    /// The admin endpoint; it is dropped, and its socket removed, with the node.
    _admin: Option<Endpoint>,
    http: Option<telemetry::Endpoint>,
}

impl Node {
    pub(crate) fn new(
        context: Arc<NodeContext>,
        (devices, collective): (Vec<Arc<dyn Device>>, Arc<dyn Collective>),
        checkpoints: Arc<Checkpoints>,
        supervisor: ActorRef<NodeSupervisorMessage>,
        executor: Executor,
    ) -> Self {
        let executor = Mutex::new(Some(executor));
        let closed = AtomicBool::new(false);
        Self {
            context,
            devices,
            checkpoints,
            collective,
            supervisor,
            executor,
            closed,
            marker: Marker::default(),
            last_report: Arc::default(),
            _admin: None,
            http: None,
        }
    }

    /// Keeps the endpoints for the lifetime of the node.
    pub(crate) fn with_admin(
        mut self,
        admin: Option<Endpoint>,
        http: Option<telemetry::Endpoint>,
    ) -> Self {
        self._admin = admin;
        self.http = http;
        self
    }

    /// Adds the marker, which is created when the node becomes a member.
    pub(crate) fn with_marker(mut self, marker: Marker) -> Self {
        self.marker = marker;
        self
    }

    /// Adds the last report. It is made when the node becomes a member, and renewed with every part
    /// of a checkpoint, since a killed node makes none at its end, and when the node ends.
    pub(crate) fn with_last_report(mut self, last_report: Reporter) -> Self {
        self.last_report = Arc::new(last_report);
        let reporter = Arc::clone(&self.last_report);
        // The context owns the checkpoints.
        let context = Arc::downgrade(&self.context);
        self.checkpoints.after_each_part(move || {
            if let Some(context) = context.upgrade() {
                reporter.renew(|| status::status(&context));
            }
        });
        self
    }

    /// Records that the node has become a member of the run of this name.
    pub(crate) fn joined(&self, run: Lineage) {
        self.marker.make(&run.to_string());
        self.last_report.write(None, || self.status());
    }

    /// Records that the training has ended because the node was asked to leave.
    pub(crate) fn drained(&self) {
        let left = Some(Departure::Drained);
        self.last_report.write(left, || self.status());
    }

    /// The store of the node's checkpoints.
    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Waits until the last part of a checkpoint is written, on any executor; with `held`, also
    /// the one that is written only at the end.
    pub(crate) async fn end_checkpoints(&self, held: bool) {
        if !self.checkpoints.writes() {
            return;
        }
        let checkpoints = Arc::clone(&self.checkpoints);
        let flushing = {
            let executor = self.executor.lock();
            let Some(executor) = executor.as_ref() else {
                return;
            };
            executor
                .handle()
                .spawn_blocking(move || checkpoints.end(held))
        };
        // If this fails the executor is ending: nobody waits any more.
        _ = flushing.await;
    }

    /// The address of the HTTP endpoint.
    pub(crate) fn http_address(&self) -> Option<std::net::SocketAddr> {
        self.http.as_ref().map(telemetry::Endpoint::address)
    }

    /// Records how long the training thread waited for other nodes.
    pub(crate) fn waited(&self, exchange: &'static str, since: std::time::Instant) {
        self.context
            .metrics
            .waited(exchange, since.elapsed().as_secs_f64());
    }

    /// Whether a recorder keeps this node's events.
    pub(crate) fn is_recorded(&self) -> bool {
        self.context.recorder.is_on()
    }

    /// Records the loss that the training reports.
    pub(crate) fn report_loss(&self, step: Step, loss: f64) {
        self.context.status.measure(LOSS, step, loss);
        if self.is_recorded() {
            self.context.recorder.record(Event::Loss {
                start: self.context.start(),
                step,
                loss,
            });
        }
    }

    /// Records a measure of the training's own; returns whether it was accepted.
    pub(crate) fn report(&self, step: Step, name: &str, value: f64) -> bool {
        self.context.status.measure(name, step, value)
    }

    /// Records that the node left in order.
    pub(crate) fn left(&self) {
        self.marker.remove();
        self.context.record_end(End::Left);
        let left = Some(Departure::Finished);
        self.last_report.write(left, || self.status());
    }

    pub(crate) fn drain(&self) {
        self.context
            .actors
            .tell(slowmo_protocol::membership::In::Drain);
    }

    pub(crate) fn ask_for_checkpoint(&self) -> Result<(), WorkerError> {
        ask_for_checkpoint(&self.context)
    }

    pub(crate) fn set(&self, key: &str, value: &str) -> Result<(), SettingError> {
        set(&self.context, key, value)
    }

    /// Shows the inner step that its training begins.
    pub(crate) fn trains(&self, step: Step) {
        self.context.status.trains(step, self.context.clock.now());
    }

    /// Shows something that went wrong on this node, in its log and its status.
    pub(crate) fn show(&self, what: String) {
        tracing::error!("{what}");
        self.context.status.event(what);
    }

    /// Shows something unusual that does no harm, in the node's log and its status.
    pub(crate) fn warn(&self, what: String) {
        tracing::warn!("{what}");
        self.context.status.event(what);
    }

    pub(crate) fn status(&self) -> Status {
        status::status(&self.context)
    }

    /// Waits for the coordinator's answer, from a plain thread.
    #[cfg(feature = "testing")]
    pub(crate) fn inspect(&self) -> Option<slowmo_actors::messages::Inspection> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let inspect = slowmo_actors::messages::CoordinatorMessage::Inspect(reply);
        self.context.actors.tell_coordinator(inspect);
        crate::worker::block_on(answer).ok()
    }

    /// Returns the answer of the HTTP endpoint to bytes that arrive, from a plain thread.
    #[cfg(feature = "testing")]
    pub(crate) fn answer_http(&self, from: std::net::IpAddr, bytes: &[u8]) -> Option<Vec<u8>> {
        let endpoint = self.http.as_ref()?;
        let handle = self.executor.lock().as_ref()?.handle().clone();
        Some(handle.block_on(endpoint.answer_to(from, bytes)))
    }

    pub(crate) fn id(&self) -> NodeId {
        self.context.settings.identity.node
    }

    pub(crate) fn settings(&self) -> &NodeSettings {
        &self.context.settings
    }

    pub(crate) fn workers(&self) -> usize {
        self.context.settings.workers
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.context.pool
    }

    /// The device of a worker.
    pub(crate) fn device(&self, worker: usize) -> &dyn Device {
        // Workers are numbered from 0 and each has a device.
        &*self.devices[worker]
    }

    pub(crate) fn collective(&self) -> &dyn Collective {
        &*self.collective
    }

    pub(crate) fn local(&self) -> LocalPeer {
        self.context.transport.local()
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.context.transport.traffic()
    }

    /// The actors that take the workers' messages. If the node has stopped, a message and the reply
    /// channel in it are dropped, which the sender notices.
    pub(crate) fn actors(&self) -> &Actors {
        &self.context.actors
    }

    /// Closes the connections after all sent data has arrived. Works on any executor: the node's
    /// own executor does the work.
    pub(crate) async fn close_async(&self) {
        let (done, closed) = tokio::sync::oneshot::channel();
        // Nobody may be waiting any more, or the node is already closed: both are fine.
        if self.begin_close(move || _ = done.send(())) {
            _ = closed.await;
        }
    }

    /// [`Node::close_async`] from a plain thread, bounded by [`CLOSE_WAIT_MAX`].
    pub(crate) fn close(&self) {
        let (done, closed) = std::sync::mpsc::channel();
        // After the bound nobody waits any more.
        let began = self.begin_close(move || _ = done.send(()));
        if began && closed.recv_timeout(CLOSE_WAIT_MAX).is_err() {
            tracing::warn!("peers were not told in time that this node stops");
        }
    }

    /// Starts closing on the node's executor; `false` if closing was started before.
    fn begin_close(&self, done: impl FnOnce() + Send + 'static) -> bool {
        let executor = self.executor.lock();
        let Some(executor) = executor.as_ref() else {
            return false;
        };
        if self.closed.swap(true, Ordering::Relaxed) {
            return false;
        }
        let context = Arc::clone(&self.context);
        executor.handle().spawn(async move {
            // Both run together: no node should dial a stopping node, and a hanging folder should
            // not keep it from telling its peers.
            tokio::join!(withdraw(&context), context.transport.close());
            done();
        });
        true
    }
}

/// Removes this node's address from the rendezvous folder, if there is one.
async fn withdraw(context: &NodeContext) {
    let withdrawing = context.discovery.withdraw(
        context.settings.identity.node,
        context.transport.local().announced,
    );
    match tokio::time::timeout(WITHDRAW_WAIT_MAX, withdrawing).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "this node's address stays announced"),
        Err(_) => tracing::warn!(
            "the rendezvous folder does not answer: this node's address stays announced"
        ),
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A node that left in order has already recorded its end.
        self.context.record_end(End::Failed);
        self.last_report.renew(|| self.status());
        self.close();
        // A supervisor that has already stopped needs no message.
        _ = self.supervisor.cast(NodeSupervisorMessage::Stop);
        if let Some(executor) = self.executor.lock().take() {
            drop(executor);
        }
        if self.is_recorded() {
            self.context.recorder.flush();
        }
    }
}
