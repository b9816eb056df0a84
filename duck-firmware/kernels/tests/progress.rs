//! What an onlooker may see while a step runs.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{Cores, Input, Model, Random, hold};
use fp9::{Format, Isa};
use kernels::abi::FULL_SHARE;
use kernels::tree::Shape;
use kernels::{Config, Core, HeldNode, Holder, Hooks, Limits, Mode, Running, Step, scratch_len};

/// Looks at everything that is final, each time it is asked.
struct Onlooker<'a> {
    running: Running<'a>,
    expected: &'a [Vec<Option<Vec<f32>>>],
    seen: Vec<std::ops::Range<usize>>,
    looks: usize,
    partial: usize,
}

impl Onlooker<'_> {
    fn look(&mut self) {
        self.looks += 1;
        for core in 0..self.seen.len() {
            let done = self.running.done(core);
            let before = &self.seen[core];
            assert!(done.start == before.start && done.end >= before.end, "{before:?}, then {done:?}");
            let new = before.end..done.end;
            self.seen[core] = done.clone();
            if new.is_empty() {
                continue;
            }
            self.partial += 1;
            for (node, lanes) in self.expected.iter().enumerate() {
                for (lane, expected) in lanes.iter().enumerate() {
                    let found = self.running.values(node, lane, new.clone());
                    let expected = expected.as_ref().map(|values| &values[new.clone()]);
                    assert_eq!(found, expected, "node {node}, lane {lane}, rows {new:?}");
                }
            }
        }
    }
}

impl Hooks for Onlooker<'_> {
    fn boundary(&mut self) {
        self.look();
    }

    fn idle(&mut self) {
        std::thread::yield_now();
    }
}

struct Quiet;

impl Hooks for Quiet {
    fn boundary(&mut self) {
        panic!("only core 0 has boundaries");
    }

    fn idle(&mut self) {
        std::thread::yield_now();
    }
}

#[test]
fn only_final_values_are_ever_shown_and_progress_never_goes_back() {
    let shape = Shape { slices: 2, experts: 8 };
    let hidden = 2048;
    let model = Model::random(Format::Fp9, shape, hidden, 21);
    let (left, right) = shape.root().children(shape).unwrap();
    let nodes = [left, right];
    let (table, firsts) = model.table(&nodes);
    let limits = Limits::new(shape, &nodes, 3, 2);
    for count in [1, 2, 3] {
        let mut scratch = vec![0; scratch_len(&limits, shape, hidden, count).unwrap()];
        let config = Config {
            layout: model.layout,
            shape,
            units: table.len(),
            table: &table,
            cores: count,
            core0_share: FULL_SHARE / 2,
            limits,
        };
        let mut holder = Holder::new(&config, &mut scratch).unwrap();
        for round in 0..6 {
            let input = Input::random(&model, Mode::Exact, 1 + round % 3, 2, &mut Random(round as u64));
            let expected = hold(&model, &nodes, &input, Cores::one()).unwrap();
            let mut out = vec![f32::NAN; 2 * input.lanes * hidden];
            let mut present = vec![0; 2 * input.lanes];
            let mut held: Vec<HeldNode<'_>> = nodes
                .iter()
                .zip(&firsts)
                .zip(out.chunks_exact_mut(input.lanes * hidden).zip(present.chunks_exact_mut(input.lanes)))
                .map(|((&node, &first), (out, present))| HeldNode::new(node, first, out, present))
                .collect();
            let step = Step {
                layer: 0,
                mode: input.mode,
                lanes: input.lanes,
                chosen: input.chosen,
                ids: &input.ids,
                weights: &input.weights,
                input: &input.x,
                nodes: &mut held,
            };
            let running = holder.begin(step).unwrap();
            let seen: Vec<_> = (0..count).map(|c| running.done(c)).collect();
            assert!(seen.iter().all(|s| s.is_empty()));
            assert_eq!(running.values(0, 0, 0..32), None);
            let onlooker = || Onlooker { running, expected: &expected, seen: seen.clone(), looks: 0, partial: 0 };
            let core = |index| Core { index, isa: Isa::detect() };
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let mut eyes = onlooker();
                    while !stop.load(Ordering::Relaxed) {
                        eyes.look();
                        std::thread::yield_now();
                    }
                    eyes.look();
                    eyes.seen
                });
                let others: Vec<_> =
                    (1..count).map(|c| scope.spawn(move || running.run(core(c), &mut Quiet))).collect();
                let mut eyes = onlooker();
                running.run(core(0), &mut eyes).unwrap();
                for other in others {
                    other.join().unwrap().unwrap();
                }
                stop.store(true, Ordering::Relaxed);
                // Ranges of 256 rows at most, and a look at the end of each.
                let own = running.done(0).len();
                assert!(eyes.partial >= own / 256 && eyes.looks >= own / 256, "{} of {own}", eyes.partial);
                let rows: usize = reader.join().unwrap().iter().map(|r| r.len()).sum();
                assert_eq!(rows, hidden);
            });
            assert!(running.ended());
            assert!(running.values(0, 0, hidden - 1..hidden + 1).is_none());
            assert!(running.values(2, 0, 0..1).is_none() && running.values(0, 3, 0..1).is_none());
        }
    }
}

/// Counts.
struct Count(usize);

impl Hooks for Count {
    fn boundary(&mut self) {
        self.0 += 1;
    }
}

/// Core 0 is asked for long before a large step is over, within tiles and within batches.
#[test]
fn the_hook_is_called_in_the_middle_of_long_products() {
    let shape = Shape { slices: 1, experts: 2 };
    let hidden = 4096;
    let model = Model::random(Format::E4m3, shape, hidden, 2);
    let (table, _) = model.table(&[shape.root()]);
    for lanes in [1, 100] {
        let limits = Limits::new(shape, &[shape.root()], lanes, 1);
        let mut scratch = vec![0; scratch_len(&limits, shape, hidden, 1).unwrap()];
        let config = Config {
            layout: model.layout,
            shape,
            units: table.len(),
            table: &table,
            cores: 1,
            core0_share: FULL_SHARE,
            limits,
        };
        let mut holder = Holder::new(&config, &mut scratch).unwrap();
        let input = Input::random(&model, Mode::Exact, lanes, 1, &mut Random(1));
        let (mut out, mut present) = (vec![0.0; lanes * hidden], vec![0; lanes]);
        let mut held = [HeldNode::new(shape.root(), 0, &mut out, &mut present)];
        let step = Step {
            layer: 0,
            mode: Mode::Exact,
            lanes,
            chosen: 1,
            ids: &input.ids,
            weights: &input.weights,
            input: &input.x,
            nodes: &mut held,
        };
        let running = holder.begin(step).unwrap();
        let mut hooks = Count(0);
        running.run(Core { index: 0, isa: Isa::detect() }, &mut hooks).unwrap();
        // 3 · 64 · hidden weights at 0.16 ns, or 0.05 ns a lane, in pieces of 20 µs.
        let expected = (3.0 * 64.0 * hidden as f64 * (0.11 + 0.05 * lanes as f64) / 20_000.0) as usize;
        assert!(hooks.0 >= expected.max(5), "{} calls for {lanes} lanes, expected {expected}", hooks.0);
    }
}
