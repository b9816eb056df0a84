//! Requests from a wire that lies: no panic, no access outside the buffers, and one reason that every core agrees on.
#![cfg(unix)]

mod common;
#[path = "common/guard.rs"]
mod guard;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{Input, Line, Model, Random, bytes_of_mut};
use fp9::{Format, Isa};
use guard::Guarded;
use kernels::abi::{FULL_SHARE, Request, StepBlock};
use kernels::tree::{Node, Shape};
use kernels::unit::Part;
use kernels::{
    Config, Core, HeldNode, Holder, Hooks, Limits, Mode, NoHooks, Refusal, Running, Step, UnitEntry, scratch_len,
};
use proptest::prelude::*;

const SHAPE: Shape = Shape { slices: 3, experts: 6 };
const HIDDEN: usize = 128;
const LANES: usize = 4;
const CHOSEN: usize = 3;

/// What a test changes in a good step.
#[derive(Clone, Debug)]
struct Lies {
    layer: usize,
    lanes: usize,
    chosen: usize,
    ids: Vec<u16>,
    weights: usize,
    input: usize,
    nodes: Vec<(Node, u32, usize, usize)>,
    absent: Option<usize>,
}

impl Lies {
    /// None.
    fn new() -> Lies {
        let input = Input::random(&model(), Mode::Exact, LANES, CHOSEN, &mut Random(1));
        Lies {
            layer: 0,
            lanes: LANES,
            chosen: CHOSEN,
            ids: input.ids,
            weights: LANES * CHOSEN,
            input: LANES * HIDDEN,
            nodes: vec![(SHAPE.root(), 0, LANES * HIDDEN, LANES)],
            absent: None,
        }
    }

    /// Runs the step in guarded memory on two cores; both must agree.
    fn run(&self, model: &Model) -> Result<(), Refusal> {
        self.run_with(model, |table| table)
    }

    fn run_with<'m>(
        &self,
        model: &'m Model,
        change: impl FnOnce(Vec<UnitEntry<'m>>) -> Vec<UnitEntry<'m>>,
    ) -> Result<(), Refusal> {
        let (mut table, _) = model.table(&[SHAPE.root()]);
        if let Some(absent) = self.absent {
            let place = absent % table.len();
            table[place] = UnitEntry::ABSENT;
        }
        let table = change(table);
        let limits = Limits::new(SHAPE, &[SHAPE.root()], LANES, CHOSEN);
        let at_end = self.ids.len().is_multiple_of(2);
        let len = scratch_len(&limits, SHAPE, HIDDEN, 2).unwrap();
        let mut scratch = Guarded::new(len, at_end);
        let config = Config {
            layout: model.layout,
            shape: SHAPE,
            units: table.len(),
            table: &table,
            cores: 2,
            core0_share: FULL_SHARE,
            limits,
        };
        let mut holder = Holder::new(&config, scratch.slice(len)).unwrap();
        let mut ids = Guarded::filled(&self.ids, at_end);
        let mut weights = Guarded::filled(&vec![0.5f32; self.weights], at_end);
        let mut input = Guarded::filled(&vec![1.0f32; self.input], at_end);
        let mut outs: Vec<(Guarded, Guarded)> =
            self.nodes.iter().map(|n| (Guarded::new(n.2 * 4, at_end), Guarded::new(n.3, at_end))).collect();
        let mut nodes: Vec<HeldNode<'_>> = self
            .nodes
            .iter()
            .zip(&mut outs)
            .map(|(n, (out, present))| HeldNode::new(n.0, n.1, out.slice(n.2), present.slice(n.3)))
            .collect();
        let step = Step {
            layer: self.layer,
            mode: Mode::Bf16,
            lanes: self.lanes,
            chosen: self.chosen,
            ids: ids.slice(self.ids.len()),
            weights: weights.slice(self.weights),
            input: input.slice(self.input),
            nodes: &mut nodes,
        };
        let running = holder.begin(step)?;
        let core = |index| Core { index, isa: Isa::detect() };
        let first = [0, 1].map(|c| running.first_half(core(c), &mut NoHooks));
        let result = match first {
            [Ok(()), Ok(())] => {
                let second = [0, 1].map(|c| running.second_half(core(c), &mut NoHooks));
                // Whoever finds something in the middle of the work ends it for the others.
                assert!(second[0] == second[1] || second[1] == Err(Refusal::Aborted), "{second:?}");
                second[0]
            }
            [Err(a), Err(b)] => {
                assert!(a == b || b == Refusal::Aborted, "{a:?}, {b:?}");
                Err(a)
            }
            // Found in the middle of the work, so by one core.
            [a, b] => {
                assert!(a == Err(Refusal::Unit) || b == Err(Refusal::Unit), "{a:?}, {b:?}");
                let second = [0, 1].map(|c| running.second_half(core(c), &mut NoHooks));
                assert_eq!(second, [Err(Refusal::NotReady); 2]);
                Err(Refusal::Unit)
            }
        };
        if result.is_err() {
            assert!((0..2).all(|c| running.done(c).is_empty()));
        }
        result
    }
}

fn model() -> Model {
    Model::random(Format::E4m3, SHAPE, HIDDEN, 6)
}

#[test]
fn each_lie_has_its_refusal() {
    let model = model();
    let good = Lies::new();
    assert_eq!(good.run(&model), Ok(()));
    let root = SHAPE.root();
    let node = |node, first| (node, first, LANES * HIDDEN, LANES);
    let mut unsorted = good.ids.clone();
    unsorted.swap(0, 1);
    let mut twice = good.ids.clone();
    twice[1] = twice[0];
    let mut beyond = good.ids.clone();
    beyond[2] = 6;
    for (lies, refusal) in [
        (Lies { layer: 1, ..good.clone() }, Refusal::Layer),
        (Lies { lanes: 0, ..good.clone() }, Refusal::Lanes),
        (Lies { lanes: LANES + 1, ..good.clone() }, Refusal::Lanes),
        (Lies { chosen: 0, ..good.clone() }, Refusal::Chosen),
        (Lies { chosen: CHOSEN + 1, ..good.clone() }, Refusal::Chosen),
        (Lies { ids: good.ids[1..].into(), ..good.clone() }, Refusal::Length),
        (Lies { weights: LANES * CHOSEN - 1, ..good.clone() }, Refusal::Length),
        (Lies { input: LANES * HIDDEN - 1, ..good.clone() }, Refusal::Length),
        (Lies { ids: unsorted, ..good.clone() }, Refusal::ExpertOrder),
        (Lies { ids: twice, ..good.clone() }, Refusal::ExpertOrder),
        (Lies { ids: beyond, ..good.clone() }, Refusal::ExpertId),
        (Lies { nodes: vec![node(Node { slices: 4, ..root }, 0)], ..good.clone() }, Refusal::Node),
        (Lies { nodes: vec![node(Node { slice: 1, slices: 2, ..root }, 0)], ..good.clone() }, Refusal::Node),
        (Lies { nodes: vec![node(Node { depth: 255, ..root }, 0)], ..good.clone() }, Refusal::Node),
        (Lies { nodes: vec![node(root, 1)], ..good.clone() }, Refusal::Node),
        (Lies { nodes: vec![node(root, u32::MAX)], ..good.clone() }, Refusal::Node),
        (Lies { nodes: vec![node(root, 0), node(root, 0)], ..good.clone() }, Refusal::Node),
        (Lies { nodes: vec![(root, 0, LANES * HIDDEN - 1, LANES)], ..good.clone() }, Refusal::Node),
        (Lies { nodes: vec![(root, 0, LANES * HIDDEN, LANES - 1)], ..good.clone() }, Refusal::Node),
        (Lies { absent: Some(good.ids[0].into()), ..good.clone() }, Refusal::NotResident),
    ] {
        assert_eq!(lies.run(&model), Err(refusal), "{lies:?}");
    }
    // No nodes are a step without work.
    assert_eq!(Lies { nodes: Vec::new(), ..good }.run(&model), Ok(()));
}

#[test]
fn a_spoilt_unit_stops_every_core() {
    let model = model();
    let good = Lies::new();
    let chosen = usize::from(good.ids[0]);
    let block = model.block(0, chosen as u16);
    for part in Part::ALL {
        let mut lines = vec![Line([0; 64]); block.len() / 64];
        bytes_of_mut(&mut lines).copy_from_slice(block);
        let at = model.layout.scales(part).start;
        bytes_of_mut(&mut lines)[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        let spoilt: &'static [Line] = lines.leak();
        let result = good.run_with(&model, |mut table| {
            table[chosen] = UnitEntry::new(common::bytes_of(spoilt));
            table
        });
        assert_eq!(result, Err(Refusal::Unit), "{part:?}");
    }
    let result = good.run_with(&model, |mut table| {
        table[chosen] = UnitEntry::new(&block[..block.len() - 64]);
        table
    });
    assert_eq!(result, Err(Refusal::Unit));
}

#[test]
fn a_core_runs_once_and_only_if_it_is_one() {
    let model = model();
    let (table, _) = model.table(&[SHAPE.root()]);
    let limits = Limits::new(SHAPE, &[SHAPE.root()], LANES, CHOSEN);
    let len = scratch_len(&limits, SHAPE, HIDDEN, 2).unwrap();
    let mut scratch = vec![0; len];
    let config = Config {
        layout: model.layout,
        shape: SHAPE,
        units: table.len(),
        table: &table,
        cores: 2,
        core0_share: FULL_SHARE,
        limits,
    };
    assert_eq!(Holder::new(&config, &mut vec![0; len / 2]).unwrap_err(), Refusal::Session);
    for wrong in [Config { cores: 0, ..config }, Config { cores: 65, ..config }, Config { core0_share: 0, ..config }] {
        assert_eq!(Holder::new(&wrong, &mut scratch).unwrap_err(), Refusal::Session);
    }
    let mut holder = Holder::new(&config, &mut scratch).unwrap();
    let input = Input::random(&model, Mode::Exact, 1, CHOSEN, &mut Random(2));
    let step = Step {
        layer: 0,
        mode: Mode::Exact,
        lanes: 1,
        chosen: CHOSEN,
        ids: &input.ids,
        weights: &input.weights,
        input: &input.x,
        nodes: &mut [],
    };
    let running = holder.begin(step).unwrap();
    let core = |index| Core { index, isa: Isa::Scalar };
    let first = |index| running.first_half(core(index), &mut NoHooks);
    let second = |index| running.second_half(core(index), &mut NoHooks);
    assert_eq!(first(2), Err(Refusal::Core));
    assert_eq!(first(usize::MAX), Err(Refusal::Core));
    assert_eq!(first(0), Ok(()));
    assert_eq!(first(0), Err(Refusal::Core));
    assert_eq!(second(0), Err(Refusal::NotReady));
    running.abort();
    assert_eq!(first(1), Ok(()));
    assert_eq!(second(1), Ok(()));
    assert!(!running.ended());
    assert_eq!(second(0), Ok(()));
    assert_eq!(second(0), Err(Refusal::Core));
    assert!(running.ended());
}

/// Ends the step at core 0's first pause in which it is told to.
struct Impatient<'r> {
    running: Running<'r>,
    pauses: usize,
}

impl Hooks for Impatient<'_> {
    fn boundary(&mut self) {
        match self.pauses {
            0 => self.running.abort(),
            _ => self.pauses -= 1,
        }
    }
}

#[test]
fn a_core_alone_ends_a_step_that_nobody_wants_any_more() {
    let model = model();
    let nodes = [SHAPE.root()];
    let (table, firsts) = model.table(&nodes);
    let limits = Limits::new(SHAPE, &nodes, LANES, CHOSEN);
    let input = Input::random(&model, Mode::Exact, LANES, CHOSEN, &mut Random(5));
    let mut ended = [0, 0];
    for pauses in 0..40 {
        let mut scratch = vec![0u8; scratch_len(&limits, SHAPE, HIDDEN, 1).unwrap()];
        let config = Config {
            layout: model.layout,
            shape: SHAPE,
            units: table.len(),
            table: &table,
            cores: 1,
            core0_share: FULL_SHARE,
            limits,
        };
        let mut holder = Holder::new(&config, &mut scratch).unwrap();
        let (mut out, mut present) = (vec![0.0; LANES * HIDDEN], vec![0; LANES]);
        let mut held = [HeldNode::new(nodes[0], firsts[0], &mut out, &mut present)];
        let step = Step {
            layer: 0,
            mode: Mode::Exact,
            lanes: LANES,
            chosen: CHOSEN,
            ids: &input.ids,
            weights: &input.weights,
            input: &input.x,
            nodes: &mut held,
        };
        let running = holder.begin(step).unwrap();
        let result = running.run(Core { index: 0, isa: Isa::Scalar }, &mut Impatient { running, pauses });
        assert!(matches!(result, Ok(()) | Err(Refusal::Aborted)), "{result:?}");
        ended[usize::from(result.is_ok())] += 1;
        assert!(running.ended());
    }
    // With few pauses it ends early, with more than a step has it does not.
    assert!(ended[0] > 0 && ended[1] > 0, "{ended:?}");
}

/// The owner's own numbers in a raw block.
fn raw(change: impl FnOnce(&mut StepBlock)) -> Result<(), Refusal> {
    let model = model();
    let (table, _) = model.table(&[SHAPE.root()]);
    let limits = Limits::new(SHAPE, &[SHAPE.root()], LANES, CHOSEN);
    let mut scratch = vec![0u8; scratch_len(&limits, SHAPE, HIDDEN, 1).unwrap()];
    let input = Input::random(&model, Mode::Exact, 1, CHOSEN, &mut Random(2));
    let mut block = StepBlock {
        session: kernels::abi::Session {
            version: kernels::abi::ABI_VERSION,
            size: size_of::<StepBlock>() as u32,
            format: 0,
            hidden: HIDDEN as u32,
            slices: SHAPE.slices,
            experts: SHAPE.experts,
            layers: 1,
            units: table.len() as u32,
            cores: 1,
            core0_share: FULL_SHARE,
            limits,
            unit_table: table.as_ptr().cast(),
            scratch: scratch.as_mut_ptr(),
            scratch_len: scratch.len() as u64,
        },
        request: Request {
            layer: 0,
            lanes: 1,
            chosen: CHOSEN as u32,
            mode: 0,
            ids: input.ids.as_ptr(),
            ids_len: input.ids.len() as u64,
            weights: input.weights.as_ptr(),
            weights_len: input.weights.len() as u64,
            input: input.x.as_ptr(),
            input_len: input.x.len() as u64,
            nodes: std::ptr::null(),
            nodes_len: 0,
        },
        progress: Default::default(),
    };
    change(&mut block);
    // SAFETY: the pointers are what they say; numbers may be anything.
    unsafe {
        kernels::begin(&block)?;
        kernels::run(&block, Core { index: 0, isa: Isa::detect() }, &mut NoHooks)
    }
}

#[test]
fn a_block_of_another_make_is_refused() {
    assert_eq!(raw(|_| ()), Ok(()));
    assert_eq!(raw(|b| b.session.version += 1), Err(Refusal::Version));
    assert_eq!(raw(|b| b.session.size -= 64), Err(Refusal::Version));
    assert_eq!(raw(|b| b.session.format = 3), Err(Refusal::Session));
    assert_eq!(raw(|b| b.session.hidden += 1), Err(Refusal::Session));
    assert_eq!(raw(|b| b.session.limits.lanes = u32::MAX), Err(Refusal::Session));
    assert_eq!(raw(|b| b.session.scratch_len = 0), Err(Refusal::Session));
    assert_eq!(raw(|b| b.session.scratch = std::ptr::null_mut()), Err(Refusal::Session));
    assert_eq!(raw(|b| b.request.mode = 2), Err(Refusal::Mode));
    assert_eq!(raw(|b| b.request.ids = std::ptr::null()), Err(Refusal::Length));
    assert_eq!(raw(|b| b.request.lanes = u32::MAX), Err(Refusal::Lanes));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_request_panics_or_leaves_its_buffers(
        (layer, lanes, chosen) in (0usize..2, 0usize..6, 0usize..5),
        ids in prop::collection::vec(0u16..7, 0..20),
        sort in any::<bool>(),
        (weights, input) in (0usize..16, 0usize..600),
        nodes in prop::collection::vec(
            ((0u16..4, 0u16..5, 0u8..5, 0u16..8), 0u32..4, 0usize..600, 0usize..6), 0..3),
        valid_nodes in any::<bool>(),
        absent in prop::option::of(0usize..18),
    ) {
        let mut ids = ids;
        if sort && chosen > 0 {
            ids.chunks_mut(chosen).for_each(<[u16]>::sort_unstable);
        }
        let nodes = nodes.into_iter().map(|((slice, slices, depth, residue), first, out, present)| {
            let node = Node { slice, slices, depth, residue };
            if valid_nodes { (SHAPE.root(), 0, LANES * HIDDEN, LANES) } else { (node, first, out, present) }
        });
        let lies = Lies { layer, lanes, chosen, ids, weights, input, nodes: nodes.collect(), absent };
        let model = model();
        let outcome = catch_unwind(AssertUnwindSafe(|| lies.run(&model)));
        prop_assert!(outcome.is_ok(), "{:?}", lies);
    }

    /// The scratch is made for one core, so no block that asks for more waits for them.
    #[test]
    fn no_block_panics(words in prop::collection::vec(any::<u32>(), 14), which in 0usize..14) {
        let outcome = catch_unwind(|| raw(|b| {
            let value = words[which] >> (words[0] % 32);
            let (s, r) = (&mut b.session, &mut b.request);
            match which {
                0 => s.format = value,
                1 => s.hidden = value,
                2 => s.slices = value as u16,
                3 => s.experts = value as u16,
                4 => s.cores = value,
                5 => s.core0_share = value,
                6 => s.limits.lanes = value,
                7 => s.limits.chosen = value,
                8 => s.limits.nodes = value,
                9 => s.limits.units = value,
                10 => s.limits.pairs = value,
                11 => r.layer = value % 2,
                12 => r.lanes = value,
                _ => r.chosen = value,
            }
        }));
        prop_assert!(outcome.is_ok());
    }
}
