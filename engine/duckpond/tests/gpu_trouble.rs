//! A GPU that cannot be used, or that fails: one clear line, and with `--stage0 auto` the processors do the work in the same numeric mode.
//!
//! Driver and compiler are stand-ins, two libraries of C that the program loads as it loads NVIDIA's: `stand_ins/*.c` say what the environment
//! makes them do. Left out: what only kernels that compute can show.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use common::{Ran, Scratch, is_stats, run};

const QUESTION: &str = "What is 1234 + 567?";

/// The folder with both libraries, built once.
fn stand_ins() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder for a test");
        std::fs::create_dir(folder.path().join("old")).expect("a folder in it");
        for (source, library, define) in [
            ("driver.c", "libcuda.so", "-DNEW"),
            ("nvrtc.c", "libnvrtc.so.13", "-DNEW"),
            ("driver.c", "old/libcuda.so", "-DOLD"),
        ] {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_ins").join(source);
            let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
            let built = Command::new(compiler)
                .args(["-shared", "-fPIC", "-O1", define, "-o"])
                .arg(folder.path().join(library))
                .arg(source)
                .output()
                .expect("a C compiler, as Rust's linker needs");
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        folder
    });
    folder.path()
}

/// Runs the program with the stand-ins and what shall go wrong.
fn with(settings: &[(&str, &str)], arguments: &[&str]) -> Ran {
    let scratch = Scratch::new();
    let mut command = scratch.command(arguments);
    command.env("LD_LIBRARY_PATH", stand_ins()).envs(settings.iter().copied());
    run(&mut command)
}

/// Everything that can go wrong before the first token, with the line that says so.
fn troubles() -> Vec<(Vec<(&'static str, &'static str)>, &'static str)> {
    vec![
        (
            vec![("STAND_IN_BROKEN", "1")],
            "the NVIDIA driver does not start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (as the test asked for)",
        ),
        (vec![("STAND_IN_NONE", "1")], "the NVIDIA driver finds no GPU"),
        (vec![("STAND_IN_CAPABILITY", "75")], "Stand-in has compute capability 7.5, 8.0 or later is needed"),
        (
            vec![("STAND_IN_DRIVER", "11040")],
            "the NVIDIA driver serves CUDA 11.4, programs of NVRTC 12.8 need CUDA 12.0; install a newer driver",
        ),
        (
            vec![("STAND_IN_NVRTC", "13")],
            "the NVIDIA driver serves CUDA 12.8, programs of NVRTC 13.8 need CUDA 13.0; install a newer driver",
        ),
        (vec![("STAND_IN_CAPABILITY", "120")], "NVRTC 12.8 cannot compile for sm_120; install NVRTC 12.8 or later"),
        (
            vec![("STAND_IN_COMPILES", "0")],
            "does not compile for sm_90 with NVRTC 12.8: rows.cu(9): error: as the test asked for",
        ),
        (
            vec![("STAND_IN_SHARED", "49152")],
            "kernel linear_many needs 65536 bytes of shared memory in a block, Stand-in allows 49152",
        ),
        (vec![("STAND_IN_FREE", "1000000")], "bytes of GPU memory needed, 1000000 free"),
        (vec![("STAND_IN_ALLOCATES", "1000000")], "the model's weights: "),
    ]
}

#[test]
fn a_gpu_that_is_asked_for_and_cannot_be_used_is_refused_in_one_line() {
    for (settings, expected) in troubles() {
        let ran = with(&settings, &["generate", "--stage0", "cuda", QUESTION]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{settings:?}: {}", ran.stderr);
        let lines: Vec<&str> = ran.stderr.lines().collect();
        assert!(
            lines.len() == 1 && lines[0].starts_with("duckpond: ") && lines[0].contains(expected),
            "{settings:?}: {lines:?} does not say {expected:?}"
        );
    }
}

#[test]
fn a_driver_without_a_function_that_is_needed_is_refused_before_it_is_called() {
    let old = [("LD_LIBRARY_PATH", stand_ins().join("old"))];
    let run_with = |stage: &str| {
        let scratch = Scratch::new();
        let mut command = scratch.command(&["generate", "--stage0", stage, "--max-tokens", "2", "What is 1 + 1?"]);
        run(command.envs(old.iter().map(|(name, path)| (*name, path))))
    };
    let why = "the NVIDIA driver does not start: its library has no cuLaunchKernelEx; install a newer driver";
    let refused = run_with("cuda");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains(why) && refused.stderr.lines().count() == 1, "{}", refused.stderr);
    let answered = run_with("auto");
    assert_eq!(answered.code, Some(0), "{}", answered.stderr);
    assert!(!answered.stdout.is_empty() && !answered.stderr.contains("panicked"), "{}", answered.stderr);
}

#[test]
fn auto_says_once_why_the_processors_run_and_answers_all_the_same() {
    // A card was found, so the mode is the card's; the processors keep to it.
    let plain = Scratch::new().run(&["generate", "--numerics", "bf16", QUESTION]);
    plain.succeeded();
    for (settings, expected) in troubles() {
        let ran = with(&settings, &["generate", "--stage0", "auto", "--numerics", "bf16", QUESTION]);
        assert_eq!(ran.stdout, plain.stdout, "{settings:?}: {}", ran.stderr);
        let lines = ran.succeeded();
        // Where no card can be used at all nothing was wanted of it, and nothing is said.
        let card = !["STAND_IN_BROKEN", "STAND_IN_NONE"].contains(&settings[0].0) && settings[0].1 != "75";
        let warnings: Vec<&&str> =
            lines.iter().filter(|line| line.contains("stage 0 runs on the processors")).collect();
        assert_eq!(warnings.len(), usize::from(card), "{settings:?}: {lines:?}");
        assert!(
            warnings.iter().all(|line| line.contains(expected)),
            "{settings:?}: {lines:?} does not say {expected:?}"
        );
        assert_eq!(lines.len(), 1 + warnings.len(), "{lines:?}");
    }
}

#[test]
fn a_compiler_that_is_no_compiler_is_named() {
    let scratch = Scratch::new();
    // The driver's stand-in under the compiler's name.
    let folder = scratch.path("nvrtc");
    std::fs::create_dir(&folder).expect("below the scratch folder");
    std::fs::copy(stand_ins().join("libcuda.so"), folder.join("libnvrtc.so.13")).expect("it was built");
    let mut command = scratch.command(&["generate", "--stage0", "cuda", QUESTION]);
    command.env("LD_LIBRARY_PATH", stand_ins()).env("DUCKPOND_NVRTC", &folder);
    let ran = run(&mut command);
    let library = folder.join("libnvrtc.so.13");
    let expected = format!("{} has no nvrtcVersion: it is not the NVRTC of CUDA 12.8 or later\n", library.display());
    assert!(ran.stderr.ends_with(&expected) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    assert_eq!(ran.code, Some(1));
}

#[test]
fn a_missing_compiler_is_told_with_where_it_was_looked_for() {
    let scratch = Scratch::new();
    let driver = scratch.path("driver");
    std::fs::create_dir(&driver).expect("below the scratch folder");
    std::fs::copy(stand_ins().join("libcuda.so"), driver.join("libcuda.so")).expect("it was built");
    let mut command = scratch.command(&["generate", "--stage0", "cuda", QUESTION]);
    command.env("LD_LIBRARY_PATH", &driver).env("DUCKPOND_NVRTC", scratch.path("nowhere"));
    let ran = run(&mut command);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1), "{}", ran.stderr);
    // A machine with a real compiler finds that one, and its driver is the stand-in still.
    let real = host::cuda::probe().nvrtc.is_ok();
    let told = ran.stderr.contains(
        "no NVRTC (libnvrtc.so, CUDA 12.8 or later): install it, or name its folder in DUCKPOND_NVRTC; looked in ",
    ) && ran.stderr.contains("nowhere, libnvrtc.so.13");
    assert!(told || real, "{}", ran.stderr);
}

#[test]
fn an_error_that_stays_moves_the_request_to_the_processors_in_the_same_mode() {
    for numerics in ["exact", "bf16", "fp8"] {
        let plain = Scratch::new().run(&["generate", "--numerics", numerics, QUESTION]);
        let lines = plain.succeeded();
        let counts = |name: &str| -> usize {
            let field = lines[0].split(", ").find_map(|field| field.strip_prefix(name)).expect("the line of figures");
            field.trim().parse().expect("a number")
        };
        let (input, output) = (counts("input_len"), counts("output_len"));
        let ran = with(&[], &["generate", "--stage0", "auto", "--numerics", numerics, QUESTION]);
        assert_eq!(ran.stdout, plain.stdout, "{}", ran.stderr);
        let lines = ran.succeeded();
        let [ended, log, stats, moved] = lines[..] else { panic!("{lines:?}") };
        let why = "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)";
        assert!(ended.contains("the GPU stage ends") && ended.contains(why), "{ended}");
        let again = format!("the processors read {input} tokens again and go on");
        assert!(log.contains(" WARN ") && log.contains(why) && log.ends_with(&again), "{log}");
        assert!(is_stats(stats, input, output), "{stats}");
        assert_eq!(moved, "stage 0: the GPU failed in the middle; the processors went on");
    }
}

#[test]
fn an_error_that_stays_ends_the_request_where_nothing_but_the_gpu_was_allowed() {
    let ran = with(&[], &["generate", "--stage0", "cuda", QUESTION]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
    // The log has it, and the program's last word.
    let lines: Vec<&str> = ran.stderr.lines().collect();
    let [log, told] = lines[..] else { panic!("{lines:?}") };
    assert!(log.contains("the GPU stage ends") && log.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{log}");
    let expected =
        "duckpond: cannot run the model: stage 0: the GPU failed while launching rows: CUDA_ERROR_ILLEGAL_ADDRESS (";
    assert!(told.starts_with(expected), "{told}");
}

#[test]
fn the_doctor_tells_a_card_its_compiler_and_what_fits() {
    let ran = with(&[("STAND_IN_FREE", "20000000")], &["doctor"]);
    ran.succeeded();
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[0], "gpu          Stand-in, sm_90, driver 12.8");
    assert_eq!(lines[1], "gpu memory   8.6 GB, 20.0 MB free");
    assert!(lines[2].starts_with("nvrtc        12.8, "), "{}", lines[2]);
    for (line, mode) in lines[3..6].iter().zip(["exact", "bf16", "fp8"]) {
        assert!(line.starts_with(mode) && line.contains("fits") && line.contains("caches of "), "{line}");
    }
    let ran = with(&[("STAND_IN_NONE", "1")], &["doctor"]);
    ran.succeeded();
    assert!(ran.stdout.starts_with("gpu          not used: the NVIDIA driver finds no GPU\n"), "{}", ran.stdout);
}
