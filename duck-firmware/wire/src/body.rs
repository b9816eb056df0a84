//! The input of one step as the bytes that fragments are cut from.
//!
//! ```text
//! head      8 bytes, see [`Head`]
//! named     u16 × n: nodes to compute, in place of the plan's; n is in every fragment's header
//! experts   u16 × lanes × chosen, ascending in each lane
//! weights   f32 × lanes × chosen
//! hidden    lanes vectors, as the session's mode says
//! ```
//!
//! Fragment i is the bytes from i · `step_chunk` on. Everything but the head's and the named nodes' values follows from the header, so any
//! fragment may come first.

use core::ops::Range;

use crate::field::layout;
use crate::limits::Limits;

layout! {
    /// The first bytes of a step's input.
    Head[8] {
        /// Index of the layer's experts.
        layer: u16 = 0,
        /// Zero.
        reserved: u16 = 2,
        /// Microseconds after which the duck stops the kernels: 0 for never.
        time_limit: u32 = 4,
    }
}

/// Where the parts of an input lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    named: usize,
    choices: usize,
    hidden: usize,
}

impl Layout {
    /// Of a step with so many lanes and named nodes.
    pub fn new(limits: &Limits, lanes: u16, named: u16) -> Layout {
        Layout {
            named: named.into(),
            choices: usize::from(lanes) * usize::from(limits.chosen),
            hidden: usize::from(lanes) * limits.mode.vector_len(limits.hidden as usize),
        }
    }

    /// Bytes of the named nodes.
    pub fn named(&self) -> Range<usize> {
        Head::LEN..Head::LEN + 2 * self.named
    }

    /// Bytes of the expert ids.
    pub fn experts(&self) -> Range<usize> {
        let start = self.named().end;
        start..start + 2 * self.choices
    }

    /// Bytes of the router weights.
    pub fn weights(&self) -> Range<usize> {
        let start = self.experts().end;
        start..start + 4 * self.choices
    }

    /// Bytes of the hidden vectors.
    pub fn hidden(&self) -> Range<usize> {
        let start = self.weights().end;
        start..start + self.hidden
    }

    /// Bytes of everything.
    pub fn len(&self) -> usize {
        self.hidden().end
    }

    /// Never: there is always a head.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Little-endian numbers of 16 bits.
pub(crate) fn shorts(bytes: &[u8]) -> impl Iterator<Item = u16> + Clone + '_ {
    bytes.as_chunks::<2>().0.iter().map(|&b| u16::from_le_bytes(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Mode;

    #[test]
    fn parts_follow_one_another_in_every_mode() {
        let limits = Limits {
            hidden: 320,
            layers: 2,
            slices: 4,
            experts: 8,
            chosen: 2,
            lanes: 4,
            nodes: 3,
            mode: Mode::Exact,
            format: 0,
            step_chunk: 64,
            load_chunk: 64,
        };
        for (mode, vector) in [(Mode::Exact, 1280), (Mode::Bf16, 640), (Mode::Fp8, 320 + 12)] {
            let layout = Layout::new(&Limits { mode, ..limits }, 3, 2);
            assert_eq!(layout.named(), 8..12);
            assert_eq!(layout.experts(), 12..24);
            assert_eq!(layout.weights(), 24..48);
            assert_eq!(layout.hidden(), 48..48 + 3 * vector);
            assert_eq!(layout.len(), 48 + 3 * vector);
        }
    }
}
