//! Kernels against plain loops, and one instruction set against the other.

use proptest::prelude::*;

use super::buffers::Strided;
use super::norm::dot;
use super::simd::Isa;

/// The written order of [`super::dot`], word for word, for unscaled rows.
fn dot_by_definition(a: &[f32], b: &[f32]) -> f32 {
    let mut total = [0.0f32; 8];
    for (a, b) in a.chunks(128).zip(b.chunks(128)) {
        let mut lanes = [0.0f32; 8];
        for (c, (a, b)) in a.iter().zip(b).enumerate() {
            lanes[c % 8] = a.mul_add(*b, lanes[c % 8]);
        }
        for (total, lane) in total.iter_mut().zip(lanes) {
            *total = lane.mul_add(1.0, *total);
        }
    }
    let [a, b, c, d, e, f, g, h] = total;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

fn values(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / 8_388_608.0 - 1.0) * 3.0
        })
        .collect()
}

proptest! {
    #[test]
    fn every_instruction_set_keeps_the_written_order(seed: u64, n in 1usize..400) {
        let (a, b) = (values(seed, n), values(!seed, n));
        for isa in Isa::available() {
            prop_assert_eq!(dot(isa, &a, &b).to_bits(), dot_by_definition(&a, &b).to_bits(), "{:?}", isa);
        }
    }
}

/// Products with stored matrices, each type, against the definition.
mod products {
    use super::*;
    use crate::cpu::buffers::StridedMut;
    use crate::cpu::heads::{head_mix, head_project};
    use crate::cpu::linear::{MatrixRows, product};
    use model::checkpoint::Matrix;
    use model::program::{HeadRows, MatrixId};
    use model::synthetic;

    /// A matrix of a generated checkpoint: fp8 with block scales, and one of bf16.
    fn matrices() -> Vec<Matrix> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("checkpoint");
        let options =
            synthetic::Options { folder: &path, dims: &synthetic::Dims::tiny(), seed: 5, shard_bytes: 1 << 20 };
        synthetic::write(&options).expect("room for a tiny checkpoint");
        let model = model::arch::load(&path).expect("a good checkpoint");
        model.weights.matrices
    }

    #[test]
    fn products_equal_the_definition_for_any_number_of_lanes() {
        let mut seen = std::collections::BTreeSet::new();
        for matrix in matrices() {
            if !seen.insert((matrix.dtype().to_string(), matrix.rows, matrix.cols)) {
                continue;
            }
            for lanes in [1, 2, 3, 4, 5, 9] {
                let (width, start) = (matrix.cols + 7, 3);
                let x = values(lanes as u64, lanes * width);
                let x = Strided::new(&x, width, start, matrix.cols, lanes);
                for isa in Isa::available() {
                    let mut out = vec![0.0; matrix.rows * lanes];
                    product(isa, MatrixRows::all(&matrix), x, &mut out);
                    for row in [0, 1, matrix.rows / 2, matrix.rows - 1] {
                        let want = scaled_dot(&matrix, row, x.row(lanes - 1));
                        let got = out[row * lanes + lanes - 1];
                        assert_eq!(got.to_bits(), want.to_bits(), "{isa:?} {matrix:?} row {row}, {lanes} lanes");
                    }
                }
            }
        }
        assert!(seen.iter().any(|s| s.0 == "F8_E4M3") && seen.iter().any(|s| s.0 == "BF16"), "{seen:?}");
    }

    /// One row by the definition, scales entering at the end of each block.
    fn scaled_dot(matrix: &Matrix, row: usize, x: &[f32]) -> f32 {
        let codes = Matrix { scale: None, ..matrix.clone() };
        let mut w = vec![0.0; matrix.cols];
        codes.row_to_f32(row, &mut w);
        let mut total = [0.0f32; 8];
        for (block, (w, x)) in w.chunks(128).zip(x.chunks(128)).enumerate() {
            let mut lanes = [0.0f32; 8];
            w.iter().zip(x).enumerate().for_each(|(c, (w, x))| lanes[c % 8] = w.mul_add(*x, lanes[c % 8]));
            let scale = matrix.scale.as_ref().map_or(1.0, |s| s.get(row / 128, block));
            total.iter_mut().zip(lanes).for_each(|(t, lane)| *t = lane.mul_add(scale, *t));
        }
        let [a, b, c, d, e, f, g, h] = total;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    #[test]
    fn a_nan_is_refused_with_tensor_file_row_and_column() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("checkpoint");
        let dims = synthetic::Dims::tiny();
        let options = synthetic::Options { folder: &path, dims: &dims, seed: 6, shard_bytes: 1 << 30 };
        synthetic::write(&options).expect("room for a tiny checkpoint");
        for (ending, bad) in [("layers.1.self_attn.o_proj.weight", &[0xff][..]), ("lm_head.weight", &[0x80, 0xff])] {
            let good = model::arch::load(&path).expect("a good checkpoint");
            let matrix = good.weights.matrices.iter().find(|m| m.data.name().ends_with(ending)).expect("it has one");
            let (file, cols) = (matrix.data.file().to_owned(), matrix.cols);
            let mut bytes = std::fs::read(&file).expect("readable");
            let start = bytes.windows(matrix.data.bytes().len()).position(|w| w == matrix.data.bytes()).expect("there");
            let at = start + (3 * cols + 5) * bad.len();
            bytes[at..at + bad.len()].copy_from_slice(bad);
            let damaged = folder.path().join("damaged");
            std::fs::create_dir_all(&damaged).expect("writable");
            for entry in std::fs::read_dir(&path).expect("readable").flatten() {
                std::fs::copy(entry.path(), damaged.join(entry.file_name())).expect("room");
            }
            std::fs::write(damaged.join(file.file_name().expect("a file")), bytes).expect("room");
            let model = std::sync::Arc::new(model::arch::load(&damaged).expect("shapes are right"));
            let options =
                crate::cpu::CpuOptions { numerics: model::Numerics::Exact, max_lanes: 1, sources: 1, isa: Isa::best() };
            let error = crate::cpu::CpuStage::new(model, options).err().expect("a NaN").to_string();
            for part in [ending, "row 3", "column 5", "damaged"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }

    #[test]
    fn head_products_equal_plain_loops() {
        let matrix = matrices().into_iter().find(|m| m.data.name().ends_with("kv_b_proj.weight")).expect("MLA");
        let heads = 4;
        let per_head = matrix.rows / heads;
        let (first_row, rows) = (per_head / 4, per_head / 2);
        let weight = HeadRows { matrix: MatrixId(0), heads, rows_per_head: per_head, first_row, rows };
        for lanes in [1, 3, 6] {
            let x = values(9, lanes * heads * rows);
            let projected = values(11, lanes * heads * matrix.cols);
            for isa in Isa::available() {
                let mut scratch = Vec::new();
                let mut mixed = vec![0.0; lanes * heads * matrix.cols];
                let out = StridedMut::dense(&mut mixed, heads * matrix.cols);
                head_mix(isa, &matrix, &weight, Strided::dense(&x, heads * rows), rows, out, &mut scratch);
                let mut values = vec![0.0; lanes * heads * rows];
                let out = StridedMut::dense(&mut values, heads * rows);
                head_project(isa, &matrix, &weight, Strided::dense(&projected, heads * matrix.cols), out, &mut scratch);
                let (t, h) = (lanes - 1, 2);
                let row = |i: usize| h * per_head + first_row + i;
                let mut want = vec![0.0f32; matrix.cols];
                let mut w = vec![0.0; matrix.cols];
                for i in 0..rows {
                    matrix.row_to_f32(row(i), &mut w);
                    let q = x[(t * heads + h) * rows + i];
                    want.iter_mut().zip(&w).for_each(|(s, w)| *s = q.mul_add(*w, *s));
                }
                assert_eq!(mixed[(t * heads + h) * matrix.cols..][..matrix.cols], want, "{isa:?}, {lanes} lanes");
                let x = &projected[(t * heads + h) * matrix.cols..][..matrix.cols];
                assert_eq!(
                    values[(t * heads + h) * rows + 5],
                    scaled_dot(&matrix, row(5), x),
                    "{isa:?}, {lanes} lanes"
                );
            }
        }
    }
}
