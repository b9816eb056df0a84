//! AVX2 and FMA: rows are lanes (see the `layout` module).
//!
//! ```text
//! for each tile of 32 rows:                       4 groups of 8 lanes
//!   for each block of 128 columns:                4 accumulators for each vector, from zero
//!     for each pair of columns (a, b):
//!       broadcast x[a], x[b] of every vector
//!       for each group: load, shift both codes into place at once, and; accumulate a, then b
//!     total = fma(accumulator, scale, total)
//! ```
//!
//! 1. One or two vectors run straight from the weight stream; more decode a block into a scratch that stays in L1 and
//!    multiply it by groups of three vectors. The chain of each (row, vector) is the same either way.
//! 2. 32 rows × 3 vectors are 12 accumulators, three x and a weight: all 16 registers, and 12 FMAs for seven loads.
//!    16 × 6 would need eight, and its six x lie in one L1 set when k is a multiple of 1024: with the scratch they
//!    overflow eight ways. A remainder of four is done as two and two, since one vector alone has too few chains.
//! 3. Two vectors take columns in pairs rather than fours, to keep 8 accumulators, 4 x, the mask and three temporaries
//!    in registers.

#![allow(clippy::needless_range_loop, reason = "see `accumulate`: arrays of vectors are indexed, not iterated")]

use core::arch::x86_64::*;

use crate::layout::{CHUNK, PLANE, chunk_len, tile_len};
use crate::matrix::block_columns;
use crate::{Avx2, COL_BLOCK, Format, Job, ROW_TILE};

/// Eight-lane groups of a tile.
const GROUPS: usize = ROW_TILE / 8;
/// Vectors of the batch kernel's register block.
const BLOCK_VECTORS: usize = 3;
/// Columns of a step of its inner loop.
const UNROLL: usize = 4;
const CACHE_LINE: usize = 64;

/// A decoded block of a tile: 128 columns of 32 rows.
type Tile = [f32; COL_BLOCK * ROW_TILE];

const E4M3: u8 = 0;
const FP9: u8 = 1;
const BF16: u8 = 2;

const fn format_of(f: u8) -> Format {
    match f {
        E4M3 => Format::E4m3,
        FP9 => Format::Fp9,
        _ => Format::Bf16,
    }
}

/// Runs a checked job.
pub(super) fn multiply(_: Avx2, job: &Job<'_>, out: &mut [f32], out_stride: usize, scratch: &mut Tile) {
    // SAFETY: the token proves AVX2 and FMA. The job was checked: ranges lie inside the matrix in whole tiles and
    // blocks, each input has k elements, each output row range fits `out`.
    unsafe {
        match job.matrix.format() {
            Format::E4m3 => run::<E4M3>(job, out, out_stride, scratch),
            Format::Fp9 => run::<FP9>(job, out, out_stride, scratch),
            Format::Bf16 => run::<BF16>(job, out, out_stride, scratch),
        }
    }
}

/// Chooses the kernel by the number of vectors.
///
/// # Safety
/// `job.check` has passed for `out` and `out_stride`, and F is the matrix's format.
#[target_feature(enable = "avx2,fma")]
unsafe fn run<const F: u8>(job: &Job<'_>, out: &mut [f32], out_stride: usize, scratch: &mut Tile) {
    // SAFETY: as promised by the caller.
    unsafe {
        match job.inputs.count() {
            0 => {}
            1 => stream::<F, 1>(job, out, out_stride),
            2 => stream::<F, 2>(job, out, out_stride),
            _ => batch::<F>(job, out, out_stride, scratch),
        }
    }
}

/// Where to prefetch: a fixed distance ahead, over the end of this job's bytes into what is read next.
struct Ahead {
    distance: usize,
    end: *const u8,
    /// Byte distance from `end` to the next region.
    jump: isize,
}

impl Ahead {
    fn new(job: &Job<'_>) -> Self {
        let data = job.matrix.rows_data(job.rows.clone());
        let end = data.as_ptr_range().end;
        let next = job.prefetch.next;
        let jump = if next.is_empty() { 0 } else { (next.as_ptr() as isize).wrapping_sub(end as isize) };
        Ahead { distance: job.prefetch.distance, end, jump }
    }

    /// The address to prefetch when reading at `at`; never dereferenced.
    #[inline]
    fn of(&self, at: *const u8) -> *const u8 {
        let target = at.wrapping_add(self.distance);
        if target >= self.end { target.wrapping_offset(self.jump) } else { target }
    }
}

/// Columns `4I + 2P` and `4I + 2P + 1` of a chunk for the eight rows of group `g`, as raw f32.
///
/// # Safety
/// `chunk` begins a chunk of format F.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn pair<const F: u8, const I: usize, const P: usize>(chunk: *const u8, g: usize) -> [__m256; 2] {
    // SAFETY: planes up to the format's last are inside the chunk.
    let load = |plane: usize| unsafe { _mm256_loadu_si256(chunk.add(plane * PLANE + g * 32).cast()) };
    let (both, mask) = match F {
        E4M3 => {
            let d = load(I);
            let d = if P == 0 { d } else { _mm256_slli_epi16::<8>(d) };
            (_mm256_srai_epi16::<4>(d), 0x87F0_0000_u32)
        }
        FP9 => {
            let field = match (I, P) {
                (7, _) => load(7 + P),
                (_, 0) => load(I),
                _ => {
                    let tail = match I {
                        0 => _mm256_slli_epi16::<2>(load(7)),
                        1 => _mm256_slli_epi16::<4>(load(7)),
                        2 => _mm256_slli_epi16::<6>(load(7)),
                        3 => _mm256_slli_epi16::<2>(load(8)),
                        4 => _mm256_slli_epi16::<4>(load(8)),
                        5 => _mm256_slli_epi16::<6>(load(8)),
                        _ => _mm256_xor_si256(_mm256_slli_epi16::<8>(load(7)), _mm256_slli_epi16::<7>(load(8))),
                    };
                    _mm256_xor_si256(_mm256_slli_epi16::<9>(load(I)), tail)
                }
            };
            (_mm256_srai_epi16::<3>(field), 0x8FF0_0000)
        }
        _ => {
            let d = load(2 * I + P);
            let high = _mm256_and_si256(d, _mm256_set1_epi32(0xFFFF_0000_u32 as i32));
            return [_mm256_castsi256_ps(high), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(d))];
        }
    };
    let mask = _mm256_set1_epi32(mask as i32);
    let high = _mm256_and_si256(both, mask);
    let low = _mm256_and_si256(_mm256_slli_epi32::<16>(both), mask);
    [_mm256_castsi256_ps(high), _mm256_castsi256_ps(low)]
}

/// Calls `$step::<.., I, P>($args)` for every pair of a chunk, in column order.
macro_rules! each_pair {
    ($step:ident::<$($generic:ident),*>($($args:expr),*)) => {
        each_pair!(@ $step [$($generic),*] ($($args),*) 0 1 2 3 4 5 6 7)
    };
    (@ $step:ident $generics:tt $args:tt $($i:literal)*) => {
        $(each_pair!(@@ $step $generics $args $i);)*
    };
    (@@ $step:ident [$($generic:ident),*] ($($args:expr),*) $i:literal) => {
        $step::<$($generic,)* $i, 0>($($args),*);
        $step::<$($generic,)* $i, 1>($($args),*);
    };
}

/// The same pointer, which the compiler believes to depend on both values: loads through it are neither merged with earlier
/// ones nor moved above the instructions that made them. The processor sees nothing of it.
#[inline]
#[target_feature(enable = "avx2,fma")]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "the block does not look at what the pointer points to")]
fn after(mut pointer: *const u8, [a, b]: [&mut __m256; 2]) -> *const u8 {
    // SAFETY: no instruction, no effect.
    unsafe {
        core::arch::asm!("/* {0} {1} {2} */", inout(reg) pointer, inout(ymm_reg) *a, inout(ymm_reg) *b,
            options(nomem, nostack, preserves_flags));
    }
    pointer
}

/// Fetches plane `plane` of the chunk at `far`, wherever that is.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn prefetch_plane(far: *const u8, plane: usize) {
    for line in 0..PLANE / CACHE_LINE {
        let at = far.wrapping_add(plane * PLANE + line * CACHE_LINE);
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
}

/// Adds one pair of columns of all four groups to every vector's accumulators.
///
/// # Safety
/// `chunk` begins a chunk of format F; each `x` has its 32 columns.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn accumulate<const F: u8, const N: usize, const I: usize, const P: usize>(
    chunk: *const u8,
    far: *const u8,
    x: &[*const f32; N],
    sums: &mut [[__m256; GROUPS]; N],
) {
    const { assert!(N == 1 || N == 2) };
    let column = 4 * I + 2 * P;
    // Prefetches are spread over the chunk: in one burst they fill the miss buffers and stall the loads behind them.
    match (F, P) {
        (BF16, _) => prefetch_plane(far, 2 * I + P),
        (_, 0) => prefetch_plane(far, I),
        (FP9, _) if I == 7 => prefetch_plane(far, 8),
        _ => {}
    }
    // Not `x.map`: a closure with target features is not inlined through a generic function without them.
    let mut pairs = [[_mm256_setzero_ps(); 2]; N];
    for n in 0..N {
        // SAFETY: column + 1 < 32.
        pairs[n] = unsafe { [_mm256_broadcast_ss(&*x[n].add(column)), _mm256_broadcast_ss(&*x[n].add(column + 1))] };
    }
    // SAFETY: as promised by the caller.
    unsafe {
        group::<F, N, I, P, 0>(chunk, &pairs, sums);
        group::<F, N, I, P, 1>(chunk, &pairs, sums);
        group::<F, N, I, P, 2>(chunk, &pairs, sums);
        group::<F, N, I, P, 3>(chunk, &pairs, sums);
    }
}

/// Group G's share of [`accumulate`]; a function of its own so that every index is a constant and the accumulators
/// become registers.
///
/// # Safety
/// `chunk` begins a chunk of format F.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn group<const F: u8, const N: usize, const I: usize, const P: usize, const G: usize>(
    chunk: *const u8,
    x: &[[__m256; 2]; N],
    sums: &mut [[__m256; GROUPS]; N],
) {
    // With two vectors, registers hold one dword of one group at a time: left alone, the compiler loads all four
    // groups first, and the second pair's with the first's, and spills.
    let chunk = match &mut sums[..] {
        [first, second] => {
            let before = (G + GROUPS - 1) % GROUPS;
            after(chunk, [&mut first[before], &mut second[before]])
        }
        _ => chunk,
    };
    // SAFETY: as promised by the caller.
    let [a, b] = unsafe { pair::<F, I, P>(chunk, G) };
    sums[0][G] = _mm256_fmadd_ps(b, x[0][1], _mm256_fmadd_ps(a, x[0][0], sums[0][G]));
    if N > 1 {
        sums[N - 1][G] = _mm256_fmadd_ps(b, x[N - 1][1], _mm256_fmadd_ps(a, x[N - 1][0], sums[N - 1][G]));
    }
}

/// N vectors straight from the stream.
///
/// # Safety
/// As [`run`]; `job` has N vectors.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn stream<const F: u8, const N: usize>(job: &Job<'_>, out: &mut [f32], out_stride: usize) {
    let matrix = job.matrix;
    let (format, k) = (format_of(F), matrix.k());
    let ahead = Ahead::new(job);
    let x: [*const f32; N] = core::array::from_fn(|v| job.inputs.vector(v, k).as_ptr());
    let out = out.as_mut_ptr();
    for row in job.rows.clone().step_by(ROW_TILE) {
        let tile = matrix.data()[row / ROW_TILE * tile_len(format, k)..][..tile_len(format, k)].as_ptr();
        let mut totals = [[_mm256_setzero_ps(); GROUPS]; N];
        // SAFETY: row + ROW_TILE - rows.start values of vector v lie in `out` from v · out_stride.
        let target = |v: usize, g: usize| unsafe { out.add(v * out_stride + row - job.rows.start + 8 * g) };
        if job.columns.start != 0 {
            for v in 0..N {
                for g in 0..GROUPS {
                    // SAFETY: eight values at `target`, see above.
                    totals[v][g] = unsafe { _mm256_loadu_ps(target(v, g)) };
                }
            }
        }
        for block in job.blocks() {
            let mut sums = [[_mm256_setzero_ps(); GROUPS]; N];
            for column in block_columns(block, k).step_by(CHUNK) {
                // SAFETY: column < k, so the chunk is inside the tile and x has 32 more columns.
                unsafe {
                    let chunk = tile.add(column / CHUNK * chunk_len(format));
                    let far = ahead.of(chunk);
                    let mut at = x;
                    for at in &mut at {
                        *at = at.add(column);
                    }
                    each_pair!(accumulate::<F, N>(chunk, far, &at, &mut sums));
                }
            }
            let factor = _mm256_set1_ps(matrix.fold_factor(row, block));
            for v in 0..N {
                for g in 0..GROUPS {
                    totals[v][g] = _mm256_fmadd_ps(sums[v][g], factor, totals[v][g]);
                }
            }
        }
        for v in 0..N {
            for g in 0..GROUPS {
                let total = match job.factors {
                    Some(factors) => _mm256_mul_ps(totals[v][g], _mm256_set1_ps(factors[v])),
                    None => totals[v][g],
                };
                // SAFETY: eight values at `target`, see above.
                unsafe { _mm256_storeu_ps(target(v, g), total) };
            }
        }
    }
}

/// Stores one pair of columns of all four groups, decoded, column after column.
///
/// # Safety
/// `chunk` begins a chunk of format F; `tile` has room for its 32 columns of 32 rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn decode<const F: u8, const I: usize, const P: usize>(chunk: *const u8, tile: *mut f32) {
    for g in 0..GROUPS {
        // SAFETY: as promised by the caller; column 4I + 2P + 1 is the chunk's 31st at most.
        unsafe {
            let [a, b] = pair::<F, I, P>(chunk, g);
            let tile = tile.add((4 * I + 2 * P) * ROW_TILE + 8 * g);
            _mm256_storeu_ps(tile, a);
            _mm256_storeu_ps(tile.add(ROW_TILE), b);
        }
    }
}

/// What [`block_step`] does with its sums besides the scale.
#[derive(Clone, Copy)]
struct Fold<'a> {
    scale: f32,
    /// Whether `out` already holds the columns before.
    resume: bool,
    /// Present in the last block only.
    factors: Option<&'a [f32]>,
}

/// Three or more vectors: decode once, use for all.
///
/// # Safety
/// As [`run`].
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn batch<const F: u8>(job: &Job<'_>, out: &mut [f32], out_stride: usize, scratch: &mut Tile) {
    let matrix = job.matrix;
    let (format, k, count) = (format_of(F), matrix.k(), job.inputs.count());
    if job.columns.is_empty() {
        return empty_columns(job, out, out_stride);
    }
    let out = out.as_mut_ptr();
    for row in job.rows.clone().step_by(ROW_TILE) {
        let tile = matrix.data()[row / ROW_TILE * tile_len(format, k)..][..tile_len(format, k)].as_ptr();
        for block in job.blocks() {
            let columns = block_columns(block, k);
            for column in columns.clone().step_by(CHUNK) {
                // SAFETY: the chunk is inside the tile; a block has at most 128 columns.
                unsafe {
                    let chunk = tile.add(column / CHUNK * chunk_len(format));
                    let decoded = scratch.as_mut_ptr().add((column - columns.start) * ROW_TILE);
                    each_pair!(decode::<F>(chunk, decoded));
                }
            }
            let fold = Fold {
                scale: matrix.fold_factor(row, block),
                resume: columns.start != 0,
                factors: job.factors.filter(|_| columns.end == k),
            };
            let mut v = 0;
            while v < count {
                let n = match count - v {
                    1 => 1,
                    2 | 4 => 2,
                    _ => BLOCK_VECTORS,
                };
                let mut x = [core::ptr::null(); BLOCK_VECTORS];
                for (i, x) in x[..n].iter_mut().enumerate() {
                    *x = job.inputs.vector(v + i, k)[columns.start..].as_ptr();
                }
                let fold = Fold { factors: fold.factors.map(|factors| &factors[v..v + n]), ..fold };
                // SAFETY: scratch holds the block's columns, the first n of x as many values, and rows `row..row + 32`
                // of vectors `v..v + n` lie in `out`.
                unsafe {
                    let (weights, columns) = (scratch.as_ptr(), columns.len());
                    let target = out.add(v * out_stride + row - job.rows.start);
                    match n {
                        1 => block_step::<1>(weights, x, columns, target, out_stride, fold),
                        2 => block_step::<2>(weights, x, columns, target, out_stride, fold),
                        _ => block_step::<3>(weights, x, columns, target, out_stride, fold),
                    }
                }
                v += n;
            }
        }
    }
}

/// A job without columns still defines its outputs: zero, or what was there times the factors.
fn empty_columns(job: &Job<'_>, out: &mut [f32], out_stride: usize) {
    for v in 0..job.inputs.count() {
        let factor = job.factors.map(|factors| factors[v]);
        for value in &mut out[v * out_stride..][..job.rows.len()] {
            let total = if job.columns.start == 0 { 0.0 } else { *value };
            *value = factor.map_or(total, |factor| total * factor);
        }
    }
}

/// A tile's 32 rows × N vectors over one decoded block, folded into `out`.
///
/// # Safety
/// `weights` points at `columns` (a multiple of [`UNROLL`]) times [`ROW_TILE`] values; the first N of `x` at `columns`
/// values each; `out + i · out_stride` at [`ROW_TILE`] values for each i < N; `fold.factors` has N values.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn block_step<const N: usize>(
    weights: *const f32,
    x: [*const f32; BLOCK_VECTORS],
    columns: usize,
    out: *mut f32,
    out_stride: usize,
    fold: Fold<'_>,
) {
    const { assert!(N <= BLOCK_VECTORS && CHUNK.is_multiple_of(UNROLL)) };
    let mut sums = [[_mm256_setzero_ps(); GROUPS]; N];
    for first in (0..columns).step_by(UNROLL) {
        for column in first..first + UNROLL {
            let mut at = [_mm256_setzero_ps(); N];
            for (at, x) in at.iter_mut().zip(x) {
                // SAFETY: column < columns.
                *at = unsafe { _mm256_broadcast_ss(&*x.add(column)) };
            }
            for g in 0..GROUPS {
                // SAFETY: column < columns.
                let w = unsafe { _mm256_loadu_ps(weights.add(column * ROW_TILE + 8 * g)) };
                for (sums, x) in sums.iter_mut().zip(at) {
                    sums[g] = _mm256_fmadd_ps(w, x, sums[g]);
                }
            }
        }
    }
    let scale = _mm256_set1_ps(fold.scale);
    for (v, sums) in sums.into_iter().enumerate() {
        for (g, sum) in sums.into_iter().enumerate() {
            // SAFETY: 32 values from `out + v · out_stride`.
            unsafe {
                let target = out.add(v * out_stride + 8 * g);
                let before = if fold.resume { _mm256_loadu_ps(target) } else { _mm256_setzero_ps() };
                let mut total = _mm256_fmadd_ps(sum, scale, before);
                if let Some(factors) = fold.factors {
                    total = _mm256_mul_ps(total, _mm256_set1_ps(factors[v]));
                }
                _mm256_storeu_ps(target, total);
            }
        }
    }
}
