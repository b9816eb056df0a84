//! The list of blocks of one duck: the units that it holds, in the order in which [`wire::list`] wants them.

use kernels::tree::{Node, Shape};
use model::converted::Slices;
use wire::list::Entry;

/// A duck's list, and where each block's bytes are.
#[derive(Debug, Default)]
pub(super) struct DuckList {
    /// As it travels.
    pub bytes: Vec<u8>,
    /// By block: layer, slice, expert.
    pub units: Vec<(u16, u16, u16)>,
    /// Bytes of all blocks.
    pub len: u64,
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
}
