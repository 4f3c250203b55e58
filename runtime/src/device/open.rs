//! Opens the devices of a node as its configuration says.

use super::cpu::SharedMemory;
use super::host::HostDevice;
use crate::config::{Config, DeviceName};
use slowmo_actors::buffers::Pool;
use slowmo_actors::ports::device::{Collective, Device};
use std::sync::Arc;

/// The reason why a node's devices cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The program was built without CUDA.
    #[error(
        "device = cuda, but this program was built without CUDA: build it with slowmo's feature \
         cuda, or set device = cpu"
    )]
    NotBuilt,
    /// An error of a GPU or of one of CUDA's libraries.
    #[cfg(feature = "cuda")]
    #[error("device = cuda: {0}")]
    Gpu(slowmo_cuda::GpuError),
}

#[cfg(feature = "cuda")]
impl From<slowmo_cuda::GpuError> for DeviceError {
    fn from(error: slowmo_cuda::GpuError) -> Self {
        Self::Gpu(error)
    }
}

/// One device for each worker, the collective of the workers, and the memory for the node's
/// buffers.
pub(crate) struct Devices {
    pub each: Vec<Arc<dyn Device>>,
    pub collective: Arc<dyn Collective>,
    pub pool: Arc<Pool>,
    /// A readable name of each device.
    pub names: Vec<String>,
}

/// Opens the node's devices. With GPUs this takes as long as compiling the kernels and, with
/// several GPUs, as joining them to one group.
pub(crate) fn open(config: &Config) -> Result<Devices, DeviceError> {
    let workers = usize::from(config.devices);
    let collective = Arc::new(SharedMemory::new(workers));
    match config.device {
        DeviceName::Cpu => {
            let each = (0..workers)
                .map(|_| Arc::new(HostDevice) as Arc<dyn Device>)
                .collect();
            Ok(Devices {
                each,
                collective,
                pool: super::pages::pool(),
                names: vec!["cpu".to_owned(); workers],
            })
        }
        #[cfg(not(feature = "cuda"))]
        DeviceName::Cuda => Err(DeviceError::NotBuilt),
        #[cfg(feature = "cuda")]
        DeviceName::Cuda => Ok(open_gpus(
            usize::from(config.first_gpu),
            workers,
            collective,
        )?),
    }
}

/// Worker `i` gets GPU `first + i`, modulo the number of GPUs: the nodes of a machine with fewer
/// GPUs share them.
#[cfg(feature = "cuda")]
fn open_gpus(
    first: usize,
    workers: usize,
    shared: Arc<SharedMemory>,
) -> Result<Devices, slowmo_cuda::GpuError> {
    use slowmo_cuda::{CudaDevice, Gpu, GpuError, NcclCollective, Pinned};
    let found = slowmo_cuda::gpus()?.len();
    if found < workers {
        // Names the first GPU that is missing.
        return Err(GpuError::NoSuchGpu {
            wanted: found,
            found,
        });
    }
    if first >= found {
        tracing::warn!(
            first_gpu = first,
            found,
            "there are fewer GPUs: counted around, another node may use the same"
        );
    }
    let gpus = (0..workers)
        .map(|worker| Gpu::open((first + worker) % found))
        .collect::<Result<Vec<_>, _>>()?;
    let names = gpus
        .iter()
        .map(|gpu| format!("GPU {} ({})", gpu.info().ordinal, gpu.info().name))
        .collect();
    let pool = gpus
        .first()
        .map_or_else(Pool::new, |gpu| Pool::of(Pinned::new(gpu)));
    let each = gpus
        .iter()
        .map(|gpu| Arc::new(CudaDevice::new(gpu.clone(), Arc::new(HostDevice))) as Arc<dyn Device>)
        .collect();
    let collective: Arc<dyn Collective> = if workers > 1 {
        Arc::new(NcclCollective::new(gpus, shared)?)
    } else {
        shared
    };
    Ok(Devices {
        each,
        collective,
        pool,
        names,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_a_device() {
        let opened = open(&Config {
            devices: 3,
            ..Config::default()
        })
        .ok();
        assert_eq!(
            opened.map(|opened| (opened.each.len(), opened.collective.size(), opened.names)),
            Some((3, 3, vec!["cpu".to_owned(); 3]))
        );
    }
}
