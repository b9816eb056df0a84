//! The host's weights on the card: each matrix once, in the forms that the lowered programs ask for, in one allocation whose size is known before
//! anything is copied.

use std::collections::HashMap;
use std::sync::Arc;

use model::checkpoint::{DType, Matrix};
use model::program::{Model, RotaryId, VectorId};

use super::abi::{BF16, BLOCK, E4M3, F32, Fill};
use super::device::Device;
use super::error::CudaError;
use super::kernels::{Call, Kernel, Kernels, Parameters};
use super::memory::Memory;
use super::stream::Stream;
use super::task::{Cut, Heads, WeightKey};

/// Matrices and vectors start at multiples of this.
const ALIGN: usize = 256;

/// A matrix on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Elements.
    pub(crate) address: u64,
    /// Block scales, or 0.
    pub(crate) scale: u64,
    pub(crate) dtype: u32,
}

/// All of them.
pub(crate) struct DeviceWeights {
    memory: Memory,
    matrices: HashMap<WeightKey, Stored>,
    vectors: Vec<u64>,
    rotary: Vec<u64>,
}

/// How weights get onto the card.
pub(crate) enum Source<'a> {
    /// Copied; called with bytes copied and bytes in all.
    Checkpoint(&'a mut dyn FnMut(u64, u64)),
    /// Made there at random, to measure speed: nothing is read.
    Random { kernels: &'a Kernels, stream: &'a Stream, seed: u32 },
}

impl DeviceWeights {
    /// Puts what `keys` name, all vectors and all rotary tables on the card.
    pub(crate) fn load(
        device: &Arc<Device>,
        model: &Model,
        keys: &[WeightKey],
        mut source: Source<'_>,
    ) -> Result<DeviceWeights, CudaError> {
        let plan = Plan::new(model, keys);
        let memory = Memory::new(device, "the model's weights", plan.bytes)?;
        let base = memory.address();
        let at = |offset: usize| base + offset as u64;
        let mut done = 0;
        for (part, offset) in &plan.parts {
            let bytes = part.bytes(model);
            match &mut source {
                Source::Checkpoint(progress) => {
                    part.upload(model, &memory, *offset)?;
                    done += bytes as u64;
                    progress(done, plan.payload);
                }
                // Angles are no weights.
                Source::Random { .. } if matches!(part, Part::Rotary(_)) => part.upload(model, &memory, *offset)?,
                Source::Random { kernels, stream, seed } => {
                    *seed = seed.wrapping_add(1);
                    part.fill(model, kernels, stream, at(*offset), *seed)?;
                }
            }
        }
        if let Source::Random { stream, .. } = source {
            stream.synchronize()?;
        }
        let matrices = plan.matrices.iter().map(|(&key, &(offset, scale, dtype))| {
            (key, Stored { address: at(offset), scale: scale.map_or(0, at), dtype })
        });
        Ok(DeviceWeights {
            matrices: matrices.collect(),
            vectors: plan.vectors.iter().map(|&offset| at(offset)).collect(),
            rotary: plan.rotary.iter().map(|&offset| at(offset)).collect(),
            memory,
        })
    }

    /// Bytes on the card.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// A matrix that was asked for.
    pub(crate) fn matrix(&self, key: WeightKey) -> Stored {
        self.matrices[&key]
    }

    /// A vector's values.
    pub(crate) fn vector(&self, id: VectorId) -> u64 {
        self.vectors[id.0 as usize]
    }

    /// A table's frequencies.
    pub(crate) fn rotary(&self, id: RotaryId) -> u64 {
        self.rotary[usize::from(id.0)]
    }
}

/// Bytes that weights of these forms take.
pub(crate) fn bytes_of(model: &Model, keys: &[WeightKey]) -> usize {
    Plan::new(model, keys).bytes
}

/// What lies where.
struct Plan {
    parts: Vec<(Part, usize)>,
    /// Offsets of elements and scales, and the type.
    matrices: HashMap<WeightKey, (usize, Option<usize>, u32)>,
    vectors: Vec<usize>,
    rotary: Vec<usize>,
    bytes: usize,
    payload: u64,
}

/// One run of bytes.
#[derive(Clone, Copy)]
enum Part {
    Elements(WeightKey),
    Scales(WeightKey),
    Vector(usize),
    Rotary(usize),
}

impl Plan {
    fn new(model: &Model, keys: &[WeightKey]) -> Plan {
        let mut plan = Plan {
            parts: Vec::new(),
            matrices: HashMap::new(),
            vectors: Vec::new(),
            rotary: Vec::new(),
            bytes: 0,
            payload: 0,
        };
        // One tensor may have several numbers (an MTP layer that shares the embedding): its bytes tell.
        let mut seen: HashMap<(usize, Cut, bool), WeightKey> = HashMap::new();
        for &key in keys {
            if plan.matrices.contains_key(&key) {
                continue;
            }
            let matrix = matrix(model, key);
            let identity = (matrix.data.bytes().as_ptr() as usize, key.cut, key.decoded);
            let same = seen.get(&identity).or_else(|| seen.values().find(|other| is_copy(model, key, **other)));
            if let Some(same) = same {
                let place = plan.matrices[same];
                plan.matrices.insert(key, place);
                continue;
            }
            seen.insert(identity, key);
            let elements = plan.place(model, Part::Elements(key));
            let scaled = !key.decoded && matrix.scale.is_some();
            let scale = scaled.then(|| plan.place(model, Part::Scales(key)));
            plan.matrices.insert(key, (elements, scale, stored_type(matrix, key)));
        }
        plan.vectors = (0..model.weights.vectors.len()).map(|i| plan.place(model, Part::Vector(i))).collect();
        plan.rotary = (0..model.rotary.len()).map(|i| plan.place(model, Part::Rotary(i))).collect();
        plan
    }

    fn place(&mut self, model: &Model, part: Part) -> usize {
        let (offset, bytes) = (self.bytes, part.bytes(model));
        self.parts.push((part, offset));
        self.bytes += bytes.next_multiple_of(ALIGN);
        self.payload += bytes as u64;
        offset
    }
}

fn matrix(model: &Model, key: WeightKey) -> &Matrix {
    &model.weights.matrices[key.matrix.0 as usize]
}

/// Whether two large matrices are the same: published files repeat embedding and head for the MTP layer, gigabytes each.
fn is_copy(model: &Model, a: WeightKey, b: WeightKey) -> bool {
    const LARGE: usize = 256 << 20;
    let whole = |key: WeightKey| key.cut == Cut::Whole && !key.decoded;
    let (x, y) = (matrix(model, a), matrix(model, b));
    whole(a)
        && whole(b)
        && x.data.bytes().len() >= LARGE
        && (x.rows, x.cols, x.dtype(), &x.scale) == (y.rows, y.cols, y.dtype(), &y.scale)
        && x.data.bytes() == y.data.bytes()
}

fn stored_type(matrix: &Matrix, key: WeightKey) -> u32 {
    match matrix.dtype() {
        _ if key.decoded => F32,
        DType::F8E4M3 => E4M3,
        DType::BF16 => BF16,
        _ => F32,
    }
}

fn element_bytes(matrix: &Matrix, key: WeightKey) -> usize {
    match stored_type(matrix, key) {
        E4M3 => 1,
        BF16 => 2,
        _ => 4,
    }
}

impl Part {
    fn bytes(self, model: &Model) -> usize {
        match self {
            Part::Elements(key) => elements(matrix(model, key), key) * element_bytes(matrix(model, key), key),
            Part::Scales(key) => scales(matrix(model, key), key) * 4,
            Part::Vector(i) => model.weights.vectors[i].len() * 4,
            Part::Rotary(i) => model.rotary[i].frequencies.len() * 4,
        }
    }

    fn upload(self, model: &Model, memory: &Memory, offset: usize) -> Result<(), CudaError> {
        match self {
            Part::Elements(key) => {
                let matrix = matrix(model, key);
                match (key.cut, key.decoded) {
                    (Cut::Whole, false) => memory.write(offset, matrix.data.bytes()),
                    (_, false) => memory.write(offset, &cut_bytes(matrix, key.cut)),
                    (_, true) => memory.write(offset, &cut_values(matrix, key.cut)),
                }
            }
            Part::Scales(key) => memory.write(offset, &cut_scales(matrix(model, key), key.cut)),
            Part::Vector(i) => memory.write(offset, &model.weights.vectors[i]),
            Part::Rotary(i) => memory.write(offset, &model.rotary[i].frequencies),
        }
    }

    /// Values that give outputs near 1 from inputs near 1.
    fn fill(self, model: &Model, kernels: &Kernels, stream: &Stream, at: u64, seed: u32) -> Result<(), CudaError> {
        /// Root mean square of uniformly drawn e4m3 codes, about.
        const CODES: f32 = 90.0;
        let (count, dtype, scale) = match self {
            Part::Elements(key) => {
                let (matrix, k) = (matrix(model, key), inputs(matrix(model, key), key));
                (elements(matrix, key), stored_type(matrix, key), (3.0 / k as f32).sqrt())
            }
            Part::Scales(key) => {
                let (matrix, k) = (matrix(model, key), inputs(matrix(model, key), key));
                (scales(matrix, key), F32, (3.0 / k as f32).sqrt() / CODES)
            }
            Part::Vector(i) => (model.weights.vectors[i].len(), F32, 1.0),
            Part::Rotary(i) => (model.rotary[i].frequencies.len(), F32, 1.0),
        };
        let parameters = Parameters::Fill(Fill { at, count: count as u64, dtype, seed, scale, _pad: 0 });
        let grid = [u32::try_from(count.div_ceil(256 * 8)).unwrap_or(u32::MAX).clamp(1, 4096), 1, 1];
        let threads = Kernel::Fill.threads();
        let call = Call { kernel: Kernel::Fill, grid, threads, shared: 0, parameters, early: false };
        kernels.launch(stream, &call, false)
    }
}

fn elements(matrix: &Matrix, key: WeightKey) -> usize {
    match key.cut {
        Cut::Whole => matrix.rows * matrix.cols,
        Cut::Rows(heads) | Cut::Columns(heads) => heads.heads * heads.rows * matrix.cols,
    }
}

fn inputs(matrix: &Matrix, key: WeightKey) -> usize {
    match key.cut {
        Cut::Whole | Cut::Rows(_) => matrix.cols,
        Cut::Columns(heads) => heads.rows,
    }
}

fn scales(matrix: &Matrix, key: WeightKey) -> usize {
    match key.cut {
        Cut::Whole => matrix.scale.as_ref().map_or(0, |s| s.values().len()),
        Cut::Rows(heads) | Cut::Columns(heads) => heads.heads * (heads.rows / BLOCK) * matrix.cols.div_ceil(BLOCK),
    }
}

/// Rows of the matrix that a head uses.
fn head_rows(heads: &Heads, head: usize) -> std::ops::Range<usize> {
    let first = head * heads.rows_per_head + heads.first_row;
    first..first + heads.rows
}

/// `items` are a head's `[rows, k]`; gives them in the cut's order.
fn in_order<T: Copy>(items: &[T], k: usize, cut: Cut, out: &mut Vec<T>) {
    match cut {
        Cut::Columns(_) => (0..k).for_each(|c| out.extend(items.iter().skip(c).step_by(k))),
        Cut::Whole | Cut::Rows(_) => out.extend_from_slice(items),
    }
}

/// The cut's elements as stored.
fn cut_bytes(matrix: &Matrix, cut: Cut) -> Vec<u8> {
    let (Cut::Rows(heads) | Cut::Columns(heads)) = cut else { return matrix.data.bytes().to_vec() };
    let (row, bytes) = (matrix.row_bytes(), matrix.data.bytes());
    let mut out = Vec::with_capacity(heads.heads * heads.rows * row);
    for head in 0..heads.heads {
        let rows = head_rows(&heads, head);
        let part = &bytes[rows.start * row..rows.end * row];
        match row / matrix.cols.max(1) {
            1 => in_order(part, matrix.cols, cut, &mut out),
            size => {
                // Elements of two or four bytes move whole.
                let mut moved = Vec::with_capacity(part.len() / size);
                let indices: Vec<u32> = (0..(part.len() / size) as u32).collect();
                in_order(&indices, matrix.cols, cut, &mut moved);
                moved.iter().for_each(|&i| out.extend_from_slice(&part[i as usize * size..][..size]));
            }
        }
    }
    out
}

/// The cut's elements decoded.
fn cut_values(matrix: &Matrix, cut: Cut) -> Vec<f32> {
    let (Cut::Rows(heads) | Cut::Columns(heads)) = cut else { return matrix.to_f32_vec() };
    let mut out = Vec::with_capacity(heads.heads * heads.rows * matrix.cols);
    let mut part = vec![0.0; heads.rows * matrix.cols];
    for head in 0..heads.heads {
        let rows = head_rows(&heads, head);
        rows.zip(part.chunks_mut(matrix.cols.max(1))).for_each(|(row, out)| matrix.row_to_f32(row, out));
        in_order(&part, matrix.cols, cut, &mut out);
    }
    out
}

/// The cut's block scales; heads start at whole blocks (see [`super::lower`]).
fn cut_scales(matrix: &Matrix, cut: Cut) -> Vec<f32> {
    let Some(scale) = &matrix.scale else { return Vec::new() };
    let (Cut::Rows(heads) | Cut::Columns(heads)) = cut else { return scale.values().to_vec() };
    let mut out = Vec::new();
    for head in 0..heads.heads {
        let rows = head_rows(&heads, head);
        let blocks: Vec<f32> =
            (rows.start / BLOCK..rows.end / BLOCK).flat_map(|block| scale.row(block)).copied().collect();
        in_order(&blocks, scale.cols(), cut, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use model::program::MatrixId;
    use model::synthetic;

    use super::*;

    fn model(fp8: bool, nope: usize) -> (tempfile::TempDir, Model) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("checkpoint");
        let dims = synthetic::Dims { kv_lora: 256, nope, value: 128, fp8, ..synthetic::Dims::tiny() };
        let options = synthetic::Options { folder: &path, dims: &dims, seed: 3, shard_bytes: 1 << 30 };
        synthetic::write(&options).expect("room for a tiny checkpoint");
        let model = model::arch::load(&path).expect("a good checkpoint");
        (folder, model)
    }

    /// Element `[row, column]` of what was cut, decoded with the cut's own scales.
    fn value(dtype: DType, bytes: &[u8], scales: &[f32], k: usize, row: usize, column: usize) -> f32 {
        let at = row * k + column;
        match dtype {
            DType::F8E4M3 => {
                let code = bytes[at];
                let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
                let size =
                    if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
                let scale = scales[row / BLOCK * k.div_ceil(BLOCK) + column / BLOCK];
                (if code & 128 != 0 { -size } else { size }) * scale
            }
            _ => f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])) << 16),
        }
    }

    #[test]
    fn a_heads_rows_are_cut_out_and_turned_with_their_scales() {
        for fp8 in [true, false] {
            let (_folder, model) = model(fp8, 128);
            let id = model.weights.matrices.iter().position(|m| m.data.name().ends_with("kv_b_proj.weight"));
            let id = MatrixId(id.expect("MLA") as u32);
            let matrix = &model.weights.matrices[id.0 as usize];
            let (all, k) = (matrix.to_f32_vec(), matrix.cols);
            let heads = Heads { heads: 2, rows_per_head: 256, first_row: 128, rows: 128 };
            let straight = (cut_bytes(matrix, Cut::Rows(heads)), cut_scales(matrix, Cut::Rows(heads)));
            let turned = (cut_bytes(matrix, Cut::Columns(heads)), cut_scales(matrix, Cut::Columns(heads)));
            let decoded = cut_values(matrix, Cut::Columns(heads));
            for head in 0..2 {
                for (row, column) in [(0, 0), (127, 255), (5, 200), (100, 3)] {
                    let want = all[(head * 256 + 128 + row) * k + column];
                    let dtype = matrix.dtype();
                    assert_eq!(value(dtype, &straight.0, &straight.1, k, head * 128 + row, column), want);
                    assert_eq!(value(dtype, &turned.0, &turned.1, 128, head * k + column, row), want);
                    assert_eq!(decoded[(head * k + column) * 128 + row], want);
                }
            }
        }
    }

    #[test]
    fn a_tensor_with_two_numbers_lies_there_once() {
        let (_folder, mut model) = model(true, 128);
        let whole = |i| WeightKey { matrix: MatrixId(i), cut: Cut::Whole, decoded: false };
        let once = bytes_of(&model, &[whole(0)]);
        let copy = model.weights.matrices[0].clone();
        model.weights.matrices.push(copy);
        let last = model.weights.matrices.len() as u32 - 1;
        assert_eq!(bytes_of(&model, &[whole(0), whole(last), whole(0)]), once);
        assert!(bytes_of(&model, &[whole(0), whole(1)]) > once);
    }
}
