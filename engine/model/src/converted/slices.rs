//! A model's experts as units: mapped from slice files, or packed in memory from a checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fp9::{Format, Rounding};
use kernels::unit::{self, Part, Source, UnitError, UnitLayout, pack_unit};
use memmap2::{Advice, Mmap, MmapMut};
use rayon::prelude::*;

use super::error::PackError;
use super::manifest::{RoundingReport, format_name};
use super::slice_file::{Geometry, SliceFile};
use crate::checkpoint::{DType, Matrix};
use crate::program::{Expert, ExpertLayer};

/// Most bytes of units that are packed in memory; a larger model is converted once, to files.
pub const IN_MEMORY_LIMIT: u64 = 4 << 30;
/// From this size on, large pages are asked for.
const LARGE_PAGES: usize = 2 << 20;

/// How experts are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FormatChoice {
    /// e4m3 where every expert is e4m3 (exact), else fp9 (bf16 weights are rounded).
    #[default]
    Auto,
    /// This one.
    Only(Format),
}

impl FormatChoice {
    /// The format for these experts.
    ///
    /// # Errors
    /// [`PackError::Format`] for the first matrix that cannot be stored so, [`PackError::NoExperts`].
    pub fn resolve(self, layers: &[ExpertLayer]) -> Result<Format, PackError> {
        let matrices = || layers.iter().flat_map(|l| &l.experts).flat_map(|e| [&e.gate, &e.up, &e.down]);
        if matrices().next().is_none() {
            return Err(PackError::NoExperts);
        }
        let format = match self {
            FormatChoice::Only(format) => format,
            FormatChoice::Auto if matrices().all(|m| m.dtype() == DType::F8E4M3) => Format::E4m3,
            FormatChoice::Auto => Format::Fp9,
        };
        for matrix in matrices() {
            let advice = match (matrix.dtype(), format) {
                (DType::F8E4M3, Format::E4m3 | Format::Fp9) | (DType::BF16, Format::Fp9 | Format::Bf16) => continue,
                (DType::F8E4M3, Format::Bf16) => "e4m3 and fp9 hold it without loss",
                (DType::BF16, Format::E4m3) => "fp9 and bf16 can hold it",
                _ => "experts must be F8_E4M3 or BF16",
            };
            return Err(PackError::Format {
                tensor: matrix.data.name().into(),
                found: matrix.dtype().to_string(),
                format: format_name(format),
                advice,
            });
        }
        Ok(format)
    }
}

/// All units of a model. Share it by `Arc`: files stay mapped, memory stays where it is.
#[derive(Debug)]
pub struct Slices {
    geometry: Geometry,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    /// By slice.
    Files(Vec<SliceFile>),
    /// Units by layer, expert, slice.
    Memory(Mmap),
    /// One block that stands for every unit.
    Alike { block: Mmap, checksum: u32, digest: [u8; 32] },
}

impl Slices {
    pub(super) fn from_files(geometry: Geometry, files: Vec<SliceFile>) -> Slices {
        debug_assert_eq!(geometry.slices, files.len());
        Slices { geometry, storage: Storage::Files(files) }
    }

    /// Packs a checkpoint's experts on all cores: seconds for a gigabyte.
    ///
    /// # Errors
    /// [`PackError::Memory`] for more than [`IN_MEMORY_LIMIT`] bytes; experts that cannot be packed.
    pub fn in_memory(layers: &[ExpertLayer], format: FormatChoice) -> Result<(Arc<Slices>, RoundingReport), PackError> {
        Slices::in_memory_with(layers, format, &|_, _| ())
    }

    /// The same; `progress` is told after each expert, from any thread, how many units are packed so far, and of how many.
    ///
    /// # Errors
    /// As [`Slices::in_memory`].
    pub fn in_memory_with(
        layers: &[ExpertLayer],
        format: FormatChoice,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(Arc<Slices>, RoundingReport), PackError> {
        let geometry = geometry(layers, format.resolve(layers)?)?;
        let bytes = geometry.unit_bytes();
        if bytes > IN_MEMORY_LIMIT {
            return Err(PackError::Memory { found: bytes, limit: IN_MEMORY_LIMIT });
        }
        let map = |source| PackError::Map { bytes, source };
        let mut memory = MmapMut::map_anon(bytes as usize).map_err(map)?;
        if memory.len() >= LARGE_PAGES {
            // Only speed depends on it, and some kernels have no large pages.
            #[cfg(target_os = "linux")]
            let _ = memory.advise(Advice::HugePage);
        }
        let all = layers.iter().flat_map(|layer| layer.experts.iter().enumerate().map(move |(e, x)| (layer, e, x)));
        let all: Vec<_> = all.collect();
        let (packed, units) = (AtomicUsize::new(0), all.len() * geometry.slices);
        let rounding = memory
            .par_chunks_mut(geometry.slices * geometry.layout.len())
            .zip(all)
            .map(|(blocks, (layer, number, expert))| {
                let rounding = pack_slices(&geometry, expert, blocks)
                    .map_err(|error| error.into_pack(layer.layer, number, expert))?;
                progress(packed.fetch_add(geometry.slices, Ordering::Relaxed) + geometry.slices, units);
                Ok(rounding)
            })
            // In order, so that the sums are the same every time.
            .collect::<Result<Vec<_>, _>>()?
            .iter()
            .fold(RoundingReport::default(), |mut sum, rounding| {
                sum.merge(&RoundingReport::from(*rounding));
                sum
            });
        let memory = memory.make_read_only().map_err(map)?;
        Ok((Arc::new(Slices { geometry, storage: Storage::Memory(memory) }), rounding))
    }

    /// Units that are all the first expert's first slice: what a model of any size weighs nothing with, for whoever measures everything but its experts.
    ///
    /// # Errors
    /// Experts that cannot be packed.
    pub(crate) fn alike(layers: &[ExpertLayer]) -> Result<Arc<Slices>, PackError> {
        let geometry = geometry(layers, FormatChoice::Auto.resolve(layers)?)?;
        let bytes = geometry.layout.len();
        let map = |source| PackError::Map { bytes: bytes as u64, source };
        let mut block = MmapMut::map_anon(bytes).map_err(map)?;
        let (first, number) = (&layers[0], 0);
        pack_slices(&geometry, &first.experts[number], &mut block)
            .map_err(|error| error.into_pack(first.layer, number, &first.experts[number]))?;
        let (checksum, digest) = (crc32c::crc32c(&block), *blake3::hash(&block).as_bytes());
        let block = block.make_read_only().map_err(map)?;
        Ok(Arc::new(Slices { geometry, storage: Storage::Alike { block, checksum, digest } }))
    }

    /// A unit's block, aligned to 64 bytes, as [`kernels::unit::Unit::view`] reads it. `layer` is an index, as in
    /// [`ExpertStep::layer`](crate::program::ExpertStep::layer), not the model's number.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn unit(&self, layer: usize, slice: usize, expert: usize) -> &[u8] {
        let block = self.block(layer, slice, expert);
        match &self.storage {
            Storage::Files(files) => files[slice].block(&self.geometry, block),
            Storage::Memory(memory) => {
                let len = self.geometry.layout.len();
                &memory[(block * self.geometry.slices + slice) * len..][..len]
            }
            Storage::Alike { block, .. } => block,
        }
    }

    /// Has the system read a unit from its file ahead of time, so that [`Slices::unit`] need not wait for a disk.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn will_need(&self, layer: usize, slice: usize, expert: usize) {
        if let Storage::Files(files) = &self.storage {
            files[slice].will_need(&self.geometry, self.block(layer, slice, expert));
        }
    }

    /// crc32c of a unit's block: from the file's table, or computed.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn checksum(&self, layer: usize, slice: usize, expert: usize) -> u32 {
        match &self.storage {
            Storage::Files(files) => files[slice].checksum(self.block(layer, slice, expert)),
            Storage::Memory(_) => crc32c::crc32c(self.unit(layer, slice, expert)),
            Storage::Alike { checksum, .. } => *checksum,
        }
    }

    /// blake3 of a unit's block, the name by which a duck reports and is sent it: from the file's table, which reads no weights, or computed.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn digest(&self, layer: usize, slice: usize, expert: usize) -> [u8; 32] {
        match &self.storage {
            Storage::Files(files) => files[slice].digest(self.block(layer, slice, expert)),
            Storage::Memory(_) => *blake3::hash(self.unit(layer, slice, expert)).as_bytes(),
            Storage::Alike { digest, .. } => *digest,
        }
    }

    fn block(&self, layer: usize, slice: usize, expert: usize) -> usize {
        let Geometry { layers, slices, experts, .. } = self.geometry;
        assert!(
            layer < layers && slice < slices && expert < experts,
            "unit ({layer}, {slice}, {expert}) of {layers} layers, {slices} slices, {experts} experts"
        );
        layer * experts + expert
    }

    /// How a block is arranged.
    pub fn layout(&self) -> &UnitLayout {
        &self.geometry.layout
    }

    /// How weights are stored.
    pub fn format(&self) -> Format {
        self.geometry.layout.format()
    }

    /// Layers with experts.
    pub fn layers(&self) -> usize {
        self.geometry.layers
    }

    /// Slices of an expert.
    pub fn slices(&self) -> usize {
        self.geometry.slices
    }

    /// Experts of a layer.
    pub fn experts(&self) -> usize {
        self.geometry.experts
    }

    /// Bytes of all units, without padding.
    pub fn bytes(&self) -> u64 {
        self.geometry.unit_bytes()
    }

    /// Whether the units are files that the system reads on first use.
    pub fn is_mapped(&self) -> bool {
        matches!(self.storage, Storage::Files(_))
    }
}

/// Where units of these experts lie; every layer must have the same number of experts of the same shape.
pub(super) fn geometry(layers: &[ExpertLayer], format: Format) -> Result<Geometry, PackError> {
    let first = layers.first().ok_or(PackError::NoExperts)?;
    let gate = &first.experts.first().ok_or(PackError::NoExperts)?.gate;
    let (hidden, width, experts) = (gate.cols, gate.rows, first.experts.len());
    let geometry = Geometry::new(format, hidden, width, layers.len(), experts).map_err(|source| PackError::Sizes {
        hidden,
        width,
        source,
    })?;
    for layer in layers {
        for (number, expert) in layer.experts.iter().enumerate() {
            let unit = |source| PackError::Unit { layer: layer.layer, expert: number, source };
            for (part, matrix) in Part::ALL.into_iter().zip(matrices(expert)) {
                let expected = if part == Part::Down { (hidden, width) } else { (width, hidden) };
                if (matrix.rows, matrix.cols) != expected || layer.experts.len() != experts {
                    return Err(unit(UnitError::Tensor { part, expected, found: matrix.rows * matrix.cols }));
                }
            }
        }
    }
    Ok(geometry)
}

pub(super) fn matrices(expert: &Expert) -> [&Matrix; 3] {
    [&expert.gate, &expert.up, &expert.down]
}

/// The codes of an expert's three matrices, wherever they were read to.
pub(super) enum Codes<'a> {
    Bytes([&'a [u8]; 3]),
    Words([&'a [u16]; 3]),
}

impl<'a> Codes<'a> {
    /// What the kernels pack from; `expert` gives scales and width.
    pub fn source(&self, expert: &'a Expert) -> Source<'a> {
        let width = expert.gate.rows;
        match *self {
            Codes::Bytes([gate, up, down]) => {
                let tensor = |codes, matrix: &'a Matrix| unit::Tensor {
                    codes,
                    scales: matrix.scale.as_ref().map_or(&[][..], |scale| scale.values()),
                };
                let (gate, up, down) = (tensor(gate, &expert.gate), tensor(up, &expert.up), tensor(down, &expert.down));
                Source::E4m3(unit::Expert { gate, up, down, width })
            }
            Codes::Words(codes) => {
                let [gate, up, down] = codes.map(|codes| unit::Tensor { codes, scales: &[] });
                Source::Bf16(unit::Expert { gate, up, down, width })
            }
        }
    }
}

/// Packs slices of an expert one after the other, as many as `blocks` has room for, from its mapped tensors.
fn pack_slices(geometry: &Geometry, expert: &Expert, blocks: &mut [u8]) -> Result<Rounding, UnitFault> {
    let words: [Vec<u16>; 3];
    let bytes = matrices(expert).map(|matrix| matrix.data.bytes());
    let codes = if kind(expert)? == DType::F8E4M3 {
        Codes::Bytes(bytes)
    } else {
        words = bytes.map(words_of);
        Codes::Words([&words[0], &words[1], &words[2]])
    };
    let source = codes.source(expert);
    let mut sum = Rounding::default();
    for (slice, block) in blocks.chunks_exact_mut(geometry.layout.len()).enumerate() {
        sum.merge(&pack_unit(&geometry.layout, &source, slice, block)?);
    }
    Ok(sum)
}

/// The one type of an expert's matrices.
pub(super) fn kind(expert: &Expert) -> Result<DType, UnitFault> {
    let kind = expert.gate.dtype();
    match matrices(expert).into_iter().find(|matrix| matrix.dtype() != kind) {
        None => Ok(kind),
        Some(other) => Err(UnitFault::Mixed { tensor: other.data.name().into(), found: other.dtype() }),
    }
}

/// Little-endian 16-bit values that may lie anywhere.
pub(super) fn words_of(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks().0.iter().map(|&word| u16::from_le_bytes(word)).collect()
}

/// What is wrong with one expert, before its place is named.
pub(super) enum UnitFault {
    Unit(UnitError),
    Mixed { tensor: String, found: DType },
}

impl From<UnitError> for UnitFault {
    fn from(error: UnitError) -> UnitFault {
        UnitFault::Unit(error)
    }
}

impl UnitFault {
    /// Names the tensor.
    pub fn into_pack(self, layer: u16, number: usize, expert: &Expert) -> PackError {
        match self {
            UnitFault::Unit(UnitError::NotFinite { part, row, column, code }) => {
                let tensor = &matrices(expert)[part as usize].data;
                PackError::NotFinite { tensor: tensor.name().into(), file: tensor.file().into(), row, column, code }
            }
            UnitFault::Unit(source) => PackError::Unit { layer, expert: number, source },
            UnitFault::Mixed { tensor, found } => PackError::Format {
                tensor,
                found: found.to_string(),
                format: "a part of one unit",
                advice: "the gate, up and down matrices of an expert must have one type",
            },
        }
    }
}
