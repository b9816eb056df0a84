//! The canonical tree: the one order in which the contributions of a layer's units are added.
//!
//! Floating-point addition is not associative, so the order of the sum over all units is fixed for every plan. Slices come first:
//! a run of n slices splits after the largest power of two below n. A single slice splits its experts by their lowest bit (even left,
//! odd right), then the next bit, down to one expert: a **unit**. A node's value is left + right; a unit that was not
//! chosen is absent, and a node with one present child has that child's value.
//!
//! Nodes are numbered in preorder: the root is 0, a left child follows its parent, a right child follows all of its left sibling's nodes. For
//! DeepSeek-V3.2 (32 slices, 256 experts) that is 16,383 nodes, so a number fits in 16 bits.

/// The units of one layer: `slices · experts` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Slices of 64 columns of the experts' intermediate dimension.
    pub slices: u16,
    /// Experts per layer.
    pub experts: u16,
}

/// A subtree of the canonical tree: some neighbouring whole slices, or a part of one slice's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// First slice.
    pub slice: u16,
    /// Number of slices; 1 whenever `depth` > 0.
    pub slices: u16,
    /// How often the slice's experts were split: experts e with `e mod 2^depth == residue` are below this node.
    pub depth: u8,
    /// See `depth`.
    pub residue: u16,
}

impl Shape {
    /// Number of units, or `None` when the tree's nodes could not be numbered in 16 bits or a side is empty.
    pub fn units(self) -> Option<u32> {
        let units = u32::from(self.slices) * u32::from(self.experts);
        (units > 0 && 2 * units - 1 <= u32::from(u16::MAX)).then_some(units)
    }

    /// The whole tree.
    pub fn root(self) -> Node {
        Node { slice: 0, slices: self.slices, depth: 0, residue: 0 }
    }

    /// The unit of `expert` in `slice`.
    pub fn unit(self, slice: u16, expert: u16) -> Node {
        let mut node = Node { slice, slices: 1, depth: 0, residue: 0 };
        while let Some((left, right)) = node.children(self) {
            node = if left.has(slice, expert) { left } else { right };
        }
        node
    }

    /// Whether `node` is one of this tree's: a run of slices that the tree's splits make, or a residue class of experts that is
    /// not empty. Any numbers may be asked about.
    pub fn contains(self, node: Node) -> bool {
        if node.depth > 16 || node.slices == 0 || self.units().is_none() || self.slices < node.slices {
            return false;
        }
        if node.slice > self.slices - node.slices {
            return false;
        }
        let mut at = self.root();
        while at != node {
            let Some((left, right)) = at.children(self) else { return false };
            at = match (left.covers(node), right.covers(node)) {
                (true, _) => left,
                (_, true) => right,
                _ => return false,
            };
        }
        true
    }

    /// The node with preorder number `index`.
    pub fn node(self, index: u16) -> Option<Node> {
        let (mut node, mut at, index) = (self.root(), 0u32, u32::from(index));
        if index >= 2 * self.units()? - 1 {
            return None;
        }
        while at != index {
            let (left, right) = node.children(self)?;
            let right_at = at + 2 * left.unit_count(self);
            (node, at) = if index < right_at { (left, at + 1) } else { (right, right_at) };
        }
        Some(node)
    }
}

impl Node {
    /// Experts below this node, counted in one slice.
    pub fn experts(self, shape: Shape) -> u32 {
        let (e, r, step) = (u32::from(shape.experts), u32::from(self.residue), 1u32 << self.depth);
        if r < e { (e - r).div_ceil(step) } else { 0 }
    }

    /// Units below this node.
    pub fn unit_count(self, shape: Shape) -> u32 {
        u32::from(self.slices) * self.experts(shape)
    }

    /// Left and right part; `None` for a unit.
    pub fn children(self, shape: Shape) -> Option<(Node, Node)> {
        if self.slices > 1 {
            let left = 1 << (u16::BITS - 1 - (self.slices - 1).leading_zeros());
            return Some((
                Node { slices: left, ..self },
                Node { slice: self.slice + left, slices: self.slices - left, ..self },
            ));
        }
        if self.experts(shape) < 2 {
            return None;
        }
        let depth = self.depth + 1;
        Some((Node { depth, ..self }, Node { depth, residue: self.residue + (1 << self.depth), ..self }))
    }

    /// Whether the unit of `expert` in `slice` is below this node.
    pub fn has(self, slice: u16, expert: u16) -> bool {
        let mask = (1u32 << self.depth) - 1;
        (self.slice..self.slice + self.slices).contains(&slice) && u32::from(expert) & mask == u32::from(self.residue)
    }

    /// The expert of a unit.
    pub fn expert(self) -> u16 {
        self.residue
    }

    /// Whether `other` is this node or below it.
    pub fn covers(self, other: Node) -> bool {
        self.depth <= other.depth && self.has(other.slice, other.residue) && {
            other.slice + other.slices <= self.slice + self.slices
        }
    }

    /// Preorder number within the tree.
    pub fn index(self, shape: Shape) -> u16 {
        let (mut node, mut at) = (shape.root(), 0u32);
        while node != self {
            let Some((left, right)) = node.children(shape) else { break };
            (node, at) = if left.covers(self) { (left, at + 1) } else { (right, at + 2 * left.unit_count(shape)) };
        }
        u16::try_from(at).expect("a shape has at most 65,535 nodes")
    }

    /// Sorts nodes that do not overlap into the order of the tree's leaves.
    pub fn order(self) -> (u16, u16) {
        (self.slice, self.residue.reverse_bits())
    }
}

/// Calls `add(a, b)` for each addition `items[a] += items[b]`, in order, that leaves the sum below `top` in the place of the first item.
///
/// `items` are present nodes below `top`, none above another, sorted by [`Node::order`]. What is not listed is absent. Nothing is called
/// for fewer than two items.
pub fn additions(shape: Shape, top: Node, items: &[Node], add: &mut impl FnMut(usize, usize)) {
    fn fold(shape: Shape, node: Node, items: &[Node], first: usize, add: &mut impl FnMut(usize, usize)) {
        if items.len() < 2 {
            return;
        }
        let Some((left, right)) = node.children(shape) else { return };
        let cut = items.partition_point(|&i| left.covers(i));
        fold(shape, left, &items[..cut], first, add);
        fold(shape, right, &items[cut..], first + cut, add);
        if cut > 0 && cut < items.len() {
            add(first, first + cut);
        }
    }
    fold(shape, top, items, 0, add);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    const SHAPES: [Shape; 7] = [
        Shape { slices: 1, experts: 1 },
        Shape { slices: 4, experts: 8 },
        Shape { slices: 12, experts: 128 },
        Shape { slices: 32, experts: 256 },
        Shape { slices: 3, experts: 5 },
        Shape { slices: 7, experts: 1 },
        Shape { slices: 1, experts: 160 },
    ];

    #[test]
    fn numbers_and_nodes_are_the_same_thing() {
        for shape in SHAPES {
            let nodes = 2 * shape.units().expect("these shapes are small") - 1;
            for i in 0..nodes as u16 {
                let node = shape.node(i).expect("every number below the count is a node");
                assert_eq!(node.index(shape), i, "{shape:?} {node:?}");
                assert!(shape.contains(node), "{shape:?} {node:?}");
            }
            assert_eq!(shape.node(nodes as u16), None);
        }
    }

    #[test]
    fn what_the_splits_do_not_make_is_no_node() {
        let shape = Shape { slices: 12, experts: 6 };
        let node = |slice, slices, depth, residue| Node { slice, slices, depth, residue };
        for wrong in [
            node(1, 2, 0, 0),
            node(8, 8, 0, 0),
            node(0, 0, 0, 0),
            node(0, 2, 1, 0),
            node(12, 1, 0, 0),
            node(0, 1, 1, 2),
            node(0, 1, 3, 6),
            node(0, 1, 200, 0),
            node(0, 1, 16, 0),
            node(u16::MAX, u16::MAX, 0, 0),
            node(3, 1, 0, 1),
        ] {
            assert!(!shape.contains(wrong), "{wrong:?}");
        }
        assert!(shape.contains(node(8, 4, 0, 0)) && shape.contains(node(0, 1, 3, 5 - 1)));
    }

    #[test]
    fn children_part_their_parent_and_leaves_come_in_order() {
        for shape in SHAPES {
            let mut leaves = Vec::new();
            for i in 0..(2 * shape.units().expect("small") - 1) as u16 {
                let node = shape.node(i).expect("in range");
                match node.children(shape) {
                    Some((l, r)) => {
                        assert_eq!(l.unit_count(shape) + r.unit_count(shape), node.unit_count(shape));
                        assert!(node.covers(l) && node.covers(r) && !l.covers(r) && !l.covers(node));
                    }
                    None => {
                        assert_eq!(shape.unit(node.slice, node.expert()), node);
                        leaves.push(node);
                    }
                }
            }
            assert_eq!(leaves.len() as u32, shape.units().expect("small"));
            assert!(leaves.is_sorted_by_key(|n| n.order()));
        }
    }

    #[test]
    fn the_documented_splits_hold() {
        let shape = Shape { slices: 12, experts: 8 };
        let (left, right) = shape.root().children(shape).expect("twelve slices");
        assert_eq!((left.slices, right.slice, right.slices), (8, 8, 4));
        let slice = Node { slice: 3, slices: 1, depth: 0, residue: 0 };
        let (even, odd) = slice.children(shape).expect("eight experts");
        assert!(even.has(3, 4) && !even.has(3, 5) && odd.has(3, 5) && !odd.has(4, 5));
        assert_eq!(Shape { slices: 40_000, experts: 2 }.units(), None);
    }

    /// The definition, word for word.
    fn value(shape: Shape, node: Node, leaves: &BTreeMap<(u16, u16), f32>) -> Option<f32> {
        match node.children(shape) {
            None => leaves.get(&(node.slice, node.expert())).copied(),
            Some((l, r)) => match (value(shape, l, leaves), value(shape, r, leaves)) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            },
        }
    }

    #[test]
    fn any_cut_of_the_tree_adds_up_to_the_same_bits() {
        let mut seed = 1u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as u32
        };
        for shape in SHAPES {
            for _ in 0..200 {
                let leaves: BTreeMap<(u16, u16), f32> = (0..1 + random() % 40)
                    .map(|_| {
                        let unit =
                            ((random() % u32::from(shape.slices)) as u16, (random() % u32::from(shape.experts)) as u16);
                        (unit, (random() as f32 / 1e6 - 1000.0) * 1e-3)
                    })
                    .collect();
                // A random antichain: descend from the root, stopping at random.
                let (mut open, mut cut) = (std::vec![shape.root()], Vec::new());
                while let Some(node) = open.pop() {
                    match node.children(shape) {
                        Some((l, r)) if random() % 4 != 0 => open.extend([r, l]),
                        _ => cut.push(node),
                    }
                }
                let mut items: Vec<(Node, f32)> =
                    cut.iter().filter_map(|&n| Some((n, value(shape, n, &leaves)?))).collect();
                items.sort_by_key(|(n, _)| n.order());
                let nodes: Vec<Node> = items.iter().map(|i| i.0).collect();
                let mut sums: Vec<f32> = items.iter().map(|i| i.1).collect();
                additions(shape, shape.root(), &nodes, &mut |a, b| sums[a] += sums[b]);
                let want = value(shape, shape.root(), &leaves).expect("at least one leaf");
                assert_eq!(sums[0].to_bits(), want.to_bits(), "{shape:?}");
            }
        }
    }
}
