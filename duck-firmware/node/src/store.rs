//! What the duck's state machine keeps in memory.
#![allow(unsafe_code)] // one read of results, as the state machine promises

use alloc::boxed::Box;
use alloc::vec;

use wire::duck::{Memory, STEPS, Sizes};
use wire::list::{Entry, MAX_BLOCKS};

use crate::blocks::Blocks;
use crate::results::Results;

/// The list, the blocks, and the slots of steps.
#[derive(Debug)]
pub(crate) struct Store {
    pub blocks: Blocks,
    list: Box<[u8]>,
    inputs: [Box<[u8]>; STEPS],
    results: Results,
    sizes: Sizes,
}

impl Store {
    /// `memory`: bytes for blocks that a list may have in all; `input`: bytes of a step's input.
    pub fn new(blocks: Blocks, results: Results, memory: u64, input: usize) -> Store {
        let sizes = Sizes { list: MAX_BLOCKS * Entry::LEN, blocks: memory, input, result: results.len() };
        Store {
            blocks,
            list: vec![0; sizes.list].into(),
            inputs: core::array::from_fn(|_| vec![0; input].into()),
            results,
            sizes,
        }
    }
}

impl Memory for Store {
    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn list(&self) -> &[u8] {
        &self.list
    }

    fn list_mut(&mut self) -> &mut [u8] {
        &mut self.list
    }

    fn write_block(&mut self, block: u32, offset: u32, bytes: &[u8]) {
        self.blocks.write(block, offset, bytes);
    }

    fn input(&self, slot: usize) -> &[u8] {
        &self.inputs[slot]
    }

    fn input_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.inputs[slot]
    }

    fn read_result(&self, slot: usize, offset: usize, out: &mut [u8]) {
        // SAFETY: the session asks only for rows that were said to be final, which is said after the kernels' progress was read with Acquire.
        unsafe { self.results.read(slot, offset, out) }
    }
}
