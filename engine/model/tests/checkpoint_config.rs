//! config.json: what a valid one gives, and which message each fault gives.

mod checkpoint_support;

use checkpoint_support::*;
use model::arch::config::ConfigError;
use model::arch::deepseek_v32::config::{Config, Quantization};
use model::arch::deepseek_v32::rope::Rope;
use model::arch::{Architecture, detect};
use model::checkpoint::Checkpoint;
use model::synthetic::Dims;
use safetensors::SafeTensors;
use serde_json::{Value, json};

fn valid() -> Value {
    Dims::deepseek_v32().config_json()
}

/// The message for a valid configuration with one key changed.
fn error_with(key: &str, value: Value) -> String {
    let mut config = valid();
    config[key] = value;
    chain(&Config::from_json(&config).expect_err(key))
}

#[test]
fn the_published_sizes_are_read() {
    let config = Config::from_json(&valid()).expect("valid");
    assert_eq!((config.hidden, config.layers, config.dense_layers, config.mtp_layers), (7168, 61, 3, 1));
    assert_eq!((config.experts, config.groups, config.groups_per_token, config.experts_per_token), (256, 8, 4, 8));
    assert_eq!((config.query_dim(), config.group_size(), config.slices(), config.all_layers()), (192, 32, 32, 62));
    assert_eq!((config.bos, &config.eos[..]), (0, &[1][..]));
    assert_eq!(config.quantization, Quantization::Fp8 { ue8m0: true });
    assert_eq!((config.eps, config.routed_scaling, config.norm_topk_prob), (1e-6, 2.5, true));
    assert_eq!((0..5).map(|layer| config.has_experts(layer)).collect::<Vec<_>>(), [false, false, false, true, true]);
}

#[test]
fn duckling_has_plain_rotary_positions() {
    let checkpoint = Checkpoint::open(&duckling()).expect("opens");
    let config = config(&checkpoint);
    assert_eq!(config.positions, Rope::Plain { theta: 10_000.0 });
    assert_eq!(config.quantization, Quantization::Fp8 { ue8m0: false });
    assert_eq!((config.rope_frequencies.len(), config.rope_frequencies[0]), (16, 1.0));
    assert_eq!(config.softmax_scale, 0.125, "1 / √(32 + 32)");
}

#[test]
fn rotary_frequencies_and_scale_are_those_of_transformers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/data/ops/ops.safetensors");
    let bytes = std::fs::read(path).expect("golden data");
    let golden = SafeTensors::deserialize(&bytes).expect("golden data");
    let values = |name: &str| -> Vec<f32> {
        let data = golden.tensor(name).expect("present").data();
        data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let config = Config::from_json(&valid()).expect("valid");
    assert_eq!(config.rope_frequencies, values("dsv32.inv_freq"));
    assert_eq!([config.softmax_scale], values("dsv32.softmax_scale")[..]);
}

#[test]
fn the_newer_spelling_gives_the_same_configuration() {
    let older = valid();
    let mut newer = valid();
    let keys = newer.as_object_mut().expect("an object");
    let mut rope = keys.remove("rope_scaling").expect("present");
    rope["rope_type"] = rope["type"].take();
    rope["rope_theta"] = keys.remove("rope_theta").expect("present");
    keys.insert("rope_parameters".into(), rope);
    let dtype = keys.remove("torch_dtype").expect("present");
    keys.insert("dtype".into(), dtype);
    assert_eq!(Config::from_json(&newer), Config::from_json(&older));
    newer["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 50000});
    assert_eq!(Config::from_json(&newer).expect("valid").positions, Rope::Plain { theta: 50_000.0 });
    newer["rope_scaling"] = older["rope_scaling"].clone();
    newer["rope_theta"] = json!(10000);
    assert_says(
        &chain(&Config::from_json(&newer).expect_err("two ropes")),
        &["rope_scaling is different from rope_parameters"],
    );
}

#[test]
fn optional_keys_have_their_defaults() {
    let mut config = valid();
    let keys = config.as_object_mut().expect("an object");
    for key in
        ["num_nextn_predict_layers", "tie_word_embeddings", "quantization_config", "attention_bias", "hidden_act"]
    {
        keys.remove(key).expect(key);
    }
    config["eos_token_id"] = json!([1, 7]);
    let config = Config::from_json(&config).expect("valid");
    assert_eq!((config.mtp_layers, config.tied_head, config.quantization), (0, false, Quantization::None));
    assert_eq!(config.eos, [1, 7]);
}

#[test]
fn another_architecture_is_refused_by_its_name() {
    let refusal = |config: Value| chain(&Config::from_json(&config).expect_err("not ours"));
    assert_eq!(
        refusal(json!({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"})),
        "architecture Qwen3MoeForCausalLM is not supported; supported: DeepseekV32ForCausalLM"
    );
    assert_says(&refusal(json!({"model_type": "llama"})), &["architecture llama is not supported"]);
    assert_says(&refusal(json!({"model_type": "a\nb"})), &["architecture a\\nb is not supported"]);
    for nothing in [json!({}), json!([]), json!(null), json!(3), json!({"architectures": [3]})] {
        assert_says(&refusal(nothing), &["names no architecture"]);
    }
    assert_eq!(detect(&json!({"model_type": "deepseek_v32"})), Ok(Architecture::DeepseekV32));
}

#[test]
fn every_required_key_is_named_when_missing_or_of_another_type() {
    const OPTIONAL: &[&str] = &[
        "architectures",
        "attention_bias",
        "hidden_act",
        "model_type",
        "moe_layer_freq",
        "num_key_value_heads",
        "num_nextn_predict_layers",
        "quantization_config",
        "rope_scaling",
        "scoring_func",
        "tie_word_embeddings",
        "topk_method",
        "torch_dtype",
    ];
    let mut required = 0;
    for key in valid().as_object().expect("an object").keys().filter(|key| !OPTIONAL.contains(&key.as_str())) {
        let mut config = valid();
        config.as_object_mut().expect("an object").remove(key);
        let missing = Config::from_json(&config).expect_err(key);
        assert_eq!(missing, ConfigError::Missing { key: key.clone() });
        for wrong in [json!("x"), json!({}), json!([[]])] {
            assert_says(&error_with(key, wrong), &[&format!("config.json: {key}: invalid type: ")]);
        }
        required += 1;
    }
    assert_eq!(required, 27);
}

#[test]
fn values_out_of_range_are_named_with_what_would_do() {
    for (key, value, fragment) in [
        ("hidden_size", json!(0), "hidden_size is 0, expected a whole number from 1 to 1048576"),
        ("hidden_size", json!(1u64 << 40), "hidden_size is 1099511627776, expected"),
        ("hidden_size", json!(-1), "hidden_size: invalid value: integer `-1`"),
        ("hidden_size", json!(7168.5), "hidden_size: invalid type: floating point"),
        ("num_hidden_layers", json!(2), "first_k_dense_replace is 3, expected at most num_hidden_layers, 2"),
        ("moe_intermediate_size", json!(2000), "moe_intermediate_size is 2000, expected a multiple of 64"),
        ("n_group", json!(7), "n_routed_experts is 256, expected a multiple of n_group, 7"),
        ("n_group", json!(256), "n_group is 256, expected at most half of n_routed_experts, 256"),
        ("topk_group", json!(9), "topk_group is 9, expected at most n_group, 8"),
        ("num_experts_per_tok", json!(129), "num_experts_per_tok is 129, expected at most 128"),
        ("qk_rope_head_dim", json!(63), "qk_rope_head_dim is 63, expected an even number"),
        ("index_head_dim", json!(32), "index_head_dim is 32, expected at least qk_rope_head_dim, 64"),
        ("n_shared_experts", json!(0), "n_shared_experts is 0"),
        ("num_nextn_predict_layers", json!(2), "num_nextn_predict_layers is 2, expected a whole number from 0 to 1"),
        ("rms_norm_eps", json!(-1e-6), "rms_norm_eps is -0.000001, expected a number from"),
        ("rope_theta", json!(1), "rope_theta is 1, expected a number from"),
        ("bos_token_id", json!(129280), "bos_token_id is 129280, expected less than vocab_size, 129280"),
        ("eos_token_id", json!([1, 129280]), "eos_token_id is 129280, expected less than"),
        ("eos_token_id", json!([]), "eos_token_id is an empty list, expected at least one token"),
        ("quantization_config", json!([]), "quantization_config should be an object, found an array"),
        ("rope_scaling", json!("yarn"), "rope_scaling should be an object, found a string"),
    ] {
        assert_says(&error_with(key, value), &["config.json: ", fragment]);
    }
}

#[test]
fn sizes_that_multiply_to_terabytes_are_refused() {
    let mut config = valid();
    config["vocab_size"] = json!(1 << 24);
    config["hidden_size"] = json!(1 << 20);
    assert_says(&chain(&Config::from_json(&config).expect_err("huge")), &["vocab_size x hidden_size is"]);
    let mut config = valid();
    config["num_hidden_layers"] = json!(4096);
    config["n_routed_experts"] = json!(4096);
    assert_says(&chain(&Config::from_json(&config).expect_err("huge")), &["n_routed_experts x num_hidden_layers is"]);
}

#[test]
fn computations_that_are_not_implemented_are_refused_by_name() {
    for (key, value, fragment) in [
        ("hidden_act", json!("gelu"), "hidden_act \"gelu\" is not supported; supported: \"silu\""),
        ("scoring_func", json!("softmax"), "scoring_func \"softmax\" is not supported; supported: \"sigmoid\""),
        ("topk_method", json!("greedy"), "topk_method \"greedy\" is not supported; supported: \"noaux_tc\""),
        ("moe_layer_freq", json!(2), "moe_layer_freq 2 is not supported; supported: 1"),
        ("attention_bias", json!(true), "attention_bias true is not supported; supported: false"),
        ("indexer_rope_interleave", json!(true), "indexer_rope_interleave true is not supported"),
        ("num_key_value_heads", json!(8), "num_key_value_heads 8 is not supported; supported: 128"),
    ] {
        assert_says(&error_with(key, value), &["config.json: ", fragment]);
    }
}

#[test]
fn other_ropes_and_quantisations_are_refused_by_name() {
    for (outer, inner, value, fragment) in [
        (
            "rope_scaling",
            "type",
            json!("linear"),
            "rope_scaling.type linear is not supported; supported: yarn, default",
        ),
        (
            "rope_scaling",
            "mscale",
            json!(0.707),
            "rope_scaling.mscale 0.707 is not supported; supported: the same as mscale_all_dim, 1",
        ),
        ("rope_scaling", "factor", json!(0.5), "rope_scaling.factor is 0.5, expected a number from 1 to"),
        ("rope_scaling", "beta_slow", json!(64), "rope_scaling.beta_slow is 64, expected at most beta_fast, 32"),
        ("rope_scaling", "type", json!(null), "rope_scaling.type is missing"),
        (
            "quantization_config",
            "quant_method",
            json!("awq"),
            "quantization_config.quant_method awq is not supported; supported: fp8",
        ),
        ("quantization_config", "fmt", json!("e5m2"), "quantization_config.fmt \"e5m2\" is not supported"),
        (
            "quantization_config",
            "weight_block_size",
            json!([64, 128]),
            "weight_block_size [64, 128] is not supported; supported: [128, 128]",
        ),
        ("quantization_config", "scale_fmt", json!("e8"), "quantization_config.scale_fmt e8 is not supported"),
    ] {
        let mut config = valid();
        config[outer][inner] = value;
        assert_says(&chain(&Config::from_json(&config).expect_err(fragment)), &["config.json: ", fragment]);
    }
}
