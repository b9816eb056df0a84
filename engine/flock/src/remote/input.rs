//! A step's input as the bytes that travel, see [`wire::body`].

use model::Numerics;
use model::step::StepInput;
use wire::Limits;
use wire::body::{Head, Layout};
use wire::limits::Mode;

/// Writes a step's input into `out`. `named`: nodes to compute in place of the plan's.
pub(super) fn encode(limits: &Limits, input: &StepInput, named: &[u16], time_limit: u32, out: &mut Vec<u8>) {
    let layout = Layout::new(limits, input.lanes as u16, named.len() as u16);
    out.clear();
    out.reserve(layout.len());
    out.extend_from_slice(&Head { layer: input.layer, reserved: 0, time_limit }.emit());
    named.iter().for_each(|node| out.extend_from_slice(&node.to_le_bytes()));
    input.experts.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()));
    input.weights.iter().for_each(|weight| out.extend_from_slice(&weight.to_le_bytes()));
    match limits.mode {
        Mode::Bf16 => {
            // Stage 0 has rounded them in this mode, so the upper half of each is all of it.
            let bits = input.hidden.iter().map(|&value| Numerics::Bf16.round(value).to_bits() >> 16);
            bits.for_each(|half| out.extend_from_slice(&(half as u16).to_le_bytes()));
        }
        Mode::Exact | Mode::Fp8 => {
            input.hidden.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
    }
    debug_assert_eq!(out.len(), layout.len());
}
