//! A step's bits: the kernels against the definition, over shapes, formats, modes, lanes, cores and plans.

mod common;

use common::{Cores, FORMATS, Input, Model, Random, add_up, bits, hold, random_cut};
use fp9::{Format, Isa};
use kernels::Mode;
use kernels::tree::{Node, Shape};
use proptest::prelude::*;

const MODES: [Mode; 2] = [Mode::Exact, Mode::Bf16];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn kernels_and_definition_give_the_same_bits(
        seed: u64,
        (slices, experts, blocks) in (1u16..4, 1u16..10, 1usize..6),
        (format, mode, threads) in (0usize..3, 0usize..2, any::<bool>()),
        lanes in 1usize..6,
        (count, share) in (1usize..6, 1u32..257),
    ) {
        let random = &mut Random(seed);
        let shape = Shape { slices, experts };
        let model = Model::random(FORMATS[format], shape, blocks * 64, seed);
        let input = Input::random(&model, MODES[mode], lanes, 1 + random.below(experts.into()), random);
        let nodes = random_cut(shape, shape.root(), 4, random);
        let sums = hold(&model, &nodes, &input, Cores { count, share, threads, isa: Isa::detect() }).unwrap();
        for (node, sums) in nodes.iter().zip(&sums) {
            let expected = input.reference(&model, *node);
            for lane in 0..lanes {
                prop_assert_eq!(bits(&sums[lane]), bits(&expected[lane]), "{:?}, lane {}", node, lane);
            }
        }
    }

    #[test]
    fn any_plan_over_any_holders_and_cores_adds_up_to_the_same_bits(
        seed: u64,
        (slices, experts) in (1u16..14, 1u16..20),
        (format, mode) in (0usize..3, 0usize..2),
        (lanes, holders) in (1usize..4, 1usize..65),
    ) {
        let random = &mut Random(seed);
        let shape = Shape { slices, experts };
        let model = Model::random(FORMATS[format], shape, 64, seed);
        let input = Input::random(&model, MODES[mode], lanes, 1 + random.below(experts.min(8).into()), random);
        let whole = hold(&model, &[shape.root()], &input, Cores::one()).unwrap();
        // Nodes are dealt out at random: a holder's need not be neighbours.
        let nodes = random_cut(shape, shape.root(), 2 * holders, random);
        let owner: Vec<usize> = nodes.iter().map(|_| random.below(holders)).collect();
        let mut sums = vec![Vec::new(); nodes.len()];
        for holder in 0..holders {
            let mine: Vec<usize> = (0..nodes.len()).filter(|&n| owner[n] == holder).collect();
            if mine.is_empty() {
                continue;
            }
            let count = [1, 2, 3, 4, 7, 64][random.below(6)];
            let cores = Cores { count, share: 1 + random.below(256) as u32, ..Cores::one() };
            let held: Vec<Node> = mine.iter().map(|&n| nodes[n]).collect();
            for (&n, sum) in mine.iter().zip(hold(&model, &held, &input, cores).unwrap()) {
                sums[n] = sum;
            }
        }
        for (lane, whole) in whole[0].iter().enumerate() {
            prop_assert_eq!(bits(&add_up(shape, &nodes, &sums, lane)), bits(whole), "lane {}", lane);
        }
    }
}

/// 512 lanes: each alone, in a pair and in the batch; on one core and several; scalar and vector.
#[test]
fn a_lane_has_the_same_bits_alone_in_a_pair_and_in_a_batch() {
    for (format, mode) in [(Format::E4m3, Mode::Exact), (Format::Fp9, Mode::Bf16), (Format::Bf16, Mode::Exact)] {
        let random = &mut Random(5);
        let shape = Shape { slices: 2, experts: 6 };
        let model = Model::random(format, shape, 192, 77);
        let input = Input::random(&model, mode, 512, 2, random);
        let root = [shape.root()];
        let batch = hold(&model, &root, &input, Cores { count: 3, ..Cores::one() }).unwrap();
        for _ in 0..40 {
            let (a, b) = (random.below(512), random.below(512));
            let pair = hold(&model, &root, &input.lanes(&[a, b]), Cores { count: 2, ..Cores::one() }).unwrap();
            let alone = hold(&model, &root, &input.lanes(&[a]), Cores::one()).unwrap();
            assert_eq!(bits(&batch[0][a]), bits(&alone[0][0]), "{format:?} lane {a}");
            assert_eq!(bits(&batch[0][a]), bits(&pair[0][0]), "{format:?} lane {a}");
            assert_eq!(bits(&batch[0][b]), bits(&pair[0][1]), "{format:?} lane {b}");
        }
        let some: Vec<usize> = (0..6).map(|i| i * 83).collect();
        let few = input.lanes(&some);
        let scalar = hold(&model, &root, &few, Cores { isa: Isa::Scalar, ..Cores::one() }).unwrap();
        for (i, &lane) in some.iter().enumerate() {
            assert_eq!(bits(&batch[0][lane]), bits(&scalar[0][i]), "{format:?} lane {lane}");
        }
    }
}

/// All 200 lanes choose the same expert: more than a core gathers at once, and than one product takes.
#[test]
fn an_expert_of_very_many_lanes_is_computed_in_parts_with_the_same_bits() {
    let shape = Shape { slices: 1, experts: 3 };
    let model = Model::random(Format::E4m3, shape, 128, 3);
    let mut input = Input::random(&model, Mode::Exact, 200, 1, &mut Random(8));
    input.ids.fill(1);
    let batch = hold(&model, &[shape.root()], &input, Cores { count: 3, share: 100, ..Cores::one() }).unwrap();
    let expected = input.reference(&model, shape.root());
    for lane in 0..200 {
        assert_eq!(bits(&batch[0][lane]), bits(&expected[lane]), "lane {lane}");
    }
}

/// The step in f64, and the sum of magnitudes Σ w · |down| · H with H = |hidden| from Σ |gate · x| and Σ |up · x|.
fn in_f64(model: &Model, input: &Input, lane: usize) -> Vec<(f64, f64)> {
    use kernels::reference::Weights;
    use kernels::unit::Part;
    let lane = input.lane(model, lane);
    let hidden = lane.x.len();
    let mut out = vec![(0.0, 0.0); hidden];
    for slice in 0..model.shape.slices {
        for (&expert, &router) in lane.ids.iter().zip(lane.weights) {
            let weight = |part, row, column| {
                f64::from(model.weight(slice, expert, part, row, column))
                    * f64::from(model.scale(slice, expert, part, row, column))
            };
            let dot = |part, row| {
                (0..hidden).fold((0.0, 0.0), |(sum, magnitude), c| {
                    let term = weight(part, row, c) * f64::from(lane.x[c]);
                    (sum + term, magnitude + term.abs())
                })
            };
            // |silu(g)| never exceeds |g|, and neither does its slope 1.1.
            let h: Vec<(f64, f64)> = (0..64)
                .map(|row| {
                    let ((g, big_g), (u, big_u)) = (dot(Part::Gate, row), dot(Part::Up, row));
                    (g / (1.0 + (-g).exp()) * u, big_g * big_u)
                })
                .collect();
            for (row, out) in out.iter_mut().enumerate() {
                for (column, (h, big)) in h.iter().enumerate() {
                    let w = weight(Part::Down, row, column) * f64::from(router);
                    out.0 += w * h;
                    out.1 += w.abs() * big;
                }
            }
        }
    }
    out
}

#[test]
fn a_step_equals_its_f64_computation() {
    for format in FORMATS {
        let shape = Shape { slices: 4, experts: 8 };
        let model = Model::random(format, shape, 512, 11);
        let input = Input::random(&model, Mode::Exact, 3, 4, &mut Random(4));
        let sums = hold(&model, &[shape.root()], &input, Cores::one()).unwrap();
        let mut worst = 0.0f64;
        for (lane, values) in sums[0].iter().enumerate() {
            let values = values.as_ref().unwrap();
            for (value, (exact, magnitude)) in values.iter().zip(in_f64(&model, &input, lane)) {
                worst = worst.max((f64::from(*value) - exact).abs() / magnitude);
            }
        }
        assert!(worst < 2e-6, "{format:?}: {worst:e}");
        assert!(worst > 0.0);
    }
}
