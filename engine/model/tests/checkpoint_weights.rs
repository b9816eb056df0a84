//! Loading weights against a configuration: where everything goes, and which message each fault gives.

mod checkpoint_support;

use checkpoint_support::*;
use model::arch::deepseek_v32::tensors::{Inventory, Mlp, Part, Weights, specs};
use model::checkpoint::{Checkpoint, CheckpointError, DType, e4m3_to_f32};
use model::synthetic::Dims;
use serde_json::json;

const Q_A: &str = "model.layers.0.self_attn.q_a_proj.weight";
const Q_A_SCALE: &str = "model.layers.0.self_attn.q_a_proj.weight_scale_inv";

#[test]
fn duckling_loads_complete() {
    let checkpoint = Checkpoint::open(&duckling()).expect("opens");
    let config = config(&checkpoint);
    let weights = Weights::load(&checkpoint, &config).expect("loads");
    assert_eq!(weights.layers.len(), 5);
    assert!(matches!(weights.layers[0].mlp, Mlp::Dense(_)));
    let Mlp::Moe(moe) = &weights.layers[1].mlp else { panic!("layer 1 has experts") };
    assert_eq!((moe.experts.len(), moe.gate.rows, moe.bias.len()), (8, 8, 8));
    let mtp = weights.mtp.expect("has a multi-token prediction layer");
    assert_eq!((mtp.projection.rows, mtp.projection.cols), (256, 512));
    assert!(mtp.embed.data.bytes() == weights.embed.data.bytes(), "published as a copy");
    let inventory = Inventory::take(&checkpoint, &config);
    assert_eq!((inventory.faults, inventory.unused), (vec![], vec![]));
    let bytes: usize = checkpoint.tensors().map(|tensor| tensor.bytes().len()).sum();
    assert_eq!(inventory.host_bytes + inventory.expert_bytes.iter().sum::<u64>(), bytes as u64);
    let expert = 3 * (256 * 256 + 2 * 2 * 4);
    assert_eq!(inventory.expert_bytes, [0, 8 * expert, 8 * expert, 8 * expert, 8 * expert, 8 * expert]);
}

#[test]
fn the_published_model_has_its_published_size() {
    let config =
        model::arch::deepseek_v32::config::Config::from_json(&Dims::deepseek_v32().config_json()).expect("valid");
    let specs = specs(&config);
    let scales = specs.iter().filter(|spec| spec.dtypes[0] == DType::F8E4M3).count();
    assert_eq!(specs.len() + scales, 92_425);
    let bytes: u64 = specs.iter().map(|spec| spec.published_bytes()).sum();
    assert_eq!((bytes as f64 / 1e8).round(), 6895.0, "689.5 GB, found {bytes}");
    let routed: u64 = specs
        .iter()
        .filter(|spec| matches!(spec.part, Part::Experts { .. }))
        .map(|spec| spec.shape.iter().product::<usize>() as u64)
        .sum();
    assert_eq!((routed as f64 / 1e8).round(), 6652.0, "665.2 G parameters, found {routed}");
}

#[test]
fn a_weight_and_its_scale_may_lie_in_different_files() {
    // Every tensor in a file of its own.
    let folder = synthetic(&Dims::tiny(), 1);
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let file = |name: &str| checkpoint.tensor(name).expect("present").file().to_path_buf();
    assert_ne!(file(Q_A), file(Q_A_SCALE));
    Weights::load(&checkpoint, &config(&checkpoint)).expect("loads");
}

#[test]
fn a_cut_last_tile_has_its_own_scale() {
    // As in V3.2: 512 + 64 rows are four and a half tiles.
    let dims = Dims { kv_lora: 512, rope: 64, index_dim: 64, hidden: 200, ..Dims::tiny() };
    let folder = synthetic(&dims, u64::MAX);
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let weights = Weights::load(&checkpoint, &config(&checkpoint)).expect("loads");
    let kv_a = &weights.layers[0].attention.kv_a;
    let scale = kv_a.scale.as_ref().expect("quantised");
    assert_eq!((kv_a.rows, kv_a.cols, scale.rows(), scale.cols()), (576, 200, 5, 2));
    let values = kv_a.to_f32_vec();
    for (row, col) in [(0, 0), (127, 127), (128, 128), (511, 199), (512, 127), (512, 128), (575, 199)] {
        let code = kv_a.data.bytes()[row * 200 + col];
        let expected = e4m3_to_f32(code) * scale.get(row / 128, col / 128);
        assert_eq!(values[row * 200 + col], expected, "row {row}, column {col}");
    }
}

#[test]
fn a_checkpoint_without_quantisation_loads() {
    let folder = synthetic(&Dims { fp8: false, ..Dims::tiny() }, u64::MAX);
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let weights = Weights::load(&checkpoint, &config(&checkpoint)).expect("loads");
    let q_a = &weights.layers[0].attention.q_a;
    assert_eq!((q_a.dtype(), q_a.scale.is_none()), (DType::BF16, true));
    assert_eq!(q_a.to_f32_vec()[..3], q_a.data.to_f32_vec().expect("bf16")[..3]);
}

#[test]
fn synthetic_values_are_finite_and_near_the_asked_size() {
    let folder = synthetic(&Dims { hidden: 512, ..Dims::tiny() }, u64::MAX);
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let weights = Weights::load(&checkpoint, &config(&checkpoint)).expect("loads");
    let gain = |matrix: &model::checkpoint::Matrix| {
        let values = matrix.to_f32_vec();
        let square: f64 = values.iter().map(|&v| f64::from(v).powi(2)).sum();
        (square / values.len() as f64 * matrix.cols as f64).sqrt()
    };
    let Mlp::Moe(moe) = &weights.layers[1].mlp else { panic!("layer 1 has experts") };
    for matrix in [&weights.lm_head, &weights.layers[0].attention.q_a, &moe.experts[3].down, &moe.gate] {
        let gain = gain(matrix);
        assert!((0.4..2.5).contains(&gain), "{}: {gain}", matrix.data.name());
    }
    let bytes = moe.experts[0].up.data.bytes();
    assert!(bytes.iter().all(|code| code & 0x7F != 0x7F && code & 0x78 != 0), "no NaN, no subnormal");
}

#[test]
fn synthetic_folders_depend_on_the_seed_alone_and_are_never_overwritten() {
    let write = |seed| {
        let folder = tempfile::tempdir().expect("a folder");
        let options =
            model::synthetic::Options { folder: folder.path(), dims: &Dims::tiny(), seed, shard_bytes: u64::MAX };
        model::synthetic::write(&options).expect("written");
        let again = model::synthetic::write(&options).expect_err("not empty");
        assert_says(&chain(&again), &["is not empty"]);
        std::fs::read(folder.path().join("model.safetensors")).expect("read")
    };
    let (a, b, c) = (write(1), write(1), write(2));
    assert!(a == b && a != c);
}

#[test]
fn copies_may_be_absent() {
    let folder = tiny();
    rename_tensor(folder.path(), "model.layers.2.embed_tokens.weight", "unknown.a");
    rename_tensor(folder.path(), "model.layers.2.shared_head.head.weight", "unknown.b");
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let weights = Weights::load(&checkpoint, &config(&checkpoint)).expect("loads");
    let mtp = weights.mtp.expect("present");
    assert_eq!(mtp.embed.data.name(), "model.embed_tokens.weight");
    assert_eq!(mtp.head.data.name(), "lm_head.weight");
    assert_eq!(Inventory::take(&checkpoint, &config(&checkpoint)).unused, ["unknown.a", "unknown.b"]);
}

#[test]
fn a_tied_head_is_the_embedding() {
    let folder = tiny();
    rename_tensor(folder.path(), "lm_head.weight", "unknown");
    assert_says(&chain(&load_error(folder.path())), &["tensor lm_head.weight is missing"]);
    edit_config(folder.path(), |config| config["tie_word_embeddings"] = json!(true));
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let weights = Weights::load(&checkpoint, &config(&checkpoint)).expect("loads");
    assert_eq!(weights.lm_head.data.name(), "model.embed_tokens.weight");
}

#[test]
fn a_missing_tensor_is_named_with_the_folder() {
    let folder = tiny();
    rename_tensor(folder.path(), Q_A, "unknown");
    let place = format!("tensor {Q_A} is missing from {} (expected shape [64, 128])", folder.path().display());
    assert_says(&chain(&load_error(folder.path())), &[&place]);
}

#[test]
fn a_missing_scale_says_which_weight_needs_it() {
    let folder = tiny();
    rename_tensor(folder.path(), Q_A_SCALE, "unknown");
    let message = chain(&load_error(folder.path()));
    assert_says(&message, &[Q_A_SCALE, "is missing from", "[1, 1]", "q_a_proj.weight in", "is F8_E4M3 and needs it"]);
}

#[test]
fn another_shape_is_named_with_both() {
    let folder = tiny();
    edit_tensor(folder.path(), Q_A, |entry, _| entry["shape"] = json!([128, 64]));
    let message = chain(&load_error(folder.path()));
    assert_says(&message, &["tensor", Q_A, "model.safetensors has shape [128, 64], expected [64, 128]"]);
}

#[test]
fn a_transposed_scale_is_refused() {
    let dims = Dims { intermediate: 384, ..Dims::tiny() };
    let folder = synthetic(&dims, u64::MAX);
    let name = "model.layers.0.mlp.up_proj.weight_scale_inv";
    edit_tensor(folder.path(), name, |entry, _| entry["shape"] = json!([1, 3]));
    assert_says(&chain(&load_error(folder.path())), &[name, "has shape [1, 3], expected [3, 1]"]);
}

#[test]
fn another_dtype_is_named_with_those_that_would_do() {
    for (name, dtype, expected) in [
        (Q_A, "I8", "has dtype I8, expected F8_E4M3 or BF16 or F32"),
        (Q_A, "F8_E5M2", "has dtype F8_E5M2, expected"),
        ("model.norm.weight", "F16", "has dtype F16, expected BF16 or F32"),
        ("model.embed_tokens.weight", "I16", "has dtype I16, expected BF16 or F32"),
        (Q_A_SCALE, "I32", "has dtype I32, expected F32"),
    ] {
        let folder = tiny();
        edit_tensor(folder.path(), name, |entry, _| entry["dtype"] = json!(dtype));
        assert_says(&chain(&load_error(folder.path())), &[name, "model.safetensors", expected]);
    }
}

#[test]
fn scales_that_are_no_positive_finite_numbers_are_named_with_their_place() {
    let dims = Dims { intermediate: 384, ..Dims::tiny() };
    let name = "model.layers.0.mlp.down_proj.weight_scale_inv";
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (0.0, "0"), (-0.0, "-0"), (-1.5, "-1.5")] {
        let folder = synthetic(&dims, u64::MAX);
        edit_tensor(folder.path(), name, |_, bytes| bytes[8..12].copy_from_slice(&value.to_le_bytes()));
        let fragment = format!("has the value {shown} at index [0, 2], expected a positive finite scale");
        assert_says(&chain(&load_error(folder.path())), &[name, "model.safetensors", &fragment]);
    }
}

#[test]
fn vectors_must_be_finite() {
    let folder = tiny();
    let name = "model.layers.1.mlp.gate.e_score_correction_bias";
    edit_tensor(folder.path(), name, |_, bytes| bytes[12..16].copy_from_slice(&f32::NAN.to_le_bytes()));
    assert_says(
        &chain(&load_error(folder.path())),
        &[name, "has the value NaN at index [3], expected a finite number"],
    );
}

#[test]
fn all_faults_are_found_and_the_first_is_shown() {
    let folder = tiny();
    rename_tensor(folder.path(), "model.embed_tokens.weight", "unknown.a");
    rename_tensor(folder.path(), "model.layers.1.mlp.experts.5.up_proj.weight", "unknown.b");
    edit_tensor(folder.path(), Q_A, |entry, _| entry["shape"] = json!([128, 64]));
    let error = load_error(folder.path());
    assert_says(&chain(&error), &["tensor model.embed_tokens.weight is missing", ", and 2 more faults"]);
    let CheckpointError::Tensors(faults) = error else { panic!("faults of tensors") };
    let names: Vec<_> = faults.iter().map(|fault| fault.name()).collect();
    assert_eq!(names, ["model.embed_tokens.weight", Q_A, "model.layers.1.mlp.experts.5.up_proj.weight"]);
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let inventory = Inventory::take(&checkpoint, &config(&checkpoint));
    assert_eq!(inventory.faults.len(), 3);
    assert_eq!(inventory.unused, ["unknown.a", "unknown.b"]);
}
