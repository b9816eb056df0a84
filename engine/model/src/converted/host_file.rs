//! The host's half of a converted folder: its tensors in one safetensors file, under their published names and in their published types, and
//! the small files beside the weights.

use std::fs;
use std::io::Write;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::HOST_FILE;
use super::convert::Meter;
use super::error::ConvertError;
use super::manifest::FileEntry;
use super::output::Output;
use super::source::{SourceFiles, pieces, read_ahead};
use crate::checkpoint::{CONFIG_FILE, Checkpoint, DType, Tensor};

/// Buffers between reading and writing.
const BUFFERS: usize = 4;
/// Largest file that is copied beside the weights; V3.2's tokenizer has 8 MB.
const LARGEST_COPY: u64 = 1 << 28;

/// The host's tensors in the order of the file, and the file's beginning.
pub(super) struct HostFile {
    tensors: Vec<Tensor>,
    head: Vec<u8>,
}

impl HostFile {
    pub fn new(mut tensors: Vec<Tensor>) -> HostFile {
        // Wide types first, as the format's own writer does: then all are aligned.
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype().size()));
        let mut end = 0;
        let infos = tensors.iter().map(|tensor| {
            let start = end;
            end += tensor.bytes().len();
            let dtype = match tensor.dtype() {
                DType::F8E4M3 => Dtype::F8_E4M3,
                DType::BF16 => Dtype::BF16,
                DType::F32 | DType::Other(_) => Dtype::F32,
            };
            let info = TensorInfo { dtype, shape: tensor.shape().to_vec(), data_offsets: (start, end) };
            (tensor.name().to_owned(), info)
        });
        let format = [("format".to_owned(), "pt".to_owned())].into();
        let metadata = Metadata::new(Some(format), infos.collect()).expect("the ranges are contiguous");
        let mut header = serde_json::to_vec(&metadata).expect("metadata is plain data");
        header.resize(header.len().next_multiple_of(8), b' ');
        let head = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
        HostFile { tensors, head }
    }

    pub fn size(&self) -> u64 {
        self.head.len() as u64 + self.tensors.iter().map(|tensor| tensor.bytes().len() as u64).sum::<u64>()
    }

    /// Writes the file, unless it is there. NaN codes are refused.
    pub fn write(&self, output: &mut Output, meter: &Meter<'_>) -> Result<(), ConvertError> {
        if output.finished(HOST_FILE).is_some() {
            meter.skip(self.size());
            return Ok(());
        }
        let mut file = output.create(HOST_FILE)?;
        let path = output.partial(HOST_FILE);
        let mut hasher = blake3::Hasher::new();
        let mut put = |bytes: &[u8]| {
            hasher.update(bytes);
            file.write_all(bytes).map_err(|source| ConvertError::write(&path, source))?;
            meter.add(bytes.len() as u64);
            Ok(())
        };
        put(&self.head)?;
        let items = self
            .tensors
            .iter()
            .flat_map(|tensor| pieces(tensor.bytes().len() as u64).map(move |(at, length)| (tensor, at, length)));
        let mut files = SourceFiles::default();
        read_ahead(
            items,
            vec![Vec::new(); BUFFERS],
            |&(tensor, at, length), buffer: &mut Vec<u8>| {
                buffer.resize(length, 0);
                files.read(tensor, at, buffer)
            },
            |(tensor, at, _), buffer| {
                refuse_nan(tensor, at, buffer)?;
                put(buffer)
            },
        )?;
        file.sync_all().map_err(|source| ConvertError::write(&path, source))?;
        let blake3 = hasher.finalize().to_hex().to_string();
        output.finish(vec![FileEntry { name: HOST_FILE.into(), size: self.size(), blake3, rounding: None }])
    }
}

fn refuse_nan(tensor: &Tensor, at: u64, bytes: &[u8]) -> Result<(), ConvertError> {
    if tensor.dtype() != DType::F8E4M3 {
        return Ok(());
    }
    let Some(found) = bytes.iter().position(|&code| code & 0x7f == 0x7f) else { return Ok(()) };
    let columns = tensor.shape().last().map_or(1, |&n| n as u64).max(1);
    let element = at + found as u64;
    Err(ConvertError::NotFinite {
        tensor: tensor.name().into(),
        file: tensor.file().into(),
        row: element / columns,
        column: element % columns,
        code: bytes[found],
    })
}

/// A small file of the checkpoint's folder.
pub(super) struct SmallFile {
    pub name: String,
    content: Vec<u8>,
}

impl SmallFile {
    pub fn size(&self) -> u64 {
        self.content.len() as u64
    }

    pub fn write(&self, output: &mut Output, meter: &Meter<'_>) -> Result<(), ConvertError> {
        if output.finished(&self.name).is_some() {
            meter.skip(self.size());
            return Ok(());
        }
        let mut file = output.create(&self.name)?;
        let written = file.write_all(&self.content).and_then(|()| file.sync_all());
        written.map_err(|source| ConvertError::write(output.partial(&self.name), source))?;
        meter.add(self.size());
        let blake3 = blake3::hash(&self.content).to_hex().to_string();
        output.finish(vec![FileEntry { name: self.name.clone(), size: self.size(), blake3, rounding: None }])
    }
}

/// The configuration, and whatever of tokenizer, chat template, generation defaults and licence the folder has.
pub(super) fn small_files(checkpoint: &Checkpoint) -> Result<Vec<SmallFile>, ConvertError> {
    const EXACT: [&str; 4] = [CONFIG_FILE, "generation_config.json", "vocab.json", "added_tokens.json"];
    const BEGINNINGS: [&str; 5] = ["tokenizer", "special_tokens", "chat_template", "merges", "LICENSE"];
    let folder = checkpoint.folder();
    let read = |source| ConvertError::read(folder, source);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        let Ok(name) = entry.map_err(read)?.file_name().into_string() else { continue };
        if !EXACT.contains(&name.as_str()) && !BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) {
            continue;
        }
        // Links are followed: download caches keep the files elsewhere.
        let path = folder.join(&name);
        let metadata = fs::metadata(&path).map_err(|source| ConvertError::read(&path, source))?;
        if metadata.is_file() && metadata.len() <= LARGEST_COPY {
            let content = fs::read(&path).map_err(|source| ConvertError::read(&path, source))?;
            files.push(SmallFile { name, content });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}
