//! Many steps through the same two `duckd` processes: right to the end, and nobody grows. `DUCKPOND_LONG=1` takes twenty times as many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flock::Flock;
use kernels::tree::{Node, additions};
use model::Numerics;
use model::program::Dims;
use model::step::{StepInput, StepIo};
use pond_tests::ducks::PondOptions;
use pond_tests::processes::{GUARD, Processes, Usage, alone, long};
use pond_tests::random::Random;
use pond_tests::{duckling_folder, load};

/// Steps that are compared with ducks in the process: one of so many.
const COMPARED: u64 = 100;
/// What a process may grow by after the first tenth of the steps.
const GROWTH: u64 = 4 << 20;

/// A random step of the model's sizes.
fn step(random: &mut Random, dims: &Dims, layers: u64, input: &mut StepInput) {
    input.layer = random.below(layers) as u16;
    // Mostly decoding, now and then a prompt's piece.
    input.lanes = if random.below(16) == 0 { 1 + random.below(24) as usize } else { 1 + random.below(2) as usize };
    input.hidden.clear();
    input.experts.clear();
    input.weights.clear();
    for _ in 0..input.lanes {
        input.hidden.extend((0..dims.hidden).map(|_| random.float()));
        let mut ids: Vec<u16> = (0..dims.experts as u16).collect();
        for i in 0..dims.chosen {
            ids.swap(i, i + random.below((dims.experts - i) as u64) as usize);
        }
        ids.truncate(dims.chosen);
        ids.sort_unstable();
        input.experts.extend(ids);
        input.weights.extend((0..dims.chosen).map(|_| random.float().abs() + 0.01));
    }
}

/// Has a flock compute what `io` asks.
fn compute(flock: &mut Flock, io: &Arc<StepIo>) {
    let started = Instant::now();
    flock.submit(Arc::clone(io)).expect("a sound step");
    while !io.is_summed() {
        if !flock.poll().expect("domains work") && !io.is_summed() {
            flock.wait(Duration::from_millis(100));
        }
        assert!(started.elapsed() < GUARD, "a step does not end");
    }
    // It lets go of what is published.
    flock.poll().expect("domains work");
}

/// The bits of every lane's sum, as a stage adds them up.
fn bits(flock: &Flock, io: &StepIo, hidden: usize) -> Vec<u32> {
    let shape = flock.plan().shape();
    let lanes = io.input.get().expect("published").lanes;
    let lane_bits = |lane: usize| {
        let mut nodes: Vec<(Node, Vec<f32>)> = Vec::new();
        for sums in io.sums.iter().map(|slot| slot.get().expect("summed")) {
            let rows = sums.nodes.iter().enumerate().map(|(at, node)| (node, at * lanes + lane));
            let present = rows.filter(|(_, row)| sums.present[*row]);
            nodes.extend(present.map(|(node, row)| (*node, sums.values[row * hidden..][..hidden].to_vec())));
        }
        nodes.sort_by_key(|(node, _)| node.order());
        let items: Vec<Node> = nodes.iter().map(|(node, _)| *node).collect();
        additions(shape, shape.root(), &items, &mut |a, b| {
            let (left, right) = nodes.split_at_mut(b);
            left[a].1.iter_mut().zip(&right[0].1).for_each(|(l, r)| *l += r);
        });
        nodes.swap_remove(0).1.into_iter().map(f32::to_bits)
    };
    (0..lanes).flat_map(lane_bits).collect()
}

#[test]
fn memory_and_sums_stay_what_they_are_over_many_steps() {
    let _alone = alone();
    let steps = if long() { 200_000 } else { 10_000 };
    let model = load(&duckling_folder());
    let mut pond = Processes::udp(PondOptions { ducks: 2, ..PondOptions::default() });
    let mut here = Flock::in_process(&model, 1, Numerics::Exact).expect("a plan");
    let mut there = Flock::remote(&model, Numerics::Exact, pond.host()).expect("a pond");
    there.as_remote().expect("remote").wait_ready(&mut |_| true).expect("domains work");
    let (mut random, layers) = (Random(8), model.experts.len() as u64);
    let mut remote_io = Arc::new(StepIo::new(there.sources()));
    let mut local_io = Arc::new(StepIo::new(here.sources()));
    let mut input = StepInput::default();
    let usage = |pond: &Processes| -> Vec<Usage> {
        let ducks = pond.ducks.iter().map(|duck| duck.usage().expect("it runs"));
        [Usage::own()].into_iter().chain(ducks).collect()
    };
    let (mut before, mut compared) = (Vec::new(), 0);
    let started = Instant::now();
    for at in 0..steps {
        step(&mut random, &model.dims, layers, &mut input);
        take_back(&mut there, &mut remote_io).input.publish(|to| to.clone_from(&input));
        compute(&mut there, &remote_io);
        if at % COMPARED == 0 {
            take_back(&mut here, &mut local_io).input.publish(|to| to.clone_from(&input));
            compute(&mut here, &local_io);
            let (got, want) = (bits(&there, &remote_io, model.dims.hidden), bits(&here, &local_io, model.dims.hidden));
            assert_eq!(got.len(), input.lanes * model.dims.hidden);
            assert!(got == want, "sums of step {at} differ");
            compared += 1;
        }
        if at == steps / 10 {
            before = usage(&pond);
        }
    }
    let after = usage(&pond);
    println!("{steps} steps in {} ms: {before:?} before, {after:?} after", started.elapsed().as_millis());
    assert_eq!(compared, steps / COMPARED);
    for (before, after) in before.iter().zip(&after) {
        assert!(after.rss <= before.rss + GROWTH, "{before:?} before, {after:?} after");
        assert_eq!(after.threads, before.threads);
    }
    pond.assert_running();
    let status = there.as_remote().expect("remote").status();
    assert!(status.ducks.iter().all(|duck| duck.losses == 0 && duck.steps > steps / 2), "{status:?}");
}

/// A step's exchange, once the flock has let go of it.
fn take_back<'a>(flock: &mut Flock, io: &'a mut Arc<StepIo>) -> &'a mut StepIo {
    let started = Instant::now();
    while Arc::strong_count(io) > 1 {
        flock.poll().expect("domains work");
        std::thread::yield_now();
        assert!(started.elapsed() < GUARD, "somebody keeps a step");
    }
    let io = Arc::get_mut(io).expect("nobody else has it");
    io.recycle();
    io
}
