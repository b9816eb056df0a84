//! What the kernels want for a list of nodes: where each node's units start, and a table of them for each layer.
//!
//! Made when a list of nodes is first asked for and kept, since the same nodes come with every step of a plan.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::Range;

use kernels::tree::{Node, Shape};
use kernels::unit::UnitLayout;
use wire::Limits;
use wire::list::List;

use crate::blocks::{Blocks, Table};
use crate::shared::Shared;

/// Lists of nodes that are kept: plans' and those that steps name.
const SETS: usize = 8;

/// One list of nodes, as the kernels see it.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub nodes: Vec<Node>,
    /// By node: its first unit in a layer's table.
    pub first_units: Vec<u32>,
    pub limits: kernels::Limits,
    /// Bytes of scratch that the kernels need.
    pub scratch: usize,
}

/// One list of nodes, and its units.
#[derive(Debug)]
struct Set {
    numbers: Vec<u16>,
    nodes: Nodes,
    /// By layer.
    tables: Vec<Option<Table>>,
    used: u64,
}

/// Lists of nodes, the session's kernels, all that follows from its numbers.
#[derive(Debug)]
pub(crate) struct Tables {
    pub shape: Shape,
    pub layout: UnitLayout,
    session: Limits,
    cores: usize,
    sets: Vec<Set>,
    uses: u64,
    /// Tables made so far.
    made: u64,
}

/// A step that the kernels cannot be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Blocks that are not in memory.
    Missing(u32),
    /// More memory beside blocks and results than there is.
    Memory,
    /// Numbers that the kernels do not take.
    Numbers,
}

impl Tables {
    /// For a session with these limits; `None` if the kernels have no such units.
    pub fn new(session: Limits, cores: usize) -> Option<Tables> {
        let format = kernels::abi::format_of(session.format.into())?;
        let layout = UnitLayout::new(format, session.hidden as usize).ok()?;
        Some(Tables { shape: session.shape(), layout, session, cores, sets: Vec::new(), uses: 0, made: 0 })
    }

    /// Forgets all tables: the list of blocks is another.
    pub fn clear(&mut self) {
        self.sets.clear();
    }

    /// The set of nodes with these numbers, if its table and the kernels' scratch have room in `shared`.
    pub fn set(&mut self, numbers: &[u16], shared: &Shared) -> Result<usize, Unfit> {
        self.uses += 1;
        let at = match self.sets.iter().position(|s| s.numbers == numbers) {
            Some(at) => at,
            None => {
                let set = self.make(numbers, shared)?;
                let oldest = self.sets.iter().enumerate().min_by_key(|(_, s)| s.used).map(|(i, _)| i);
                match oldest.filter(|_| self.sets.len() >= SETS) {
                    Some(at) => {
                        self.sets[at] = set;
                        at
                    }
                    None => {
                        self.sets.push(set);
                        self.sets.len() - 1
                    }
                }
            }
        };
        self.sets[at].used = self.uses;
        Ok(at)
    }

    fn make(&self, numbers: &[u16], shared: &Shared) -> Result<Set, Unfit> {
        let (shape, session) = (self.shape, &self.session);
        let nodes: Option<Vec<Node>> = numbers.iter().map(|&n| shape.node(n)).collect();
        let nodes = nodes.ok_or(Unfit::Numbers)?;
        let first_units = nodes.iter().scan(0, |next, node| {
            let first = *next;
            *next += node.unit_count(shape);
            Some(first)
        });
        let limits = kernels::Limits::new(shape, &nodes, session.lanes.into(), session.chosen.into());
        let scratch = kernels::scratch_len(&limits, shape, session.hidden as usize, self.cores);
        let units = nodes.iter().map(|n| n.unit_count(shape) as usize).sum();
        let scratch = scratch.filter(|&len| shared.has_room(units, len)).ok_or(Unfit::Memory)?;
        let tables = (0..session.layers).map(|_| None).collect();
        let nodes = Nodes { first_units: first_units.collect(), nodes, limits, scratch };
        Ok(Set { numbers: numbers.into(), nodes, tables, used: 0 })
    }

    /// Makes a set's table for a layer, unless it is there.
    pub fn make_table(&mut self, set: usize, layer: u16, list: List<'_>, blocks: &Blocks) -> Result<(), Unfit> {
        let set = &mut self.sets[set];
        let Some(table @ None) = set.tables.get_mut(usize::from(layer)) else { return Ok(()) };
        let (range, mut missing, mut found) = (list.layer(layer), 0, Vec::new());
        for node in &set.nodes.nodes {
            for slice in node.slice..node.slice + node.slices {
                for expert in (0..self.shape.experts).filter(|&e| node.has(slice, e)) {
                    let unit = self.shape.unit(slice, expert).index(self.shape);
                    match find(list, range.clone(), unit) {
                        Some(block) => found.push(block),
                        None => missing += 1,
                    }
                }
            }
        }
        if missing > 0 {
            return Err(Unfit::Missing(missing));
        }
        self.made += 1;
        *table = Some(blocks.table(self.made, found));
        Ok(())
    }

    /// A set, and its table for a layer if that was made.
    pub fn get(&mut self, set: usize, layer: u16) -> (&Nodes, Option<&mut Table>) {
        let Set { nodes, tables, .. } = &mut self.sets[set];
        (nodes, tables.get_mut(usize::from(layer)).and_then(Option::as_mut))
    }
}

/// The block of a layer's unit with this number.
fn find(list: List<'_>, layer: Range<usize>, node: u16) -> Option<u32> {
    let (mut low, mut high) = (layer.start, layer.end);
    while low < high {
        let middle = low.midpoint(high);
        let found = list.get(middle)?.node;
        match found.cmp(&node) {
            Ordering::Equal => return u32::try_from(middle).ok(),
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    None
}
