//! How fast a conversion is, beside how fast the same disk reads and writes the same bytes.
//!
//! `cargo run --release -p model --example convert_speed -- FOLDER [GIGABYTES]` writes a random fp8 checkpoint (2 GB) below FOLDER, then
//! three times: reads it with nothing cached, writes as much to one file and syncs it, converts it with nothing cached (syncs included).
//! Prints the rates and conversion's share of the slower one.

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use model::checkpoint::Checkpoint;
use model::converted::{Options, convert, verify};
use model::synthetic::{self, Dims};

const RUNS: usize = 3;
const BUFFER: usize = 8 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: convert_speed FOLDER [GIGABYTES]")?;
    let gigabytes: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    let root = tempfile::tempdir_in(folder)?;
    let source = root.path().join("source");
    // Experts of half of V3.2's hidden size and width: 11 MB each.
    let experts = ((gigabytes * 1e9 / 11.0e6 / 4.0).round() as usize).max(1) * 4;
    let dims = Dims {
        hidden: 3584,
        moe_intermediate: 1024,
        experts,
        layers: 1,
        dense_layers: 0,
        mtp_layers: 0,
        ..Dims::tiny()
    };
    synthetic::write(&synthetic::Options { folder: &source, dims: &dims, seed: 1, shard_bytes: 500 << 20 })?;
    let files = Checkpoint::open(&source)?.files().to_vec();
    for file in &files {
        File::open(file)?.sync_all()?;
    }
    for run in 1..=RUNS {
        let bytes = files.iter().map(|file| fs::metadata(file).map(|m| m.len())).sum::<Result<u64, _>>()? as f64;
        forget(&files)?;
        let read = bytes / timed(|| files.iter().try_for_each(|file| read_all(file)))?;
        let plain = root.path().join("plain");
        let write = bytes / timed(|| write_all(&plain, bytes as u64))?;
        fs::remove_file(&plain)?;
        forget(&files)?;
        let out = root.path().join("out");
        let mut written = 0;
        let seconds = timed(|| {
            let report = convert(&Checkpoint::open(&source)?, &out, &Options::default(), &|_| {})?;
            written = report.bytes;
            Ok(())
        })?;
        let convert = written as f64 / seconds;
        let share = convert / read.min(write);
        let mb = |rate: f64| rate / 1e6;
        println!(
            "run {run}: read {:.0} MB/s, write {:.0} MB/s, convert {:.0} MB/s, {share:.2} of the slower; peak memory {} MB",
            mb(read),
            mb(write),
            mb(convert),
            peak_memory()? >> 20,
        );
        let seconds = timed(|| match verify(&out, &|_| {})?.faults.is_empty() {
            true => Ok(()),
            false => Err("the conversion does not verify".into()),
        })?;
        println!("       verify (cached) {:.0} MB/s", mb(written as f64 / seconds));
        fs::remove_dir_all(&out)?;
    }
    Ok(())
}

fn timed(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Drops the files from the page cache.
fn forget(files: &[std::path::PathBuf]) -> Result<(), Box<dyn Error>> {
    for path in files {
        rustix::fs::fadvise(File::open(path)?, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

fn read_all(path: &Path) -> Result<(), Box<dyn Error>> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; BUFFER];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

fn write_all(path: &Path, mut left: u64) -> Result<(), Box<dyn Error>> {
    let mut file = File::create(path)?;
    let buffer: Vec<u8> = (0..BUFFER).map(|i| (i * 31 % 251) as u8).collect();
    while left > 0 {
        let n = left.min(BUFFER as u64);
        file.write_all(&buffer[..n as usize])?;
        left -= n;
    }
    Ok(file.sync_all()?)
}

/// Most bytes that the process has had in memory, mapped pages included.
fn peak_memory() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}
