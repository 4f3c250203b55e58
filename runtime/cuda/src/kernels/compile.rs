//! NVRTC: compiles source to machine code for one GPU, or to PTX, which the driver compiles
//! further. Machine code is preferred where both can be had: a driver refuses the PTX of an NVRTC
//! newer than itself.

use super::SOURCE;
use crate::error::GpuError;
use crate::libraries::Library;
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString, c_char, c_int};

/// Options that change the bits of results: no fused multiply-add, no flushing of denormals to
/// zero.
pub const OPTIONS: [&str; 4] = [
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--std=c++17",
];

/// The target that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Machine code of a GPU of this compute capability, like 90.
    Code(c_int),
    /// PTX of this compute capability; newer GPUs run it, too.
    Ptx(c_int),
}

impl Target {
    /// The best target that NVRTC supports for a GPU of this compute capability.
    pub fn of(capability: (i32, i32)) -> Self {
        let wanted = capability.0 * 10 + capability.1;
        let supported = supported();
        if supported.contains(&wanted) {
            return Self::Code(wanted);
        }
        Self::Ptx(
            supported
                .into_iter()
                .filter(|supported| *supported < wanted)
                .max()
                .unwrap_or(wanted),
        )
    }

    /// The target's name in NVRTC's options.
    pub fn architecture(self) -> String {
        match self {
            Self::Code(capability) => format!("sm_{capability}"),
            Self::Ptx(capability) => format!("compute_{capability}"),
        }
    }
}

/// An NVRTC program, destroyed on drop.
struct Program {
    raw: sys::nvrtcProgram,
    /// Kept because NVRTC may refer to it.
    _source: CString,
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `create_program`, destroyed once.
        if let Err(error) = unsafe { result::destroy_program(self.raw) } {
            tracing::debug!(?error, "a compiled program is not freed");
        }
    }
}

impl Program {
    fn new() -> Option<Self> {
        let source = CString::new(SOURCE).ok()?;
        let raw = result::create_program(&source, None).ok()?;
        Some(Self {
            raw,
            _source: source,
        })
    }

    fn log(&self) -> String {
        // SAFETY: the program lives.
        let log = unsafe { result::get_program_log(self.raw) }.unwrap_or_default();
        let bytes: Vec<u8> = log
            .iter()
            .map(|letter| letter.cast_unsigned())
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn code(&self) -> Option<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program lives and was compiled; a number is written.
        let told = unsafe { sys::nvrtcGetCUBINSize(self.raw, &raw mut size) };
        let mut code = vec![0u8; size];
        // SAFETY: there is room for as many bytes as NVRTC said.
        let copied = unsafe { sys::nvrtcGetCUBIN(self.raw, code.as_mut_ptr().cast::<c_char>()) };
        let well = |result| result == sys::nvrtcResult::NVRTC_SUCCESS;
        (well(told) && well(copied) && size > 0).then_some(code)
    }

    fn ptx(&self) -> Option<Vec<u8>> {
        // SAFETY: the program lives and was compiled.
        let ptx = unsafe { result::get_ptx(self.raw) }.ok()?;
        let bytes: Vec<u8> = ptx.iter().map(|letter| letter.cast_unsigned()).collect();
        CStr::from_bytes_until_nul(&bytes)
            .ok()
            .map(|text| text.to_bytes().to_vec())
    }
}

/// Compiles the kernels.
///
/// # Errors
/// NVRTC is missing, or the kernels do not compile.
pub fn compile(target: Target) -> Result<Vec<u8>, GpuError> {
    Library::Nvrtc.require()?;
    let architecture = target.architecture();
    let failed = |log: String| GpuError::NotCompiled {
        architecture: architecture.clone(),
        log,
    };
    let program = Program::new().ok_or_else(|| failed("NVRTC does not start".to_owned()))?;
    let options: Vec<String> = OPTIONS
        .iter()
        .map(ToString::to_string)
        .chain([format!("--gpu-architecture={architecture}")])
        .collect();
    // SAFETY: the program lives.
    unsafe { result::compile_program(program.raw, &options) }.map_err(|_| failed(program.log()))?;
    let compiled = match target {
        Target::Code(_) => program.code(),
        Target::Ptx(_) => program.ptx(),
    };
    compiled.ok_or_else(|| failed("NVRTC returns nothing".to_owned()))
}

/// The architectures that NVRTC compiles for, like 90; empty if it does not tell.
fn supported() -> Vec<c_int> {
    let mut count = 0;
    // SAFETY: NVRTC is loaded, and writes one number.
    let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
    let mut architectures = vec![0; usize::try_from(count).unwrap_or_default()];
    if counted != sys::nvrtcResult::NVRTC_SUCCESS || architectures.is_empty() {
        return Vec::new();
    }
    // SAFETY: NVRTC writes as many numbers as it said, and there is room for those.
    let listed = unsafe { sys::nvrtcGetSupportedArchs(architectures.as_mut_ptr()) };
    if listed == sys::nvrtcResult::NVRTC_SUCCESS {
        architectures
    } else {
        Vec::new()
    }
}

/// NVRTC's version; zeros if it does not tell.
pub fn version() -> (c_int, c_int) {
    let mut major = 0;
    let mut minor = 0;
    // SAFETY: NVRTC is loaded, and writes one number to each.
    let told = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    if told == sys::nvrtcResult::NVRTC_SUCCESS {
        (major, minor)
    } else {
        (0, 0)
    }
}
