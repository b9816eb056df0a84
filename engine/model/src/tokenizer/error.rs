//! What can be wrong with a tokenizer's files. Text that comes from a file is escaped and cut before it is shown.

use std::path::PathBuf;

use crate::checkpoint::CheckpointError;

/// Why a tokenizer could not be opened or a text not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not one to read: no regular file, far too large, or a Git LFS pointer.
    #[error(transparent)]
    File(CheckpointError),
    /// `tokenizer.json` is not a tokenizer that the library understands.
    #[error("{}: not a usable tokenizer: {reason}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser or the library said, on one line.
        reason: String,
    },
    /// `tokenizer_config.json` is not what it should be.
    #[error("{}: not a tokenizer configuration", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The parser's complaint.
        source: serde_json::Error,
    },
    /// The tokenizer is of a kind whose tokens have no bytes of their own.
    #[error("{}: the decoder is {found}, expected ByteLevel; only byte-level tokenizers are supported", path.display())]
    NotByteLevel {
        /// The file.
        path: PathBuf,
        /// The decoder that it names.
        found: String,
    },
    /// `tokenizer.json` asks for something that is not known to be harmless.
    #[error("{}: {what} is {found}, expected {expected}: only plain byte-level BPE is supported", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Where in the file, such as `model.dropout`.
        what: String,
        /// What stands there.
        found: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// An id is so large that a table of all ids would be mostly holes.
    #[error("{}: token {token} has id {id}, expected less than {limit} in a file of {entries} tokens", path.display())]
    SparseIds {
        /// The file.
        path: PathBuf,
        /// The token, quoted.
        token: String,
        /// Its id.
        id: u64,
        /// Number of tokens in the file.
        entries: usize,
        /// The bound that follows from that number.
        limit: u64,
    },
    /// Two tokens have one id.
    #[error("{}: tokens {first} and {second} both have id {id}, expected one id for each token", path.display())]
    DuplicateId {
        /// The file.
        path: PathBuf,
        /// One token, quoted.
        first: String,
        /// The other token, quoted.
        second: String,
        /// The id of both.
        id: u32,
    },
    /// A byte has no token, so that text with it would lose it.
    #[error("{}: byte {byte:#04x} (written {letter:?}) has no token in model.vocab that is not an added one, expected one \
        for each of the 256 bytes", path.display())]
    MissingByte {
        /// The file.
        path: PathBuf,
        /// The byte.
        byte: u8,
        /// Its letter in the byte-level alphabet.
        letter: char,
    },
    /// A merge needs a token that is not in the vocabulary.
    #[error("{}: model.merges[{index}] needs the token {token}, which is not in model.vocab", path.display())]
    MergeToken {
        /// The file.
        path: PathBuf,
        /// Position in the list of merges.
        index: usize,
        /// The token, quoted.
        token: String,
    },
    /// A merge makes an added token, which a person's text could then spell.
    #[error("{}: model.merges[{index}] makes the added token {token}, expected added tokens to come from no merge",
        path.display())]
    MergeMakesAdded {
        /// The file.
        path: PathBuf,
        /// Position in the list of merges.
        index: usize,
        /// The token, quoted.
        token: String,
    },
    /// An added token got another id than the file gives it, so text and checkpoint would disagree.
    #[error("{}: added token {token:?} has id {expected} in the file, but the tokenizer gives it {}", path.display(),
        found.map_or_else(|| "none".to_owned(), |id| id.to_string()))]
    AddedTokenId {
        /// The file.
        path: PathBuf,
        /// The token.
        token: String,
        /// The id that the file states.
        expected: u32,
        /// The id after loading, if any.
        found: Option<u32>,
    },
    /// A token that `tokenizer_config.json` names is not in the vocabulary.
    #[error("{}: {field} is {token:?}, which is not in the vocabulary", path.display())]
    UnknownToken {
        /// The file.
        path: PathBuf,
        /// The field that names it.
        field: &'static str,
        /// The token.
        token: String,
    },
    /// The library refused a text.
    #[error("cannot encode {length} bytes of text: {reason}")]
    Encode {
        /// Length of the text in bytes.
        length: usize,
        /// The library's own words.
        reason: String,
    },
}

impl From<CheckpointError> for TokenizerError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Io { path, source } => Self::Read { path, source },
            other => Self::File(other),
        }
    }
}
