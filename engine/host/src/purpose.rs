//! What a cache is for: mode fp8 stores some of them in 8 bits.

use model::program::{Model, Op};

/// What a cache is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Rows are kept as they are.
    Plain,
    /// Latent vectors of attention: in mode fp8 they go through 8 bits.
    Latent,
    /// Keys of an indexer: in mode fp8 they are spread by a Hadamard transform, rounded, and go through 8 bits, as its queries do.
    IndexKeys,
}

impl Purpose {
    /// By cache.
    pub(crate) fn of(model: &Model) -> Vec<Purpose> {
        let mut purposes = vec![Purpose::Plain; model.caches.len()];
        let segments = model.main.segments.iter().chain(model.mtp.iter().flat_map(|mtp| &mtp.segments));
        for op in segments.flat_map(|segment| segment.before.iter().chain(&segment.during)) {
            match op {
                Op::AttendLatent { latent, .. } => purposes[usize::from(latent.0)] = Purpose::Latent,
                Op::Select { keys, .. } => purposes[usize::from(keys.0)] = Purpose::IndexKeys,
                _ => {}
            }
        }
        purposes
    }
}
