//! What a session fixes once: the model's numbers, the most that a step may ask, and the sizes of chunks.

use core::fmt;

use kernels::tree::Shape;

use crate::frame::{HEADER, MAX_FRAME};

/// Largest hidden dimension.
pub const MAX_HIDDEN: u32 = 1 << 16;
/// Most nodes in a plan or named by a step.
pub const MAX_NODES: usize = 64;
/// Most fragments of a step's input.
pub const INPUT_FRAGMENTS: usize = 4_096;
/// Most fragments of a step's results: parts · nodes · lanes.
pub const RESULT_FRAGMENTS: usize = 8_192;
/// Most parts that one lane of one node is sent in.
pub const MAX_PARTS: usize = 1_024;
/// Outputs that become final together: the grain of [`rows_final`](crate::duck::Session::rows_final).
pub const ROW_GROUP: usize = 8;
/// What a chunk's length is a multiple of: one group of outputs in fp32.
pub const CHUNK_GRAIN: usize = 4 * ROW_GROUP;
/// Shortest chunk.
pub const MIN_CHUNK: usize = 64;
/// Longest chunk.
pub const MAX_CHUNK: usize = chunk_for(MAX_FRAME);

/// The longest chunk that fits a frame of `frame` bytes.
pub const fn chunk_for(frame: usize) -> usize {
    frame.saturating_sub(HEADER) / CHUNK_GRAIN * CHUNK_GRAIN
}

/// How an input's hidden vectors travel, and how its experts round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// fp32 on the wire and between operations.
    Exact = 0,
    /// bf16 on the wire.
    Bf16 = 1,
    /// e4m3 on the wire, with an fp32 scale for each 128 values.
    Fp8 = 2,
}

impl Mode {
    /// By its code.
    pub fn from_code(code: u8) -> Option<Mode> {
        [Mode::Exact, Mode::Bf16, Mode::Fp8].into_iter().find(|&m| m as u8 == code)
    }

    /// Bytes of one lane's hidden vector.
    pub fn vector_len(self, hidden: usize) -> usize {
        match self {
            Mode::Exact => 4 * hidden,
            Mode::Bf16 => 2 * hidden,
            Mode::Fp8 => hidden + 4 * hidden.div_ceil(128),
        }
    }
}

/// The numbers, not yet checked; see [`Limits::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The model's hidden dimension: a multiple of 64.
    pub hidden: u32,
    /// Layers with experts.
    pub layers: u16,
    /// Slices of the canonical tree.
    pub slices: u16,
    /// Experts of a layer.
    pub experts: u16,
    /// Experts that a lane chooses.
    pub chosen: u16,
    /// Most lanes of a step.
    pub lanes: u16,
    /// Most nodes of a step.
    pub nodes: u16,
    /// How inputs travel.
    pub mode: Mode,
    /// How weights are stored: 0 e4m3, 1 fp9, 2 bf16.
    pub format: u8,
    /// Bytes of a fragment of input or result; the same for all ducks of a domain, which share the input's frames.
    pub step_chunk: u16,
    /// Bytes of a chunk of a block.
    pub load_chunk: u16,
}

/// A limit that this protocol cannot keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitError {
    /// Which one.
    pub field: &'static str,
    /// Least and greatest possible value, given the others.
    pub expected: (usize, usize),
    /// What was asked for.
    pub found: usize,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitError { field, expected: (least, most), found } = self;
        write!(f, "session's {field}: expected {least} to {most}, found {found}")
    }
}

impl core::error::Error for LimitError {}

impl Limits {
    /// Whether both ends' fixed tables are large enough.
    ///
    /// # Errors
    /// The first limit that is out of bounds.
    pub fn check(&self) -> Result<(), LimitError> {
        let within = |field, found, least, most| {
            if (least..=most).contains(&found) {
                Ok(())
            } else {
                Err(LimitError { field, expected: (least, most), found })
            }
        };
        let hidden = self.hidden as usize;
        within("hidden", hidden, 64, MAX_HIDDEN as usize)?;
        within("hidden modulo 64", hidden % 64, 0, 0)?;
        within("layers", self.layers.into(), 1, usize::from(u16::MAX) - 1)?;
        within("slices", self.slices.into(), 1, usize::from(u16::MAX))?;
        within("experts", self.experts.into(), 1, usize::from(u16::MAX))?;
        let units = usize::from(self.slices) * usize::from(self.experts);
        within("slices x experts", units, 1, usize::from(u16::MAX).div_ceil(2))?;
        within("chosen", self.chosen.into(), 1, self.experts.into())?;
        within("lanes", self.lanes.into(), 1, usize::from(u16::MAX))?;
        within("nodes", self.nodes.into(), 1, MAX_NODES)?;
        within("format", self.format.into(), 0, 2)?;
        for (name, chunk) in [("step chunk", self.step_chunk), ("load chunk", self.load_chunk)] {
            within(name, chunk.into(), MIN_CHUNK, MAX_CHUNK)?;
            within("chunk modulo 32", usize::from(chunk) % CHUNK_GRAIN, 0, 0)?;
        }
        within("parts of a vector", self.parts(), 1, MAX_PARTS)?;
        let results = self.parts() * usize::from(self.lanes) * usize::from(self.nodes);
        within("fragments of results", results, 1, RESULT_FRAGMENTS)?;
        within("fragments of input", self.input_len().div_ceil(self.step_chunk.into()), 1, INPUT_FRAGMENTS)
    }

    /// The canonical tree.
    pub fn shape(&self) -> Shape {
        Shape { slices: self.slices, experts: self.experts }
    }

    /// Fragments of one lane of one node.
    pub fn parts(&self) -> usize {
        (4 * self.hidden as usize).div_ceil(usize::from(self.step_chunk).max(1))
    }

    /// Bytes of the longest step input.
    pub fn input_len(&self) -> usize {
        crate::body::Layout::new(self, self.lanes, self.nodes).len()
    }

    /// Bytes of the largest step result: `[nodes, lanes, hidden]` of fp32.
    pub fn result_len(&self) -> usize {
        4 * self.hidden as usize * usize::from(self.lanes) * usize::from(self.nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V32: Limits = Limits {
        hidden: 7168,
        layers: 59,
        slices: 32,
        experts: 256,
        chosen: 8,
        lanes: 64,
        nodes: 3,
        mode: Mode::Exact,
        format: 1,
        step_chunk: 1440,
        load_chunk: MAX_CHUNK as u16,
    };

    #[test]
    fn the_largest_model_fits_with_sixty_four_lanes() {
        assert_eq!(V32.check(), Ok(()));
        assert_eq!((V32.parts(), chunk_for(1500), chunk_for(9000)), (20, 1440, 8960));
    }

    #[test]
    fn a_limit_out_of_bounds_is_named() {
        for (limits, field) in [
            (Limits { hidden: 0, ..V32 }, "hidden"),
            (Limits { hidden: 7169, ..V32 }, "hidden modulo 64"),
            (Limits { layers: 0, ..V32 }, "layers"),
            (Limits { experts: 2048, ..V32 }, "slices x experts"),
            (Limits { chosen: 257, ..V32 }, "chosen"),
            (Limits { lanes: 0, ..V32 }, "lanes"),
            (Limits { nodes: 65, ..V32 }, "nodes"),
            (Limits { format: 3, ..V32 }, "format"),
            (Limits { step_chunk: 0, ..V32 }, "step chunk"),
            (Limits { load_chunk: 1441, ..V32 }, "chunk modulo 32"),
            (Limits { step_chunk: 64, hidden: 65536, ..V32 }, "parts of a vector"),
            (Limits { lanes: 512, ..V32 }, "fragments of results"),
            (Limits { lanes: 400, nodes: 1, ..V32 }, "fragments of input"),
        ] {
            assert_eq!(limits.check().map_err(|e| e.field), Err(field));
        }
    }
}
