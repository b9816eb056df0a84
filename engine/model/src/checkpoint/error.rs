//! What can be wrong with a checkpoint folder. Messages name the object and both values and stay on one line: text that
//! comes from a file is escaped before it is shown.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use super::DType;

/// Why a checkpoint folder could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The path is absent or no folder.
    #[error("checkpoint folder {} does not exist or is not a folder", folder.display())]
    NoFolder {
        /// The path as given.
        folder: PathBuf,
    },
    /// A file that every checkpoint has is absent.
    #[error("checkpoint folder {} has no {file}", folder.display())]
    MissingFile {
        /// The checkpoint's folder.
        folder: PathBuf,
        /// The file (or files) looked for.
        file: &'static str,
    },
    /// The index names a shard that is absent.
    #[error("{} names the file {file}, which is not in the folder; it holds {tensor} and {others} other tensors", index.display())]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The absent shard.
        file: String,
        /// The first tensor said to be in it.
        tensor: String,
        /// How many more tensors the index places there.
        others: usize,
    },
    /// The operating system refused.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A path names something that is not a regular file.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A clone of a repository without Git LFS has small texts in place of its large files.
    #[error("{} is a Git LFS pointer and not the file itself: fetch the file with `git lfs pull` in its repository", path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// A small file is far larger than such a file can be.
    #[error("{} has {found} bytes, more than the {limit} that are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
        /// Its size in bytes.
        found: u64,
    },
    /// A file is not the JSON that it should be.
    #[error("{} is not valid: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said, on one line.
        reason: String,
    },
    /// A file is shorter or longer than its own header says.
    #[error("{} should have {expected} bytes by its header but has {found}{}", file.display(), size_hint(*expected, *found))]
    Size {
        /// The shard.
        file: PathBuf,
        /// Size from the header (at least, where the header itself is cut).
        expected: u64,
        /// Size on disk.
        found: u64,
    },
    /// A safetensors header cannot be used.
    #[error("{} has no usable safetensors header: {reason}", file.display())]
    Header {
        /// The shard.
        file: PathBuf,
        /// What is wrong with it, on one line.
        reason: String,
    },
    /// Two shards hold a tensor of the same name.
    #[error("tensor {name} is in both {} and {}", first.display(), second.display())]
    Duplicate {
        /// The tensor.
        name: String,
        /// The shard read first.
        first: PathBuf,
        /// The other shard.
        second: PathBuf,
    },
    /// The index names a tensor that its file does not hold.
    #[error("{} places tensor {tensor} in {file}, which does not hold it", index.display())]
    IndexTensor {
        /// The index file.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard that should hold it.
        file: String,
    },
    /// The index names a file outside the folder, or with a name that no shard has.
    #[error("{} names the file {file}, which is not a plain file name", index.display())]
    IndexFileName {
        /// The index file.
        index: PathBuf,
        /// The name, escaped.
        file: String,
    },
    /// Tensors are absent or differ from what the configuration asks for.
    #[error(transparent)]
    Tensors(#[from] Faults),
}

/// Whether `bytes`, the content of `path` or its start, is what Git LFS leaves in place of a file.
/// (The first line of the specification's pointer files: `version` and the address of the specification.)
pub(super) fn refuse_lfs_pointer(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    match bytes.starts_with(b"version https://git-lfs") {
        true => Err(CheckpointError::LfsPointer { path: path.into() }),
        false => Ok(()),
    }
}

fn size_hint(expected: u64, found: u64) -> &'static str {
    if found < expected {
        ": the file is cut short, fetch it again"
    } else {
        ": the file has trailing bytes, fetch it again"
    }
}

/// Every tensor fault of a checkpoint; never empty. Shown as the first one and the number of the others.
#[derive(Debug, Clone, PartialEq)]
pub struct Faults(Vec<TensorFault>);

impl Faults {
    /// `None` when there is nothing to report.
    pub fn new(faults: Vec<TensorFault>) -> Option<Faults> {
        (!faults.is_empty()).then_some(Faults(faults))
    }

    /// All faults, in the order in which the tensors were asked for.
    pub fn iter(&self) -> std::slice::Iter<'_, TensorFault> {
        self.0.iter()
    }
}

impl Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.0.first().expect("there is at least one fault");
        match self.0.len() - 1 {
            0 => write!(f, "{first}"),
            1 => write!(f, "{first}, and 1 more fault"),
            more => write!(f, "{first}, and {more} more faults"),
        }
    }
}

impl std::error::Error for Faults {}

impl From<TensorFault> for Faults {
    fn from(first: TensorFault) -> Faults {
        Faults(vec![first])
    }
}

impl From<TensorFault> for CheckpointError {
    fn from(fault: TensorFault) -> CheckpointError {
        CheckpointError::Tensors(fault.into())
    }
}

/// What is wrong with one tensor.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TensorFault {
    /// No shard holds it.
    #[error("tensor {name} is missing from {} (expected shape {expected:?})", folder.display())]
    Missing {
        /// The tensor.
        name: String,
        /// The checkpoint's folder.
        folder: PathBuf,
        /// The shape it should have.
        expected: Vec<usize>,
    },
    /// An e4m3 matrix comes without its scales.
    #[error("tensor {name} is missing from {} (expected shape {expected:?}): {weight} in {} is F8_E4M3 and needs it",
        folder.display(), file.display())]
    MissingScale {
        /// The scale tensor.
        name: String,
        /// The checkpoint's folder.
        folder: PathBuf,
        /// The shape it should have.
        expected: Vec<usize>,
        /// The matrix it belongs to.
        weight: String,
        /// The shard that holds the matrix.
        file: PathBuf,
    },
    /// It has another shape than the configuration gives.
    #[error("tensor {name} in {} has shape {found:?}, expected {expected:?}", file.display())]
    Shape {
        /// The tensor.
        name: String,
        /// The shard that holds it.
        file: PathBuf,
        /// The shape it should have.
        expected: Vec<usize>,
        /// The shape in the header.
        found: Vec<usize>,
    },
    /// It has a type that cannot be used in its place.
    #[error("tensor {name} in {} has dtype {found}, expected {}", file.display(), alternatives(expected))]
    DType {
        /// The tensor.
        name: String,
        /// The shard that holds it.
        file: PathBuf,
        /// The types that would do.
        expected: &'static [DType],
        /// The type in the header.
        found: DType,
    },
    /// A value that no computation can use.
    #[error("tensor {name} in {} has the value {found} at index {index:?}, expected {expected}", file.display())]
    Value {
        /// The tensor.
        name: String,
        /// The shard that holds it.
        file: PathBuf,
        /// Where, one index for each dimension.
        index: Vec<usize>,
        /// What is allowed there.
        expected: &'static str,
        /// The value.
        found: f32,
    },
}

impl TensorFault {
    /// The tensor at fault.
    pub fn name(&self) -> &str {
        match self {
            TensorFault::Missing { name, .. }
            | TensorFault::MissingScale { name, .. }
            | TensorFault::Shape { name, .. }
            | TensorFault::DType { name, .. }
            | TensorFault::Value { name, .. } => name,
        }
    }
}

fn alternatives(dtypes: &[DType]) -> String {
    let names: Vec<_> = dtypes.iter().map(DType::to_string).collect();
    names.join(" or ")
}

/// `text` with control characters escaped and cut to a length that fits a message. For whatever came out of a file.
pub(crate) fn one_line(text: impl Display) -> String {
    const LONGEST: usize = 300;
    let text = text.to_string();
    let mut line = String::new();
    for c in text.chars() {
        if line.len() >= LONGEST {
            line.push('…');
            break;
        }
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}
