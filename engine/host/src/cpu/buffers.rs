//! Activation buffers of a pass, and the views that ops read and write.

use model::program::{Buffer, View};
use rayon::prelude::*;

/// Rows of f32 with a stride: `[lanes, width]` within a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Strided<'a> {
    data: &'a [f32],
    stride: usize,
    start: usize,
    width: usize,
    lanes: usize,
}

impl<'a> Strided<'a> {
    /// Columns `start .. start + width` of `lanes` rows that lie `stride` apart.
    pub(crate) fn new(data: &'a [f32], stride: usize, start: usize, width: usize, lanes: usize) -> Self {
        assert!(start + width <= stride && lanes * stride <= data.len(), "a view lies within its buffer");
        Strided { data, stride, start, width, lanes }
    }

    /// Whole rows that follow each other.
    pub(crate) fn dense(data: &'a [f32], width: usize) -> Self {
        Strided::new(data, width, 0, width, data.len() / width)
    }

    /// One lane's columns.
    #[inline(always)]
    pub(crate) fn row(&self, lane: usize) -> &'a [f32] {
        &self.data[lane * self.stride + self.start..][..self.width]
    }

    /// Number of rows.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Columns of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Columns `start .. start + width` of this view.
    pub(crate) fn columns(&self, start: usize, width: usize) -> Strided<'a> {
        assert!(start + width <= self.width, "columns lie within their view");
        Strided { start: self.start + start, width, ..*self }
    }
}

/// The same, to be written.
pub(crate) struct StridedMut<'a> {
    data: &'a mut [f32],
    stride: usize,
    start: usize,
    width: usize,
}

/// Elements below which a loop over lanes stays on one thread.
const SERIAL_ELEMENTS: usize = 32 * 1024;

impl<'a> StridedMut<'a> {
    /// Whole rows that follow each other.
    pub(crate) fn dense(data: &'a mut [f32], width: usize) -> Self {
        StridedMut { data, stride: width, start: 0, width }
    }

    /// One lane's columns.
    pub(crate) fn row(&mut self, lane: usize) -> &mut [f32] {
        &mut self.data[lane * self.stride + self.start..][..self.width]
    }

    /// Calls `each(lane, row)` for every lane, on several threads if there is enough to do.
    pub(crate) fn for_each_row(self, each: impl Fn(usize, &mut [f32]) + Sync) {
        let (start, width) = (self.start, self.width);
        let body = |(lane, row): (usize, &mut [f32])| each(lane, &mut row[start..start + width]);
        if self.data.len() / self.stride * width < SERIAL_ELEMENTS {
            self.data.chunks_mut(self.stride).enumerate().for_each(body);
        } else {
            self.data.par_chunks_mut(self.stride).enumerate().for_each(body);
        }
    }

    /// Calls `each(lane, row)` for every lane on this thread.
    pub(crate) fn each_row(self, each: impl Fn(usize, &mut [f32])) {
        let (start, width) = (self.start, self.width);
        self.data
            .chunks_mut(self.stride)
            .enumerate()
            .for_each(|(lane, row)| each(lane, &mut row[start..start + width]));
    }

    /// Calls `each(lane, row)` for every lane, always as one task a lane; for loops whose cost is not in their output.
    pub(crate) fn par_each_row(self, each: impl Fn(usize, &mut [f32]) + Sync) {
        let (start, width) = (self.start, self.width);
        self.data
            .par_chunks_mut(self.stride)
            .enumerate()
            .for_each(|(lane, row)| each(lane, &mut row[start..start + width]));
    }
}

/// A pass's activations, by [`Buffer`].
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    widths: Vec<usize>,
    data: Vec<Vec<f32>>,
    lanes: usize,
}

impl Buffers {
    /// Buffers of these widths.
    pub(crate) fn new(widths: &[usize]) -> Self {
        Buffers { widths: widths.to_vec(), data: vec![Vec::new(); widths.len()], lanes: 0 }
    }

    /// Makes room for `lanes` rows; contents are undefined.
    pub(crate) fn set_lanes(&mut self, lanes: usize) {
        self.lanes = lanes;
        for (data, width) in self.data.iter_mut().zip(&self.widths) {
            data.resize(lanes * width, 0.0);
        }
    }

    fn width(&self, buffer: Buffer) -> usize {
        self.widths[usize::from(buffer.0)]
    }

    /// Reads a view.
    pub(crate) fn read(&self, view: View) -> Strided<'_> {
        let data = &self.data[usize::from(view.buffer.0)];
        Strided::new(data, self.width(view.buffer), view.start, view.width, self.lanes)
    }

    /// Writes a view in place.
    pub(crate) fn write(&mut self, view: View) -> StridedMut<'_> {
        let stride = self.width(view.buffer);
        assert!(view.start + view.width <= stride, "a view lies within its buffer");
        StridedMut { data: &mut self.data[usize::from(view.buffer.0)], stride, start: view.start, width: view.width }
    }

    /// Writes `out` while reading other buffers. Reading `out`'s own buffer inside is a fault of the program (its length is then 0 and
    /// the read panics); [`Program::check`](model::program::Program::check) refuses such programs.
    pub(crate) fn produce<R>(&mut self, out: View, f: impl FnOnce(&Buffers, StridedMut<'_>) -> R) -> R {
        let slot = usize::from(out.buffer.0);
        let mut data = std::mem::take(&mut self.data[slot]);
        let stride = self.width(out.buffer);
        assert!(out.start + out.width <= stride, "a view lies within its buffer");
        let result = f(self, StridedMut { data: &mut data, stride, start: out.start, width: out.width });
        self.data[slot] = data;
        result
    }
}
