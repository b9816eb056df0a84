//! A frame: 32 bytes of header, then the payload of one message.
//!
//! [`Frame`] is a view of bytes that were checked once (length, magic, version, CRC32C): no accessor can fail after that. [`Header`]
//! is the same as a value, and [`emit`] writes one. On Ethernet a frame is the payload of an Ethernet II frame of type [`ETHERTYPE`],
//! on UDP that of a datagram; bytes after the payload are padding and ignored.

use core::fmt;

use crate::crc::Crc;
use crate::field::layout;
use crate::frozen;

/// The first of the two types that IEEE 802 sets aside for local experiments.
pub const ETHERTYPE: u16 = 0x88b5;
/// Bytes of a header.
pub const HEADER: usize = Header::LEN;
/// The first two bytes of every frame.
pub const MAGIC: [u8; 2] = *b"DP";
/// Version of every message that is not frozen. Both ends must have the same.
pub const VERSION: u8 = 1;
/// Longest frame: what an E810 and RTL8125 can both pass (9,702 and 9,194 bytes of payload) is less.
pub const MAX_FRAME: usize = 9_600;
/// Shortest longest frame that an endpoint must be able to take: Ethernet's.
pub const MIN_MTU: usize = 1_500;

layout! {
    /// The first 32 bytes. What `seq`, `lane`, `node`, `plan` and `offset` mean depends on the kind; unused ones are zero.
    Header[32] {
        /// [`MAGIC`].
        magic: [u8; 2] = 0,
        /// 0 for frozen messages, else [`VERSION`].
        version: u8 = 2,
        /// See [`Kind`].
        kind: u8 = 3,
        /// Kind-specific; zero where none are defined.
        flags: u16 = 4,
        /// Bytes of payload.
        length: u16 = 6,
        /// Chosen by the host when it opens its sessions, and the same for all its ducks.
        epoch: u32 = 8,
        /// Of the step, or the block, or the question.
        seq: u32 = 12,
        /// Lane, or number of lanes.
        lane: u16 = 16,
        /// Number of a node of the canonical tree, or a count of nodes.
        node: u16 = 18,
        /// Plan version.
        plan: u16 = 20,
        /// Tells one open of a duck from the next within an epoch; zero in broadcasts.
        tag: u16 = 22,
        /// Offset of the payload in what it is a part of, in bytes.
        offset: u32 = 24,
        /// CRC32C of the 28 bytes before and the payload.
        crc: u32 = 28,
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// What a frame says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $code,)* }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];

            /// By its code.
            pub fn from_code(code: u8) -> Option<Kind> {
                match code { $($code => Some(Kind::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    /// Duck: here I am (frozen).
    Announce = 1,
    /// Host: start afresh (frozen, signed).
    Reset = 2,
    /// Host: who is there? (frozen)
    Discover = 3,
    /// Host: does a frame of this length get through?
    Probe = 16,
    /// Duck: it did.
    Probed = 17,
    /// Host: be mine (signed).
    Open = 18,
    /// Duck: yes, or why not.
    Opened = 19,
    /// Host: a chunk of a block.
    Write = 20,
    /// Duck: what it has of a block.
    Written = 21,
    /// Host: which nodes you compute under a plan version.
    Assign = 22,
    /// Duck: noted, or which version it lacks.
    Assigned = 23,
    /// Host: a fragment of a step's input.
    Input = 24,
    /// Duck: some outputs of one lane of one node.
    Result = 25,
    /// Duck: how a step stands or ended.
    Verdict = 26,
    /// Host: send these results again, and say how the step stands.
    AskResult = 27,
    /// Duck: send these fragments of the input again.
    NeedInput = 28,
    /// Host: which blocks do you hold?
    AskResident = 29,
    /// Duck: these.
    Resident = 30,
    /// Host: how are you?
    AskStatus = 31,
    /// Duck: like this, with counters.
    Status = 32,
    /// Duck: a line for people.
    Log = 33,
}

impl Kind {
    /// Whether its layout never changes.
    pub fn is_frozen(self) -> bool {
        matches!(self, Kind::Announce | Kind::Reset | Kind::Discover)
    }

    /// The version byte of its frames.
    pub fn version(self) -> u8 {
        if self.is_frozen() { frozen::VERSION } else { VERSION }
    }
}

impl Header {
    /// A header of `kind` with everything else zero; length and CRC come when it is emitted.
    pub fn new(kind: Kind) -> Header {
        Header {
            magic: MAGIC,
            version: kind.version(),
            kind: kind as u8,
            flags: 0,
            length: 0,
            epoch: 0,
            seq: 0,
            lane: 0,
            node: 0,
            plan: 0,
            tag: 0,
            offset: 0,
            crc: 0,
        }
    }
}

/// Bytes that are a frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: &'a [u8; HEADER],
    kind: Kind,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Checks everything that does not need a session's state.
    ///
    /// # Errors
    /// Whatever is not a whole frame of a known kind and the right version.
    pub fn check(bytes: &'a [u8], crc: Crc) -> Result<Frame<'a>, FrameError> {
        let (header, rest) = bytes.split_first_chunk::<HEADER>().ok_or(FrameError::Short { found: bytes.len() })?;
        let [m0, m1, version, code, _, _, l0, l1, ..] = *header;
        if [m0, m1] != MAGIC {
            return Err(FrameError::Magic { found: [m0, m1] });
        }
        let expected = usize::from(u16::from_le_bytes([l0, l1]));
        let payload = rest.get(..expected).ok_or(FrameError::Length { expected, found: rest.len() })?;
        let [body @ .., c0, c1, c2, c3] = header;
        let (expected, found) = (crc(crc(0, body), payload), u32::from_le_bytes([*c0, *c1, *c2, *c3]));
        if expected != found {
            return Err(FrameError::Crc { expected, found });
        }
        let kind = Kind::from_code(code).ok_or(FrameError::Kind { found: code })?;
        if kind.version() != version {
            return Err(FrameError::Version { expected: kind.version(), found: version });
        }
        Ok(Frame { header, kind, payload })
    }

    /// What it says.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// See [`Header`].
    pub fn epoch(&self) -> u32 {
        let h = self.header;
        u32::from_le_bytes([h[8], h[9], h[10], h[11]])
    }

    /// See [`Header`].
    pub fn seq(&self) -> u32 {
        let h = self.header;
        u32::from_le_bytes([h[12], h[13], h[14], h[15]])
    }

    /// See [`Header`].
    pub fn lane(&self) -> u16 {
        u16::from_le_bytes([self.header[16], self.header[17]])
    }

    /// See [`Header`].
    pub fn node(&self) -> u16 {
        u16::from_le_bytes([self.header[18], self.header[19]])
    }

    /// See [`Header`].
    pub fn plan(&self) -> u16 {
        u16::from_le_bytes([self.header[20], self.header[21]])
    }

    /// See [`Header`].
    pub fn tag(&self) -> u16 {
        u16::from_le_bytes([self.header[22], self.header[23]])
    }

    /// See [`Header`].
    pub fn offset(&self) -> u32 {
        let h = self.header;
        u32::from_le_bytes([h[24], h[25], h[26], h[27]])
    }

    /// The message, after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// All of the header as a value.
    pub fn header(&self) -> Header {
        Header::parse(self.header).expect("a header's length was checked")
    }
}

/// Writes a frame whose payload is made of `parts`. Returns its length, or `None` when `buf` or the length field is too small.
pub fn emit(buf: &mut [u8], header: Header, parts: &[&[u8]], crc: Crc) -> Option<usize> {
    let length = parts.iter().map(|p| p.len()).sum();
    emit_with(buf, header, length, crc, |mut out| {
        for part in parts {
            let (now, rest) = out.split_at_mut(part.len());
            now.copy_from_slice(part);
            out = rest;
        }
    })
}

/// Writes a frame whose payload of `length` bytes `fill` writes in place.
pub fn emit_with(
    buf: &mut [u8],
    mut header: Header,
    length: usize,
    crc: Crc,
    fill: impl FnOnce(&mut [u8]),
) -> Option<usize> {
    header.length = u16::try_from(length).ok()?;
    let (head, rest) = buf.split_at_mut_checked(HEADER)?;
    let payload = rest.get_mut(..length)?;
    fill(payload);
    let bytes = header.emit();
    header.crc = crc(crc(0, &bytes[..HEADER - 4]), payload);
    head.copy_from_slice(&header.emit());
    Some(HEADER + length)
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Shorter than a header.
    Short {
        /// Bytes given.
        found: usize,
    },
    /// Something else's frame.
    Magic {
        /// Its first bytes.
        found: [u8; 2],
    },
    /// Another version of this protocol.
    Version {
        /// This one.
        expected: u8,
        /// The frame's.
        found: u8,
    },
    /// A kind that does not exist.
    Kind {
        /// Its code.
        found: u8,
    },
    /// Cut off.
    Length {
        /// Bytes of payload that the header states.
        expected: usize,
        /// Bytes there are.
        found: usize,
    },
    /// Damaged.
    Crc {
        /// Of the bytes.
        expected: u32,
        /// The frame's.
        found: u32,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FrameError::Short { found } => write!(f, "frame: expected at least {HEADER} bytes, found {found}"),
            FrameError::Magic { found: [a, b] } => {
                write!(f, "frame: expected magic {:02x}{:02x}, found {a:02x}{b:02x}", MAGIC[0], MAGIC[1])
            }
            FrameError::Version { expected, found } => {
                write!(
                    f,
                    "frame: expected protocol version {expected}, found {found}; use the same release at both ends"
                )
            }
            FrameError::Kind { found } => write!(f, "frame: no message kind has code {found}"),
            FrameError::Length { expected, found } => {
                write!(f, "frame: expected {expected} bytes of payload, found {found}")
            }
            FrameError::Crc { expected, found } => {
                write!(f, "frame: expected crc32c {expected:08x}, found {found:08x}")
            }
        }
    }
}

impl core::error::Error for FrameError {}
