//! What keeps a duck from starting.

use std::io;

/// Why there is no duck.
#[derive(Debug, thiserror::Error)]
pub enum DuckError {
    /// A link that cannot carry the protocol.
    #[error("mtu of {link}: expected at least {expected} bytes, found {found}: choose another link, or raise its mtu")]
    Mtu {
        /// The link.
        link: String,
        /// [`MIN_MTU`](wire::frame::MIN_MTU).
        expected: usize,
        /// The link's.
        found: usize,
    },
    /// A number of cores that the kernels do not have.
    #[error("cores: expected 1 to {most}, found {found}", most = kernels::abi::MAX_CORES)]
    Cores {
        /// What was asked for.
        found: usize,
    },
    /// A core 0 that computes nothing, or more than the others.
    #[error("core 0's share: expected 1 to {most} 256ths, found {found}", most = kernels::abi::FULL_SHARE)]
    Share {
        /// What was asked for.
        found: u32,
    },
    /// A list of processors to pin to that has none, or one that the system does not know.
    #[error("processors to pin to: expected numbers below {most}, found {found:?}", most = rustix::thread::CpuSet::MAX_CPU)]
    Pin {
        /// What was asked for.
        found: Vec<usize>,
    },
    /// Less memory than a single block of the smallest model.
    #[error("memory for blocks: expected at least {expected} bytes, found {found}")]
    TooLittle {
        /// The least.
        expected: u64,
        /// What was asked for.
        found: u64,
    },
    /// Large pages were required, and there are too few.
    #[error(
        "{bytes} bytes on huge pages: the system has too few of them free; reserve some by the kernel's `hugepages=`, or let ordinary ones do"
    )]
    HugePages {
        /// Bytes wanted.
        bytes: usize,
        /// The system's answer.
        #[source]
        cause: io::Error,
    },
    /// No memory.
    #[error("{bytes} bytes of memory for blocks: the system refused; ask for less")]
    Memory {
        /// Bytes wanted.
        bytes: usize,
        /// The system's answer.
        #[source]
        cause: io::Error,
    },
    /// The system has no random numbers.
    #[error("the system gave no random numbers")]
    Random(#[source] io::Error),
    /// A thread that did not start.
    #[error("thread {name} did not start")]
    Thread {
        /// Its name.
        name: String,
        /// The system's answer.
        #[source]
        cause: io::Error,
    },
}
