//! What the kernel says of a machine, read below a root folder, so that tests can make one up out of plain files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::limited::read_bytes;

/// Processors by number.
pub type Processors = BTreeSet<u16>;

/// Longest file that is looked at: /proc/cpuinfo has some KiB for each processor.
const LONGEST: u64 = 4 << 20;
/// Highest processor number that a list may have.
const HIGHEST: u16 = 1023;

/// A machine, seen through its files.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

/// Whom the kernel takes this process for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    uid: u32,
    groups: Vec<u32>,
    capabilities: u64,
}

/// May send and receive raw frames.
pub const CAP_NET_RAW: u32 = 13;
/// May lock memory without a limit.
pub const CAP_IPC_LOCK: u32 = 14;
/// May read and write whatever the permissions are.
const CAP_DAC_OVERRIDE: u32 = 1;

impl User {
    /// Whether it has that capability.
    pub fn may(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 == 1
    }
}

impl Machine {
    /// The one whose files are below `root`.
    pub fn below(root: impl Into<PathBuf>) -> Machine {
        Machine { root: root.into() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without white space at its ends; `None` where there is none, or none that can be read.
    pub fn text(&self, path: &str) -> Option<String> {
        let bytes = read_bytes(&self.at(path), LONGEST).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Whether there is anything.
    pub fn exists(&self, path: &str) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    /// The last part of what a symbolic link points to: in /sys, the name of a driver or a group.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.at(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// What is in a folder, sorted; nothing where there is none.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Processors in a file.
    pub fn processors(&self, path: &str) -> Processors {
        self.text(path).map(|text| processors(&text)).unwrap_or_default()
    }

    /// The values that a parameter has on the kernel's command line, in their order; an empty one where it stands alone.
    pub fn parameters(&self, name: &str) -> Vec<String> {
        let line = self.text("/proc/cmdline").unwrap_or_default();
        let values = line.split_whitespace().filter_map(|word| match word.split_once('=') {
            Some((found, value)) => (found == name).then(|| value.to_owned()),
            None => (word == name).then(String::new),
        });
        values.collect()
    }

    /// The value after `NAME:` in a file of such lines, such as /proc/meminfo.
    pub fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim().to_owned())
    }

    /// Bytes of a line of /proc/meminfo.
    pub fn memory(&self, name: &str) -> Option<u64> {
        let kib: u64 = self.field("/proc/meminfo", name)?.strip_suffix(" kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Whether settings are made by NixOS here.
    pub fn is_nixos(&self) -> bool {
        self.exists("/etc/NIXOS")
    }

    /// Who this process is.
    pub fn user(&self) -> User {
        let numbers = |name: &str| -> Vec<u32> {
            let words = self.field("/proc/self/status", name).unwrap_or_default();
            words.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        // Real, effective, saved, and that for files.
        let effective = |name: &str| numbers(name).get(1).copied();
        let mut groups = numbers("Groups");
        groups.extend(effective("Gid"));
        let capabilities = self.field("/proc/self/status", "CapEff");
        User {
            uid: effective("Uid").unwrap_or(u32::MAX),
            groups,
            capabilities: capabilities.and_then(|digits| u64::from_str_radix(&digits, 16).ok()).unwrap_or(0),
        }
    }

    /// Whether this user may read and write a file, by owner, group and mode; `None` where there is none.
    pub fn may_use(&self, path: &str, user: &User) -> Option<bool> {
        let metadata = fs::metadata(self.at(path)).ok()?;
        let shift = if metadata.uid() == user.uid {
            6
        } else if user.groups.contains(&metadata.gid()) {
            3
        } else {
            0
        };
        Some(user.may(CAP_DAC_OVERRIDE) || metadata.mode() >> shift & 0o6 == 0o6)
    }
}

/// Processors in a list as the kernel writes them, such as `2-5,8`; what is none, such as isolcpus' flags or `(null)`, is passed over.
pub fn processors(text: &str) -> Processors {
    let mut all = Processors::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        // `0-31:2/4` is a pattern that nobody needs here: all of its range.
        let last = last.split(':').next().unwrap_or(last);
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) => all.extend(first..=last.min(HIGHEST)),
            _ if part.trim() == "all" => all.extend(0..=HIGHEST),
            _ => {}
        }
    }
    all
}

/// Such a list, with ranges.
pub fn list(processors: &Processors) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for &processor in processors {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == processor => *last = processor,
            _ => ranges.push((processor, processor)),
        }
    }
    let shown = ranges.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_and_written_as_the_kernel_does() {
        for text in ["", "0", "2-5,8", "0,2,4,6-1023"] {
            assert_eq!(list(&processors(text)), text);
        }
        assert_eq!(list(&processors("managed_irq,domain,2,3,4")), "2-4");
        assert_eq!(list(&processors("(null)")), "");
        assert_eq!(list(&processors("4-2, 7 ,x,-1,99999999")), "7");
        assert_eq!(list(&processors("1000-60000")), "1000-1023");
        assert_eq!(processors("all").len(), 1024);
    }

    #[test]
    fn parameters_are_whole_words_and_all_of_them_count() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("proc")).expect("below it");
        let line = "quiet isolcpus=2,3 nohz_full=2 hugepages=4 isolcpus=4 my_isolcpus=9 iommu=pt\n";
        fs::write(folder.path().join("proc/cmdline"), line).expect("below it");
        let machine = Machine::below(folder.path());
        assert_eq!(machine.parameters("isolcpus"), ["2,3", "4"]);
        assert_eq!((machine.parameters("quiet"), machine.parameters("rcu_nocbs")), (vec![String::new()], vec![]));
    }
}
