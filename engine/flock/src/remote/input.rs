//! A step's input as the bytes that travel, see [`wire::body`].

use model::Numerics;
use model::step::StepInput;
use wire::Limits;
use wire::body::{Head, Layout};
use wire::limits::Mode;

/// Writes a step's input, no more of it than is needed yet, so that the first frame can leave before the last is written.
pub(super) struct Encoder<'a> {
    hidden: &'a [f32],
    mode: Mode,
    out: &'a mut Vec<u8>,
    /// Bytes when all is written.
    len: usize,
}

impl<'a> Encoder<'a> {
    /// Writes what comes before the hidden vectors into `out`. `named`: nodes to compute in place of the plan's.
    pub fn new(
        limits: &Limits,
        input: &'a StepInput,
        named: &[u16],
        time_limit: u32,
        out: &'a mut Vec<u8>,
    ) -> Encoder<'a> {
        let len = Layout::new(limits, input.lanes as u16, named.len() as u16).len();
        out.clear();
        out.reserve(len);
        out.extend_from_slice(&Head { layer: input.layer, reserved: 0, time_limit }.emit());
        named.iter().for_each(|node| out.extend_from_slice(&node.to_le_bytes()));
        input.experts.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
        input.weights.iter().for_each(|weight| out.extend_from_slice(&weight.to_le_bytes()));
        Encoder { hidden: &input.hidden, mode: limits.mode, out, len }
    }

    /// The first `end` bytes.
    pub fn reach(&mut self, end: usize) -> &[u8] {
        let missing = end.min(self.len).saturating_sub(self.out.len());
        match self.mode {
            // Stage 0 has rounded them in this mode, so the upper half of each is all of it.
            Mode::Bf16 => {
                self.write(missing, |value| (Numerics::Bf16.round(value).to_bits() >> 16) as u16, u16::to_le_bytes)
            }
            Mode::Exact | Mode::Fp8 => self.write(missing, |value| value, f32::to_le_bytes),
        }
        &self.out[..end]
    }

    /// Writes all of it.
    pub fn finish(mut self) {
        self.reach(self.len);
        debug_assert_eq!((self.out.len(), self.hidden.len()), (self.len, 0));
    }

    /// At least so many bytes more, in place: a check of the room for each value would take longer than all else.
    fn write<T, const N: usize>(&mut self, bytes: usize, narrow: impl Fn(f32) -> T, raw: impl Fn(T) -> [u8; N]) {
        let (now, rest) = self.hidden.split_at(bytes.div_ceil(N).min(self.hidden.len()));
        let start = self.out.len();
        self.out.resize(start + N * now.len(), 0);
        let places = self.out[start..].as_chunks_mut::<N>().0;
        places.iter_mut().zip(now).for_each(|(place, &value)| *place = raw(narrow(value)));
        self.hidden = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, dims, step};

    #[test]
    fn an_input_has_the_bytes_of_its_values_however_it_is_written() {
        let mut random = Random(3);
        let dims = dims(2, 8, 2, 320);
        let (lanes, named) = (3, [5u16, 9]);
        let mut input = step(&mut random, dims, 1, lanes);
        input.hidden.iter_mut().for_each(|value| *value = Numerics::Bf16.round(*value));
        for mode in [Mode::Exact, Mode::Bf16] {
            let limits = Limits {
                hidden: dims.hidden as u32,
                layers: 2,
                slices: 2,
                experts: 8,
                chosen: 2,
                lanes: lanes as u16,
                nodes: 2,
                mode,
                format: 0,
                step_chunk: 64,
                load_chunk: 64,
            };
            let mut whole = Head { layer: input.layer, reserved: 0, time_limit: 11 }.emit().to_vec();
            for node in named {
                whole.extend(node.to_le_bytes());
            }
            for expert in &input.experts {
                whole.extend(expert.to_le_bytes());
            }
            for weight in &input.weights {
                whole.extend(weight.to_bits().to_le_bytes());
            }
            for value in &input.hidden {
                match mode {
                    Mode::Bf16 => whole.extend_from_slice(&value.to_bits().to_le_bytes()[2..]),
                    _ => whole.extend(value.to_bits().to_le_bytes()),
                }
            }
            let mut pieces = vec![7; 9];
            let mut encoder = Encoder::new(&limits, &input, &named, 11, &mut pieces);
            let mut end = 0;
            while end < whole.len() {
                end = (end + 1 + random.below(200)).min(whole.len());
                assert_eq!(encoder.reach(end), &whole[..end]);
            }
            encoder.finish();
            assert_eq!(pieces, whole);
        }
    }
}
