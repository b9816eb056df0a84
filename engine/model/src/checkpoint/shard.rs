//! The header of one safetensors file. The `safetensors` crate checks that offsets are contiguous and in keeping with
//! shape and type. That they end where the file ends is checked here: a cut download is the usual fault and deserves both
//! sizes in its message, and the crate's own sum (0.8.0) can overflow on a hostile header.

use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::Metadata;

use super::error::{CheckpointError, one_line, refuse_lfs_pointer};
use super::mapped::MappedFile;
use super::tensor::{DType, Tensor};

/// Bytes before the header: its length as a little-endian u64.
const LENGTH_BYTES: usize = 8;
/// Longest header that is parsed, as in the `safetensors` crate. V3.2's shards have about 100 kB each.
const LONGEST_HEADER: usize = 100_000_000;

/// Maps the file and returns a handle for each tensor in it.
pub(super) fn open(path: &Path) -> Result<Vec<Tensor>, CheckpointError> {
    let file = Arc::new(MappedFile::open(path)?);
    let (data_start, metadata) = read_header(path, file.bytes())?;
    let tensors = metadata.tensors().into_iter().map(|(name, info)| {
        let range = data_start + info.data_offsets.0..data_start + info.data_offsets.1;
        Tensor::new(name.into(), info.dtype.into(), info.shape.as_slice().into(), Arc::clone(&file), range)
    });
    Ok(tensors.collect())
}

/// Where the data starts, and the header, all of whose ranges lie in the file.
fn read_header(path: &Path, bytes: &[u8]) -> Result<(usize, Metadata), CheckpointError> {
    refuse_lfs_pointer(path, bytes)?;
    let found = bytes.len() as u64;
    let size = |expected| CheckpointError::Size { file: path.into(), expected, found };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(size(LENGTH_BYTES as u64));
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER as u64 {
        return Err(header(path, format_args!("it claims {length} bytes, more than any checkpoint needs")));
    }
    let data_start = LENGTH_BYTES + length as usize;
    let Some(text) = rest.get(..length as usize) else { return Err(size(data_start as u64)) };
    let metadata: Metadata = serde_json::from_slice(text).map_err(|error| header(path, error))?;
    match data_start.checked_add(metadata.data_len()) {
        Some(end) if end == bytes.len() => Ok((data_start, metadata)),
        Some(end) => Err(size(end as u64)),
        None => Err(header(path, "its offsets overflow")),
    }
}

fn header(path: &Path, reason: impl std::fmt::Display) -> CheckpointError {
    CheckpointError::Header { file: path.into(), reason: one_line(reason) }
}

impl From<safetensors::Dtype> for DType {
    fn from(dtype: safetensors::Dtype) -> DType {
        use safetensors::Dtype as D;
        match dtype {
            D::F8_E4M3 => DType::F8E4M3,
            D::BF16 => DType::BF16,
            D::F32 => DType::F32,
            D::BOOL => DType::Other("BOOL"),
            D::U8 => DType::Other("U8"),
            D::I8 => DType::Other("I8"),
            D::F8_E5M2 => DType::Other("F8_E5M2"),
            D::F8_E8M0 => DType::Other("F8_E8M0"),
            D::I16 => DType::Other("I16"),
            D::U16 => DType::Other("U16"),
            D::F16 => DType::Other("F16"),
            D::I32 => DType::Other("I32"),
            D::U32 => DType::Other("U32"),
            D::F64 => DType::Other("F64"),
            D::I64 => DType::Other("I64"),
            D::U64 => DType::Other("U64"),
            _ => DType::Other("of another kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_git_lfs_pointer_says_what_to_do() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model-00001-of-000163.safetensors");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5234139343\n";
        std::fs::write(&path, pointer).expect("writable");
        let error = open(&path).expect_err("it holds no tensors");
        let expected =
            " is a Git LFS pointer and not the file itself: fetch the file with `git lfs pull` in its repository";
        assert_eq!(error.to_string(), format!("{}{expected}", path.display()));
    }
}
