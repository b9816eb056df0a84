//! Whatever is wrong, it is one clear line on standard error and the right exit code: 2 for the request, 1 for a failure.

mod common;

use std::path::Path;

use common::{Ran, Scratch, duckling, run, run_with_input};
use serde_json::{Value, json};

/// `generate` with the model in `folder`.
fn generate(scratch: &Scratch, folder: &Path) -> Ran {
    run(scratch.command(&["generate", "你好"]).env("DUCKPOND_MODEL", folder))
}

/// Duckling's configuration with one key changed.
fn configuration(key: &str, value: Value) -> String {
    let text = std::fs::read_to_string(duckling().join("config.json")).expect("it ships with the code");
    let mut config: Value = serde_json::from_str(&text).expect("it is JSON");
    config[key] = value;
    config.to_string()
}

/// Duckling's weights: length of the header, the header, the bytes behind it.
fn weights() -> (Value, Vec<u8>) {
    let bytes = std::fs::read(duckling().join("model.safetensors")).expect("it ships with the code");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header = serde_json::from_slice(&bytes[8..8 + length]).expect("it is JSON");
    (header, bytes[8 + length..].to_vec())
}

fn safetensors(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let padded = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    [&(padded.len() as u64).to_le_bytes()[..], padded.as_bytes(), data].concat()
}

#[test]
fn numbers_of_ducks_that_cannot_be() {
    let scratch = Scratch::new();
    let whole = "expected a whole number from 1 to the number of units of the model (65535 at most)";
    scratch.run(&["generate", "--ducks", "0", "x"]).refused(2, &format!("ducks is 0 (from --ducks), {whole}"));
    scratch.run(&["generate", "--ducks", "-3", "x"]).refused(2, &format!("ducks is -3 (from --ducks), {whole}"));
    let too_many = "ducks is 33, but a layer of this model has 32 units: give 1 to 32";
    scratch.run(&["generate", "--ducks", "33", "x"]).refused(2, too_many);
    let variable = run(scratch.command(&["generate", "x"]).env("DUCKPOND_DUCKS", "0"));
    variable.refused(2, &format!("ducks is 0 (from DUCKPOND_DUCKS), {whole}"));
    scratch.write("duckpond.toml", "ducks = 0");
    scratch.run(&["generate", "x"]).refused(2, &format!("ducks is 0 (from duckpond.toml), {whole}"));
}

#[test]
fn command_lines_that_make_no_sense() {
    let scratch = Scratch::new();
    let cases: [(&[&str], &str); 7] = [
        (&["quack"], "unrecognized subcommand 'quack' tip: a similar subcommand exists: 'ducks'; see duckpond --help"),
        (
            &["generate"],
            "there is no prompt; give it as an argument, give `-` and write it to standard input, or name a file with --file",
        ),
        (
            &["generate", "--ducks", "many", "x"],
            "invalid value 'many' for '--ducks <N>': not a whole number; see duckpond --help",
        ),
        (
            &["generate", "--file", "a", "b"],
            "the argument '--file <FILE>' cannot be used with '[PROMPT]'; see duckpond --help",
        ),
        (
            &["generate", "--raw", "--think", "x"],
            "the argument '--raw' cannot be used with '--think'; see duckpond --help",
        ),
        (
            &["generate", "--numerics", "fp4", "x"],
            "numerics is \"fp4\" (from --numerics), expected auto, exact, bf16 or fp8",
        ),
        (
            &["bench", "--active-bytes", "much", "--synthetic"],
            "invalid value 'much' for '--active-bytes <SIZE>': unknown unit \"much\"; use kB, MB, GB, KiB, MiB or GiB; \
             see duckpond --help",
        ),
    ];
    for (arguments, line) in cases {
        scratch.run(arguments).refused(2, line);
    }
}

#[test]
fn no_command_at_all_shows_what_there_is() {
    let ran = Scratch::new().run(&[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("Usage: duckpond") && ran.stderr.contains("generate"), "{}", ran.stderr);
}

#[test]
fn prompts_that_are_none() {
    let scratch = Scratch::new();
    scratch.run(&["generate", ""]).refused(2, "the prompt on the command line is empty; give some text");
    let blank = run_with_input(scratch.command(&["generate", "-"]), b" \n");
    blank.refused(2, "the prompt on standard input is empty; give some text");
    scratch.write("empty.txt", "");
    scratch
        .run(&["generate", "--raw", "--file", "empty.txt"])
        .refused(2, "the prompt in empty.txt is empty; give some text");
    let missing = scratch.run(&["generate", "--file", "nowhere.txt"]);
    missing.refused(1, "cannot read the prompt in nowhere.txt: No such file or directory (os error 2)");
}

#[test]
fn prompts_that_are_not_text() {
    let scratch = Scratch::new();
    let hint = "convert it first, for instance with iconv";
    let ran = run_with_input(scratch.command(&["generate", "-"]), b"Is 9973\xff prime?");
    ran.refused(2, &format!("the prompt on standard input is not valid UTF-8: byte 7 is 0xff; {hint}"));
    scratch.write("latin1.txt", b"na\xefve");
    let ran = scratch.run(&["generate", "--file", "latin1.txt"]);
    ran.refused(2, &format!("the prompt in latin1.txt is not valid UTF-8: byte 2 is 0xef; {hint}"));
}

#[test]
fn a_prompt_that_does_not_fit_is_told_with_both_numbers() {
    let scratch = Scratch::new();
    // Raw digits are one token each.
    scratch.write("long.txt", "7".repeat(2049));
    let ran = scratch.run(&["generate", "--raw", "--file", "long.txt"]);
    ran.refused(2, "the prompt has 2049 tokens, but the model allows 2048 positions; make it shorter");
    let ran = scratch.run(&["generate", "--raw", "--max-len", "10", "77777777777"]);
    let line = "the prompt has 11 tokens, but max_len allows 10 positions; make it shorter or raise --max-len (the model allows 2048)";
    ran.refused(2, line);
    let ran = scratch.run(&["generate", "--max-len", "2049", "x"]);
    ran.refused(2, "max_len is 2049, but the model allows 2048 positions: give 0 to 2048");
}

#[test]
fn a_prompt_that_is_far_too_long_is_refused_before_its_tokens_are_counted() {
    let scratch = Scratch::new();
    scratch.write("huge.txt", "7".repeat(15 << 20));
    let began = std::time::Instant::now();
    let ran = scratch.run(&["generate", "--file", "huge.txt"]);
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (Some(2), "", 1));
    assert!(ran.stderr.starts_with("duckpond: the prompt has 15728640 bytes, which are "), "{}", ran.stderr);
    assert!(
        ran.stderr.ends_with(" tokens at least, but the model allows 2048 positions; make it shorter\n"),
        "{}",
        ran.stderr
    );
}

#[test]
fn numbers_that_would_silently_mean_something_else() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["generate", "--temperature", "1", "--top-p", "1e-50", "x"]);
    ran.refused(2, "top_p is 1e-50 (from --top-p), expected a number from 1e-30 to 1");
    let ran = scratch.run(&["generate", "--temperature", "1e-300", "x"]);
    ran.refused(2, "temperature is 1e-300 (from --temperature), expected 0, or a number from 1e-30 to 100");
}

#[test]
fn more_threads_than_a_machine_can_use_are_not_taken() {
    let ran = Scratch::new().run(&["generate", "--threads", "1024", "--max-tokens", "1", "x"]);
    let lines = ran.succeeded();
    assert!(lines[0].contains("WARN") && lines[0].contains("threads is 1024, but "), "{lines:?}");
}

#[test]
fn what_was_typed_is_not_repeated_at_length() {
    let scratch = Scratch::new();
    let long = "q".repeat(100_000);
    for arguments in [
        vec![long.as_str()],
        vec!["generate", "--ducks", &long, "x"],
        vec!["generate", "--numerics", &long, "x"],
        vec!["inspect", &long],
        vec!["generate", "--file", &long],
    ] {
        let ran = scratch.run(&arguments);
        assert_eq!((ran.stdout.as_str(), ran.stderr.lines().count()), ("", 1));
        assert!(ran.stderr.len() < 600 && ran.stderr.contains("qqq…"), "{}", ran.stderr);
    }
}

#[test]
fn configuration_files_that_are_none() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["config", "--config", "/dev/zero"]);
    ran.refused(2, "cannot read the configuration file /dev/zero: it is no regular file");
    scratch.write("long.toml", "#".repeat((1 << 20) + 1));
    let ran = scratch.run(&["config", "--config", "long.toml"]);
    ran.refused(
        2,
        "cannot read the configuration file long.toml: it has more than 1048576 bytes, the most that is read",
    );
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let scratch = Scratch::new();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let ran = run(scratch.command(&["--help"]).stdout(std::process::Stdio::from(full)));
    ran.refused(1, "cannot write to standard output: No space left on device (os error 28)");
}

#[test]
fn folders_that_are_no_checkpoint() {
    let scratch = Scratch::new();
    let ran = generate(&scratch, Path::new("nowhere"));
    ran.refused(1, "cannot load the model: checkpoint folder nowhere does not exist or is not a folder");
    std::fs::create_dir(scratch.path("empty")).expect("below the scratch folder");
    let ran = generate(&scratch, Path::new("empty"));
    ran.refused(1, "cannot load the model: checkpoint folder empty has no config.json");
}

#[test]
fn a_default_model_that_is_nowhere() {
    let scratch = Scratch::new();
    let program = scratch.path("duckpond");
    let built = env!("CARGO_BIN_EXE_duckpond");
    std::fs::hard_link(built, &program).or_else(|_| std::fs::copy(built, &program).map(|_| ())).expect("a second name");
    let ran = run(scratch.command_of(&program, &["generate", "x"]).env_remove("DUCKPOND_MODEL"));
    let (program, current) = (program.display(), scratch.path(""));
    let current = current.display().to_string();
    ran.refused(
        1,
        &format!(
            "the default model Duckling is not beside the program ({program}) and not above the current folder ({}); \
             name a checkpoint folder with --model or DUCKPOND_MODEL",
            current.trim_end_matches('/')
        ),
    );
}

#[test]
fn weights_that_are_cut_short() {
    let scratch = Scratch::new();
    let bytes = std::fs::read(duckling().join("model.safetensors")).expect("it ships with the code");
    let folder = scratch.duckling_with("model.safetensors", &bytes[..bytes.len() - 1000]);
    let ran = generate(&scratch, &folder);
    let (expected, found) = (bytes.len(), bytes.len() - 1000);
    ran.refused(
        1,
        &format!(
            "cannot load the model: {}/model.safetensors should have {expected} bytes by its header but has {found}: \
             the file is cut short, fetch it again",
            folder.display()
        ),
    );
}

#[test]
fn a_tensor_of_another_type() {
    let scratch = Scratch::new();
    let (mut header, data) = weights();
    let name = "model.layers.2.self_attn.q_a_proj.weight";
    assert_eq!(header[name]["dtype"], "F8_E4M3");
    header[name]["dtype"] = json!("I8");
    let folder = scratch.duckling_with("model.safetensors", safetensors(&header, &data));
    let ran = generate(&scratch, &folder);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    let start = format!(
        "duckpond: cannot load the model: tensor {name} in {}/model.safetensors has dtype I8, expected ",
        folder.display()
    );
    assert!(ran.stderr.starts_with(&start) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
}

#[test]
fn a_scale_that_is_no_number() {
    for (bits, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-1.0, "-1")] {
        let scratch = Scratch::new();
        let (header, mut data) = weights();
        let name = "model.layers.1.self_attn.o_proj.weight_scale_inv";
        let at = header[name]["data_offsets"][0].as_u64().expect("an offset") as usize;
        data[at + 4..at + 8].copy_from_slice(&bits.to_le_bytes());
        let folder = scratch.duckling_with("model.safetensors", safetensors(&header, &data));
        let line = format!(
            "cannot load the model: tensor {name} in {}/model.safetensors has the value {shown} at index [0, 1], \
             expected a positive finite scale",
            folder.display()
        );
        generate(&scratch, &folder).refused(1, &line);
    }
}

#[test]
fn a_missing_tensor_is_named_and_inspect_lists_all() {
    let scratch = Scratch::new();
    let (mut header, data) = weights();
    let names = ["model.norm.weight", "model.layers.3.mlp.experts.5.up_proj.weight"];
    for name in names {
        let tensors = header.as_object_mut().expect("an object");
        // The bytes must belong to some tensor.
        let tensor = tensors.remove(name).expect("Duckling has it");
        tensors.insert(format!("unknown.{name}"), tensor);
    }
    let folder = scratch.duckling_with("model.safetensors", safetensors(&header, &data));
    let ran = generate(&scratch, &folder);
    let shown = folder.display();
    let first = format!("tensor {} is missing from {shown} (expected shape [256])", names[0]);
    ran.refused(1, &format!("cannot load the model: {first}, and 1 more fault"));
    let ran = scratch.run(&["inspect", folder.to_str().expect("temporary names are ASCII")]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.stderr, format!("duckpond: the checkpoint {shown} cannot be run: 2 faults\n"));
    let faults: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("fault         ")).collect();
    let second = format!("tensor {} is missing from {shown} (expected shape [256, 256])", names[1]);
    assert_eq!(faults, [first, second]);
    assert!(ran.stdout.contains("state         cannot be run\n"), "{}", ran.stdout);
}

#[test]
fn another_architecture_is_named() {
    let scratch = Scratch::new();
    let folder = scratch.duckling_with("config.json", configuration("architectures", json!(["LlamaForCausalLM"])));
    let line = format!(
        "cannot load the model: {}: architecture LlamaForCausalLM is not supported; supported: DeepseekV32ForCausalLM",
        folder.display()
    );
    generate(&scratch, &folder).refused(1, &line);
    let ran = scratch.run(&["inspect", folder.to_str().expect("temporary names are ASCII")]);
    ran.refused(1, &line);
}

#[test]
fn a_vocabulary_that_does_not_fit_the_weights() {
    let scratch = Scratch::new();
    let folder = scratch.duckling_with("config.json", configuration("vocab_size", json!(1024)));
    let ran = generate(&scratch, &folder);
    let line = "tensor model.embed_tokens.weight in ";
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1));
    assert!(
        ran.stderr.contains(line) && ran.stderr.contains("has shape [512, 256], expected [1024, 256]"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_tokenizer_of_another_model() {
    let scratch = Scratch::new();
    let text = std::fs::read_to_string(duckling().join("tokenizer.json")).expect("it ships with the code");
    let mut tokenizer: Value = serde_json::from_str(&text).expect("it is JSON");
    let mut added = tokenizer["added_tokens"][0].clone();
    (added["id"], added["content"]) = (json!(512), json!("<one more>"));
    tokenizer["added_tokens"].as_array_mut().expect("a list").push(added);
    let folder = scratch.duckling_with("tokenizer.json", tokenizer.to_string());
    let line = format!(
        "the tokenizer in {} has 513 tokens, but vocab_size in config.json is 512: the files are not of one model",
        folder.display()
    );
    generate(&scratch, &folder).refused(1, &line);
    let broken = scratch.write("model/tokenizer.json", "{}");
    let ran = generate(&scratch, &folder);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1));
    let start = format!("duckpond: cannot use the model's tokenizer: {}: not a usable tokenizer: ", broken.display());
    assert!(ran.stderr.starts_with(&start), "{}", ran.stderr);
}

#[test]
fn lengths_that_cannot_be_measured() {
    let scratch = Scratch::new();
    scratch.run(&["bench", "--prefill", "0"]).refused(2, "--prefill is 0, expected 1 or more tokens");
    scratch.run(&["bench", "--decode", "1"]).refused(2, "--decode is 1, expected 2 or more tokens");
    let ran = scratch.run(&["bench", "--prefill", "64,4096"]);
    ran.refused(2, "--prefill is 4096, expected at most 2048 tokens (2048 positions)");
}
