//! What the coordinator and a domain's thread tell each other.

use std::sync::Arc;

use kernels::tree::Node;
use link::Mac;
use model::step::StepIo;
use wire::Limits;
use wire::frozen::Announce;
use wire::host::{Refusal, Why};

use super::list::DuckList;
use super::placement::Assignment;

/// To a domain.
#[derive(Debug)]
pub(super) enum Command {
    /// What its ducks hold, by seat, and the numbers of their sessions: sessions are opened.
    Lists { limits: Limits, lists: Vec<Arc<DuckList>> },
    /// A step for the domain's ducks.
    Step { id: u64, io: Arc<StepIo>, assignment: Arc<Assignment> },
    /// A node of a step is computed as these nodes from now on.
    Split { id: u64, node: Node, into: Vec<Node> },
    /// Values of a node of a step, computed elsewhere: `[lanes]`, `[lanes, hidden]`.
    Land { id: u64, node: Node, present: Vec<bool>, values: Vec<f32> },
    /// Nodes of a step that belongs to domain `home`, to be computed by one duck.
    Favour { id: u64, home: usize, io: Arc<StepIo>, seat: usize, nodes: Vec<Node> },
    /// All steps are forgotten.
    Abandon,
    /// A duck is to start afresh.
    Reset { seat: usize, action: u8 },
    /// The thread ends.
    Stop,
}

/// From a domain.
#[derive(Debug)]
pub(super) enum Report {
    /// A duck was heard of; `seat` is `None` for one that nobody expects.
    Announced { domain: usize, seat: Option<usize>, mac: Mac, announce: Box<Announce> },
    /// A duck is there and holds so many of its blocks.
    Holds { domain: usize, seat: usize, resident: u32, blocks: u32 },
    /// A duck has not answered for a moment; its steps are lost, but it may come round.
    Late { domain: usize, seat: usize },
    /// A duck is gone.
    Down { domain: usize, seat: usize, why: Why },
    /// A duck does not take the session.
    Refused { domain: usize, seat: usize, refusal: Refusal },
    /// A duck cannot be relied on for now, though it is there: it failed a step, or misses blocks.
    Unfit { domain: usize, seat: usize, reason: String },
    /// Nodes of a step have lost their holder.
    Lost { domain: usize, id: u64, nodes: Vec<Node> },
    /// A node of another domain's step is computed.
    Computed { id: u64, home: usize, node: Node, present: Vec<bool>, values: Vec<f32> },
    /// Nodes of another domain's step could not be computed here.
    Declined { id: u64, home: usize, nodes: Vec<Node> },
}
