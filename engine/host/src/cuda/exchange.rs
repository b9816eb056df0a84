//! The hand-over between a pass on the card and the ducks, through pinned memory: the step's input out, sums in, a word for each direction.
//!
//! The card counts steps. It sets `handed` to a step's number when its input is complete; the host sets `ready` to the same number when sums and
//! their additions lie in place. A wait on the card ends early when `abort` is set, and after a bound, when it sets `failed`. Which nodes there are
//! and how they are added is a table that the card reads, so a captured graph serves every plan.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kernels::tree::{Node, Shape, additions};
use model::step::{StepInput, StepIo};
use rayon::prelude::*;

use super::abi::{Exchange, FEW, LaneSums, NODES, Plain, TIMES};
use super::device::Device;
use super::error::CudaError;
use super::memory::{Memory, Pinned};
use super::stream::Stream;

/// Words lie in cache lines of their own: host and card write different ones.
const LINE: usize = 16;
const HANDED: usize = 0;
const READY: usize = LINE;
const ABORT: usize = 2 * LINE;
const FAILED: usize = 3 * LINE;

/// For so long a wait keeps the processor to itself.
const SPIN: Duration = Duration::from_micros(200);
/// A pass whose waits are ended has run out within this time, or never will.
const GIVE_UP: Duration = Duration::from_secs(10);
/// How often a long wait asks the driver whether the card still works.
const ASK: Duration = Duration::from_millis(2);

/// One pass's exchange.
pub(crate) struct ExchangeArea {
    words: Pinned<u32>,
    hidden: Pinned<f32>,
    experts: Pinned<u32>,
    weights: Pinned<f32>,
    sums: Pinned<LaneSums>,
    rows: Pinned<f32>,
    /// By step: when it was handed over and when its wait ended.
    times: Option<Pinned<u64>>,
    /// [`Exchange`], then the words `step` and `arrived`.
    table: Memory,
    /// The number of the latest step.
    step: u32,
    /// The one before the pass's first.
    before: u32,
    width: usize,
    chosen: usize,
    bound: Duration,
}

/// How a pass waits for the ducks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// Nanoseconds that a wait on the card lasts at most, 0: there are no ducks.
    pub(crate) bound: u64,
    /// The card notes when.
    pub(crate) timed: bool,
}

impl ExchangeArea {
    /// For `lanes` lanes.
    pub(crate) fn new(
        device: &Arc<Device>,
        width: usize,
        chosen: usize,
        lanes: usize,
        Waits { bound, timed }: Waits,
    ) -> Result<ExchangeArea, CudaError> {
        let staged = (lanes.min(FEW) * NODES).max(lanes);
        let size = size_of::<Exchange>();
        let area = ExchangeArea {
            words: Pinned::new(device, 4 * LINE)?,
            hidden: Pinned::new(device, lanes * width)?,
            experts: Pinned::new(device, lanes * chosen)?,
            weights: Pinned::new(device, lanes * chosen)?,
            sums: Pinned::new(device, lanes)?,
            rows: Pinned::new(device, staged * width)?,
            times: timed.then(|| Pinned::new(device, 2 * TIMES)).transpose()?,
            table: Memory::new(device, "an exchange", size + 8)?,
            step: 0,
            before: 0,
            width,
            chosen,
            bound: Duration::from_nanos(bound),
        };
        let word = |index: usize| area.words.address() + 4 * index as u64;
        let step = area.table.address() + size as u64;
        let exchange = Exchange {
            handed: word(HANDED),
            ready: word(READY),
            abort: word(ABORT),
            failed: word(FAILED),
            hidden: area.hidden.address(),
            experts: area.experts.address(),
            weights: area.weights.address(),
            sums: area.sums.address(),
            step,
            arrived: step + 4,
            times: area.times.as_ref().map_or(0, Pinned::address),
            bound,
        };
        area.table.write(0, &[exchange])?;
        area.table.write(size, &[0u32, 0])?;
        Ok(area)
    }

    /// Where kernels find it.
    pub(crate) fn address(&self) -> u64 {
        self.table.address()
    }

    /// Whether there are ducks.
    pub(crate) fn travels(&self) -> bool {
        !self.bound.is_zero()
    }

    /// Waits until the next step's input is there.
    pub(crate) fn wait_handed(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let next = self.step.wrapping_add(1);
        let (started, mut asked) = (Instant::now(), Instant::now());
        let handed = self.words.word(HANDED);
        while handed.load(Ordering::Acquire) != next {
            let waited = started.elapsed();
            if waited < SPIN {
                std::hint::spin_loop();
                continue;
            }
            std::thread::yield_now();
            if asked.elapsed() < ASK {
                continue;
            }
            asked = Instant::now();
            self.check("the ducks' sums")?;
            if stream.is_idle()? && handed.load(Ordering::Acquire) != next {
                let (what, why) = ("handing a step over".into(), format!("the card ended without step {next}"));
                return Err(CudaError::Failed { what, why });
            }
            if waited > self.bound {
                return Err(CudaError::Timeout { what: "a step's input".into(), seconds: self.bound.as_secs() });
            }
        }
        self.step = next;
        self.check("the ducks' sums")
    }

    /// Times of the steps since the last call, on the card's clock in nanoseconds: when each was handed over, and when its wait ended. Of
    /// more than [`TIMES`] the latest; none if nobody wants them. The pass has finished.
    pub(crate) fn times(&mut self) -> Vec<[u64; 2]> {
        let before = std::mem::replace(&mut self.before, self.step);
        let Some(times) = &self.times else { return Vec::new() };
        let steps = self.step.wrapping_sub(before).min(TIMES as u32);
        let place = |back: u32| 2 * (self.step.wrapping_sub(back) as usize % TIMES);
        (0..steps).rev().map(|back| [times.get()[place(back)], times.get()[place(back) + 1]]).collect()
    }

    /// Whether a wait on the card has given up.
    pub(crate) fn check(&self, what: &str) -> Result<(), CudaError> {
        match self.words.word(FAILED).load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(CudaError::Timeout { what: what.into(), seconds: self.bound.as_secs() }),
        }
    }

    /// Publishes the input that was handed over.
    pub(crate) fn publish(&self, layer: u16, lanes: usize, io: &StepIo) {
        let fresh = io.input.publish(|step: &mut StepInput| {
            step.layer = layer;
            step.lanes = lanes;
            step.hidden.clear();
            step.hidden.extend_from_slice(&self.hidden.get()[..lanes * self.width]);
            step.experts.clear();
            step.experts.extend(self.experts.get()[..lanes * self.chosen].iter().map(|&expert| expert as u16));
            step.weights.clear();
            step.weights.extend_from_slice(&self.weights.get()[..lanes * self.chosen]);
        });
        assert!(fresh, "a step's input is published once");
    }

    /// Puts the ducks' sums where the card finds them, and says that they are there.
    pub(crate) fn take_sums(&mut self, shape: Shape, lanes: usize, io: &StepIo) {
        let (width, address) = (self.width, self.rows.address());
        let most = most_nodes(io);
        let table = self.sums.get_mut();
        let rows = self.rows.get_mut();
        if lanes <= FEW && most <= NODES {
            for (lane, (sums, rows)) in table.iter_mut().zip(rows.chunks_mut(NODES * width)).take(lanes).enumerate() {
                let first = address + (lane * NODES * width * 4) as u64;
                stage(shape, &nodes(io, lane, width), width, rows, first, sums);
            }
        } else {
            // Too many rows to lie beside each other: the host adds them, in the same order.
            let lane = |(lane, (sums, row)): (usize, (&mut LaneSums, &mut [f32]))| {
                let nodes = nodes(io, lane, width);
                *sums = LaneSums::zeroed();
                sums.count = u32::from(!nodes.is_empty());
                sums.row[0] = address + (lane * width * 4) as u64;
                add_up(shape, &nodes, row);
            };
            table.par_iter_mut().zip(rows.par_chunks_mut(width)).take(lanes).enumerate().for_each(lane);
        }
        self.words.word(READY).store(self.step, Ordering::Release);
    }

    /// Ends waits on the card, lets the stream run out, and makes the exchange fit for another pass.
    pub(crate) fn give_up(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.words.word(ABORT).store(1, Ordering::Release);
        stream.finish_within(GIVE_UP)?;
        self.words.word(ABORT).store(0, Ordering::Release);
        self.words.word(FAILED).store(0, Ordering::Release);
        let mut counted = [0u32; 2];
        let at = self.table.address() + size_of::<Exchange>() as u64;
        stream.read(at, &mut counted)?;
        self.step = counted[0];
        Ok(())
    }
}

/// The nodes that a lane has, in the order of the tree's leaves.
fn nodes(io: &StepIo, lane: usize, width: usize) -> Vec<(Node, &[f32])> {
    let mut nodes: Vec<(Node, &[f32])> = Vec::new();
    for sums in io.sums.iter().filter_map(|slot| slot.get()) {
        let lanes = sums.present.len() / sums.nodes.len().max(1);
        for (n, node) in sums.nodes.iter().enumerate() {
            let row = n * lanes + lane;
            if sums.present[row] {
                nodes.push((*node, &sums.values[row * width..][..width]));
            }
        }
    }
    nodes.sort_by_key(|(node, _)| node.order());
    nodes
}

fn most_nodes(io: &StepIo) -> usize {
    io.sums.iter().filter_map(|slot| slot.get()).map(|sums| sums.nodes.len()).sum()
}

/// Copies the rows side by side and writes down their additions.
fn stage(shape: Shape, nodes: &[(Node, &[f32])], width: usize, rows: &mut [f32], first: u64, sums: &mut LaneSums) {
    sums.count = nodes.len() as u32;
    sums.additions = 0;
    sums.result = 0;
    for (i, ((_, from), to)) in nodes.iter().zip(rows.chunks_mut(width)).enumerate() {
        to.copy_from_slice(from);
        sums.row[i] = first + (i * width * 4) as u64;
    }
    let items: Vec<Node> = nodes.iter().map(|(node, _)| *node).collect();
    additions(shape, shape.root(), &items, &mut |a, b| {
        let at = sums.additions as usize;
        (sums.to[at], sums.from[at]) = (a as u8, b as u8);
        sums.additions += 1;
    });
}

/// The same sum, here.
fn add_up(shape: Shape, nodes: &[(Node, &[f32])], out: &mut [f32]) {
    let items: Vec<Node> = nodes.iter().map(|(node, _)| *node).collect();
    match nodes {
        [] => {}
        [(_, only)] => out.copy_from_slice(only),
        _ => {
            let mut values: Vec<Vec<f32>> = nodes.iter().map(|(_, row)| row.to_vec()).collect();
            additions(shape, shape.root(), &items, &mut |a, b| {
                let (left, right) = values.split_at_mut(b);
                left[a].iter_mut().zip(&right[0]).for_each(|(l, r)| *l += r);
            });
            out.copy_from_slice(&values[0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::step::NodeSums;

    #[test]
    fn the_table_for_the_card_and_the_host_add_alike() {
        let shape = Shape { slices: 4, experts: 8 };
        let (width, lanes) = (3, 2);
        let node = |slice, slices, depth, residue| Node { slice, slices, depth, residue };
        let held = [vec![node(2, 2, 0, 0), node(0, 1, 1, 1)], vec![node(0, 1, 1, 0), node(1, 1, 0, 0)]];
        let io = StepIo::new(2);
        for (slot, held) in io.sums.iter().zip(&held) {
            slot.publish(|sums: &mut NodeSums| {
                sums.nodes.clone_from(held);
                sums.present = vec![true; held.len() * lanes];
                sums.present[1] = false;
                sums.values = (0..held.len() * lanes * width)
                    .map(|i| 1.0 / (3.0 + i as f32 + f32::from(held[0].slice)))
                    .collect();
            });
        }
        for lane in 0..lanes {
            let nodes = nodes(&io, lane, width);
            assert_eq!(nodes.len(), if lane == 0 { 4 } else { 2 });
            assert!(nodes.is_sorted_by_key(|(node, _)| node.order()));
            let mut rows = vec![0.0; NODES * width];
            let mut sums = LaneSums::zeroed();
            stage(shape, &nodes, width, &mut rows, 1000, &mut sums);
            assert_eq!((sums.count as usize, sums.additions as usize), (nodes.len(), nodes.len() - 1));
            assert_eq!(sums.row[1], 1000 + 4 * width as u64);
            // What the kernel does with the table.
            for a in 0..sums.additions as usize {
                for column in 0..width {
                    rows[usize::from(sums.to[a]) * width + column] += rows[usize::from(sums.from[a]) * width + column];
                }
            }
            let mut want = vec![0.0; width];
            add_up(shape, &nodes, &mut want);
            assert_eq!(rows[sums.result as usize * width..][..width], want);
        }
    }
}
