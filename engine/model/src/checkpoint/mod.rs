//! Checkpoint folders as published on Hugging Face: `config.json`, and the weights either in one `model.safetensors` or
//! in shards named by `model.safetensors.index.json`.
//!
//! Opening maps the files and reads their headers, nothing else; tensor data is read by whoever touches it. What the
//! tensors mean, and the checks of shape and type against a configuration, belong to the architectures; tokenizer files
//! in the same folder belong to the modules about text. Files must not be changed while a checkpoint is open.

mod error;
mod index;
mod mapped;
mod matrix;
mod shard;
mod tensor;

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

pub(crate) use error::one_line;
pub use error::{CheckpointError, Faults, TensorFault};
pub(crate) use mapped::MappedFile;
pub use matrix::{BlockScales, Matrix, SCALE_BLOCK, Vector};
pub use tensor::{DType, Tensor, bf16_to_f32, e4m3_to_f32};

/// Name of the configuration in every checkpoint folder.
pub const CONFIG_FILE: &str = "config.json";
/// Name of the weights when they are in one file.
pub const SINGLE_FILE: &str = "model.safetensors";
/// Name of the table of shards.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Suffix that makes the name of a matrix's scales out of the matrix's own name.
pub const SCALE_SUFFIX: &str = "_scale_inv";

/// Bounds for files that are read whole. V3.2's index has about 9 MB.
const LARGEST_CONFIG: u64 = 1 << 20;
const LARGEST_INDEX: u64 = 1 << 28;

/// An open checkpoint folder.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: Value,
    tensors: HashMap<Arc<str>, Tensor>,
    files: Vec<PathBuf>,
}

impl Checkpoint {
    /// Maps every weight file of `folder` and reads the headers. A single `model.safetensors` is preferred to an index,
    /// as in transformers.
    ///
    /// # Errors
    /// Names the file at fault: absent, cut short, inconsistent with its header or with the index.
    pub fn open(folder: &Path) -> Result<Checkpoint, CheckpointError> {
        if !folder.is_dir() {
            return Err(CheckpointError::NoFolder { folder: folder.into() });
        }
        let config = read_config(folder)?;
        let mut checkpoint = Checkpoint { folder: folder.into(), config, tensors: HashMap::new(), files: Vec::new() };
        if exists(&folder.join(SINGLE_FILE)) {
            checkpoint.add_shard(SINGLE_FILE)?;
        } else if exists(&folder.join(INDEX_FILE)) {
            checkpoint.add_indexed()?;
        } else {
            const EITHER: &str = "model.safetensors and no model.safetensors.index.json";
            return Err(CheckpointError::MissingFile { folder: folder.into(), file: EITHER });
        }
        Ok(checkpoint)
    }

    /// A folder whose weights are all in the one file of that name.
    pub(crate) fn open_single(folder: &Path, file: &str) -> Result<Checkpoint, CheckpointError> {
        let config = read_config(folder)?;
        let mut checkpoint = Checkpoint { folder: folder.into(), config, tensors: HashMap::new(), files: Vec::new() };
        checkpoint.add_shard(file)?;
        Ok(checkpoint)
    }

    /// The folder as given to `open`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `config.json`, parsed but unchecked.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The weight files in the order in which they were opened.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The tensor of that name, whatever its shape.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// All tensors, in no order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.values()
    }

    /// The tensor `name`, checked to have that shape and one of `dtypes`. A file that cannot hold what the
    /// configuration says is reported here and not where the numbers are used.
    pub fn checked(&self, name: &str, shape: &[usize], dtypes: &'static [DType]) -> Result<&Tensor, TensorFault> {
        let tensor = self.tensor(name).ok_or_else(|| TensorFault::Missing {
            name: name.into(),
            folder: self.folder.clone(),
            expected: shape.into(),
        })?;
        if tensor.shape() != shape {
            return Err(TensorFault::Shape {
                name: name.into(),
                file: tensor.file().into(),
                expected: shape.into(),
                found: tensor.shape().into(),
            });
        }
        if !dtypes.contains(&tensor.dtype()) || tensor.dtype().size().is_none() {
            return Err(TensorFault::DType {
                name: name.into(),
                file: tensor.file().into(),
                expected: dtypes,
                found: tensor.dtype(),
            });
        }
        Ok(tensor)
    }

    /// The matrix `name` of shape [rows, cols]. An e4m3 one brings its scales, `name` + [`SCALE_SUFFIX`], from whichever
    /// file holds them; they are read here and must be positive and finite. The elements themselves are not read.
    pub fn matrix(&self, name: &str, shape: [usize; 2], dtypes: &'static [DType]) -> Result<Matrix, TensorFault> {
        let data = self.checked(name, &shape, dtypes)?.clone();
        let scale = match data.dtype() {
            DType::F8E4M3 => Some(self.scales(&data, shape)?),
            _ => None,
        };
        Ok(Matrix { rows: shape[0], cols: shape[1], data, scale })
    }

    /// The vector `name` of `len` finite values.
    pub fn vector(&self, name: &str, len: usize, dtypes: &'static [DType]) -> Result<Vector, TensorFault> {
        let tensor = self.checked(name, &[len], dtypes)?;
        let values = tensor.to_f32_vec().expect("checked to be of a sized type");
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(Vector(values.into())),
            Some(at) => Err(bad_value(tensor, vec![at], "a finite number", values[at])),
        }
    }

    fn scales(&self, weight: &Tensor, shape: [usize; 2]) -> Result<BlockScales, TensorFault> {
        let name = format!("{}{SCALE_SUFFIX}", weight.name());
        let blocks = scale_shape(shape);
        let tensor = self.checked(&name, &blocks, &[DType::F32]).map_err(|fault| match fault {
            TensorFault::Missing { name, folder, expected } => TensorFault::MissingScale {
                name,
                folder,
                expected,
                weight: weight.name().into(),
                file: weight.file().into(),
            },
            other => other,
        })?;
        let values = tensor.to_f32_vec().expect("checked to be f32");
        match values.iter().position(|&scale| !(scale.is_finite() && scale > 0.0)) {
            None => Ok(BlockScales::new(blocks[1], values.into())),
            Some(at) => {
                let index = vec![at / blocks[1], at % blocks[1]];
                Err(bad_value(tensor, index, "a positive finite scale", values[at]))
            }
        }
    }

    fn add_indexed(&mut self) -> Result<(), CheckpointError> {
        let path = self.folder.join(INDEX_FILE);
        let index = index::parse(&path, &read_bounded(&path, LARGEST_INDEX)?)?;
        for (file, tensors) in &index {
            if !exists(&self.folder.join(file)) {
                return Err(CheckpointError::MissingShard {
                    index: path,
                    file: file.clone(),
                    tensor: one_line(&tensors[0]),
                    others: tensors.len() - 1,
                });
            }
        }
        for (file, tensors) in index {
            self.add_shard(&file)?;
            let shard = self.folder.join(&file);
            let held = |name: &String| self.tensor(name).is_some_and(|tensor| tensor.file() == shard);
            if let Some(absent) = tensors.iter().find(|name| !held(name)) {
                return Err(CheckpointError::IndexTensor { index: path, tensor: one_line(absent), file });
            }
        }
        Ok(())
    }

    fn add_shard(&mut self, file: &str) -> Result<(), CheckpointError> {
        let path = self.folder.join(file);
        for tensor in shard::open(&path)? {
            if let Some(first) = self.tensors.insert(tensor.shared_name(), tensor.clone()) {
                return Err(CheckpointError::Duplicate {
                    name: one_line(tensor.name()),
                    first: first.file().into(),
                    second: path,
                });
            }
        }
        self.files.push(path);
        Ok(())
    }
}

/// Shape of the scales of a matrix of that shape.
pub fn scale_shape(shape: [usize; 2]) -> [usize; 2] {
    shape.map(|size| size.div_ceil(SCALE_BLOCK))
}

fn bad_value(tensor: &Tensor, index: Vec<usize>, expected: &'static str, found: f32) -> TensorFault {
    TensorFault::Value { name: tensor.name().into(), file: tensor.file().into(), index, expected, found }
}

fn read_config(folder: &Path) -> Result<Value, CheckpointError> {
    let path = folder.join(CONFIG_FILE);
    if !exists(&path) {
        return Err(CheckpointError::MissingFile { folder: folder.into(), file: CONFIG_FILE });
    }
    let text = read_bounded(&path, LARGEST_CONFIG)?;
    serde_json::from_slice(&text).map_err(|error| CheckpointError::Json { path, reason: one_line(error) })
}

/// Whether something has that name, be it a dangling link: a link whose target is gone deserves an error that names it.
pub(crate) fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// The content of a regular file of at most `limit` bytes. A FIFO or a device could otherwise hold the program up for ever.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let io = |source| CheckpointError::Io { path: path.into(), source };
    let too_large = |found| CheckpointError::TooLarge { path: path.into(), limit, found };
    let metadata = fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(CheckpointError::NotAFile { path: path.into() });
    }
    if metadata.len() > limit {
        return Err(too_large(metadata.len()));
    }
    // Some file systems state no size, and a file can grow meanwhile.
    let mut bytes = Vec::with_capacity(metadata.len() as usize + 1);
    fs::File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes)).map_err(io)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    error::refuse_lfs_pointer(path, &bytes)?;
    Ok(bytes)
}
