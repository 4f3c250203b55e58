//! The kernels: their table, and how their source becomes code for a GPU. NVRTC compiles it when a
//! GPU is first opened; the result is kept in the user's cache folder under a name that identifies
//! its inputs.

mod cache;
mod compile;

pub use compile::{Target, compile};

use crate::error::GpuError;
use crate::libraries::Library;
use cudarc::nvrtc::Ptx;

/// CUDA C source with one `extern "C"` function for each kernel.
pub const SOURCE: &str = include_str!("kernels.cu");
/// Threads of a block; the CUDA source uses the same number.
pub const THREADS: u32 = 256;

/// The wire types with fewer bytes than float32, which needs no kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The upper half of a float32.
    BFloat16,
    /// One scale for each 256 values and one byte for each value.
    Int8,
}

/// The kernels. Pointers and floats of a launch come in the order of the kernel's parameters in
/// [`SOURCE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// `mix(model, correction or null, before or null, first; stays, weight)`.
    Mix,
    /// `divide(values; weight)`.
    Divide,
    /// `accumulate(target, values; scale)`.
    Accumulate,
    /// `slowmo(values, anchor, momentum, next; rate, beta, gamma)`.
    SlowMo,
    /// `nesterov(values, anchor, momentum, next; eta, mu)`.
    Nesterov,
    /// `bmuf_nbm(values, anchor, momentum, next; eta, mu)`.
    BmufNbm,
    /// `not_finite(values, first)`.
    NotFinite,
    /// `digest(values, sum)`.
    Digest,
    /// `encode_gossip_*(numerators, residual, bytes; factor)`.
    EncodeGossip(Wire),
    /// `encode_contribution_*(values, reference, residual or null, bytes, next; weight)`.
    EncodeContribution(Wire),
    /// `encode_publication_*(values, reference, bytes, dropped)`.
    EncodePublication(Wire),
    /// `encode_*(values, bytes)`.
    Encode(Wire),
    /// `decode_*(bytes, target)`.
    Decode(Wire),
    /// `accumulate_*(bytes, target; scale)`.
    AccumulateEncoded(Wire),
}

/// All kernels.
pub const KERNELS: [Kernel; 20] = [
    Kernel::Mix,
    Kernel::Divide,
    Kernel::Accumulate,
    Kernel::SlowMo,
    Kernel::Nesterov,
    Kernel::BmufNbm,
    Kernel::NotFinite,
    Kernel::Digest,
    Kernel::EncodeGossip(Wire::BFloat16),
    Kernel::EncodeGossip(Wire::Int8),
    Kernel::EncodeContribution(Wire::BFloat16),
    Kernel::EncodeContribution(Wire::Int8),
    Kernel::EncodePublication(Wire::BFloat16),
    Kernel::EncodePublication(Wire::Int8),
    Kernel::Encode(Wire::BFloat16),
    Kernel::Encode(Wire::Int8),
    Kernel::Decode(Wire::BFloat16),
    Kernel::Decode(Wire::Int8),
    Kernel::AccumulateEncoded(Wire::BFloat16),
    Kernel::AccumulateEncoded(Wire::Int8),
];

impl Kernel {
    /// The function's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        use Wire::{BFloat16, Int8};
        match self {
            Self::Mix => "mix",
            Self::Divide => "divide",
            Self::Accumulate => "accumulate",
            Self::SlowMo => "slowmo",
            Self::Nesterov => "nesterov",
            Self::BmufNbm => "bmuf_nbm",
            Self::NotFinite => "not_finite",
            Self::Digest => "digest",
            Self::EncodeGossip(BFloat16) => "encode_gossip_bf16",
            Self::EncodeGossip(Int8) => "encode_gossip_int8",
            Self::EncodeContribution(BFloat16) => "encode_contribution_bf16",
            Self::EncodeContribution(Int8) => "encode_contribution_int8",
            Self::EncodePublication(BFloat16) => "encode_publication_bf16",
            Self::EncodePublication(Int8) => "encode_publication_int8",
            Self::Encode(BFloat16) => "encode_bf16",
            Self::Encode(Int8) => "encode_int8",
            Self::Decode(BFloat16) => "decode_bf16",
            Self::Decode(Int8) => "decode_int8",
            Self::AccumulateEncoded(BFloat16) => "accumulate_bf16",
            Self::AccumulateEncoded(Int8) => "accumulate_int8",
        }
    }

    /// Number of pointers that the kernel takes.
    #[must_use]
    pub fn pointers(self) -> usize {
        match self {
            Self::Divide => 1,
            Self::Accumulate
            | Self::NotFinite
            | Self::Digest
            | Self::Encode(_)
            | Self::Decode(_)
            | Self::AccumulateEncoded(_) => 2,
            Self::EncodeGossip(_) => 3,
            Self::Mix
            | Self::SlowMo
            | Self::Nesterov
            | Self::BmufNbm
            | Self::EncodePublication(_) => 4,
            Self::EncodeContribution(_) => 5,
        }
    }

    /// Number of floats that the kernel takes after the number of values.
    #[must_use]
    pub fn floats(self) -> usize {
        match self {
            Self::NotFinite
            | Self::Digest
            | Self::EncodePublication(_)
            | Self::Encode(_)
            | Self::Decode(_) => 0,
            Self::Divide
            | Self::Accumulate
            | Self::EncodeGossip(_)
            | Self::EncodeContribution(_)
            | Self::AccumulateEncoded(_) => 1,
            Self::Mix | Self::Nesterov | Self::BmufNbm => 2,
            Self::SlowMo => 3,
        }
    }
}

/// The kernels for a GPU of this compute capability, like `(9, 0)`: from the cache, or newly
/// compiled.
///
/// # Errors
/// NVRTC is missing, or the kernels do not compile.
pub fn image(capability: (i32, i32)) -> Result<Ptx, GpuError> {
    Library::Nvrtc.require()?;
    let target = Target::of(capability);
    let name = cache::name(target, compile::version());
    let bytes = match cache::read(&name) {
        Some(kept) => kept,
        None => {
            let compiled = compile(target)?;
            cache::write(&name, &compiled);
            compiled
        }
    };
    Ok(match target {
        Target::Code(_) => Ptx::from_binary(bytes),
        Target::Ptx(_) => Ptx::from_src(String::from_utf8_lossy(&bytes).into_owned()),
    })
}
