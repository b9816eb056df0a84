//! The command line, and what its words mean.

use std::fs;
use std::path::Path;

use clap::{ArgAction, Parser, ValueEnum};
use duckd::HugePages;
use link::{Faults, Spec};
use wire::frozen::{ID, identity};
use wire::hex::decode;
use wire::key::PublicKey;

const AFTER: &str = "\
Examples:
  duckd --link eth:enp1s0 --key pond.pub
  duckd --link eth:enp1s0 --key pond.pub --memory 12G --huge-pages require --cores 4 --pin 0-3
  duckd --link udp:127.0.0.1:7001,127.0.0.1:7000 --key pond.pub --memory 256M --id test-1

Exit status: 0 stopped by TERM or INT, 1 it could not start, 2 wrong usage. A signed reset makes it start afresh in place.
Raw frames need CAP_NET_RAW; locking needs CAP_IPC_LOCK or a limit (ulimit -l) that is high enough.";

/// The duck as a Linux process: holds experts' weights and multiplies them for a host
#[derive(Debug, Parser)]
#[command(name = "duckd", version, after_help = AFTER)]
pub struct Args {
    /// Where the host is: eth:IFNAME, or udp:ADDR:PORT[,PEER:PORT...]
    #[arg(long, value_name = "SPEC")]
    pub link: Spec,

    /// The pond's public key: 64 hexadecimal digits, or a file with them
    #[arg(long, value_name = "HEX|FILE", value_parser = key)]
    pub key: PublicKey,

    /// What it is called, at most 16 bytes [default: the link's address as 12 hexadecimal digits]
    #[arg(long, value_name = "NAME", value_parser = id)]
    pub id: Option<[u8; ID]>,

    /// Bytes for blocks, such as 12G or 800M [default: what is available but for a reserve]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,

    /// Threads that compute [default: one for each processor]
    #[arg(long, value_name = "N")]
    pub cores: Option<usize>,

    /// Processors that these are pinned to, in turn, such as 0-3 or 0,2,4
    #[arg(long, value_name = "LIST", value_parser = processors)]
    pub pin: Option<Processors>,

    /// Whether blocks lie on large pages
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Pages::Auto)]
    pub huge_pages: Pages,

    /// Do not lock blocks into memory
    #[arg(long)]
    pub no_lock: bool,

    /// Hours in which all blocks are checked again while idle, 0 for never
    #[arg(long, value_name = "HOURS", default_value_t = 1)]
    pub scrub: u32,

    /// Longest frame to use, without the Ethernet header [default: the link's]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<usize>,

    /// For tests: frames to lose, double, reorder, damage or delay, such as loss=10,delay=200us
    #[arg(long, value_name = "SPEC")]
    pub faults: Option<Faults>,

    /// Say less: once for warnings and errors, twice for errors
    #[arg(short, long, action = ArgAction::Count)]
    pub quiet: u8,

    /// Say more: once for details, twice for everything
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// [`HugePages`] in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pages {
    /// Reserved ones of 1 GiB or 2 MiB if there are enough, else a request for transparent ones
    Auto,
    /// Reserved ones or failure
    Require,
    /// Ordinary ones
    Off,
}

impl From<Pages> for HugePages {
    fn from(pages: Pages) -> HugePages {
        match pages {
            Pages::Auto => HugePages::Auto,
            Pages::Require => HugePages::Require,
            Pages::Off => HugePages::Off,
        }
    }
}

/// Numbers of processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors(pub Vec<usize>);

/// Bytes of a file that may hold a key.
const LARGEST_KEY: u64 = 4096;

fn key(text: &str) -> Result<PublicKey, String> {
    if let Some(key) = decode(text) {
        return Ok(PublicKey(key));
    }
    let failed = |error: std::io::Error| format!("expected 64 hexadecimal digits or a file; file {text}: {error}");
    let found = fs::metadata(Path::new(text)).map_err(failed)?;
    if !found.is_file() || found.len() > LARGEST_KEY {
        return Err(format!("{text}: expected a regular file of 64 hexadecimal digits"));
    }
    let content = fs::read_to_string(Path::new(text)).map_err(failed)?;
    if content.starts_with("duckpond-secret-key") {
        return Err(format!(
            "{text} is the secret key, which must not leave the host; `duckpond key public` shows its public key"
        ));
    }
    decode(content.trim())
        .map(PublicKey)
        .ok_or_else(|| format!("{text}: expected 64 hexadecimal digits, found {} bytes", content.trim().len()))
}

fn id(text: &str) -> Result<[u8; ID], String> {
    identity(text).ok_or_else(|| format!("expected 1 to {ID} bytes, found {}", text.len()))
}

fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("expected a number of bytes such as 12G, 800M or 1048576, found {text:?}");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

fn processors(text: &str) -> Result<Processors, String> {
    let wrong = || format!("expected processors such as 0-3 or 0,2,4, found {text:?}");
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last] = [first, last].map(|n| n.parse::<usize>().ok().filter(|&n| n < 4_096));
        let (first, last) = first.zip(last).filter(|(f, l)| f <= l).ok_or_else(wrong)?;
        all.extend(first..=last);
    }
    Ok(Processors(all))
}

/// What large amounts of memory are rounded down to.
const GRAIN: u64 = 256 << 20;

/// Bytes for blocks when nothing was said: what the system can spare, or has reserved in large pages if that is more.
pub fn default_memory(meminfo: &str, pages: HugePages) -> u64 {
    let field = |name: &str| -> u64 {
        let line = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    let available = field("MemAvailable") << 10;
    let spare = available.saturating_sub((available / 16).max(512 << 20));
    let reserved = (field("HugePages_Free") * field("Hugepagesize")) << 10;
    let memory = if pages == HugePages::Off { spare } else { spare.max(reserved) };
    // What is free differs a little from start to start; a host plans by it, and should not have to plan anew.
    if memory > 8 * GRAIN { memory - memory % GRAIN } else { memory }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn sizes_processors_and_names_are_read_or_refused_with_what_was_found() {
        assert_eq!((size("12G"), size("800MiB"), size("77")), (Ok(12 << 30), Ok(800 << 20), Ok(77)));
        for wrong in ["", "G", "1.5G", "12X", "99999999T", "-1"] {
            assert!(size(wrong).is_err_and(|e| e.contains(&format!("{wrong:?}"))), "{wrong}");
        }
        assert_eq!(processors("0-2,5"), Ok(Processors(vec![0, 1, 2, 5])));
        for wrong in ["", "3-1", "a", "1,,2", "0-99999999"] {
            assert!(processors(wrong).is_err(), "{wrong}");
        }
        assert_eq!(id("pigeon-07"), Ok(*b"pigeon-07\0\0\0\0\0\0\0"));
        assert!(id("").is_err() && id("seventeen bytes!!").is_err());
    }

    #[test]
    fn a_key_is_digits_or_a_file_with_them() {
        let text = "0123456789abcdefABCDEF0000000000000000000000000000000000000000ff";
        let found = key(text).expect("64 digits");
        assert_eq!((found.0[0], found.0[8], found.0[31]), (0x01, 0xab, 0xff));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pond.pub");
        fs::write(&path, format!("{text}\n")).expect("a file");
        assert_eq!(key(path.to_str().expect("text")), Ok(found));
        fs::write(&path, "short").expect("a file");
        assert!(key(path.to_str().expect("text")).is_err_and(|e| e.contains("found 5 bytes")));
        assert!(key("nowhere/pond.pub").is_err_and(|e| e.contains("nowhere/pond.pub")));
    }

    #[test]
    fn memory_is_what_can_be_spared_or_is_reserved() {
        let plain = "MemTotal: 16000000 kB\nMemAvailable:   16777216 kB\nHugePages_Free: 0\nHugepagesize: 2048 kB\n";
        assert_eq!(default_memory(plain, HugePages::Auto), 15 << 30);
        let reserved = "MemAvailable: 1048576 kB\nHugePages_Free: 12\nHugepagesize: 1048576 kB\n";
        assert_eq!(default_memory(reserved, HugePages::Auto), 12 << 30);
        assert_eq!(default_memory(reserved, HugePages::Off), 512 << 20);
        assert_eq!(default_memory("", HugePages::Auto), 0);
    }
}
