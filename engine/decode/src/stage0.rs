//! What computes stage 0: this machine's processors or its GPU.

use std::fmt;
use std::sync::{Arc, OnceLock};

use host::StageError;
use host::cpu::{CpuOptions, CpuStage};
use host::cuda::{CudaOptions, CudaStage};
use host::stage::Stage;
use model::program::Model;

/// What stage 0 shall run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage0 {
    /// A GPU if there is one that the model fits on, else the processors; and the processors from then on if the GPU fails.
    Auto,
    /// The processors.
    #[default]
    Cpu,
    /// A GPU, or nothing.
    Cuda,
}

/// What stage 0 runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The processors.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Cpu => "cpu",
            Backend::Cuda => "cuda",
        })
    }
}

impl Stage0 {
    /// Whether a GPU would be tried on this machine: one is wanted, or one is there, which is looked for once.
    pub fn tries_gpu(self) -> bool {
        static THERE: OnceLock<bool> = OnceLock::new();
        match self {
            Stage0::Auto => *THERE.get_or_init(|| host::cuda::device().is_ok()),
            Stage0::Cpu => false,
            Stage0::Cuda => true,
        }
    }

    /// Opens it for one sequence of `max_len` positions.
    pub(crate) fn open(
        self,
        model: &Arc<Model>,
        cpu: CpuOptions,
        max_len: usize,
    ) -> Result<(Box<dyn Stage + Send>, Backend), StageError> {
        let on_cpu = || -> Result<(Box<dyn Stage + Send>, Backend), StageError> {
            Ok((Box::new(CpuStage::new(model.clone(), cpu)?), Backend::Cpu))
        };
        if !self.tries_gpu() {
            return on_cpu();
        }
        let options = CudaOptions::new(cpu.numerics, cpu.max_lanes, cpu.sources, max_len);
        match CudaStage::new(model.clone(), options, &mut |_, _| ()) {
            Ok(stage) => Ok((Box::new(stage), Backend::Cuda)),
            Err(error) if self == Stage0::Auto => {
                tracing::warn!("stage 0 runs on the processors: {error}");
                on_cpu()
            }
            Err(error) => Err(error),
        }
    }
}
