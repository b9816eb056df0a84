//! One file, mapped read-only. The only `unsafe` block about files: a mapping is sound only while nobody shortens or rewrites
//! the file, which no program can enforce, so checkpoint files are documented as not to be changed while in use.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::error::CheckpointError;

/// A read-only mapping and the path it came from.
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps `path` without reading it. Only regular files: opening a FIFO would wait for ever.
    pub(crate) fn open(path: &Path) -> Result<MappedFile, CheckpointError> {
        let io = |source| CheckpointError::Io { path: path.into(), source };
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(CheckpointError::NotAFile { path: path.into() });
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the mapping is read-only and its bytes are only handed out as `&[u8]` that borrow from it. That the
        // file keeps its length and content meanwhile is the documented duty of whoever owns the checkpoint folder; all
        // code here treats the bytes as plain numbers, so even a changed byte is a wrong weight and not a wild pointer.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(MappedFile { path: path.into(), map })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Has the system read a part that will be needed soon. A hint: nothing depends on it but waiting.
    pub(crate) fn will_need(&self, offset: usize, len: usize) {
        #[cfg(target_os = "linux")]
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, offset, len);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }
}
