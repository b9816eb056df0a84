//! A kernels session that owns what it points to: the table of units, their memory, and the scratch.
#![allow(unsafe_code)] // lifetimes of a self-referential value, nothing else

use std::sync::Arc;

use kernels::tree::Node;
use kernels::{Config, Holder, Limits, Refusal, UnitEntry, scratch_len};

use crate::experts::Experts;

/// A session for steps of up to `lanes` lanes on `cores` cores.
///
/// Fields are dropped in order: the session before what it reads.
#[derive(Debug)]
pub(crate) struct Resident {
    holder: Holder<'static>,
    _table: Vec<UnitEntry<'static>>,
    _scratch: Box<[u8]>,
    _experts: Arc<Experts>,
    lanes: usize,
    cores: usize,
}

impl Resident {
    /// Opens a session for a holder's nodes.
    pub fn open(experts: &Arc<Experts>, nodes: &[Node], lanes: usize, cores: usize) -> Result<Resident, Refusal> {
        let shape = experts.shape;
        let mut table: Vec<UnitEntry<'static>> = Vec::new();
        for layer in 0..experts.slices.layers() {
            for node in nodes {
                for slice in node.slice..node.slice + node.slices {
                    for expert in (0..shape.experts).filter(|&e| node.has(slice, e)) {
                        let unit = experts.slices.unit(layer, slice.into(), expert.into());
                        // SAFETY: units lie in the memory of `experts.slices`, which neither moves nor changes; the `Arc` kept in this
                        // value outlives the table.
                        let unit: &'static [u8] = unsafe { std::slice::from_raw_parts(unit.as_ptr(), unit.len()) };
                        table.push(UnitEntry::new(unit));
                    }
                }
            }
        }
        let limits = Limits::new(shape, nodes, lanes, experts.chosen);
        let len = scratch_len(&limits, shape, experts.hidden, cores).ok_or(Refusal::Session)?;
        let mut scratch = vec![0u8; len].into_boxed_slice();
        // SAFETY: boxed memory stays where it is when `Resident` moves, nothing else touches it, and it is dropped after `holder`.
        let (table_ref, scratch_ref): (&'static [UnitEntry<'static>], &'static mut [u8]) = unsafe {
            (
                std::slice::from_raw_parts(table.as_ptr(), table.len()),
                std::slice::from_raw_parts_mut(scratch.as_mut_ptr(), scratch.len()),
            )
        };
        let units = table.len() / experts.slices.layers().max(1);
        let config = Config {
            layout: *experts.slices.layout(),
            shape,
            units,
            table: table_ref,
            cores,
            core0_share: kernels::abi::FULL_SHARE,
            limits,
        };
        let holder = Holder::new(&config, scratch_ref)?;
        Ok(Resident { holder, _table: table, _scratch: scratch, _experts: Arc::clone(experts), lanes, cores })
    }

    /// Whether the session is for this many lanes and cores.
    pub fn fits(&self, lanes: usize, cores: usize) -> bool {
        lanes <= self.lanes && cores == self.cores
    }

    /// The session.
    pub fn holder(&mut self) -> &mut Holder<'static> {
        &mut self.holder
    }
}
