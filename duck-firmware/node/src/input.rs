//! From a step's bytes to what the kernels take.

use fp9::format::{bf16, e4m3};
use wire::Limits;
use wire::body::Layout;
use wire::limits::Mode;

/// Values that one scale is for, in an input of e4m3.
const SCALED: usize = 128;

/// Where a step's input goes.
#[derive(Debug)]
pub(crate) struct Arrays<'a> {
    /// `[lanes, chosen]`.
    pub ids: &'a mut [u16],
    /// `[lanes, chosen]`.
    pub weights: &'a mut [f32],
    /// `[lanes, hidden]`.
    pub hidden: &'a mut [f32],
}

/// Reads inputs.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The values of all e4m3 codes.
    e4m3: [f32; 256],
}

impl Decoder {
    pub fn new() -> Decoder {
        Decoder { e4m3: core::array::from_fn(|code| e4m3::decode(code as u8)) }
    }

    /// Reads all of a step but its head and named nodes.
    pub fn read(&self, limits: &Limits, layout: &Layout, bytes: &[u8], to: Arrays<'_>) {
        fill(to.ids, bytes[layout.experts()].as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)));
        fill(to.weights, floats(&bytes[layout.weights()]));
        let (bytes, hidden) = (&bytes[layout.hidden()], limits.hidden as usize);
        match limits.mode {
            Mode::Exact => fill(to.hidden, floats(bytes)),
            Mode::Bf16 => fill(to.hidden, bytes.as_chunks().0.iter().map(|&b| bf16::decode(u16::from_le_bytes(b)))),
            Mode::Fp8 => {
                let lanes = bytes.chunks_exact(limits.mode.vector_len(hidden));
                for (lane, to) in lanes.zip(to.hidden.chunks_exact_mut(hidden)) {
                    let (codes, scales) = lane.split_at(hidden);
                    for ((codes, scale), to) in codes.chunks(SCALED).zip(floats(scales)).zip(to.chunks_mut(SCALED)) {
                        fill(to, codes.iter().map(|&code| self.e4m3[usize::from(code)] * scale));
                    }
                }
            }
        }
    }
}

fn fill<T>(to: &mut [T], from: impl Iterator<Item = T>) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from);
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))
}

/// Where the kernels round.
pub(crate) fn kernels_mode(mode: Mode) -> kernels::Mode {
    match mode {
        Mode::Exact => kernels::Mode::Exact,
        Mode::Bf16 | Mode::Fp8 => kernels::Mode::Bf16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn limits(mode: Mode) -> Limits {
        Limits {
            hidden: 192,
            layers: 1,
            slices: 1,
            experts: 4,
            chosen: 2,
            lanes: 2,
            nodes: 1,
            mode,
            format: 0,
            step_chunk: 64,
            load_chunk: 64,
        }
    }

    #[test]
    fn every_mode_reads_the_values_that_were_written() {
        let values: Vec<f32> = (0..2 * 192).map(|i| (i % 15) as f32 - 7.0).collect();
        for mode in [Mode::Exact, Mode::Bf16, Mode::Fp8] {
            let mut bytes = vec![0; 8];
            [0u16, 3, 1, 2].iter().for_each(|v| bytes.extend(v.to_le_bytes()));
            [0.5f32, 0.25, 2.0, -1.0].iter().for_each(|v| bytes.extend(v.to_le_bytes()));
            for lane in values.chunks(192) {
                match mode {
                    Mode::Exact => lane.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
                    Mode::Bf16 => lane.iter().for_each(|&v| bytes.extend(bf16::encode(v).to_le_bytes())),
                    Mode::Fp8 => {
                        // 128 values at scale 1, 64 at scale 2.
                        let scale = |i: usize| if i < 128 { 1.0 } else { 2.0 };
                        bytes.extend(lane.iter().enumerate().map(|(i, v)| e4m3::encode(v / scale(i))));
                        [1f32, 2.0].iter().for_each(|v| bytes.extend(v.to_le_bytes()));
                    }
                }
            }
            let limits = limits(mode);
            let layout = Layout::new(&limits, 2, 0);
            assert_eq!(bytes.len(), layout.len());
            let (mut ids, mut weights, mut hidden) = ([0; 4], [0.0; 4], vec![0.0; 2 * 192]);
            let to = Arrays { ids: &mut ids, weights: &mut weights, hidden: &mut hidden };
            Decoder::new().read(&limits, &layout, &bytes, to);
            assert_eq!((ids, weights), ([0, 3, 1, 2], [0.5, 0.25, 2.0, -1.0]));
            assert_eq!(hidden, values, "{mode:?}");
        }
    }
}
