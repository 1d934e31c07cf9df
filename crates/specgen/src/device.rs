//! Where a model runs: the one place that decides between our CPU kernels and candle's devices.

use std::{fmt, str::FromStr, sync::Arc};

use specgen_kernels::{KvType, Team};

use crate::error::{Error, Result};

/// A device as a user names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceSpec {
    /// Our own kernels.
    #[default]
    Cpu,
    /// The reference: candle's operations on the CPU, slower, for cross-checks.
    Reference,
    /// The CUDA device with this index.
    Cuda(usize),
    /// The Metal device.
    Metal,
}

impl FromStr for DeviceSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || {
            Error::InvalidArgument(format!(
                "device `{text}` is unknown; wanted cpu, cuda, cuda:INDEX, metal or reference"
            ))
        };
        match text {
            "cpu" => Ok(Self::Cpu),
            "reference" => Ok(Self::Reference),
            "cuda" => Ok(Self::Cuda(0)),
            "metal" => Ok(Self::Metal),
            _ => {
                let index = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                index.parse().map(Self::Cuda).map_err(|_| unknown())
            }
        }
    }
}

impl DeviceSpec {
    /// How keys and values are kept on this device: as `asked`, else by the default of the device, f16 on the CPU and f32
    /// elsewhere.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device can't.
    pub fn kv_type(self, asked: Option<KvType>) -> Result<KvType> {
        let kept = asked.unwrap_or(match self {
            Self::Cpu => DEFAULT_KV_TYPE,
            _ => KvType::F32,
        });
        if kept == KvType::F32 || self == Self::Cpu {
            return Ok(kept);
        }
        Err(Error::Unsupported(format!(
            "keys and values in {kept} were asked for, but {self} runs on candle's attention, which keeps them in \
             f32; ask for f32, or for the device cpu"
        )))
    }
}

/// Keys and values on the CPU unless the caller says otherwise. Against f32, f16 takes half the memory and a fifth to a
/// third less of attention's time for one row over long contexts, no more at short ones, and what it does to
/// log-probabilities is lost in the noise of activations in 8 bits; bf16 is no faster, and eight times as coarse
/// (`benches/RESULTS.md`, "Keys and values of 16 bits").
const DEFAULT_KV_TYPE: KvType = KvType::F16;

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Reference => f.write_str("reference"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::Metal => f.write_str("metal"),
        }
    }
}

/// The instruction set of the CPU kernels: the best this CPU has unless told otherwise.
pub fn cpu_isa() -> &'static str {
    specgen_kernels::isa()
}

/// Makes the CPU kernels use the instruction set `name`, for the life of the process. Results are the same
/// with any.
///
/// # Errors
/// [`Error::Unsupported`] where this CPU does not have it, naming those it has, or where kernels have run
/// with another.
pub fn choose_cpu_isa(name: &str) -> Result<()> {
    if specgen_kernels::choose_isa(name) {
        return Ok(());
    }
    let available = specgen_kernels::available_isas();
    Err(Error::Unsupported(match available.contains(&name) {
        true => {
            format!("kernels already run with {}, not {name}; choose before anything is loaded", cpu_isa())
        }
        false => {
            format!("`{name}` is no instruction set of this CPU; wanted one of {}", available.join(", "))
        }
    }))
}

/// The CPU's name, where the system tells.
pub fn cpu_name() -> Option<String> {
    let line = cpu_line()?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn cpu_line() -> Option<String> {
    first_line("/proc/cpuinfo", "model name")
}

fn first_line(path: &str, of: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find(|line| line.starts_with(of)).map(|line| line.trim().to_owned())
}

/// This machine in words, as far as it tells: measured times are of no use on another.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let words = [first_line("/proc/sys/kernel/hostname", ""), cpu_line()];
    let words: Vec<String> = words.into_iter().flatten().collect();
    format!("{} {} {cores} cores {}", std::env::consts::OS, std::env::consts::ARCH, words.join(" "))
}

/// An opened device, shared by target and draft.
#[derive(Clone)]
pub struct Device {
    spec: DeviceSpec,
    pub(crate) kind: DeviceKind,
}

#[derive(Clone)]
pub(crate) enum DeviceKind {
    /// Our kernels on a thread team.
    Cpu(Arc<Team>),
    /// Anything candle drives.
    Candle(candle_core::Device),
}

impl Device {
    /// Opens a device. `threads` is the size of the CPU's thread team; 0: one per physical core available.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where this build lacks the backend or the machine the device.
    pub fn open(spec: DeviceSpec, threads: usize) -> Result<Self> {
        let kind = match spec {
            DeviceSpec::Cpu => DeviceKind::Cpu(Arc::new(Team::new(threads))),
            DeviceSpec::Reference => DeviceKind::Candle(candle_core::Device::Cpu),
            DeviceSpec::Cuda(index) => DeviceKind::Candle(open_cuda(index)?),
            DeviceSpec::Metal => DeviceKind::Candle(open_metal()?),
        };
        Ok(Self { spec, kind })
    }

    /// What it was opened as.
    pub fn spec(&self) -> DeviceSpec {
        self.spec
    }

    /// Threads of the CPU team; 1 for other devices, which one engine thread drives.
    pub fn threads(&self) -> usize {
        match &self.kind {
            DeviceKind::Cpu(team) => team.threads(),
            DeviceKind::Candle(_) => 1,
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {} threads)", self.spec, self.threads())
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(index: usize) -> Result<candle_core::Device> {
    let fail = |e: candle_core::Error| {
        Error::Unsupported(format!("cuda:{index} cannot be opened: {}", Error::from(e)))
    };
    // One real stream for target and draft: candle's default is a stream per thread, which races across
    // threads.
    let device = candle_core::Device::new_cuda_with_stream(index).map_err(fail)?;
    Ok(device)
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(index: usize) -> Result<candle_core::Device> {
    Err(Error::Unsupported(format!(
        "cuda:{index} needs a build with CUDA: cargo build --release --features cuda"
    )))
}

#[cfg(feature = "metal")]
fn open_metal() -> Result<candle_core::Device> {
    candle_core::Device::new_metal(0)
        .map_err(|e| Error::Unsupported(format!("metal cannot be opened: {}", Error::from(e))))
}

#[cfg(not(feature = "metal"))]
fn open_metal() -> Result<candle_core::Device> {
    Err(Error::Unsupported("metal needs a build with Metal: cargo build --release --features metal".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candle_keeps_keys_and_values_in_f32() {
        let kept = |device: DeviceSpec, asked| device.kv_type(asked).map_err(|error| error.to_string());
        for kind in KvType::ALL {
            assert_eq!(kept(DeviceSpec::Cpu, Some(kind)), Ok(kind));
        }
        for device in [DeviceSpec::Reference, DeviceSpec::Cuda(0), DeviceSpec::Metal] {
            assert_eq!(kept(device, None), Ok(KvType::F32));
            assert_eq!(kept(device, Some(KvType::F32)), Ok(KvType::F32));
            let error = kept(device, Some(KvType::BF16)).expect_err("not there");
            assert!(error.contains("bf16") && error.contains(&device.to_string()), "{error}");
        }
    }

    #[test]
    fn device_names_round_trip() {
        for name in ["cpu", "reference", "cuda:0", "cuda:3", "metal"] {
            assert_eq!(name.parse::<DeviceSpec>().expect("a known name").to_string(), name);
        }
        for name in ["", "gpu", "cuda:", "cuda:x", "cuda:-1"] {
            let error = name.parse::<DeviceSpec>().expect_err("not a device").to_string();
            assert!(error.contains("wanted cpu"), "{error}");
        }
    }
}
