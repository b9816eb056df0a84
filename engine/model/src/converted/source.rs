//! Reading a checkpoint for conversion: by positioned reads into a few buffers, so that memory stays bounded and mapped pages
//! do not count against it, one thread ahead of whoever uses the bytes.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, sync_channel};

use rustix::fs::{Advice, fadvise};

use super::error::ConvertError;
use crate::checkpoint::{CONFIG_FILE, Checkpoint, Tensor};

/// Bytes that are asked for at once.
const READ: usize = 8 << 20;
/// Bytes of each sample of a weight file.
const SAMPLE: u64 = 64 << 10;

/// Calls `fill` for each item on a thread of its own, and `consume` for each filled buffer here, in order. Ends with the first error
/// of either. The number of buffers bounds memory and how far ahead the reading is.
pub(super) fn read_ahead<I: Send, B: Send>(
    items: impl Iterator<Item = I> + Send,
    buffers: Vec<B>,
    mut fill: impl FnMut(&I, &mut B) -> Result<(), ConvertError> + Send,
    mut consume: impl FnMut(I, &mut B) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    std::thread::scope(|scope| {
        let (full, filled) = sync_channel(buffers.len());
        let (give_back, empty) = channel();
        for buffer in buffers {
            give_back.send(buffer).expect("the receiver is right here");
        }
        scope.spawn(move || {
            for item in items {
                // Either end hangs up when the consumer has failed.
                let Ok(mut buffer) = empty.recv() else { return };
                let result = fill(&item, &mut buffer);
                let failed = result.is_err();
                if full.send(result.map(|()| (item, buffer))).is_err() || failed {
                    return;
                }
            }
        });
        for result in filled {
            let (item, mut buffer) = result?;
            consume(item, &mut buffer)?;
            // The reader may have finished.
            let _ = give_back.send(buffer);
        }
        Ok(())
    })
}

/// The files of a checkpoint, opened when they are first read.
#[derive(Default)]
pub(super) struct SourceFiles(HashMap<PathBuf, File>);

impl SourceFiles {
    fn file(&mut self, path: &Path) -> Result<&File, ConvertError> {
        if !self.0.contains_key(path) {
            let file = File::open(path).map_err(|source| ConvertError::read(path, source))?;
            // Only speed depends on it.
            let _ = fadvise(&file, 0, None, Advice::Sequential);
            self.0.insert(path.into(), file);
        }
        Ok(&self.0[path])
    }

    /// Tells the system that the whole tensor will be read soon.
    pub fn will_need(&mut self, tensor: &Tensor) -> Result<(), ConvertError> {
        let length = std::num::NonZeroU64::new(tensor.bytes().len() as u64);
        let _ = fadvise(self.file(tensor.file())?, tensor.offset(), length, Advice::WillNeed);
        Ok(())
    }

    /// Fills `buffer` with the tensor's bytes from `at` on.
    pub fn read(&mut self, tensor: &Tensor, at: u64, buffer: &mut [u8]) -> Result<(), ConvertError> {
        let (path, start) = (tensor.file(), tensor.offset() + at);
        let file = self.file(path)?;
        file.read_exact_at(buffer, start).map_err(|source| ConvertError::read(path, source))
    }

    /// Fills `words` with a tensor of 16-bit values, through `scratch`.
    pub fn read_words(
        &mut self,
        tensor: &Tensor,
        words: &mut Vec<u16>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), ConvertError> {
        words.clear();
        for (at, length) in pieces(tensor.bytes().len() as u64) {
            scratch.resize(length, 0);
            self.read(tensor, at, scratch)?;
            words.extend(scratch.as_chunks().0.iter().map(|&word| u16::from_le_bytes(word)));
        }
        Ok(())
    }
}

/// The parts of so many bytes that are read one by one: start and length.
pub(super) fn pieces(total: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..total).step_by(READ).map(move |at| (at, (total - at).min(READ as u64) as usize))
}

/// A digest that differs between checkpoints, and takes seconds where reading everything would take hours: of the configuration, and
/// of each weight file's name, size, header and three samples of its data.
pub(super) fn fingerprint(checkpoint: &Checkpoint) -> Result<String, ConvertError> {
    let mut hasher = blake3::Hasher::new();
    let path = checkpoint.folder().join(CONFIG_FILE);
    let config = std::fs::read(&path).map_err(|source| ConvertError::read(path, source))?;
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(&config);
    for path in checkpoint.files() {
        let read = |source| ConvertError::read(path, source);
        let file = File::open(path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        part(path.file_name().unwrap_or_default().as_encoded_bytes());
        part(&size.to_le_bytes());
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(read)?;
        // The checkpoint was opened, so the header lies in the file.
        let data = (8 + u64::from_le_bytes(length)).min(size);
        let last = size.saturating_sub(SAMPLE).max(data);
        for (at, length) in [(0, data), (data, SAMPLE), (data.midpoint(last), SAMPLE), (last, SAMPLE)] {
            let mut bytes = vec![0; length.min(size - at) as usize];
            file.read_exact_at(&mut bytes, at).map_err(read)?;
            part(&bytes);
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}
