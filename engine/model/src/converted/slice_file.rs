//! A slice's file: the units of one slice, of all layers and experts, at places that follow from numbers alone.
//!
//! ```text
//! 0                     header, 4096 bytes: little-endian fields, zeros, crc32c of all before it
//! 4096 + b · stride     block b = layer index · experts + expert: kernels::unit's bytes, then zeros up to a multiple of 4096
//! 4096 + blocks·stride  table: crc32c of each block without its padding, u32 little-endian
//! … + 4 · blocks        and blake3 of each, 32 bytes
//! … + 32 · blocks       crc32c of the table
//! ```
//!
//! The digests are what ducks are asked for and asked to hold; kept here, starting a pond reads no weights on the host.

use std::path::Path;

use fp9::Format;
use kernels::unit::{SLICE, UnitError, UnitLayout};

use super::error::OpenError;
use crate::checkpoint::MappedFile;

/// Bytes of the header, and what blocks start at multiples of: a page.
pub const PAGE: u64 = 4096;
const MAGIC: [u8; 8] = *b"DUCKSLC\x02";
/// Bytes of a block's checksum and digest.
const TABLE_ENTRY: usize = 4 + 32;
/// Where the header's own checksum is.
const HEADER_CRC: usize = PAGE as usize - 4;

/// How many blocks there are and where; the same for every slice of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub layout: UnitLayout,
    pub layers: usize,
    pub slices: usize,
    pub experts: usize,
}

impl Geometry {
    /// `width`: an expert's, a multiple of 64.
    pub fn new(
        format: Format,
        hidden: usize,
        width: usize,
        layers: usize,
        experts: usize,
    ) -> Result<Geometry, UnitError> {
        /// Bounds every product below 2^60.
        const MOST_BLOCKS: usize = 1 << 24;
        let layout = UnitLayout::new(format, hidden)?;
        let slices = width / SLICE;
        let blocks = layers.checked_mul(experts);
        if slices == 0 || !width.is_multiple_of(SLICE) || blocks.is_none_or(|n| n == 0 || n > MOST_BLOCKS) {
            return Err(UnitError::Slice { slices, found: 0 });
        }
        Ok(Geometry { layout, layers, slices, experts })
    }

    /// Blocks of a slice.
    pub fn blocks(&self) -> usize {
        self.layers * self.experts
    }

    /// From one block to the next.
    pub fn stride(&self) -> u64 {
        (self.layout.len() as u64).next_multiple_of(PAGE)
    }

    /// Where block `block` starts, and where the table does for the number after the last.
    pub fn offset(&self, block: usize) -> u64 {
        PAGE + block as u64 * self.stride()
    }

    /// Bytes of the table and its checksum.
    pub fn table_len(&self) -> usize {
        TABLE_ENTRY * self.blocks() + 4
    }

    pub fn file_len(&self) -> u64 {
        self.offset(self.blocks()) + self.table_len() as u64
    }

    /// Bytes of all units of all slices.
    pub fn unit_bytes(&self) -> u64 {
        self.layout.len() as u64 * (self.blocks() as u64) * self.slices as u64
    }

    /// The header of slice `slice`. `model`: the digest of the conversion's identity.
    pub fn header(&self, slice: usize, model: &[u8; 32]) -> Vec<u8> {
        let format = match self.layout.format() {
            Format::E4m3 => 1u32,
            Format::Fp9 => 2,
            Format::Bf16 => 3,
        };
        let mut header = Vec::with_capacity(PAGE as usize);
        header.extend(MAGIC);
        let sizes = [self.layout.hidden(), self.slices, slice, self.layers, self.experts];
        header.extend(format.to_le_bytes());
        sizes.iter().for_each(|&size| header.extend((size as u32).to_le_bytes()));
        let places = [self.layout.len() as u64, self.stride(), PAGE, self.offset(self.blocks()), self.file_len()];
        places.iter().for_each(|place| header.extend(place.to_le_bytes()));
        header.extend(model);
        header.resize(HEADER_CRC, 0);
        header.extend(crc32c::crc32c(&header).to_le_bytes());
        header
    }
}

/// What is known of every block, by its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub checksums: Vec<u32>,
    pub digests: Vec<[u8; 32]>,
}

impl Table {
    pub fn with_capacity(blocks: usize) -> Table {
        Table { checksums: Vec::with_capacity(blocks), digests: Vec::with_capacity(blocks) }
    }

    /// Notes the next block, without its padding.
    pub fn push(&mut self, block: &[u8]) {
        self.checksums.push(crc32c::crc32c(block));
        self.digests.push(*blake3::hash(block).as_bytes());
    }

    /// The end of a file: the table and its checksum.
    pub fn bytes(&self) -> Vec<u8> {
        let mut table: Vec<u8> = self.checksums.iter().flat_map(|crc| crc.to_le_bytes()).collect();
        table.extend(self.digests.as_flattened());
        table.extend(crc32c::crc32c(&table).to_le_bytes());
        table
    }

    /// A file's end, if it fits its own checksum.
    pub fn parse(bytes: &[u8]) -> Option<Table> {
        let (table, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(table) != u32::from_le_bytes(*crc) || !table.len().is_multiple_of(TABLE_ENTRY) {
            return None;
        }
        let (checksums, digests) = table.split_at(table.len() / TABLE_ENTRY * 4);
        let checksums = checksums.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
        Some(Table { checksums, digests: digests.as_chunks().0.to_vec() })
    }
}

/// A slice's file, mapped.
#[derive(Debug)]
pub(crate) struct SliceFile {
    file: MappedFile,
    table: Table,
}

impl SliceFile {
    /// Maps the file and checks its header and table; blocks are not read.
    pub fn open(path: &Path, geometry: &Geometry, slice: usize, model: &[u8; 32]) -> Result<SliceFile, OpenError> {
        let file = MappedFile::open(path)?;
        let found = file.bytes().len() as u64;
        if found != geometry.file_len() {
            return Err(OpenError::Size { path: path.into(), expected: geometry.file_len(), found });
        }
        let damaged = |reason: &str| OpenError::Slice { path: path.into(), reason: reason.into() };
        if file.bytes()[..PAGE as usize] != geometry.header(slice, model) {
            return Err(damaged("its header is not that of this slice and conversion"));
        }
        let table = &file.bytes()[geometry.offset(geometry.blocks()) as usize..];
        let table = Table::parse(table).ok_or_else(|| damaged("the table of checksums fails its own checksum"))?;
        Ok(SliceFile { file, table })
    }

    /// Block `block`, without its padding.
    pub fn block(&self, geometry: &Geometry, block: usize) -> &[u8] {
        &self.file.bytes()[geometry.offset(block) as usize..][..geometry.layout.len()]
    }

    /// Has the system read block `block` ahead.
    pub fn will_need(&self, geometry: &Geometry, block: usize) {
        self.file.will_need(geometry.offset(block) as usize, geometry.layout.len());
    }

    pub fn checksum(&self, block: usize) -> u32 {
        self.table.checksums[block]
    }

    pub fn digest(&self, block: usize) -> [u8; 32] {
        self.table.digests[block]
    }
}
