//! The kernels' arithmetic without a GPU: their source is compiled as C++, its threads are
//! emulated, and it must compute what the CPU computes, bit for bit, and what float64 says.
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo_cuda::GpuError;
use slowmo_cuda::arithmetic::{Arithmetic, Array, Host};
use slowmo_cuda::kernels::Kernel;
use slowmo_cuda::selftest;
use std::cell::RefCell;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Around a block of threads, and several blocks.
const LENGTHS: [usize; 9] = [0, 1, 3, 255, 256, 257, 1_023, 4_099, 9_000];

/// A process that emulates.
struct Emulated(RefCell<Child>);

impl Emulated {
    /// `None` if there is no compiler for C++.
    fn start(folder: &Path) -> Option<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulation/shim.cpp");
        let program = folder.join("emulation");
        let compiler = ["c++", "g++", "clang++"]
            .into_iter()
            .find(|name| Command::new(name).arg("--version").output().is_ok())?;
        // As NVRTC is told: a product and a sum are rounded each.
        let flags = [
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-w",
            "-o",
        ];
        let compiled = Command::new(compiler)
            .args(flags)
            .arg(&program)
            .arg(&source)
            .output()
            .unwrap();
        assert!(
            compiled.status.success(),
            "{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        let child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Some(Self(RefCell::new(child)))
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let child = self.0.get_mut();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn bytes(array: &Array) -> Option<Vec<u8>> {
    match array {
        Array::Null => None,
        Array::Floats(values) => Some(
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        ),
        Array::Word(word) => Some(word.to_le_bytes().to_vec()),
    }
}

impl Arithmetic for Emulated {
    fn run(
        &self,
        kernel: Kernel,
        arrays: &mut [Array],
        n: usize,
        floats: &[f32],
    ) -> Result<(), GpuError> {
        assert_eq!(
            (arrays.len(), floats.len()),
            (kernel.pointers(), kernel.floats()),
            "{kernel:?}"
        );
        let mut request = (kernel.name().len() as u32).to_le_bytes().to_vec();
        request.extend(kernel.name().bytes());
        request.extend((arrays.len() as u32).to_le_bytes());
        for array in &*arrays {
            let bytes = bytes(array);
            request.push(u8::from(bytes.is_some()));
            let bytes = bytes.unwrap_or_default();
            request.extend((bytes.len() as u64).to_le_bytes());
            request.extend(bytes);
        }
        request.extend((n as u64).to_le_bytes());
        request.extend((floats.len() as u32).to_le_bytes());
        request.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
        let mut child = self.0.borrow_mut();
        child.stdin.as_mut().unwrap().write_all(&request).unwrap();
        child.stdin.as_mut().unwrap().flush().unwrap();
        let answers = child.stdout.as_mut().unwrap();
        for array in arrays {
            let mut answer = vec![0; bytes(array).unwrap_or_default().len()];
            answers.read_exact(&mut answer).unwrap();
            match array {
                Array::Null => {}
                Array::Floats(values) => {
                    let (quads, _) = answer.as_chunks::<4>();
                    values
                        .iter_mut()
                        .zip(quads)
                        .for_each(|(value, quad)| *value = f32::from_le_bytes(*quad));
                }
                Array::Word(word) => *word = u64::from_le_bytes(answer.try_into().unwrap()),
            }
        }
        Ok(())
    }
}

#[test]
fn emulated_kernels_compute_what_the_cpu_computes() {
    let folder = tempfile::tempdir().unwrap();
    let Some(emulated) = Emulated::start(folder.path()) else {
        let reason = "there is no compiler for C++ (c++, g++ or clang++)";
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{reason}"
        );
        // Past the harness, which shows nothing of a test that passes.
        writeln!(std::io::stderr(), "skipped: {reason}").unwrap();
        return;
    };
    for seed in [1, 2] {
        for tested in selftest::kernels(&emulated, &LENGTHS, seed).unwrap() {
            println!(
                "{}: {} values, error {:.3}",
                tested.kernel.name(),
                tested.values,
                tested.error
            );
            assert_eq!(tested.wrong, None, "{}", tested.kernel.name());
        }
    }
}

#[test]
fn the_cpu_computes_what_float64_says() {
    for tested in selftest::kernels(&Host, &selftest::LENGTHS, 3).unwrap() {
        assert_eq!(
            tested.wrong,
            None,
            "{}: {}",
            tested.kernel.name(),
            tested.error
        );
        assert!(tested.values > 0);
    }
}

/// An arithmetic that is a little wrong.
struct Wrong(Kernel);

impl Arithmetic for Wrong {
    fn run(
        &self,
        kernel: Kernel,
        arrays: &mut [Array],
        n: usize,
        floats: &[f32],
    ) -> Result<(), GpuError> {
        Host.run(kernel, arrays, n, floats)?;
        let changed = arrays
            .iter_mut()
            .rev()
            .find(|array| !matches!(array, Array::Null));
        if kernel != self.0 || n <= 300 {
            return Ok(());
        }
        match changed {
            Some(Array::Floats(values)) => values[300] += values[300].abs() * 1e-3 + 1e-3,
            Some(Array::Word(word)) => *word ^= 1,
            Some(Array::Null) | None => {}
        }
        Ok(())
    }
}

#[test]
fn the_selftest_finds_what_is_wrong() {
    for kernel in slowmo_cuda::kernels::KERNELS {
        let tested = selftest::kernels(&Wrong(kernel), &[4_099], 4).unwrap();
        let found: Vec<Kernel> = tested
            .iter()
            .filter(|tested| tested.wrong.is_some())
            .map(|tested| tested.kernel)
            .collect();
        assert_eq!(found, [kernel]);
    }
}
