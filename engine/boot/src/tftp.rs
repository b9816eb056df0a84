//! TFTP's packets: RFC 1350, with the options of RFC 2347 to 2349 and 7440.

/// Where requests go to.
pub(crate) const PORT: u16 = 69;
/// Bytes in front of a block's data.
pub(crate) const HEADER: usize = 4;
/// Bytes of a block where nothing is agreed.
pub(crate) const BLOCK: usize = 512;
/// The shortest block that may be agreed (RFC 2348).
const BLOCK_LEAST: usize = 8;
/// Blocks sent without waiting, at most.
const WINDOW_MOST: u64 = 16;

/// Operations.
mod op {
    pub const READ: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const DATA: u16 = 3;
    pub const ACKNOWLEDGE: u16 = 4;
    pub const ERROR: u16 = 5;
    pub const AGREED: u16 = 6;
}

/// Error codes, with what is said to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoFile,
    NoWriting,
    NoMode,
    Busy,
}

impl Refusal {
    fn code(self) -> u16 {
        match self {
            Refusal::NoFile => 1,
            Refusal::NoWriting => 2,
            Refusal::NoMode => 4,
            Refusal::Busy => 0,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Refusal::NoFile => "no such file",
            Refusal::NoWriting => "files are only read here",
            Refusal::NoMode => "only octet mode is known here",
            Refusal::Busy => "too many transfers, try again",
        }
    }

    /// The packet.
    pub fn to_bytes(self) -> impl AsRef<[u8]> {
        let [a, b] = op::ERROR.to_be_bytes();
        let [c, d] = self.code().to_be_bytes();
        [&[a, b, c, d], self.text().as_bytes(), &[0]].concat()
    }
}

/// What a client sends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Packet<'a> {
    Read { name: &'a str, octets: bool, options: Options },
    Write,
    Acknowledge(u16),
    Error { code: u16, text: &'a [u8] },
}

/// What a client proposes, or a server agrees to; `None`: nothing about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub block: Option<usize>,
    pub size: Option<usize>,
    pub seconds: Option<u8>,
    pub window: Option<u64>,
}

impl<'a> Packet<'a> {
    pub fn parse(data: &'a [u8]) -> Option<Packet<'a>> {
        let (code, rest) = data.split_first_chunk::<2>()?;
        let number = || rest.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes));
        match u16::from_be_bytes(*code) {
            op::READ => parse_read(rest),
            op::WRITE => Some(Packet::Write),
            op::ACKNOWLEDGE => number().map(Packet::Acknowledge),
            op::ERROR => {
                let text = rest.get(2..).unwrap_or_default();
                let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
                number().map(|code| Packet::Error { code, text })
            }
            _ => None,
        }
    }
}

fn parse_read(rest: &[u8]) -> Option<Packet<'_>> {
    // Texts, each with a zero behind it; what lacks one is cut off.
    let end = rest.iter().rposition(|byte| *byte == 0)?;
    let mut texts = rest[..end].split(|byte| *byte == 0).map(|text| std::str::from_utf8(text).ok());
    let name = texts.next()??;
    let octets = texts.next()??.eq_ignore_ascii_case("octet");
    let mut options = Options::default();
    while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
        let (Some(name), Some(value)) = (name, value) else { continue };
        match name.to_ascii_lowercase().as_str() {
            "blksize" => options.block = value.parse().ok().filter(|block| *block >= BLOCK_LEAST),
            "tsize" => options.size = value.parse().ok(),
            "timeout" => options.seconds = value.parse().ok().filter(|seconds| *seconds > 0),
            "windowsize" => options.window = value.parse().ok().filter(|window| *window > 0),
            _ => {}
        }
    }
    Some(Packet::Read { name, octets, options })
}

impl Options {
    /// What is agreed to of a proposal, for a file of `size` bytes and blocks that can have `most`.
    pub fn agree(self, size: usize, most: usize) -> Options {
        Options {
            block: self.block.map(|block| block.min(most)),
            size: self.size.map(|_| size),
            seconds: self.seconds,
            window: self.window.map(|window| window.min(WINDOW_MOST)),
        }
    }

    /// The packet that says so, empty if there is nothing to say.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                bytes.extend([name.as_bytes(), &[0], value.as_bytes(), &[0]].concat());
            }
        };
        put("blksize", self.block.map(|block| block.to_string()));
        put("tsize", self.size.map(|size| size.to_string()));
        put("timeout", self.seconds.map(|seconds| seconds.to_string()));
        put("windowsize", self.window.map(|window| window.to_string()));
        if !bytes.is_empty() {
            bytes.splice(..0, op::AGREED.to_be_bytes());
        }
        bytes
    }
}

/// Writes a block. `packet` has room for the header and the data.
pub(crate) fn emit_block(packet: &mut [u8], number: u16, data: &[u8]) {
    packet[..2].copy_from_slice(&op::DATA.to_be_bytes());
    packet[2..HEADER].copy_from_slice(&number.to_be_bytes());
    packet[HEADER..].copy_from_slice(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a text in which every `|` stands for a zero.
    fn bytes(text: &str) -> Vec<u8> {
        text.bytes().map(|byte| if byte == b'|' { 0 } else { byte }).collect()
    }

    #[test]
    fn a_request_is_read_with_the_options_that_make_sense() {
        let text = bytes("|\x01/a|OCTET|blksize|1428|TSIZE|0|timeout|256|windowsize|4|x|y|");
        let options = Options { block: Some(1428), size: Some(0), seconds: None, window: Some(4) };
        assert_eq!(Packet::parse(&text), Some(Packet::Read { name: "/a", octets: true, options }));
        let agreed = options.agree(70_000, 1464).to_bytes();
        assert_eq!(agreed, bytes("|\x06blksize|1428|tsize|70000|windowsize|4|"));
        assert_eq!(Options::default().to_bytes(), b"");
        let cut = bytes("|\x01a|netascii|blksize|999");
        let read = Packet::Read { name: "a", octets: false, options: Options::default() };
        assert_eq!(Packet::parse(&cut), Some(read));
        for nothing in ["|\x01a", "|\x01a|octe", "|", "", "|\x04|", "|\x07||"] {
            assert_eq!(Packet::parse(&bytes(nothing)), None, "{nothing:?}");
        }
        assert_eq!(Packet::parse(b"\0\x01\xff\0octet\0"), None);
        assert_eq!(Packet::parse(&bytes("|\x05|\x08stop")), Some(Packet::Error { code: 8, text: b"stop" }));
    }

    #[test]
    fn what_is_agreed_fits_this_end() {
        let asked = Options { block: Some(65_464), size: Some(1), seconds: Some(3), window: Some(65_535) };
        let agreed = Options { block: Some(1468), size: Some(9), seconds: Some(3), window: Some(WINDOW_MOST) };
        assert_eq!(asked.agree(9, 1468), agreed);
        assert_eq!(Refusal::NoFile.to_bytes().as_ref(), bytes("|\x05|\x01no such file|"));
    }
}
