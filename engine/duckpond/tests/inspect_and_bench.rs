//! `duckpond inspect` and `duckpond bench` on Duckling, and the texts of help.

mod common;

use common::{Scratch, duckling};
use serde_json::Value;

fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no line {name} in {text}")).trim_start()[name.len()..].trim_start()
}

#[test]
fn inspect_tells_sizes_and_shares() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["inspect", "--ducks", "4"]);
    assert_eq!(ran.succeeded(), Vec::<&str>::new());
    let of = |name| value(&ran.stdout, name);
    assert_eq!(of("checkpoint"), duckling().display().to_string());
    assert_eq!(of("architecture"), "DeepseekV32ForCausalLM");
    assert_eq!(of("layers"), "5 (1 dense) + 1 MTP layer");
    assert_eq!(of("units"), "32 a layer (4 slices × 8 experts)");
    assert_eq!(of("state"), "complete");
    // Five layers with 8 experts of three 256 × 256 matrices in fp8, each with four f32 scales.
    let experts = 5 * 8 * 3 * (256 * 256 + 16);
    assert_eq!(of("ducks"), format!("{:.1} MB in 5 layers", f64::from(experts) / 1e6));
    assert_eq!(of("per duck"), format!("{:.1} MB", f64::from(experts) / 4e6));
    let more = scratch.run(&["inspect", "--ducks", "3"]);
    more.succeeded();
    assert!(value(&more.stdout, "plan").starts_with("3 ducks"), "{}", more.stdout);
    let one = scratch.run(&["inspect", "--ducks", "1"]);
    one.succeeded();
    let plan = value(&one.stdout, "plan");
    assert!(plan.starts_with("1 duck, each 32 of a layer's 32 units in 1 node; "), "{plan}");
    scratch
        .run(&["inspect", "--ducks", "33"])
        .refused(2, "ducks is 33, but a layer of this model has 32 units: give 1 to 32");
}

#[test]
fn bench_reports_as_a_table_and_as_json() {
    let scratch = Scratch::new();
    let lengths = ["bench", "--prefill", "8,40", "--decode", "12", "--context", "4"];
    let ran = scratch.run(&[&lengths[..], &["--json"]].concat());
    ran.succeeded();
    let json: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    assert_eq!(
        [&json["prefill"][0]["tokens"], &json["prefill"][1]["tokens"], &json["decode"][0]["tokens"]],
        [8, 40, 12]
    );
    for figure in [&json["bandwidth_bytes_per_s"], &json["prefill"][0]["tokens_per_s"], &json["decode"][0]["median_ms"]]
    {
        assert!(figure.as_f64().is_some_and(|f| f > 0.0), "{json}");
    }
    let active = json["active_bytes"].as_u64().expect("a number");
    let size = std::fs::metadata(duckling().join("model.safetensors")).expect("it ships with the code").len();
    assert!(active > 1_000_000 && active < size / 2, "{active} of {size}");
    let table = scratch.run(&lengths);
    table.succeeded();
    assert!(table.stdout.contains("median/read") && table.stdout.lines().count() >= 8, "{}", table.stdout);
}

#[test]
fn bench_makes_weights_of_its_own_and_removes_them() {
    let scratch = Scratch::new();
    let folder = scratch.path("temporary");
    std::fs::create_dir(&folder).expect("below the scratch folder");
    let flags = ["bench", "--synthetic", "--active-bytes", "200MiB", "--prefill", "4", "--decode", "3", "--json"];
    let mut command = scratch.command(&flags);
    let ran = common::run(command.env("TMPDIR", &folder).env_remove("DUCKPOND_MODEL"));
    ran.succeeded();
    let json: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    assert_eq!(json["model"], "synthetic");
    assert!(json["active_bytes"].as_u64().is_some_and(|bytes| bytes >= 200 << 20), "{json}");
    assert_eq!(std::fs::read_dir(&folder).expect("it exists").count(), 0, "nothing stays");
}

#[test]
fn bench_without_a_folder_for_weights_says_which_one_it_wanted() {
    let scratch = Scratch::new();
    let mut command = scratch.command(&["bench", "--synthetic", "--active-bytes", "200MiB"]);
    let ran = common::run(command.env("TMPDIR", "/nowhere"));
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (Some(1), "", 1), "{}", ran.stderr);
    let start = "duckpond: cannot make a folder for the synthetic model in /nowhere; name another with TMPDIR: ";
    assert!(ran.stderr.starts_with(start), "{}", ran.stderr);
}

#[test]
fn bench_refuses_what_cannot_be_measured_before_it_writes_anything() {
    let scratch = Scratch::new();
    let synthetic = |flags: &[&str]| {
        let mut command = scratch.command(&[&["bench", "--synthetic"], flags].concat());
        // Nothing could be written there.
        common::run(command.env("TMPDIR", "/nowhere").env_remove("DUCKPOND_MODEL"))
    };
    synthetic(&["--ducks", "129"]).refused(2, "ducks is 129, but a layer of this model has 128 units: give 1 to 128");
    let long = synthetic(&["--prefill", "9000"]);
    long.refused(2, "--prefill is 9000, expected at most 8192 tokens (8192 positions)");
    let small = synthetic(&["--active-bytes", "1MB"]);
    assert_eq!((small.code, small.stderr.lines().count()), (Some(2), 1));
    assert!(small.stderr.starts_with("duckpond: --active-bytes is 1000000, expected at least "), "{}", small.stderr);
}

#[test]
fn bench_measures_kernels() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["bench", "kernels", "--bytes", "400MB", "--threads", "1", "--json"]);
    assert_eq!(ran.succeeded(), Vec::<&str>::new());
    let json: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    for figure in ["read_gbps", "gemv_gbps", "gemv_to_read"] {
        for format in ["e4m3", "fp9"] {
            assert!(json[figure][format]["1"].as_f64().is_some_and(|f| f > 0.0), "{figure} {format}: {json}");
        }
    }
    for figure in ["lanes_to_signword", "e4m3_to_signword"] {
        assert!(json[figure].as_f64().is_some_and(|f| f > 0.0), "{figure}: {json}");
    }
    assert_eq!(json["two_to_one"].as_object().map(|o| o.len()), Some(2), "{json}");
    assert_eq!(json["batch16_to_peak"].as_object().map(|o| o.len()), Some(4), "{json}");
    assert!(json["machine"].as_str().is_some_and(|name| !name.is_empty()), "{json}");
}

#[test]
fn bench_measures_what_http_adds_to_the_same_answer() {
    let scratch = Scratch::new();
    let flags = ["bench", "serve", "Is 221 prime?", "--tokens", "12", "--rounds", "3"];
    let ran = scratch.run(&[&flags[..], &["--json"]].concat());
    assert_eq!(ran.succeeded(), Vec::<&str>::new());
    let json: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    assert_eq!([&json["tokens"], &json["rounds"]], [12, 3], "{json}");
    assert!(json["prompt_tokens"].as_u64().is_some_and(|n| n > 3), "{json}");
    for figure in ["engine_ms", "http_ms", "ratio"] {
        assert!(json[figure].as_f64().is_some_and(|f| f > 0.0), "{figure}: {json}");
    }
    assert!(json["added_ms"].is_f64() && json["added_first_ms"].is_f64(), "{json}");
    let table = scratch.run(&flags);
    table.succeeded();
    let names: Vec<&str> = table.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["model", "answer", "engine", "over", "added"]);
}

#[test]
fn bench_pond_carries_every_step_to_modelled_ducks_and_computes_none_itself() {
    let scratch = Scratch::new();
    let flags = ["bench", "pond", "--dims", "tiny", "--stage0", "cpu", "--ducks", "2", "--ports", "1"];
    let more = ["--duck-us", "200", "--tokens", "5", "--context", "3"];
    // On a machine that is busy the host may ask for results that are only late, or compute in place of a duck that seems gone; not every time.
    let measure = || {
        let ran = scratch.run(&[&flags[..], &more, &["--json"]].concat());
        if ran.stderr.contains("nodes that the host had to compute or give to others") {
            return None;
        }
        assert_eq!(ran.succeeded(), Vec::<&str>::new());
        Some(serde_json::from_str::<Value>(&ran.stdout).expect("it is JSON"))
    };
    let calm = |json: &Value| json["checks"]["asked"] == 0;
    let json = (0..9).filter_map(|_| measure()).find(calm).expect("a run without questions");
    for what in ["lost", "bad", "blocks"] {
        assert_eq!(json["checks"][what], 0, "{what}: {json}");
    }
    // Each duck has a slice of 128 columns in fp32: a frame of input for both, a frame of results and a verdict from each.
    assert_eq!([&json["setting"]["steps"], &json["setting"]["tokens"]], [4, 5], "{json}");
    let frames = json["frames"].as_array().expect("three kinds");
    for (kind, (frames, (count, bytes))) in frames.iter().zip([(1, 578), (2, 1116), (2, 172)]).enumerate() {
        assert_eq!([&frames["least"], &frames["most"], &frames["bytes"]], [count, count, bytes], "kind {kind}: {json}");
    }
    // The model itself: no frame was early.
    let micros = |of: &str| json[of]["median"].as_f64().expect("a time");
    assert!(micros("model_us") > 200.0 && micros("step_us") > micros("model_us"), "{json}");
    assert!(json["tokens_per_second"].as_f64().is_some_and(|f| f > 0.0 && f < 1e6 / (4.0 * 200.0)), "{json}");
    let table = scratch.run(&[&flags[..], &more].concat());
    table.succeeded();
    let names: Vec<&str> = table.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["model", "ducks", "frames", "speed", "token", "step", "out", "in", "checks"]);
}

#[test]
fn bench_pond_refuses_what_it_cannot_measure() {
    let scratch = Scratch::new();
    let ports = scratch.run(&["bench", "pond", "--ducks", "2", "--ports", "3"]);
    ports.refused(2, "--ports is 3, expected at most 2, one for each duck");
    let large = scratch.run(&["bench", "pond", "--stage0", "cpu"]);
    let why = "the modelled pond cannot be measured: processors would need all of its weights: give --stage0 cuda, or --dims wide";
    large.refused(1, why);
    let slow = scratch.run(&[
        "bench",
        "pond",
        "--dims",
        "tiny",
        "--stage0",
        "cpu",
        "--ducks",
        "2",
        "--ports",
        "1",
        "--duck-bandwidth",
        "1e-300",
    ]);
    assert_eq!(slow.code, Some(1), "{}", slow.stderr);
    assert!(slow.stderr.contains("give a --duck-bandwidth of more GB/s"), "{}", slow.stderr);
}

#[test]
fn bench_kernels_does_not_take_more_memory_than_there_is() {
    let ran = Scratch::new().run(&["bench", "kernels", "--bytes", "1000000GB"]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (Some(2), "", 1), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("duckpond: --bytes is 1000000000000000, expected at most "), "{}", ran.stderr);
}

#[test]
fn defaults_in_help_can_be_typed() {
    let ran = Scratch::new().run(&["bench", "--help"]);
    assert!(ran.stdout.contains("[default: 64,512]"), "{}", ran.stdout);
}

#[test]
fn control_characters_in_a_folders_name_do_not_reach_the_terminal() {
    let scratch = Scratch::new();
    let folder = scratch.path("a\u{1b}[31mb");
    std::os::unix::fs::symlink(duckling(), &folder).expect("below the scratch folder");
    let ran = scratch.run(&["inspect", "a\u{1b}[31mb"]);
    ran.succeeded();
    assert_eq!(value(&ran.stdout, "checkpoint"), "a\\u{1b}[31mb");
}

#[test]
fn help_and_version_are_results() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["--version"]);
    assert_eq!((ran.succeeded(), ran.stdout.as_str()), (vec![], concat!("duckpond ", env!("CARGO_PKG_VERSION"), "\n")));
    for command in ["generate", "chat", "inspect", "convert", "verify", "bench", "config"] {
        let ran = scratch.run(&[command, "--help"]);
        assert_eq!(ran.succeeded(), Vec::<&str>::new());
        assert!(ran.stdout.contains("--config <FILE>"), "{}", ran.stdout);
        assert!(!ran.stdout.contains('\u{1b}'), "colours on a pipe");
    }
}
