//! The messages beyond the frozen ones: fixed parts as small values; what follows them is told beside each. How the header's fields
//! are used is a table in the README.

use crate::field::layout;
use crate::frozen::{ID, NONCE};
use crate::key::{Domain, Key, PublicKey};
use crate::limits::{Limits, Mode};

layout! {
    /// A host takes a duck, for a time that every frame of its own renews.
    Open[284] {
        /// The duck's present nonce.
        nonce: [u8; NONCE] = 0,
        /// The duck meant.
        id: [u8; ID] = 16,
        /// Who takes it: the same across restarts of a host.
        host: [u8; ID] = 32,
        /// [`PublicKey::id`] of the key that signs.
        key: [u8; 8] = 48,
        /// Of the session; not 0.
        epoch: u32 = 56,
        /// Milliseconds without a frame of the host's after which another may take the duck.
        lease: u32 = 60,
        /// blake3 of the kernels' program.
        kernels: [u8; 32] = 64,
        /// blake3 of the list of blocks.
        root: [u8; 32] = 96,
        /// Blocks in the list.
        blocks: u32 = 128,
        /// See [`Limits`].
        hidden: u32 = 132,
        /// See [`Limits`].
        layers: u16 = 136,
        /// See [`Limits`].
        slices: u16 = 138,
        /// See [`Limits`].
        experts: u16 = 140,
        /// See [`Limits`].
        chosen: u16 = 142,
        /// See [`Limits`].
        lanes: u16 = 144,
        /// See [`Limits`].
        nodes: u16 = 146,
        /// See [`Mode`].
        mode: u8 = 148,
        /// See [`Limits`].
        format: u8 = 149,
        /// See [`Limits`].
        step_chunk: u16 = 150,
        /// See [`Limits`].
        load_chunk: u16 = 152,
        /// The header's `tag` for this open.
        tag: u16 = 154,
        /// Of [`Domain::Program`] and `kernels`; zero when the duck has these kernels built in.
        kernels_signature: [u8; 64] = 156,
        /// Of [`Domain::Open`] and the bytes before.
        signature: [u8; 64] = 220,
    }
}

impl Open {
    /// Bytes that are signed.
    pub const SIGNED: usize = 220;

    /// Puts the signature in.
    pub fn sign(mut self, key: &Key) -> Open {
        self.key = key.public().id();
        self.signature = key.sign(Domain::Open, &self.emit()[..Open::SIGNED]);
        self
    }

    /// Whether the holder of `key` signed it.
    pub fn verify(&self, key: &PublicKey) -> bool {
        self.key == key.id() && key.verify(Domain::Open, &self.emit()[..Open::SIGNED], &self.signature)
    }

    /// The session's numbers; `None` for a mode that does not exist.
    pub fn limits(&self) -> Option<Limits> {
        Some(Limits {
            hidden: self.hidden,
            layers: self.layers,
            slices: self.slices,
            experts: self.experts,
            chosen: self.chosen,
            lanes: self.lanes,
            nodes: self.nodes,
            mode: Mode::from_code(self.mode)?,
            format: self.format,
            step_chunk: self.step_chunk,
            load_chunk: self.load_chunk,
        })
    }
}

macro_rules! codes {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $code:ident = $value:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $code = $value,)* }

        impl $name {
            /// All of them with their names.
            pub const ALL: &'static [(&'static str, u8)] = &[$((stringify!($code), $value)),*];

            /// By its code.
            pub fn from_code(code: u8) -> Option<$name> {
                match code { $($value => Some($name::$code),)* _ => None }
            }
        }
    };
}

codes! {
    /// The answer to an [`Open`].
    OpenCode {
        /// Taken.
        Accepted = 0,
        /// The nonce was used or never given out; sign again with the one in this answer.
        StaleNonce = 1,
        /// Not signed by the pond's key.
        BadSignature = 2,
        /// Another host holds the lease.
        Leased = 3,
        /// Beyond what the duck's buffers or this protocol allow.
        Limits = 4,
        /// The kernels are neither built in nor signed.
        Kernels = 5,
    }
}

layout! {
    /// The answer to an [`Open`].
    Opened[72] {
        /// See [`OpenCode`].
        code: u8 = 0,
        /// 1: the list is known and its blocks may be asked for.
        listed: u8 = 1,
        /// Zero.
        reserved: u16 = 2,
        /// Milliseconds until the lease of whoever holds it expires.
        lease: u32 = 4,
        /// What the next signed message must contain.
        nonce: [u8; NONCE] = 8,
        /// Epoch of the session that this answers.
        epoch: u32 = 24,
        /// Blocks held.
        resident: u32 = 28,
        /// The duck's.
        boot: u64 = 32,
        /// blake3 of the payload of the Open that this answers.
        answers: [u8; 32] = 40,
    }
}

codes! {
    /// What became of a block.
    BlockCode {
        /// More chunks are welcome.
        Receiving = 0,
        /// Complete, its digest is being computed.
        Checking = 1,
        /// Held.
        Resident = 2,
        /// Not in the list, or a list that is not one.
        Refused = 3,
        /// Too many blocks are on their way at once: later.
        Busy = 4,
    }
}

layout! {
    /// What the duck has of block `seq`.
    Written[40] {
        /// Chunks that are there without a gap.
        base: u32 = 0,
        /// See [`BlockCode`].
        code: u8 = 4,
        /// Zero.
        reserved: u8 = 5,
        /// Goes up, and wraps, whenever any block starts from nothing: one that had the wrong digest, or whose place another took.
        attempt: u16 = 6,
        /// Bit i: chunk `base + i` is there.
        chunks: [u8; 32] = 8,
    }
}

codes! {
    /// The answer to an Assign.
    AssignCode {
        /// These nodes will be computed.
        Active = 0,
        /// Some of their blocks are missing; steps under this plan are refused.
        Missing = 1,
        /// A node that the session's tree does not have.
        Refused = 2,
        /// Unasked: a step names a plan version that this duck was never told.
        Unknown = 3,
    }
}

layout! {
    /// The answer to an Assign, or its lack.
    Assigned[8] {
        /// See [`AssignCode`].
        code: u8 = 0,
        /// Zero.
        reserved: [u8; 3] = 1,
        /// Blocks that are missing.
        missing: u32 = 4,
    }
}

codes! {
    /// How a step stands.
    VerdictCode {
        /// Still at work, or waiting for its turn.
        Running = 0,
        /// Done.
        Ok = 1,
        /// A trap.
        RuntimeError = 2,
        /// Stopped at the time limit.
        TimeLimit = 3,
        /// Needed more memory than the session has.
        MemoryLimit = 4,
        /// A step that this duck cannot compute: blocks missing, ids out of range.
        Unsupported = 5,
        /// Not kept any more: a newer step has its slot.
        Gone = 6,
    }
}

layout! {
    /// How step `seq` stands.
    Verdict[40] {
        /// See [`VerdictCode`].
        code: u8 = 0,
        /// Core that trapped.
        core: u8 = 1,
        /// Number of the trap.
        trap: u16 = 2,
        /// The trap's error code.
        error: u32 = 4,
        /// Address that was touched.
        address: u64 = 8,
        /// Instruction that did.
        instruction: u64 = 16,
        /// Microseconds of computing.
        busy: u32 = 24,
        /// Vectors (a lane of a node) that the step has.
        vectors: u32 = 28,
        /// Units that were missing, for [`VerdictCode::Unsupported`].
        missing: u32 = 32,
        /// Zero.
        reserved: u32 = 36,
    }
}

impl Verdict {
    /// Everything else zero.
    pub const fn new(code: VerdictCode) -> Verdict {
        Verdict {
            code: code as u8,
            core: 0,
            trap: 0,
            error: 0,
            address: 0,
            instruction: 0,
            busy: 0,
            vectors: 0,
            missing: 0,
            reserved: 0,
        }
    }
}

layout! {
    /// How a duck is. Followed by its counters, a u64 each, in the order of [`Counter`].
    Status[64] {
        /// A random number that it drew when it started.
        boot: u64 = 0,
        /// Root of its list.
        root: [u8; 32] = 8,
        /// Blocks held.
        resident: u32 = 40,
        /// Milliseconds until its lease expires.
        lease: u32 = 44,
        /// Seconds since it started.
        uptime: u32 = 48,
        /// Goes up whenever a block that was held is not any more.
        losses: u32 = 52,
        /// 1: the list is known and its blocks may be asked for.
        listed: u8 = 56,
        /// Zero.
        reserved: [u8; 7] = 57,
    }
}

codes! {
    /// Counters and gauges that a duck reports.
    Counter {
        /// Frames received that were frames.
        FramesIn = 0,
        /// Frames sent.
        FramesOut = 1,
        /// Frames received that were damaged or foreign.
        FramesBad = 2,
        /// Frames of no session or another one.
        FramesStale = 3,
        /// Steps finished.
        Steps = 4,
        /// Microseconds of computing.
        Busy = 5,
        /// Results asked for again.
        ResultAsks = 6,
        /// Times that input was asked for again.
        InputAsks = 7,
        /// Blocks that became resident.
        BlocksLoaded = 8,
        /// Complete blocks with the wrong digest.
        BlocksWrong = 9,
        /// Resident blocks that a later check found damaged.
        BlocksLost = 10,
        /// Signed messages that were refused.
        ControlRefused = 11,
        /// Log lines that were dropped because too many came at once.
        LogDropped = 12,
        /// Gauge: temperature in thousandths of a degree.
        Temperature = 13,
        /// Gauge: times or thousandths of throttling, as the platform counts.
        Throttled = 14,
        /// Units read: an expert's part in a slice counts once per step.
        Units = 15,
    }
}

/// Number of counters in a [`Status`].
pub const COUNTERS: usize = Counter::ALL.len();

layout! {
    /// A page of a duck's set of blocks; from the 12th byte on, bit i of what follows is block `first + i`.
    Resident[12] {
        /// First block of the page; a multiple of 8.
        first: u32 = 0,
        /// Blocks in the list.
        blocks: u32 = 4,
        /// As in [`Status`].
        losses: u32 = 8,
    }
}

/// Bytes of bits in a page of [`Resident`].
pub const RESIDENT_PAGE: usize = 1_024;

layout! {
    /// A line for people; its text (UTF-8) follows. The header's `seq` counts lines, so that lost ones show.
    Log[4] {
        /// 0 error, 1 warning, 2 information, 3 detail.
        level: u8 = 0,
        /// Zero.
        reserved: [u8; 3] = 1,
    }
}

/// Longest text of a log line.
pub const LOG_TEXT: usize = 160;
