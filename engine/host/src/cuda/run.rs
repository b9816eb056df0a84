//! Running a segment: the sums in, the launches, the hand-over out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use model::program::{Buffer, Op, Program, View};
use model::step::StepIo;

use super::area::GraphKey;
use super::bind::Binder;
use super::error::CudaError;
use super::lower::Lowered;
use super::pass::{How, Pass};
use super::stage::CudaStage;
use super::stream::Graph;
use super::task::{Launch, LinearTask, Target};
use crate::check::share_sequence;
use crate::observe::{Seen, SeenRows};
use crate::stage::{Layers, PassId, PassSpec};

impl CudaStage {
    /// How a pass's launches will reach the card.
    pub(super) fn how(&self, spec: &PassSpec) -> How {
        if self.observer.is_some() {
            return How::Observed;
        }
        if self.options.graphs && spec.lanes.len() <= super::abi::FEW { How::Graph } else { How::Launches }
    }

    /// A graph is made only while nothing waits on the card for the host: the driver might wait for that in turn.
    fn may_capture(&self) -> bool {
        !self.passes.values().any(|pass| pass.how == How::Graph && !pass.done)
    }

    /// Runs or enqueues a segment up to its hand-over; gives the step.
    pub(super) fn run(&mut self, id: PassId, segment: usize) -> Result<Option<Arc<StepIo>>, CudaError> {
        self.wait_for_earlier(id)?;
        let mut pass = self.passes.remove(&id).expect("looked up by the caller");
        let result = self.run_pass(&mut pass, segment);
        if result.is_ok() {
            (pass.next, pass.pending, pass.since) = (segment + 1, true, Instant::now());
            self.keep(&pass, segment);
            self.exchanges.give_back(std::mem::replace(&mut pass.io, result.as_ref().ok().cloned().flatten()));
        }
        self.passes.insert(id, pass);
        result
    }

    /// A segment without a hand-over tells nobody when it has run, so whoever uses the same sequence next waits for it here.
    fn wait_for_earlier(&mut self, id: PassId) -> Result<(), CudaError> {
        let lanes = self.passes[&id].lanes.clone();
        for (other, earlier) in &mut self.passes {
            let segments = self.programs.get(earlier.layers).map_or(0, |program| program.segments.len());
            if other.0 < id.0 && share_sequence(&earlier.lanes, &lanes) && earlier.next == segments {
                earlier.finish()?;
            }
        }
        Ok(())
    }

    fn run_pass(&mut self, pass: &mut Pass, segment: usize) -> Result<Option<Arc<StepIo>>, CudaError> {
        let lanes = pass.lanes.len();
        let lowered = self.programs.get(pass.layers).expect("`begin` checks that there is one");
        let (step, last) = (lowered.segments[segment].step, segment + 1 == lowered.segments.len());
        let travels = pass.area.exchange.travels();
        if travels && lowered.segments[segment].combines {
            let io = pass.io.as_ref().expect("a combining segment follows a step");
            pass.area.exchange.take_sums(self.shape, lanes, io);
        }
        pass.done = false;
        if segment == 0 && pass.how == How::Graph && !self.has_graph(pass) && !self.may_capture() {
            pass.how = How::Launches;
        }
        match pass.how {
            How::Graph if segment == 0 => {
                self.replay(pass)?;
                self.fetch_best(pass)?;
            }
            How::Graph => {}
            How::Launches => {
                self.launch(pass, segment)?;
                if last {
                    self.fetch_best(pass)?;
                }
            }
            How::Observed => {
                self.show(pass, segment)?;
                if last {
                    self.fetch_best(pass)?;
                }
            }
        }
        let Some(layer) = step.filter(|_| travels) else { return Ok(None) };
        pass.area.exchange.wait_handed(&pass.area.stream)?;
        let io = self.exchanges.take();
        pass.area.exchange.publish(layer, lanes, &io);
        Ok(Some(io))
    }

    /// Notes which states are kept once the segment that keeps them was submitted.
    fn keep(&mut self, pass: &Pass, segment: usize) {
        let lowered = self.programs.get(pass.layers).expect("`begin` checks that there is one");
        if !lowered.segments[segment].keeps {
            return;
        }
        for run in pass.lanes.chunk_by(|a, b| a.sequence == b.sequence) {
            if let Some(sequence) = self.caches.get_mut(run[0].sequence) {
                sequence.keep(run[0].position, run.len());
            }
        }
    }

    pub(super) fn binder<'a>(&'a self, pass: &'a Pass) -> Binder<'a> {
        Binder {
            model: &self.model,
            numerics: self.options.numerics,
            weights: &self.weights,
            caches: &self.caches,
            area: &pass.area,
            sizes: &self.sizes,
            layers: pass.layers,
            lanes: pass.lanes.len(),
            wanted: pass.wanted.len(),
            processors: self.device.properties().processors,
            linear_many_shared: self.kernels.linear_many_shared(),
            shared: self.device.properties().shared,
            all_scores: pass.how == How::Observed,
            // A graph serves every length.
            longest: match pass.how {
                How::Graph => usize::MAX,
                _ => pass.lanes.iter().map(|lane| lane.position + 1).max().unwrap_or(0),
            },
        }
    }

    pub(super) fn enqueue<'l>(
        &self,
        pass: &Pass,
        launches: impl IntoIterator<Item = &'l Launch>,
    ) -> Result<(), CudaError> {
        let calls = self.binder(pass).calls(launches, true);
        calls.iter().try_for_each(|call| self.kernels.launch(&pass.area.stream, call, self.options.overlap))
    }

    fn launch(&self, pass: &Pass, segment: usize) -> Result<(), CudaError> {
        let lowered = self.programs.get(pass.layers).expect("`begin` checks that there is one");
        let segment = &lowered.segments[segment];
        self.enqueue(pass, segment.before.iter().chain(&segment.during).flat_map(|group| &group.launches))
    }

    /// Launches the whole pass as a graph, which is captured the first time.
    pub(super) fn replay(&self, pass: &mut Pass) -> Result<(), CudaError> {
        let key = graph_key(pass.layers, pass.lanes.len(), pass.wanted.len());
        if !self.has_graph(pass) {
            let lowered = self.programs.get(pass.layers).expect("`begin` checks that there is one");
            let graph = pass.area.stream.capture(|| self.enqueue(pass, lowered.launches()))?;
            pass.area.graphs.insert(key, graph);
        }
        pass.area.stream.replay(&pass.area.graphs[&key])
    }

    fn has_graph(&self, pass: &Pass) -> bool {
        pass.area.graphs.contains_key(&graph_key(pass.layers, pass.lanes.len(), pass.wanted.len()))
    }

    /// The graph of a pass that was replayed.
    pub(super) fn graph<'a>(&self, pass: &'a Pass) -> &'a Graph {
        &pass.area.graphs[&graph_key(pass.layers, pass.lanes.len(), pass.wanted.len())]
    }

    /// Brings the largest logits' tokens along, four bytes a lane.
    fn fetch_best(&self, pass: &mut Pass) -> Result<(), CudaError> {
        let (area, count) = (&mut pass.area, pass.wanted.len());
        if count == 0 {
            return Ok(());
        }
        let from = area.at(area.plan.best);
        area.stream.download(from, &mut area.best, count)
    }

    /// Runs a segment operation by operation and shows each.
    fn show(&mut self, pass: &Pass, segment: usize) -> Result<(), CudaError> {
        let mut observer = self.observer.take();
        let result = self.show_to(pass, segment, observer.as_deref_mut());
        self.observer = observer;
        result
    }

    fn show_to(
        &self,
        pass: &Pass,
        segment: usize,
        mut observer: Option<&mut (dyn crate::observe::Observer + 'static)>,
    ) -> Result<(), CudaError> {
        let programs = self.observed.as_ref().unwrap_or(&self.programs);
        let lowered = programs.get(pass.layers).expect("`begin` checks that there is one");
        let program = pass.layers.program(&self.model).expect("`begin` checks that there is one");
        let (ops, launches) = (&program.segments[segment], &lowered.segments[segment]);
        for (ops, groups) in [(&ops.before, &launches.before), (&ops.during, &launches.during)] {
            for group in groups {
                self.enqueue(pass, &group.launches)?;
                let (Some(op), Some(observer)) = (group.op, observer.as_deref_mut()) else { continue };
                let op = &ops[op];
                let values = Values::read(pass, lowered, program, op, &group.launches)?;
                observer.after(&Seen {
                    layer: launches.layer,
                    op,
                    lanes: &pass.lanes,
                    scores: &values.scores,
                    experts: &values.experts,
                    weights: &values.weights,
                    kept: &values.kept,
                    rows: &values,
                });
            }
        }
        Ok(())
    }
}

fn graph_key(layers: Layers, lanes: usize, wanted: usize) -> GraphKey {
    GraphKey { layers, lanes, wanted }
}

/// What an operation read and wrote, copied from the card.
#[derive(Default)]
struct Values {
    /// Rows and their stride.
    buffers: HashMap<Buffer, (Vec<f32>, usize)>,
    scores: Vec<Vec<f32>>,
    experts: Vec<u16>,
    weights: Vec<f32>,
    kept: Vec<Vec<u32>>,
}

impl SeenRows for Values {
    fn row(&self, view: View, lane: usize) -> &[f32] {
        let (values, stride) = &self.buffers[&view.buffer];
        &values[lane * stride + view.start..][..view.width]
    }
}

impl Values {
    fn read(
        pass: &Pass,
        lowered: &Lowered,
        program: &Program,
        op: &Op,
        launches: &[Launch],
    ) -> Result<Values, CudaError> {
        let (area, lanes) = (&pass.area, pass.lanes.len());
        let mut values = Values::default();
        for view in views(launches) {
            if let Entry::Vacant(place) = values.buffers.entry(view.buffer) {
                let (offset, stride) = area.plan.buffer(pass.layers, view.buffer);
                place.insert((area.read(area.at(offset), lanes * stride)?, stride));
            }
        }
        match op {
            Op::Select { out, keep, .. } => {
                let (positions, counts) = area.plan.selection(*out);
                let counts: Vec<u32> = area.read(area.at(counts), lanes)?;
                let positions: Vec<u32> = area.read(area.at(positions), lanes * keep)?;
                let stride = area.plan.score_stride;
                for (t, lane) in pass.lanes.iter().enumerate() {
                    let count = (counts[t] as usize).min(*keep);
                    values.kept.push(positions[t * keep..][..count].to_vec());
                    // With more lanes than rows of scores only the last ones are still there.
                    let row = area.plan.score_rows >= lanes;
                    let at = area.at(area.plan.scores) + (t * stride * 4) as u64;
                    let visible = if row { lane.position + 1 } else { 0 };
                    values.scores.push(area.read(at, visible)?);
                }
            }
            Op::Route { routing, .. } => {
                let count = lanes * routing.chosen;
                let experts: Vec<u32> = area.read(area.at(area.plan.experts), count)?;
                values.experts = experts.into_iter().map(|expert| expert as u16).collect();
                values.weights = area.read(area.at(area.plan.weights), count)?;
                let logits = launches.iter().find_map(|launch| match launch {
                    Launch::Route(task) => Some(task.logits),
                    _ => None,
                });
                let logits = logits.expect("a router is launched");
                values.scores = (0..lanes).map(|t| values.row(logits, t).to_vec()).collect();
            }
            _ => {}
        }
        debug_assert!(lowered.buffers.len() >= program.buffers.len(), "lowering only adds buffers");
        Ok(values)
    }
}

/// Views that launches read or write.
fn views(launches: &[Launch]) -> Vec<View> {
    use super::task::{Resource, RowTask, Task};
    let tasks = launches.iter().flat_map(|launch| match launch {
        Launch::Rows(chains) => chains.iter().flatten().map(|row: &RowTask| Task::Row(row.clone())).collect(),
        Launch::Linears(list) => list.iter().map(|task: &LinearTask| Task::Linear(task.clone())).collect(),
        Launch::Select(task) => vec![Task::Select(task.clone())],
        Launch::Attend(task) => vec![Task::Attend(task.clone())],
        Launch::Route(task) => vec![Task::Route(task.clone())],
    });
    let touched = tasks.flat_map(|task| {
        debug_assert!(!matches!(&task, Task::Linear(t) if t.out == Target::Logits && t.rows == 0), "a head has rows");
        let (reads, writes) = task.touches();
        reads.into_iter().chain(writes)
    });
    touched
        .filter_map(|resource| match resource {
            Resource::Columns { buffer, start, end } => Some(View { buffer, start, width: end - start }),
            _ => None,
        })
        .collect()
}
