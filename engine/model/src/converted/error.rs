//! Why a conversion stopped, or a converted folder cannot be used. One line each.

use std::io;
use std::path::PathBuf;

use kernels::unit::UnitError;

use crate::arch::LoadError;

/// Why experts could not be packed into units.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// No layer has routed experts.
    #[error("the model has no routed experts, so there is nothing for ducks to hold")]
    NoExperts,
    /// A weight that is NaN or infinite.
    #[error("tensor {tensor} in {}: row {row}, column {column} holds the code {code:#04x}, which is not a finite number", file.display())]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The file that holds it.
        file: PathBuf,
        /// Row of the tensor.
        row: usize,
        /// Column of the tensor.
        column: usize,
        /// The code found there.
        code: u16,
    },
    /// A matrix whose type the asked format has no conversion from.
    #[error("tensor {tensor} is {found}, which cannot be stored as {format}; {advice}")]
    Format {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
        /// The format asked for.
        format: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// An expert that does not fit the units' layout.
    #[error("experts of layer {layer}, expert {expert}")]
    Unit {
        /// The model's layer.
        layer: u16,
        /// The expert.
        expert: usize,
        /// Why.
        source: UnitError,
    },
    /// Sizes that no unit can have.
    #[error("experts of hidden size {hidden} and width {width} cannot be cut into units")]
    Sizes {
        /// The model's hidden size.
        hidden: usize,
        /// An expert's width.
        width: usize,
        /// Why.
        source: UnitError,
    },
    /// An expert too large to be held in memory while it is cut.
    #[error("one expert has {found} bytes, more than the {limit} that are converted at a time")]
    Large {
        /// Its size.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// More than is packed in memory.
    #[error(
        "the experts take {found} bytes as units, more than the {limit} that are packed in memory; convert the checkpoint once with \
        `duckpond convert CHECKPOINT OUT` and use OUT"
    )]
    Memory {
        /// Bytes of all units.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The system gave no memory for the units.
    #[error("cannot get {bytes} bytes of memory for the experts")]
    Map {
        /// What was asked for.
        bytes: u64,
        /// The system's reason.
        source: io::Error,
    },
}

/// Why a conversion stopped. Nothing half-written is left under a final name, and the same command goes on where it stopped.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The source is not a whole checkpoint.
    #[error(transparent)]
    Source(#[from] LoadError),
    /// Its experts cannot be converted.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A tensor of the host cannot be copied.
    #[error("tensor {tensor} in {}: row {row}, column {column} holds the e4m3 code {code:#04x}, which is NaN", file.display())]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The file that holds it.
        file: PathBuf,
        /// Row of the tensor.
        row: u64,
        /// Column of the tensor.
        column: u64,
        /// The code.
        code: u8,
    },
    /// The target exists and is no folder.
    #[error("{} is not a folder; name a folder that does not exist yet, or an empty one", path.display())]
    NotAFolder {
        /// The target.
        path: PathBuf,
    },
    /// The target holds files of something else.
    #[error("{} holds {found} and no conversion; name a folder that does not exist yet, or an empty one", folder.display())]
    Foreign {
        /// The target.
        folder: PathBuf,
        /// A file in it.
        found: String,
    },
    /// The target holds another conversion.
    #[error("{} holds a conversion with {what} {found}, expected {expected}; name another folder", folder.display())]
    Other {
        /// The target.
        folder: PathBuf,
        /// What differs.
        what: &'static str,
        /// Of this conversion.
        expected: String,
        /// In the folder.
        found: String,
    },
    /// The target's journal or manifest is damaged.
    #[error("{} is damaged: {reason}; delete the folder {} and convert again", path.display(), folder.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another process converts into the same folder.
    #[error("another conversion is writing to {}; wait for it, or name another folder", folder.display())]
    Busy {
        /// The target.
        folder: PathBuf,
    },
    /// Too little room, found before anything was written.
    #[error("{} has {available} bytes free, and {needed} more are needed; free {} and run the same command again",
        folder.display(), needed.saturating_sub(*available))]
    Space {
        /// The target.
        folder: PathBuf,
        /// What is still to be written.
        needed: u64,
        /// What is free.
        available: u64,
    },
    /// The room ran out meanwhile.
    #[error("no room left while writing {}; free some and run the same command again, it goes on from there", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The source could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The target could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// No threads to work with.
    #[error("cannot start {threads} threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// The reason.
        source: rayon::ThreadPoolBuildError,
    },
}

impl ConvertError {
    /// A failed write: out of room is told apart from everything else.
    pub(super) fn write(path: impl Into<PathBuf>, source: io::Error) -> ConvertError {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let path = path.into();
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => ConvertError::Full { path, source },
            _ => ConvertError::Write { path, source },
        }
    }

    pub(super) fn read(path: impl Into<PathBuf>, source: io::Error) -> ConvertError {
        ConvertError::Read { path: path.into(), source }
    }
}

/// Why a converted folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no manifest: no conversion, or one that was not finished.
    #[error("{} has no manifest.json: it is no converted model, or its conversion was interrupted", folder.display())]
    NoManifest {
        /// The folder.
        folder: PathBuf,
    },
    /// The manifest cannot be used.
    #[error("{} cannot be used: {reason}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Written by a program whose units differ from this one's.
    #[error("{} was converted for another unit layout ({found}, expected {expected}); convert the checkpoint again", folder.display())]
    Layout {
        /// The folder.
        folder: PathBuf,
        /// This program's layout.
        expected: String,
        /// The folder's layout.
        found: String,
    },
    /// A file is absent.
    #[error("{} is missing from {}", file, folder.display())]
    MissingFile {
        /// The folder.
        folder: PathBuf,
        /// The file.
        file: String,
    },
    /// A file has another size than the manifest says.
    #[error("{} has {found} bytes, expected {expected} by manifest.json", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// By the manifest.
        expected: u64,
        /// On disk.
        found: u64,
    },
    /// A slice file's header or table is damaged, or belongs to another conversion.
    #[error("{} is damaged: {reason}; `duckpond verify` lists everything that is wrong", path.display())]
    Slice {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file could not be mapped.
    #[error(transparent)]
    Map(#[from] crate::checkpoint::CheckpointError),
}
