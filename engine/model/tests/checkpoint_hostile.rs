//! Damaged and hostile files: whatever the bytes, opening and loading end with a value or a one-line error.

mod checkpoint_support;

use std::fs;
use std::sync::LazyLock;

use checkpoint_support::*;
use model::arch::deepseek_v32::config::Config;
use model::arch::deepseek_v32::tensors::{Inventory, Weights};
use model::checkpoint::Checkpoint;
use model::synthetic::Dims;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// One good file, read once: header length, header and data.
static GOOD: LazyLock<Vec<u8>> = LazyLock::new(|| fs::read(tiny().path().join("model.safetensors")).expect("read"));

/// Goes as far as the files allow.
fn use_folder(folder: &TempDir) -> Result<(), String> {
    let checkpoint = Checkpoint::open(folder.path()).map_err(|error| chain(&error))?;
    let touched: usize =
        checkpoint.tensors().map(|tensor| tensor.bytes().last().map_or(0, |&byte| byte as usize)).sum();
    std::hint::black_box(touched);
    let config = Config::from_json(checkpoint.config()).map_err(|error| chain(&error))?;
    Inventory::take(&checkpoint, &config);
    Weights::load(&checkpoint, &config).map(drop).map_err(|error| chain(&error))
}

fn with_weights(bytes: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config.json"), Dims::tiny().config_json().to_string()).expect("written");
    fs::write(folder.path().join("model.safetensors"), bytes).expect("written");
    folder
}

fn with_header(length: u64, header: &[u8], data: &[u8]) -> TempDir {
    with_weights(&[&length.to_le_bytes()[..], header, data].concat())
}

#[track_caller]
fn assert_one_line(result: Result<(), String>) {
    if let Err(message) = result {
        assert_says(&message, &[]);
        assert!(message.len() < 2000, "{} bytes of message", message.len());
    }
}

#[test]
fn the_unspoilt_file_loads() {
    assert_eq!(use_folder(&with_weights(&GOOD)), Ok(()));
}

#[test]
fn any_claimed_header_length_is_refused_quietly() {
    for length in [0, 1, 7, 1 << 20, 99_999_999, 100_000_001, 1 << 62, 1 << 63, u64::MAX - 8, u64::MAX] {
        let message = use_folder(&with_header(length, b"{}", b"")).expect_err("no header has that length");
        assert_says(&message, &["model.safetensors"]);
    }
}

#[test]
fn offsets_that_overflow_are_refused() {
    // Seven tensors of 2^61 bytes and one that ends just below 2^64: each is consistent by itself.
    let step = 1u64 << 61;
    let mut header = serde_json::Map::new();
    for i in 0..8u64 {
        let size = if i == 7 { step - 1 } else { step };
        let offsets = [i * step, i * step + size];
        header.insert(i.to_string(), json!({"dtype": "U8", "shape": [size], "data_offsets": offsets}));
    }
    let header = serde_json::to_vec(&header).expect("serialisable");
    assert_says(
        &use_folder(&with_header(header.len() as u64, &header, b"")).expect_err("overflows"),
        &["model.safetensors"],
    );
}

#[test]
fn names_and_types_with_line_breaks_stay_on_one_line() {
    for header in [
        r#"{"a\nb": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}"#,
        r#"{"a": {"dtype": "U\n8", "shape": [2], "data_offsets": [0, 2]}}"#,
        r#"{"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 2], "x\n": 1}}"#,
        r#"{"a": {"dtype": "U8", "shape": [18446744073709551615, 3], "data_offsets": [0, 2]}}"#,
        r#"{"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}"#,
        r#"{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "a": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]}}"#,
        "[]",
        "\u{0}",
    ] {
        let message = use_folder(&with_header(header.len() as u64, header.as_bytes(), b"xx")).expect_err(header);
        assert_says(&message, &["model.safetensors"]);
    }
}

fn header_bytes() -> usize {
    u64::from_le_bytes(GOOD[..8].try_into().expect("eight bytes")) as usize
}

/// Replaces, at `path` chosen by `pick`, one value inside a JSON document.
fn mutate(value: &mut Value, mut pick: usize, new: Value) {
    let mut place = value;
    loop {
        let children = match place {
            Value::Object(map) => map.len(),
            Value::Array(list) => list.len(),
            _ => 0,
        };
        if children == 0 {
            break;
        }
        let i = pick % children;
        pick /= children;
        place = match place {
            Value::Object(map) => map.values_mut().nth(i).expect("counted"),
            Value::Array(list) => &mut list[i],
            _ => unreachable!("it has children"),
        };
        if pick % 7 == 1 {
            break;
        }
    }
    *place = new;
}

fn any_json() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u32..64).prop_map(|bit| json!(1u64 << bit)),
        (0u64..600).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        proptest::sample::select(vec!["yarn", "default", "fp8", "e4m3", "F8_E4M3", "BF16", "F32", "I64", "F4"])
            .prop_map(Value::from),
        proptest::collection::vec(any::<u64>(), 0..4).prop_map(Value::from),
        Just(json!({})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spoilt_header_bytes_never_panic(
        spoils in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        in_length in any::<bool>(),
    ) {
        let mut bytes = GOOD.clone();
        let end = if in_length { 8 } else { 8 + header_bytes() };
        for (at, byte) in spoils {
            bytes[at.index(end)] = byte;
        }
        assert_one_line(use_folder(&with_weights(&bytes)));
    }

    #[test]
    fn spoilt_header_values_never_panic(edits in proptest::collection::vec((any::<usize>(), any_json()), 1..3)) {
        let end = 8 + header_bytes();
        let mut header: Value = serde_json::from_slice(&GOOD[8..end]).expect("a header");
        for (pick, new) in edits {
            mutate(&mut header, pick, new);
        }
        let header = header.to_string();
        assert_one_line(use_folder(&with_header(header.len() as u64, header.as_bytes(), &GOOD[end..])));
    }

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let message = use_folder(&with_weights(&bytes)).expect_err("random bytes are no model");
        assert_says(&message, &["model.safetensors"]);
    }

    #[test]
    fn cut_and_extended_files_never_panic(at in any::<proptest::sample::Index>(), more in 0usize..3) {
        let mut bytes = GOOD.clone();
        bytes.truncate(at.index(GOOD.len()));
        bytes.extend(vec![0x20; more]);
        assert_one_line(use_folder(&with_weights(&bytes)));
    }

    #[test]
    fn spoilt_configurations_never_panic(edits in proptest::collection::vec((any::<usize>(), any_json()), 1..4)) {
        let mut config = Dims::tiny().config_json();
        for (pick, new) in edits {
            mutate(&mut config, pick, new);
        }
        let folder = with_weights(&GOOD);
        fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
        assert_one_line(use_folder(&folder));
    }
}
