//! Matrix products of the CPU stage: weights stay as stored (e4m3 with block scales, bf16, f32) and are decoded in the kernel.
//!
//! All results follow the order of [`dot`](super::dot). Work is split over weight rows, never along a row. For few lanes a tile
//! decodes its weights as it multiplies; for many, a panel of four rows is decoded once and used for every lane.

use std::cell::Cell;
use std::marker::PhantomData;

use model::checkpoint::{DType, Matrix};
use rayon::prelude::*;

use super::buffers::Strided;
use super::dot::{BLOCK, Bf16, E4m3, F32, Rows, Source, tile};
use super::simd::{Isa, Kernel, Simd, run};

/// Rows of one tile.
const TILE: usize = 4;
/// From this many lanes on, four rows are decoded once into a panel.
const PANEL_LANES: usize = 4;
/// Multiply-adds below which a product is not worth a second thread.
pub(crate) const SERIAL_WORK: usize = 384 * 1024;

/// Some rows of a stored matrix.
#[derive(Clone, Copy)]
pub(crate) struct MatrixRows<'a> {
    matrix: &'a Matrix,
    first: usize,
    count: usize,
}

impl<'a> MatrixRows<'a> {
    /// All rows.
    pub(crate) fn all(matrix: &'a Matrix) -> Self {
        MatrixRows { matrix, first: 0, count: matrix.rows }
    }

    /// Rows `first .. first + count`.
    pub(crate) fn some(matrix: &'a Matrix, first: usize, count: usize) -> Self {
        assert!(first + count <= matrix.rows, "rows lie within their matrix");
        MatrixRows { matrix, first, count }
    }

    /// The whole matrix.
    pub(crate) fn matrix(&self) -> &'a Matrix {
        self.matrix
    }

    /// Stored weights of a row, counted within this range.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        let bytes = self.matrix.row_bytes();
        &self.matrix.data.bytes()[(self.first + row) * bytes..][..bytes]
    }

    /// Block scales of a row, counted within this range.
    #[inline(always)]
    pub(crate) fn scales(&self, row: usize) -> Option<&'a [f32]> {
        self.matrix.scale.as_ref().map(|s| s.row((self.first + row) / BLOCK))
    }

    /// Pointers to R rows from `row` on (counted within this range); rows past the end repeat the last one.
    fn tile<const R: usize>(&self, row: usize) -> Rows<R> {
        let at = |r: usize| (row + r).min(self.count - 1);
        Rows {
            weights: std::array::from_fn(|r| self.row(at(r)).as_ptr()),
            scales: std::array::from_fn(|r| self.scales(at(r)).map_or(std::ptr::null(), <[f32]>::as_ptr)),
        }
    }
}

thread_local! {
    /// A decoded panel of [`TILE`] rows.
    static PANEL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// `out[n · lanes + t] = rows[n] · x[t]`: weight rows outermost, so that threads write apart.
pub(crate) fn product(isa: Isa, rows: MatrixRows<'_>, x: Strided<'_>, out: &mut [f32]) {
    let (k, lanes) = (rows.matrix.cols, x.lanes());
    assert_eq!(x.width(), k, "activation and weight rows are of one length");
    assert_eq!(out.len(), rows.count * lanes, "one result for each row and lane");
    if out.is_empty() {
        return;
    }
    let work = rows.count * k * lanes;
    // At least eight tiles' worth of work for each task, whole tiles.
    let chunk = if work < SERIAL_WORK {
        rows.count
    } else {
        (SERIAL_WORK / 2 / (k * lanes)).clamp(TILE, rows.count.div_ceil(4 * rayon::current_num_threads()).max(TILE))
    };
    let chunk = chunk.next_multiple_of(TILE);
    let body = |(i, out): (usize, &mut [f32])| {
        let first = i * chunk;
        match rows.matrix.dtype() {
            DType::F8E4M3 => run(isa, Product::<E4m3> { rows, first, x, out, source: PhantomData }),
            DType::BF16 => run(isa, Product::<Bf16> { rows, first, x, out, source: PhantomData }),
            _ => run(isa, Product::<F32> { rows, first, x, out, source: PhantomData }),
        }
    };
    if work < SERIAL_WORK {
        body((0, out));
    } else {
        out.par_chunks_mut(chunk * lanes).enumerate().for_each(body);
    }
}

/// Rows from `first` on, as many as `out` has room for, with all lanes.
struct Product<'a, S> {
    rows: MatrixRows<'a>,
    first: usize,
    x: Strided<'a>,
    out: &'a mut [f32],
    source: PhantomData<S>,
}

impl<S: Source> Kernel for Product<'_, S> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Simd>(self) {
        let (k, lanes) = (self.rows.matrix.cols, self.x.lanes());
        // Taken out rather than borrowed in a closure, which would be compiled without the caller's instruction set.
        let mut panel = PANEL.take();
        panel.resize(TILE * k.next_multiple_of(8), 0.0);
        for (i, out) in self.out.chunks_mut(TILE * lanes).enumerate() {
            let tile = self.rows.tile::<TILE>(self.first + i * TILE);
            // SAFETY: `tile` points into its matrix, whose rows have k weights and their scales; the CPU is the caller's duty.
            unsafe {
                if lanes < PANEL_LANES {
                    lanes_of_tile::<V, S>(&tile, self.x, k, out);
                } else {
                    let decoded = decode_panel::<V, S>(&tile, k, &mut panel);
                    lanes_of_tile::<V, F32>(&decoded, self.x, k, out);
                }
            }
        }
        PANEL.set(panel);
    }
}

/// Up to [`TILE`] rows (as many as `out` has) with all lanes, three at a time.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn lanes_of_tile<V: Simd, S: Source>(rows: &Rows<TILE>, x: Strided<'_>, k: usize, out: &mut [f32]) {
    let lanes = x.lanes();
    let ptr = |t: usize| x.row(t).as_ptr();
    let mut t = 0;
    while t < lanes {
        // SAFETY: the caller's; `row` is k long.
        unsafe {
            match lanes - t {
                1 => scatter(tile::<V, S, TILE, 1>(rows, [ptr(t)], k), t, lanes, out),
                2 => scatter(tile::<V, S, TILE, 2>(rows, [ptr(t), ptr(t + 1)], k), t, lanes, out),
                _ => scatter(tile::<V, S, TILE, 3>(rows, [ptr(t), ptr(t + 1), ptr(t + 2)], k), t, lanes, out),
            }
        }
        t += 3;
    }
}

fn scatter<const T: usize>(results: [[f32; T]; TILE], t: usize, lanes: usize, out: &mut [f32]) {
    for (row, results) in out.chunks_mut(lanes).zip(results) {
        row[t..t + T].copy_from_slice(&results);
    }
}

/// The tile's weights as f32, unscaled, in `panel`.
///
/// # Safety
/// As for [`tile`]; `panel` has room for [`TILE`] rows of k rounded up to eight.
#[inline(always)]
unsafe fn decode_panel<V: Simd, S: Source>(rows: &Rows<TILE>, k: usize, panel: &mut [f32]) -> Rows<TILE> {
    let width = k.next_multiple_of(8);
    assert!(panel.len() >= TILE * width, "the panel has room for a tile");
    let whole = k / 8 * 8;
    let panel = panel.as_mut_ptr();
    for r in 0..TILE {
        // SAFETY: reads stay below k weights, the ragged end through a padded copy; writes below `width`.
        unsafe {
            let (from, to) = (rows.weights[r], panel.add(r * width));
            for c in (0..whole).step_by(8) {
                S::load::<V>(from.add(c * S::BYTES)).store(to.add(c));
            }
            if whole < k {
                let mut rest = [0u8; 32];
                std::ptr::copy_nonoverlapping(from.add(whole * S::BYTES), rest.as_mut_ptr(), (k - whole) * S::BYTES);
                S::load::<V>(rest.as_ptr()).store(to.add(whole));
            }
        }
    }
    Rows {
        // SAFETY: within the panel.
        weights: std::array::from_fn(|r| unsafe { panel.add(r * width) }.cast_const().cast()),
        scales: rows.scales,
    }
}
