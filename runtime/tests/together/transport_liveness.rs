//! The liveness machine over real transports: a thin shell, saturated links, processes that end.

use crate::nodes::{self, Kind, Node, pattern};
use bytes::Bytes;
use slowmo::internal::transport::faulty::{self, Faults};
use slowmo::internal::transport::memory::MemoryHub;
use slowmo_actors::ports::transport::{Transport, TransportEvent};
use slowmo_protocol::ident::{ClusterId, Incarnation, NodeId};
use slowmo_protocol::liveness::{DownCause, Effect, In, Liveness, Settings};
use slowmo_protocol::machine::{Identity, Machine, Outbox};
use slowmo_protocol::time::{Instant, Span};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until, timeout};

const INCARNATION: Incarnation = Incarnation(1);
/// 10 Mbit/s.
const SLOW_LINK: u64 = 1_250_000;

type Down = (NodeId, NodeId, DownCause);

/// The part of a membership actor that serves the machine.
struct Shell {
    node: Node,
    machine: Liveness,
    begun: tokio::time::Instant,
    heard: BTreeMap<NodeId, u64>,
    downs: mpsc::UnboundedSender<Down>,
}

impl Shell {
    fn start(node: Node, members: &[NodeId], downs: mpsc::UnboundedSender<Down>) -> JoinHandle<()> {
        let identity = Identity {
            cluster: ClusterId(1),
            node: node.id,
            incarnation: INCARNATION,
        };
        let begun = tokio::time::Instant::now();
        let mut shell = Self {
            machine: Liveness::new(Settings::new(identity)),
            node,
            begun,
            heard: BTreeMap::new(),
            downs,
        };
        shell.feed(In::Members(
            members.iter().map(|id| (*id, INCARNATION)).collect(),
        ));
        tokio::spawn(async move { shell.run().await })
    }

    async fn run(&mut self) {
        loop {
            let due = self
                .machine
                .next_deadline()
                .map(|deadline| self.begun + Duration::from_micros(deadline.0));
            tokio::select! {
                biased;
                () = sleep_until(due.unwrap_or(self.begun)), if due.is_some() => {
                    self.poll();
                    self.feed(In::Tick);
                }
                event = self.node.events.recv() => match event {
                    Some(TransportEvent::Datagram { from, datagram, .. }) => {
                        let bytes = datagram.to_vec();
                        self.feed(In::Datagram { from, bytes })
                    }
                    Some(TransportEvent::PortRefused { node }) => {
                        self.poll();
                        self.feed(In::PortRefused(node));
                    }
                    Some(TransportEvent::Bulk { mut stream, .. }) => {
                        tokio::spawn(async move {
                            let mut into = vec![0; 1 << 16];
                            while stream.read_exact(&mut into).await.is_ok() {}
                        });
                    }
                    Some(_) => {}
                    None => return,
                },
            }
        }
    }

    fn poll(&mut self) {
        for node in self.machine.listens_to() {
            let heard = self.node.transport.heard(node);
            if self.heard.insert(node, heard) != Some(heard) {
                self.feed(In::Heard(node));
            }
            if let Some(took) = self.node.transport.round_trip(node) {
                self.feed(In::RoundTrip(node, Span(took.as_micros() as u64)));
            }
        }
    }

    fn feed(&mut self, event: In) {
        let mut out = Outbox::default();
        self.machine.handle(
            event,
            Instant(self.begun.elapsed().as_micros() as u64),
            &mut out,
        );
        for effect in out.take() {
            match effect {
                Effect::Datagram { to, bytes } => {
                    _ = self.node.transport.send_datagram(to, bytes.into());
                }
                Effect::PortProbe(node) => self.node.transport.port_probe(node),
                Effect::Down(node, _, cause) => {
                    self.downs.send((self.node.id, node, cause)).unwrap()
                }
                Effect::Up(..) => {}
            }
        }
    }
}

/// Keeps the way to a peer full.
fn saturate(transport: Arc<dyn Transport>, to: NodeId) -> JoinHandle<()> {
    tokio::spawn(async move {
        let chunk = pattern(1 << 20, 0);
        let Ok(mut sender) = transport.open_bulk(to, Bytes::new()).await else {
            return;
        };
        while sender.send(chunk.clone()).await.is_ok() {}
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_buried_alive_behind_a_saturated_slow_link() {
    let mut faults: Vec<Faults> = Vec::new();
    let mut nodes = Kind::Memory(MemoryHub::new(None)).cluster(4).await;
    for node in &mut nodes {
        let (_, unused) = mpsc::channel(1);
        let (transport, events, fault) = faulty::wrap(
            node.transport.clone(),
            std::mem::replace(&mut node.events, unused),
            nodes::PATIENCE,
        );
        node.transport = transport;
        node.events = events;
        fault.throttle(Some(SLOW_LINK));
        faults.push(fault);
    }
    let members: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
    let transports: Vec<_> = nodes.iter().map(|node| node.transport.clone()).collect();
    let (downs, mut told) = mpsc::unbounded_channel();
    let shells: Vec<_> = nodes
        .into_iter()
        .map(|node| Shell::start(node, &members, downs.clone()))
        .collect();
    let mut bulk = Vec::new();
    for (from, transport) in transports.iter().enumerate() {
        bulk.extend(
            members
                .iter()
                .filter(|to| to.0 != from as u64)
                .map(|to| saturate(transport.clone(), *to)),
        );
    }
    let mut waits = Vec::new();
    for _ in 0..40 {
        assert_eq!(
            timeout(Duration::from_millis(100), told.recv()).await.ok(),
            None,
            "nobody is down"
        );
        waits.extend(transports[0].round_trip(NodeId(1)));
    }
    waits.sort();
    println!(
        "the queue before the link: p50 {:?}, max {:?}",
        waits[20], waits[39]
    );
    assert!(
        waits[20] >= Duration::from_millis(80),
        "{waits:?}: the link is full"
    );
    bulk.into_iter().chain(shells).for_each(|task| task.abort());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_ends_without_a_word_is_found_at_once() {
    for kind in [Kind::Memory(MemoryHub::new(None)), Kind::Quic] {
        let nodes = kind.cluster(4).await;
        let members: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
        let (downs, mut told) = mpsc::unbounded_channel();
        let mut shells: Vec<_> = nodes
            .into_iter()
            .map(|node| Shell::start(node, &members, downs.clone()))
            .collect();
        sleep(Duration::from_millis(300)).await;
        // The shell owns its transport; the peers' machines here are told nothing of the
        // connections' ends.
        let victim = shells.remove(2);
        victim.abort();
        let begun = std::time::Instant::now();
        for _ in 0..3 {
            let (_, node, _) = timeout(Duration::from_secs(2), told.recv())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(node, NodeId(2));
        }
        let took = begun.elapsed();
        println!("all three others knew after {took:?}");
        assert!(took < Duration::from_millis(600), "{took:?}");
        shells.into_iter().for_each(|task| task.abort());
    }
}
