//! The kernels compile to PTX, where an NVRTC is found: the wheel `nvidia-cuda-nvrtc-cu12` is
//! enough, without a GPU or a driver.
#![allow(clippy::unwrap_used)]

use slowmo_cuda::Library;
use slowmo_cuda::kernels::{KERNELS, Target, compile};
use std::io::Write;

#[test]
fn the_kernels_compile_for_every_generation() {
    if !Library::Nvrtc.is_present() {
        // Past the harness, which shows nothing of a test that passes.
        writeln!(
            std::io::stderr(),
            "skipped: NVRTC ({}) is not installed: {}",
            Library::Nvrtc.file(),
            Library::Nvrtc.remedy()
        )
        .unwrap();
        return;
    }
    for architecture in [70, 80, 90] {
        let ptx = String::from_utf8(compile(Target::Ptx(architecture)).unwrap()).unwrap();
        for kernel in KERNELS {
            assert!(
                ptx.contains(&format!(".entry {}(", kernel.name())),
                "{} for {architecture}",
                kernel.name()
            );
        }
        // A product and a sum are rounded each, as on the CPU.
        assert!(
            !ptx.contains("fma.rn.f32") && !ptx.contains(".ftz"),
            "{architecture}"
        );
        let code = compile(Target::Code(architecture)).unwrap();
        assert!(code.starts_with(b"\x7fELF"), "{architecture}");
    }
}

#[test]
fn what_is_missing_is_named_with_its_remedy() {
    for error in slowmo_cuda::missing(2) {
        let text = error.to_string();
        println!("{text}");
        assert!(
            text.contains("install") || text.contains("nvidia-smi"),
            "{text}"
        );
    }
    if !Library::Driver.is_present() {
        assert!(slowmo_cuda::missing(1).iter().any(|error| {
            error
                .to_string()
                .starts_with("the CUDA driver is missing (libcuda.so.1)")
        }));
        assert!(slowmo_cuda::Gpu::open(0).is_err());
    }
}
