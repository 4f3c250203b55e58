//! `slowmo selftest`: checks the results of this machine's GPUs or CPU, and the GPUs' rates. One
//! binary, no test harness: copy it to a machine with GPUs and run it there.

use crate::console::{Console, Told, table};
use clap::Args;
use serde::Serialize;
use slowmo_cuda::arithmetic::{Arithmetic, Host};
use slowmo_cuda::selftest::{self, LENGTHS, Rate, Tested};
use slowmo_cuda::{Gpu, Library};

/// Share of the reference rate that a kernel or a copy must reach.
const SHARE_MIN: f64 = 0.8;

/// Check the arithmetic on fresh random inputs: this machine's CPU, or its GPUs with their rates.
///
/// Every kernel is compared with the same formula in float64, and with the CPU's bits. Exits with 1
/// if anything is wrong or slow.
#[derive(Debug, Args)]
pub struct Selftest {
    /// Test the GPUs; without it the CPU.
    #[arg(long)]
    gpu: bool,
    /// Seed of the random inputs; a new one for each run unless given.
    #[arg(long)]
    seed: Option<u64>,
    /// Size in MiB of each array used to measure rates; 0 measures none.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    mib: u32,
}

#[derive(Debug, Serialize)]
struct Report {
    command: &'static str,
    succeeded: bool,
    seed: u64,
    devices: Vec<DeviceReport>,
}

#[derive(Debug, Serialize)]
struct DeviceReport {
    device: String,
    kernels: Vec<KernelReport>,
    rates: Vec<RateReport>,
    /// Reason why rates were requested but not measured.
    not_measured: Option<String>,
}

#[derive(Debug, Serialize)]
struct KernelReport {
    kernel: &'static str,
    values: u64,
    /// Largest error against float64, in units of the error that rounding allows.
    error: f64,
    /// Values whose bits differ from the CPU's.
    other_bits: u64,
    wrong: Option<String>,
}

#[derive(Debug, Serialize)]
struct RateReport {
    name: &'static str,
    gigabytes_per_second: f64,
    share: Option<f64>,
}

impl Selftest {
    /// Runs the command.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        let seed = self.seed.unwrap_or_else(slowmo::internal::unix_us);
        let devices = if self.gpu {
            self.gpus(console, seed)?
        } else {
            vec![kernels("cpu".to_owned(), &Host, seed)?]
        };
        let succeeded = devices.iter().all(DeviceReport::is_well);
        let text = devices
            .iter()
            .map(DeviceReport::to_text)
            .collect::<Vec<_>>()
            .join("\n");
        let verdict = if succeeded {
            "all is well"
        } else {
            "not all is well"
        };
        let report = Report {
            command: "selftest",
            succeeded,
            seed,
            devices,
        };
        console.result(format!("{text}\n{verdict} (seed {seed})"), &report)?;
        if succeeded { Ok(()) } else { Err(Told.into()) }
    }

    fn gpus(&self, console: Console, seed: u64) -> anyhow::Result<Vec<DeviceReport>> {
        super::launch::require_gpus(1)?;
        let found = slowmo_cuda::gpus()?;
        if let Err(missing) = Library::Nccl.require() {
            console.note(format!(
                "{missing} (only needed for nodes with several GPUs)"
            ));
        }
        let mut reports = Vec::new();
        for info in found {
            console.progress(format!("GPU {}: {}", info.ordinal, info.name));
            let gpu = Gpu::open(info.ordinal)?;
            let mut report = kernels(format!("GPU {} ({})", info.ordinal, info.name), &gpu, seed)?;
            if self.mib > 0 {
                let bytes = self.mib as usize * 1024 * 1024;
                match selftest::rates(&gpu, bytes) {
                    Ok(rates) => report.rates = rates.into_iter().map(RateReport::of).collect(),
                    Err(error) => {
                        report.not_measured =
                            Some(format!("{error} (--mib sets the size of the arrays)"))
                    }
                }
            }
            reports.push(report);
        }
        Ok(reports)
    }
}

fn kernels(device: String, arithmetic: &dyn Arithmetic, seed: u64) -> anyhow::Result<DeviceReport> {
    let kernels = selftest::kernels(arithmetic, &LENGTHS, seed)?
        .into_iter()
        .map(KernelReport::of)
        .collect();
    Ok(DeviceReport {
        device,
        kernels,
        rates: Vec::new(),
        not_measured: None,
    })
}

impl KernelReport {
    fn of(tested: Tested) -> Self {
        let Tested {
            kernel,
            values,
            error,
            other_bits,
            wrong,
        } = tested;
        Self {
            kernel: kernel.name(),
            values,
            error,
            other_bits,
            wrong,
        }
    }
}

impl RateReport {
    fn of(rate: Rate) -> Self {
        Self {
            name: rate.name,
            gigabytes_per_second: rate.bytes_per_second / 1e9,
            share: rate.share,
        }
    }

    fn is_well(&self) -> bool {
        self.share.is_none_or(|share| share >= SHARE_MIN)
    }
}

impl DeviceReport {
    fn is_well(&self) -> bool {
        let kernels = self.kernels.iter().all(|kernel| kernel.wrong.is_none());
        kernels && self.rates.iter().all(RateReport::is_well) && self.not_measured.is_none()
    }

    fn to_text(&self) -> String {
        let kernel = |report: &KernelReport| {
            let verdict = report.wrong.clone().unwrap_or_else(|| "well".to_owned());
            [
                report.kernel.to_owned(),
                report.values.to_string(),
                format!("{:.3}", report.error),
                verdict,
            ]
        };
        let kernels = table(
            ["kernel", "values", "error / bound", "verdict"],
            self.kernels.iter().map(kernel),
        );
        let mut text = format!("{}\n{kernels}", self.device);
        if !self.rates.is_empty() {
            let rate = |report: &RateReport| {
                let share = report
                    .share
                    .map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", 100.0 * share));
                [
                    report.name.to_owned(),
                    format!("{:.1}", report.gigabytes_per_second),
                    share,
                ]
            };
            let rates = table(
                ["rate", "GB/s", "of the yardstick"],
                self.rates.iter().map(rate),
            );
            text.push_str(&format!("\n{rates}"));
        }
        if let Some(why) = &self.not_measured {
            text.push_str(&format!("\nno rates: {why}"));
        }
        text
    }
}
