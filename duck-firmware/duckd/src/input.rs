//! From a step's bytes to what the kernels take.

use fp9::format::{bf16, e4m3};
use wire::Limits;
use wire::body::Layout;
use wire::limits::Mode;

/// Values that one scale is for, in an input of e4m3.
const SCALED: usize = 128;

/// Buffers that are filled anew for each step and grow no more once they have seen the session's largest.
#[derive(Debug)]
pub(crate) struct Input {
    /// `[lanes, chosen]`.
    pub ids: Vec<u16>,
    /// `[lanes, chosen]`.
    pub weights: Vec<f32>,
    /// `[lanes, hidden]`.
    pub hidden: Vec<f32>,
    /// The values of all e4m3 codes.
    e4m3: [f32; 256],
}

impl Input {
    pub fn new() -> Input {
        let e4m3 = std::array::from_fn(|code| e4m3::decode(code as u8));
        Input { ids: Vec::new(), weights: Vec::new(), hidden: Vec::new(), e4m3 }
    }

    /// Room for the session's largest step.
    pub fn reserve(&mut self, limits: &Limits) {
        let lanes = usize::from(limits.lanes);
        let choices = lanes * usize::from(limits.chosen);
        self.ids.reserve(choices.saturating_sub(self.ids.len()));
        self.weights.reserve(choices.saturating_sub(self.weights.len()));
        self.hidden.reserve((lanes * limits.hidden as usize).saturating_sub(self.hidden.len()));
    }

    /// Reads all of a step but its head and named nodes.
    pub fn read(&mut self, limits: &Limits, layout: &Layout, bytes: &[u8]) {
        self.ids.clear();
        self.ids.extend(bytes[layout.experts()].as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)));
        self.weights.clear();
        self.weights.extend(floats(&bytes[layout.weights()]));
        self.hidden.clear();
        let (bytes, hidden) = (&bytes[layout.hidden()], limits.hidden as usize);
        match limits.mode {
            Mode::Exact => self.hidden.extend(floats(bytes)),
            Mode::Bf16 => self.hidden.extend(bytes.as_chunks().0.iter().map(|&b| bf16::decode(u16::from_le_bytes(b)))),
            Mode::Fp8 => {
                for lane in bytes.chunks_exact(limits.mode.vector_len(hidden)) {
                    let (codes, scales) = lane.split_at(hidden);
                    for (codes, scale) in codes.chunks(SCALED).zip(floats(scales)) {
                        self.hidden.extend(codes.iter().map(|&code| self.e4m3[usize::from(code)] * scale));
                    }
                }
            }
        }
    }
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
            let (limits, mut input) = (limits(mode), Input::new());
            let layout = Layout::new(&limits, 2, 0);
            assert_eq!(bytes.len(), layout.len());
            input.read(&limits, &layout, &bytes);
            assert_eq!((&input.ids[..], &input.weights[..]), (&[0, 3, 1, 2][..], &[0.5, 0.25, 2.0, -1.0][..]));
            assert_eq!(input.hidden, values, "{mode:?}");
        }
    }
}
