//! What the checkpoint tests share: small folders, and edits that spoil them.
#![allow(dead_code, reason = "each test program uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

use model::arch::deepseek_v32::config::Config;
use model::checkpoint::{Checkpoint, CheckpointError};
use model::synthetic::{self, Dims, Options};
use serde_json::{Map, Value};
use tempfile::TempDir;

/// The checkpoint that ships with the repository.
pub fn duckling() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/duckling")
}

/// A synthetic checkpoint of the given sizes in a folder of its own.
pub fn synthetic(dims: &Dims, shard_bytes: u64) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    synthetic::write(&Options { folder: folder.path(), dims, seed: 7, shard_bytes }).expect("written");
    folder
}

/// One in a single file.
pub fn tiny() -> TempDir {
    synthetic(&Dims::tiny(), u64::MAX)
}

/// Its configuration, checked.
pub fn config(checkpoint: &Checkpoint) -> Config {
    Config::from_json(checkpoint.config()).expect("a valid configuration")
}

/// A message with its causes, as the program prints it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Opening fails; its message.
pub fn open_error(folder: &Path) -> String {
    chain(&Checkpoint::open(folder).expect_err("the folder is spoilt"))
}

/// Asserts that a message is one line that contains every fragment.
#[track_caller]
pub fn assert_says(message: &str, fragments: &[&str]) {
    assert!(!message.is_empty() && !message.contains(['\n', '\r']), "not one line: {message:?}");
    for fragment in fragments {
        assert!(message.contains(fragment), "{message:?} does not contain {fragment:?}");
    }
}

/// A file of a checkpoint as (header, data).
pub fn read_shard(path: &Path) -> (Map<String, Value>, Vec<u8>) {
    let bytes = fs::read(path).expect("a shard");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).expect("a header"), bytes[8 + length..].to_vec())
}

/// Writes a file of a checkpoint.
pub fn write_shard(path: &Path, header: &Map<String, Value>, data: &[u8]) {
    let header = serde_json::to_vec(header).expect("serialisable");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, data].concat();
    fs::write(path, bytes).expect("written");
}

/// Changes one tensor's header entry and bytes in a single-file checkpoint.
pub fn edit_tensor(folder: &Path, name: &str, edit: impl FnOnce(&mut Value, &mut [u8])) {
    let path = folder.join("model.safetensors");
    let (mut header, mut data) = read_shard(&path);
    let entry = header.get_mut(name).expect("the tensor exists");
    let at = |i: usize| entry["data_offsets"][i].as_u64().expect("an offset") as usize;
    let range = at(0)..at(1);
    edit(entry, &mut data[range]);
    write_shard(&path, &header, &data);
}

/// Renames a tensor in a single-file checkpoint, which leaves a hole in the model and none in the file.
pub fn rename_tensor(folder: &Path, from: &str, to: &str) {
    let path = folder.join("model.safetensors");
    let (mut header, data) = read_shard(&path);
    let entry = header.remove(from).expect("the tensor exists");
    header.insert(to.into(), entry);
    write_shard(&path, &header, &data);
}

/// Changes config.json.
pub fn edit_config(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).expect("read")).expect("json");
    edit(&mut config);
    fs::write(&path, serde_json::to_vec(&config).expect("serialisable")).expect("written");
}

/// The checkpoint opens, its weights do not load; the error.
pub fn load_error(folder: &Path) -> CheckpointError {
    let checkpoint = Checkpoint::open(folder).expect("opens");
    let config = config(&checkpoint);
    model::arch::deepseek_v32::tensors::Weights::load(&checkpoint, &config).expect_err("the weights are spoilt")
}
