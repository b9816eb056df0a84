//! Tokenizer files that are hostile, odd or not there: each is refused in one line that names the file and the cause, and none
//! makes the program panic, wait or allocate without bound.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use model::tokenizer::{Tokenizer, TokenizerError};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Duckling's, which is as a tokenizer should be.
static GOOD: LazyLock<Value> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/duckling/tokenizer.json");
    serde_json::from_slice(&fs::read(path).expect("the repository has it")).expect("well formed")
});

fn edited(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, TokenizerError> {
    let mut value = GOOD.clone();
    change(&mut value);
    Tokenizer::from_json(value.to_string().as_bytes(), "tokenizer.json".as_ref(), None)
}

/// The tokenizer with `new` at `place`, such as `/model/dropout`; a field that is not there yet is made.
fn with(place: &str, new: Value) -> Result<Tokenizer, TokenizerError> {
    edited(|value| {
        let (parent, name) = place.rsplit_once('/').expect("a pointer");
        match value.pointer_mut(parent).expect("the place exists") {
            Value::Array(list) => list[name.parse::<usize>().expect("an index")] = new,
            Value::Object(fields) => drop(fields.insert(name.to_owned(), new)),
            other => panic!("{parent} is {other}"),
        }
    })
}

#[track_caller]
fn message(result: Result<Tokenizer, TokenizerError>) -> String {
    let message = result.expect_err("the file is spoilt").to_string();
    assert!(!message.contains(char::is_control), "{message:?}");
    assert!(message.len() < 2000, "{} bytes of message", message.len());
    message
}

#[track_caller]
fn refused(result: Result<Tokenizer, TokenizerError>, expected: &str) {
    assert_eq!(message(result), format!("tokenizer.json: {expected}"));
}

#[test]
fn settings_that_would_change_tokens_are_refused_by_name() {
    for (place, value, expected) in [
        ("/model/dropout", json!(0.9), "model.dropout is 0.9, expected none"),
        ("/model/unk_token", json!("<unk>"), "model.unk_token is \"<unk>\", expected none"),
        ("/model/continuing_subword_prefix", json!("##"), "model.continuing_subword_prefix is \"##\", expected none"),
        ("/model/end_of_word_suffix", json!("</w>"), "model.end_of_word_suffix is \"</w>\", expected none"),
        ("/model/fuse_unk", json!(true), "model.fuse_unk is true, expected false"),
        ("/model/byte_fallback", json!(true), "model.byte_fallback is true, expected false"),
        ("/model/ignore_merges", json!(true), "model.ignore_merges is true, expected false"),
        ("/model/type", json!("Unigram"), "model.type is \"Unigram\", expected \"BPE\""),
        ("/model/cache\n", json!(7), "model.cache\\n is 7, expected no setting of that name"),
        ("/model/vocab", json!([]), "model.vocab is [], expected an object of tokens and ids"),
        ("/model/merges", json!({}), "model.merges is {}, expected a list of pairs"),
        ("/model", json!("BPE"), "model is \"BPE\", expected an object"),
        ("/version", json!("2.0"), "version is \"2.0\", expected \"1.0\""),
        ("/extra", json!(null), "extra is null, expected no setting of that name"),
        (
            "/normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            "normalizer is Precompiled, expected none or an empty Sequence",
        ),
        (
            "/normalizer",
            json!({"type": "Sequence", "normalizers": [{"type": "NFC"}]}),
            "normalizer is Sequence, expected none or an empty Sequence",
        ),
        ("/added_tokens/2/lstrip", json!(true), "added_tokens[2].lstrip of \"<｜User｜>\" is true, expected false"),
        ("/added_tokens/2/content", json!(""), "added_tokens[2].content is \"\", expected some text"),
    ] {
        refused(with(place, value), &format!("{expected}: only plain byte-level BPE is supported"));
    }
    let long = message(with("/added_tokens/2/content", json!("x".repeat(2 << 20))));
    assert!(long.contains("the text of all added_tokens is 2097"), "{long}");
}

#[test]
fn splitters_that_lose_text_or_break_the_library_are_refused() {
    const KINDS: &str = "expected Split, Digits or ByteLevel, of which one ByteLevel, the last";
    let steps = |steps: Value| with("/pre_tokenizer/pretokenizers", steps);
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false});
    for (result, expected) in [
        (with("/pre_tokenizer", json!(null)), format!("pre_tokenizer is null, {KINDS}")),
        (
            with("/pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
            format!("pre_tokenizer is FixedLength, {KINDS}"),
        ),
        (
            steps(json!([{"type": "FixedLength", "length": 0}, byte_level])),
            format!("pre_tokenizer.pretokenizers[0] is FixedLength, {KINDS}"),
        ),
        (steps(json!([byte_level, byte_level])), format!("pre_tokenizer.pretokenizers[0] is ByteLevel, {KINDS}")),
        (
            steps(json!([{"type": "Digits", "individual_digits": true}])),
            format!("pre_tokenizer.pretokenizers[0] is Digits, {KINDS}"),
        ),
        (steps(json!([])), "pre_tokenizer.pretokenizers is [], expected a list of 1 to 8 steps".to_owned()),
        (
            with("/pre_tokenizer/pretokenizers/2/add_prefix_space", json!(true)),
            "pre_tokenizer.pretokenizers[2].add_prefix_space is true, expected false".to_owned(),
        ),
        (
            with("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed")),
            "pre_tokenizer.pretokenizers[0].behavior is \"Removed\", expected \"Isolated\"".to_owned(),
        ),
        (
            with("/pre_tokenizer/pretokenizers/0/invert", json!(true)),
            "pre_tokenizer.pretokenizers[0].invert is true, expected false".to_owned(),
        ),
    ] {
        refused(result, &format!("{expected}: only plain byte-level BPE is supported"));
    }
    // With this pattern the library panics as it splits "ab".
    let backwards = message(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!(r"(?<=\Ka)b|a")));
    let expected = r#"pretokenizers[0].pattern.Regex is "(?<=\\Ka)b|a", expected at most 1024 bytes"#;
    assert!(backwards.contains(expected), "{backwards}");
    let broken = message(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!("[")));
    assert!(broken.starts_with("tokenizer.json: not a usable tokenizer: "), "{broken}");
}

#[test]
fn patterns_that_match_nothing_lose_no_text() {
    for pattern in ["x*", "(?=a)", "(?:)", "a|", "(?!b)", r"\s*"] {
        let tokenizer = with("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!(pattern)).expect("harmless");
        for text in ["", "a", "xxaxb ä  a", "\u{1f986}x"] {
            let ids = tokenizer.encode(text).expect("valid text");
            assert_eq!(tokenizer.decode(&ids), text, "{pattern}");
        }
    }
}

/// Patterns within the bounds that compile to as much as they can.
#[test]
fn the_costliest_patterns_take_bounded_memory() {
    for pattern in [r"(?=(\w{9}){9})".repeat(2), format!("(?i:{})", r"\w".repeat(500)), r"(?=\w\w\w\w)".repeat(85)] {
        let step = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let mut steps = vec![step; 7];
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false}));
        if let Err(error) = with("/pre_tokenizer/pretokenizers", json!(steps)) {
            assert!(matches!(error, TokenizerError::Parse { .. }), "within the bounds, but {error}");
        }
    }
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it states the peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 1 << 20, "{peak} kB");
}

#[test]
fn padding_truncation_and_post_processor_are_not_obeyed() {
    let text = "a text that is longer than one token";
    let expected = edited(|_| {}).expect("unspoilt").encode(text).expect("valid text");
    let tokenizer = edited(|value| {
        value["truncation"] = json!({"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5});
        value["padding"] = json!({"strategy": {"Fixed": 4_000_000_000_u64}, "direction": "Right", "pad_to_multiple_of": 0,
            "pad_id": 0, "pad_type_id": 0, "pad_token": ""});
        let twice = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
        value["post_processor"] =
            json!({"type": "TemplateProcessing", "single": twice, "pair": twice, "special_tokens": {}});
    });
    assert_eq!(tokenizer.expect("all three are left out").encode(text).expect("valid text"), expected);
}

#[test]
fn ids_out_of_proportion_are_refused_before_anything_is_allocated() {
    // 512 words and 7 added tokens: ids below 2 x 519 + 4096.
    refused(
        with("/model/vocab/zz", json!(u32::MAX)),
        "token \"zz\" has id 4294967295, expected less than 5136 in a file of 520 tokens",
    );
    refused(
        with("/added_tokens/6/id", json!(5134)),
        "token \"<｜▁pad▁｜>\" has id 5134, expected less than 5134 in a file of 519 tokens",
    );
    assert_eq!(with("/model/vocab/zz", json!(5135)).expect("a hole is allowed").vocab_size(), 5136);
    for id in [json!(-1), json!(1.5), json!("7"), json!(null)] {
        let expected = format!("model.vocab[\"zz\"] is {id}, expected an id: only plain byte-level BPE is supported");
        refused(with("/model/vocab/zz", id), &expected);
    }
    refused(
        with("/model/vocab/zz", json!(1_u64 << 40)),
        "token \"zz\" has id 1099511627776, expected less than 5136 in a file \
        of 520 tokens",
    );
    assert!(message(with("/added_tokens/6/id", json!(-1))).contains("not a usable tokenizer: added_tokens: "));
}

#[test]
fn two_tokens_with_one_id_are_refused_by_both_names() {
    let taken = &GOOD["model"]["vocab"]["A"];
    refused(
        with("/model/vocab/zz", taken.clone()),
        &format!("tokens \"A\" and \"zz\" both have id {taken}, expected one id for each token"),
    );
    // The library numbers new added tokens from the number of words, whether or not a word has that id.
    let collision = edited(|value| {
        value["model"]["vocab"]["zz"] = json!(513);
        let mut token = value["added_tokens"][0].clone();
        (token["id"], token["content"]) = (json!(513), json!("<new>"));
        value["added_tokens"].as_array_mut().expect("a list").push(token);
    });
    refused(collision, "tokens \"<new>\" and \"zz\" both have id 513, expected one id for each token");
}

#[test]
fn bytes_without_a_token_are_refused() {
    let ending = "has no token in model.vocab that is not an added one, expected one for each of the 256 bytes";
    let without = |letter: &str| {
        edited(|value| {
            let vocab = value["model"]["vocab"].as_object_mut().expect("an object");
            let id = vocab.remove(letter).expect("it is there");
            vocab.insert("filler".to_owned(), id);
            value["model"]["merges"] = json!([]);
        })
    };
    refused(without("A"), &format!("byte 0x41 (written 'A') {ending}"));
    refused(without("Ġ"), &format!("byte 0x20 (written 'Ġ') {ending}"));
    let id = &GOOD["model"]["vocab"]["Q"];
    let as_marker = edited(|value| {
        (value["added_tokens"][6]["id"], value["added_tokens"][6]["content"]) = (id.clone(), json!("Q"));
    });
    refused(as_marker, &format!("byte 0x51 (written 'Q') {ending}"));
}

#[test]
fn merges_that_break_the_library_or_make_markers_are_refused() {
    let merge = |merge: Value| edited(|value| value["model"]["merges"][3] = merge);
    // The longest token twice: the library has no room for it.
    let longest = GOOD["model"]["vocab"].as_object().expect("an object").keys().max_by_key(|name| name.len());
    let longest = longest.expect("there are tokens");
    refused(
        merge(json!([longest, longest])),
        &format!("model.merges[3] needs the token \"{longest}{longest}\", which is not in model.vocab"),
    );
    refused(merge(json!(["A", "~zz"])), "model.merges[3] needs the token \"~zz\", which is not in model.vocab");
    for odd in [json!(["A"]), json!(["A", "B", "C"]), json!("AB"), json!("A B C"), json!(5), json!(["A", 5])] {
        let expected = format!("model.merges[3] is {odd}, expected two tokens");
        refused(merge(odd), &format!("{expected}: only plain byte-level BPE is supported"));
    }
    let marker = edited(|value| {
        value["model"]["vocab"]["~~"] = json!(512);
        value["model"]["merges"][3] = json!(["~", "~"]);
        let mut token = value["added_tokens"][0].clone();
        (token["id"], token["content"]) = (json!(512), json!("~~"));
        value["added_tokens"].as_array_mut().expect("a list").push(token);
    });
    refused(marker, "model.merges[3] makes the added token \"~~\", expected added tokens to come from no merge");
}

#[test]
fn merges_in_the_older_spelling_load() {
    let text = "The quick duck says quack";
    let expected = edited(|_| {}).expect("unspoilt").encode(text).expect("valid text");
    let older = edited(|value| {
        let lines = value["model"]["merges"].as_array().expect("a list").iter();
        let lines = lines.map(|pair| json!(format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap())));
        value["model"]["merges"] = [json!("#version: 0.2")].into_iter().chain(lines).collect();
    });
    assert_eq!(older.expect("the same").encode(text).expect("valid text"), expected);
}

#[test]
fn a_length_in_bytes_bounds_the_tokens_from_below() {
    let tokenizer = edited(|_| {}).expect("unspoilt");
    let longest = (0..512).map(|id| tokenizer.token_bytes(id).len()).max().expect("there are tokens");
    assert_eq!(tokenizer.least_tokens(0), 0);
    assert_eq!(tokenizer.least_tokens(1), 1);
    assert_eq!(tokenizer.least_tokens(longest), 1);
    assert_eq!(tokenizer.least_tokens(longest + 1), 2);
    assert_eq!(tokenizer.least_tokens(usize::MAX), usize::MAX.div_ceil(longest));
}

/// Opens a folder whose file `name` is made by `make` and whose other file is good.
fn open_with(name: &str, make: impl FnOnce(&Path)) -> (String, Result<Tokenizer, TokenizerError>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    if name != "tokenizer.json" {
        fs::write(folder.path().join("tokenizer.json"), GOOD.to_string()).expect("writable");
    }
    make(&path);
    (path.display().to_string(), Tokenizer::open(folder.path()))
}

const FILES: [&str; 2] = ["tokenizer.json", "tokenizer_config.json"];

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    for name in FILES {
        let makers: [fn(&Path); 3] = [
            |path| {
                let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo is there");
                assert!(made.success());
            },
            |path| fs::create_dir(path).expect("writable"),
            |path| std::os::unix::fs::symlink("/dev/zero", path).expect("writable"),
        ];
        for make in makers {
            let (path, result) = open_with(name, make);
            assert_eq!(message(result), format!("{path} is not a regular file"));
        }
        let (path, result) = open_with(name, |path| std::os::unix::fs::symlink("nowhere", path).expect("writable"));
        assert_eq!(message(result), format!("cannot read {path}"));
    }
}

#[test]
fn huge_files_are_refused_unread() {
    for (name, limit) in FILES.into_iter().zip([128_u64 << 20, 16 << 20]) {
        let make = |path: &Path| {
            fs::File::create(path).and_then(|file| file.set_len(limit + 1)).expect("a hole costs nothing");
        };
        let (path, result) = open_with(name, make);
        assert_eq!(message(result), format!("{path} has {} bytes, more than the {limit} that are read", limit + 1));
    }
}

#[test]
fn a_git_lfs_pointer_says_what_to_do() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7847602\n";
    for name in FILES {
        let (path, result) = open_with(name, |path| fs::write(path, pointer).expect("writable"));
        assert_eq!(
            message(result),
            format!(
                "{path} is a Git LFS pointer and not the file itself: fetch the file with `git lfs pull` in its \
                 repository"
            )
        );
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u32..64).prop_map(|bit| json!(1_u64 << bit)),
        (0_u64..6000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        proptest::sample::select(vec!["ByteLevel", "Split", "Removed", "Digits", "Sequence", "BPE", "A", "<｜User｜>"])
            .prop_map(Value::from),
        "[a\\\\K(?=)*|+{1,2}\\[\\]w^<!:]{0,10}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
    ]
}

/// Replaces one value; `picks` choose the way down, and where it ends.
fn mutate(place: &mut Value, picks: &[usize], new: Value) {
    let Some((pick, picks)) = picks.split_first() else {
        *place = new;
        return;
    };
    match place {
        Value::Object(fields) if !fields.is_empty() => {
            let index = pick % fields.len();
            mutate(fields.values_mut().nth(index).expect("counted"), picks, new);
        }
        Value::Array(list) if !list.is_empty() => {
            let index = pick % list.len();
            mutate(&mut list[index], picks, new);
        }
        leaf => *leaf = new,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// What still loads keeps every text whole.
    #[test]
    fn spoilt_values_never_panic_and_never_lose_text(
        edits in prop::collection::vec((prop::collection::vec(any::<usize>(), 1..6), any_json()), 1..3),
        text in ".{0,20}",
    ) {
        let result = edited(|value| edits.into_iter().for_each(|(picks, new)| mutate(value, &picks, new)));
        match result {
            Err(error) => { message(Err(error)); }
            Ok(tokenizer) => for ids in [tokenizer.encode(&text), tokenizer.encode_plain(&text)] {
                let ids = ids.expect("valid text");
                prop_assert_eq!(tokenizer.decode(&ids), text.as_str());
                prop_assert!(tokenizer.least_tokens(text.len()) <= ids.len());
            }
        }
    }

    #[test]
    fn any_pattern_that_loads_loses_no_text(pattern in "[aä\\\\wK(?=!i:)*|+{1,2}\\[\\]^.$]{0,12}", text in "[aäwb \n🦆]{0,12}") {
        if let Ok(tokenizer) = with("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!(pattern)) {
            let ids = tokenizer.encode(&text).expect("valid text");
            prop_assert_eq!(tokenizer.decode(&ids), text);
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        message(Tokenizer::from_json(&bytes, "tokenizer.json".as_ref(), None));
    }
}
