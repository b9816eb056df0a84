//! How many bytes of weights one token makes a model read: each once, however many lanes share the reading.

use std::collections::HashMap;

use model::checkpoint::Matrix;
use model::program::{HeadRows, MatrixId, Model, Op, Program};

/// Bytes of a matrix with its block scales.
pub fn matrix_bytes(matrix: &Matrix) -> u64 {
    let scales = matrix.scale.as_ref().map_or(0, |scale| size_of_val(scale.values()));
    (matrix.data.bytes().len() + scales) as u64
}

/// Bytes that a token reads in the main layers: matrices of stage 0, one row of the embedding, and the chosen experts.
pub fn active_bytes(model: &Model) -> u64 {
    program_bytes(model, &model.main)
}

/// Bytes of all routed experts.
pub fn expert_bytes(model: &Model) -> u64 {
    if let Some(slices) = &model.slices {
        return slices.bytes();
    }
    let experts = model.experts.iter().flat_map(|layer| &layer.experts);
    experts.map(|e| [&e.gate, &e.up, &e.down].map(matrix_bytes).iter().sum::<u64>()).sum()
}

fn program_bytes(model: &Model, program: &Program) -> u64 {
    let mut rows_read: HashMap<u32, u64> = HashMap::new();
    let mut experts = 0;
    for segment in &program.segments {
        for op in segment.before.iter().chain(&segment.during) {
            if let Some((MatrixId(id), rows)) = reads(model, op) {
                *rows_read.entry(id).or_default() += rows;
            }
        }
        if let Some(step) = &segment.step {
            experts += chosen_bytes(model, usize::from(step.layer));
        }
    }
    let host: u64 = rows_read
        .into_iter()
        .map(|(id, rows)| {
            let matrix = &model.weights.matrices[id as usize];
            let all = matrix.rows as u64;
            // Parts of a matrix that two operations read are in the cache the second time.
            (u128::from(matrix_bytes(matrix)) * u128::from(rows.min(all)) / u128::from(all.max(1))) as u64
        })
        .sum();
    host + experts
}

/// The matrix that an operation reads, and how many of its rows.
fn reads(model: &Model, op: &Op) -> Option<(MatrixId, u64)> {
    let whole = |id: MatrixId| (id, model.weights.matrices[id.0 as usize].rows as u64);
    match op {
        Op::Embed { table, .. } => Some((*table, 1)),
        Op::Project { weight, .. } | Op::Logits { weight, .. } => Some(whole(*weight)),
        Op::Route { gate, .. } => Some(whole(*gate)),
        Op::HeadMix { weight, .. } | Op::HeadProject { weight, .. } => {
            let HeadRows { matrix, heads, rows, .. } = *weight;
            Some((matrix, (heads * rows) as u64))
        }
        _ => None,
    }
}

/// Experts of a layer are of equal size.
fn chosen_bytes(model: &Model, layer: usize) -> u64 {
    if let Some(slices) = &model.slices {
        return (slices.layout().len() * slices.slices() * model.dims.chosen) as u64;
    }
    let Some(expert) = model.experts.get(layer).and_then(|layer| layer.experts.first()) else { return 0 };
    let one: u64 = [&expert.gate, &expert.up, &expert.down].map(matrix_bytes).iter().sum();
    one * model.dims.chosen as u64
}
