//! What programs become, without a card.

use model::synthetic;

use super::*;

/// Every width as in the published model but fewer, so that the same kernels serve.
fn dims() -> synthetic::Dims {
    synthetic::Dims {
        hidden: 256,
        layers: 3,
        dense_layers: 1,
        intermediate: 256,
        moe_intermediate: 128,
        heads: 2,
        q_lora: 128,
        kv_lora: 512,
        nope: 128,
        rope: 64,
        value: 128,
        index_heads: 4,
        index_dim: 128,
        ..synthetic::Dims::tiny()
    }
}

fn model(dims: &synthetic::Dims) -> Model {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("checkpoint");
    let options = synthetic::Options { folder: &path, dims, seed: 3, shard_bytes: 1 << 30 };
    synthetic::write(&options).expect("room for a small checkpoint");
    model::arch::load(&path).expect("a good checkpoint")
}

/// Kernels that a launch takes for few lanes.
fn kernels(launch: &Launch) -> usize {
    match launch {
        Launch::Rows(_) | Launch::Linears(_) | Launch::Route(_) => 1,
        Launch::Select(_) | Launch::Attend(_) => 2,
    }
}

fn in_segment(segment: &LoweredSegment) -> [usize; 2] {
    [&segment.before, &segment.during].map(|groups| groups.iter().flat_map(|group| &group.launches).map(kernels).sum())
}

#[test]
fn a_layer_takes_eighteen_kernels_three_of_them_beside_the_ducks() {
    let model = model(&dims());
    for numerics in [Numerics::Bf16, Numerics::Fp8, Numerics::Exact] {
        let lowered = lower(&model, &model.main, numerics, true).expect("a program that fits");
        assert_eq!(in_segment(&lowered.segments[1]), [15, 3], "{numerics:?}");
    }
}

#[test]
fn every_product_of_the_published_widths_goes_to_the_matrix_instructions() {
    let model = model(&dims());
    for numerics in [Numerics::Bf16, Numerics::Fp8] {
        let lowered = lower(&model, &model.main, numerics, true).expect("a program that fits");
        for launch in lowered.launches() {
            match launch {
                Launch::Linears(list) => {
                    let router = |task: &LinearTask| task.rows == model.dims.experts;
                    assert!(list.iter().all(|task| task.fast != router(task)), "{list:?}");
                    assert!(list.iter().all(|task| !task.weight.decoded), "{list:?}");
                }
                Launch::Select(task) => assert!(task.fast),
                Launch::Attend(task) => assert!(task.fast),
                _ => {}
            }
        }
    }
    let exact = lower(&model, &model.main, Numerics::Exact, true).expect("a program that fits");
    let fast = exact.launches().any(|launch| matches!(launch, Launch::Linears(list) if list.iter().any(|t| t.fast)));
    assert!(!fast, "nothing is rounded in mode exact");
}

#[test]
fn heads_whose_scales_cannot_be_cut_are_decoded() {
    let small = model(&synthetic::Dims::tiny());
    let lowered = lower(&small, &small.main, Numerics::Bf16, true).expect("a program that fits");
    let cut: Vec<WeightKey> = lowered.weights().into_iter().filter(|key| key.cut != Cut::Whole).collect();
    assert!(!cut.is_empty() && cut.iter().all(|key| key.decoded), "{cut:?}");
    let wide = model(&dims());
    let lowered = lower(&wide, &wide.main, Numerics::Bf16, true).expect("a program that fits");
    let names: Vec<_> = lowered
        .weights()
        .iter()
        .filter(|key| key.cut == Cut::Whole)
        .map(|key| wide.weights.matrices[key.matrix.0 as usize].data.name().to_owned())
        .collect();
    assert!(
        !names.iter().any(|name| name.ends_with("kv_b_proj.weight")),
        "a matrix of heads lies there in its cuts alone"
    );
}

#[test]
fn mode_fp8_quantises_what_8_bit_projections_read_and_what_is_stored_and_handed_over() {
    let model = model(&dims());
    let lowered = lower(&model, &model.main, Numerics::Fp8, true).expect("a program that fits");
    for launch in lowered.launches() {
        if let Launch::Linears(list) = launch {
            for task in list {
                let matrix = &model.weights.matrices[task.weight.matrix.0 as usize];
                let expected = matrix.dtype() == DType::F8E4M3 && task.weight.cut == Cut::Whole;
                assert_eq!(task.quantise, expected, "{}", matrix.data.name());
            }
        }
    }
    // A layer quantises the latent vector, the indexer's key and queries, and a copy of what the ducks get.
    let last = &lowered.segments[1];
    let rows: Vec<&RowTask> = last
        .before
        .iter()
        .flat_map(|group| &group.launches)
        .filter_map(|launch| match launch {
            Launch::Rows(chains) => Some(chains.iter().flatten()),
            _ => None,
        })
        .flatten()
        .collect();
    let quantised: Vec<bool> = rows
        .iter()
        .filter_map(|row| match row {
            RowTask::Quantise { x, out, .. } => Some(x == out),
            _ => None,
        })
        .collect();
    assert_eq!((quantised.iter().filter(|&&in_place| in_place).count(), quantised.len()), (3, 4), "{rows:?}");
    assert_eq!(rows.iter().filter(|row| matches!(row, RowTask::Hadamard { .. })).count(), 2);
    let bf16 = lower(&model, &model.main, Numerics::Bf16, true).expect("a program that fits");
    assert!(bf16.launches().all(|launch| match launch {
        Launch::Linears(list) => list.iter().all(|task| !task.quantise),
        Launch::Rows(chains) => !chains.iter().flatten().any(|row| matches!(row, RowTask::Quantise { .. })),
        _ => true,
    }));
}

#[test]
fn a_wait_is_first_in_its_chain_and_nothing_else_waits() {
    let model = model(&dims());
    for program in [&model.main, model.mtp.as_ref().expect("a synthetic model has one")] {
        let lowered = lower(&model, program, Numerics::Bf16, true).expect("a program that fits");
        let mut waits = 0;
        for segment in &lowered.segments {
            for (place, launch) in segment.before.iter().flat_map(|group| &group.launches).enumerate() {
                let Launch::Rows(chains) = launch else { continue };
                for chain in chains {
                    let found: Vec<usize> = (0..chain.len()).filter(|&i| matches!(chain[i], RowTask::Wait)).collect();
                    waits += found.len();
                    assert!(found.is_empty() || (found == [0] && place == 0 && segment.combines), "{chain:?}");
                    assert!(found.is_empty() || matches!(chain[1], RowTask::Combine { .. }));
                }
            }
        }
        assert_eq!(waits, lowered.segments.iter().filter(|segment| segment.combines).count());
    }
}

#[test]
fn observed_programs_keep_the_order_of_their_operations() {
    let model = model(&dims());
    let lowered = lower(&model, &model.main, Numerics::Bf16, false).expect("a program that fits");
    for (segment, lowered) in model.main.segments.iter().zip(&lowered.segments) {
        let ops: Vec<Option<usize>> = lowered.before.iter().map(|group| group.op).collect();
        assert_eq!(ops, (0..segment.before.len()).map(Some).collect::<Vec<_>>());
        assert!(lowered.before.iter().all(|group| !group.launches.is_empty()));
    }
}
