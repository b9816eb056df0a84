//! Steps: input in, results out while they become final, and the last ones kept.

use core::ops::Range;

use crate::bits::Bits;
use crate::body::{Head, Layout, shorts};
use crate::frame::{self, Frame, Header, Kind};
use crate::limits::{INPUT_FRAGMENTS, MAX_HIDDEN, MAX_NODES, MAX_PARTS, RESULT_FRAGMENTS, ROW_GROUP};
use crate::mark::mark;
use crate::message::{AssignCode, Counter, Verdict, VerdictCode};
use crate::newer;

use super::{Event, Live, Memory, STEPS, Session};

/// Results by fragment: `(part · nodes + node) · lanes + lane`, so that what becomes final together lies together.
pub(crate) type Fragments = Bits<{ RESULT_FRAGMENTS / 64 }>;
/// Fragments of an input.
pub(crate) type Inputs = Bits<{ INPUT_FRAGMENTS / 64 }>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    /// Fragments of the input are missing.
    Receiving,
    /// The input is complete, but its plan version is not known.
    Unplanned,
    /// With the caller.
    Running,
    /// Kept, to be answered from.
    Done,
}

/// One slot: step `seq` lives in slot `seq mod STEPS`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    state: State,
    /// Runs, or did, for a session that is no more.
    orphan: bool,
    seq: u32,
    plan: u16,
    lanes: u16,
    named: u16,
    fragments: usize,
    got: Inputs,
    layer: u16,
    time_limit: u32,
    nodes: [u16; MAX_NODES],
    count: usize,
    owed: Fragments,
    /// Final and not sent, or asked for again.
    ready: Fragments,
    groups: Bits<{ MAX_HIDDEN as usize / ROW_GROUP / 64 }>,
    parts: Bits<{ MAX_PARTS / 64 }>,
    vectors: u32,
    verdict: Verdict,
    told: bool,
    send_need: bool,
    send_running: bool,
    send_verdict: bool,
}

const NO_VERDICT: Verdict = Verdict::new(VerdictCode::Running);

impl Step {
    pub const EMPTY: Step = Step {
        state: State::Empty,
        orphan: false,
        seq: 0,
        plan: 0,
        lanes: 0,
        named: 0,
        fragments: 0,
        got: Bits::EMPTY,
        layer: 0,
        time_limit: 0,
        nodes: [0; MAX_NODES],
        count: 0,
        owed: Bits::EMPTY,
        ready: Bits::EMPTY,
        groups: Bits::EMPTY,
        parts: Bits::EMPTY,
        vectors: 0,
        verdict: NO_VERDICT,
        told: false,
        send_need: false,
        send_running: false,
        send_verdict: false,
    };

    pub fn is_orphan(&self) -> bool {
        self.orphan
    }

    /// Its session has ended. Whether the caller is at work on it decides what remains.
    pub fn orphan(&mut self) {
        let busy = self.orphan || self.state == State::Running && self.told;
        *self = Step { orphan: busy, ..Step::EMPTY };
    }

    fn is_busy(&self) -> bool {
        self.orphan || self.state == State::Running
    }

    fn finish(&mut self, verdict: Verdict) {
        self.state = State::Done;
        self.verdict = Verdict { vectors: self.vectors, ..verdict };
        self.send_running = false;
        self.send_verdict = true;
    }
}

/// A step to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepInfo<'a> {
    /// Its number.
    pub seq: u32,
    /// Index of the layer's experts.
    pub layer: u16,
    /// Number of lanes.
    pub lanes: u16,
    /// Where its input's parts lie.
    pub layout: Layout,
    /// Numbers of the nodes to compute; results are `[nodes, lanes, hidden]` in this order.
    pub nodes: &'a [u16],
    /// Microseconds that it may take; 0 for any.
    pub time_limit: u32,
}

impl<M: Memory> Session<M> {
    /// The step in a slot, if the caller has it to compute.
    pub fn step(&self, slot: usize) -> Option<StepInfo<'_>> {
        let (live, step) = (self.live?, self.steps.get(slot)?);
        (step.state == State::Running).then(|| StepInfo {
            seq: step.seq,
            layer: step.layer,
            lanes: step.lanes,
            layout: Layout::new(&live.limits, step.lanes, step.named),
            nodes: &step.nodes[..step.count],
            time_limit: step.time_limit,
        })
    }

    pub(super) fn next_step(&mut self) -> Option<Event> {
        let waiting = |s: &&mut Step| s.state == State::Running && !s.told;
        let first = self.steps.iter_mut().filter(waiting).reduce(|a, b| if newer(a.seq, b.seq) { b } else { a })?;
        first.told = true;
        Some(Event::Step { slot: first.seq as usize % STEPS, seq: first.seq })
    }

    /// Outputs `rows` of the step in `slot` are final, for all its nodes and lanes. Whole groups of [`ROW_GROUP`] count; may be told twice.
    pub fn rows_final(&mut self, slot: usize, rows: Range<u32>) {
        let Some(live) = self.live else { return };
        let Some(step) = self.steps.get_mut(slot).filter(|s| s.state == State::Running) else { return };
        let groups = live.limits.hidden as usize / ROW_GROUP;
        for group in (rows.start as usize).div_ceil(ROW_GROUP)..(rows.end as usize / ROW_GROUP).min(groups) {
            step.groups.insert(group);
        }
        let per = usize::from(live.limits.step_chunk) / (4 * ROW_GROUP);
        let parts = (rows.start as usize / ROW_GROUP / per)..(rows.end as usize / ROW_GROUP).div_ceil(per);
        for part in parts.start..parts.end.min(live.limits.parts()) {
            let end = ((part + 1) * per).min(groups);
            if !step.parts.has(part) && step.groups.next_absent(part * per, end).is_none() {
                step.parts.insert(part);
                let vectors = step.count * usize::from(step.lanes);
                for f in part * vectors..(part + 1) * vectors {
                    if step.owed.has(f) {
                        step.ready.insert(f);
                    }
                }
            }
        }
    }

    /// The step in `slot` has ended; after `VerdictCode::Ok` all rows are final. Also the answer to [`Event::Opened`] for a step that was under way.
    pub fn step_done(&mut self, slot: usize, verdict: Verdict) {
        let Some(step) = self.steps.get_mut(slot) else { return };
        if step.orphan {
            mark!("orphaned_step_frees_its_slot");
            step.orphan = false;
            return;
        }
        if step.state != State::Running || verdict.code == VerdictCode::Running as u8 {
            return;
        }
        if verdict.code == VerdictCode::Ok as u8 {
            self.rows_final(slot, 0..MAX_HIDDEN);
        }
        self.count(Counter::Steps);
        self.counters[Counter::Busy as usize] += u64::from(verdict.busy);
        self.steps[slot].finish(verdict);
    }

    /// The slot of step `seq`, set up for it if it was not; `None` when the slot is taken by a running step or a newer one.
    fn slot_for(&mut self, live: &Live, frame: &Frame<'_>) -> Option<usize> {
        let (seq, slot) = (frame.seq(), frame.seq() as usize % STEPS);
        let step = &mut self.steps[slot];
        if step.state != State::Empty && step.seq == seq {
            let same = (step.plan, step.lanes, step.named) == (frame.plan(), frame.lane(), frame.node());
            return same.then_some(slot);
        }
        if step.state != State::Empty && !newer(seq, step.seq) || step.is_busy() {
            return None;
        }
        let (lanes, named) = (frame.lane(), frame.node());
        if lanes == 0 || lanes > live.limits.lanes || named > live.limits.nodes {
            self.count(Counter::FramesBad);
            return None;
        }
        let len = Layout::new(&live.limits, lanes, named).len();
        *step = Step {
            state: State::Receiving,
            seq,
            plan: frame.plan(),
            lanes,
            named,
            fragments: len.div_ceil(live.limits.step_chunk.into()),
            ..Step::EMPTY
        };
        Some(slot)
    }

    pub(super) fn handle_input(&mut self, live: &Live, frame: Frame<'_>) {
        let Some(slot) = self.slot_for(live, &frame) else { return };
        let step = &mut self.steps[slot];
        if step.state != State::Receiving {
            mark!("repeated_input_is_not_computed_again");
            return;
        }
        let (chunk, offset) = (usize::from(live.limits.step_chunk), frame.offset() as usize);
        let total = Layout::new(&live.limits, step.lanes, step.named).len();
        let (index, payload) = (offset / chunk, frame.payload());
        if !offset.is_multiple_of(chunk) || index >= step.fragments || payload.len() != chunk.min(total - offset) {
            return self.count(Counter::FramesBad);
        }
        if !step.got.insert(index) {
            return;
        }
        self.memory.input_mut(slot)[offset..offset + payload.len()].copy_from_slice(payload);
        if step.got.next_absent(0, step.fragments).is_none() {
            self.begin(live, slot);
        }
    }

    /// The input of the step in `slot` is complete: who computes what?
    fn begin(&mut self, live: &Live, slot: usize) {
        let step = self.steps[slot];
        let layout = Layout::new(&live.limits, step.lanes, step.named);
        let input = &self.memory.input(slot)[..layout.len()];
        let head = Head::parse(input).expect("an input is longer than its head");
        let (mut nodes, mut count) = ([0; MAX_NODES], 0);
        let mut missing = 0;
        if step.named > 0 {
            let shape = live.limits.shape();
            for (place, node) in nodes.iter_mut().zip(shorts(&input[layout.named()])) {
                *place = node;
                count += 1;
                let node = shape.node(node);
                missing +=
                    node.map_or(1, |n| self.list_bytes().missing_in(&live.limits, head.layer, n, &self.residents));
            }
        } else if let Some(plan) = self.plan(step.plan) {
            (nodes, count, missing) = (plan.nodes, plan.count, plan.missing);
        } else {
            mark!("step_of_an_unknown_plan_waits");
            self.steps[slot].state = State::Unplanned;
            return;
        }
        let experts = shorts(&input[layout.experts()]);
        let sound = head.layer < live.limits.layers && experts.clone().all(|e| e < live.limits.experts);
        let step = &mut self.steps[slot];
        (step.layer, step.time_limit, step.nodes, step.count) = (head.layer, head.time_limit, nodes, count);
        if !sound || missing > 0 {
            mark!("step_without_its_blocks_is_unsupported");
            return step.finish(Verdict { missing, ..Verdict::new(VerdictCode::Unsupported) });
        }
        step.vectors = owed(&live.limits, &step.nodes[..count], step.lanes, experts, &mut step.owed);
        step.state = State::Running;
        if step.vectors == 0 {
            mark!("step_without_chosen_units_is_only_acknowledged");
            step.finish(Verdict::new(VerdictCode::Ok));
        }
    }

    /// A plan has become known.
    pub(super) fn retry_unplanned(&mut self, live: &Live) {
        for slot in 0..STEPS {
            if self.steps[slot].state == State::Unplanned {
                self.begin(live, slot);
            }
        }
    }

    pub(super) fn handle_ask(&mut self, live: &Live, frame: Frame<'_>) {
        self.count(Counter::ResultAsks);
        let Some(slot) = self.slot_for(live, &frame) else {
            let step = &self.steps[frame.seq() as usize % STEPS];
            if step.state != State::Empty && newer(step.seq, frame.seq()) {
                mark!("a_step_that_is_kept_no_more_is_told_so");
                self.replies.verdict = Some((frame.seq(), VerdictCode::Gone));
            } else if step.is_busy() {
                mark!("step_behind_a_running_one_is_told_so");
                self.replies.verdict = Some((frame.seq(), VerdictCode::Running));
            }
            return;
        };
        let step = &mut self.steps[slot];
        let mut asked: Fragments = Bits::read(frame.payload());
        match step.state {
            State::Empty => {}
            State::Receiving => {
                mark!("missing_input_is_asked_for");
                step.send_need = true;
                self.count(Counter::InputAsks);
            }
            State::Unplanned => {
                mark!("unknown_plan_is_asked_for");
                let plan = step.plan;
                self.reply_assigned(plan, AssignCode::Unknown, 0);
            }
            State::Running | State::Done => {
                asked.keep(&step.owed);
                let vectors = step.count * usize::from(step.lanes);
                while let Some(f) = asked.next(0) {
                    asked.remove(f);
                    if step.parts.has(f / vectors.max(1)) {
                        mark!("results_are_sent_again");
                        step.ready.insert(f);
                    }
                }
                match step.state {
                    State::Done => step.send_verdict = true,
                    _ => step.send_running = true,
                }
            }
        }
    }

    pub(super) fn transmit_step(&mut self, buf: &mut [u8]) -> Option<usize> {
        let (live, crc) = (self.live?, self.config.crc);
        if let Some((seq, code)) = self.replies.verdict.take() {
            let verdict = Verdict::new(code).emit();
            return frame::emit(buf, Header { seq, ..self.header(Kind::Verdict) }, &[&verdict], crc);
        }
        let wants = |s: &&Step| {
            s.state != State::Empty && (s.send_need || s.send_running || s.send_verdict || !s.ready.is_empty())
        };
        let first = self.steps.iter().filter(wants).reduce(|a, b| if newer(a.seq, b.seq) { b } else { a })?;
        let (seq, plan, slot) = (first.seq, first.plan, first.seq as usize % STEPS);
        let header = |kind| Header { seq, plan, ..self.header(kind) };
        if first.send_need {
            let mut missing = Inputs::below(first.fragments);
            missing.drop_all(&first.got);
            let mut raw = [0; INPUT_FRAGMENTS / 8];
            missing.write(&mut raw);
            let bytes = &raw[..first.fragments.div_ceil(8)];
            let header = Header { lane: first.lanes, node: first.named, ..header(Kind::NeedInput) };
            self.steps[slot].send_need = false;
            return frame::emit(buf, header, &[bytes], crc);
        }
        if let Some(f) = first.ready.next(0) {
            let (lanes, count) = (usize::from(first.lanes), first.count);
            let (lane, node, part) = (f % lanes, f / lanes % count, f / lanes / count);
            let (vector, chunk) = (4 * live.limits.hidden as usize, usize::from(live.limits.step_chunk));
            let (offset, len) = (part * chunk, chunk.min(vector - part * chunk));
            let header =
                Header { lane: lane as u16, node: first.nodes[node], offset: offset as u32, ..header(Kind::Result) };
            self.steps[slot].ready.remove(f);
            let at = (node * lanes + lane) * vector + offset;
            return frame::emit_with(buf, header, len, crc, |out| self.memory.read_result(slot, at, out));
        }
        let (verdict, header) = (first.verdict, header(Kind::Verdict));
        let step = &mut self.steps[slot];
        (step.send_running, step.send_verdict) = (false, false);
        frame::emit(buf, header, &[&verdict.emit()], crc)
    }
}

/// The fragments that a holder of `nodes` owes, and of how many vectors (a lane of a node): those with an expert of the lane's below the
/// node. Both ends compute this, so nobody waits for what does not come.
pub(crate) fn owed(
    limits: &crate::Limits,
    nodes: &[u16],
    lanes: u16,
    experts: impl Iterator<Item = u16> + Clone,
    out: &mut Fragments,
) -> u32 {
    let (shape, chosen, lanes) = (limits.shape(), usize::from(limits.chosen), usize::from(lanes));
    let mut vectors = 0;
    out.clear();
    for (place, &index) in nodes.iter().enumerate() {
        let Some(node) = shape.node(index) else { continue };
        let mut rest = experts.clone();
        for lane in 0..lanes {
            let mut has = false;
            for expert in rest.by_ref().take(chosen) {
                has |= node.has(node.slice, expert);
            }
            if has {
                vectors += 1;
                for part in 0..limits.parts() {
                    out.insert((part * nodes.len() + place) * lanes + lane);
                }
            }
        }
    }
    vectors
}
