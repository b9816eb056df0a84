//! The flock as a whole: the three promises (plan, batch and thread invariance), correctness, and nonsense refused.

use std::sync::{Arc, LazyLock};

use kernels::tree::Shape;
use model::Numerics;
use model::checkpoint::{DType, Matrix};
use model::program::{Dims, Model};
use model::step::{StepInput, StepIo};
use proptest::prelude::*;

use super::*;
use crate::testing::{Random, dims, model, step};

const DUCKLING: Dims = Dims { hidden: 256, vocab: 1, max_positions: 1, experts: 8, chosen: 2, expert_width: 256 };

static SMALL: LazyLock<Model> = LazyLock::new(|| model(DUCKLING, 2, DType::F8E4M3, 1, |_, _| {}));

fn sums(flock: &mut Flock, input: &StepInput) -> Vec<u32> {
    let io = Arc::new(StepIo::new(flock.sources()));
    assert!(io.input.publish(|i| *i = input.clone()));
    flock.submit(Arc::clone(&io)).expect("a sound step");
    flock.poll().expect("ducks in this process do not fail");
    assert!(io.is_summed() && flock.outstanding() == 0);
    let sum = io.sums[0].get().expect("summed");
    assert_eq!(sum.nodes, [flock.plan().shape().root()]);
    assert_eq!(sum.present, vec![true; input.lanes]);
    assert_eq!(sum.values.len(), input.hidden.len());
    sum.values.iter().map(|v| v.to_bits()).collect()
}

fn flock(model: &Model, ducks: usize, numerics: Numerics) -> Flock {
    Flock::in_process(model, ducks, numerics).expect("a plan for a sound model")
}

/// The lanes `range` of a step.
fn part(input: &StepInput, range: std::ops::Range<usize>) -> StepInput {
    let (hidden, chosen) = (input.hidden.len() / input.lanes, input.experts.len() / input.lanes);
    StepInput {
        layer: input.layer,
        lanes: range.len(),
        hidden: input.hidden[range.start * hidden..range.end * hidden].to_vec(),
        experts: input.experts[range.start * chosen..range.end * chosen].to_vec(),
        weights: input.weights[range.start * chosen..range.end * chosen].to_vec(),
    }
}

#[test]
fn sums_do_not_depend_on_the_number_of_ducks() {
    let mut random = Random(2);
    for numerics in [Numerics::Exact, Numerics::Bf16] {
        for lanes in [1, 2, 5, 33] {
            let input = step(&mut random, DUCKLING, 1, lanes);
            let want = sums(&mut flock(&SMALL, 1, numerics), &input);
            for ducks in [2, 3, 4, 5, 8, 15, 16, 31, 32] {
                assert_eq!(sums(&mut flock(&SMALL, ducks, numerics), &input), want, "{ducks} {lanes}");
            }
        }
    }
}

#[test]
fn sums_do_not_depend_on_threads_or_on_the_instructions() {
    let input = step(&mut Random(3), DUCKLING, 0, 300);
    let want = sums(&mut flock(&SMALL, 4, Numerics::Exact), &input);
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a small pool");
        for ducks in [1, 4, 7] {
            let found = pool.install(|| sums(&mut flock(&SMALL, ducks, Numerics::Exact), &input));
            assert!(found == want, "{threads} threads, {ducks} ducks");
        }
    }
    let mut scalar = flock(&SMALL, 3, Numerics::Exact);
    let mut experts = experts::Experts::new(&SMALL, Numerics::Exact).expect("sound");
    experts.isa = fp9::Isa::Scalar;
    let nodes: Vec<_> = (0..3).map(|h| scalar.plan.nodes(h).to_vec()).collect();
    let local = Local::new(&Arc::new(experts), 0, nodes.iter().map(|nodes| &nodes[..]));
    scalar.ducks = Ducks::Local(Box::new(local));
    assert!(sums(&mut scalar, &input) == want, "scalar");
}

#[test]
fn a_lane_has_the_same_sum_alone_and_in_company() {
    for numerics in [Numerics::Exact, Numerics::Bf16] {
        let mut flock = flock(&SMALL, 3, numerics);
        let input = step(&mut Random(4), DUCKLING, 0, 70);
        let alone: Vec<Vec<u32>> = (0..70).map(|lane| sums(&mut flock, &part(&input, lane..lane + 1))).collect();
        for lanes in 1..=70 {
            let start = (lanes * 7) % (71 - lanes);
            let found = sums(&mut flock, &part(&input, start..start + lanes));
            assert_eq!(found, alone[start..start + lanes].concat(), "{lanes} lanes from {start}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_plan_gives_the_same_sums(seed: u64, holders in 1usize..9, lanes in 1usize..6) {
        let input = step(&mut Random(seed), DUCKLING, 0, lanes);
        let want = sums(&mut flock(&SMALL, 1, Numerics::Exact), &input);
        let plan = Plan::random(Shape { slices: 4, experts: 8 }, holders, seed).expect("holders");
        let mut random = Flock::with_plan(&SMALL, plan, Numerics::Exact).expect("the model's shape");
        prop_assert_eq!(sums(&mut random, &input), want);
    }
}

#[test]
fn odd_sizes_and_other_types_keep_the_promises() {
    for (i, (slices, experts, chosen, hidden, dtype)) in [
        (3, 5, 3, 320, DType::F8E4M3),
        (1, 4, 4, 64, DType::BF16),
        (2, 6, 1, 128, DType::F8E4M3),
        (5, 1, 1, 448, DType::F8E4M3),
        (2, 3, 2, 192, DType::BF16),
    ]
    .into_iter()
    .enumerate()
    {
        let dims = dims(slices, experts, chosen, hidden);
        let model = model(dims, 1, dtype, i as u64, |_, _| {});
        let input = step(&mut Random(9), dims, 0, 21);
        let want = sums(&mut flock(&model, 1, Numerics::Exact), &input);
        for ducks in 2..=slices * experts {
            let mut flock = flock(&model, ducks, Numerics::Exact);
            assert_eq!(sums(&mut flock, &input), want, "{dims:?} {ducks}");
            assert_eq!(sums(&mut flock, &part(&input, 20..21)), want[20 * hidden..], "{dims:?} {ducks}");
        }
        assert_close_to_f64(&model, &input, &want);
    }
}

#[test]
fn sums_agree_with_f64() {
    let input = step(&mut Random(10), DUCKLING, 1, 20);
    let found = sums(&mut flock(&SMALL, 4, Numerics::Exact), &input);
    assert_close_to_f64(&SMALL, &input, &found);
}

/// Within 2e-6 of the sum of magnitudes (of every product, intermediate ones included).
fn assert_close_to_f64(model: &Model, input: &StepInput, found: &[u32]) {
    let (hidden, width, chosen) = (model.dims.hidden, model.dims.expert_width, model.dims.chosen);
    let times = |m: &Matrix, x: &[f64]| -> Vec<(f64, f64)> {
        let weights = m.to_f32_vec();
        let row = |r: &[f32]| {
            let products = r.iter().zip(x).map(|(&w, x)| f64::from(w) * x);
            products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()))
        };
        weights.chunks_exact(m.cols).map(row).collect()
    };
    for lane in 0..input.lanes {
        let x: Vec<f64> = input.hidden[lane * hidden..][..hidden].iter().map(|&v| v.into()).collect();
        let mut want = vec![(0.0, 0.0); hidden];
        for choice in lane * chosen..(lane + 1) * chosen {
            let expert = &model.experts[usize::from(input.layer)].experts[usize::from(input.experts[choice])];
            let (gate, up) = (times(&expert.gate, &x), times(&expert.up, &x));
            let h: Vec<f64> = (0..width).map(|i| gate[i].0 / (1.0 + (-gate[i].0).exp()) * up[i].0).collect();
            // An error of g or u relative to its own magnitudes reaches h through the other factor; silu' is below 1.1.
            let sizes: Vec<f64> =
                (0..width).map(|i| 1.1 * (gate[i].1 * up[i].0.abs() + gate[i].0.abs() * up[i].1)).collect();
            let weight = f64::from(input.weights[choice]);
            let magnitude: Vec<f64> = expert
                .down
                .to_f32_vec()
                .chunks_exact(width)
                .map(|row| row.iter().zip(&sizes).map(|(&w, s)| f64::from(w).abs() * s).sum())
                .collect();
            for (r, (sum, _)) in times(&expert.down, &h).into_iter().enumerate() {
                want[r] = (want[r].0 + weight * sum, want[r].1 + weight * magnitude[r]);
            }
        }
        for (r, (sum, size)) in want.into_iter().enumerate() {
            let error = (f64::from(f32::from_bits(found[lane * hidden + r])) - sum).abs();
            assert!(error <= 2e-6 * size, "lane {lane}, output {r}: off by {error:e} of {size:e}");
        }
    }
}

#[test]
fn bf16_mode_is_near_exact_mode_but_not_the_same() {
    let input = step(&mut Random(12), DUCKLING, 0, 4);
    let [exact, rounded] = [Numerics::Exact, Numerics::Bf16].map(|n| sums(&mut flock(&SMALL, 2, n), &input));
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let difference = norm(&mut exact.iter().zip(&rounded).map(|(&a, &b)| f32::from_bits(a) - f32::from_bits(b)));
    let size = norm(&mut exact.iter().map(|&a| f32::from_bits(a)));
    assert!(difference > 1e-4 * size && difference < 1e-2 * size, "{difference} of {size}");
}

#[test]
fn several_steps_may_be_outstanding() {
    let mut flock = flock(&SMALL, 3, Numerics::Exact);
    let mut random = Random(13);
    let inputs: Vec<StepInput> = (1..4).map(|lanes| step(&mut random, DUCKLING, lanes as u16 % 2, lanes)).collect();
    let want: Vec<Vec<u32>> = inputs.iter().map(|input| sums(&mut flock, input)).collect();
    let steps: Vec<Arc<StepIo>> = inputs
        .iter()
        .map(|input| {
            let io = Arc::new(StepIo::new(flock.sources()));
            io.input.publish(|i| *i = input.clone());
            flock.submit(Arc::clone(&io)).expect("a sound step");
            io
        })
        .collect();
    assert_eq!(flock.outstanding(), 3);
    flock.poll().expect("ducks in this process do not fail");
    for (io, want) in steps.iter().zip(want) {
        let found: Vec<u32> = io.sums[0].get().expect("summed").values.iter().map(|v| v.to_bits()).collect();
        assert_eq!(found, want);
    }
    // The flock has let go of them, so the stage can use them again.
    assert!(steps.into_iter().all(|io| Arc::into_inner(io).is_some()));
    let units: u64 = flock.stats().iter().map(|s| s.units).sum();
    assert!(flock.stats().iter().all(|s| s.steps == 6) && units >= 2 * 3 * 8, "{units}");
}

#[test]
fn nonsense_is_refused_and_harms_nobody() {
    let mut flock = flock(&SMALL, 4, Numerics::Exact);
    let good = step(&mut Random(14), DUCKLING, 0, 2);
    let mut refuse = |change: &dyn Fn(&mut StepInput)| {
        let mut input = good.clone();
        change(&mut input);
        let io = Arc::new(StepIo::new(1));
        io.input.publish(|i| *i = input);
        let error = flock.submit(io).expect_err("nonsense");
        assert_eq!(flock.outstanding(), 0);
        error
    };
    assert!(matches!(refuse(&|i| i.layer = 2), FlockError::Layer { layers: 2, found: 2 }));
    assert!(matches!(refuse(&|i| i.lanes = 3), FlockError::InputLength { what: "hidden values", .. }));
    assert!(matches!(refuse(&|i| i.lanes = 0), FlockError::InputLength { .. }));
    assert!(matches!(refuse(&|i| i.lanes = usize::MAX), FlockError::InputLength { .. }));
    assert!(matches!(refuse(&|i| _ = i.experts.pop()), FlockError::InputLength { what: "expert ids", .. }));
    assert!(matches!(refuse(&|i| i.weights.push(0.0)), FlockError::InputLength { what: "expert weights", .. }));
    let wild = refuse(&|i| i.experts[3] = 8);
    assert!(matches!(wild, FlockError::ExpertId { lane: 1, experts: 8, found: 8 }));
    assert!(matches!(refuse(&|i| i.experts.reverse()), FlockError::ExpertOrder { lane: 0, .. }));
    assert!(matches!(refuse(&|i| i.experts[1] = i.experts[0]), FlockError::ExpertOrder { lane: 0, .. }));

    assert!(matches!(flock.submit(Arc::new(StepIo::new(1))), Err(FlockError::NoInput)));
    let wide = flock.submit(Arc::new(StepIo::new(2)));
    assert!(matches!(wide, Err(FlockError::Sources { expected: 1, found: 2 })));
    let io = Arc::new(StepIo::new(1));
    io.input.publish(|i| *i = good.clone());
    for _ in 0..2 {
        flock.submit(Arc::clone(&io)).expect("a sound step");
    }
    assert!(matches!(flock.poll(), Err(FlockError::AlreadySummed { seq: 1, slot: 0 })));
    flock.abandon();
    assert_eq!(flock.outstanding(), 0);
    assert!(matches!(flock.submit(io), Err(FlockError::AlreadySummed { .. })));
    sums(&mut flock, &good);
}

#[test]
fn a_step_of_no_lanes_is_summed_at_once() {
    assert!(sums(&mut flock(&SMALL, 4, Numerics::Exact), &StepInput::default()).is_empty());
}

#[test]
fn a_weight_that_is_no_number_is_refused_by_name() {
    for code in [0x7f, 0xff] {
        let broken = model(DUCKLING, 1, DType::F8E4M3, 1, |name, bytes| {
            if name == "layers.0.experts.3.up" {
                bytes[5 * 256 + 17] = code;
            }
        });
        let error = Flock::in_process(&broken, 4, Numerics::Exact).err().expect("a NaN").to_string();
        for part in ["layers.0.experts.3.up", "row 5", "column 17"] {
            assert!(error.contains(part), "{error}");
        }
    }
    let broken = model(DUCKLING, 1, DType::BF16, 1, |name, bytes| {
        if name == "layers.0.experts.0.down" {
            bytes[2..4].copy_from_slice(&0xff80u16.to_le_bytes());
        }
    });
    let error = Flock::in_process(&broken, 4, Numerics::Exact).err().expect("an infinity").to_string();
    assert!(error.contains("layers.0.experts.0.down") && error.contains("column 1"), "{error}");
}

#[test]
fn a_model_that_does_not_fit_its_sizes_or_plan_is_refused() {
    let build = |model: &Model| Flock::in_process(model, 4, Numerics::Exact).err().expect("unsound");
    let mut short = SMALL.clone();
    short.experts[1].experts.pop();
    assert!(matches!(build(&short), FlockError::Pack(_)));
    let mut narrow = SMALL.clone();
    narrow.dims.hidden = 128;
    assert!(matches!(build(&narrow), FlockError::Units { expected: (128, 4, 8), found: (256, 4, 8) }));
    let mut ragged = SMALL.clone();
    ragged.dims.expert_width = 257;
    assert!(matches!(build(&ragged), FlockError::Sizes { hidden: 256, width: 257 }));
    let mut unscaled = SMALL.clone();
    unscaled.experts[0].experts[0].gate.scale = None;
    assert!(matches!(build(&unscaled), FlockError::Pack(_)));
    let plan = Plan::for_ducks(Shape { slices: 2, experts: 8 }, 2, 4).expect("a valid plan");
    assert!(matches!(Flock::with_plan(&SMALL, plan, Numerics::Exact), Err(FlockError::PlanShape { .. })));
    assert!(matches!(Flock::in_process(&SMALL, 33, Numerics::Exact), Err(FlockError::Plan(PlanError::Ducks { .. }))));
}

#[test]
fn the_ducks_bytes_add_up_to_the_models() {
    let matrix = |m: &Matrix| m.data.bytes().len() as u64 + 4 * m.scale.as_ref().map_or(0, |s| s.values().len() as u64);
    let all = SMALL.experts.iter().flat_map(|l| &l.experts);
    let total: u64 = all.map(|e| matrix(&e.gate) + matrix(&e.up) + matrix(&e.down)).sum();
    for ducks in [1, 3, 4, 32] {
        let plan = Plan::for_ducks(Shape { slices: 4, experts: 8 }, 2, ducks).expect("a valid plan");
        let bytes = bytes_per_duck(&SMALL, &plan);
        assert_eq!((bytes.len(), bytes.iter().sum::<u64>()), (ducks, total));
    }
}
