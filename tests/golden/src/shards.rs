//! Dealing tensors to numbered safetensors files, with the index that names each tensor's file.

use std::{borrow::Cow, collections::HashMap, fmt::Write as _, fs, path::Path};

use safetensors::{Dtype, View};

use crate::Error;

/// A shard is closed before it would outgrow this many bytes of tensor data.
const SHARD_LIMIT: usize = 2_800_000;

/// A tensor as it lies on disk.
pub struct StoredTensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Little-endian elements, row-major.
    pub bytes: Vec<u8>,
}

impl View for &StoredTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Writes `tensors` into `folder` as `model-00001-of-00000N.safetensors` … and `model.safetensors.index.json`.
pub fn write(folder: &Path, tensors: &[StoredTensor]) -> Result<(), Error> {
    let shards = deal(tensors);
    let mut entries = Vec::with_capacity(tensors.len());
    for (number, shard) in (1..).zip(&shards) {
        let file = format!("model-{number:05}-of-{:06}.safetensors", shards.len());
        let path = folder.join(&file);
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let named = shard.iter().map(|tensor| (&tensor.name, tensor));
        let bytes = safetensors::serialize(named, Some(metadata)).map_err(Error::safetensors(&path))?;
        fs::write(&path, bytes).map_err(Error::io("write", &path))?;
        entries.extend(shard.iter().map(|tensor| format!("  \"{}\": \"{file}\"", tensor.name)));
    }
    let total: usize = tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    let path = folder.join("model.safetensors.index.json");
    fs::write(&path, index(total, &entries)).map_err(Error::io("write", &path))
}

/// Cuts the list into runs of at most [`SHARD_LIMIT`] bytes.
fn deal(tensors: &[StoredTensor]) -> Vec<&[StoredTensor]> {
    let mut shards = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (at, tensor) in tensors.iter().enumerate() {
        if at > start && size + tensor.bytes.len() > SHARD_LIMIT {
            shards.push(&tensors[start..at]);
            (start, size) = (at, 0);
        }
        size += tensor.bytes.len();
    }
    shards.push(&tensors[start..]);
    shards
}

/// The index with one space of indentation a level and no line feed at the end. Names here need no escaping.
fn index(total: usize, entries: &[String]) -> String {
    let mut text = String::new();
    write!(
        text,
        "{{\n \"metadata\": {{\n  \"total_size\": {total}\n }},\n \"weight_map\": {{\n{}\n }}\n}}",
        entries.join(",\n")
    )
    .expect("a string takes all that is written to it");
    text
}
