//! What can go wrong with the GPU. Each message is one line and says what helps.

/// Why the GPU cannot be used, or stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No driver library.
    #[error("no NVIDIA driver: libcuda.so.1 is not there; install the driver, or choose the CPU stage")]
    NoDriver,
    /// The driver does not start.
    #[error("the NVIDIA driver does not start: {0}")]
    DriverFailed(String),
    /// The driver is older than the compiler's programs need.
    #[error(
        "the NVIDIA driver serves CUDA {found}, programs of NVRTC {nvrtc} need CUDA {needed}; install a newer driver"
    )]
    DriverTooOld {
        /// CUDA version of the driver.
        found: String,
        /// The least that is needed.
        needed: String,
        /// The compiler.
        nvrtc: String,
    },
    /// No card.
    #[error("the NVIDIA driver finds no GPU")]
    NoDevice,
    /// A card before tensor cores for bf16 and asynchronous copies.
    #[error("{name} has compute capability {found}, {needed} or later is needed")]
    TooOldDevice {
        /// The card.
        name: String,
        /// What it has.
        found: String,
        /// What the kernels need.
        needed: String,
    },
    /// A kernel needs more shared memory than a block may have.
    #[error("kernel {kernel} needs {needed} bytes of shared memory in a block, {device} allows {found}")]
    SharedMemory {
        /// The kernel.
        kernel: String,
        /// Bytes.
        needed: usize,
        /// Bytes.
        found: usize,
        /// The card.
        device: String,
    },
    /// No compiler.
    #[error(
        "no NVRTC (libnvrtc.so, CUDA 12.8 or later): install it, or name its folder in DUCKPOND_NVRTC; looked in {searched}"
    )]
    NoNvrtc {
        /// Where.
        searched: String,
    },
    /// A library without a function.
    #[error("{library} has no {symbol}: it is not the NVRTC of CUDA 12.8 or later")]
    Symbol {
        /// The library.
        library: String,
        /// The function.
        symbol: String,
    },
    /// The compiler does not know the card.
    #[error("NVRTC {nvrtc} cannot compile for {architecture}; install NVRTC 12.8 or later")]
    Architecture {
        /// The compiler.
        nvrtc: String,
        /// Such as `sm_120`.
        architecture: String,
    },
    /// A kernel that does not compile.
    #[error("{file} does not compile for {architecture} with NVRTC {nvrtc}: {line}")]
    Compile {
        /// The source.
        file: String,
        /// Such as `sm_120`.
        architecture: String,
        /// The compiler.
        nvrtc: String,
        /// The log's first error.
        line: String,
    },
    /// Not enough memory on the card.
    #[error("{what}: {needed} bytes of GPU memory needed, {free} free")]
    OutOfMemory {
        /// What for.
        what: String,
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// A call that failed; most such errors stay until the process ends.
    #[error("the GPU failed while {what}: {why}")]
    Failed {
        /// What was being done.
        what: String,
        /// The driver's name for it.
        why: String,
    },
    /// The ducks' sums did not come, or the device did not answer.
    #[error("the GPU waited {seconds} s for {what} and gave up")]
    Timeout {
        /// For what.
        what: String,
        /// How long.
        seconds: u64,
    },
    /// The stage has failed before.
    #[error("the GPU stage ended earlier: {0}")]
    Dead(String),
    /// A program that this backend does not run.
    #[error("the CUDA stage does not run this model: {0}")]
    Unsupported(String),
    /// All places for sequences are taken.
    #[error("{found} sequences are open, which is all this stage has room for")]
    Sequences {
        /// Open ones.
        found: usize,
    },
    /// Caches are all in use.
    #[error("{needed} positions asked for, {free} of the caches are free")]
    CachePositions {
        /// Positions.
        needed: usize,
        /// Positions.
        free: usize,
    },
    /// All work areas are taken.
    #[error("{found} passes are under way, which is all this stage has room for")]
    Passes {
        /// Passes.
        found: usize,
    },
}
