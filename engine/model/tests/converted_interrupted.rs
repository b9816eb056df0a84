//! Conversions that are stopped: by a kill anywhere, by a disk that is full, by a limit. The next run ends with the same files, and
//! no final name ever has half a file.

mod checkpoint_support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use checkpoint_support::*;
use model::checkpoint::Checkpoint;
use model::converted::{ConvertError, Options, Phase, Progress, Report, convert, verify};
use model::synthetic::Dims;

/// What [`the_child`] is told by its environment.
const SOURCE: &str = "CONVERTED_TEST_SOURCE";
const OUT: &str = "CONVERTED_TEST_OUT";
const ABORT_AFTER: &str = "CONVERTED_TEST_ABORT_AFTER";
const FILLER: &str = "CONVERTED_TEST_FILLER";

fn options() -> Options {
    // A durable point after every block, where the disk keeps up.
    Options { threads: 2, durable_every: 1, ..Options::default() }
}

fn run(source: &Path, out: &Path, progress: &(dyn Fn(Progress) + Sync)) -> Result<Report, ConvertError> {
    convert(&Checkpoint::open(source).expect("opens"), out, &options(), progress)
}

/// Not a test of its own: the process that the others start and that does not come to its end. Without orders it does nothing.
#[test]
fn the_child() {
    let (Some(source), Some(out)) = (std::env::var_os(SOURCE), std::env::var_os(OUT)) else { return };
    let calls = AtomicU64::new(0);
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (abort, filler) = (number(ABORT_AFTER), std::env::var_os(FILLER));
    let result = run(Path::new(&source), Path::new(&out), &|progress| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        if abort == Some(call) {
            std::process::abort();
        }
        if let Some(filler) = filler.as_ref().filter(|_| progress.phase == Phase::Slices) {
            fill(Path::new(filler));
        }
    });
    match result {
        Ok(_) => println!("the child finished"),
        Err(error) => println!("the child failed: {}", chain(&error)),
    }
}

/// Takes what room there is.
fn fill(path: &Path) {
    let Ok(file) = fs::OpenOptions::new().create(true).append(true).open(path) else { return };
    while std::io::Write::write(&mut &file, &[1; 4096]).is_ok_and(|n| n > 0) {}
}

fn child(source: &Path, out: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "the_child", "--nocapture"]).env(SOURCE, source).env(OUT, out).stderr(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Name, content, and what would change if the file were written again.
fn files(folder: &Path) -> BTreeMap<String, (Vec<u8>, u64, i64, i64)> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            let metadata = entry.metadata().expect("its metadata");
            let content = fs::read(entry.path()).expect("its content");
            let name = entry.file_name().into_string().expect("a plain name");
            (name, (content, metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
        })
        .collect()
}

fn whole(source: &Path) -> (tempfile::TempDir, BTreeMap<String, Vec<u8>>) {
    let out = tempfile::tempdir().expect("a folder");
    run(source, out.path(), &|_| {}).expect("converts");
    let contents = files(out.path()).into_iter().map(|(name, file)| (name, file.0)).collect();
    (out, contents)
}

/// A source with many blocks.
fn source() -> tempfile::TempDir {
    synthetic(&Dims { layers: 3, experts: 12, ..Dims::tiny() }, 500_000)
}

#[test]
fn a_conversion_killed_anywhere_is_completed_by_the_next() {
    let source = source();
    let (_out, expected) = whole(source.path());
    let out = tempfile::tempdir().expect("a folder");
    let total = {
        let calls = AtomicU64::new(0);
        let again = tempfile::tempdir().expect("a folder");
        run(source.path(), again.path(), &|_| {
            calls.fetch_add(1, Ordering::Relaxed);
        })
        .expect("converts");
        calls.into_inner()
    };
    assert!(total > 36, "{total} calls");
    // Numbers below total without a pattern, the same ones every time; every third time the folder is begun anew.
    let mut killed = 0;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..12 {
        random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        let after = (random >> 33) % total;
        let before = files(out.path());
        let output = child(source.path(), out.path()).env(ABORT_AFTER, after.to_string()).output().expect("runs");
        if output.status.success() {
            // So much was there already that it came to its end before that call.
            let found: BTreeMap<_, _> = files(out.path()).into_iter().map(|(name, file)| (name, file.0)).collect();
            assert!(found == expected, "round {round}: {}", said(&output));
            fs::remove_dir_all(out.path()).expect("removed");
            continue;
        }
        killed += 1;
        let left = files(out.path());
        assert!(!left.contains_key("manifest.json"));
        for (name, file) in &left {
            if let Some(wanted) = expected.get(name) {
                assert!(file.0 == *wanted, "{name} has its final name and is not whole");
                assert!(before.get(name).is_none_or(|earlier| earlier == file), "{name} was written again");
            }
        }
        spoil_what_is_not_durable(out.path());
        if round % 3 == 2 {
            let report = run(source.path(), out.path(), &|_| {}).expect("is completed");
            assert!(report.written <= report.bytes);
            let found: BTreeMap<_, _> = files(out.path()).into_iter().map(|(name, file)| (name, file.0)).collect();
            assert!(found == expected, "round {round}");
            fs::remove_dir_all(out.path()).expect("removed");
        }
    }
    assert!(killed >= 6, "{killed} of 12 runs were killed");
}

/// What a power cut may do: everything behind the durable point becomes something else.
fn spoil_what_is_not_durable(out: &Path) {
    let Ok(journal) = fs::read(out.join("journal.json")) else { return };
    let journal: serde_json::Value = serde_json::from_slice(&journal).expect("a whole journal");
    let blocks = journal["blocks"].as_u64().expect("a number");
    let slices = journal["slices"].as_object().expect("an object");
    // Of a unit of 64 × 128 × 3 bytes and three scales.
    let stride = (64 * 128 * 3 + 64u64).next_multiple_of(4096);
    for slice in slices.keys() {
        let path = out.join(format!("slice-0{slice}.duck.partial"));
        let Ok(file) = fs::OpenOptions::new().write(true).open(path) else { continue };
        let (from, to) = (4096 + blocks * stride, file.metadata().expect("its size").len());
        if to > from {
            file.write_all_at(&vec![0xee; (to - from) as usize], from).expect("written");
        }
    }
}

/// Runs until some blocks are durable, then panics out of the conversion.
fn interrupted(source: &Path, blocks: u64) -> tempfile::TempDir {
    let out = tempfile::tempdir().expect("a folder");
    let stop = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(source, out.path(), &|progress| {
            let durable = || {
                let journal = fs::read(out.path().join("journal.json")).ok()?;
                serde_json::from_slice::<serde_json::Value>(&journal).ok()?["blocks"].as_u64()
            };
            if progress.phase == Phase::Slices {
                let patience = std::time::Instant::now();
                // A point is made while this waits; the first calls of the phase come before any.
                while durable() < Some(1) && progress.done > progress.total / 2 && patience.elapsed().as_secs() < 20 {
                    std::thread::yield_now();
                }
                if durable() >= Some(blocks) {
                    std::panic::panic_any("stopped by the test");
                }
            }
        })
    }));
    assert!(stop.is_err(), "it was to be stopped");
    out
}

#[test]
fn a_resumed_conversion_keeps_the_durable_blocks() {
    let source = source();
    let (_out, expected) = whole(source.path());
    let out = interrupted(source.path(), 1);
    let report = run(source.path(), out.path(), &|_| {}).expect("is completed");
    assert!(report.resumed_blocks >= 1, "nothing was kept");
    assert!(report.written < report.bytes);
    assert_eq!(report.rounding.weights, 36 * 3 * 128 * 128, "weights of the interrupted run count too");
    let found: BTreeMap<_, _> = files(out.path()).into_iter().map(|(name, file)| (name, file.0)).collect();
    assert!(found == expected);
}

#[test]
fn durable_blocks_that_are_damaged_are_written_anew() {
    let source = source();
    let (_out, expected) = whole(source.path());
    let out = interrupted(source.path(), 1);
    let path = out.path().join("slice-01.duck.partial");
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("a partial file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).expect("a durable block");
    file.write_all_at(&[byte[0] ^ 1], 5000).expect("written");
    let report = run(source.path(), out.path(), &|_| {}).expect("is completed");
    assert_eq!(report.resumed_blocks, 0);
    let found: BTreeMap<_, _> = files(out.path()).into_iter().map(|(name, file)| (name, file.0)).collect();
    assert!(found == expected);
}

#[test]
fn an_interrupted_folder_does_not_load_and_says_so() {
    let source = source();
    let out = interrupted(source.path(), 1);
    let error = verify(out.path(), &|_| {}).expect_err("not complete");
    assert_says(&chain(&error), &["no manifest.json", "interrupted"]);
    fs::write(out.path().join("journal.json"), "{").expect("written");
    let error = run(source.path(), out.path(), &|_| {}).expect_err("the journal is damaged");
    assert_says(&chain(&error), &["journal.json is damaged", "convert again"]);
}

#[test]
fn two_conversions_into_one_folder_do_not_meet() {
    let source = source();
    let out = tempfile::tempdir().expect("a folder");
    let met = AtomicU64::new(0);
    run(source.path(), out.path(), &|_| {
        if met.fetch_add(1, Ordering::Relaxed) == 0 {
            let error = run(source.path(), out.path(), &|_| {}).expect_err("the folder is taken");
            assert_says(&chain(&error), &["another conversion is writing to"]);
        }
    })
    .expect("the first one converts");
    assert_eq!(verify(out.path(), &|_| {}).expect("complete").faults, []);
}

fn assert_nothing_half_written(out: &Path, expected: &BTreeMap<String, Vec<u8>>) {
    for (name, file) in files(out) {
        if let Some(wanted) = expected.get(&name) {
            assert!(file.0 == *wanted, "{name} has its final name and is not whole");
        }
    }
    assert!(!out.join("manifest.json").exists());
}

#[test]
fn a_limit_on_file_sizes_ends_in_one_line_and_is_resumed_without_it() {
    let source = source();
    let (_out, expected) = whole(source.path());
    let out = tempfile::tempdir().expect("a folder");
    // Slice files have about 1 MB. Blocks of 512 bytes; the signal is ignored, so that writing fails instead.
    let order = child(source.path(), out.path());
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 900; exec \"$0\" \"$@\""]).arg(order.get_program());
    command.args(order.get_args()).env(SOURCE, source.path()).env(OUT, out.path()).stderr(Stdio::null());
    let output = command.output().expect("sh runs");
    let text = said(&output);
    let line = text.lines().find(|line| line.contains("the child failed")).unwrap_or_else(|| panic!("{text}"));
    assert_says(line, &["no room left while writing", ".partial", "run the same command again"]);
    assert_nothing_half_written(out.path(), &expected);
    run(source.path(), out.path(), &|_| {}).expect("is completed");
    let found: BTreeMap<_, _> = files(out.path()).into_iter().map(|(name, file)| (name, file.0)).collect();
    assert!(found == expected);
}

/// A file system in memory of so many bytes, mounted by whoever may: root, or a user in a namespace of their own. The child runs
/// in it and leaves what it wrote in `kept`.
fn in_small_file_system(
    command: &Command,
    mount: &Path,
    kept: &Path,
    bytes: u64,
    variables: &[(&str, PathBuf)],
) -> Output {
    const SCRIPT: &str = "mount -t tmpfs -o size=\"$1\" tmpfs \"$2\" || exit 99; keep=\"$3\"; from=\"$2\"; shift 3; \"$@\"; \
        rm -f \"$from/filler\"; cp -a \"$from/.\" \"$keep\"";
    let mut unshare = Command::new("unshare");
    let root = fs::metadata("/proc/self").expect("Linux").uid() == 0;
    unshare
        .args(["--mount"])
        .args((!root).then_some("--map-root-user"))
        .args(["sh", "-c", SCRIPT, "sh"])
        .arg(bytes.to_string());
    unshare.args([mount, kept]);
    unshare.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        value.into_iter().for_each(|value| {
            unshare.env(name, value);
        });
    }
    unshare.envs(variables.iter().map(|(name, value)| (name, value)));
    unshare.output().expect("unshare, of util-linux, runs")
}

#[test]
fn a_disk_that_fills_up_ends_in_one_line_and_is_resumed() {
    let source = source();
    let (_out, expected) = whole(source.path());
    let (mount, kept) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let out = mount.path().join("out");
    let filler = [(FILLER, mount.path().join("filler"))];
    let output = in_small_file_system(&child(source.path(), &out), mount.path(), kept.path(), 16 << 20, &filler);
    assert_ne!(
        output.status.code(),
        Some(99),
        "no file system could be mounted: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = said(&output);
    let line = text.lines().find(|line| line.contains("the child failed")).unwrap_or_else(|| panic!("{text}"));
    assert_says(line, &["no room left while writing", "No space left on device", "run the same command again"]);
    let out = kept.path().join("out");
    assert_nothing_half_written(&out, &expected);
    run(source.path(), &out, &|_| {}).expect("is completed elsewhere");
    let found: BTreeMap<_, _> = files(&out).into_iter().map(|(name, file)| (name, file.0)).collect();
    assert!(found == expected);
}

#[test]
fn a_disk_that_is_too_small_is_refused_at_once() {
    let source = source();
    let (mount, kept) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let out = mount.path().join("out");
    let output = in_small_file_system(&child(source.path(), &out), mount.path(), kept.path(), 1 << 20, &[]);
    assert_ne!(
        output.status.code(),
        Some(99),
        "no file system could be mounted: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = said(&output);
    assert!(text.contains("bytes free, and"), "{text}");
    assert_eq!(fs::read_dir(kept.path()).expect("a folder").count(), 0, "nothing was written");
}
