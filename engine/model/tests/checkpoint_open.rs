//! Opening folders: what is found, and which message each fault gives.

mod checkpoint_support;

use std::fs;
use std::path::Path;

use checkpoint_support::*;
use model::checkpoint::{Checkpoint, DType};
use model::synthetic::Dims;
use serde_json::{Value, json};

const SHARD: u64 = 200_000;

#[test]
fn duckling_opens_with_all_its_tensors() {
    let checkpoint = Checkpoint::open(&duckling()).expect("the shipped model opens");
    assert_eq!(checkpoint.tensors().len(), 421);
    assert_eq!(checkpoint.files().len(), 1);
    let q_a = checkpoint.tensor("model.layers.0.self_attn.q_a_proj.weight").expect("present");
    assert_eq!((q_a.dtype(), q_a.shape(), q_a.bytes().len()), (DType::F8E4M3, &[128, 256][..], 128 * 256));
    assert!(q_a.file().ends_with("model.safetensors"));
}

#[test]
fn tensor_bytes_are_those_of_the_file() {
    let folder = tiny();
    let (header, data) = read_shard(&folder.path().join("model.safetensors"));
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    for tensor in checkpoint.tensors() {
        let at = |i: usize| header[tensor.name()]["data_offsets"][i].as_u64().expect("an offset") as usize;
        assert!(tensor.bytes() == &data[at(0)..at(1)], "{}", tensor.name());
    }
    assert_eq!(checkpoint.tensors().len(), header.len() - 1, "all but __metadata__");
}

#[test]
fn a_tensor_outlives_its_checkpoint() {
    let folder = tiny();
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let norm = checkpoint.tensor("model.norm.weight").expect("present").clone();
    drop(checkpoint);
    drop(folder);
    assert!(norm.to_f32_vec().expect("bf16").iter().all(|value| (value - 1.0).abs() <= 0.13));
}

#[test]
fn a_folder_that_is_missing_or_a_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let absent = folder.path().join("nowhere");
    assert_says(&open_error(&absent), &["checkpoint folder", "nowhere does not exist or is not a folder"]);
    fs::write(&absent, "x").expect("written");
    assert_says(&open_error(&absent), &["nowhere does not exist or is not a folder"]);
}

#[test]
fn missing_files_are_named() {
    let folder = tiny();
    let path = folder.path();
    fs::remove_file(path.join("model.safetensors")).expect("removed");
    assert_says(&open_error(path), &["has no model.safetensors and no model.safetensors.index.json"]);
    fs::remove_file(path.join("config.json")).expect("removed");
    assert_says(&open_error(path), &["has no config.json"]);
}

#[test]
fn files_of_another_kind_are_refused_without_waiting_for_them() {
    let folder = tiny();
    let path = folder.path();
    fs::remove_file(path.join("model.safetensors")).expect("removed");
    fs::create_dir(path.join("model.safetensors")).expect("made");
    assert_says(&open_error(path), &["model.safetensors is not a regular file"]);
    fs::remove_dir(path.join("model.safetensors")).expect("removed");
    std::os::unix::fs::symlink("gone", path.join("model.safetensors")).expect("linked");
    assert_says(&open_error(path), &["cannot read", "model.safetensors", "No such file"]);
    fs::write(path.join("config.json"), vec![b' '; 2 << 20]).expect("written");
    assert_says(&open_error(path), &["config.json has 2097152 bytes, more than the 1048576"]);
}

#[test]
fn broken_json_is_named_with_its_place() {
    let folder = tiny();
    fs::write(folder.path().join("config.json"), "{\n\"hidden_size\": ").expect("written");
    assert_says(&open_error(folder.path()), &["config.json is not valid: EOF", "line 2"]);
    fs::write(folder.path().join("config.json"), "[".repeat(100_000)).expect("written");
    assert_says(&open_error(folder.path()), &["config.json is not valid: recursion limit"]);
}

#[test]
fn a_file_cut_anywhere_is_named_with_both_sizes() {
    let folder = tiny();
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).expect("read");
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    let cuts = [0, 1, 7, 8, 9, header / 2, header - 1, header, header + 1, whole.len() / 2, whole.len() - 1];
    for cut in cuts {
        fs::write(&path, &whole[..cut]).expect("written");
        let expected = if cut < 8 {
            8
        } else if cut < header {
            header
        } else {
            whole.len()
        };
        let sizes = format!("should have {expected} bytes by its header but has {cut}: the file is cut short");
        assert_says(&open_error(folder.path()), &["model.safetensors", &sizes]);
    }
    fs::write(&path, [&whole[..], b"x"].concat()).expect("written");
    assert_says(&open_error(folder.path()), &["trailing bytes"]);
}

#[test]
fn shards_open_like_one_file() {
    let (one, many) = (tiny(), synthetic(&Dims::tiny(), SHARD));
    let one = Checkpoint::open(one.path()).expect("opens");
    let many = Checkpoint::open(many.path()).expect("opens");
    assert!(many.files().len() >= 4, "{} files", many.files().len());
    assert_eq!(one.tensors().len(), many.tensors().len());
    for tensor in one.tensors() {
        let other = many.tensor(tensor.name()).expect("present");
        assert!(tensor.bytes() == other.bytes() && tensor.shape() == other.shape(), "{}", tensor.name());
    }
}

fn edit_index(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("json");
    edit(&mut index);
    fs::write(path, index.to_string()).expect("written");
}

#[test]
fn an_absent_shard_is_named_with_a_tensor_of_it() {
    let folder = synthetic(&Dims::tiny(), SHARD);
    let gone = Checkpoint::open(folder.path()).expect("opens").files()[1].clone();
    fs::remove_file(&gone).expect("removed");
    let name = gone.file_name().expect("a name").to_str().expect("utf-8");
    assert_says(&open_error(folder.path()), &[name, "not in the folder", "it holds model.", "other tensors"]);
}

#[test]
fn an_index_that_disagrees_with_its_files_is_refused() {
    let folder = synthetic(&Dims::tiny(), SHARD);
    edit_index(folder.path(), |index| {
        let file = index["weight_map"]["model.norm.weight"].clone();
        index["weight_map"]["model.norm.wait"] = file;
    });
    assert_says(
        &open_error(folder.path()),
        &["index.json places tensor model.norm.wait in model-0", "does not hold it"],
    );
}

#[test]
fn an_index_that_names_the_wrong_file_is_refused() {
    let folder = synthetic(&Dims::tiny(), SHARD);
    let last = Checkpoint::open(folder.path()).expect("opens").files().last().expect("files").clone();
    let last = last.file_name().expect("a name").to_str().expect("utf-8").to_string();
    edit_index(folder.path(), |index| index["weight_map"]["model.embed_tokens.weight"] = json!(last));
    assert_says(&open_error(folder.path()), &["places tensor model.embed_tokens.weight in", &last, "does not hold it"]);
}

#[test]
fn an_index_cannot_reach_out_of_its_folder() {
    for name in ["../x.safetensors", "/etc/passwd", "a/b", "", ".", "a/", "x\ny"] {
        let folder = synthetic(&Dims::tiny(), SHARD);
        edit_index(folder.path(), |index| index["weight_map"]["model.norm.weight"] = json!(name));
        assert_says(&open_error(folder.path()), &["names the file", "not a plain file name"]);
    }
}

#[test]
fn an_empty_or_shapeless_index_is_refused() {
    let folder = synthetic(&Dims::tiny(), SHARD);
    edit_index(folder.path(), |index| index["weight_map"] = json!({}));
    assert_says(&open_error(folder.path()), &["index.json is not valid: its weight_map names no tensor"]);
    edit_index(folder.path(), |index| *index = json!({"weight_map": {"a": 1}}));
    assert_says(&open_error(folder.path()), &["index.json is not valid: invalid type"]);
    edit_index(folder.path(), |index| *index = json!({}));
    assert_says(&open_error(folder.path()), &["index.json is not valid: missing field `weight_map`"]);
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let folder = synthetic(&Dims::tiny(), SHARD);
    let files = Checkpoint::open(folder.path()).expect("opens").files().to_vec();
    let (mut header, mut data) = read_shard(&files[1]);
    let start = data.len();
    data.extend([0; 2]);
    header.insert(
        "model.embed_tokens.weight".into(),
        json!({"dtype": "BF16", "shape": [1], "data_offsets": [start, start + 2]}),
    );
    write_shard(&files[1], &header, &data);
    let message = open_error(folder.path());
    assert_says(&message, &["tensor model.embed_tokens.weight is in both", "model-00001-of", "model-00002-of"]);
}
