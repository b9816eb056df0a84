//! `duckpond convert` and `duckpond verify` on Duckling and on a model large enough to be interrupted in.

mod common;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use common::{Ran, Scratch, duckling, golden, names_in, run};
use model::synthetic::{self, Dims};

fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no line {name} in {text}")).trim_start()[name.len()..].trim_start()
}

fn convert(scratch: &Scratch, flags: &[&str]) -> Ran {
    let folder = duckling().display().to_string();
    scratch.run(&[&["convert", &folder, "pond"], flags].concat())
}

#[test]
fn a_converted_model_is_told_about_verified_and_shown() {
    let scratch = Scratch::new();
    let ran = convert(&scratch, &[]);
    assert_eq!(ran.succeeded(), Vec::<&str>::new());
    assert_eq!(value(&ran.stdout, "converted"), "pond");
    assert_eq!(value(&ran.stdout, "experts"), "e4m3 (every weight as in the checkpoint)");
    let files = names_in(&scratch.path("pond"));
    assert!(value(&ran.stdout, "files").starts_with(&format!("{} files with ", files.len())), "{}", ran.stdout);
    assert!(value(&ran.stdout, "files").ends_with(", 4 of them slices"), "{}", ran.stdout);
    assert!(files.contains(&"slice-03.duck".to_owned()), "{files:?}");

    let verified = scratch.run(&["verify", "pond"]);
    assert_eq!(verified.succeeded(), Vec::<&str>::new());
    assert_eq!(value(&verified.stdout, "state"), "undamaged");
    // Five layers and the one for drafts, four slices, eight experts.
    assert!(value(&verified.stdout, "files").contains(" blocks, in "), "{}", verified.stdout);

    let shown = scratch.run(&["inspect", "pond"]);
    shown.succeeded();
    assert_eq!(value(&shown.stdout, "converted"), "experts as e4m3 (every weight as in the checkpoint)");
    assert_eq!(value(&shown.stdout, "units"), "32 a layer (4 slices × 8 experts)");
    assert_eq!(value(&shown.stdout, "state"), "complete");

    let answered = scratch.run(&["generate", "--model", "pond", "What is 1234 + 567?"]);
    answered.succeeded();
    assert_eq!(answered.stdout, golden("What is 1234 + 567?").0 + "\n");

    let again = convert(&scratch, &[]);
    again.succeeded();
    assert!(value(&again.stdout, "written").starts_with("nothing, everything was there; "), "{}", again.stdout);
}

#[test]
fn a_format_can_be_chosen_and_one_that_cannot_be_is_refused_in_one_line() {
    let scratch = Scratch::new();
    let ran = convert(&scratch, &["--format", "fp9", "--threads", "1"]);
    ran.succeeded();
    assert_eq!(value(&ran.stdout, "experts"), "fp9 (every weight as in the checkpoint)");
    let other = convert(&scratch, &["--format", "e4m3"]);
    other.refused(
        1,
        "cannot convert the checkpoint: pond holds a conversion with expert format fp9, expected e4m3; name another folder",
    );
    let wide = convert(&Scratch::new(), &["--format", "bf16"]);
    assert_eq!((wide.code, wide.stdout.as_str(), wide.stderr.lines().count()), (Some(1), "", 1));
    assert!(wide.stderr.contains("cannot be stored as bf16"), "{}", wide.stderr);
    let unknown = convert(&scratch, &["--format", "fp4"]);
    assert_eq!((unknown.code, unknown.stderr.lines().count()), (Some(2), 1), "{}", unknown.stderr);
}

#[test]
fn every_damaged_file_is_listed() {
    let scratch = Scratch::new();
    convert(&scratch, &[]).succeeded();
    let pond = scratch.path("pond");
    let slice = pond.join("slice-01.duck");
    let mut bytes = std::fs::read(&slice).expect("it was written");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&slice, bytes).expect("it is ours");
    std::fs::remove_file(pond.join("slice-02.duck")).expect("it was written");
    std::fs::write(pond.join("slice-09.duck"), "x").expect("the folder is ours");
    let ran = scratch.run(&["verify", "pond"]);
    let faults: Vec<&str> = ran.stdout.lines().filter_map(|line| line.strip_prefix("fault ")).map(str::trim).collect();
    assert_eq!(faults.len(), 3, "{}", ran.stdout);
    assert!(faults[0].starts_with("slice-01.duck: the "), "{faults:?}");
    assert_eq!(faults[1..], ["slice-02.duck is missing", "slice-09.duck is not in manifest.json"]);
    assert_eq!(value(&ran.stdout, "state"), "damaged");
    let told = "duckpond: the converted folder pond is damaged: 3 faults; convert the checkpoint again\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), told));
}

#[test]
fn folders_that_are_no_conversion() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("empty")).expect("below the scratch folder");
    scratch.run(&["verify", "empty"]).refused(
        1,
        "cannot verify: empty has no manifest.json: it is no converted model, or its conversion was interrupted",
    );
    scratch.write("other/file", "");
    let folder = duckling().display().to_string();
    scratch.run(&["convert", &folder, "other"]).refused(
        1,
        "cannot convert the checkpoint: other holds file and no conversion; name a folder that does not exist yet, or an empty one",
    );
}

#[test]
fn an_interrupted_conversion_goes_on_where_it_stopped() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    let dims = Dims { hidden: 2048, moe_intermediate: 1024, experts: 32, layers: 5, ..Dims::tiny() };
    let options = synthetic::Options { folder: &source, dims: &dims, seed: 1, shard_bytes: 1 << 30 };
    synthetic::write(&options).expect("the folder is new");
    let command = ["convert", "source", "pond", "--threads", "1"];
    let mut interrupted = false;
    for name in ["INT", "TERM", "HUP"] {
        let mut child = scratch.command(&command).stdout(Stdio::null()).spawn().expect("the program starts");
        while !has_partial(&scratch.path("pond")) && child.try_wait().expect("it is ours").is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        // From the second round on such a file is there from the start.
        std::thread::sleep(Duration::from_millis(200));
        common::signal(&child, name);
        let output = child.wait_with_output().expect("the program ends");
        if !output.status.success() {
            interrupted = true;
            let stderr = String::from_utf8(output.stderr).expect("UTF-8");
            assert_eq!(stderr, "duckpond: stopped; the same command goes on from here\n");
            assert!(matches!(output.status.code(), Some(129 | 130 | 143)), "{:?}", output.status);
            let early = scratch.run(&["verify", "pond"]);
            assert_eq!(early.code, Some(1), "it must not pass for complete: {}", early.stdout);
        }
    }
    assert!(interrupted, "the model is too small for this test");
    let ran = run(&mut scratch.command(&command));
    ran.succeeded();
    scratch.run(&["verify", "pond"]).succeeded();
}

fn has_partial(folder: &Path) -> bool {
    folder.is_dir() && names_in(folder).iter().any(|name| name.ends_with(".duck.partial"))
}
