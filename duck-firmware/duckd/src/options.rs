//! What a duck is told when it starts.

use std::time::Duration;

use kernels::abi::{FULL_SHARE, MAX_CORES};
use rustix::thread::CpuSet;
use wire::frozen::ID;
use wire::key::PublicKey;

use crate::error::DuckError;

/// Least memory for blocks.
pub const LEAST_MEMORY: u64 = 1 << 20;

/// Whether blocks lie on large pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// On reserved pages of 1 GiB or 2 MiB if there are enough, else on ordinary ones with a request for transparent large ones.
    #[default]
    Auto,
    /// On reserved ones, or not at all.
    Require,
    /// On ordinary ones.
    Off,
}

/// What a [`Node`](crate::Node) is made from. Start from [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Who: the same across restarts.
    pub id: [u8; ID],
    /// The pond's public key.
    pub key: PublicKey,
    /// Threads that compute. Core 0 is the network thread too.
    pub cores: usize,
    /// Processors that core i is pinned to: the i-th, counting round. `None` leaves that to the system.
    pub pin: Option<Vec<usize>>,
    /// Core 0's part of the work in 256ths of another core's.
    pub core0_share: u32,
    /// Bytes of memory for blocks. What is announced is 1/64 less, at most 4 MiB, since blocks are aligned.
    pub memory: u64,
    /// Bytes of a step's input; there are [`STEPS`](wire::duck::STEPS) of them. Memory that no step uses is not taken.
    pub input: usize,
    /// Bytes of a step's results: 4 × nodes × lanes × hidden.
    pub result: usize,
    /// Bytes for all else that the kernels touch: a step's decoded input, its layer's table of units, their scratch. A step that needs more ends
    /// as `MemoryLimit`. Memory that no step uses is not taken.
    pub scratch: usize,
    /// Whether blocks are locked into memory, if the system allows it.
    pub lock: bool,
    /// Whether blocks lie on large pages.
    pub huge_pages: HugePages,
    /// In what time all blocks are hashed again, while nothing else is to be done; `None` for never.
    pub scrub: Option<Duration>,
    /// Random bytes that nonces follow from, for repeatable tests. `None`: the system's.
    pub seed: Option<[u8; 32]>,
}

impl Options {
    /// One core, a gigabyte, room for the largest steps of the protocol in frames of 1,500 bytes.
    pub fn new(id: [u8; ID], key: PublicKey) -> Options {
        Options {
            id,
            key,
            cores: 1,
            pin: None,
            core0_share: FULL_SHARE,
            memory: 1 << 30,
            // What the protocol can carry: 4,096 and 8,192 fragments of 1,440 bytes.
            input: 6 << 20,
            result: 12 << 20,
            scratch: 256 << 20,
            lock: true,
            huge_pages: HugePages::Auto,
            scrub: Some(Duration::from_secs(3_600)),
            seed: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), DuckError> {
        if !(1..=MAX_CORES).contains(&self.cores) {
            return Err(DuckError::Cores { found: self.cores });
        }
        if !(1..=FULL_SHARE).contains(&self.core0_share) {
            return Err(DuckError::Share { found: self.core0_share });
        }
        if let Some(pin) = self.pin.as_ref().filter(|p| p.is_empty() || p.iter().any(|&c| c >= CpuSet::MAX_CPU)) {
            return Err(DuckError::Pin { found: pin.clone() });
        }
        if self.memory < LEAST_MEMORY {
            return Err(DuckError::TooLittle { expected: LEAST_MEMORY, found: self.memory });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_options_are_named() {
        let good = Options::new([1; ID], PublicKey([2; 32]));
        assert!(good.check().is_ok());
        let said = |options: Options| options.check().expect_err("refused").to_string();
        assert_eq!(said(Options { cores: 0, ..good.clone() }), "cores: expected 1 to 64, found 0");
        assert_eq!(
            said(Options { pin: Some(vec![3, 5_000]), ..good.clone() }),
            "processors to pin to: expected numbers below 1024, found [3, 5000]"
        );
        assert!(said(Options { memory: 1_000, ..good.clone() }).contains("found 1000"));
        assert!(said(Options { core0_share: 0, ..good }).contains("1 to 256"));
    }
}
