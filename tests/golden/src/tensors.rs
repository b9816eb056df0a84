//! Named tensors out of safetensors files, as plain vectors.

use std::{collections::BTreeMap, fs, path::Path};

use half::bf16;
use safetensors::{Dtype, SafeTensors};

use crate::{Error, data_dir, or_fail};

/// A tensor of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct GoldenTensor {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<f32>,
}

/// A tensor of ids: tokens, positions or experts; -1 pads rows that are shorter than the tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoldenIds {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<i32>,
}

/// A tensor of single bytes: e4m3 codes, or bytes that a test reads in its own way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoldenBytes {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<u8>,
}

impl GoldenTensor {
    /// Row `row` of the matrix whose columns are the last extent.
    ///
    /// # Panics
    /// If there is no such row.
    #[track_caller]
    pub fn row(&self, row: usize) -> &[f32] {
        row_of(&self.shape, &self.data, row)
    }
}

impl GoldenIds {
    /// Row `row` of the matrix whose columns are the last extent, padding included.
    ///
    /// # Panics
    /// If there is no such row.
    #[track_caller]
    pub fn row(&self, row: usize) -> &[i32] {
        row_of(&self.shape, &self.data, row)
    }
}

#[track_caller]
fn row_of<'a, T>(shape: &[usize], data: &'a [T], row: usize) -> &'a [T] {
    let width = shape.last().copied().unwrap_or(1);
    data.get(row * width..(row + 1) * width)
        .unwrap_or_else(|| panic!("golden data: no row {row} in a tensor of shape {shape:?}"))
}

/// The tensors of one or more safetensors files under their names.
#[derive(Debug)]
pub struct TensorSet {
    tensors: BTreeMap<String, Raw>,
}

#[derive(Debug)]
struct Raw {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl TensorSet {
    /// Reads all tensors of the named files of `folder`.
    pub(crate) fn read<'a>(folder: &Path, files: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let mut tensors = BTreeMap::new();
        for file in files {
            let path = folder.join(file);
            let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
            let parsed = SafeTensors::deserialize(&bytes).map_err(Error::safetensors(&path))?;
            tensors.extend(parsed.iter().map(|(name, view)| {
                let (dtype, shape) = (view.dtype(), view.shape().to_vec());
                (name.to_owned(), Raw { dtype, shape, bytes: view.data().to_vec() })
            }));
        }
        Ok(Self { tensors })
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor of float32, or of bf16 widened to float32.
    ///
    /// # Panics
    /// If there is no such tensor or it has another type.
    #[track_caller]
    pub fn tensor(&self, name: &str) -> GoldenTensor {
        or_fail(self.try_tensor(name))
    }

    /// A tensor of int32.
    ///
    /// # Panics
    /// If there is no such tensor or it has another type.
    #[track_caller]
    pub fn ids(&self, name: &str) -> GoldenIds {
        or_fail(self.try_ids(name))
    }

    /// A tensor of single bytes: uint8 or e4m3 codes.
    ///
    /// # Panics
    /// If there is no such tensor or it has another type.
    #[track_caller]
    pub fn bytes(&self, name: &str) -> GoldenBytes {
        or_fail(self.try_bytes(name))
    }

    fn try_tensor(&self, name: &str) -> Result<GoldenTensor, Error> {
        let raw = self.raw(name, &[Dtype::F32, Dtype::BF16], "float32 or bf16")?;
        let data = if raw.dtype == Dtype::F32 {
            raw.elements(f32::from_le_bytes)
        } else {
            raw.elements(|bytes| bf16::from_le_bytes(bytes).to_f32())
        };
        Ok(GoldenTensor { shape: raw.shape.clone(), data })
    }

    fn try_ids(&self, name: &str) -> Result<GoldenIds, Error> {
        let raw = self.raw(name, &[Dtype::I32], "int32")?;
        Ok(GoldenIds { shape: raw.shape.clone(), data: raw.elements(i32::from_le_bytes) })
    }

    fn try_bytes(&self, name: &str) -> Result<GoldenBytes, Error> {
        let raw = self.raw(name, &[Dtype::U8, Dtype::F8_E4M3], "uint8 or e4m3")?;
        Ok(GoldenBytes { shape: raw.shape.clone(), data: raw.bytes.clone() })
    }

    fn raw(&self, name: &str, dtypes: &[Dtype], expected: &'static str) -> Result<&Raw, Error> {
        let raw = self.tensors.get(name).ok_or_else(|| Error::Unknown {
            kind: "tensor",
            name: name.to_owned(),
            known: self.names().collect::<Vec<_>>().join(", "),
        })?;
        if dtypes.contains(&raw.dtype) {
            return Ok(raw);
        }
        let found = format!("{:?}", raw.dtype);
        Err(Error::Dtype { name: name.to_owned(), expected, found })
    }
}

impl Raw {
    fn elements<const N: usize, T>(&self, from: impl Fn([u8; N]) -> T) -> Vec<T> {
        // safetensors has checked that the bytes are a whole number of elements.
        self.bytes.as_chunks().0.iter().map(|&bytes| from(bytes)).collect()
    }
}

/// Single operations with their inputs: e4m3 codes and rounding, ragged block dequantisation, activation quantisation, the
/// Hadamard rotation, both rotary layouts and the published models' frequency tables. `README.md` lists them.
///
/// # Panics
/// If the file cannot be read.
#[track_caller]
pub fn ops() -> TensorSet {
    or_fail(TensorSet::read(&data_dir().join("ops"), ["ops.safetensors"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_as_what_they_are() {
        let ops = ops();
        assert_eq!(ops.ids("rope.pos").data, [0, 1, 2, 7, 63, 64, 500, 2047]);
        assert_eq!(ops.tensor("dsv32.attention_scaling").data, [1.0]);
        let activations = ops.tensor("actq.in");
        assert_eq!(activations.shape, [6, 384]);
        assert_eq!(activations.row(3), [0.0; 384]);
        assert_eq!(activations.row(4)[..2], [1792.0, 1.0]);
        let codes: Vec<u8> = (0..=255).collect();
        assert_eq!(ops.bytes("e4m3.codes").data, codes);
        assert_eq!(ops.bytes("block.weight").shape, [576, 320]);
    }

    #[test]
    fn block_dequantisation_of_the_recorded_codes_gives_the_recorded_matrix() {
        let ops = ops();
        let values = ops.tensor("e4m3.values").data;
        let (weight, scales) = (ops.bytes("block.weight"), ops.tensor("block.scale_inv"));
        let expected = ops.tensor("block.dequant").data;
        for (at, (&code, expected)) in weight.data.iter().zip(expected).enumerate() {
            let (row, column) = (at / 320, at % 320);
            let scale = scales.row(row / 128)[column / 128];
            assert_eq!(values[usize::from(code)] * scale, expected, "row {row}, column {column}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let ops = ops();
        let message = ops.try_tensor("rope.position").expect_err("no such tensor").to_string();
        assert!(message.contains("\"rope.position\"") && message.contains(", rope.pos"), "{message}");
        let message = ops.try_tensor("rope.pos").expect_err("ids").to_string();
        assert_eq!(message, "tensor \"rope.pos\" is stored as I32, expected float32 or bf16");
        let message = ops.try_ids("rope.in").expect_err("numbers").to_string();
        assert_eq!(message, "tensor \"rope.in\" is stored as F32, expected int32");
        let error = TensorSet::read(&data_dir(), ["none.safetensors"]).expect_err("no file");
        assert!(error.to_string().contains("none.safetensors: cannot read"), "{error}");
    }
}
