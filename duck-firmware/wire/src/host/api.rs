//! What a peer's owner gives it and is told by it.

use crate::Micros;
use crate::crc::Crc;
use crate::frozen::ID;
use crate::key::Key;
use crate::limits::Limits;
use crate::message::{LOG_TEXT, Verdict};

/// Some outputs of one lane of one node, for the first and only time.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The step.
    pub seq: u32,
    /// Place of the node in the step's list of nodes.
    pub place: usize,
    /// Its number in the canonical tree.
    pub node: u16,
    /// The lane.
    pub lane: u16,
    /// First output.
    pub start: usize,
    /// Little-endian fp32 values from there on.
    pub bytes: &'a [u8],
}

/// The caller's memory.
pub trait Memory {
    /// The list of this duck's blocks; it does not change while the peer lives.
    fn list(&self) -> &[u8];
    /// Copies from a block of the list.
    fn read_block(&self, block: u32, offset: u32, out: &mut [u8]);
    /// Copies from a step's input, see [`body`](crate::body); asked only between `begin_step` and that step's end.
    fn read_input(&self, seq: u32, offset: usize, out: &mut [u8]);
    /// Takes a piece of a step's results: every owed value exactly once.
    fn land(&mut self, piece: Piece<'_>);
}

/// What a host wants of a duck.
#[derive(Clone, Debug)]
pub struct Config {
    /// The duck.
    pub duck: [u8; ID],
    /// This host: the same across restarts.
    pub host: [u8; ID],
    /// The pond's key.
    pub key: Key,
    /// Of this run of the host: random, not 0, the same for all its ducks.
    pub epoch: u32,
    /// Anything; another start makes other tags.
    pub tag: u16,
    /// The session's numbers. `load_chunk` is the most; the path may allow less.
    pub limits: Limits,
    /// blake3 of the kernels' program.
    pub kernels: [u8; 32],
    /// Of [`Domain::Program`](crate::key::Domain::Program) and `kernels`; zero if ducks have them built in.
    pub kernels_signature: [u8; 64],
    /// Milliseconds.
    pub lease: u32,
    /// Longest frame that the host can send and receive.
    pub max_frame: usize,
    /// Microseconds of silence, despite questions, after which the duck counts as gone.
    pub silent_after: Micros,
    /// Bytes of blocks in a millisecond; 0 for as many as fit.
    pub load_rate: u32,
    /// Checksums.
    pub crc: Crc,
}

/// Why a duck is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It answers nothing.
    Unanswered,
    /// It answers, but knows nothing of the session.
    Restarted,
    /// A step runs far beyond its time limit.
    Stuck,
    /// It refuses the session's list.
    List,
}

/// Why a duck did not take a session. It is asked again from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another host holds it for so many milliseconds yet.
    Leased {
        /// Milliseconds.
        left: u32,
    },
    /// It knows another key.
    BadSignature,
    /// Its buffers are smaller than the session's numbers.
    Limits,
    /// The kernels are not signed by its pond's key.
    Kernels,
    /// Frames as long as the session's chunks do not get through.
    Path {
        /// Longest that did, 0 for none.
        found: usize,
        /// Needed.
        expected: usize,
    },
    /// It refuses the list, though its root is right: more bytes than it has, or units of another model.
    List,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that was owed has landed.
    Ok,
    /// The duck did not compute it.
    Failed(Verdict),
    /// The duck counts another number of vectors than the host: their plans differ.
    Disagrees {
        /// The host's.
        expected: u32,
        /// The duck's.
        found: u32,
    },
}

/// A line from a duck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// 0 error, 1 warning, 2 information, 3 detail.
    pub level: u8,
    /// Lines that were lost just before it.
    pub lost: u32,
    pub(super) len: usize,
    pub(super) text: [u8; LOG_TEXT],
}

impl LogLine {
    /// What it says; empty if it is no text.
    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.text[..self.len]).unwrap_or("")
    }
}

/// What the caller must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A step ended.
    StepDone {
        /// Its number.
        seq: u32,
        /// How.
        outcome: Outcome,
        /// Microseconds since it began.
        micros: Micros,
    },
    /// The duck is gone, and with it every step that was begun and is not done; what has landed is right and stays so.
    Silent {
        /// Why.
        why: Why,
    },
    /// The duck is there, for the first time. Assign it nodes when their blocks are resident.
    Joined {
        /// Blocks it holds.
        resident: u32,
        /// Blocks in the list.
        blocks: u32,
    },
    /// The duck is there again. It knows no plan; see `Joined`.
    Rejoined {
        /// Blocks it holds.
        resident: u32,
        /// Blocks in the list.
        blocks: u32,
    },
    /// It will not be this host's for now.
    Refused(Refusal),
    /// Blocks came (or, after a damaged one was found, went).
    Loaded {
        /// Blocks it holds.
        resident: u32,
        /// Blocks in the list.
        blocks: u32,
    },
    /// The duck knows the plan version, and misses so many blocks for it: with none it may be sent steps.
    Assigned {
        /// Version.
        plan: u16,
        /// Blocks; `None`: a node is not one of the session's tree.
        missing: Option<u32>,
    },
    /// Fresh [`status`](super::Peer::status) and [`counters`](super::Peer::counters).
    Status,
    /// A line for people.
    Log(LogLine),
}

/// What a peer has done and seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames sent.
    pub frames_out: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Received bytes that were no frame, or none for this peer.
    pub frames_bad: u64,
    /// Bytes of blocks and lists sent, repeated ones included.
    pub load_bytes: u64,
    /// Chunks sent again.
    pub load_repeats: u64,
    /// Complete blocks that had the wrong digest at the duck.
    pub blocks_wrong: u64,
    /// Steps that ended well.
    pub steps: u64,
    /// Times that results were asked for again.
    pub asks: u64,
    /// Input fragments sent again.
    pub input_repeats: u64,
    /// Times that the duck was silent.
    pub losses: u64,
    /// Opens sent.
    pub opens: u64,
}
