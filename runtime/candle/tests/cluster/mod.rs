//! Nodes of a cluster in memory, and the digits as candle's tensors.
#![allow(dead_code, clippy::unwrap_used)] // Each test uses a part.

use candle_core::{Device, Tensor};
use slowmo::internal::Network;
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Runtime};
use slowmo_examples::digits::{Batch, PIXELS};
use std::net::SocketAddr;
use std::thread;

/// The most nodes of a cluster.
const NODES_MAX: u64 = 8;

/// A cluster in memory.
pub struct Cluster {
    hub: MemoryHub,
    config: Config,
}

impl Cluster {
    /// A cluster whose nodes have this configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            hub: MemoryHub::new(None),
            config: config.clone(),
        }
    }

    /// Starts the node of this id, which knows all others; ids count from 1.
    pub fn start(&self, id: u64) -> Runtime {
        let address = |id: u64| SocketAddr::from(([127, 0, 0, 1], 44_000 + id as u16));
        let network = Network {
            hub: self.hub.clone(),
            address: address(id),
            peers: (1..=NODES_MAX)
                .filter(|peer| *peer != id)
                .map(address)
                .collect(),
        };
        let config = Config {
            node_id: Some(id),
            runtime_threads: Some(1),
            ..self.config.clone()
        };
        Runtime::builder()
            .config(config)
            .network(network)
            .spawn()
            .unwrap()
    }

    /// Starts the nodes 1 to `count`, which bootstrap together, and runs `train` on a thread of
    /// each. The results are in the order of the ids.
    pub fn run<T: Send + 'static>(
        config: &Config,
        count: u64,
        train: impl Fn(&Runtime) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let cluster = Self::new(&Config {
            min_nodes: count as usize,
            ..config.clone()
        });
        let threads: Vec<_> = (1..=count)
            .map(|id| {
                let node = cluster.start(id);
                let train = train.clone();
                thread::spawn(move || train(&node))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    }
}

/// Pixels `[n, 64]` float32 and labels `[n]` u32.
pub fn tensors(batch: &Batch) -> (Tensor, Tensor) {
    let count = batch.labels.len();
    let labels: Vec<u32> = batch.labels.iter().copied().map(u32::from).collect();
    let pixels = Tensor::from_slice(&batch.pixels, (count, PIXELS), &Device::Cpu).unwrap();
    (
        pixels,
        Tensor::from_vec(labels, count, &Device::Cpu).unwrap(),
    )
}
