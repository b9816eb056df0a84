//! The steps of one domain that are under way, and the memory that its peers read and write.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use kernels::tree::Node;
use model::converted::Slices;
use model::step::StepIo;
use wire::Micros;
use wire::host::{Memory, Piece};

use super::list::DuckList;
use crate::landing::Landing;

/// Blocks that are read from disk before they are sent.
const AHEAD: usize = 8;

/// A step, or a favour for another domain's step.
#[derive(Debug)]
pub(super) struct Active {
    /// The coordinator's number.
    pub id: u64,
    /// The number on the wire.
    pub seq: u32,
    /// `None` once nobody needs it any more.
    pub io: Option<Arc<StepIo>>,
    /// The domain that the result goes to, if it is a favour.
    pub home: Option<usize>,
    /// As it travels.
    pub input: Vec<u8>,
    pub landing: Landing,
    /// Numbers of nodes, and the seats that compute them.
    pub owners: Vec<(u16, usize)>,
    /// By seat: its peer has the step.
    pub open: Vec<bool>,
    /// When it was begun, and with how many lanes.
    pub started: Micros,
    pub lanes: usize,
    /// The sums are published, or nobody wants them any more.
    pub done: bool,
}

impl Active {
    /// The nodes of a seat of which something is missing.
    pub fn lost(&self, seat: usize, number: impl Fn(Node) -> u16) -> Vec<Node> {
        let of_seat = |node: &Node| self.owners.contains(&(number(*node), seat));
        self.landing.incomplete().filter(of_seat).collect()
    }

    /// Whether no peer has it any more.
    pub fn is_closed(&self) -> bool {
        !self.open.contains(&true)
    }
}

/// What peers share.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Ascending by `seq`.
    pub active: Vec<Active>,
}

impl Steps {
    /// By number on the wire.
    pub fn by_seq(&mut self, seq: u32) -> Option<&mut Active> {
        self.active.iter_mut().find(|step| step.seq == seq)
    }

    /// By the coordinator's number; favours aside.
    pub fn by_id(&mut self, id: u64) -> Option<&mut Active> {
        self.active.iter_mut().find(|step| step.id == id && step.home.is_none() && !step.done)
    }
}

/// One peer's view.
#[derive(Debug)]
pub(super) struct SeatMemory {
    pub list: Arc<DuckList>,
    pub slices: Arc<Slices>,
    pub steps: Rc<RefCell<Steps>>,
}

impl Memory for SeatMemory {
    fn list(&self) -> &[u8] {
        &self.list.bytes
    }

    fn read_block(&self, block: u32, offset: u32, out: &mut [u8]) {
        let Some(&(layer, slice, expert)) = self.list.units.get(block as usize) else {
            let program = self.list.program.as_deref().unwrap_or_default();
            return out.copy_from_slice(&program[offset as usize..][..out.len()]);
        };
        let unit = self.slices.unit(layer.into(), slice.into(), expert.into());
        if offset == 0 {
            // This thread must not wait for a disk in the middle of a step.
            let ahead = self.list.units.iter().skip(block as usize + 1).take(AHEAD);
            ahead.for_each(|&(layer, slice, expert)| self.slices.will_need(layer.into(), slice.into(), expert.into()));
        }
        out.copy_from_slice(&unit[offset as usize..][..out.len()]);
    }

    fn read_input(&self, seq: u32, offset: usize, out: &mut [u8]) {
        let mut steps = self.steps.borrow_mut();
        let input = steps.by_seq(seq).and_then(|step| step.input.get(offset..offset + out.len()));
        // A step that is forgotten is read no more; its peers have been told so before.
        if let Some(input) = input {
            out.copy_from_slice(input);
        }
    }

    fn land(&mut self, piece: Piece<'_>) {
        let mut steps = self.steps.borrow_mut();
        let Some(step) = steps.by_seq(piece.seq).filter(|step| !step.done) else { return };
        let (values, _) = piece.bytes.as_chunks::<4>();
        step.landing.land(piece.node, piece.lane.into(), piece.start, values.len(), |out| {
            out.iter_mut().zip(values).for_each(|(out, &value)| *out = f32::from_le_bytes(value));
        });
    }
}
