//! What the host and the kernels agree on: the structures of `kernels/abi.cuh`, field by field under the same names.
//!
//! Addresses are device addresses, or addresses of pinned host memory, which the device sees under the same number. A test has the compiler of
//! the kernels compare sizes and offsets.

/// Declares a structure as C lays it out, and says its layout to the test that compares.
macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name { $(pub(crate) $field: $kind),* }

            // SAFETY: plain numbers; all bits zero are a value.
            unsafe impl Plain for $name {}
        )*

        /// Name, size, and the offset of each field of every structure.
        #[cfg(test)]
        pub(crate) fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                size_of::<$name>(),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            )),*]
        }
    };
}

/// Values that any bits are, so that zeroed memory is one and their bytes may be copied.
///
/// # Safety
/// Only for `repr(C)` structures of numbers without references.
pub(crate) unsafe trait Plain: Copy {
    /// All bits zero.
    fn zeroed() -> Self {
        // SAFETY: promised by the implementer.
        unsafe { std::mem::zeroed() }
    }
}

// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: numbers.
unsafe impl Plain for u16 {}
// SAFETY: numbers.
unsafe impl Plain for u32 {}
// SAFETY: numbers.
unsafe impl Plain for u64 {}
// SAFETY: numbers.
unsafe impl Plain for f32 {}

/// How a matrix is stored.
pub(crate) const E4M3: u32 = 0;
/// See [`E4M3`].
pub(crate) const BF16: u32 = 1;
/// See [`E4M3`].
pub(crate) const F32: u32 = 2;

/// Numeric modes.
pub(crate) const EXACT: u32 = 0;
/// See [`EXACT`].
pub(crate) const BF16_MODE: u32 = 1;
/// See [`EXACT`].
pub(crate) const FP8_MODE: u32 = 2;

/// Positions of one page of the caches.
pub(crate) const PAGE: usize = 64;
/// Columns that share a block scale.
pub(crate) const BLOCK: usize = 128;
/// Lanes up to which the kernels for few lanes serve.
pub(crate) const FEW: usize = 8;
/// Keys of one part of an attention.
pub(crate) const KEYS: usize = 64;
/// Products of one launch.
pub(crate) const LINEARS: usize = 8;
/// Row operations of one launch.
pub(crate) const ROWS: usize = 16;
/// Nodes of one lane's sums.
pub(crate) const NODES: usize = 64;
/// Steps whose times are remembered.
pub(crate) const TIMES: usize = 256;

/// Flag: the result is rounded to bf16.
pub(crate) const ROUND: u32 = 1;
/// Flag: activations are quantised.
pub(crate) const QUANTISE: u32 = 2;
/// Flag: lanes are those of a list.
pub(crate) const WANTED: u32 = 4;

/// Kinds of row operations.
pub(crate) mod row {
    pub(crate) const EMBED: u32 = 0;
    pub(crate) const RECALL: u32 = 1;
    pub(crate) const KEEP: u32 = 2;
    pub(crate) const RMS_NORM: u32 = 3;
    pub(crate) const ADD_RMS_NORM: u32 = 4;
    pub(crate) const LAYER_NORM: u32 = 5;
    pub(crate) const ROTATE: u32 = 6;
    pub(crate) const APPEND: u32 = 7;
    pub(crate) const GATED: u32 = 8;
    pub(crate) const COMBINE: u32 = 9;
    pub(crate) const WAIT: u32 = 10;
    pub(crate) const HADAMARD: u32 = 11;
    pub(crate) const QUANTISE_ROW: u32 = 12;
}

structures! {
    /// One token position in flight.
    Lane { token: u32, position: u32, sequence: u32, kept: u32 }

    /// One per-sequence cache.
    Cache { pool: u64, width: u32, _pad: u32 }

    /// One product.
    Linear {
        weight: u64, scale: u64, x: u64, out: u64,
        rows: u32, k: u32, groups: u32, dtype: u32,
        x_stride: u32, x_group: u32, out_stride: u32, out_group: u32,
        first_tile: u32, flags: u32, ways: u32, _pad: u32,
    }

    /// A launch of products.
    Linears { list: [Linear; LINEARS], count: u32, lanes: u32, wanted: u64, mode: u32, _pad: u32 }

    /// One row operation.
    Row {
        kind: u32, n: u32, m: u32, offset: u32, pairs: u32, layout: u32, dtype: u32, flags: u32,
        eps: f32, x_stride: u32, y_stride: u32, out_stride: u32,
        x: u64, y: u64, out: u64, a: u64, w: u64, v: u64, cache: Cache,
    }

    /// A launch of chains of row operations.
    Rows {
        list: [Row; ROWS], first: [u32; ROWS + 1], chains: u32, lanes: u32, mode: u32,
        lane: u64, pages: u64, pages_stride: u32, _pad: u32, exchange: u64,
    }

    /// The router's choice and the hand-over.
    Route {
        logits: u64, bias: u64, experts: u32, chosen: u32, groups: u32, kept_groups: u32, normalise: u32, scale: f32,
        lanes: u32, hidden: u32, input: u64, input_stride: u32, mode: u32, expert_out: u64, weight_out: u64, exchange: u64,
    }

    /// A lane's sums and their additions.
    LaneSums { count: u32, additions: u32, row: [u64; NODES], to: [u8; NODES], from: [u8; NODES], result: u32, _pad: u32 }

    /// A step's exchange with the ducks.
    Exchange {
        handed: u64, ready: u64, abort: u64, failed: u64, hidden: u64, experts: u64, weights: u64, sums: u64,
        step: u64, arrived: u64, times: u64, bound: u64,
    }

    /// The indexer.
    Select {
        q: u64, weights: u64, keys: Cache, scores: u64, selection: u64, count: u64,
        q_stride: u32, weights_stride: u32, scores_stride: u32, heads: u32, dim: u32, keep: u32,
        head_scale: f32, key_scale: f32, lanes: u32, mode: u32, lane: u64, pages: u64, pages_stride: u32, first_lane: u32,
    }

    /// Attention.
    Attend {
        q_latent: u64, q_rope: u64, latent: Cache, rope: Cache, selection: u64, count: u64,
        part: u64, part_max: u64, part_sum: u64, out: u64,
        q_stride: u32, rope_row: u32, rope_stride: u32, rope_offset: u32, out_stride: u32, heads: u32, keep: u32, parts: u32,
        scale: f32, lanes: u32, mode: u32, flags: u32, lane: u64, pages: u64, pages_stride: u32, _pad: u32,
    }
}

/// What the kernel `pack` reads.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Pack {
    pub(crate) x: u64,
    pub(crate) out: u64,
    pub(crate) x_stride: u32,
    pub(crate) out_stride: u32,
    pub(crate) width: u32,
    pub(crate) lanes: u32,
    pub(crate) quantise: u32,
    pub(crate) _pad: u32,
    pub(crate) wanted: u64,
}

/// What the kernel `fill` reads.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    pub(crate) at: u64,
    pub(crate) count: u64,
    pub(crate) dtype: u32,
    pub(crate) seed: u32,
    pub(crate) scale: f32,
    pub(crate) _pad: u32,
}

/// What the kernel `argmax` reads.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArgMax {
    pub(crate) logits: u64,
    pub(crate) vocab: u32,
    pub(crate) _pad: u32,
    pub(crate) out: u64,
}
