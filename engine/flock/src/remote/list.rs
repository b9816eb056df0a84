//! The list of blocks of one duck: the units that it holds, in the order in which [`wire::list`] wants them.

use std::sync::Arc;

use kernels::tree::{Node, Shape};
use model::converted::Slices;
use wire::list::{Entry, PROGRAM_LAYER};

/// The kernels as a program, for ducks that run them in ring 3 and have none built in.
#[derive(Clone, Debug)]
pub struct Program {
    bytes: Arc<[u8]>,
    digest: [u8; 32],
    signature: [u8; 64],
}

impl Program {
    /// An ELF, and the signature of [`wire::key::Domain::Program`] and its blake3 digest by the pond's key.
    pub fn new(bytes: impl Into<Arc<[u8]>>, signature: [u8; 64]) -> Program {
        let bytes = bytes.into();
        Program { digest: *blake3::hash(&bytes).as_bytes(), bytes, signature }
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Its digest and signature, as a session names them.
    pub(super) fn named(&self) -> ([u8; 32], [u8; 64]) {
        (self.digest, self.signature)
    }
}

/// A duck's list, and where each block's bytes are.
#[derive(Clone, Debug, Default)]
pub(super) struct DuckList {
    /// As it travels.
    pub bytes: Vec<u8>,
    /// By block: layer, slice, expert.
    pub units: Vec<(u16, u16, u16)>,
    /// Bytes of all blocks.
    pub len: u64,
    /// The last block, after all units, if there is one.
    pub program: Option<Arc<[u8]>>,
}

impl DuckList {
    /// Of a duck that holds what is below these nodes, in every layer.
    pub fn new(shape: Shape, nodes: &[Node], slices: &Slices) -> DuckList {
        let mut below: Vec<(u16, u16, u16)> = Vec::new();
        for &node in nodes {
            for slice in node.slice..node.slice + node.slices {
                let experts = (0..shape.experts).filter(|&expert| node.has(slice, expert));
                below.extend(experts.map(|expert| (shape.unit(slice, expert).index(shape), slice, expert)));
            }
        }
        below.sort_unstable();
        let length = slices.layout().len() as u32;
        let mut list = DuckList::default();
        for layer in 0..slices.layers() as u16 {
            for &(node, slice, expert) in &below {
                let digest = slices.digest(layer.into(), slice.into(), expert.into());
                list.bytes.extend_from_slice(&Entry { layer, node, length, digest }.emit());
                list.units.push((layer, slice, expert));
            }
        }
        list.len = list.units.len() as u64 * u64::from(length);
        list
    }

    /// The same, and the kernels' program.
    pub fn with_program(&self, program: &Program) -> DuckList {
        let (digest, length) = (program.digest, program.bytes.len() as u32);
        let mut list = self.clone();
        list.bytes.extend_from_slice(&Entry { layer: PROGRAM_LAYER, node: 0, length, digest }.emit());
        list.len += u64::from(length);
        list.program = Some(Arc::clone(&program.bytes));
        list
    }
}
